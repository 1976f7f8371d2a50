"""`python -m course_lib.weights.train_ledger OUT_DIR`: train the ledger model; OUT_DIR is loadable like any other.

Data, initial weights and order are fixed by the seed, but the last bits of training depend on the machine: a
second run gives a model that is as good, with other bits. The course uses the one in assets/ledger.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from course_lib.cli import Parser, UserError, file_to_write, not_negative, positive, run_command
from course_lib.model_config import ModelConfig
from course_lib.positions import rope_cos_sin, rotate
from course_lib.weights.build import expected_shapes
from course_lib.weights.huggingface import LAYER_TENSORS, SHARED_TENSORS
from course_lib.weights.ledger import VOCABULARY, held_before, prompts
from course_lib.weights.safetensors_file import Tensor, write

CURRICULUM = ((16, 500), (32, 400), (64, 600))  # statements in a prompt, steps; fewer steps keep the shares
CONFIG = ModelConfig(
    vocab_size=len(VOCABULARY), hidden_size=96, num_layers=3, q_heads=4, kv_heads=2, head_dim=24, intermediate_size=192,
    max_position_embeddings=3 * CURRICULUM[-1][0] + 2,
)  # fmt: skip
STEPS = sum(steps for _, steps in CURRICULUM)
BATCH_TOKENS, LEARNING_RATE, WARM_UP = 3200, 3e-3, 50
PROG = "python -m course_lib.weights.train_ledger"


def lessons(steps: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`steps` batches, short prompts first: token ids and targets, both [prompts, tokens] int64, -1 = no target.

    Every name has a target, not the query alone: the digit that this name held before. So a prompt teaches many times.
    """
    begin, planned = 0, 0
    for statements, share in CURRICULUM:
        planned += share
        end = steps * planned // STEPS
        for step in range(begin, end):
            # Seeds from 2**32 on, so that no lesson is one of the prompts that the model is later asked.
            ids, _ = prompts(max(1, BATCH_TOKENS // (3 * statements + 2)), statements, ((seed + 1) << 32) + step)
            yield ids, held_before(ids)
        begin = end


def initial_weights(c: ModelConfig, seed: int) -> dict:
    """A trainable torch tensor for every weight of `expected_shapes`: normal, scaled by the width that is summed."""
    import torch

    random = torch.Generator().manual_seed(seed)

    def make(name: str, shape: tuple[int, ...]):
        if len(shape) == 1:
            return torch.ones(shape, requires_grad=True)
        scale = 1.0 if name == "embedding" else shape[0] ** -0.5
        if name in ("o", "down"):  # so that the residual stream does not grow with the layers
            scale /= (2 * c.num_layers) ** 0.5
        return (torch.randn(shape, generator=random) * scale).requires_grad_()

    shapes = expected_shapes(c)
    layer = shapes.pop("layer")
    weights: dict = {name: make(name, shape) for name, shape in shapes.items()}
    weights["layers"] = [{name: make(name, shape) for name, shape in layer.items()} for _ in range(c.num_layers)]
    return weights


def logits(weights: dict, c: ModelConfig, ids):
    """What Model.forward computes, in torch's own kernels, for a batch in one pass: [prompts, tokens, vocab_size]."""
    from torch import from_numpy
    from torch.nn import functional as F

    count, tokens = ids.shape
    cos, sin = (from_numpy(x) for x in rope_cos_sin(np.arange(tokens), c.head_dim, c.rope_theta))
    q_width, kv_width = c.q_heads * c.head_dim, c.kv_heads * c.head_dim

    def norm(x, gain):
        return F.rms_norm(x, (c.hidden_size,), gain, c.rms_norm_eps)

    x = weights["embedding"][ids]
    for w in weights["layers"]:
        parts = (norm(x, w["attention_norm"]) @ w["qkv"]).split([q_width, kv_width, kv_width], dim=-1)
        q, k, v = (part.reshape(count, tokens, -1, c.head_dim) for part in parts)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (part.repeat_interleave(c.q_heads // c.kv_heads, dim=2) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + attended.transpose(1, 2).reshape(count, tokens, q_width) @ w["o"]
        gate, up = (norm(x, w["mlp_norm"]) @ w["gate_up"]).chunk(2, dim=-1)
        x = x + (F.silu(gate) * up) @ w["down"]
    return norm(x, weights["final_norm"]) @ weights["lm_head"]


def train(steps: int, seed: int, report=None, config: ModelConfig = CONFIG) -> tuple[dict, list[float]]:
    """Train from the start. Returns the weights, as of `initial_weights`, and the loss of every step (nats).

    report   function (step, loss) called after each step
    """
    import torch

    weights, losses = initial_weights(config, seed), []
    parameters = [w for name, w in weights.items() if name != "layers"]
    parameters += [w for layer in weights["layers"] for w in layer.values()]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step, (ids, targets) in enumerate(lessons(steps, seed)):
        for group in optimizer.param_groups:  # up in a line, then down in a cosine to a hundredth
            falling = 0.5 * (1 + np.cos(np.pi * step / steps))
            group["lr"] = LEARNING_RATE * min((step + 1) / WARM_UP, 1) * max(falling, 0.01)
        ids, targets = torch.from_numpy(ids), torch.from_numpy(targets)
        asked = targets >= 0
        loss = torch.nn.functional.cross_entropy(logits(weights, config, ids)[asked], targets[asked])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
        if report is not None:
            report(step, losses[-1])
    return weights, losses


def save(weights: dict, c: ModelConfig, folder: Path) -> None:
    """Write config.json and model.safetensors (float16) as Hugging Face names and stores them."""
    parts = {
        "qkv": [c.q_heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim],
        "gate_up": [c.intermediate_size, c.intermediate_size],
    }
    tensors = {}

    def store(name: str, array: np.ndarray) -> None:
        tensors[name] = Tensor(np.ascontiguousarray(array.astype(np.float16)), "F16")

    def array_of(weight) -> np.ndarray:
        return weight.detach().cpu().numpy()

    for key, name in SHARED_TENSORS.items():
        array = array_of(weights[key])
        store(name, array.T if key == "lm_head" else array)
    for number, layer in enumerate(weights["layers"]):
        for key, weight in layer.items():
            names, array = LAYER_TENSORS[key], array_of(weight)
            ends = np.cumsum(parts.get(key, [array.shape[-1]]))[:-1]
            for name, part in zip(names, np.split(array, ends, axis=-1)):
                store(f"model.layers.{number}.{name}.weight", part.T)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.q_heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate_size,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "tie_word_embeddings": c.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": c.max_position_embeddings,
        "dtype": "float16",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write(folder / "model.safetensors", tensors, {"format": "pt"})


def parser() -> Parser:
    p = Parser(
        prog=PROG,
        description="Train the ledger model (a few minutes on 2 cores) and write config.json and model.safetensors.",
        example=f"{PROG} work/ledger",
    )
    p.add_argument("folder", type=Path, metavar="OUT_DIR", help="folder to write; must not hold a model yet")
    p.add_argument("--steps", type=positive, default=STEPS, help=f"training steps in all (default {STEPS})")
    p.add_argument("--seed", type=not_negative, default=0, help="of data and initial weights (default 0)")
    p.add_argument("--threads", type=positive, default=2, help="threads of torch (default 2)")
    return p


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    if args.folder.exists() and not args.folder.is_dir():
        raise UserError(f"{args.folder} is a file, wanted a folder. Name another.")
    if (args.folder / "model.safetensors").exists():
        raise UserError(f"{args.folder} holds a model already. Name another folder, or remove it first.")
    try:
        import torch
    except ImportError:
        raise UserError("training needs PyTorch, which is not installed. Use pip install torch.") from None
    args.folder.mkdir(parents=True, exist_ok=True)  # before minutes of work
    for name in ("config.json", "model.safetensors"):
        file_to_write(args.folder / name)
    torch.set_num_threads(args.threads)
    begin = time.perf_counter()

    def report(step: int, loss: float) -> None:
        if (step + 1) % 50 == 0 or step + 1 == args.steps:
            print(f"step {step + 1:5d}  loss {loss:.4f} nats  {time.perf_counter() - begin:5.0f} s", flush=True)

    weights, _ = train(args.steps, args.seed, report)
    save(weights, CONFIG, args.folder)
    print(f"wrote {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(PROG, main, sys.argv[1:]))
