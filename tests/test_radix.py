"""The radix tree against what SGLang's own did, and against a dict of single blocks that knows no nodes.

`Oracle` holds one entry for each cached block, under the whole prefix that ends with it. `play` runs the same
operations on it and on a tree and compares every answer; wrong trees, below, show that `play` can fail.
"""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.cache.radix import RadixCache

# ---- SGLang's own results


CASES = json.loads((Path(__file__).parent / "data" / "radix.json").read_text("utf-8"))["cases"]
TREE_KINDS = {"S01", "S02", "S03", "S04", "S06", "S07"}
CHUNK_KINDS = {"S09", "S10", "S11", "S12"}  # how SGLang cuts chunks: tests of the scheduling policy, not of the tree


def kind(case):
    return case["id"].partition("_")[0]


def tokens_of(text):
    """The tokens that the file writes as "0..4999 + 40000..40004", or "1,2,3,9"."""
    tokens = []
    for part in re.split(r"[+,]", text):
        first, _, last = part.partition("..")
        tokens += range(int(first), int(last or first) + 1)
    return tokens


def heads(tree):
    """Rows as the file has them: the first 6 tokens of a node, and its length."""
    return [[depth, tokens[:6], length, lock] for depth, tokens, length, lock in tree.rows()]


def a_hit(case):
    """S01, S02: how much of a lookup, cut to a limit, is cached."""
    given_ = case["input"]
    tree = RadixCache(given_["page_size"])
    inserted = tokens_of(given_["inserted"])
    tree.insert(inserted, range(len(inserted)))
    tree.check()
    found = tree.match(tokens_of(given_["lookup"])[: given_["limit"]])
    assert found.blocks == list(range(found.num_tokens // tree.block_size))
    return found.num_tokens, tree


def a_split(case):
    tree = RadixCache()
    (inserted,) = case["input"]["inserted"]
    tree.insert(inserted, range(6))
    before = heads(tree)
    return {"before": before, "hit": tree.match(case["input"]["lookup"]).num_tokens, "after": heads(tree)}, tree


def a_floor(case):
    tree = RadixCache(case["input"]["page_size"])
    inserted = tokens_of(case["input"]["inserted"])
    tree.insert(inserted, [0, 1, 2])
    return {"nodes": heads(tree), "hit": tree.match(inserted).num_tokens}, tree


def a_lock(case):
    insert, match, lock, evict, unlock, evict_again = case["input"]["ops"]
    assert (lock, unlock) == ("inc_lock_ref(node 1,2,3)", "dec_lock_ref")
    assert evict == evict_again == "evict 100"
    tree = RadixCache()
    tree.insert(tokens_of(insert.removeprefix("insert ")), range(6))
    node = tree.match(tokens_of(match.removeprefix("match ").partition(" ")[0])).node
    tree.lock(node)
    sizes = [tree.evictable, tree.protected]
    locked = {"sizes_after_lock": sizes, "evicted": len(tree.evict(100)), "left": heads(tree)}
    tree.unlock(node)
    return [locked, {"evicted": len(tree.evict(100)), "left": heads(tree)}], tree


def namespaces(case):
    assert case["input"]["inserted"] == ["1,2,3 extra_key=loraA", "1,2,3 cache_salt=s1"]
    tree, tokens = RadixCache(), [1, 2, 3]
    tree.insert(tokens, [0, 1, 2], keys=(("adapter", "loraA"),))
    tree.insert(tokens, [3, 4, 5], keys=(("salt", "s1"),))
    lookups = {
        "same_lora": (("adapter", "loraA"),),
        "base": (),
        "other_lora": (("adapter", "loraB"),),
        "salt1": (("salt", "s1"),),
        "salt2": (("salt", "s2"),),
        "lora_named_like_salt": (("adapter", "s1"),),
    }
    return {name: tree.match(tokens, keys).num_tokens for name, keys in lookups.items()}, tree


RUN = {"S01": a_hit, "S02": a_hit, "S03": a_split, "S04": a_floor, "S06": a_lock, "S07": namespaces}


@pytest.mark.parametrize("case", [c for c in CASES if kind(c) in TREE_KINDS], ids=lambda case: case["id"])
def test_the_tree_does_what_sglang_did(case):
    value, tree = RUN[kind(case)](case)
    assert value == case["expected"]["value"]
    tree.check()


def test_no_kind_of_case_is_dropped_silently():
    assert {kind(case) for case in CASES} == TREE_KINDS | CHUNK_KINDS
    assert RUN.keys() == TREE_KINDS
    assert len(CASES) == 17


# ---- any operations, against a dict of blocks


class Oracle:
    """Cached blocks, one entry each, by the whole prefix that a block ends: (keys, tokens)."""

    def __init__(self, size):
        self.size, self.time = size, 0
        self.block, self.used = {}, {}
        self.ends = set()  # prefixes where some match or insert ended: eviction frees back to one of these
        self.locks = []  # prefixes, one entry for each lock

    def prefixes(self, tokens, keys):
        return [(keys, tokens[:n]) for n in range(self.size, len(tokens) + 1, self.size)]

    def known(self, tokens, keys):
        """Cached prefixes of `tokens`, shortest first."""
        return [p for p in self.prefixes(tokens, keys) if p in self.block]

    def match(self, tokens, keys):
        self.time += 1
        found = self.known(tokens, keys)
        self.used.update(dict.fromkeys(found, self.time))
        self.ends.update(found[-1:])
        return found

    def insert(self, tokens, blocks, keys):
        found = self.match(tokens, keys)
        wanted = self.prefixes(tokens, keys)
        for prefix, block in list(zip(wanted, blocks))[len(found) :]:
            self.block[prefix], self.used[prefix] = block, self.time
        self.ends.update(wanted[-1:])
        return len(found) * self.size

    def lock_count(self, prefix):
        keys, tokens = prefix
        return sum(k == keys and t[: len(tokens)] == tokens for k, t in self.locks)

    def is_leaf(self, prefix):
        keys, tokens = prefix
        return not any(k == keys and len(t) > len(tokens) and t[: len(tokens)] == tokens for k, t in self.block)

    def evict(self, num_tokens):
        freed = []
        while len(freed) * self.size < num_tokens:
            leaves = [p for p in self.block if self.is_leaf(p) and not self.lock_count(p)]
            if not leaves:
                break
            keys, tokens = min(leaves, key=self.used.get)
            self.ends.discard((keys, tokens))
            while tokens and (keys, tokens) not in self.ends:
                del self.used[keys, tokens]
                freed.append(self.block.pop((keys, tokens)))
                tokens = tokens[: -self.size]
        return freed

    def protected(self):
        return self.size * sum(self.lock_count(p) > 0 for p in self.block)

    def rows(self):
        rows = []
        for keys, tokens in self.ends:
            above = [len(t) for k, t in self.ends if k == keys and len(t) < len(tokens) and tokens[: len(t)] == t]
            own = list(tokens[max(above, default=0) :])
            rows.append((len(above), own, len(own), self.lock_count((keys, tokens))))
        return sorted(rows)


def play(new_tree, size, operations):
    """Run `operations` on a tree and on the oracle; AssertionError at the first answer that differs."""
    tree, oracle = new_tree(size), Oracle(size)
    handles = []  # (node, prefix) for each lock held
    spare = list(range(200))  # what an allocator would lend: freed blocks come round again
    for name, *args in operations:
        if name == "insert":
            tokens, keys, recomputed = args
            count = len(tokens) // size
            have = [] if recomputed else [oracle.block[p] for p in oracle.known(tokens, keys)]
            fresh, spare = spare[: count - len(have)], spare[count - len(have) :]
            cached = tree.insert(tokens, have + fresh, keys)
            assert cached == oracle.insert(tokens, have + fresh, keys)
            kept = set(oracle.block.values())
            spare += [block for block in fresh if block not in kept]
        elif name in ("match", "lock"):
            found, prefixes = tree.match(*args), oracle.match(*args)
            assert found.num_tokens == len(prefixes) * size
            assert found.blocks == [oracle.block[p] for p in prefixes]
            if name == "lock":
                prefix = prefixes[-1] if prefixes else (args[1], ())
                handles.append((found.node, prefix))
                oracle.locks.append(prefix)
                tree.lock(found.node)
        elif name == "unlock" and handles:
            node, prefix = handles.pop(args[0] % len(handles))
            oracle.locks.remove(prefix)
            tree.unlock(node)
        elif name == "evict":
            freed = tree.evict(*args)
            assert freed == oracle.evict(*args)
            spare += freed
        tree.check()
        assert tree.protected == oracle.protected()
        assert tree.evictable == len(oracle.block) * size - tree.protected
        assert sorted(tree.rows()) == oracle.rows()


# Two tokens and short prompts: most prompts share a beginning, and part inside a block as often as at its end.
TOKENS = st.lists(st.integers(0, 1), max_size=10).map(tuple)
KEYS = st.sampled_from([(), (), (), (("salt", "x"),), (("adapter", "x"),)])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), TOKENS, KEYS, st.booleans()),
        st.tuples(st.just("match"), TOKENS, KEYS),
        st.tuples(st.just("lock"), TOKENS, KEYS),
        st.tuples(st.just("unlock"), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(0, 12)),
    ),
    max_size=25,
)
SIZES = st.sampled_from([1, 2, 3])


