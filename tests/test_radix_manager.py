"""The manager over the radix tree: each block is free, in the tree, or private to one request."""

import pytest

from course_lib.cache.radix_manager import RadixManager
from course_lib.schedule.request import Request


def request(id, num_tokens=8, **more):
    """Tokens 0, 1, 2, ...: all requests begin alike."""
    return Request(id, list(range(num_tokens)), **more)


def other(id, num_tokens=8):
    """Tokens that no request() has."""
    return Request(id, list(range(100, 100 + num_tokens)))


def compute(cache, *requests):
    """Allocate and publish all tokens of each; returns the last."""
    for each in requests:
        assert cache.allocate(each, each.num_tokens, hit=cache.match(each))
        cache.publish(each, 0, each.num_tokens)
    return requests[-1]


@pytest.mark.parametrize(("length", "hit"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3), (20, 3)])
def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute(length, hit):
    cache = RadixManager(100, 4)
    compute(cache, request(0, 14))
    assert cache.match(request(1, length)) == [1, 2, 3][:hit]


def test_a_request_of_another_salt_or_that_reads_no_cache_matches_nothing():
    cache = RadixManager(10, 2)
    compute(cache, request(0, salt="a"))
    assert len(cache.match(request(1, 9, salt="a"))) == 4
    assert cache.match(request(2, 9)) == cache.match(request(3, 9, salt="a", read_cache=False)) == []


def test_two_salts_keep_the_same_tokens_in_blocks_that_they_do_not_share():
    cache = RadixManager(10, 2)
    a, b = compute(cache, request(0, salt="a")), compute(cache, request(1, salt="b"))
    assert (a.block_table, b.block_table) == ([1, 2, 3, 4], [5, 6, 7, 8])
    cache.check([a, b])


def test_a_hit_is_attached_first_and_only_the_rest_is_new():
    cache = RadixManager(10, 2)
    first = compute(cache, request(0, salt="a"))
    second = request(1, 11, salt="a")
    assert cache.allocate(second, 11, hit=cache.match(second))
    assert second.block_table == [*first.block_table, 5, 6]
    assert cache.num_free == 4
    cache.check([first, second])


def test_blocks_that_a_request_has_already_are_enough():
    cache = RadixManager(3, 4)
    first = request(0, 12)
    assert cache.allocate(first, 9) and cache.allocate(first, 12) and cache.allocate(first, 1)
    assert first.block_table == [1, 2, 3]


def test_a_refused_request_leaves_nothing_allocated_or_locked():
    cache = RadixManager(6, 2)
    first = compute(cache, request(0))
    second = request(1, 14)
    assert not cache.allocate(second, 14, hit=cache.match(second))  # 3 more blocks, and 2 are free
    assert second.block_table == []
    cache.check([first])
    cache.release(first)
    assert cache.num_free == 6


def test_a_running_request_that_is_refused_more_keeps_what_it_has():
    cache = RadixManager(4, 2)
    first = compute(cache, request(0))
    assert not cache.allocate(first, 9)
    assert first.block_table == [1, 2, 3, 4]
    assert cache.tree.protected == 8
    cache.check([first])


def test_room_is_asked_for_without_being_taken():
    cache = RadixManager(4, 2)
    first = request(0)
    assert not cache.allocate(first, 2, room_for=9)
    assert cache.allocate(first, 2, room_for=8) and first.block_table == [1]


def test_what_was_hit_counts_as_room():
    cache = RadixManager(4, 2)
    compute(cache, request(0, 6))
    second = request(1)
    assert cache.allocate(second, 7, hit=cache.match(second), room_for=8)


def test_a_request_does_not_evict_its_own_hit():
    cache = RadixManager(4, 2)
    cache.release(compute(cache, request(0, 6)))
    second = request(1, 9)
    hit = cache.match(second)
    assert len(hit) == 3 and cache.num_free == 4
    assert not cache.allocate(second, 9, hit=hit), "1 block is free, 2 are needed, and the other 3 are its hit"
    assert cache.allocate(second, 8, hit=hit) and second.block_table == [1, 2, 3, 4]


def test_free_blocks_go_first_and_then_leaves_are_evicted_until_there_are_enough():
    cache = RadixManager(6, 2)
    for each in (request(0, 4), other(1, 4)):
        cache.release(compute(cache, each))
    third = Request(2, [50] * 6)
    assert cache.num_free == 6
    assert cache.allocate(third, 6)
    assert third.block_table == [5, 6, 2]  # of the least recently used leaf, the tail first
    assert len(cache.match(request(3, 5))) == 0 and len(cache.match(other(4, 5))) == 2
    cache.check([third])


def test_as_many_leaves_are_evicted_as_are_needed():
    cache = RadixManager(4, 2)
    for each in (request(0, 2), other(1, 2)):
        cache.release(compute(cache, each))
    third = Request(2, [50] * 8)
    assert cache.allocate(third, 8) and third.block_table == [3, 4, 1, 2]


