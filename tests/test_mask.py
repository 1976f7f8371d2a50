"""Masks against the definition, one query and one key at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.attention.mask import chunk_attention_mask, ragged_mask

lengths = st.integers(1, 40)
cached_lengths = st.integers(0, 60)


@given(chunk_len=lengths, cached_len=cached_lengths)
def test_a_chunk_sees_what_its_rows_of_the_whole_triangle_say(chunk_len, cached_len):
    total = cached_len + chunk_len
    triangle = np.tril(np.ones((total, total), dtype=bool))
    mask = chunk_attention_mask(chunk_len, cached_len)
    assert mask.dtype == bool
    assert mask.shape == (chunk_len, total)
    assert np.array_equal(mask, triangle[cached_len:])


@given(sizes=st.lists(lengths, min_size=1, max_size=8))
def test_a_prompt_in_chunks_attends_like_a_prompt_in_one(sizes):
    total, start = sum(sizes), 0
    whole = chunk_attention_mask(total, 0)
    for size in sizes:
        mask = chunk_attention_mask(size, start)
        rows = whole[start : start + size]
        assert np.array_equal(mask, rows[:, : start + size])
        assert not rows[:, start + size :].any()  # what the chunk's mask leaves out is invisible in one pass too
        start += size


@given(cached_len=cached_lengths)
def test_a_decode_sees_every_key(cached_len):
    assert chunk_attention_mask(1, cached_len).all()


@given(chunk_len=lengths, cached_len=cached_lengths)
def test_every_query_sees_itself_every_cached_key_and_no_later_key(chunk_len, cached_len):
    mask = chunk_attention_mask(chunk_len, cached_len)
    assert mask[:, :cached_len].all()
    assert mask.sum(axis=1).tolist() == [cached_len + i + 1 for i in range(chunk_len)]


def test_a_small_chunk_by_hand():
    assert chunk_attention_mask(3, 2).astype(int).tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def ragged_by_hand(q_lens, kv_lens):
    """Each query and each key as (request, position)."""
    queries = [(r, kv - q + i) for r, (q, kv) in enumerate(zip(q_lens, kv_lens)) for i in range(q)]
    keys = [(r, i) for r, kv in enumerate(kv_lens) for i in range(kv)]
    return np.array([[own == other and k <= q for other, k in keys] for own, q in queries], dtype=bool)


@given(requests=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=5))
def test_in_a_batch_each_query_sees_its_own_request_up_to_itself(requests):
    q_lens, kv_lens = [q for q, _ in requests], [q + cached for q, cached in requests]
    mask = ragged_mask(q_lens, kv_lens)
    assert mask.dtype == bool
    assert mask.shape == (sum(q_lens), sum(kv_lens))
    assert np.array_equal(mask, ragged_by_hand(q_lens, kv_lens))


@given(chunk_len=lengths, cached_len=cached_lengths)
def test_a_batch_of_one_request_has_the_mask_of_its_chunk(chunk_len, cached_len):
    assert np.array_equal(
        ragged_mask([chunk_len], [cached_len + chunk_len]), chunk_attention_mask(chunk_len, cached_len)
    )


@given(requests=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=2, max_size=5), data=st.data())
def test_a_request_keeps_its_rows_when_the_batch_is_reordered(requests, data):
    order = data.draw(st.permutations(range(len(requests))))
    q_lens, kv_lens = np.array([q for q, _ in requests]), np.array([q + cached for q, cached in requests])
    mask = ragged_mask(q_lens, kv_lens)
    moved = ragged_mask(q_lens[order], kv_lens[order])

    def block(m, q_lens, kv_lens, r):
        row, column = q_lens[:r].sum(), kv_lens[:r].sum()
        return m[row : row + q_lens[r], column : column + kv_lens[r]]

    for new, old in enumerate(order):
        assert np.array_equal(block(moved, q_lens[order], kv_lens[order], new), block(mask, q_lens, kv_lens, old))


@pytest.mark.parametrize("prompt_and_decodes", [([4, 1, 1], [4, 9, 1]), ([1, 3], [7, 10])])
def test_a_prompt_beside_decodes_by_hand(prompt_and_decodes):
    q_lens, kv_lens = prompt_and_decodes
    assert np.array_equal(ragged_mask(tuple(q_lens), tuple(kv_lens)), ragged_by_hand(q_lens, kv_lens))
