"""Tile arithmetic: fast, and the same bits on one machine however a prompt is cut.

Library kernels choose their inner loops by shape, so `x[:7] @ w` may differ in its last bits from the first rows of
`x @ w`. Here a row always gets the bits that it has in one call: a tile of 32 rows, over the whole weight. In that
tile a token's row has the slot position mod 32, whatever chunk it came in, and rows of zeros fill the other slots. So
each token meets the same kernel, in the same slot, every time. Rows never read one another, so tokens of different
requests share a tile as long as their slots differ.

Padding costs time. Where this machine is seen to give a row the same bits in other slots and in calls of other row
counts (`rows`), the rows go through in such calls, unpadded as far as possible. 32 aligned rows are always right.

What it claims: same machine, same library build, same thread setting. `selftest` checks the assumptions.
"""

import numpy as np

from course_lib.arithmetic import plain
from course_lib.arithmetic.arrays import address, cast, contiguous, empty, like, namespace, zeros
from course_lib.arithmetic.rows import TILE, Operation, RowTable, random_rows

IN_CACHE = 128  # rows of an elementwise operation in one call at most: their intermediate results stay in the cache


def slots_in_tiles(positions: np.ndarray) -> tuple[np.ndarray, int]:
    """Where each row goes: row number in a stack of tiles, and how many tiles that takes.

    positions   [rows] int64, absolute; rows of several requests may repeat a position
    returns     [rows] int64 with row % 32 == position % 32 and no repeats; the number of tiles
    """
    slot = np.asarray(positions) % TILE
    order = np.argsort(slot, kind="stable")
    in_order = slot[order]
    first_of_slot = np.searchsorted(in_order, in_order)
    turn = np.empty_like(slot)
    turn[order] = np.arange(len(slot)) - first_of_slot  # 0 for the first row in its slot, 1 for the next
    return turn * TILE + slot, int(turn.max(initial=-1)) + 1


def by_rows(table: RowTable, operation: Operation, arrays, out, positions: np.ndarray, at_most: int = 1024):
    """Run an operation so that each row gets the bits of its aligned tile of 32 rows; returns `out`.

    arrays      what the operation reads: [rows, ...] each
    out         [rows, ...], where the result goes
    positions   [rows] absolute position of each row (NumPy)
    at_most     rows in one call, 32 or more
    """
    allowed = table.allowed(operation, out, at_most)
    if not allowed.slot_matters:
        return _in_pieces(allowed, operation.run, arrays, out, at_most)
    rows, tiles = slots_in_tiles(positions)
    stacks = [_spread(x, rows, tiles * TILE) for x in arrays]
    stack = _in_pieces(allowed, operation.run, stacks, empty(out, (tiles * TILE, *out.shape[1:])), at_most)
    out[...] = stack[like(out, rows)]
    return out


def _in_pieces(allowed, run, arrays, out, at_most: int):
    first = 0
    for count, used in allowed.pieces(len(out), at_most):
        rows = slice(first, first + used)
        if used == count:
            run(*(contiguous(x[rows]) for x in arrays), out=out[rows])
        else:
            padded = empty(out, (count, *out.shape[1:]))
            run(*(_spread(x[rows], slice(used), count) for x in arrays), out=padded)
            out[rows] = padded[:used]
        first += used
    return out


def _spread(x, rows, length: int):
    """x in the given rows of `length` rows, zeros in the others."""
    room = zeros(x, (length, *x.shape[1:]))
    room[like(x, rows) if isinstance(rows, np.ndarray) else rows] = x
    return room


def matmul(table: RowTable, x, w, positions: np.ndarray):
    """x @ w, each row with the bits that it has in its tile times the whole weight.

    x           [rows, inner]
    w           [inner, columns], perhaps of a wider dtype: sums have w's dtype, the result is rounded to x's
    positions   [rows] absolute position of each row (NumPy)
    returns     [rows, columns]
    """
    xp = namespace(w)

    def run(rows, out):
        xp.matmul(rows, w, out=out)

    def sample(seed: int, offset: int):
        return run, [random_rows(w, (TILE, w.shape[0]), seed)]

    strides = w.strides if isinstance(w, np.ndarray) else w.stride()
    operation = Operation(("matmul", *w.shape, (strides, address(w) % 64)), run, sample, w.shape[0] * w.shape[1])
    out = by_rows(table, operation, [cast(x, w.dtype)], empty(w, (len(x), w.shape[1])), positions)
    return cast(out, x.dtype)


def rms_norm(table: RowTable, x, gain, eps: float, positions: np.ndarray):
    """`plain.rms_norm` of x [rows, ..., width]: of each row, or of each head in it."""

    def run(rows, out):
        out[...] = plain.rms_norm(rows, gain, eps)

    def sample(seed: int, offset: int):
        return run, [random_rows(x, (TILE, *x.shape[1:]), seed)]

    operation = Operation(("RMSNorm", *x.shape[1:]), run, sample)
    return by_rows(table, operation, [x], empty(x, x.shape), positions, IN_CACHE)


def silu_mul(table: RowTable, gate, up, positions: np.ndarray):
    """`plain.silu_mul` of gate and up, [rows, width] each."""

    def run(gate_rows, up_rows, out):
        out[...] = plain.silu_mul(gate_rows, up_rows)

    def sample(seed: int, offset: int):
        return run, [random_rows(gate, (TILE, gate.shape[1]), seed + 100 * i) for i in range(2)]

    operation = Operation(("activation", gate.shape[1]), run, sample)
    return by_rows(table, operation, [gate, up], empty(gate, gate.shape), positions, IN_CACHE)
