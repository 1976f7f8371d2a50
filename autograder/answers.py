"""Call an answer and write down what happened, as plain data. Nothing here judges."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import linecache
import operator
import sys
import sysconfig
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autograder.exercise import Call, Callback, Other, Outcome, Raised, Returned

MAX_PRINTED = 2_000  # characters kept of what an answer prints
MAX_TEXT = 300  # characters kept of an error message
MAX_VALUE = 80  # characters kept of a value that is no array
# Frames in these files are not the learner's.
_NOT_THEIRS = tuple(
    str(p)
    for p in (
        Path(__file__).resolve().parent,
        Path(__file__).resolve().parents[1] / "course_lib",
        Path(np.__file__).resolve().parent,
        *(sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


def perform(
    fn: Callable,
    calls: Sequence[Call],
    *,
    callbacks: Mapping[str, Callable[[Callback], Callable]] | None = None,
    library: Sequence[str] = (),
    driver: Callable | None = None,
) -> tuple[list[Outcome], str]:
    """Call fn(*args), or driver(fn, *args), for each call, with copies of the arguments.

    Returns (outcomes, name): name is the forbidden function, "module:name" in `library`, that fn is or calls, else "".
    If fn is one itself, nothing is called and there are no outcomes.

    Nothing that fn prints or warns reaches the screen: the first characters are kept in the outcome.
    KeyboardInterrupt passes through.
    """
    forbidden = {code: name for name in library for code in _library_codes(name)}
    used = next((forbidden[c] for c in _codes(fn) if c in forbidden), "")
    outcomes: list[Outcome] = []
    if not used:
        with _watch(forbidden) as seen:
            run = functools.partial(driver, fn) if driver else fn
            outcomes = [_one_call(run, call, callbacks or {}) for call in calls]
        used = seen[0] if seen else ""
    return outcomes, used


def plain(value: Any) -> np.ndarray | None | Other:
    """A returned value as data: lists, numbers, tensors and arrays of any kind become a new ndarray."""
    if value is None:
        return None
    try:
        if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
            from course_lib.arithmetic.arrays import to_numpy

            value = to_numpy(value)
        if isinstance(value, (np.ndarray, np.generic, bool, int, float, complex, list, tuple, range)) or hasattr(
            value, "__array__"
        ):
            array = np.array(value, copy=True, subok=False)
            if array.dtype.kind in "biufc":
                return array
    except Exception:  # whatever the learner's object raises when asked for its numbers, it is not an array
        pass
    if inspect.iscoroutine(value):
        value.close()
    return Other(type(value).__name__, _short(value, MAX_VALUE))


def _one_call(fn: Callable, call: Call, callbacks: Mapping[str, Callable[[Callback], Callable]]) -> Outcome:
    callback_log: list[tuple] = []
    args = [_argument(a, callbacks, callback_log) for a in call.args]
    with _captured() as printed:
        try:
            value = plain(fn(*args))
        except (Exception, SystemExit) as error:
            return Raised(type(error).__name__, _short(str(error)), _line_of(error), printed(), tuple(callback_log))
    return Returned(value, printed(), tuple(callback_log))


def _argument(value: Any, callbacks: Mapping, callback_log: list) -> Any:
    """A copy, so that an answer that writes into its arguments spoils no other call; a callback made callable."""
    if isinstance(value, Callback):
        function = callbacks[value.name](value)

        @functools.wraps(function)
        def logged(*args, **kwargs):
            bound = inspect.signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            given = [_integers(arg) for arg in bound.arguments.values()]
            result = function(*given)
            callback_log.append((value.name, *given))
            return result

        return logged
    return value.copy() if isinstance(value, (np.ndarray, list)) else value


def _integers(value: Any) -> Any:
    """A callback's argument as an int or a tuple of ints; as it is where that is not possible."""
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return tuple(operator.index(item) for item in value)
    except TypeError:
        return value


class _Capped(io.TextIOBase):
    """A text stream that keeps the first characters and forgets the rest."""

    def __init__(self) -> None:
        self.kept = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.kept += text[: MAX_PRINTED - len(self.kept)]
        return len(text)


@contextlib.contextmanager
def _captured() -> Iterator[Callable[[], str]]:
    stream = _Capped()

    def note(message, category, filename, lineno, file=None, line=None):
        stream.write(f"{category.__name__}: {message}\n")

    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream), warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = note
        yield lambda: stream.kept


@contextlib.contextmanager
def _watch(forbidden: Mapping[types.CodeType, str]) -> Iterator[list[str]]:
    """While open, note in the list the name of each forbidden function that is entered."""
    seen: list[str] = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code in forbidden:
            seen.append(forbidden[frame.f_code])

    if not forbidden:
        yield seen
        return
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def _codes(fn: Any) -> Iterator[types.CodeType]:
    """The code that a callable is made of, through partial, decorators and bound methods."""
    for _ in range(20):  # a chain of wrappers that leads back to itself ends here
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__code__"):
            yield fn.__code__
            fn = getattr(fn, "__wrapped__", None)
        else:
            fn = getattr(fn, "__wrapped__", None) or getattr(fn, "__func__", None)
        if fn is None:
            return


def _library_codes(name: str) -> list[types.CodeType]:
    """The code objects of a library function, or of the methods of a library class."""
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    functions = [found] if not isinstance(found, type) else [f for f in vars(found).values() if inspect.isfunction(f)]
    return [function.__code__ for function in functions]


def _line_of(error: BaseException) -> str:
    """Where in the learner's code the error came up: the last frame that is not in a library."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith(_NOT_THEIRS)]
    if not theirs:
        return ""
    text = (theirs[-1].line or linecache.getline(theirs[-1].filename, theirs[-1].lineno or 0)).strip()
    return f"line {theirs[-1].lineno}" + (f": {text}" if text else "")


def _short(value: Any, limit: int = MAX_TEXT) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:
        text = "(its repr raises)"
    text = " ".join(text[: 4 * limit].split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