@settings(max_examples=300)
@given(SIZES, OPERATIONS)
def test_any_operations_answer_as_a_dict_of_blocks_does(size, operations):
    play(RadixCache, size, operations)


class LocksOneNode(RadixCache):
    """The path above a locked node stays unlocked."""

    def lock(self, node):
        self.protected += 0 if node.lock else len(node.tokens)
        node.lock += 1

    def unlock(self, node):
        node.lock -= 1
        self.protected -= 0 if node.lock else len(node.tokens)


class SplitForgetsTheLock(RadixCache):
    def _arrive(self, path, inside):
        splits = inside < len(path[-1].tokens)
        node = super()._arrive(path, inside)
        if splits:
            self.protected -= len(node.tokens) if node.lock else 0
            node.lock = 0
        return node


class EvictIgnoresLocks(RadixCache):
    def _is_candidate(self, node):
        return not node.children and node is not self._root


class MatchGoesPastABlockBoundary(RadixCache):
    def _walk(self, tokens, keys):
        path, at, inside = super()._walk(tokens, keys)
        node = path[-1]
        while inside < len(node.tokens) and at < len(tokens) and node.tokens[inside] == tokens[at]:
            at, inside = at + 1, inside + 1
        return path, at, inside


class CountsPastABlockBoundary(RadixCache):
    """As above, but nothing is cut there: only the number of tokens is wrong."""

    def match(self, token_ids, keys=()):
        found = super().match(token_ids, keys)
        at = found.num_tokens
        for child in found.node.children.values():
            same = sum(1 for a, b in zip(child.tokens[: self.block_size], token_ids[at:]) if a == b)
            at = max(at, found.num_tokens + same)
        return type(found)(at, found.blocks, found.node)


