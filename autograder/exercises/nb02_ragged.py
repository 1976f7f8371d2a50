"""Exercise 2.2, ragged_mask: one mask for a batch of requests of different lengths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.compare import first_index
from autograder.exercise import Call
from autograder.exercises import nb02_mask
from autograder.kit import draws, exercise, values

SOLUTION = "course_lib.attention.mask:ragged_mask"
AXES = "a row for each new token of the batch, a column for each key of the batch"


def batches(seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Batches of 1 to 6 requests: decodes among chunks, first chunks among later ones, in any order; equal requests."""
    draw = draws(seed)
    yield from (([3, 2], [8, 2]), ([2, 3], [2, 8]), ([3, 2], [5, 9]), ([6, 1], [8, 2]), ([2, 5, 1], [9, 9, 9]))
    yield [1, 3, 1], [draw(5, 9), 3 + draw(2, 6), draw(9, 14)]
    yield [draw(2, 9)], [draw(12, 30)]
    yield [draw(2, 9), 1, draw(2, 5)], [draw(270, 300), draw(20, 30), 9]
    yield [1, 1, 1], [draw(2, 5), draw(5, 9), draw(10, 20)]  # decodes alone
    yield [1, 4, 1], [1, 4, 1]  # nothing is cached; two prompts of one token
    q, cached = draw(2, 6), draw(3, 9)
    yield [q, q, 1, q], [q + cached, q + cached, 2, q]  # equal requests
    for count in (2, 3, 4, 6):
        q_lens = [draw(2, 12)] + [1 if draw(0, 10) < 4 else draw(2, 12) for _ in range(count - 1)]
        kv_lens = [q_lens[0] + draw(1, 20)] + [q + draw(0, 2) * draw(1, 25) for q in q_lens[1:]]
        order = np.random.default_rng(seed + count).permutation(count) if count > 2 else [0, 1]
        yield [q_lens[i] for i in order], [kv_lens[i] for i in order]


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    what = nb02_mask.trouble(call, got, wanted, AXES)
    if what and got.shape == wanted.shape and got.dtype.kind in "biu":
        row = first_index(got != wanted)[0]
        request = int(np.searchsorted(np.cumsum(call.args[0]), row, side="right"))
        what += f" (Row {row} is a token of request {request} of the batch.)"
    return what


MISTAKES = r"""
    one_request
      | total, new = sum(kv_lens), sum(q_lens)
      | return np.tril(np.ones((new, total), dtype=bool), k=total - new)
    This is one long causal mask over the whole batch: requests read each other's keys.

    one_request_top_left
      | return np.tril(np.ones((sum(q_lens), sum(kv_lens)), dtype=bool))
    This is one big triangle over the batch, from its top left corner: it knows neither requests nor what is cached.

    positions_only
      | query = np.concatenate([np.arange(kv - q, kv) for q, kv in zip(q_lens, kv_lens)])
      | key = np.concatenate([np.arange(kv) for kv in kv_lens])
      | return key[None, :] <= query[:, None]
    Positions are compared and requests are not: rows see other requests' keys.

    part_of_one_triangle
      | total, new = sum(kv_lens), sum(q_lens)
      | row = np.repeat(np.arange(len(q_lens)), q_lens)
      | column = np.repeat(np.arange(len(kv_lens)), kv_lens)
      | return np.tril(np.ones((new, total), dtype=bool), k=total - new) & (row[:, None] == column[None, :])
    Requests are kept apart, but the diagonal is that of the whole batch. Each request has its own, moved by
    kv_len - q_len.

    top_left
      kv_len - q_len + np.arange  ->  np.arange
    Every request's triangle is anchored at its top left, as if nothing were cached. Its first query stands at
    kv_len - q_len.

    not_causal
      key <= query  ->  True
    Requests are kept apart, and inside a request every token sees every key, later ones too.

    cached_hidden
      key <= query  ->  (key <= query) & (key >= kv_len - q_len)
    Inside each chunk it is right, but the cached keys of every request are hidden.

    greater_equal
      key <= query  ->  key >= query
    The comparison is turned round: a query sees its own key and the later ones of its request, not the earlier ones.

    keys_for_cached
      query = kv_len - q_len + np  ->  query = kv_len + np
      key = np.arange(kv_len)[None, :]  ->  key = np.arange(kv_len + q_len)[None, :]
    The request's kv_len is taken for its cached tokens, as in chunk_attention_mask(q_len, kv_len). kv_len counts the
    new tokens as well, so kv_len - q_len are cached.

    columns_by_new_tokens
      column += kv_len  ->  column += q_len
    The next request's columns begin q_len columns further on. Columns are keys: go on by kv_len.

    column_stays
      column += kv_len  ->
    The columns of every request begin at key 0, where those of request 0 are: add kv_len after each request.

    rows_by_keys
      row += q_len  ->  row += kv_len
    The next request's rows begin kv_len rows further on. Rows are new tokens: go on by q_len.

    row_stays
      row += q_len  ->
    The rows of every request begin at row 0, where those of request 0 are: add q_len after each request.

    strict
      key <= query  ->  key < query
    Each query misses its own key: < where <= belongs.

    one_too_many
      key <= query  ->  key <= query + 1
    Each query sees one key too many. The last new token stands at kv_len - 1, so the first stands at kv_len - q_len.

    cache_of_the_first
      kv_len - q_len +  ->  kv_lens[0] - q_lens[0] +
    Every request gets the cached length of request 0. Each has its own, kv_len - q_len.

    ends_of_the_batch
      np.arange(kv_len)  ->  np.arange(sum(kv_lens)) - column
      column : column + kv_len]  ->  :]
    Each request ends where it should but begins at key 0 of the batch: it reads the keys of all requests before it.

    columns_of_new_tokens
      | mask = np.zeros((sum(q_lens), sum(q_lens)), dtype=bool)
      | row = 0
      | for q_len in q_lens:
      |     mask[row : row + q_len, row : row + q_len] = np.tril(np.ones((q_len, q_len), dtype=bool))
      |     row += q_len
      | return mask
    There is a column for each new token only. Columns are keys, and a request has kv_lens[r] of them, cached ones
    included.

    all_true
      | return np.ones((sum(q_lens), sum(kv_lens)), dtype=bool)
    Everything is True: every token sees every key of every request.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        values("values", SOLUTION, batches, lambda q, kv: f"ragged_mask({q}, {kv})", trouble, count="batches"),
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 02, section 3.",
)
