"""Which keys a query may see. A mask is boolean: True means "this query attends to this key"."""

from collections.abc import Sequence

import numpy as np


def chunk_attention_mask(chunk_len: int, cached_len: int) -> np.ndarray:
    """Mask of one chunk whose first token has `cached_len` tokens before it.

    chunk_len    number of new tokens (queries), at least 1
    cached_len   number of tokens whose keys are in the cache already, 0 or more
    returns      [chunk_len, cached_len + chunk_len] bool, a new array

    Row i is the query at position cached_len + i. It sees every cached key, and inside
    the chunk the keys up to its own.
    """
    query = cached_len + np.arange(chunk_len)[:, None]
    key = np.arange(cached_len + chunk_len)[None, :]
    return key <= query


def ragged_mask(q_lens: Sequence[int], kv_lens: Sequence[int]) -> np.ndarray:
    """Mask of a batch in which request r brings q_lens[r] new tokens and has kv_lens[r] keys in all.

    q_lens    new tokens of each request; a decode brings 1
    kv_lens   keys of each request, its new tokens included (kv_lens[r] >= q_lens[r])
    returns   [sum(q_lens), sum(kv_lens)] bool, a new array

    Requests stand one after another on both axes. No query sees another request's keys.
    """
    mask = np.zeros((sum(q_lens), sum(kv_lens)), dtype=bool)
    row = column = 0
    for q_len, kv_len in zip(q_lens, kv_lens):
        query = kv_len - q_len + np.arange(q_len)[:, None]
        key = np.arange(kv_len)[None, :]
        mask[row : row + q_len, column : column + kv_len] = key <= query
        row += q_len
        column += kv_len
    return mask