def test_nothing_is_published_before_a_block_is_full():
    cache = RadixManager(4, 4)
    first = request(0)
    cache.allocate(first, 8)
    cache.publish(first, 0, 3)
    cache.publish(first, 5, 7)  # tokens of the second block alone, which is not full
    assert cache.tree.rows() == []
    cache.publish(first, 0, 7)
    assert cache.tree.rows() == [(0, [0, 1, 2, 3], 4, 1)]
    cache.publish(first, 7, 8)
    assert cache.tree.evictable + cache.tree.protected == 8


def test_of_two_requests_that_computed_the_same_the_second_gets_the_blocks_of_the_first():
    cache = RadixManager(9, 2)
    first, second = request(0), request(1)
    assert cache.allocate(first, 8) and cache.allocate(second, 8)
    cache.publish(first, 0, 8)
    cache.publish(second, 0, 8)
    assert first.block_table == second.block_table == [1, 2, 3, 4]
    assert cache.num_free == 5
    cache.check([first, second])
    third = other(2, 10)
    assert cache.allocate(third, 10) and third.block_table == [9, 5, 6, 7, 8]  # the copies, after what was free


def test_a_released_request_leaves_its_full_blocks_in_the_tree_and_frees_the_rest_tail_first():
    cache = RadixManager(8, 2)
    first = request(0)
    cache.allocate(first, 12)
    cache.publish(first, 0, 3)
    cache.publish(first, 3, 5)
    cache.release(first)
    assert first.block_table == [] and cache.num_free == 8
    assert cache.match(request(1)) == [1, 2]
    second = other(2, 12)
    assert cache.allocate(second, 12) and second.block_table == [7, 8, 6, 5, 4, 3]
    cache.check([second])


def test_blocks_are_locked_until_the_last_request_that_holds_them_is_released():
    cache = RadixManager(4, 2)
    first, second = request(0), request(1)
    compute(cache, first)
    cache.allocate(second, 6, hit=cache.match(second))
    assert cache.num_free == 0
    cache.release(first)
    assert cache.num_free == 1  # the last block: the second request holds the other three
    cache.release(second)
    assert cache.num_free == 4


def test_a_request_without_blocks_can_be_released():
    cache = RadixManager(4, 2)
    waiting = request(0)
    cache.release(waiting)
    assert waiting.block_table == [] and cache.num_free == 4


def test_look_ups_are_counted_in_tokens_and_only_of_requests_that_read_the_cache():
    cache = RadixManager(4, 2)
    cache.count_lookup(request(0, 10, num_cached=4))
    cache.count_lookup(request(1, 10, read_cache=False))
    stats = cache.stats
    assert (stats.num_lookups, stats.num_hits, stats.tokens_wanted, stats.tokens_hit) == (1, 1, 10, 4)


def test_reset_frees_everything_whatever_was_held():
    cache = RadixManager(4, 2)
    compute(cache, request(0, 6))
    cache.reset()
    cache.check([])
    assert cache.match(request(1)) == [] and cache.num_free == 4
    again = other(2)
    assert cache.allocate(again, 8) and again.block_table == [1, 2, 3, 4]


def test_version_grows_when_blocks_are_published_or_evicted_and_else_stays():
    cache = RadixManager(4, 2)
    versions = [cache.version]

    def has_grown():
        versions.append(cache.version)
        return versions[-1] > versions[-2]

    first, second = request(0, 5), other(1)
    assert cache.allocate(first, 5) and not has_grown()
    cache.publish(first, 0, 1)  # no block is full
    assert not has_grown()
    cache.publish(first, 1, 4)
    assert has_grown()
    cache.release(first)
    assert len(cache.match(request(2))) == 2 and not has_grown()
    assert not cache.allocate(second, 10) and not has_grown()
    assert cache.allocate(second, 4) and not has_grown()  # two blocks were free
    assert cache.allocate(second, 6) and has_grown()
    assert cache.match(request(2)) == []


def test_a_manager_has_at_least_one_block():
    with pytest.raises(ValueError, match="num_blocks=0; at least 1"):
        RadixManager(0, 2)
    assert RadixManager(1, 2).num_free == 1


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("cache.tree.protected += 2", "tokens counted"),
        ("cache.release(first)", "hold locks"),
        ("running.append(request(1))", "hold locks"),
        ("cache._free.append(first.block_table[-1])", "twice"),
        ("cache._free[0] = cache._free[1]", "twice"),
        ("cache._free.pop()", "lost"),
        ("first.block_table.pop()", "lost"),
        ("cache._free.append(first.block_table.pop()); first.block_table.pop()", "4 cached of"),
        ("cache.tree.unlock(cache._locked[0][0])", "4 cached of"),
    ],
)
def test_check_sees_what_does_not_add_up(damage, complaint):
    cache = RadixManager(9, 2)
    first = request(0)
    running = [first]
    cache.allocate(first, 9)
    cache.publish(first, 0, 8)
    cache.check(running)
    exec(damage, {"request": request}, {"cache": cache, "first": first, "running": running})
    with pytest.raises(AssertionError, match=complaint):
        cache.check(running)
