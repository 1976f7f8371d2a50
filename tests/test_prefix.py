"""A block is found by all that its KV depends on: its tokens, all tokens before them, and whose they may be."""

import hashlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex, block_hash, extend_hashes, root_hash


def hashes(token_ids, block_size=2, keys=()):
    found: list[bytes] = []
    extend_hashes(found, token_ids, block_size, keys)
    return found


def request(token_ids, salt="", read_cache=True):
    return SimpleNamespace(
        token_ids=list(token_ids), num_tokens=len(token_ids), block_hashes=[], block_table=[], read_cache=read_cache,
        keys=(("salt", salt),) if salt else (),
    )  # fmt: skip


small = st.lists(st.integers(0, 2), max_size=9)


@given(small, small, st.integers(1, 3))
def test_two_blocks_share_a_hash_exactly_when_their_whole_beginnings_are_equal(a, b, block_size):
    for i, ours in enumerate(hashes(a, block_size), 1):
        for j, theirs in enumerate(hashes(b, block_size), 1):
            assert (ours == theirs) == (a[: i * block_size] == b[: j * block_size])


def test_equal_tokens_after_another_beginning_have_another_hash():
    assert hashes([1, 1, 2, 2])[1] != hashes([0, 0, 2, 2])[1]


def test_a_block_at_another_position_has_another_hash():
    assert hashes([1, 1, 1, 1])[0] != hashes([1, 1, 1, 1])[1]


def test_an_adapter_called_like_a_salt_is_not_mistaken_for_it():
    assert root_hash([("salt", "x")]) != root_hash([("adapter", "x")])
    faulty = lambda keys: hashlib.sha256("".join(value for _, value in keys).encode()).digest()  # noqa: E731
    assert faulty([("salt", "x")]) == faulty([("adapter", "x")])  # museum 44: the kind left out


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("salt", "ab")], [("salt", "a"), ("salt", "b")]),
        ([("salt", 'a"], ["salt", "b')], [("salt", "a"), ("salt", "b")]),
        ([], [("salt", "")]),
        ([("a", "b")], [("b", "a")]),
    ],
)
def test_keys_cannot_be_put_together_to_look_like_others(one, other):
    assert root_hash(one) != root_hash(other)


def test_the_order_of_keys_does_not_matter():
    assert root_hash([("a", "1"), ("b", "2")]) == root_hash([("b", "2"), ("a", "1")])


def test_only_full_blocks_are_hashed_and_none_twice():
    known = hashes([1, 2, 3], 2)
    assert len(known) == 1
    first = known[0]
    extend_hashes(known, [1, 2, 3, 4], 2)
    assert len(known) == 2 and known[0] is first and known == hashes([1, 2, 3, 4], 2)


def test_a_hash_covers_large_token_ids_and_the_parent():
    assert block_hash(b"p", [2**40]) != block_hash(b"p", [0]) != block_hash(b"q", [0])


@given(st.lists(st.lists(st.integers(0, 1), max_size=8), max_size=6), st.lists(st.integers(0, 1), max_size=8))
def test_match_finds_the_longest_published_beginning_as_brute_force_does(published, wanted):
    prefix, content, block = PrefixIndex(), {}, 0
    for tokens in published:
        for i, value in enumerate(hashes(tokens)):
            block += 1
            prefix.publish(value, block)
            content[block] = tokens[: 2 * (i + 1)]
    found = prefix.match(hashes(wanted))
    longest = 0
    while longest + 2 <= len(wanted) and wanted[: longest + 2] in content.values():
        longest += 2
    assert len(found) * 2 == longest
    assert [content[b] for b in found] == [wanted[: 2 * (i + 1)] for i in range(len(found))]
    assert found == [min(b for b in content if content[b] == content[f]) for f in found], "the first copy is found"
    prefix.check()


