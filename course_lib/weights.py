"""Where a model's weights come from: a seeded integer generator, or a Hugging Face style folder."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from course_lib.cli import UserError
from course_lib.huggingface import read_config, weight_reader
from course_lib.model import Model, ModelConfig

SEEDED = {
    # Three layers: a one-layer model cannot show a wrong mask in its KV. Grouped heads, so that GQA is exercised.
    "tiny": ModelConfig(
        vocab_size=128, hidden_size=64, num_layers=3, q_heads=4, kv_heads=2, head_dim=16, intermediate_size=128
    ),
    "small": ModelConfig(
        vocab_size=512, hidden_size=256, num_layers=3, q_heads=8, kv_heads=2, head_dim=32, intermediate_size=512
    ),
}


def seeded_model(
    name: str = "tiny", seed: int = 0, *, backend: str = "numpy", arith: str = "tile", dtype: str = "float32",
    device: str = "cpu", config: ModelConfig | None = None,
) -> Model:  # fmt: skip
    """A model of pseudo-random weights, identical on every machine.

    name      a key of SEEDED; `config`, if given, takes its place
    backend   numpy | torch;  dtype   float32, with torch also bfloat16 and float16
    """
    if config is None and name not in SEEDED:
        raise UserError(f"no seeded model {name!r}; there are {sorted(SEEDED)}.")
    config = config or SEEDED[name]
    generator = _IntegerNormal(seed)
    sharper = (config.q_heads + config.kv_heads) * config.head_dim

    def make(key: str, shape: tuple[int, ...], layer: int | None) -> np.ndarray:
        array = generator(shape)
        if "norm" in key:
            return 1 + array / 8
        if key != "embedding":
            array *= 1 / np.sqrt(shape[0])  # sqrt in float64 is one IEEE rounding
        if key == "qkv":
            array[:, :sharper] *= 1.5  # sharper attention, so that a wrong mask is seen
        return array

    return build(config, make, converter(backend, dtype, device), arith)


def load_model(
    folder: Path, *, backend: str = "numpy", arith: str = "tile", dtype: str = "float32", device: str = "cpu"
) -> Model:
    """The model in a Hugging Face style folder. Raises UserError, in one line, for one that cannot be run here."""
    convert = converter(backend, dtype, device)
    config = read_config(folder)
    return build(config, weight_reader(folder, config), convert, arith)


def build(config: ModelConfig, make: Callable, convert: Callable, arith: str) -> Model:
    """A Model from `make(key, shape, layer)`, which gives each weight of `expected_shapes` (layer None: shared).

    The model's `sha256` is over the configuration and the float32 weights, before `convert` and the
    arithmetic change their form, so it names the model whatever it runs in.
    """
    digest = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode())

    def take(key: str, shape: tuple[int, ...], layer: int | None = None):
        array = np.ascontiguousarray(make(key, shape, layer), dtype=np.float32)
        digest.update(array.data)
        return convert(array)

    shapes = expected_shapes(config)
    layer = shapes.pop("layer")
    weights: dict = {key: take(key, shape) for key, shape in shapes.items()}
    weights["layers"] = [
        {key: take(key, shape, number) for key, shape in layer.items()} for number in range(config.num_layers)
    ]
    return Model(config, weights, arith, digest.hexdigest())


def expected_shapes(c: ModelConfig) -> dict:
    """Names and shapes of a model's weights, every matrix as [inner, columns]; those of one layer under "layer"."""
    q, kv = c.q_heads * c.head_dim, c.kv_heads * c.head_dim
    layer = {
        "attention_norm": (c.hidden_size,),
        "qkv": (c.hidden_size, q + 2 * kv),
        "o": (q, c.hidden_size),
        "mlp_norm": (c.hidden_size,),
        "gate_up": (c.hidden_size, 2 * c.intermediate_size),
        "down": (c.intermediate_size, c.hidden_size),
    }
    shapes = {"embedding": (c.vocab_size, c.hidden_size), "final_norm": (c.hidden_size,)}
    if not c.tie_word_embeddings:
        shapes["lm_head"] = (c.hidden_size, c.vocab_size)
    return {**shapes, "layer": layer}


def converter(backend: str, dtype: str, device: str) -> Callable[[np.ndarray], object]:
    """float32 NumPy -> array of the wanted library, dtype and device. Raises UserError when there is none such."""
    if backend == "numpy":
        if dtype != "float32" or device != "cpu":
            raise UserError(
                f"the NumPy backend has float32 on the CPU only, not {dtype} on {device}. Use --backend torch."
            )
        return lambda array: array
    if backend != "torch":
        raise UserError(f"no backend {backend!r}; there are numpy and torch.")
    try:
        import torch
    except ImportError:
        raise UserError(
            "the torch backend needs PyTorch, which is not installed. Use --backend numpy, or pip install torch."
        ) from None
    if dtype not in ("float32", "bfloat16", "float16"):
        raise UserError(f"no dtype {dtype!r}; there are float32, bfloat16 and float16.")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"device {device!r} is not available here. Use --device cpu.")
    return lambda array: torch.from_numpy(array).to(device=device, dtype=getattr(torch, dtype))


class _IntegerNormal:
    """Nearly normal numbers (mean 0, variance 1) with the same bits on every machine and NumPy release.

    Raw 64-bit words of PCG64 (NumPy promises its raw stream, not its distributions) give four 16-bit
    integers each; their sum is nearly normal (Irwin-Hall), and one IEEE multiply scales it.
    """

    def __init__(self, seed: int):
        self._bits = np.random.PCG64(seed)

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        words = self._bits.random_raw(int(np.prod(shape))).astype("<u8").view("<u2").reshape(-1, 4)
        total = words.astype(np.int64).sum(axis=1) - 2 * 65535
        return (total * (np.sqrt(3.0) / 65536)).reshape(shape)  # each term has variance 65536**2 / 12
