"""What runs beside an answer: it builds the objects that an answer works on, calls it, and returns plain data.

A driver judges nothing and knows no secret. It imports numpy, torch and course_lib only, so that a process which runs
answers holds no judge, no oracle and no known mistake.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np


class ArgumentChanged(Exception):
    """An answer left an argument different from what it was given; the text is the argument's name."""


class ResultChanged(Exception):
    """Something that an answer returned is different after a later call; the text says which call returned it."""


def called(function: Callable, *args: Any) -> Any:
    """function(*args); raises ArgumentChanged if one of the arguments is another afterwards."""
    before = [frozen(arg) for arg in args]
    result = function(*args)
    for place, (arg, then) in enumerate(zip(args, before)):
        if frozen(arg) != then:
            try:
                name = list(inspect.signature(function).parameters)[place]
            except (TypeError, ValueError, IndexError):
                name = f"number {place}"
            raise ArgumentChanged(name)
    return result


def lasting(function: Callable, args: tuple, later: tuple) -> Any:
    """function(*args), as by `called`; raises ResultChanged if function(*later) changes what it returned."""
    result = called(function, *args)
    then = frozen(result)
    with contextlib.suppress(Exception):  # of a call that no message names
        function(*later)
    if frozen(result) != then:
        raise ResultChanged("what this call returned is another after the next call")
    return result


def changed(value: Any, then: Any) -> bool:
    """Whether a value is another than when frozen(value) gave `then`."""
    if type(value) is list and set(map(type, value)) <= {int, str, bytes}:  # the usual case, at a tenth of the price
        return then != ("list", tuple(value))
    return frozen(value) != then


def frozen(value: Any) -> Any:
    """What a value holds now: arrays as their bytes, lists as tuples, objects as what they have. Equal if it is."""
    if value is None or isinstance(value, (int, str, bytes)):
        return value
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        import torch

        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), raw.numpy().tobytes()
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(map(frozen, value))
    if isinstance(value, dict):
        return "dict", tuple((key, frozen(part)) for key, part in value.items())
    if isinstance(value, (set, frozenset)):
        return "set", frozenset(value)
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return type(value).__name__, frozen(vars(value))
    return repr(value) if isinstance(value, float) else value