class KeysNotSeparatedByKind(RadixCache):
    def _walk(self, tokens, keys):
        return super()._walk(tokens, tuple(("any", value) for _, value in keys))

    def insert(self, token_ids, blocks, keys=()):
        return super().insert(token_ids, blocks, tuple(("any", value) for _, value in keys))


class KeysIgnored(RadixCache):
    def _walk(self, tokens, keys):
        return super()._walk(tokens, ())

    def insert(self, token_ids, blocks, keys=()):
        return super().insert(token_ids, blocks, ())


class MatchIsNoUse(RadixCache):
    """Least recently inserted instead of least recently used."""

    def match(self, token_ids, keys=()):
        times = {node: node.used for _, node in self._nodes()}
        found = super().match(token_ids, keys)
        for _, node in self._nodes():  # one that is new is the upper part of a split: as old as the lower
            node.used = times[node] if node in times else max(times[child] for child in node.children.values())
        return found


class SplitMakesTheTailFresh(RadixCache):
    """What SGLang itself does: the part cut off counts as used too. Ours does not, and the oracle sees which."""

    def _arrive(self, path, inside):
        tail = path[-1] if inside < len(path[-1].tokens) else None
        node = super()._arrive(path, inside)
        if tail:
            tail.used = self._clock
            self._clock += 1  # a new leaf beside it is younger
            for above in path:
                above.used = self._clock
        return node


