"""The radix tree answers any operations as a dict of single blocks does, and the same judge refuses wrong trees.

`Oracle` knows no nodes: it holds one entry for each cached block, under the whole prefix that ends with it. `play`
runs the same operations on it and on a tree, and compares every answer.
"""

import inspect
import random

import pytest

from course_lib.cache import radix
from course_lib.cache.radix import RadixCache as Tree

KEYS = [(), (), (("salt", "x"),), (("adapter", "x"),)]


class Oracle:
    """Cached blocks. A prefix is (keys, tokens), where tokens end at the end of a block."""

    def __init__(self, size):
        self.size, self.time = size, 0
        self.block, self.used = {}, {}  # prefix -> its last block; prefix -> when it was used last
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
        found, wanted = self.match(tokens, keys), self.prefixes(tokens, keys)
        for prefix, block in list(zip(wanted, blocks))[len(found) :]:
            self.block[prefix], self.used[prefix] = block, self.time
        self.ends.update(wanted[-1:])
        return len(found) * self.size

    def lock_count(self, prefix):
        return sum(_begins(prefix, locked) for locked in self.locks)

    def is_leaf(self, prefix):
        return not any(_begins(prefix, other) for other in self.block if other != prefix)

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
            above = [len(p[1]) for p in self.ends if p != (keys, tokens) and _begins(p, (keys, tokens))]
            own = list(tokens[max(above, default=0) :])
            rows.append((len(above), own, len(own), self.lock_count((keys, tokens))))
        return sorted(rows)


def _begins(prefix, other):
    (keys, tokens), (other_keys, other_tokens) = prefix, other
    return keys == other_keys and other_tokens[: len(tokens)] == tokens


