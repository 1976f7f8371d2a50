"""A model from its weights, wherever they come from: which arrays it wants, and in which library and dtype."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from course_lib.cli import UserError
from course_lib.model import Model
from course_lib.model_config import ModelConfig


def build(config: ModelConfig, make: Callable, convert: Callable, arith: str) -> Model:
    """A Model from `make(key, shape, layer)`, which gives each weight of `expected_shapes` (layer None: shared).

    The model's `sha256` is over the configuration and the float32 weights, before `convert` and the
    arithmetic change their form, so it names the model whatever it runs in.
    """
    sizes = asdict(config)
    del sizes["max_position_embeddings"]  # it changes no number
    for option in ("qkv_bias", "qk_norm", "rope_scaling"):  # younger than the hashes that are kept
        if not sizes[option]:
            del sizes[option]
    digest = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode())

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
    if c.qkv_bias:
        layer["qkv_bias"] = (q + 2 * kv,)
    if c.qk_norm:
        layer |= {"q_norm": (c.head_dim,), "k_norm": (c.head_dim,)}
    shapes = {"embedding": (c.vocab_size, c.hidden_size), "final_norm": (c.hidden_size,)}
    if not c.tie_word_embeddings:
        shapes["lm_head"] = (c.hidden_size, c.vocab_size)
    return {**shapes, "layer": layer}


def converter(backend: str, dtype: str, device: str) -> Callable[[np.ndarray], object]:
    """float32 NumPy -> array of the wanted library, dtype and device. Raises UserError when that cannot be had here."""
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
