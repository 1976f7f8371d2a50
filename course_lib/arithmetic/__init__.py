"""The arithmetics a model can run in, behind one name: `arithmetic("exact" | "tile" | "plain")`.

exact   no sum rounds: the same bits everywhere (exact.py)
tile    each row as in its aligned tile of 32 rows: the same bits on one machine, fast (tile.py, rows.py)
plain   ordinary kernels on whole chunks: no claim about bits; for comparison, also of speed (plain.py)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from course_lib.arithmetic import exact, plain, tile
from course_lib.arithmetic.arrays import cast, namespace
from course_lib.arithmetic.rows import RowTable


@dataclass(frozen=True)
class Arithmetic:
    """The operations of a model that sum or approximate. IEEE 754 fixes the bits of all others.

    prepare(w)                          weight [inner, columns] -> the form that matmul takes
    matmul(x, w, positions)             [rows, inner] x prepared -> [rows, columns]
    rms_norm(x, gain, eps, positions)   over the last axis of x [rows, width]
    silu_mul(gate, up, positions)       silu(gate) * up, [rows, width] each
    rows                                `tile` alone: which row counts this machine is seen to allow

    positions [rows] (NumPy) says where each row stands in its request: in `tile` it decides the row's slot.
    """

    name: str
    prepare: Callable[[Any], Any]
    matmul: Callable[[Any, Any, np.ndarray], Any]
    rms_norm: Callable[[Any, Any, float, np.ndarray], Any]
    silu_mul: Callable[[Any, Any, np.ndarray], Any]
    rows: RowTable | None = None


def arithmetic(name: str, rows: RowTable | None = None) -> Arithmetic:
    """The arithmetic called `name`. `rows`: the table that `tile` is to fill and use; a new one if not given."""
    if name == "exact":
        return Arithmetic(name, exact.snap_columns, *map(_anywhere, (exact.matmul, exact.rms_norm, exact.silu_mul)))
    if name == "tile":
        rows = rows or RowTable()
        operations = (partial(operation, rows) for operation in (tile.matmul, tile.rms_norm, tile.silu_mul))
        return Arithmetic(name, _wide_on_cpu, *operations, rows=rows)
    if name == "plain":
        return Arithmetic(name, _keep, *map(_anywhere, (_matmul, plain.rms_norm, plain.silu_mul)))
    raise ValueError(f"no arithmetic {name!r}; there are 'exact', 'tile' and 'plain'.")


def _anywhere(operation):
    """An operation of which a row's bits depend on no position, or are not claimed: it is called without them."""

    def without_positions(*arguments):
        return operation(*arguments[:-1])

    return without_positions


def _keep(w):
    return w


def _matmul(x, w):
    return namespace(x).matmul(x, w)


def _wide_on_cpu(w):
    """16-bit weights as float32 on the CPU, once: few CPUs multiply 16-bit matrices fast (`bench arithmetic`)."""
    is_16_bit_on_cpu = not isinstance(w, np.ndarray) and w.element_size() == 2 and w.device.type == "cpu"
    return cast(w, namespace(w).float32) if is_16_bit_on_cpu else w
