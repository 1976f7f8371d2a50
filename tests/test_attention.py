"""Every attention against the formula in float64, at the edges of tiles and key blocks, and under odd masks."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from libraries import LIBRARIES, array_of, empty_of, needs_torch

from course_lib.arithmetic import arithmetic
from course_lib.arithmetic.arrays import to_numpy
from course_lib.arithmetic.rows import TILE, RowTable
from course_lib.attention import ATTEND, reference
from course_lib.attention.mask import chunk_attention_mask
from course_lib.attention.tiled import KEYS, attend_tiled
from course_lib.cache.pool import KVPool
from course_lib.model import attend_paged

HEAD_DIM = 8
WAYS = {**ATTEND, "tile in any rows": partial(attend_tiled, rows=RowTable())}  # "tile" alone: 32 aligned rows
BACKENDS = sorted(WAYS)
INVARIANT = [name for name in BACKENDS if name != "plain"]
# exact rounds values to 2**-14 and weights to 2**-20; the others are float32 throughout
CLOSE = dict.fromkeys(BACKENDS, 5e-6) | {"exact": 2e-4}
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # a division of nothing by nothing is a mistake
every_library = pytest.mark.parametrize("library", LIBRARIES)


def qkv(seed, start, chunk_len, group=2, kv_heads=2, head_dim=HEAD_DIM):
    """The chunk's queries (their projections are sharp, as trained ones are), and all keys and values."""
    rng = np.random.default_rng(seed)
    keys = start + chunk_len
    q = 2 * rng.standard_normal((chunk_len, group * kv_heads, head_dim))
    k, v = rng.standard_normal((2, keys, kv_heads, head_dim))
    return [x.astype(np.float32) for x in (q, k, v)]


