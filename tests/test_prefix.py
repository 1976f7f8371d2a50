"""A block is found by all that its KV depends on: its tokens, all tokens before them, and whose they may be."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cache.prefix import PrefixIndex, block_hash, extend_hashes, root_hash


def hashes(token_ids, block_size=2, keys=()):
    found: list[bytes] = []
    extend_hashes(found, token_ids, block_size, keys)
    return found


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