def play(tree, operations):
    """Run `operations` on an empty tree and on the oracle; AssertionError at the first answer that differs."""
    size, oracle = tree.block_size, Oracle(tree.block_size)
    handles = []  # (node, prefix) for each lock held
    spare = list(range(200))  # free blocks: what was evicted is inserted again, with other tokens
    for name, *args in operations:
        if name == "insert":
            tokens, keys, recomputed = args
            have = [] if recomputed else [oracle.block[p] for p in oracle.known(tokens, keys)]
            new = [spare.pop(0) for _ in range(len(tokens) // size - len(have))]
            assert tree.insert(tokens, have + new, keys) == oracle.insert(tokens, have + new, keys)
            spare += sorted(set(new) - set(oracle.block.values()))
        elif name in ("match", "lock"):
            found, prefixes = tree.match(*args), oracle.match(*args)
            assert found.num_tokens == len(prefixes) * size
            assert found.blocks == [oracle.block[p] for p in prefixes]
            if name == "lock":
                tree.lock(found.node)
                oracle.locks.append(prefixes[-1] if prefixes else (args[1], ()))
                handles.append((found.node, oracle.locks[-1]))
        elif name == "unlock" and handles:
            node, prefix = handles.pop(args[0] % len(handles))
            tree.unlock(node)
            oracle.locks.remove(prefix)
        elif name == "evict":
            freed = tree.evict(*args)
            assert freed == oracle.evict(*args)
            spare += freed
        tree.check()
        assert tree.protected == oracle.protected()
        assert tree.evictable == len(oracle.block) * size - tree.protected
        assert sorted(tree.rows()) == oracle.rows()


def random_operations(rng, count=20):
    """Two tokens and short prompts: most share a beginning, and part inside a block as often as at its end."""

    def prompt():
        return tuple(rng.choices((0, 1), k=rng.randrange(11))), rng.choice(KEYS)

    arguments = {
        "insert": lambda: (*prompt(), rng.random() < 0.5),  # True: all of it was computed again, into new blocks
        "match": prompt,
        "lock": prompt,
        "unlock": lambda: (rng.randrange(10),),
        "evict": lambda: (rng.randrange(13),),
    }
    return [(name, *arguments[name]()) for name in rng.choices(list(arguments), k=count)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_operations_answer_as_a_dict_of_blocks_does(size):
    for seed in range(400):
        play(Tree(size), random_operations(random.Random(seed)))


# What is wrong -> the places of radix.py that make it so, each as (right, wrong). Each right text stands there once.
WRONG = {
    "a lock does not reach the nodes above": [
        ("for n in self._to_root(node):", "for n in [node]:"),
        ("        for n in path:\n            n.lock -= 1", "        for n in [node]:\n            n.lock -= 1"),
    ],
    "a cut forgets the lock": [("node.edge, node.parent, lock=node.lock)", "node.edge, node.parent)")],
    "eviction ignores locks": [("not node.children and node.lock == 0", "not node.children")],
    "a match ends inside a block": [
        ("child.tokens[inside : inside + size] == tokens[at : at + size]", "child.tokens[inside] == tokens[at]"),
        ("while inside < len(child.tokens) and", "while inside < len(child.tokens) and at < len(tokens) and"),
        ("inside, at = inside + size, at + size", "inside, at = inside + 1, at + 1"),
    ],
    "a match counts tokens past its last whole block": [
        (
            "return Match(num_tokens,",
            "alike = [sum(map(int.__eq__, n.tokens, token_ids[num_tokens:])) for n in node.children.values()]\n"
            "        return Match(num_tokens + max(alike, default=0),",
        ),
    ],
    "keys are separated by their values alone": [
        ("namespace = tuple(sorted(keys))", "namespace = tuple(sorted(value for _, value in keys))"),
        ("edge = (tuple(sorted(keys)),", "edge = (tuple(sorted(value for _, value in keys)),"),
    ],
    "keys are ignored": [
        ("namespace = tuple(sorted(keys))", "namespace = ()"),
        ("edge = (tuple(sorted(keys)),", "edge = ((),"),
    ],
    "a match does not count as use": [
        (
            "        node = self._arrive(path, inside)\n",
            "        times = [n.used for n in path]\n"
            "        node = self._arrive(path, inside)\n"
            "        for n, time in zip(path, times):\n            n.used = time\n",
        ),
    ],
    "the part cut off counts as used too, as in SGLang": [
        ("        self._clock += 1\n", "        node.used = self._clock + 1\n        self._clock += 2\n"),
    ],
    "a parent that lost its last child stays": [("if self._is_candidate(parent):", "if False:")],
    "eviction frees a leaf's head first": [("freed.extend(reversed(leaf.blocks))", "freed.extend(leaf.blocks)")],
    "eviction drops what hangs beside a leaf": [("del parent.children[leaf.edge]", "parent.children.clear()")],
    "insert takes the caller's copies": [
        (
            "        parent = self._arrive(path, inside)\n",
            "        parent, table = self._arrive(path, inside), iter(blocks)\n"
            "        self._held = self._held.difference(known).union(blocks[: len(known)])\n"
            "        for n in path:\n            n.blocks = tuple(next(table) for _ in n.blocks)\n",
        ),
    ],
}  # fmt: skip


def wrong_tree(changes):
    """The class as it is after `changes`, without check(): what is left to judge it by is its answers."""
    source = inspect.getsource(radix)
    for right, wrong in changes:
        assert source.count(right) == 1, f"radix.py has this {source.count(right)} times, not once: {right}"
        source = source.replace(right, wrong)
    names = {"__name__": radix.__name__}
    exec(source, names)
    return type("WrongTree", (names[Tree.__name__],), {"check": lambda self: None})


def answers_differ(new_tree):
    """In one of 300 random workloads the tree gives another answer than the oracle. Raising is not an answer."""
    for seed in range(300):
        rng = random.Random(seed)
        try:
            play(new_tree(rng.choice([1, 2, 3])), random_operations(rng))
        except AssertionError:
            return True
        except Exception:
            continue
    return False


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_tree_is_refused_by_its_answers(what):
    assert answers_differ(wrong_tree(WRONG[what]))


def test_without_a_change_the_same_judge_finds_nothing():
    assert not answers_differ(wrong_tree([]))
