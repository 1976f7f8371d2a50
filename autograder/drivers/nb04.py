"""What runs beside the answers of notebook 04. Tensors are arrays: float32, or uint16 with the bits of bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.drivers import ResultChanged, called, frozen
from autograder.drivers.fickle import fickle_products, tensor


def bit_report(answer: Callable, a: np.ndarray, b: np.ndarray) -> Any:
    return called(answer, tensor(a), tensor(b))


def tiled_linear(answer: Callable, x: np.ndarray, w: np.ndarray, start: int, *tile: int) -> tuple:
    x, w = tensor(x), tensor(w)
    return _kernel(answer, (x, w, start, *tile), (x.flip(1), -w.flip(0), start, *tile), lambda y: -y)


def block_attention(answer: Callable, q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int, *block: int) -> tuple:
    q, k, v = map(tensor, (q, k, v))
    turned = (q.flip(1), k.flip(1), -v.flip(1), start, *block)
    return _kernel(answer, (q, k, v, start, *block), turned, lambda y: -y.flip(1))


def _kernel(answer: Callable, args: tuple, turned: tuple, back: Callable) -> tuple[str, Any, Any, bool]:
    """A kernel's result by the fickle product: (dtype, or "" if it is no tensor; result; turned result; fickle).

    turned   the same numbers with the inner axis reversed, and the other sign; back() makes its result comparable: the
             two are equal if the order of terms does not matter. None where that is not asked
    fickle   whether its products were: false if the numbers went to NumPy, and torch multiplied no matrices
    """
    import torch

    notes = []

    @functools.wraps(answer)
    def noted(*args):
        with fickle_products() as seen:
            notes.append(seen)
            return answer(*args)

    result, again = called(noted, *args), None
    fickle = notes[0].products > 0 or not notes[0].left
    if not fickle or len(args[0]) == 1:  # the second call is made where it tells something, or costs little
        then = frozen(result)
        again = noted(*turned)
        if frozen(result) != then:
            raise ResultChanged("what it returned is another after the next call")
    if not isinstance(result, torch.Tensor):
        return "", result, None, True
    numbers = isinstance(again, torch.Tensor) and again.dim() == 2 and again.is_floating_point()
    return str(result.dtype).removeprefix("torch."), result, back(again) if numbers else None, fickle
