"""The manager over the hash table: hits of requests, blocks allocated for them, and blocks published."""

from types import SimpleNamespace

import pytest

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex


def request(token_ids, salt="", read_cache=True):
    return SimpleNamespace(
        token_ids=list(token_ids), num_tokens=len(token_ids), block_hashes=[], block_table=[], read_cache=read_cache,
        keys=(("salt", salt),) if salt else (),
    )  # fmt: skip


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


def test_without_a_prefix_cache_freed_blocks_go_where_uncached_ones_do():
    """vLLM 0.33, executed: block 4, 3 blocks, a request of 5 tokens: free order [2, 1, 3] once it is done."""
    for uncached_first, free_order in ((True, [2, 1, 3]), (False, [3, 2, 1])):
        cache = CacheManager(3, 4, None, uncached_first=uncached_first)
        one = request(range(5))
        cache.allocate(one, 5)
        cache.release(one)
        assert cache.allocator.free_order == free_order


def test_hits_are_counted_in_tokens():
    cache = CacheManager(4, 2, PrefixIndex())
    cache.stats.count(10, 4)
    cache.stats.count(10, 0)
    assert (cache.stats.num_lookups, cache.stats.num_hits, cache.stats.hit_rate) == (2, 1, 0.2)
    assert CacheManager(1, 1).stats.hit_rate == 0.0


def test_version_grows_when_a_block_is_published_unpublished_or_evicted_and_else_stays():
    cache = CacheManager(4, 2, PrefixIndex())
    versions = [cache.version]

    def has_grown():
        versions.append(cache.version)
        return versions[-1] > versions[-2]

    first, second = request(range(5)), request([7] * 8)
    assert cache.allocate(first, 5) and not has_grown()
    cache.publish(first, 0, 1)  # no block is full
    assert not has_grown()
    cache.publish(first, 0, 4)
    assert has_grown()
    cache.unpublish(first, 2, 4)
    assert has_grown()
    cache.release(first)
    assert len(cache.match(request(range(5)))) == 1 and not has_grown()
    assert not cache.allocate(second, 10) and not has_grown()
    assert cache.allocate(second, 6) and not has_grown()  # three blocks were free and held nothing
    assert cache.allocate(second, 8) and has_grown()
    assert cache.match(request(range(5))) == []
