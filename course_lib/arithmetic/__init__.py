"""The arithmetics a model can run in, behind one name: `arithmetic("exact" | "tile" | "plain")`.

exact   no sum rounds: the same bits everywhere (exact.py)
tile    aligned tiles of one fixed shape: the same bits on one machine, fast (tile.py)
plain   ordinary kernels on whole chunks: no claim about bits; for comparison, also of speed (plain.py)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from course_lib.arithmetic import exact, plain, tile
from course_lib.arithmetic.arrays import cast, namespace


@dataclass(frozen=True)
class Arithmetic:
    """The operations of a model that sum or approximate. IEEE 754 fixes the bits of all others.

    prepare(w)               weight [inner, columns] -> the form that matmul takes
    matmul(x, w)             [rows, inner] x prepared -> [rows, columns]
    rms_norm(x, gain, eps)   over the last axis
    silu_mul(gate, up)       silu(gate) * up
    by_rows(fn, x, positions)  fn over the rows of x, so that a row's bits depend on no other row
    """

    name: str
    prepare: Callable[[Any], Any]
    matmul: Callable[[Any, Any], Any]
    rms_norm: Callable[[Any, Any, float], Any]
    silu_mul: Callable[[Any, Any], Any]
    by_rows: Callable[[Callable, Any, Any], Any]


def arithmetic(name: str) -> Arithmetic:
    """The arithmetic called `name`."""
    if name == "exact":
        return Arithmetic(name, exact.snap_columns, exact.matmul, exact.rms_norm, exact.silu_mul, _all_rows)
    if name == "tile":
        return Arithmetic(name, _wide_on_cpu, tile.matmul, tile.rms_norm, tile.silu_mul, tile.by_tiles)
    if name == "plain":
        return Arithmetic(name, _keep, _matmul, plain.rms_norm, plain.silu_mul, _all_rows)
    raise ValueError(f"no arithmetic {name!r}; there are 'exact', 'tile' and 'plain'.")


def _keep(w):
    return w


def _matmul(x, w):
    return namespace(x).matmul(x, w)


def _wide_on_cpu(w):
    """16-bit weights as float32 on the CPU, once: few CPUs multiply 16-bit matrices fast (`bench arithmetic`)."""
    is_16_bit_on_cpu = not isinstance(w, np.ndarray) and w.element_size() == 2 and w.device.type == "cpu"
    return cast(w, namespace(w).float32) if is_16_bit_on_cpu else w


def _all_rows(fn, x, positions):
    return fn(x)
