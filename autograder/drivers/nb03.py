"""What runs beside the answers of notebook 03."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.drivers import ResultChanged, called, frozen


def positions(answer: Callable, cached: int, computed: int, take: int) -> Any:
    """The answer's positions, after it has been called for another chunk."""
    return _kept(answer, (cached, computed, take), (cached + 1, computed, take))


def rope(answer: Callable, x: np.ndarray, positions: np.ndarray, *theta: float) -> Any:
    """What the answer makes of x, after it has turned x at other positions."""
    return _kept(answer, (x, positions, *theta), (x, positions + 1, *theta))


def _kept(answer: Callable, args: tuple, others: tuple) -> Any:
    """answer(*args). Raises ResultChanged if a call with other arguments writes into it."""
    result = called(answer, *args)
    then = frozen(result)
    called(answer, *others)
    if frozen(result) != then:
        raise ResultChanged("what it returned is another after the next call")
    return result
