"""Tile arithmetic: fast, and the same bits on one machine however a prompt is cut.

Library kernels choose their inner loops by shape, so `x[:7] @ w` may differ in its last bits from the
first rows of `x @ w`. Here only one shape ever runs: a zero-padded tile of T rows. A token's row (its
slot in the tile) is its absolute position mod T, whatever chunk it came in, so each token meets the
same kernel, in the same slot, every time. Rows never read one another, so tokens of different requests
share a tile as long as their slots differ.

What it claims: same machine, same library build, same thread setting. `selftest` checks the assumptions.
"""

import numpy as np

from course_lib.arithmetic import plain
from course_lib.arithmetic.arrays import cast, empty, like, namespace, zeros

TILE = 32  # rows; part of the contract: another T gives other bits
COLUMNS = 512  # of a weight in one call; part of the contract like T


def slots_in_tiles(positions: np.ndarray, tile: int = TILE) -> tuple[np.ndarray, int]:
    """Where each row goes: row number in a stack of tiles, and how many tiles that takes.

    positions   [rows] int64, absolute; rows of several requests may repeat a position
    returns     [rows] int64 with row % tile == position % tile and no repeats; the number of tiles
    """
    slot = np.asarray(positions) % tile
    order = np.argsort(slot, kind="stable")
    in_order = slot[order]
    first_of_slot = np.searchsorted(in_order, in_order)
    turn = np.empty_like(slot)
    turn[order] = np.arange(len(slot)) - first_of_slot  # 0 for the first row in its slot, 1 for the next
    return turn * tile + slot, int(turn.max(initial=-1)) + 1


def by_tiles(fn, x, positions: np.ndarray, tile: int = TILE):
    """fn over the rows of x, laid out in aligned, zero-padded tiles.

    fn          [tiles, T, columns] -> [tiles, T, any], made of the operations below
    x           [rows, columns]
    positions   [rows] absolute position of each row (NumPy)
    returns     [rows, any]
    """
    rows, tiles = slots_in_tiles(positions, tile)
    rows = like(x, rows)
    stack = zeros(x, (tiles * tile, x.shape[-1]))
    stack[rows] = x
    out = fn(stack.reshape(tiles, tile, -1))
    return out.reshape(tiles * tile, -1)[rows]


def matmul(stack, w):
    """Each tile of a stack times a weight, by one call per tile and block of columns.

    stack     [tiles, T, inner]
    w         [inner, columns], perhaps of a wider dtype: sums have w's dtype, the result is rounded to stack's
    returns   [tiles, T, columns]

    The blocks are the outer loop: a block of the weight stays in the processor's cache for all tiles.
    """
    xp = namespace(w)
    x = cast(stack, w.dtype)
    out = empty(w, (*x.shape[:2], w.shape[1]))
    for first in range(0, w.shape[1], COLUMNS):
        block = slice(first, first + COLUMNS)
        for i in range(x.shape[0]):
            xp.matmul(x[i], w[:, block], out=out[i, :, block])
    return cast(out, stack.dtype)


def rms_norm(stack, gain, eps: float):
    """`plain.rms_norm` of one tile after another."""
    return namespace(stack).stack([plain.rms_norm(x, gain, eps) for x in stack])


def silu_mul(gate, up):
    """`plain.silu_mul` of one tile after another."""
    return namespace(gate).stack([plain.silu_mul(g, u) for g, u in zip(gate, up)])
