"""What runs beside the answers of notebook 01: the model, caches of several requests, prefills of several prompts."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autograder.drivers import called, frozen
from course_lib.model import Model
from course_lib.weights import seeded_model

USED = -1.0  # what the caller writes into its arrays when it uses them for something else


@functools.lru_cache(maxsize=4)
def model(seed: int = 0) -> Model:
    """Three layers, exact arithmetic, NumPy: the same bits on every machine."""
    return seeded_model("tiny", seed=seed, backend="numpy", arith="exact")


def warm() -> None:
    """Make once what the calls share; a grader does so before it starts the processes that run them."""
    model()


def caches(
    make: Callable, num_layers: int, kv_heads: int, head_dim: int, operations: Sequence[tuple[int, int, int]],
    reuse: bool, k: np.ndarray, v: np.ndarray,
) -> tuple[tuple[tuple[Any, Any], ...], tuple[bool, ...]]:  # fmt: skip
    """The keys and values that each view gives, in order; then whether they are the same at the end, for each view.

    operations   (request, layer, tokens): append the next tokens of k and v, or view if tokens is 0. A request's cache
                 is made at its first operation.
    reuse        whether the arrays that were appended are overwritten after each append
    """
    made: dict[int, Any] = {}
    views, done = [], 0
    for request, layer, tokens in operations:
        if request not in made:
            made[request] = make(num_layers, kv_heads, head_dim)
        if not tokens:
            views.append(_view(made[request], layer))
            continue
        chunk = [x[done : done + tokens].copy() for x in (k, v)]
        called(made[request].append, layer, *chunk)
        done += tokens
        if reuse:
            chunk[0][...] = chunk[1][...] = USED
    kept = tuple(frozen(given) == then for given, then, _ in views)
    return tuple(now for _, _, now in views), kept


def prefills(prefill: Callable, jobs: Sequence[tuple[list[int], list[int]]]) -> tuple[tuple[tuple, ...], bool]:
    """Of each (ids, sizes) in turn: the lengths of the chunks that ran, the logits, each layer's keys and values.

    Then whether all caches still hold the same at the end.
    """
    results, caches = [], []
    for ids, sizes in jobs:
        own = copy.copy(model())
        own.embedding = noting = Noting(own.embedding)
        cache, logits = _pair(called(functools.partial(prefill, own), ids, sizes))
        layers = [_view(cache, layer) for layer in range(own.config.num_layers)]
        caches.append((cache, layers))
        results.append((tuple(noting.sizes), copy.deepcopy(logits), tuple(now for _, _, now in layers)))
    kept = all(_view(cache, i)[1] == then for cache, layers in caches for i, (_, then, _) in enumerate(layers))
    return tuple(results), kept


class Noting:
    """An embedding that notes how many tokens are looked up at a time: the chunks that really ran."""

    def __init__(self, table: np.ndarray):
        self.table, self.sizes = table, []

    def __getitem__(self, ids):
        self.sizes.append(int(np.size(ids)))
        return self.table[ids]


def _view(cache: Any, layer: int) -> tuple[Any, Any, tuple[Any, Any]]:
    """What a view gives, what that holds now, and a copy of it."""
    given = cache.view(layer)
    try:
        keys, values = given
    except (TypeError, ValueError):
        raise TypeError(f"view({layer}) gives {_described(given)}, wanted a pair: keys, values") from None
    return (keys, values), frozen((keys, values)), copy.deepcopy((keys, values))


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TypeError(f"it returned {_described(result)}, wanted a pair: the cache, and the last token's logits")
    if not hasattr(result[0], "view") or isinstance(result[0], np.ndarray):
        raise TypeError(f"the first thing that it returned is {_described(result[0])}, wanted the cache")
    return tuple(result)


def _described(value: Any) -> str:
    return "None" if value is None else f"something of type {type(value).__name__}"
