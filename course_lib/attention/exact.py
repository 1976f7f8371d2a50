"""Attention in exact arithmetic: any cut of the rows gives the same bits."""

import math

from course_lib.arithmetic import exact
from course_lib.arithmetic.arrays import like, namespace
from course_lib.attention.mask import chunk_attention_mask

ROWS = 32  # query rows per pass: bounds the memory at ROWS x keys; the bits do not depend on it


def attend_exact(q, k, v, start: int, mask=None):
    """Attention of one request's new tokens over all its keys.

    q         [chunk_len, q_heads, head_dim]   queries at positions start, start + 1, ...
    k, v      [start + chunk_len, kv_heads, head_dim]
    mask      [chunk_len, start + chunk_len] bool, NumPy; causal if not given
    returns   [chunk_len, q_heads, head_dim]   v's dtype

    The full-row maximum is taken before the exponentials: rescaling as in an online softmax would round.
    """
    xp = namespace(q)
    snapped = exact.snap_columns(k.swapaxes(0, 1).swapaxes(1, 2))  # once for all rows: each key has its own grid
    outputs = []
    for first in range(0, q.shape[0], ROWS):
        rows = q[first : first + ROWS]
        if mask is None:  # later keys are invisible to all of these rows, so they are left out
            visible = like(q, chunk_attention_mask(rows.shape[0], start + first))
        else:
            visible = like(q, mask[first : first + ROWS])
        keys = visible.shape[-1]
        seen_keys = exact.Snapped(snapped.integers[..., :keys], snapped.scale[..., :keys])
        outputs.append(_attend_rows(xp, rows, seen_keys, v[:keys], visible))
    return xp.concatenate(outputs)


def _attend_rows(xp, q, k, v, visible):
    """A few queries over the keys they may see; k is the Snapped [kv_heads, head_dim, keys]."""
    rows, q_heads, head_dim = q.shape
    keys, kv_heads = v.shape[:2]
    # q heads h*group .. h*group + group - 1 share kv head h (GQA): fold the group into the rows.
    folded = q.swapaxes(0, 1).reshape(kv_heads, -1, head_dim)
    scores = exact.matmul(folded, k, xp.float32) * (1.0 / math.sqrt(head_dim))
    scores = scores.reshape(q_heads, rows, -1)
    scores = xp.where(visible, scores, -math.inf)
    weights = exact.exp(scores - xp.amax(scores, axis=-1, keepdims=True)).reshape(kv_heads, -1, keys)
    out = exact.weighted_mean(weights, v.swapaxes(0, 1))
    return out.reshape(q_heads, rows, head_dim).swapaxes(0, 1)