def test_of_two_copies_the_other_is_found_when_the_first_is_forgotten():
    prefix, value = PrefixIndex(), hashes([1, 2])[0]
    prefix.publish(value, 1)
    prefix.publish(value, 2)
    prefix.forget(1)
    assert prefix.match([value]) == [2] and len(prefix) == 1
    prefix.forget(2)
    assert prefix.match([value]) == []
    prefix.check()


def test_a_chain_whose_middle_is_forgotten_is_found_up_to_there():
    prefix = PrefixIndex()
    chain = hashes([1, 2, 3, 4, 5, 6])
    for block, value in enumerate(chain, 1):
        prefix.publish(value, block)
    prefix.forget(2)
    assert prefix.match(chain) == [1]


def test_a_block_is_not_published_as_two_things_nor_forgotten_twice():
    prefix = PrefixIndex()
    prefix.publish(b"a", 1)
    prefix.publish(b"a", 1)
    with pytest.raises(ValueError, match="other content"):
        prefix.publish(b"b", 1)
    prefix.forget(1)
    with pytest.raises(ValueError, match="not published"):
        prefix.forget(1)


@pytest.mark.parametrize("corrupt", [lambda p: p._hashes.pop(1), lambda p: p._blocks.update({b"z": []})])
def test_check_sees_a_corrupted_table(corrupt):
    prefix = PrefixIndex()
    prefix.publish(b"a", 1)
    prefix.check()
    corrupt(prefix)
    with pytest.raises(AssertionError):
        prefix.check()


# --- the manager: hits of requests


@pytest.mark.parametrize(
    ("length", "hit"),
    [(1, 0), (3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8), (13, 12), (20, 12)],
)
def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute(length, hit):
    cache = CacheManager(100, 4, PrefixIndex())
    first = request(range(14))
    assert cache.allocate(first, 14)
    cache.publish(first, 0, 14)  # three full blocks; the fourth is not
    assert len(cache.match(request(range(length)))) * 4 == hit


def test_a_request_that_does_not_read_the_cache_matches_nothing():
    cache = CacheManager(10, 1, PrefixIndex())
    first = request([1, 2])
    cache.allocate(first, 2)
    cache.publish(first, 0, 2)
    assert cache.match(request([1, 2], read_cache=False)) == []
    assert cache.match(request([1, 2])) == [1]


def test_hit_blocks_that_are_free_count_as_used():
    cache = CacheManager(4, 1, PrefixIndex())
    first = request([1, 2, 3])
    cache.allocate(first, 3)
    cache.publish(first, 0, 3)
    cache.release(first)
    second = request([1, 2, 3, 4, 5])
    hit = cache.match(second)
    assert len(hit) == 3 and cache.num_free == 4
    assert not cache.allocate(second, 5, hit=hit), "3 free blocks revived and 2 new ones are 5, and there are 4"
    assert second.block_table == [] and cache.num_free == 4
    assert cache.allocate(second, 4, hit=hit) and second.block_table[:3] == hit


def test_room_is_asked_for_without_being_taken():
    cache = CacheManager(4, 2, PrefixIndex())
    first = request(range(8))
    assert not cache.allocate(first, 2, room_for=9)
    assert cache.allocate(first, 2, room_for=8) and len(first.block_table) == 1


def test_what_is_unpublished_is_found_no_more():
    cache = CacheManager(4, 2, PrefixIndex())
    first = request(range(4))
    cache.allocate(first, 4)
    cache.publish(first, 0, 3)
    cache.publish(first, 3, 4)
    assert len(cache.match(request(range(5)))) == 2
    cache.unpublish(first, 3, 4)
    assert len(cache.match(request(range(5)))) == 1
    cache.check([first])


def test_hits_are_counted_in_tokens():
    cache = CacheManager(4, 2, PrefixIndex())
    cache.stats.count(10, 4)
    cache.stats.count(10, 0)
    assert (cache.stats.num_lookups, cache.stats.num_hits, cache.stats.hit_rate) == (2, 1, 0.2)
    assert CacheManager(1, 1).stats.hit_rate == 0.0
