"""A model's config.json as a ModelConfig.

Only what this engine computes is accepted: Llama (3.1's RoPE scaling too), Qwen2, Qwen3 and Mistral, without
quantisation, sliding windows, or biases beyond those of Qwen2. Everything else is refused by name, because it would run
and be wrong.
"""

import json
from pathlib import Path

from course_lib.cli import UserError
from course_lib.model_config import ModelConfig
from course_lib.positions import Llama3Scaling

# Architecture: its model_type, what this engine turns on for it, and what its config.json may leave out.
FAMILIES: dict[str, tuple[str, dict, dict]] = {
    "LlamaForCausalLM": ("llama", {}, {}),
    "MistralForCausalLM": ("mistral", {}, {"num_key_value_heads": 8, "sliding_window": 4096}),
    "Qwen2ForCausalLM": ("qwen2", {"qkv_bias": True}, {"num_key_value_heads": 32}),
    "Qwen3ForCausalLM": ("qwen3", {"qk_norm": True}, {"num_key_value_heads": 32, "head_dim": 128}),
}


def read_config(folder: Path) -> ModelConfig:
    """config.json as a ModelConfig. Raises UserError for an architecture or option that this engine lacks."""
    path = folder / "config.json"
    raw = read_json(path, "Is it a Hugging Face style model folder?")
    try:
        kind, options, defaults = FAMILIES[_family(raw)]
        raw = defaults | raw
        rope = _rope_options(raw)
        scaling = _rope_scaling(rope)
        _refuse_unsupported(raw, rope)
        _refuse_window(raw, kind)
        q_heads, hidden_size = _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
        longest = raw.get("max_position_embeddings")
        return ModelConfig(
            vocab_size=_size(raw, "vocab_size"),
            hidden_size=hidden_size,
            num_layers=_size(raw, "num_hidden_layers"),
            q_heads=q_heads,
            kv_heads=_size(raw, "num_key_value_heads", q_heads),
            head_dim=_size(raw, "head_dim", hidden_size // q_heads),
            intermediate_size=_size(raw, "intermediate_size"),
            rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6),
            rope_theta=_number(rope, "rope_theta", 10000.0),
            tie_word_embeddings=raw.get("tie_word_embeddings", False) is True,
            rope_scaling=scaling,
            max_position_embeddings=None if longest is None else _size(raw, "max_position_embeddings"),
            **options,
        )
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def read_json(path: Path, hint: str) -> dict:
    """A JSON object. UserError, which ends with the hint, for a file that holds none."""
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
        raise ValueError(f"{name} is missing; a config.json of such a model has it.")
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{name}={str(value)[:40]}, wanted a whole number of at least 1 and below 2**31.")
    return value


def _number(raw: dict, name: str, default: float | None = None) -> float:
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


def _family(raw: dict) -> str:
    """A key of FAMILIES. ValueError for any other architecture."""
    architectures = raw.get("architectures") or [raw.get("model_type", "none named")]
    for name, (kind, *_) in FAMILIES.items():
        if architectures in ([name], [kind]):
            return name
    raise ValueError(
        f"architecture {str(architectures)[:80]} is not supported; this engine runs {', '.join(FAMILIES)}."
    )


def _rope_scaling(rope: dict) -> Llama3Scaling | None:
    """Take the scaling out of the RoPE options. ValueError for any but that of Llama 3.1."""
    kinds = [value for name in ("rope_type", "type") if (value := rope.pop(name, "default")) != "default"]
    if not kinds:
        return None
    if other := [kind for kind in kinds if kind != "llama3"]:
        raise ValueError(
            f"RoPE scaling {str(other[0])[:40]!r} is not supported; use a model with 'llama3', or without rope_scaling."
        )
    numbers = [_number(rope, name) for name in ("factor", "low_freq_factor", "high_freq_factor")]
    scaling = Llama3Scaling(*numbers, original=_size(rope, "original_max_position_embeddings"))
    for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        del rope[name]
    return scaling


def _refuse_window(raw: dict, kind: str) -> None:
    """ValueError for a sliding window that is shorter than the longest request: this engine attends to all tokens."""
    window = raw.get("sliding_window")
    if kind in ("qwen2", "qwen3"):  # two more options say whether a layer has it
        first = raw.get("max_window_layers", 28)
        late = type(first) is not int or _size(raw, "num_hidden_layers") > first
        used = raw.get("use_sliding_window") and ("sliding_attention" in (raw.get("layer_types") or []) or late)
        window = (window or 4096) if used else None
    if window is None:
        return
    longest = _size(raw, "max_position_embeddings", 2**31 - 1)
    if _size(raw, "sliding_window", window) < longest:
        raise ValueError(
            f"a sliding window of {window} tokens is not supported, unless max_position_embeddings is at most that "
            f"({raw.get('max_position_embeddings', 'not given')} here); this engine attends to all earlier tokens."
        )


def _refuse_unsupported(raw: dict, rope: dict) -> None:
    """ValueError for what would run and be wrong. `rope`: the RoPE options but those of the scaling."""
    if rope.get("partial_rotary_factor", 1) != 1:
        raise ValueError("partial_rotary_factor is not supported; all of head_dim must be rotated.")
    if others := sorted(rope.keys() - {"rope_theta", "partial_rotary_factor"}):
        raise ValueError(f"RoPE options {others} are not supported; use a model without rope_scaling.")
    options = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "quantization_config": None}
    for name, wanted in options.items():
        if raw.get(name, wanted) not in (wanted, None):
            raise ValueError(f"{name}={str(raw[name])[:80]} is not supported; this engine has {name}={wanted}.")
    if not isinstance(raw.get("tie_word_embeddings"), (bool, type(None))):
        raise ValueError(f"tie_word_embeddings={str(raw['tie_word_embeddings'])[:40]}, wanted true or false.")