def by_formula(q, k, v, visible):
    """softmax(q k / sqrt(head_dim)) v in float64, query by query and head by head."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    out = np.empty_like(q)
    for row in range(q.shape[0]):
        seen = np.flatnonzero(visible[row])
        for head in range(q.shape[1]):
            scores = k[seen, head // group] @ q[row, head] / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ v[seen, head // group] / weights.sum()
    return out


def attend(library, backend, arrays, start, mask=None):
    return to_numpy(WAYS[backend](*(array_of(library, x) for x in arrays), start, mask))


def assert_is_the_formula(library, backend, arrays, start, mask=None):
    visible = chunk_attention_mask(arrays[0].shape[0], start) if mask is None else mask
    got = attend(library, backend, arrays, start, mask)
    assert got.dtype == np.float32
    assert np.abs(got - by_formula(*arrays, visible)).max() < CLOSE[backend]


EDGES = [(0, 1), (0, 31), (0, 32), (0, 33), (1, 1), (31, 1), (31, 2), (32, 1), (32, 33), (33, 30), (33, 31), (33, 32)]
EDGES += [(KEYS - 2, 1), (KEYS - 1, 1), (KEYS, 1), (KEYS - 3, 5), (KEYS - 32, 32), (KEYS - 31, 32), (2 * KEYS - 1, 2)]


@every_library
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start, chunk_len", EDGES)
def test_attention_is_the_formula_at_the_edges_of_tiles_and_key_blocks(library, backend, start, chunk_len):
    assert_is_the_formula(library, backend, qkv(start, start, chunk_len), start)


@every_library
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_query_heads_share_the_key_head_of_their_group(library, backend, group, kv_heads):
    for start, chunk_len in ((0, 40), (29, 7), (50, 1)):
        assert_is_the_formula(library, backend, qkv(group, start, chunk_len, group, kv_heads), start)


@every_library
@pytest.mark.parametrize("backend", INVARIANT)
@pytest.mark.parametrize("head_dim", [2, 6, 64])
def test_a_head_may_be_narrow_or_wide(library, backend, head_dim):
    assert_is_the_formula(library, backend, qkv(head_dim, 20, 45, head_dim=head_dim), 20)


@every_library
@pytest.mark.parametrize("backend", INVARIANT)
@pytest.mark.parametrize("start, chunk_len", [(0, 40), (31, 3), (KEYS - 1, 3), (5, 64)])
def test_a_right_mask_has_the_bits_of_no_mask(library, backend, start, chunk_len):
    arrays = qkv(1, start, chunk_len)
    given_mask = attend(library, backend, arrays, start, chunk_attention_mask(chunk_len, start))
    assert np.array_equal(given_mask, attend(library, backend, arrays, start))


def hole(chunk_len, start):
    """One key in the middle is invisible to everyone but itself."""
    mask = chunk_attention_mask(chunk_len, start)
    middle = start + chunk_len // 2
    mask[chunk_len // 2 + 1 :, middle] = False
    mask[:, start // 2] = start // 2 >= start
    mask[0, start] = True
    return mask


def window(chunk_len, start):
    """The last five keys only, so that whole key blocks are invisible."""
    mask = chunk_attention_mask(chunk_len, start)
    return mask & ~np.tri(chunk_len, start + chunk_len, start - 5, dtype=bool)


def ahead(chunk_len, start):
    """No causality: every query sees the whole chunk, so a tile looks into later tiles."""
    return np.ones((chunk_len, start + chunk_len), dtype=bool)


def last_only(chunk_len, start):
    """Every query sees the very last key and no other."""
    mask = np.zeros((chunk_len, start + chunk_len), dtype=bool)
    mask[:, -1] = True
    return mask


@every_library
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("odd_mask", [hole, window, ahead, last_only])
@pytest.mark.parametrize("start, chunk_len", [(0, 50), (30, 5), (64, 33), (3, 1), (KEYS + 20, 10), (KEYS - 5, 40)])
def test_an_odd_mask_hides_what_it_hides_and_nothing_else(library, backend, odd_mask, start, chunk_len):
    assert_is_the_formula(library, backend, qkv(start, start, chunk_len), start, odd_mask(chunk_len, start))


@every_library
@pytest.mark.parametrize("backend", BACKENDS)
@given(seed=st.integers(0, 2**32 - 1), start=st.integers(0, 80), chunk_len=st.integers(1, 70), density=st.floats(0, 1))
@settings(max_examples=8)
def test_any_mask_in_which_every_query_sees_a_key_is_the_formula(library, backend, seed, start, chunk_len, density):
    rng = np.random.default_rng(seed)
    mask = rng.random((chunk_len, start + chunk_len)) < density
    mask[np.arange(chunk_len), rng.integers(0, start + chunk_len, chunk_len)] = True
    assert_is_the_formula(library, backend, qkv(seed, start, chunk_len), start, mask)


@every_library
@pytest.mark.parametrize("backend", INVARIANT)
@given(sizes=st.lists(st.integers(1, 90), min_size=1, max_size=12), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_a_querys_attention_has_the_same_bits_in_every_cut(library, backend, sizes, seed):
    total = sum(sizes)
    assume(total > 1)
    q, k, v = qkv(seed, 0, total)
    whole, start = attend(library, backend, (q, k, v), 0), 0
    for size in sizes:
        stop = start + size
        part = attend(library, backend, (q[start:stop], k[:stop], v[:stop]), start)
        assert np.array_equal(part, whole[start:stop])
        start = stop


@every_library
@pytest.mark.parametrize("backend", INVARIANT)
@pytest.mark.parametrize("start", [KEYS - 33, KEYS - 1, KEYS, KEYS + 1])
def test_the_cut_may_fall_on_the_edge_of_a_key_block(library, backend, start):
    q, k, v = qkv(5, 0, KEYS + 40)
    whole = attend(library, backend, (q, k, v), 0)
    part = attend(library, backend, (q[start:], k, v), start)
    assert np.array_equal(part, whole[start:])


@every_library
@pytest.mark.parametrize("backend", BACKENDS)
def test_large_scores_do_not_overflow(library, backend):
    q, k, v = qkv(3, 20, 30)
    visible = chunk_attention_mask(30, 20)
    for q, k in ((200 * q, k), (np.full_like(q, -40), np.full_like(k, 40))):  # noqa: B020 - hundreds; -4,500 for all
        got = attend(library, backend, (q, k, v), 20)
        # a score's own rounding grows with it: 500 * 2**-24, and in exact 500 * 2**-20
        assert np.abs(got - by_formula(q, k, v, visible)).max() < (2e-3 if backend == "exact" else 2e-4)


@every_library
@pytest.mark.parametrize("backend", INVARIANT)
def test_a_query_does_not_feel_the_keys_behind_it(library, backend):
    start, chunk_len = 40, 20
    q, k, v = qkv(2, start, chunk_len)
    right = attend(library, backend, (q, k, v), start)
    k[start + 10 :], v[start + 10 :] = 60, -60  # keys that only the last ten queries may see
    assert np.array_equal(attend(library, backend, (q, k, v), start)[:10], right[:10])


@every_library
@pytest.mark.parametrize("start, chunk_len", EDGES + [(700, 3), (3, 300)])
def test_a_query_has_the_bits_of_its_aligned_tile_in_any_number_of_rows(library, start, chunk_len):
    arrays = qkv(start, start, chunk_len, kv_heads=2)
    tiles, any_rows = (attend(library, way, arrays, start) for way in ("tile", "tile in any rows"))
    assert np.array_equal(tiles, any_rows)


@needs_torch
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, close", [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_short_floats_give_short_floats_near_the_formula(backend, dtype, close):
    import torch

    arrays = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in qkv(0, 33, 40)]
    out = WAYS[backend](*arrays, 33)
    assert out.dtype == getattr(torch, dtype)
    true = by_formula(*(to_numpy(x) for x in arrays), chunk_attention_mask(40, 33))
    assert np.abs(to_numpy(out) - true).max() < close


# --- the lesson's formula


@given(seed=st.integers(0, 2**32 - 1), cached=st.integers(0, 60), chunk_len=st.integers(1, 40), cut=st.integers(1, 39))
@settings(max_examples=40)
def test_the_lessons_attention_is_the_formula_and_keeps_its_bits_in_two_chunks(seed, cached, chunk_len, cut):
    q, k, v = (x[:, 0] for x in qkv(seed, cached, chunk_len, group=1, kv_heads=1))
    mask = chunk_attention_mask(chunk_len, cached)
    whole = reference.attend(q, k, v, mask)
    assert whole.dtype == np.float32
    assert np.abs(whole - by_formula(q[:, None], k[:, None], v[:, None], mask)[:, 0]).max() < CLOSE["exact"]
    if cut < chunk_len:
        stop = cached + cut
        first = reference.attend(q[:cut], k[:stop], v[:stop], chunk_attention_mask(cut, cached))
        second = reference.attend(q[cut:], k, v, chunk_attention_mask(chunk_len - cut, stop))
        assert np.array_equal(np.concatenate([first, second]), whole)


@pytest.mark.parametrize("head_dim", [4, 16, 64])  # whose square roots divide without rounding
def test_the_lessons_attention_has_the_bits_of_the_engines(head_dim):
    q, k, v = qkv(head_dim, 30, 40, head_dim=head_dim)
    engine = attend("numpy", "exact", (q, k, v), 30)
    mask = chunk_attention_mask(40, 30)
    for head in range(4):
        assert np.array_equal(reference.attend(q[:, head], k[:, head // 2], v[:, head // 2], mask), engine[:, head])


# --- through the block table


@every_library
@pytest.mark.parametrize("backend", ["exact", "tile"])
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_a_request_reads_its_own_keys_through_its_block_table_and_nobody_elses(library, backend, block_size):
    requests = [(0, 7), (22, 1), (9, 33)]  # start, chunk_len
    blocks = [-(-(start + chunk_len) // block_size) for start, chunk_len in requests]
    order = list(np.random.default_rng(0).permutation(sum(blocks)))
    pool = KVPool(empty_of(library), 2, sum(blocks), block_size, 2, HEAD_DIM)
    queries, slots, alone = [], [], []
    for number, (start, chunk_len) in enumerate(requests):
        q, k, v = qkv(number, start, chunk_len)
        own = pool.slots([order.pop() for _ in range(blocks[number])], 0, start + chunk_len)
        pool.write(1, own, array_of(library, k), array_of(library, v))
        queries.append(q), slots.append(own)
        alone.append(attend(library, backend, (q, k, v), start))
    starts, masks, arith = [start for start, _ in requests], [None] * 3, arithmetic(backend)
    together = attend_paged(array_of(library, np.concatenate(queries)), pool, 1, slots, starts, masks, arith)
    assert np.array_equal(to_numpy(together), np.concatenate(alone))
    backwards = attend_paged(
        array_of(library, np.concatenate(queries[::-1])), pool, 1, slots[::-1], starts[::-1], masks, arith
    )
    assert np.array_equal(to_numpy(backwards), np.concatenate(alone[::-1]))


def test_every_arithmetic_has_an_attention():
    assert all(arithmetic(name).name == name for name in ATTEND)
    with pytest.raises(ValueError, match="no arithmetic 'flash'; there are 'exact', 'tile' and 'plain'"):
        arithmetic("flash")


# --- memory


def peak_bytes(backend, length):
    arrays = qkv(0, 0, length, group=1, kv_heads=1)
    tracemalloc.start()
    try:
        WAYS[backend](*arrays, 0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("backend", INVARIANT)
def test_attention_never_builds_an_n_by_n_matrix(backend):
    short, long = peak_bytes(backend, 1024), peak_bytes(backend, 4096)
    assert long < 4.5 * short  # four times the tokens: 16 times the bytes if it were quadratic
    assert long < 4096 * 4096  # bytes: a quarter of the float32 scores


def test_plain_attention_does_build_it_which_shows_that_the_measurement_sees_it():
    assert peak_bytes("plain", 4096) > 4096 * 4096 * 4


def test_tiles_and_key_blocks_have_the_sizes_of_the_contract():
    assert (TILE, KEYS) == (32, 128)  # other sizes give other bits: a change breaks saved caches
