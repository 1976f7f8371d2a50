"""Prefill over a cache without pages, the smallest that works. The engine's forward, over a paged pool, is in model.py.

A cache here is any object with append(layer, k, v) and view(layer); it holds one request. The layer is the model's, and
so are the bits.
"""

from collections.abc import Sequence

import numpy as np

from course_lib.attention.exact import attend_exact
from course_lib.model import Model


class KVCache:
    """The keys and values of one request: for each layer, those of all its tokens so far, in order.

    Nothing in it changes once it is there; it only grows, however long the request gets. Two caches share nothing.
    """

    def __init__(self, num_layers: int, kv_heads: int, head_dim: int):
        """An empty cache: no token in any layer."""
        self.k = [np.zeros((0, kv_heads, head_dim), dtype=np.float32) for _ in range(num_layers)]
        self.v = [np.zeros((0, kv_heads, head_dim), dtype=np.float32) for _ in range(num_layers)]

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Add the next tokens' keys and values to one layer, after the ones that are there.

        k, v   [new tokens, kv_heads, head_dim]   float32; the caller may use these arrays for something else afterwards
        """
        self.k[layer] = np.concatenate([self.k[layer], k])
        self.v[layer] = np.concatenate([self.v[layer], v])

    def view(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of all tokens so far in one layer; arrays of length 0 before the first token.

        returns   k, v: [tokens, kv_heads, head_dim]   float32; the caller only reads them, and no later append may
                  change them
        """
        return self.k[layer], self.v[layer]


def prefill(model, ids: Sequence[int], sizes: Sequence[int]) -> tuple:
    """Compute a prompt in chunks, each against what the chunks before it left in the cache. Each call makes a new one.

    model     a course_lib.model.Model in exact arithmetic
    ids       token ids of the prompt
    sizes     lengths of the chunks, in order, each at least 1; they add up to len(ids). Neither list may change
    returns   a KVCache with every layer's keys and values of all tokens, and the last token's logits [vocab_size]
    """
    c = model.config
    cache = KVCache(c.num_layers, c.kv_heads, c.head_dim)
    start = 0
    for size in sizes:
        logits = run_chunk(model, ids[start : start + size], cache)
        start += size
    return cache, logits


def run_chunk(model: Model, ids: Sequence[int], cache: KVCache) -> np.ndarray:
    """Compute the next tokens after the ones in `cache`, and append their keys and values to it.

    ids       the next tokens, at least one
    cache     any object with append(layer, k, v) and view(layer); what it holds says where the tokens stand
    returns   logits [vocab_size] of the last of them

    In each layer the chunk's own keys and values are appended first; then its queries read the whole view. Whatever the
    view holds is taken for the truth, the chunk's own tokens at its end.
    """
    expect_exact(model, "run_chunk")
    if not len(ids) or not 0 <= min(ids) <= max(ids) < model.config.vocab_size:
        raise ValueError(f"a chunk needs at least one token id, each in 0 .. {model.config.vocab_size - 1}.")
    start = len(cache.view(0)[0])

    def attend(layer: int, q, k, v):
        cache.append(layer, k, v)
        keys, values = cache.view(layer)
        if keys.shape != values.shape or len(keys) < len(ids):
            raise ValueError(
                f"layer {layer} of the cache has keys {keys.shape}, values {values.shape} after the append."
            )
        return attend_exact(q, keys, values, len(keys) - len(ids))

    positions = np.arange(start, start + len(ids))
    return model.run_layers(model.embedding[np.asarray(ids)], positions, attend, np.array([len(ids) - 1]))[0]


def expect_exact(model: Model, name: str) -> None:
    """ValueError unless the model is in exact arithmetic, the only one in which `name` works."""
    if model.arith.name != "exact":
        raise ValueError(f"{name} works in exact arithmetic, not {model.arith.name}: model.with_arithmetic('exact').")