class EvictStopsAtLeaves(RadixCache):
    """A parent that lost its last child stays for good, or until the next call."""

    def evict(self, num_tokens):
        leaves = [node for _, node in self._nodes() if self._is_candidate(node)]
        self._is_candidate = lambda node: any(node is leaf for leaf in leaves)
        freed = super().evict(num_tokens)
        del self._is_candidate
        return freed


class EvictFreesHeadFirst(RadixCache):
    def evict(self, num_tokens):
        return super().evict(num_tokens)[::-1]


class EvictOrphansWhatIsBelow(RadixCache):
    """Any unlocked node may go, and takes with it, unfreed, all that is below."""

    def evict(self, num_tokens):
        freed = []
        for _, node in list(self._nodes())[1:]:
            if len(freed) * self.block_size < num_tokens and node.lock == 0:
                freed.extend(reversed(node.blocks))
                self._held -= set(node.blocks)
                del node.parent.children[node.edge]
        return freed


class InsertTakesTheNewBlocks(RadixCache):
    """The duplicates replace the tree's own blocks, to which other requests' tables still point."""

    def insert(self, token_ids, blocks, keys=()):
        cached = super().insert(token_ids, blocks, keys)
        path, at, _ = self._walk(tuple(token_ids), keys)
        blocks, done = list(blocks), 0
        for node in path:
            count = len(node.blocks)
            self._held -= set(node.blocks)
            node.blocks = tuple(blocks[done : done + count])
            self._held |= set(node.blocks)
            done += count
        return cached


WRONG = [
    LocksOneNode,
    SplitForgetsTheLock,
    EvictIgnoresLocks,
    MatchGoesPastABlockBoundary,
    CountsPastABlockBoundary,
    KeysNotSeparatedByKind,
    KeysIgnored,
    MatchIsNoUse,
    SplitMakesTheTailFresh,
    EvictStopsAtLeaves,
    EvictFreesHeadFirst,
    EvictOrphansWhatIsBelow,
    InsertTakesTheNewBlocks,
]


def random_operations(rng):
    """As OPERATIONS, without Hypothesis: thousands in a second."""

    def prompt():
        return tuple(rng.choices((0, 1), k=rng.randrange(11))), rng.choice(
            [(), (), (("salt", "x"),), (("adapter", "x"),)]
        )

    made = {
        "insert": lambda: (*prompt(), rng.random() < 0.5),
        "match": prompt,
        "lock": prompt,
        "unlock": lambda: (rng.randrange(10),),
        "evict": lambda: (rng.randrange(13),),
    }
    return [(name, *made[name]()) for name in rng.choices(list(made), k=20)]


def first_refused(new_tree, tries):
    """After how many random workloads `play` refuses the tree; None if it never does."""
    for seed in range(tries):
        rng = random.Random(seed)
        try:
            play(new_tree, rng.choice([1, 2, 3]), random_operations(rng))
        except AssertionError:
            return seed
    return None


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
@pytest.mark.parametrize("checked", [True, False], ids=["with check()", "by the answers alone"])
def test_the_same_comparison_refuses_a_wrong_tree(wrong, checked):
    tree = wrong if checked else type(wrong.__name__, (wrong,), {"check": lambda self: None})
    assert first_refused(tree, 300) is not None


def test_the_right_tree_passes_the_workloads_that_refuse_the_wrong_ones():
    assert first_refused(RadixCache, 300) is None


# ---- edges


