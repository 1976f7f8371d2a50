"""Plays a script on objects that an answer makes: for exercises whose answer is a class."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from autograder.drivers import ResultChanged, called, frozen
from autograder.drivers.lines import line_of


def play(make: Any, script: Sequence[tuple]) -> tuple[tuple[tuple, ...], tuple[str, ...]]:
    """What came of each line of a script, ("gave", value) or ("raised", type, text), and where in the answer it raised.

    script   lines (owner, "new", *args): make the object `owner` with make(*args)
                   (owner, method, *args): call a method
                   (owner, ".name"): read an attribute; (owner, ".name", *places): what it has at these places

    A method that changes an argument, or something that it returned before, counts as raising. The NotImplementedError
    of a stub passes through.
    """
    objects: dict[Any, Any] = {}
    results, lines = [], []
    returned: list[tuple] = []  # (what a method returned, as it was then, in words)
    for owner, what, *args in script:
        line = ""
        try:
            result = ("gave", _one(objects, make, owner, what, args, returned))
        except NotImplementedError:
            raise
        except Exception as error:
            result, line = ("raised", type(error).__name__, _text(error)), line_of(error)
        results.append(result)
        lines.append(line)
    return tuple(results), tuple(lines)


def _one(objects: dict, make: Any, owner: Any, what: str, args: list, returned: list[tuple]) -> Any:
    args = copy.deepcopy(args)
    if what == "new":
        objects[owner] = called(make, *args)
        return None
    if what.startswith("."):
        value = getattr(objects[owner], what[1:])
        if args:
            return [copy.deepcopy(value[place]) for place in args]
        is_list = isinstance(value, (list, tuple, np.ndarray)) or not isinstance(value, Iterable)
        return copy.deepcopy(value) if is_list else list(value)
    words = f"{what}({', '.join(f'{arg!r:.40}' for arg in args)})"
    value = called(getattr(objects[owner], what), *args)
    for earlier, then, which in returned:
        if frozen(earlier) != then:
            raise ResultChanged(f"what {which} returned is another after {words}")
    returned.append((value, frozen(value), words))
    return copy.deepcopy(value)


def _text(error: Exception) -> str:
    try:
        return str(error)[:300]
    except Exception:
        return "(its text raises)"
