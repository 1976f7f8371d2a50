"""Tile arithmetic: fast, and the same bits on one machine however a prompt is cut.

Library kernels choose their inner loops by shape, so `x[:7] @ w` may differ in its last bits from the
first rows of `x @ w`. Here only one shape ever runs: a zero-padded tile of T rows. A token's row (its
slot in the tile) is its absolute position mod T, whatever chunk it came in, so each token meets the
same kernel, in the same slot, every time. Rows never read one another, so tokens of different requests
share a tile as long as their slots differ.

What it claims: same machine, same library build, same thread setting. `selftest` checks the assumptions.
"""

import numpy as np

from course_lib.arrays import like, namespace, zeros

TILE = 32  # rows; part of the contract: another T gives other bits


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
    """fn over x, one aligned, zero-padded tile at a time.

    fn          [tile, columns] -> [tile, any]
    x           [rows, columns]
    positions   [rows] absolute position of each row (NumPy)
    returns     [rows, any]
    """
    xp = namespace(x)
    rows, tiles = slots_in_tiles(positions, tile)
    rows = like(x, rows)
    stacked = zeros(x, (tiles * tile, x.shape[-1]))
    stacked[rows] = x
    outputs = [fn(stacked[i * tile : (i + 1) * tile]) for i in range(tiles)]
    return xp.concatenate(outputs)[rows]
