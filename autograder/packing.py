"""Several values as one array, and back: what a driver returns when an answer has more than one array to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograder.plain import array_of, plain


def pack(values: Sequence[Any], names: Sequence[str]) -> np.ndarray:
    """Arrays of any shape in one float64 vector, in which every float32 and every int below 2**53 keeps its value.

    names   what each value is, for the message of the TypeError if one is no array of numbers
    """
    head, data = [len(values)], []
    for value, name in zip(values, names, strict=True):
        array = array_of(plain(value))
        if not isinstance(array, np.ndarray) or array.dtype.kind == "c":
            what = "None" if value is None else f"of type {type(value).__name__}"
            raise TypeError(f"{name} is {what}, and not an array of numbers of one shape")
        head += [ord(array.dtype.kind), array.dtype.itemsize, array.ndim, *array.shape]
        data.append(array.astype(np.float64).ravel())
    return np.concatenate([np.array(head, dtype=np.float64), *data])


def unpack(packed: np.ndarray) -> list[np.ndarray]:
    """The arrays that `pack` was given, dtypes included."""
    at, kinds = 1, []
    for _ in range(int(packed[0])):
        kind, itemsize, ndim = (int(x) for x in packed[at : at + 3])
        kinds.append((np.dtype(f"{chr(kind)}{itemsize}"), tuple(int(n) for n in packed[at + 3 : at + 3 + ndim])))
        at += 3 + ndim
    arrays = []
    for dtype, shape in kinds:
        size = int(np.prod(shape))
        arrays.append(packed[at : at + size].astype(dtype).reshape(shape))
        at += size
    return arrays
