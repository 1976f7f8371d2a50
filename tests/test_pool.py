"""The paged pool against an oracle that remembers which request and position wrote each slot."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import LIBRARIES, array_of, empty_of

from course_lib.arithmetic.arrays import to_numpy
from course_lib.cache.pool import KVPool

LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 3
pytestmark = pytest.mark.parametrize("library", LIBRARIES)


def new_pool(library, num_blocks=6, block_size=4, fill=np.nan):
    return KVPool(empty_of(library), LAYERS, num_blocks, block_size, KV_HEADS, HEAD_DIM, fill)


def bytes_of(pool):
    return to_numpy(pool.k).tobytes(), to_numpy(pool.v).tobytes()


def token_kv(library, request, positions, layer):
    """K and V that tell who wrote them: every number is exact in float32 and belongs to one place alone."""
    place = np.arange(KV_HEADS * HEAD_DIM, dtype=np.float32).reshape(1, KV_HEADS, HEAD_DIM)
    token = np.float32(100 * (1000 * request + 1)) + 100 * np.asarray(positions, np.float32)[:, None, None]
    k = token + place + 10 * layer
    return array_of(library, k), array_of(library, -k)


def slot_by_hand(block_table, position, block_size):
    """The definition, one token at a time."""
    block = block_table[position // block_size]
    return block * block_size + position % block_size


@settings(max_examples=40)
@given(data=st.data())
def test_what_a_request_wrote_is_what_it_reads_whatever_others_write_in_between(library, data):
    block_size = data.draw(st.sampled_from([1, 2, 3, 4, 16]), "block_size")
    per_request = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4), "blocks of each request")
    spare = data.draw(st.integers(0, 2), "blocks of nobody")
    num_blocks = sum(per_request) + spare
    order = data.draw(st.permutations(range(num_blocks)), "order of blocks")
    tables = [[order.pop() for _ in range(n)] for n in per_request]
    pool = new_pool(library, num_blocks, block_size)

    computed, written = [0] * len(tables), {}  # slot -> (request, position)
    for _ in range(data.draw(st.integers(1, 8), "steps")):
        request = data.draw(st.integers(0, len(tables) - 1), "request")
        room = len(tables[request]) * block_size - computed[request]
        take = data.draw(st.integers(0, room), "take")
        start, stop = computed[request], computed[request] + take
        slots = pool.slots(tables[request], start, stop)
        for layer in range(LAYERS):
            pool.write(layer, slots, *token_kv(library, request, range(start, stop), layer))
        for position in range(start, stop):
            written[slot_by_hand(tables[request], position, block_size)] = (request, position)
        computed[request] = stop

        for other, table in enumerate(tables):
            slots = pool.slots(table, 0, computed[other])
            for layer in range(LAYERS):
                k, v = (to_numpy(x) for x in pool.gather(layer, slots))
                want_k, want_v = token_kv("numpy", other, range(computed[other]), layer)
                assert np.array_equal(k, want_k) and np.array_equal(v, want_v)
                assert np.array_equal(to_numpy(pool.kv_in(slots)[0])[layer], want_k)
    for slot in range(pool.num_slots):
        for layer in range(LAYERS):
            k, v = to_numpy(pool.k)[layer, slot], to_numpy(pool.v)[layer, slot]
            if slot in written:
                request, position = written[slot]
                want_k, want_v = token_kv("numpy", request, [position], layer)
                assert np.array_equal(k, want_k[0]) and np.array_equal(v, want_v[0])
            else:
                assert np.isnan(k).all() and np.isnan(v).all(), f"slot {slot} is nobody's, and was written"


@pytest.mark.parametrize("block_size", [1, 2, 16, 256])
def test_the_last_token_of_a_block_and_the_first_of_the_next_find_their_own_blocks(library, block_size):
    pool = new_pool(library, num_blocks=4, block_size=block_size)
    table = [3, 1]
    for stop in {1, block_size - 1, block_size, block_size + 1, 2 * block_size} - {0}:
        slots = pool.slots(table, 0, stop)
        assert slots.dtype == np.int64
        assert slots.tolist() == [slot_by_hand(table, p, block_size) for p in range(stop)]
    assert pool.slots(table, block_size - 1, block_size + 1).tolist() == [4 * block_size - 1, block_size]
    assert pool.slots(table, 2 * block_size, 2 * block_size).tolist() == []
    with pytest.raises(ValueError, match="Allocate blocks first"):
        pool.slots(table, 0, 2 * block_size + 1)


@pytest.mark.parametrize(
    "table, start, stop, message",
    [
        ([], 0, 1, "do not fit a block table of 0 blocks"),
        ([0, 1], 0, 9, r"tokens \[0, 9\) do not fit"),
        ([0, 1], -1, 3, r"tokens \[-1, 3\) do not fit"),
        ([0, 1], 5, 4, r"tokens \[5, 4\) do not fit"),
        ([0, 6], 0, 4, "leaves the pool's blocks 0 .. 5"),
        ([-1], 0, 4, "leaves the pool's blocks 0 .. 5"),
    ],
)
def test_a_block_table_that_cannot_hold_the_tokens_is_refused(library, table, start, stop, message):
    with pytest.raises(ValueError, match=message):
        new_pool(library).slots(table, start, stop)


WRONG_WRITES = {
    "a slot below 0": ([3, -1], {}, "slot -1 is not in the pool"),
    "a slot behind the last": ([3, 24], {}, r"slot 24 is not in the pool \(0 .. 23\)"),
    "a slot far away": ([3, 2**62], {}, "is not in the pool"),
    "a slot twice": ([5, 5], {}, "slot 5 would be written twice"),
    "a slot that is no integer": ([3, 4.5], {}, "dtype float64, expected one dimension of integers"),
    "slots in two dimensions": ([[3], [4]], {}, "expected one dimension of integers"),
    "too few keys": ([3, 4], {"k": (1, KV_HEADS, HEAD_DIM)}, "k has shape"),
    "too many keys": ([3, 4], {"k": (3, KV_HEADS, HEAD_DIM)}, "k has shape"),
    "too few values": ([3, 4], {"v": (1, KV_HEADS, HEAD_DIM)}, "v has shape"),
    "heads of another model": ([3, 4], {"v": (2, KV_HEADS + 1, HEAD_DIM)}, "v has shape"),
    "one head, which would be repeated": ([3, 4], {"k": (2, 1, HEAD_DIM)}, "k has shape"),
    "no head axis": ([3, 4], {"v": (2, HEAD_DIM)}, "v has shape"),
}


@pytest.mark.parametrize("wrong", WRONG_WRITES)
def test_a_refused_write_leaves_every_byte_of_the_pool_as_it_was(library, wrong):
    slots, shapes, message = WRONG_WRITES[wrong]
    pool = new_pool(library)
    pool.write(0, np.array([3, 4]), *token_kv(library, 1, [0, 1], 0))
    before = bytes_of(pool)
    right = (2, KV_HEADS, HEAD_DIM)
    k, v = (array_of(library, np.ones(shapes.get(name, right), np.float32)) for name in ("k", "v"))
    with pytest.raises(ValueError, match=message):
        pool.write(0, np.array(slots), k, v)
    assert bytes_of(pool) == before


def test_a_layer_that_the_pool_has_not_is_refused(library):
    pool = new_pool(library)
    before = bytes_of(pool)
    with pytest.raises((ValueError, IndexError)):
        pool.write(LAYERS, np.array([3]), *token_kv(library, 1, [0], 0))
    assert bytes_of(pool) == before


def test_writing_no_token_changes_nothing(library):
    pool = new_pool(library)
    before = bytes_of(pool)
    pool.write(0, np.array([], dtype=np.int64), *token_kv(library, 1, [], 0))
    assert bytes_of(pool) == before


def test_a_gather_follows_the_order_it_is_asked_for_and_is_a_copy(library):
    pool = new_pool(library)
    pool.write(1, np.arange(8), *token_kv(library, 0, range(8), 1))
    k, v = pool.gather(1, np.array([6, 0, 6, 3]))
    want_k, want_v = token_kv("numpy", 0, [6, 0, 6, 3], 1)
    assert np.array_equal(to_numpy(k), want_k) and np.array_equal(to_numpy(v), want_v)
    before = bytes_of(pool)
    k[...], v[...] = 7, 7
    assert bytes_of(pool) == before


@pytest.mark.parametrize("slot", [-1, 24, 2**40])
def test_a_gather_outside_the_pool_is_refused_and_never_wraps_around(library, slot):
    pool = new_pool(library, fill=0)
    with pytest.raises(ValueError, match=f"slot {slot} is not in the pool"):
        pool.gather(0, np.array([3, slot]))


@pytest.mark.parametrize("block_size", [1, 4])
def test_a_copied_block_holds_the_same_tokens_in_every_layer_and_no_other_block_changes(library, block_size):
    pool = new_pool(library, block_size=block_size, fill=0)
    for layer in range(LAYERS):
        pool.write(layer, np.arange(pool.num_slots), *token_kv(library, 0, range(pool.num_slots), layer))
    before = {name: to_numpy(getattr(pool, name)).copy() for name in ("k", "v")}
    pool.copy_block(1, 4)
    for name, old in before.items():
        new = to_numpy(getattr(pool, name))
        block = lambda x, n: x[:, n * block_size : (n + 1) * block_size]  # noqa: E731
        assert np.array_equal(block(new, 4), block(old, 1))
        for other in (0, 1, 2, 3, 5):
            assert np.array_equal(block(new, other), block(old, other))


@pytest.mark.parametrize("source, target", [(-1, 2), (6, 2), (2, -1), (2, 6)])
def test_a_block_that_the_pool_has_not_is_neither_copied_nor_copied_over(library, source, target):
    pool = new_pool(library)
    pool.write(0, np.arange(8, 12), *token_kv(library, 1, range(4), 0))
    before = bytes_of(pool)
    with pytest.raises(ValueError, match="blocks 0 .. 5"):
        pool.copy_block(source, target)
    assert bytes_of(pool) == before


@pytest.mark.parametrize("num_blocks, block_size", [(0, 4), (4, 0), (-1, 4), (4, -2)])
def test_a_pool_without_room_is_refused(library, num_blocks, block_size):
    with pytest.raises(ValueError, match="both must be at least 1"):
        new_pool(library, num_blocks, block_size)


def test_unwritten_slots_hold_the_fill_so_that_reading_one_is_seen(library):
    assert np.isnan(to_numpy(new_pool(library).k)).all() and np.isnan(to_numpy(new_pool(library).v)).all()
    assert (to_numpy(new_pool(library, fill=-5.0).v) == -5).all()
