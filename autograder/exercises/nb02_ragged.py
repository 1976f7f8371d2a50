"""Exercise 2.2, ragged_mask: one mask for a batch of requests of different lengths."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_index, first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb02_mask import mask_trouble
from autograder.kept import known_mistakes

AXES = "a row for each new token of the batch, a column for each key of the batch"


def visible(q_lens: list[int], kv_lens: list[int]) -> np.ndarray:
    """The same request, and not later: from the request and the position of every row and column."""
    q_request, kv_request = np.repeat(np.arange(len(q_lens)), q_lens), np.repeat(np.arange(len(kv_lens)), kv_lens)
    q_position = np.concatenate([np.arange(kv - q, kv) for q, kv in zip(q_lens, kv_lens, strict=True)])
    kv_position = np.concatenate([np.arange(kv) for kv in kv_lens])
    return (q_request[:, None] == kv_request) & (kv_position <= q_position[:, None])


def value_cases(seed: int) -> list[Call]:
    """Batches of 1 to 5 requests: decodes among chunks, first chunks among later ones, in any order."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    batches = [([3, 2], [8, 2]), ([1, 3, 1], [draw(5, 9), 3 + draw(2, 6), draw(9, 14)]), ([draw(2, 9)], [draw(12, 30)])]
    for count in (2, 3, 4, 5, 3, 4):
        q_lens = [1 if rng.random() < 0.4 else draw(2, 12) for _ in range(count)]
        q_lens[draw(0, count)] = draw(3, 12)  # no batch of decodes alone: a decode shows no mistake inside a chunk
        kv_lens = [q + (0 if rng.random() < 0.25 else draw(1, 25)) for q in q_lens]
        if kv_lens[0] == q_lens[0]:
            kv_lens[0] += draw(1, 20)
        batches.append((q_lens, kv_lens))
    batches.append(([1, 1, 1], [draw(1, 4), draw(5, 9), draw(10, 20)]))
    return [Call(batch, f"ragged_mask({batch[0]}, {batch[1]})") for batch in batches]


def _trouble(call: Call, got: np.ndarray) -> str | None:
    wanted = visible(*call.args)
    what = mask_trouble(call, got, wanted, AXES)
    if what and got.shape == wanted.shape and got.dtype.kind in "biu":
        row = first_index(got != wanted)[0]
        request = int(np.searchsorted(np.cumsum(call.args[0]), row, side="right"))
        what += f" (Row {row} is a token of request {request} of the batch.)"
    return what


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} batches")


SOLUTION = "course_lib.attention.mask:ragged_mask"

MISTAKES = """
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

EXERCISE = Exercise(
    name="ragged_mask",
    groups=(Group("values", value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 02, section 3.",
    solution=SOLUTION,
)
