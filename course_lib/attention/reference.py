"""Attention as the formula says it: all scores, one mask, one softmax. Notebook 02 builds it."""

import numpy as np

from course_lib.arithmetic import exact


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Attention of one head: softmax(q k^T / sqrt(head_dim), where the mask allows) v.

    q         [chunk_len, head_dim]   queries of the new tokens
    k, v      [keys, head_dim]        keys and values, cached ones first
    mask      [chunk_len, keys]       bool, True where a query sees a key
    returns   [chunk_len, head_dim]   float32, a new array; the arguments stay as they are

    Every sum runs inside an exact operation whose grid is the same in every cut, so a row's bits do not depend on it.
    """
    scores = exact.matmul(q, k.T) / np.float32(np.sqrt(q.shape[-1]))
    scores = np.where(mask, scores, -np.inf)
    weights = exact.exp(scores - scores.max(axis=-1, keepdims=True))
    return exact.weighted_mean(weights, v)
