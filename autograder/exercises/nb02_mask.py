"""Exercise 2.1, chunk_attention_mask: which keys may each query of one chunk see?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from autograder.compare import first_index, first_trouble, returned, spans, wrong_shape
from autograder.exercise import Call, Group, Outcome, Verdict
from autograder.exercises import kv
from autograder.kit import draws, exercise, values

SOLUTION = "course_lib.attention.mask:chunk_attention_mask"
AXES = "a row for each new token, a column for each key, cached keys first"


def causal(chunk_len: int, cached_len: int) -> np.ndarray:
    """The rows of the full triangle that belong to the chunk: another way to say what the library says."""
    total = cached_len + chunk_len
    return np.tril(np.ones((total, total), dtype=bool))[cached_len:]


def chunks(seed: int) -> Iterator[tuple[int, int]]:
    """First chunks, decodes, long chunks and caches; chunks that end where a block ends, or straddle its end."""
    draw = draws(seed)
    yield from ((3, 5), (5, 3), (1, 0), (1, draw(2, 60)), (draw(2, 40), 0), (draw(2, 16), 1), (16, 16 * draw(2, 5)))
    first = draw(2, 15)
    yield from ((first, 16 - first), (16, draw(1, 16)), (draw(2, 20), draw(300, 400)), (draw(270, 300), 3))
    for _ in range(4):
        cached = draw(1, 70)
        yield cached + draw(1, 9), cached
        yield draw(2, 50), draw(51, 70)


def label(chunk_len: int, cached_len: int) -> str:
    return f"chunk_attention_mask({chunk_len}, {cached_len})"


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray, axes: str = AXES) -> str | None:
    """What is wrong with a mask: its shape, its dtype, or else its first wrong row."""
    shape = wrong_shape(call, got, wanted.shape, axes)
    if shape or got.dtype.kind not in "biu":
        return shape or f"{call.label} has dtype {got.dtype}, wanted bool: True where a query sees a key."
    if np.array_equal(got, wanted):
        return None
    row = first_index(got != wanted)[0]
    if got[row].max() > 1 or got[row].min() < 0:
        return f"Row {row} of {call.label} holds numbers other than 0 and 1; a mask says True or False."
    sees, should = int(got[row].sum()), int(wanted[row].sum())
    if sees != should:
        return f"Row {row} of {call.label} sees {_keys(sees)}, it should see {should}."
    seen, visible = (spans(np.flatnonzero(mask[row])) for mask in (got, wanted))
    return f"Row {row} of {call.label} sees keys {seen}, it should see {visible}."


def _keys(n: int) -> str:
    return "no key" if n == 0 else "1 key" if n == 1 else f"{n} keys"


def kv_cases(seed: int) -> list[Call]:
    """A call for each chunk of three prompts, the last of them cut in two ways."""
    cuts = kv.three_cuts(seed)
    cuts.append(replace(cuts[-1], sizes=(2 * kv.BLOCK, len(cuts[-1].ids) - 2 * kv.BLOCK)))
    chunks = [(cut, take, cut.hit + computed) for cut in cuts for computed, take in cut.chunks()]
    return [Call((take, cached), label(take, cached), {"cut": cut}) for cut, take, cached in chunks]


def judge_kv(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    """Passed if the model, run with these masks, leaves one pass's cache and logits."""

    def usable(call: Call, got: np.ndarray) -> str | None:
        """What the model cannot run with. All other mistakes show in the KV cache."""
        wanted = causal(*call.args)
        if got.shape != wanted.shape or got.dtype.kind not in "biu":
            return trouble(call, got, wanted)
        blind = np.flatnonzero(~got.astype(bool).any(axis=1))
        return f"Row {blind[0]} of {call.label} sees no key at all; a token always sees itself." if len(blind) else None

    return first_trouble(calls, outcomes, usable) or kv.judge_cuts(
        calls,
        returned(outcomes),
        lambda table: {"mask": lambda chunk_len, cached_len: table[chunk_len, cached_len].astype(bool)},
    )


MISTAKES = r"""
    top_left
      query = cached_len + np  ->  query = np
    This is the triangle anchored at the top left, what torch's is_causal=True gives: it counts rows from the start of
    the chunk, as if nothing were cached.

    all_true
      key <= query  ->  key >= 0 * query
    Everything is True: a token of the chunk sees the tokens that come after it.

    open_behind_cache
      key <= query  ->  (key <= query) | (cached_len > 0)
    Only the first chunk is masked. In a later one the chunk's own keys still need it; only a decode does not.

    chunk_only
      | return np.tril(np.ones((chunk_len, chunk_len), dtype=bool))
    This is the square mask of the chunk alone: it has no columns for the cached keys. It is right only for the first
    chunk.

    cached_hidden
      key <= query  ->  (key <= query) & (key >= cached_len)
    Inside the chunk it is right, but every cached key is hidden: the chunk has forgotten the prompt before it.

    one_too_many
      key <= query  ->  key <= query + 1
    Each query sees one key too many, the token that comes next. With 0-based positions the query at position p sees
    keys 0 to p.

    greater_equal
      key <= query  ->  key >= query
    The comparison is turned round: a query sees its own key and the later ones, not the earlier ones. A key is seen if
    it stands at the query's position or before it.

    total_for_cached
      query = cached_len + np.arange  ->  query = cached_len - chunk_len + np.arange
      np.arange(cached_len + chunk_len)  ->  np.arange(cached_len)
    cached_len is taken for the number of all keys. It counts the cached ones alone; the chunk's own keys come after
    them.

    strict
      key <= query  ->  key < query
    Each query misses its own key: < where <= belongs. A token sees itself.

    inverted
      key <= query  ->  key > query
    True and False are swapped: this marks what must be hidden, as masked_fill wants it. Here True means: sees.

    additive
      key <= query  ->  np.where(key <= query, 0.0, -np.inf)
    This is the additive form, 0 where visible and -inf where not. Return the booleans it is made from.

    ones_and_zeros
      key <= query  ->  (key <= query).astype(float)
    The pattern is right and the dtype is not. Torch adds a mask of floats to the scores: 0.0 changes nothing there, so
    it would hide no key. Write dtype=bool, or .astype(bool).

    transposed
      key <= query  ->  (key <= query).T
    Queries and keys have changed places: rows are queries, columns are keys.

    offset_by_chunk
      query = cached_len  ->  query = chunk_len
    The diagonal is moved by chunk_len. It must move by cached_len; the two are the same only when the chunk is as long
    as the cache.

    example_only
      | return np.tril(np.ones((3, 8), dtype=bool), k=5)
    This is the mask of the worked example, 3 new tokens after 5 cached, whatever the arguments are.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, chunks, label, trouble), Group("kv", kv_cases, judge_kv)],
    mistakes=MISTAKES,
    reread="Reread notebook 02, section 2.",
    library=("course_lib.attention.mask:ragged_mask",),
)
