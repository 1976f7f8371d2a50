"""Plain data: what travels between a judge and an answer, and what shape of it a judge expects.

Plain are None, bool, int, float, text, bytes, arrays of numbers, and tuples of these. Whatever else an answer returns
becomes an Other, which says what it was.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_DEPTH = 8  # of tuples in tuples
MAX_BYTES = 1 << 26  # of one array or text; the largest right result has some 100 kB
MAX_PARTS = 1 << 18  # of one value, over all its tuples
MAX_INT = (1 << 63) - 1  # in either direction
MAX_VALUE = 80  # characters kept of a value that is not plain


@dataclass(frozen=True, slots=True)
class Other:
    """A value that is not plain: its type, and its repr cut to 80 characters."""

    kind: str
    text: str


def plain(value: Any) -> Any:
    """`value` as plain data that shares nothing with it: tensors become arrays, lists tuples, what remains an Other."""
    left = [MAX_PARTS]
    try:
        return _plain(value, 0, left)
    except Exception:  # whatever an answer's object raises when it is asked for its numbers: it is not plain
        return _other(value)


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        return Other(type(value).__name__, "(too deep, or too many parts)")
    if value is None or type(value) in (bool, float):
        return value
    if isinstance(value, (int, float, str, bytes)) and not isinstance(value, np.generic):
        base = next(kind for kind in (bool, int, float, str, bytes) if isinstance(value, kind))
        small = len(value) <= MAX_BYTES if base in (str, bytes) else base is not int or -MAX_INT <= value <= MAX_INT
        return base(value) if small else _other(value)
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        from course_lib.arithmetic.arrays import to_numpy

        value = to_numpy(value)
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return value.item() if value.dtype.kind in "biu" or value.dtype == np.float64 else np.array(value)
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "biufc" and array.nbytes <= MAX_BYTES:
            return np.array(array, copy=True, subok=False)
        return _other(value)
    if isinstance(value, (list, tuple, range)):
        if len(value) > MAX_PARTS:
            return _other(value)
        return tuple(_plain(part, depth + 1, left) for part in value)
    return _other(value)


def _other(value: Any) -> Other:
    if inspect.iscoroutine(value):
        value.close()
    return Other(type(value).__name__, short(value, MAX_VALUE))


def short(value: Any, limit: int) -> str:
    """A text, or the repr of anything else, in one line of at most `limit` characters."""
    try:
        text = value if isinstance(value, str) else repr(value)
        text = " ".join(str(text)[: 4 * limit].split())
    except Exception:
        text = "(its repr raises)"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def whole(text: str) -> str:
    """`text` with U+FFFD for each half of a two-part character: a str and JSON can hold one, and no file can."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def array_of(value: Any) -> np.ndarray | None:
    """The array of numbers that plain data is, or can be read as (a number, rows of one length); None if it is none."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (Other, str, bytes)) or value is None:
        return None
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "biufc" else None


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether `value` is plain data, and no more than may travel; an Other is."""
    if isinstance(value, tuple):
        return depth <= MAX_DEPTH and len(value) <= MAX_PARTS and all(is_plain(part, depth + 1) for part in value)
    if type(value) is np.ndarray:
        return value.dtype.kind in "biufc" and value.nbytes <= MAX_BYTES
    if type(value) is int:
        return -MAX_INT <= value <= MAX_INT
    if type(value) is Other:
        return type(value.kind) is str and type(value.text) is str
    return value is None or type(value) in (bool, float, str, bytes)


def equal(a: Any, b: Any) -> bool:
    """Whether plain data is the same: kinds, shapes, dtypes and bytes (so NaN equals the same NaN)."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, float) and isinstance(b, float) and a != a:
        return b != b
    return type(a) is type(b) and not isinstance(a, np.ndarray) and a == b


# --- forms: what a judge expects of a driver's result

ARRAY = np.ndarray  # of numbers: whatever array_of can read


@dataclass(frozen=True, slots=True, init=False)
class Either:
    """Any one of several forms."""

    forms: tuple

    def __init__(self, *forms: Any) -> None:
        object.__setattr__(self, "forms", forms)


def fits(value: Any, form: Any) -> bool:
    """Whether plain data has a form.

    int, float, bool, str, bytes   exactly that (a bool is no int)
    object                         any plain data
    None                           None
    np.ndarray                     an array
    (a, b, c)                      a tuple of three, each of its own form
    [a]                            a tuple of any number of a
    Either(a, b)                   one of them
    """
    if isinstance(form, Either):
        return any(fits(value, one) for one in form.forms)
    if form is object:
        return True
    if form is None or isinstance(form, type):
        return value is None if form is None else type(value) is form
    if not isinstance(value, tuple):
        return False
    if isinstance(form, list):
        return all(fits(part, form[0]) for part in value)
    return len(value) == len(form) and all(map(fits, value, form))
