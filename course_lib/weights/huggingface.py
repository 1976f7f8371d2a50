"""Loading a Hugging Face style folder: config.json with model.safetensors, single or sharded.

Only what this engine computes is accepted: LlamaForCausalLM without RoPE scaling, biases or quantisation.
Everything else is refused by name, because it would run and be wrong.
"""

import json
from pathlib import Path

import numpy as np

from course_lib.arithmetic.arrays import bfloat16_to_float32
from course_lib.cli import UserError
from course_lib.model import Model
from course_lib.model_config import ModelConfig
from course_lib.weights import safetensors_file
from course_lib.weights.build import build, converter

# Our weight: the tensors of a Hugging Face checkpoint that it is made of, each stored as [columns, inner].
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


def load_model(
    folder: Path, *, backend: str = "numpy", arith: str = "tile", dtype: str = "float32", device: str = "cpu"
) -> Model:
    """The model in a Hugging Face style folder. Raises UserError, in one line, for one that cannot be run here."""
    convert = converter(backend, dtype, device)
    config = read_config(folder)
    return build(config, weight_reader(folder, config), convert, arith)


def read_config(folder: Path) -> ModelConfig:
    """config.json as a ModelConfig. Raises UserError for an architecture or option that this engine lacks."""
    path = folder / "config.json"
    raw = _read_json(path, "Is it a Hugging Face style model folder?")
    try:
        _refuse_unsupported(raw)
        q_heads, hidden_size = _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
        return ModelConfig(
            vocab_size=_size(raw, "vocab_size"),
            hidden_size=hidden_size,
            num_layers=_size(raw, "num_hidden_layers"),
            q_heads=q_heads,
            kv_heads=_size(raw, "num_key_value_heads", q_heads),
            head_dim=_size(raw, "head_dim", hidden_size // q_heads),
            intermediate_size=_size(raw, "intermediate_size"),
            rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6),
            rope_theta=_number(_rope_options(raw), "rope_theta", 10000.0),
            tie_word_embeddings=raw.get("tie_word_embeddings", False) is True,
        )
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _read_json(path: Path, hint: str) -> dict:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}. {hint}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}). Was the download complete?") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} holds a {type(raw).__name__}, wanted an object. {hint}")
    return raw


def _size(raw: dict, name: str, default: int | None = None) -> int:
    value = default if raw.get(name) is None else raw[name]
    if value is None:
        raise ValueError(f"{name} is missing; a config.json of LlamaForCausalLM has it.")
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{name}={str(value)[:40]}, wanted a whole number of at least 1 and below 2**31.")
    return value


def _number(raw: dict, name: str, default: float) -> float:
    value = default if raw.get(name) is None else raw[name]
    if type(value) not in (int, float) or not abs(value) < 1e300:
        raise ValueError(f"{name}={str(value)[:40]}, wanted a number.")
    return float(value)


def _rope_options(raw: dict) -> dict:
    """transformers 5 writes rope_parameters, 4 wrote rope_scaling beside rope_theta; what is null does not count."""
    options = {name: raw.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(given := raw.get(name) or {}, dict):
            raise ValueError(f"{name}={str(given)[:40]} is not supported; wanted an object, or null.")
        options.update({option: value for option, value in given.items() if value is not None})
    return {option: value for option, value in options.items() if value is not None}


def _refuse_unsupported(raw: dict) -> None:
    """ValueError for what would run and be wrong."""
    architectures = raw.get("architectures") or [raw.get("model_type", "none named")]
    if architectures not in (["LlamaForCausalLM"], ["llama"]):
        raise ValueError(f"architecture {str(architectures)[:80]} is not supported; this engine runs LlamaForCausalLM.")
    rope = _rope_options(raw)
    if scaling := [value for name in ("rope_type", "type") if (value := rope.pop(name, "default")) != "default"]:
        raise ValueError(f"RoPE scaling {str(scaling[0])[:40]!r} is not supported; use a model without rope_scaling.")
    if rope.pop("partial_rotary_factor", 1) != 1:
        raise ValueError("partial_rotary_factor is not supported; all of head_dim must be rotated.")
    rope.pop("rope_theta", None)
    if rope:
        raise ValueError(f"RoPE options {sorted(rope)} are not supported; use a model without rope_scaling.")
    options = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "quantization_config": None}
    for name, wanted in options.items():
        if raw.get(name, wanted) not in (wanted, None):
            raise ValueError(f"{name}={str(raw[name])[:80]} is not supported; this engine has {name}={wanted}.")
    if not isinstance(raw.get("tie_word_embeddings"), (bool, type(None))):
        raise ValueError(f"tie_word_embeddings={str(raw['tie_word_embeddings'])[:40]}, wanted true or false.")


class Checkpoint:
    """The tensors of a folder by name, read one at a time. Raises UserError for what is missing or misshapen."""

    def __init__(self, folder: Path):
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        names = ["model.safetensors"]
        if index.exists():
            files = _read_json(index, "It should list the shards of the model.").get("weight_map")
            if not isinstance(files, dict) or not files:
                raise UserError(f"{index} has no weight_map from tensors to files. Was the download complete?")
            names = sorted({str(name) for name in files.values()})
            if outside := [name for name in names if Path(name).name != name]:
                raise UserError(f"{index} names the file {outside[0][:80]!r}, wanted files of the folder itself.")
        self._entries = {}
        for name in names:
            header = safetensors_file.read_header(folder / name)
            header.pop("__metadata__", None)
            if twice := sorted(header.keys() & self._entries.keys()):
                raise UserError(f"{folder / name}: tensor {twice[0]} is in another shard too, wanted each tensor once.")
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
