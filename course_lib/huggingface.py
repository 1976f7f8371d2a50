"""Loading a Hugging Face style folder: config.json with model.safetensors, single or sharded.

Only what this engine computes is accepted: LlamaForCausalLM without RoPE scaling, biases or sliding
windows. Everything else is refused by name, because it would run and be wrong.
"""

import json
from pathlib import Path

import numpy as np

from course_lib import safetensors_file
from course_lib.arrays import bfloat16_to_float32
from course_lib.cli import UserError
from course_lib.model import ModelConfig

# Our weight: the parts of Hugging Face's checkpoint it is made of, each stored as [columns, inner].
LAYER_TENSORS = {
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
SHARED_TENSORS = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}


def read_config(folder: Path) -> ModelConfig:
    """config.json as a ModelConfig. Raises UserError for an architecture or option that this engine has not."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}. Is it a Hugging Face style model folder?"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}).") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} holds a {type(raw).__name__}, wanted an object.")
    _refuse_unsupported(path, raw)
    try:
        q_heads = int(raw["num_attention_heads"])
        return ModelConfig(
            vocab_size=int(raw["vocab_size"]),
            hidden_size=int(raw["hidden_size"]),
            num_layers=int(raw["num_hidden_layers"]),
            q_heads=q_heads,
            kv_heads=int(raw.get("num_key_value_heads") or q_heads),
            head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // q_heads),
            intermediate_size=int(raw["intermediate_size"]),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float(_rope_parameters(raw).get("rope_theta") or raw.get("rope_theta") or 10000.0),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise UserError(f"{path} lacks {error}.") from None
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise UserError(f"{path}: {error}") from None


def _rope_parameters(raw: dict) -> dict:
    """transformers 5 writes rope_parameters, 4 wrote rope_scaling beside rope_theta."""
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return parameters if isinstance(parameters, dict) else {"rope_type": str(parameters)}


def _refuse_unsupported(path: Path, raw: dict) -> None:
    architectures = raw.get("architectures") or [raw.get("model_type", "none named")]
    if architectures not in (["LlamaForCausalLM"], ["llama"]):
        raise UserError(f"{path}: architecture {architectures} is not supported; this engine runs LlamaForCausalLM.")
    rope = _rope_parameters(raw)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        raise UserError(f"{path}: RoPE scaling {kind!r} is not supported; use a model without rope_scaling.")
    if float(rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1) != 1:
        raise UserError(f"{path}: partial_rotary_factor is not supported; all of head_dim must be rotated.")
    for option, wanted in {
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "quantization_config": None,
    }.items():
        if raw.get(option, wanted) != wanted:
            raise UserError(f"{path}: {option}={raw[option]!r} is not supported; this engine has {option}={wanted!r}.")


class Checkpoint:
    """The tensors of a folder by name, read one at a time. Raises UserError for what is missing or misshapen."""

    def __init__(self, folder: Path):
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        if index.exists():
            try:
                files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                names = sorted({str(name) for name in files.values()})
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(f"{index} cannot be read ({error}).") from None
            if any(Path(name).name != name for name in names):
                raise UserError(f"{index} names a file outside the folder.")
        else:
            names = ["model.safetensors"]
        self._entries = {}
        for name in names:
            header = safetensors_file.read_header(folder / name)
            header.pop("__metadata__", None)
            self._entries.update({key: (folder / name, entry) for key, entry in header.items()})

    def get(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Tensor `name` as float32; `shape` is what the configuration asks for."""
        if name not in self._entries:
            raise UserError(
                f"{self._folder} has no tensor {name}; it holds {len(self._entries)} others. Is a shard missing?"
            )
        path, entry = self._entries[name]
        if tuple(entry["shape"]) != shape:
            raise UserError(f"{path}: {name} has shape {tuple(entry['shape'])}, config.json asks for {shape}.")
        array, dtype = safetensors_file.read_tensor(path, name, entry)
        if dtype not in ("F32", "F16", "BF16"):
            raise UserError(f"{path}: {name} has dtype {dtype}; wanted F32, F16 or BF16.")
        return bfloat16_to_float32(array) if dtype == "BF16" else array.astype(np.float32)


def weight_reader(folder: Path, c: ModelConfig):
    """make(key, shape, layer) for weights.build: our fused [inner, columns] matrices out of a checkpoint."""
    checkpoint = Checkpoint(folder)
    widths = {
        "self_attn.q_proj": c.q_heads * c.head_dim,
        "self_attn.k_proj": c.kv_heads * c.head_dim,
        "self_attn.v_proj": c.kv_heads * c.head_dim,
        "mlp.gate_proj": c.intermediate_size,
        "mlp.up_proj": c.intermediate_size,
    }

    def make(key: str, shape: tuple[int, ...], layer: int | None) -> np.ndarray:
        if layer is None:
            transposed = key == "lm_head"
            array = checkpoint.get(SHARED_TENSORS[key], shape[::-1] if transposed else shape)
            return array.T if transposed else array
        names = LAYER_TENSORS[key]
        parts = []
        for name in names:
            columns = widths.get(name, shape[-1])
            want = shape if len(shape) == 1 else (columns, shape[0])
            parts.append(checkpoint.get(f"model.layers.{layer}.{name}.weight", want))
        return parts[0] if len(shape) == 1 else np.concatenate(parts).T

    return make