def a_tree(size=4, tokens=range(10, 22), first_block=0):
    tree = RadixCache(size)
    tree.insert(list(tokens), list(range(first_block, first_block + len(tokens) // size)))
    return tree


def hit(tree, tokens, keys=()):
    found = tree.match(list(tokens), keys)
    tree.check()
    return found.num_tokens, found.blocks


@pytest.mark.parametrize(
    "length, expected",
    [
        (0, (0, [])),
        (3, (0, [])),  # fewer tokens than a block
        (4, (4, [0])),  # exactly one block
        (5, (4, [0])),  # one token more
        (7, (4, [0])),
        (8, (8, [0, 1])),
        (11, (8, [0, 1])),  # a full hit with one token held back loses its last block
        (12, (12, [0, 1, 2])),  # a full hit
        (13, (12, [0, 1, 2])),
    ],
)
def test_a_prompt_that_begins_alike_hits_its_whole_blocks(length, expected):
    assert hit(a_tree(), range(10, 10 + length)) == expected


@pytest.mark.parametrize("differs, expected", [(0, 0), (1, 0), (3, 0), (4, 4), (5, 4), (7, 4), (8, 8), (11, 8)])
def test_a_prompt_hits_to_the_end_of_the_block_before_the_first_other_token(differs, expected):
    tokens = list(range(10, 22))
    tokens[differs] = 99
    tree = a_tree()
    assert hit(tree, tokens) == (expected, list(range(expected // 4)))
    assert tree.insert(tokens, [*range(expected // 4), 7, 8, 9]) == expected
    assert hit(tree, tokens) == (12, [*range(expected // 4), 7, 8, 9][:3])
    assert hit(tree, range(10, 22)) == (12, [0, 1, 2])


def test_an_empty_tree_answers_everything():
    tree = RadixCache(4)
    assert hit(tree, []) == hit(tree, range(100)) == (0, [])
    assert (tree.insert([], []), tree.insert([1, 2, 3], [])) == (0, 0)
    assert (tree.evict(0), tree.evict(9), tree.rows()) == ([], [], [])
    assert (tree.evictable, tree.protected) == (0, 0)
    tree.check()


def test_a_lock_on_no_match_holds_nothing_and_must_be_given_back_like_any_other():
    tree = a_tree()
    root = tree.match([1, 2, 3, 4]).node
    tree.lock(root)
    assert (tree.evictable, tree.protected) == (12, 0)
    assert tree.evict(12) == [2, 1, 0]
    tree.unlock(root)
    with pytest.raises(ValueError, match="not locked"):
        tree.unlock(root)


def test_a_table_longer_than_the_whole_blocks_is_cut():
    tree = RadixCache(4)
    assert tree.insert(range(10), [5, 6, 7]) == 0  # block 7 is partly filled: it stays the request's
    assert tree.rows() == [(0, list(range(8)), 8, 0)]
    assert sorted(tree.evict(100)) == [5, 6]


def test_the_tree_keeps_its_own_blocks_and_says_how_many_tokens_are_duplicates():
    tree = a_tree()
    table = [20, 21, 22, 23]  # a twin computed the same 12 tokens, and 4 more
    assert tree.insert(range(10, 26), table) == 12
    assert hit(tree, range(10, 26)) == (16, [0, 1, 2, 23])
    assert tree.evictable == 16


def test_a_request_that_reads_the_trees_blocks_inserts_them_again_after_each_chunk():
    tree = a_tree()
    table = [0, 1, 2, 30, 31, 32]
    for end, cached in (13, 12), (17, 12), (26, 16):
        assert tree.insert(range(10, 10 + end), table[: end // 4]) == cached
    assert hit(tree, range(10, 36)) == (24, table)


def test_kinds_and_values_separate_and_the_order_of_keys_does_not():
    tree = RadixCache()
    salt, adapter = ("salt", "a"), ("adapter", "b")
    tree.insert([1, 2], [0, 1], (salt, adapter))
    assert hit(tree, [1, 2], (salt, adapter)) == hit(tree, [1, 2], [adapter, salt]) == (2, [0, 1])
    assert tree.insert([1, 2], [0, 1], (adapter, salt)) == 2
    for other in [(), (salt,), (adapter,), (("salt", "b"), ("adapter", "a")), (salt, salt)]:
        assert hit(tree, [1, 2], other) == (0, [])


# ---- eviction and locks


def test_a_whole_leaf_goes_more_than_asked_and_then_its_parent_may_go():
    """S05's rule, which has no case in the file: semantics of SGLang's evict."""
    tree = RadixCache()
    tree.insert([1, 2, 3, 4, 5, 6], range(6))
    tree.insert([1, 2, 3, 7, 8], [0, 1, 2, 7, 8])
    assert tree.rows() == [(0, [1, 2, 3], 3, 0), (1, [4, 5, 6], 3, 0), (1, [7, 8], 2, 0)]
    assert tree.evict(1) == [5, 4, 3]  # asked for 1, the leaf has 3; the tail comes first
    assert tree.evict(3) == [8, 7, 2, 1, 0]  # 2 are not enough: the parent has no child left, and goes whole
    assert tree.rows() == []
    tree.check()


def test_the_least_recently_used_leaf_goes_first_and_a_match_counts_as_use():
    tree = RadixCache()
    for start in (10, 20, 30):
        tree.insert(range(start, start + 4), range(start, start + 4))
    tree.match([10])  # only token 10: the rest of that prompt stays the oldest
    tree.match([20, 21, 22, 23])
    assert tree.evict(1) == [13, 12, 11]
    assert tree.evict(1) == [33, 32, 31, 30]
    assert tree.evict(1) == [10]
    assert tree.evict(1) == [23, 22, 21, 20]


def test_a_match_of_nothing_and_a_match_in_another_namespace_refresh_nothing():
    tree = RadixCache()
    tree.insert([1, 2], [0, 1])
    tree.insert([5, 6], [5, 6])
    tree.match([])
    tree.match([9])
    tree.match([1, 2], (("salt", "s"),))
    assert tree.evict(1) == [1, 0]


def test_a_locked_path_stays_whole_when_a_later_match_cuts_it():
    tree = a_tree(size=1, tokens=range(6))
    node = tree.match([0, 1, 2, 3]).node
    tree.lock(node)
    tree.match([0, 1, 9])  # cuts the locked node
    assert tree.rows() == [(0, [0, 1], 2, 1), (1, [2, 3], 2, 1), (2, [4, 5], 2, 0)]
    assert tree.evict(100) == [5, 4]
    assert (tree.evictable, tree.protected) == (0, 4)
    tree.unlock(node)
    assert (tree.evictable, tree.protected) == (4, 0)
    tree.check()
    assert tree.evict(100) == [3, 2, 1, 0]


def test_two_locks_need_two_unlocks():
    tree = a_tree()
    node = tree.match(range(10, 22)).node
    tree.lock(node)
    tree.lock(node)
    tree.unlock(node)
    assert tree.evict(100) == []
    tree.unlock(node)
    assert tree.evict(100) == [2, 1, 0]


def test_the_same_calls_evict_the_same_blocks():
    def run():
        rng, tree = random.Random(7), RadixCache(2)
        for i in range(200):
            tokens = rng.choices((0, 1), k=8)
            have = tree.match(tokens).blocks
            tree.insert(tokens, [*have, *range(10 * i, 10 * i + 4 - len(have))])
        return tree.evict(100)

    assert run() == run()


# ---- wrong use


def state(tree):
    """All of it: rows, blocks, times, counts."""
    nodes = [(depth, n.tokens, n.blocks, n.edge, n.used, n.lock, list(n.children)) for depth, n in tree._nodes()]
    return nodes, set(tree._held), tree.protected, tree._clock


@pytest.mark.parametrize(
    "use, message",
    [
        (lambda tree: tree.evict(-1), "num_tokens=-1"),
        (lambda tree: tree.insert(range(10, 26), [0, 1, 2]), "3 blocks for 16 tokens, not 4"),
        (lambda tree: tree.insert(range(40, 48), []), "0 blocks for 8 tokens"),
        (lambda tree: tree.insert(range(40, 48), [5, 5]), "repeats a block"),
        (lambda tree: tree.insert(range(40, 48), [5, 2]), "block 2 already holds other tokens"),
        (lambda tree: tree.insert([*range(10, 14), *range(40, 44)], [1, 5]), "block 1 already holds other tokens"),
        (lambda tree: tree.insert([*range(10, 14), *range(40, 44)], [0, 1]), "block 1 already holds other tokens"),
        (lambda tree: tree.insert(range(10, 22), [0, 2, 1]), "block 2 already holds other tokens"),
        (lambda tree: tree.insert(range(10, 22), [0, 1, 2], (("salt", "s"),)), "block 0 already holds other tokens"),
        (lambda tree: tree.insert(range(40, 44), [5], ("salt", "s")), "expected .kind, value. pairs"),
        (lambda tree: tree.match(range(10, 18), ("salt", "s")), "expected .kind, value. pairs"),
        (lambda tree: tree.match(range(10, 18), ("ab",)), "expected .kind, value. pairs"),
        (lambda tree: tree.match(range(10, 18), (("salt",),)), "expected .kind, value. pairs"),
        (lambda tree: tree.unlock(tree._root.children[(), (10, 11, 12, 13)]), "not locked .0 locks"),
        (lambda tree: tree.unlock(tree._root), "not locked .1 locks"),
        (lambda tree: tree.lock(None), "not in the tree"),
        (lambda tree: tree.lock(a_tree().match(range(10, 22)).node), "not in the tree"),
        (lambda tree: tree.unlock(a_tree().match(range(10, 22)).node), "not in the tree"),
    ],
)
def test_wrong_use_is_refused_and_changes_nothing(use, message):
    tree = a_tree()
    tree.insert(range(60, 68), [8, 9])
    tree.lock(tree.match(range(60, 68)).node)
    before = state(tree)
    with pytest.raises(ValueError, match=message):
        use(tree)
    assert state(tree) == before
    tree.check()


def test_only_a_node_that_was_locked_itself_can_be_unlocked():
    tree = a_tree()
    lower, upper = tree.match(range(10, 22)).node, tree.match(range(10, 18)).node
    tree.lock(lower)
    before = state(tree)
    with pytest.raises(ValueError, match="1 locks are further down"):
        tree.unlock(upper)  # its count of 1 belongs to `lower`, which would stand on an unlocked parent
    assert state(tree) == before
    tree.unlock(lower)
    with pytest.raises(ValueError, match="not locked"):
        tree.unlock(lower)
    tree.check()


def test_a_node_that_was_evicted_can_no_longer_be_locked():
    tree = a_tree()
    node = tree.match(range(10, 22)).node
    tree.evict(1)
    tree.insert(range(10, 22), [0, 1, 2])  # the same tokens again, in another node
    with pytest.raises(ValueError, match="evicted since"):
        tree.lock(node)
    assert tree.protected == 0
    tree.check()


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_holds_at_least_one_token(size):
    with pytest.raises(ValueError, match="at least 1 token"):
        RadixCache(size)


# ---- size


def test_a_prompt_of_20000_tokens_works_in_one_node_each():
    length = 20_000
    tree = a_tree(size=1, tokens=range(length))
    end = tree.match(range(length)).node
    for cut in range(length - 1, 0, -1):  # from the end, so that each cut walks one node; as _walk finds it
        tree._arrive([tree._root, next(iter(tree._root.children.values()))], cut)
    assert len(tree.rows()) == length
    tree.check()
    assert tree.match(range(length)).blocks == list(range(length))
    tree.lock(end)
    assert (tree.protected, tree.evict(1)) == (length, [])
    tree.unlock(end)
    assert tree.evict(length) == list(range(length))[::-1]
    tree.check()


@pytest.mark.parametrize("size", [1, 16])
def test_a_long_match_looks_at_each_token_a_few_times(size):
    class Counted(int):
        looks = 0

        def __eq__(self, other):
            Counted.looks += 1
            return int(self) == int(other)

        __hash__ = int.__hash__

    tree = RadixCache(size)
    tree.insert([Counted(n) for n in range(7000)], range(7000 // size))
    Counted.looks = 0
    assert tree.match([Counted(n) for n in range(7000)]).num_tokens == 7000 // size * size
    assert 0 < Counted.looks <= 3 * 7000


# ---- check() can fail


def drop_a_block(tree, upper, lower):
    lower.blocks = lower.blocks[:-1]


def drop_a_token(tree, upper, lower):
    lower.tokens = lower.tokens[:-1]


def empty_a_node(tree, upper, lower):
    lower.tokens = lower.blocks = ()


def fill_the_root(tree, upper, lower):
    tree._root.tokens, tree._root.blocks = (1, 2), (90,)


def hold_a_block_in_two_nodes(tree, upper, lower):
    lower.blocks = (*upper.blocks[:1], *lower.blocks[1:])


def hold_a_block_twice_in_a_node(tree, upper, lower):
    tree._held.discard(lower.blocks[1])
    lower.blocks = (lower.blocks[0], lower.blocks[0])


def swap_a_block_for_an_unknown_one(tree, upper, lower):
    lower.blocks = (*lower.blocks[:-1], 90)


def free_a_block_that_a_node_holds(tree, upper, lower):
    tree._held.discard(lower.blocks[0])


def count_a_block_that_no_node_holds(tree, upper, lower):
    tree._held.add(90)


def lose_a_subtree(tree, upper, lower):
    del upper.children[lower.edge]


def key_a_child_by_other_tokens(tree, upper, lower):
    upper.children[(), (8, 8)] = upper.children.pop(lower.edge)


def key_a_child_and_its_edge_by_other_tokens(tree, upper, lower):
    key_a_child_by_other_tokens(tree, upper, lower)
    lower.edge = ((), (8, 8))


def move_a_child_to_another_namespace(tree, upper, lower):
    edge = ((("salt", "s"),), lower.edge[1])
    upper.children[edge] = upper.children.pop(lower.edge)
    lower.edge = edge


def change_a_token(tree, upper, lower):
    lower.tokens = (8, *lower.tokens[1:])


def point_to_another_parent(tree, upper, lower):
    lower.parent = tree._root


def make_a_cycle(tree, upper, lower):
    lower.children[upper.edge] = upper
    upper.parent = lower


def lock_a_child_more_than_its_parent(tree, upper, lower):
    lower.lock += 1


def lock_a_child_that_the_parents_other_lock_hides(tree, upper, lower):
    """Parent 1, children 1 and 1: no child is above its parent, and one lock never reached it."""
    (sibling,) = [child for child in upper.children.values() if child is not lower]
    sibling.lock += 1
    tree.protected += len(sibling.tokens)


def lock_below_zero(tree, upper, lower):
    (sibling,) = [child for child in upper.children.values() if child is not lower]
    sibling.lock = -1


def lose_a_lock(tree, upper, lower):
    upper.lock = 0


def count_protected_wrong(tree, upper, lower):
    tree.protected += 2


def use_a_child_after_its_parent(tree, upper, lower):
    lower.used = upper.used + 1


def use_a_node_in_the_future(tree, upper, lower):
    tree._root.used = tree._clock + 1


CORRUPTIONS = [
    drop_a_block,
    drop_a_token,
    empty_a_node,
    fill_the_root,
    hold_a_block_in_two_nodes,
    hold_a_block_twice_in_a_node,
    swap_a_block_for_an_unknown_one,
    free_a_block_that_a_node_holds,
    count_a_block_that_no_node_holds,
    lose_a_subtree,
    key_a_child_by_other_tokens,
    key_a_child_and_its_edge_by_other_tokens,
    move_a_child_to_another_namespace,
    change_a_token,
    point_to_another_parent,
    make_a_cycle,
    lock_a_child_more_than_its_parent,
    lock_a_child_that_the_parents_other_lock_hides,
    lock_below_zero,
    lose_a_lock,
    count_protected_wrong,
    use_a_child_after_its_parent,
    use_a_node_in_the_future,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_check_sees_a_corrupted_tree(corrupt):
    tree = RadixCache(2)
    tree.insert([0, 1, 2, 3, 4, 5, 6, 7], [10, 11, 12, 13])
    tree.insert([0, 1, 2, 3, 9, 9], [10, 11, 20])
    upper, lower = tree.match([0, 1, 2, 3]).node, tree.match(range(8)).node
    tree.lock(lower)
    tree.check()
    assert (len(upper.children), lower.parent is upper) == (2, True)
    corrupt(tree, upper, lower)
    with pytest.raises(AssertionError, match="[0-9]"):
        tree.check()
