"""Plays a script on objects that an answer makes: for exercises whose answer is a class."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autograder.drivers import ResultChanged, called, changed, frozen
from autograder.drivers.lines import line_of

OVERWRITTEN = -1


def play(
    make: Any, script: Sequence[tuple], known: Mapping[str, Callable] | None = None
) -> tuple[tuple[tuple, ...], tuple[str, ...]]:
    """What came of each line of a script, ("gave", value) or ("raised", type, text), and where in the answer it raised.

    script   lines (owner, "new", *args): make the object `owner` with make(*args)
                   (owner, "new NAME", *args): make it with known[NAME](*args). An owner among the args is that object
                   (owner, method, *args): call a method
                   (owner, ".name"): read an attribute; (owner, ".name", *places): what it has at these places
                   (owner, ".NAME"): what known[NAME] says of the object; (owner, ".in", *items): which of them it has
                   (owner, "spoil", "result" or "arguments"): the caller overwrites the lists and arrays that the last
                   call of its methods returned, or was given

    A method that changes an argument, or something that it returned before, counts as raising. The NotImplementedError
    of a stub passes through.
    """
    stage = Stage(make, known)
    results, lines = [], []
    with _class_as_it_was(make):
        for line in script:
            where = ""
            try:
                result = ("gave", stage.line(*line))
            except NotImplementedError:
                raise
            except Exception as error:
                result, where = ("raised", _kind(error), _text(error)), line_of(error)
            results.append(result)
            lines.append(where)
    return tuple(results), tuple(lines)


class Stage:
    """The objects of a script, and what their methods have returned."""

    def __init__(self, make: Any, known: Mapping[str, Callable] | None = None):
        self.known = {"new": make, **(known or {})}
        self.objects: dict[str, Any] = {}
        self.returned: list[tuple] = []  # (what a method returned, as it was then, in words)
        self.last: dict[str, dict[str, Any]] = {}  # the arguments and the result of each owner's last call

    def line(self, owner: str, what: str, *args: Any) -> Any:
        """Play one line; a copy of what came of it. An error of the answer passes through."""
        if what.startswith("."):
            return self._look(self.objects[owner], what[1:], args)
        if what == "spoil":
            _overwrite(self.last[owner][args[0]])
            self.returned = [(value, frozen(value), words) for value, _, words in self.returned]
            return None
        given = [self.objects.get(arg, arg) if isinstance(arg, str) else copy.deepcopy(arg) for arg in args]
        if what.startswith("new"):
            self.objects[owner] = called(self.known[what.removeprefix("new ")], *given)
            return None
        words = f"{what}({', '.join(f'{arg!r:.40}' for arg in args)})"
        value = called(getattr(self.objects[owner], what), *given)
        for earlier, then, which in self.returned:
            if changed(earlier, then):
                raise ResultChanged(f"what {which} returned is another after {words}")
        if value is not None and value is not self.objects[owner]:
            self.returned.append((value, frozen(value), words))
        self.last[owner] = {"arguments": tuple(given), "result": value}
        return copy.deepcopy(value)

    def _look(self, value: Any, name: str, places: tuple) -> Any:
        if name == "in":
            return [item for item in places if item in value]
        if name in self.known:
            return self.known[name](value)
        value = getattr(value, name)
        if places:
            return [copy.deepcopy(value[place]) for place in places]
        is_list = isinstance(value, (list, tuple, np.ndarray)) or not isinstance(value, Iterable)
        return copy.deepcopy(value) if is_list else list(value)


@contextlib.contextmanager
def _class_as_it_was(make: Any) -> Iterator[None]:
    """What an answer keeps in its class lasts for one script, and not from check to check."""
    had = _variables(make)
    for name, part in had.items():
        with contextlib.suppress(Exception):  # it has no copy, such as what Python keeps in an abstract class
            setattr(make, name, copy.deepcopy(part))
    try:
        yield
    finally:
        for name in _variables(make).keys() - had.keys():
            delattr(make, name)
        for name, part in had.items():
            setattr(make, name, part)


def _variables(make: Any) -> dict[str, Any]:
    """The variables of a class that are no methods, slots or names of Python's own."""
    parts = vars(make).items() if isinstance(make, type) else ()
    return {name: part for name, part in parts if not (name.startswith("__") or hasattr(part, "__get__"))}


def _overwrite(value: Any) -> None:
    """Change every list and array in `value`; a list also grows."""
    if isinstance(value, tuple):
        for part in value:
            _overwrite(part)
    elif isinstance(value, list):
        value[:] = [OVERWRITTEN] * (len(value) + 1)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = OVERWRITTEN


def _kind(error: Exception) -> str:
    """The type's name; of a learner's own error also the built-in one that it is derived from: "Twice (ValueError)"."""
    own = type(error).__name__
    base = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return own if base in (own, "Exception") else f"{own} ({base})"


def _text(error: Exception) -> str:
    try:
        return str(error)[:300]
    except Exception:
        return "(its text raises)"
