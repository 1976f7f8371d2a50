"""Attention in the usual way: the whole score matrix in NumPy, SDPA in torch. No claim about bits."""

import math

import numpy as np

from course_lib.arithmetic.arrays import cast, like, namespace
from course_lib.attention.mask import chunk_attention_mask


def attend_plain(q, k, v, start: int, mask=None):
    """Same contract as attend_exact, ordinary kernels; memory grows as chunk_len x keys (NumPy)."""
    xp = namespace(q)
    if xp is not np:
        return _sdpa(xp, q, k, v, start, mask)
    visible = chunk_attention_mask(q.shape[0], start) if mask is None else mask
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1).swapaxes(0, 1), np.repeat(v, group, axis=1).swapaxes(0, 1)
    scores = np.matmul(q.swapaxes(0, 1), k.swapaxes(1, 2)) * np.float32(1.0 / math.sqrt(q.shape[-1]))
    scores = np.where(visible, scores, -math.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = np.matmul(weights / weights.sum(axis=-1, keepdims=True), v)
    return cast(out.swapaxes(0, 1), q.dtype)


def _sdpa(torch, q, k, v, start, mask):
    one_pass, decode = mask is None and start == 0, mask is None and q.shape[0] == 1
    if mask is None and not (one_pass or decode):
        mask = chunk_attention_mask(q.shape[0], start)  # is_causal would anchor it at the top left
    q, k, v = (x.swapaxes(0, 1)[None] for x in (q, k, v))
    visible = None if mask is None else like(q, mask)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, is_causal=one_pass, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out[0].swapaxes(0, 1)
