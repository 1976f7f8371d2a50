"""The radix tree does what SGLang's own did, keeps to whole blocks and refuses wrong use.

That it answers as it should whatever is asked of it, in any order, is in test_radix_oracle.py.
"""

import json
from pathlib import Path

import pytest

from course_lib.cache.radix import RadixCache as Tree

SALT = (("salt", "s"),)


def tree_of(tokens, size=1, first_block=0):
    """A tree that holds `tokens` in the blocks first_block, first_block + 1, ..."""
    tree = Tree(size)
    tree.insert(list(tokens), range(first_block, first_block + len(tokens) // size))
    return tree


def three_blocks():
    """Tokens 10 .. 21 in blocks 0, 1, 2."""
    return tree_of(range(10, 22), size=4)


def hit(tree, tokens, keys=()):
    found = tree.match(list(tokens), keys)
    tree.check()
    return found.num_tokens, found.blocks


# ---- SGLang's own results

CASES = json.loads((Path(__file__).parent / "data" / "radix.json").read_text("utf-8"))["cases"]
CHUNK_KINDS = {"S09", "S10", "S11", "S12"}  # how SGLang cuts chunks: test_plan.py


def kind(case):
    return case["id"].partition("_")[0]


def tokens_of(text):
    """The tokens that the file writes as "0..4999 + 40000..40004"."""
    runs = [map(int, run.split("..")) for run in text.split("+")]
    return [token for first, last in runs for token in range(first, last + 1)]


def heads(tree):
    """Rows as the file has them: the first 6 tokens of a node, and its length."""
    return [[depth, tokens[:6], length, lock] for depth, tokens, length, lock in tree.rows()]


def hit_below_a_limit(given):
    tree = tree_of(tokens_of(given["inserted"]), given["page_size"])
    num_tokens, blocks = hit(tree, tokens_of(given["lookup"])[: given["limit"]])
    assert blocks == list(range(num_tokens // given["page_size"]))
    return num_tokens


def cut(given):
    (tokens,) = given["inserted"]
    tree = tree_of(tokens)
    return {"before": heads(tree), "hit": hit(tree, given["lookup"])[0], "after": heads(tree)}


def partly_filled_block(given):
    tokens = tokens_of(given["inserted"])
    tree = tree_of(tokens, given["page_size"])
    return {"nodes": heads(tree), "hit": hit(tree, tokens)[0]}


def lock_and_evict(given):
    assert given["ops"] == [
        "insert 1..6", "match 1,2,3,9 -> splits", "inc_lock_ref(node 1,2,3)", "evict 100", "dec_lock_ref", "evict 100",
    ]  # fmt: skip
    tree = tree_of(range(1, 7))
    node = tree.match([1, 2, 3, 9]).node
    tree.lock(node)
    sizes = [tree.evictable, tree.protected]
    locked = {"sizes_after_lock": sizes, "evicted": len(tree.evict(100)), "left": heads(tree)}
    tree.unlock(node)
    return [locked, {"evicted": len(tree.evict(100)), "left": heads(tree)}]


def namespaces(given):
    assert given["inserted"] == ["1,2,3 extra_key=loraA", "1,2,3 cache_salt=s1"]
    tree, tokens = Tree(), [1, 2, 3]
    tree.insert(tokens, [0, 1, 2], keys=[("adapter", "loraA")])
    tree.insert(tokens, [3, 4, 5], keys=[("salt", "s1")])
    lookups = {
        "same_lora": [("adapter", "loraA")], "base": [], "other_lora": [("adapter", "loraB")],
        "salt1": [("salt", "s1")], "salt2": [("salt", "s2")], "lora_named_like_salt": [("adapter", "s1")],
    }  # fmt: skip
    return {name: hit(tree, tokens, keys)[0] for name, keys in lookups.items()}


RUN = {
    "S01": hit_below_a_limit, "S02": hit_below_a_limit, "S03": cut, "S04": partly_filled_block,
    "S06": lock_and_evict, "S07": namespaces,
}  # fmt: skip


@pytest.mark.parametrize("case", [c for c in CASES if kind(c) in RUN], ids=lambda case: case["id"])
def test_the_tree_does_what_sglang_did(case):
    assert RUN[kind(case)](case["input"]) == case["expected"]["value"]


def test_no_kind_of_case_is_dropped_silently():
    assert {kind(case) for case in CASES} == RUN.keys() | CHUNK_KINDS
    assert len(CASES) == 17


# ---- edges


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0), (3, 0), (4, 4), (5, 4), (7, 4), (8, 8), (11, 8), (12, 12), (13, 12)]
)
def test_a_prompt_that_begins_alike_hits_its_whole_blocks(length, expected):
    assert hit(three_blocks(), range(10, 10 + length)) == (expected, list(range(expected // 4)))


@pytest.mark.parametrize(("differs", "expected"), [(0, 0), (1, 0), (3, 0), (4, 4), (5, 4), (7, 4), (8, 8), (11, 8)])
def test_a_prompt_hits_to_the_end_of_the_block_before_the_first_other_token(differs, expected):
    tree, tokens, shared = three_blocks(), list(range(10, 22)), [*range(expected // 4)]
    tokens[differs] = 99
    table = [*shared, 7, 8, 9][:3]
    assert hit(tree, tokens) == (expected, shared)
    assert tree.insert(tokens, table) == expected
    assert hit(tree, tokens) == (12, table)
    assert hit(tree, range(10, 22)) == (12, [0, 1, 2])


def test_an_empty_tree_answers_everything():
    tree = Tree(4)
    assert hit(tree, []) == hit(tree, range(100)) == (0, [])
    assert (tree.insert([], []), tree.insert([1, 2, 3], [])) == (0, 0)
    assert (tree.evict(0), tree.evict(9), tree.rows()) == ([], [], [])
    assert (tree.evictable, tree.protected) == (0, 0)
    tree.check()


def test_a_partly_filled_block_stays_the_requests():
    tree = Tree(4)
    assert tree.insert(range(10), [5, 6, 7]) == 0
    assert tree.rows() == [(0, list(range(8)), 8, 0)]
    assert tree.evict(100) == [6, 5]


def test_the_tree_keeps_its_own_blocks_and_says_how_many_tokens_are_duplicates():
    tree = three_blocks()
    assert tree.insert(range(10, 26), [20, 21, 22, 23]) == 12  # the same 12 tokens computed again, and 4 more
    assert hit(tree, range(10, 26)) == (16, [0, 1, 2, 23])
    assert tree.evictable == 16


def test_kinds_and_values_separate_and_the_order_of_keys_does_not():
    tree, salt, adapter = Tree(), ("salt", "a"), ("adapter", "b")
    tree.insert([1, 2], [0, 1], (salt, adapter))
    assert hit(tree, [1, 2], (salt, adapter)) == hit(tree, [1, 2], [adapter, salt]) == (2, [0, 1])
    assert tree.insert([1, 2], [0, 1], (adapter, salt)) == 2
    for other in [(), (salt,), (adapter,), (("salt", "b"), ("adapter", "a")), (salt, salt)]:
        assert hit(tree, [1, 2], other) == (0, [])


# ---- eviction and locks


def test_a_whole_leaf_goes_and_then_its_parent_may_go():
    tree = tree_of([1, 2, 3, 4, 5, 6])
    tree.insert([1, 2, 3, 7, 8], [0, 1, 2, 7, 8])
    assert tree.rows() == [(0, [1, 2, 3], 3, 0), (1, [4, 5, 6], 3, 0), (1, [7, 8], 2, 0)]
    assert tree.evict(1) == [5, 4, 3]  # asked for 1, the leaf has 3; the tail comes first
    assert tree.evict(3) == [8, 7, 2, 1, 0]  # 2 are not enough: the parent has no child left, and goes whole
    assert tree.rows() == []


def test_the_least_recently_used_leaf_goes_first_and_a_match_counts_as_use():
    tree = Tree()
    for start in (10, 20, 30):
        tree.insert(range(start, start + 4), range(start, start + 4))
    tree.match([10])  # only token 10: the rest of that prompt stays the oldest
    tree.match([20, 21, 22, 23])
    assert [tree.evict(1) for _ in range(4)] == [[13, 12, 11], [33, 32, 31, 30], [10], [23, 22, 21, 20]]


def test_a_locked_path_stays_whole_when_a_later_match_cuts_it():
    tree = tree_of(range(6))
    node = tree.match([0, 1, 2, 3]).node
    tree.lock(node)
    tree.match([0, 1, 9])  # cuts the locked node
    assert tree.rows() == [(0, [0, 1], 2, 1), (1, [2, 3], 2, 1), (2, [4, 5], 2, 0)]
    assert tree.evict(100) == [5, 4]
    assert (tree.evictable, tree.protected) == (0, 4)
    tree.unlock(node)
    assert (tree.evictable, tree.protected) == (4, 0)
    assert tree.evict(100) == [3, 2, 1, 0]


def test_a_lock_on_no_match_holds_nothing_and_is_unlocked_once_like_any_other():
    tree = three_blocks()
    nothing = tree.match([1, 2, 3, 4]).node
    tree.lock(nothing)
    assert (tree.evictable, tree.protected) == (12, 0)
    assert tree.evict(12) == [2, 1, 0]
    tree.unlock(nothing)
    with pytest.raises(ValueError, match="not locked"):
        tree.unlock(nothing)


# ---- wrong use


def state(tree):
    """All of it: rows, blocks, times, counts."""
    nodes = [(depth, n.tokens, n.blocks, n.edge, n.used, n.lock, list(n.children)) for depth, n in tree._nodes()]
    return nodes, set(tree._held), tree.protected, tree._clock


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda tree: tree.evict(-1), "num_tokens=-1"),
        (lambda tree: tree.insert(range(10, 26), [0, 1, 2]), "3 blocks for 16 tokens, not 4"),
        (lambda tree: tree.insert(range(40, 48), []), "0 blocks for 8 tokens"),
        (lambda tree: tree.insert(range(40, 48), [5, 5]), "repeats a block"),
        (lambda tree: tree.insert(range(40, 48), [5, 2]), "block 2 already holds other tokens"),
        (lambda tree: tree.insert([*range(10, 14), *range(40, 44)], [1, 5]), "block 1 already holds other tokens"),
        (lambda tree: tree.insert([*range(10, 14), *range(40, 44)], [0, 1]), "block 1 already holds other tokens"),
        (lambda tree: tree.insert(range(10, 22), [0, 2, 1]), "block 2 already holds other tokens"),
        (lambda tree: tree.insert(range(10, 22), [0, 1, 2], SALT), "block 0 already holds other tokens"),
        (lambda tree: tree.insert(range(40, 44), [5], ("salt", "s")), "expected .kind, value. pairs"),
        (lambda tree: tree.match(range(10, 18), ("salt", "s")), "expected .kind, value. pairs"),
        (lambda tree: tree.match(range(10, 18), ("ab",)), "expected .kind, value. pairs"),
        (lambda tree: tree.match(range(10, 18), (("salt",),)), "expected .kind, value. pairs"),
        (lambda tree: tree.unlock(tree._root.children[(), (10, 11, 12, 13)]), "not locked .0 locks"),
        (lambda tree: tree.unlock(tree._root), "not locked .1 locks"),
        (lambda tree: tree.lock(None), "not in the tree"),
        (lambda tree: tree.lock(three_blocks().match(range(10, 22)).node), "not in the tree"),
        (lambda tree: tree.unlock(three_blocks().match(range(10, 22)).node), "not in the tree"),
    ],
)
def test_wrong_use_is_refused_and_changes_nothing(use, message):
    tree = three_blocks()
    tree.insert(range(60, 68), [8, 9])
    tree.lock(tree.match(range(60, 68)).node)
    before = state(tree)
    with pytest.raises(ValueError, match=message):
        use(tree)
    assert state(tree) == before


def test_only_a_node_that_was_locked_itself_can_be_unlocked():
    tree = three_blocks()
    lower, upper = tree.match(range(10, 22)).node, tree.match(range(10, 18)).node
    tree.lock(lower)
    before = state(tree)
    with pytest.raises(ValueError, match="1 locks are further down"):
        tree.unlock(upper)  # its count of 1 belongs to `lower`, which would stand on an unlocked parent
    assert state(tree) == before
    tree.unlock(lower)
    with pytest.raises(ValueError, match="not locked"):
        tree.unlock(lower)


def test_a_node_that_was_evicted_can_no_longer_be_locked():
    tree = three_blocks()
    node = tree.match(range(10, 22)).node
    tree.evict(1)
    tree.insert(range(10, 22), [0, 1, 2])  # the same tokens again, in another node
    with pytest.raises(ValueError, match="evicted since"):
        tree.lock(node)
    assert tree.protected == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_holds_at_least_one_token(size):
    with pytest.raises(ValueError, match="at least 1 token"):
        Tree(size)


# ---- size


def test_a_chain_of_7000_nodes_is_walked_without_recursion():
    length = 7000
    tree = tree_of(range(length))
    end = tree.match(range(length)).node
    for at in range(length - 1, 0, -1):  # from the end, so that each cut walks one node; as _walk finds it
        tree._arrive([tree._root, next(iter(tree._root.children.values()))], at)
    assert len(tree.rows()) == length
    tree.check()
    assert tree.match(range(length)).blocks == list(range(length))
    tree.lock(end)
    assert (tree.protected, tree.evict(1)) == (length, [])
    tree.unlock(end)
    assert tree.evict(length) == list(range(length))[::-1]


@pytest.mark.parametrize("size", [1, 16])
def test_a_long_match_looks_at_each_token_a_few_times(size):
    class Counted(int):
        looks = 0

        def __eq__(self, other):
            Counted.looks += 1
            return int(self) == int(other)

        __hash__ = int.__hash__

    tree = tree_of([Counted(n) for n in range(7000)], size)
    Counted.looks = 0
    assert tree.match([Counted(n) for n in range(7000)]).num_tokens == 7000 // size * size
    assert 0 < Counted.looks <= 3 * 7000


# ---- check() can fail


@pytest.mark.parametrize(
    "damage",
    [
        "lower.blocks = lower.blocks[:-1]",
        "lower.tokens = lower.tokens[:-1]",
        "lower.tokens = (8, *lower.tokens[1:])",
        "upper.blocks, lower.blocks = (10, 11, 12), (13,)",
        "lower.tokens = lower.blocks = (); tree._held -= {12, 13}; tree.protected -= 4; "
        "lower.edge = (), (); upper.children[lower.edge] = upper.children.pop(((), (4, 5)))",
        "tree._root.tokens, tree._root.blocks = (1, 2), (90,); tree._held.add(90); tree.protected += 2",
        "lower.blocks = (*upper.blocks[:1], *lower.blocks[1:])",
        "lower.blocks = (*lower.blocks[:-1], 90)",
        "tree._held.discard(13); lower.blocks = (12, 12)",
        "tree._held.discard(13)",
        "tree._held.add(90)",
        "del upper.children[lower.edge]",
        "upper.children[(), (8, 8)] = upper.children.pop(lower.edge)",
        "lower.edge = (), (8, 8); upper.children[lower.edge] = upper.children.pop(((), (4, 5)))",
        "lower.edge = SALT, (4, 5); upper.children[lower.edge] = upper.children.pop(((), (4, 5)))",
        "lower.edge = (), (8, 8)",
        "lower.parent = tree._root",
        "lower.children[upper.edge], upper.parent = upper, lower",  # a cycle
        "lower.lock += 1",
        "upper.lock = 0",
        "beside.lock = -1",
        "beside.lock += 1; tree.protected += 2",  # no child is locked more often than its parent, but both together
        "tree.protected += 2",
        "lower.used = upper.used + 1",
        "tree._root.used = tree._clock + 1",
    ],
)
def test_check_sees_a_damaged_tree(damage):
    tree = Tree(2)
    tree.insert([0, 1, 2, 3, 4, 5, 6, 7], [10, 11, 12, 13])
    tree.insert([0, 1, 2, 3, 9, 9], [10, 11, 20])
    upper, lower, beside = (tree.match(tokens).node for tokens in (range(4), range(8), [0, 1, 2, 3, 9, 9]))
    tree.lock(lower)
    tree.check()
    assert list(upper.children.values()) == [lower, beside] and lower.blocks == (12, 13)
    exec(damage, {"SALT": SALT}, {"tree": tree, "upper": upper, "lower": lower, "beside": beside})
    with pytest.raises(AssertionError, match="[0-9]"):
        tree.check()
