"""Attention in tile arithmetic: an online softmax over fixed blocks of keys. No N x N matrix is ever built.

The queries of an aligned tile (positions i * T .. (i + 1) * T - 1) attend together to keys
0 .. (i + 1) * T - 1 in blocks of KEYS, counted from position 0. Keys that are not written yet are zero
and masked. So every shape is a function of the tile index alone, and a query meets the same kernels in
the same order however the prompt was cut.
"""

import math

import numpy as np

from course_lib.arithmetic.arrays import cast, empty, like, namespace, zeros
from course_lib.arithmetic.tile import TILE

KEYS = 512  # keys per block, a multiple of T; part of the contract like T


def attend_tiled(q, k, v, start: int, mask=None, tile: int = TILE):
    """Attention of one request's new tokens over all its keys.

    q         [chunk_len, q_heads, head_dim]   queries at positions start, start + 1, ...
    k, v      [start + chunk_len, kv_heads, head_dim]
    mask      [chunk_len, start + chunk_len] bool, NumPy; causal if not given
    tile      T, the rows of a query tile; ValueError if it does not divide KEYS
    returns   [chunk_len, q_heads, head_dim]   q's dtype

    Computes in float32 whatever the dtype. Needs memory for T x KEYS scores per head, and a copy of k and v.
    """
    if tile < 1 or KEYS % tile:  # the keys ahead of a query could lie in two blocks, and only the last is masked
        raise ValueError(f"tile={tile}; wanted a number of rows that divides {KEYS}, such as {TILE}.")
    stop = start + q.shape[0]
    first_tile, last_tile = start // tile, (stop - 1) // tile
    xp = namespace(q)
    before = start - first_tile * tile
    q_rows = _padded(cast(q, xp.float32) * (1.0 / math.sqrt(q.shape[-1])), before, (last_tile + 1 - first_tile) * tile)
    key_blocks, value_blocks = _blocks(k), _blocks(v)
    out = empty(q_rows, q_rows.shape)
    for i in range(first_tile, last_tile + 1):
        rows = slice((i - first_tile) * tile, (i + 1 - first_tile) * tile)
        visible = None if mask is None else _tile_of_mask(mask, i * tile, tile, start)
        keys = (i + 1) * tile if mask is None else visible.shape[1]
        out[rows] = _attend_tile(xp, q_rows[rows], key_blocks, value_blocks, keys, visible)
    return cast(out[before : before + q.shape[0]], q.dtype)


def _attend_tile(xp, q, key_blocks, value_blocks, keys: int, visible):
    """One tile of queries, float32 [T, q_heads, head_dim], over keys 0 .. keys - 1."""
    tile, q_heads, head_dim = q.shape
    kv_heads = key_blocks.shape[1]
    group = q_heads // kv_heads
    # The q heads that share a kv head become rows of one matrix (GQA): [kv_heads, T * group, head_dim].
    rows = q.reshape(tile, kv_heads, group, head_dim).swapaxes(0, 1).reshape(kv_heads, tile * group, head_dim)
    largest, total, out = None, 0, 0
    for block, first in enumerate(range(0, keys, KEYS)):
        width = min(KEYS, keys - first)
        scores = xp.matmul(rows, key_blocks[block, :, :width].swapaxes(1, 2))
        _hide(xp, scores.reshape(kv_heads, tile, group, width), slice(first, first + width), keys, visible)
        higher = xp.amax(scores, axis=-1, keepdims=True)
        if largest is None:
            higher = xp.clip(higher, -1e30, None)  # a row that sees no key of this block stays finite
        else:
            higher = xp.maximum(largest, higher)
            shrink = xp.exp(largest - higher)  # earlier sums were relative to a smaller maximum
            total, out = total * shrink, out * shrink
        scores -= higher
        weights = xp.exp(scores, out=scores)
        total = total + xp.sum(weights, axis=-1, keepdims=True)
        out = out + xp.matmul(weights, value_blocks[block, :, :width])
        largest = higher
    out = (out / total).reshape(kv_heads, tile, group, head_dim)
    return out.swapaxes(0, 1).reshape(tile, q_heads, head_dim)


def _hide(xp, scores, block: slice, keys: int, visible) -> None:
    """Set the scores of invisible keys to -inf, in place. scores [kv_heads, T, group, keys of the block]."""
    if visible is not None:
        hidden = ~visible[:, block]
    elif block.stop < keys:
        return  # only the last T keys can be ahead of a query of this tile
    else:
        tile = scores.shape[1]
        scores = scores[..., -tile:]
        hidden = np.triu(np.ones((tile, tile), dtype=bool), 1)
    hidden = like(scores, np.ascontiguousarray(hidden))[None, :, None, :]
    scores[...] = xp.where(hidden, -math.inf, scores)


def _tile_of_mask(mask, first: int, tile: int, start: int):
    """The mask of positions first .. first + T - 1: [T, keys] bool; rows outside the chunk see key 0.

    A right mask needs keys 0 .. first + T - 1. For one that looks further ahead, whole tiles of keys are added.
    """
    rows = slice(max(first - start, 0), first + tile - start)
    part = mask[rows]
    last_seen = int(np.flatnonzero(part.any(axis=0))[-1])
    keys = max(first + tile, (last_seen // tile + 1) * tile)
    visible = np.zeros((tile, keys), dtype=bool)
    visible[:, 0] = True
    slots = slice(start + rows.start - first, start + rows.start - first + part.shape[0])
    visible[slots] = False
    visible[slots, : min(keys, part.shape[1])] = part[:, :keys]
    return visible


def _blocks(x):
    """Keys or values [keys, kv_heads, head_dim] as float32 blocks [blocks, kv_heads, KEYS, head_dim], zero-padded.

    In blocks the strides are fixed, where those of [kv_heads, keys, head_dim] would follow the number of keys.
    """
    keys, kv_heads, head_dim = x.shape
    full, rest = divmod(keys, KEYS)
    out = zeros(x, (full + bool(rest), kv_heads, KEYS, head_dim), namespace(x).float32)
    out[:full] = x[: full * KEYS].reshape(full, KEYS, kv_heads, head_dim).swapaxes(1, 2)
    if rest:
        out[full, :, :rest] = x[full * KEYS :].swapaxes(0, 1)
    return out


def _padded(x, before: int, length: int):
    """x at row `before` of `length` zero rows."""
    out = zeros(x, (length, *x.shape[1:]))
    out[before : before + x.shape[0]] = x
    return out
