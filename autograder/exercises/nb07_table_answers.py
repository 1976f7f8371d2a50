"""Kept answers to exercise 7.2, PrefixCache: wrong ones by name, and right ones."""

from __future__ import annotations

from autograder.exercise import WrongAnswer
from autograder.exercises.nb07_shared import changed

BASE = """\
class PrefixCache:
    def __init__(self, num_blocks):
        self.hashes = [None] * (num_blocks + 1)
        self.blocks = {}

    def __contains__(self, block):
        return self.hashes[block] is not None

    def match(self, hashes):
        found = []
        for value in hashes:
            if value not in self.blocks:
                break
            found.append(self.blocks[value][0])
        return found

    def publish(self, value, block):
        if self.hashes[block] is None:
            self.hashes[block] = value
            self.blocks.setdefault(value, []).append(block)

    def forget(self, block):
        value = self.hashes[block]
        self.hashes[block] = None
        self.blocks[value].remove(block)
        if not self.blocks[value]:
            del self.blocks[value]
"""


_FORGET = BASE[BASE.index("        value = self.hashes[block]") :]
_PUBLISH = BASE[BASE.index("        if self.hashes[block] is None") : BASE.index("\n    def forget")]
WRONG = tuple(
    WrongAnswer(name, changed(BASE, *changes), message)
    for name, changes, message in (
        (
            "goes_on_behind_a_gap",
            [("                break\n", "                continue\n")],
            "Match goes on behind a block that it does not find. What it finds there belongs to later positions: a hit "
            "is a beginning, so stop at the first hash that is missing.",
        ),
        (
            "last_copy",
            [("self.blocks[value][0]", "self.blocks[value][-1]")],
            "Of several copies the last is found. The one that was published first is wanted.",
        ),
        (
            "one_block_for_each_hash",
            [
                ("self.blocks.setdefault(value, []).append(block)", "self.blocks[value] = [block]"),
                ("        self.blocks[value].remove(block)\n", "        self.blocks[value] = []\n"),
            ],
            "Each hash has one block, so a second copy pushes the first one out, and forgetting either loses both. Two "
            "requests that compute the same block at the same time make two copies.",
        ),
        (
            "first_copy_only",
            [("if self.hashes[block] is None:", "if self.hashes[block] is None and value not in self.blocks:")]
            + [("        value = self.hashes[block]\n",
             "        value = self.hashes[block]\n        if value is None:\n            return\n")],
            "A second copy is not kept. When the first is forgotten nothing is found, although the second "
             "copy is whole.",
        ),
        (
            "forget_all_copies",
            [(_FORGET, "        value = self.hashes[block]\n"
             "        self.hashes = [None if h == value else h for h in self.hashes]\n"
             "        self.blocks.pop(value, None)\n")],
            "Forget drops all copies of a block's content. Only the one block is about to be overwritten.",
        ),
        (
            "found_after_forget",
            [(_FORGET, "        self.hashes[block] = None\n")],
            "Forget clears the block's entry and leaves the hash's: match still finds the block, which will soon "
            "hold another text. Clear both directions.",
        ),
        (
            "still_contained",
            [("        self.hashes[block] = None\n", "")],
            "After forget the block is no longer matched, but `block in cache` is still True. Clear both directions.",
        ),
        (
            "published_twice",
            [(_PUBLISH, "        self.hashes[block] = value\n        self.blocks.setdefault(value, []).append(block)\n"
             )],
            "Publishing a block a second time lists it twice, so it is still found after forget. Publish it once.",
        ),
        (
            "match_takes_the_block",
            [("self.blocks[value][0]", "self.blocks[value].pop(0)")]
            + [("if value not in self.blocks:", "if not self.blocks.get(value):")]
            + [("        self.blocks[value].remove(block)\n",
             "        if block in self.blocks[value]:\n            self.blocks[value].remove(block)\n")],
            "Match takes the block out of the table, so the next request does not find it. Matching changes nothing.",
        ),
        (
            "unordered_copies",
            [("self.blocks[value][0]", "min(self.blocks[value])")],
            "Of several copies the one with the lowest number is found. The one that was published first is wanted.",
        ),
        (
            "all_or_nothing",
            [("                break\n", "                return []\n")],
            "Match gives nothing when any block is missing. The blocks in front of the gap are a hit.",
        ),
        (
            "contains_every_block",
            [("        return self.hashes[block] is not None", "        return block < len(self.hashes)")],
            "`block in cache` is True for every block that exists. It is asked whether the block can be found now.",
        ),
    )
)  # fmt: skip

RIGHT = (
    """\
class PrefixCache:
    def __init__(self, num_blocks):
        self.published = {}  # block -> hash; a dict keeps the order of publishing

    def __contains__(self, block):
        return block in self.published

    def match(self, hashes):
        first = {}
        for block, value in self.published.items():
            first.setdefault(value, block)
        found = []
        while len(found) < len(hashes) and hashes[len(found)] in first:
            found.append(first[hashes[len(found)]])
        return found

    def publish(self, value, block):
        self.published.setdefault(block, value)

    def forget(self, block):
        self.published.pop(block)
""",
    """\
from itertools import takewhile


class PrefixCache:
    def __init__(self, num_blocks):
        self.table, self.of = {}, {}

    def __contains__(self, block):
        return self.of.get(block) is not None

    def match(self, hashes):
        copies = (self.table.get(value, {}) for value in hashes)
        return [next(iter(blocks)) for blocks in takewhile(len, copies)]

    def publish(self, value, block):
        if block not in self:
            self.of[block] = value
            self.table.setdefault(value, {})[block] = True

    def forget(self, block):
        del self.table[self.of.pop(block)][block]
""",
)
