"""Attention in tile arithmetic: an online softmax over fixed blocks of keys. No N x N matrix is ever built.

Keys are read in blocks of KEYS, counted from position 0, each at its full width: keys that are not there are zero and
hidden. A block that a query does not see changes nothing in its result: its largest score stays, earlier sums are
multiplied by exp(0) = 1, and zeros are added. So the number of blocks does not matter, queries at different positions
can share a call, and a query has the bits of its aligned tile of 32 queries however the prompt was cut.
"""

import math
from functools import partial

import numpy as np

from course_lib.arithmetic.arrays import add_product, cast, contiguous, empty, like, namespace
from course_lib.arithmetic.rows import TILE, Operation, RowTable, at_offset, random_rows
from course_lib.arithmetic.tile import by_rows

KEYS = 128  # keys per block; part of the contract like the 32 rows
QUERIES = 128  # in one call at most: the scores of a block stay in the cache
LOWEST = -1e30  # added to hidden scores: below every other, and finite, since infinity minus infinity is no number


def attend_tiled(q, k, v, start: int, mask=None, rows: RowTable | None = None):
    """Attention of one request's new tokens over all its keys.

    q         [chunk_len, q_heads, head_dim]   queries at positions start, start + 1, ...
    k, v      [start + chunk_len, kv_heads, head_dim]
    mask      [chunk_len, start + chunk_len] bool, NumPy; causal if not given
    rows      which numbers of queries may share a call; only aligned tiles of 32 if not given
    returns   [chunk_len, q_heads, head_dim]   q's dtype

    Computes in float32 whatever the dtype. Needs memory for QUERIES x KEYS scores per head, and for k and v in float32.
    """
    xp = namespace(q)
    queries = cast(q, xp.float32) * (1.0 / math.sqrt(q.shape[-1]))
    positions = np.arange(start, start + q.shape[0])
    # Counted from the end, so that 0, which pads a call, means a query that sees every key.
    arrays = [queries, k.shape[0] - 1 - positions]
    if mask is not None:
        arrays.append(np.pad(~mask, ((0, 0), (0, -mask.shape[1] % KEYS)), constant_values=True))

    def sample(seed: int, offset: int):
        shape = (2 * KEYS, *k.shape[1:])
        keys, values = (at_offset(random_rows(queries, shape, seed + i), offset) for i in (200, 300))
        ahead = np.random.PCG64(seed).random_raw(TILE).astype(np.int64) % (2 * KEYS)
        return partial(_attend_rows, _Blocks(keys, values)), [random_rows(queries, (TILE, *q.shape[1:]), seed), ahead]

    operation = Operation(("attention", *q.shape[1:], k.shape[1]), partial(_attend_rows, _Blocks(k, v)), sample)
    table = rows or RowTable(counts=(), aligned=True)
    out = by_rows(table, operation, arrays, empty(queries, queries.shape), positions, QUERIES)
    return cast(out, q.dtype)


def _attend_rows(blocks, q, ahead, hidden=None, *, out) -> None:
    """Some queries [rows, q_heads, head_dim] over the keys that they see, into `out`. All of it float32.

    ahead    [rows] NumPy: how many of the last keys each query does not see
    hidden   [rows, keys in whole blocks] bool, NumPy: used in place of `ahead` if given
    """
    xp = namespace(q)
    rows, q_heads, head_dim = q.shape
    group = q_heads // blocks.kv_heads
    # The q heads that share a kv head become rows of one matrix (GQA): [kv_heads, rows * group, head_dim].
    by_head = q.reshape(rows, blocks.kv_heads, group, head_dim).swapaxes(0, 1)
    queries = contiguous(by_head).reshape(blocks.kv_heads, rows * group, head_dim)
    scores = empty(queries, (blocks.kv_heads, rows * group, KEYS))  # of one block; all passes over them are in place
    by_row = scores.reshape(blocks.kv_heads, rows, group, KEYS)
    seen = blocks.num_keys - ahead
    largest = total = mixed = None
    for first in range(0, int(seen.max()) if hidden is None else hidden.shape[1], KEYS):
        keys, values = blocks.at(first)
        visible = _visible(q, first, seen, hidden)
        xp.matmul(queries, keys, out=scores)
        if visible is not None:
            by_row += (1 - visible) * LOWEST
        higher = xp.amax(scores, axis=-1, keepdims=True)
        if largest is not None:
            higher = xp.maximum(largest, higher)
            shrink = xp.exp(largest - higher)  # earlier sums were relative to a smaller maximum
            total *= shrink
            mixed *= shrink
        scores -= higher
        if visible is not None:
            by_row *= visible  # to 0, since exp is slow where its result underflows
        weights = xp.exp(scores, out=scores)
        if visible is not None:
            by_row *= visible
        if largest is None:
            total, mixed = xp.sum(weights, axis=-1, keepdims=True), xp.matmul(weights, values)
        else:
            total += xp.sum(weights, axis=-1, keepdims=True)
            add_product(mixed, weights, values)
        largest = higher
    mixed /= total
    out.reshape(rows, blocks.kv_heads, group, head_dim)[...] = mixed.reshape(by_head.shape).swapaxes(0, 1)


def _visible(q, first: int, seen: np.ndarray, hidden):
    """[1, rows, 1, KEYS]: 1 where a query sees a key of the block from `first` on, else 0; None if there is no 0."""
    if hidden is not None:
        sees = ~hidden[:, first : first + KEYS]
    elif seen.min() >= first + KEYS:
        return None
    else:
        sees = np.arange(first, first + KEYS) < seen[:, None]
    return like(q, sees.astype(np.float32))[None, :, None, :]


class _Blocks:
    """Keys and values [num_keys, kv_heads, head_dim] of one request, in float32, in blocks of KEYS.

    The strides are the same in every block, and do not depend on the number of keys.
    """

    def __init__(self, k, v):
        self.num_keys, self.kv_heads, _ = k.shape
        float32 = namespace(k).float32
        self._by_head = [contiguous(cast(x, float32)).swapaxes(0, 1) for x in (k, v)]  # [kv_heads, num_keys, head_dim]
        self._padded: list = []

    def at(self, first: int):
        """The block from key `first` on: keys [kv_heads, head_dim, KEYS], values [kv_heads, KEYS, head_dim]."""
        if first + KEYS <= self.num_keys:
            k, v = (x[:, first : first + KEYS] for x in self._by_head)
        else:
            self._padded = self._padded or [_full(x.swapaxes(0, 1)[first:]) for x in self._by_head]
            k, v = (x.swapaxes(0, 1) for x in self._padded)
        return k.swapaxes(1, 2), v


def _full(x):
    """Keys or values [KEYS or fewer, kv_heads, head_dim], filled up with zeros to KEYS."""
    room = empty(x, (KEYS, *x.shape[1:]))
    room[: len(x)], room[len(x) :] = x, 0
    return room
