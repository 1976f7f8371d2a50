"""Blocks are allocated, shared and released, and none is ever lost, allocated twice or freed twice."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cache.allocator import BlockAllocator
from course_lib.cache.prefix import PrefixIndex


def allocator_with(count: int, size: int, cached: int, **rules) -> tuple[BlockAllocator, PrefixIndex, list[int]]:
    """An allocator that has allocated `count` of `size` blocks, the first `cached` of which are published."""
    prefix = PrefixIndex()
    allocator = BlockAllocator(size, prefix, **rules)
    table = allocator.allocate(count)
    for block in table[:cached]:
        prefix.publish(bytes([block]), block)
    return allocator, prefix, table


def test_blocks_are_allocated_in_order_from_1_and_block_0_never():
    allocator = BlockAllocator(4)
    assert [allocator.allocate(3), allocator.num_free] == [[1, 2, 3], 1]
    assert allocator.free_order == [4]
    allocator.check([[1, 2, 3]])


@pytest.mark.parametrize(("count", "free"), [(0, 3), (3, 0)])
def test_all_that_is_free_can_be_allocated(count, free):
    allocator = BlockAllocator(3)
    assert len(allocator.allocate(count)) == count and allocator.num_free == free


def test_one_block_more_than_is_free_allocates_nothing():
    allocator = BlockAllocator(3)
    assert allocator.allocate(4) is None
    assert allocator.num_free == 3


def test_the_tail_is_allocated_again_before_the_head():
    allocator = BlockAllocator(3)
    allocator.release(allocator.allocate(3))
    assert allocator.free_order == [3, 2, 1]


def test_uncached_blocks_are_allocated_before_cached_ones_as_a_group_in_freed_order():
    allocator, _, table = allocator_with(4, 6, cached=2)
    allocator.release(table)  # freed 4, 3, 2, 1; 4 and 3 are not cached
    assert allocator.free_order == [4, 3, 5, 6, 2, 1]


def test_all_freed_blocks_can_go_to_the_back():
    allocator, _, table = allocator_with(4, 6, cached=2, uncached_first=False)
    allocator.release(table)
    assert allocator.free_order == [5, 6, 4, 3, 2, 1]


def test_a_free_cached_block_is_revived_by_touch_and_stays_cached():
    allocator, prefix, table = allocator_with(1, 2, cached=1)
    allocator.release(table)
    assert allocator.is_free(1)
    allocator.touch([1])
    assert not allocator.is_free(1) and 1 in prefix and allocator.refs[1] == 1
    allocator.check([[1]])


def test_a_shared_block_is_free_only_when_its_last_holder_is_gone():
    allocator = BlockAllocator(2)
    allocator.allocate(1)
    allocator.touch([1])
    allocator.release([1])
    assert allocator.num_free == 1
    allocator.release([1])
    assert allocator.num_free == 2


def test_a_cached_block_is_forgotten_only_when_it_is_allocated_to_a_new_owner():
    allocator, prefix, table = allocator_with(1, 2, cached=1)
    allocator.release(table)
    assert 1 in prefix
    assert allocator.allocate(1) == [2] and 1 in prefix
    assert allocator.allocate(1) == [1] and 1 not in prefix


@pytest.mark.parametrize("blocks", [[1, 2, 1], [3], [0], [-1], [5]])
def test_what_is_not_held_cannot_be_released_and_nothing_changes(blocks):
    allocator = BlockAllocator(4)
    allocator.allocate(2)
    before = (list(allocator.refs), allocator.free_order)
    with pytest.raises(ValueError, match="released|no block"):
        allocator.release(blocks)
    assert (list(allocator.refs), allocator.free_order) == before


@pytest.mark.parametrize("make", [lambda: BlockAllocator(0), lambda: BlockAllocator(2).allocate(-1)])
def test_impossible_sizes_are_refused(make):
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda a: a.refs.__setitem__(4, 1),  # free and held
        lambda a: a._free.pop(4),  # lost
        lambda a: a.refs.__setitem__(1, 2),  # counted once too often
        lambda a: a.refs.__setitem__(0, 1),  # the null block is held
        lambda a: a.refs.__setitem__(2, -1),
    ],
)
def test_check_sees_a_corrupted_state(corrupt):
    allocator = BlockAllocator(4)
    table = allocator.allocate(3)
    allocator.check([table])
    corrupt(allocator)
    with pytest.raises(AssertionError):
        allocator.check([table])


@given(st.lists(st.tuples(st.sampled_from(("allocate", "touch", "release")), st.integers(0, 9)), max_size=60))
def test_any_sequence_of_calls_keeps_the_identity_and_the_order_of_a_plain_list(calls):
    """Against a list of free blocks and a Counter, the slow and obvious way."""
    allocator, free, holders, tables = BlockAllocator(6), list(range(1, 7)), Counter(), []
    for kind, number in calls:
        if kind == "allocate":
            blocks = allocator.allocate(number)
            assert (blocks is None) == (number > len(free))
            if blocks is not None:
                assert blocks == free[:number]
                del free[:number]
                tables.append(blocks)
                holders.update(blocks)
        elif tables:
            table = tables[number % len(tables)]
            if kind == "touch":
                allocator.touch(table)
                tables.append(list(table))
                holders.update(table)
            else:
                tables.remove(table)
                allocator.release(table)
                holders.subtract(table)
                free[:0] = [block for block in reversed(table) if holders[block] == 0]  # none of them is cached
        assert allocator.free_order == free
        allocator.check(tables)
