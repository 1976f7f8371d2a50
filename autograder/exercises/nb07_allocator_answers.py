"""Kept answers to exercise 7.3, Allocator: wrong ones by name, and right ones."""

from __future__ import annotations

from autograder.exercise import WrongAnswer
from autograder.exercises.nb07_shared import changed

BASE = """\
class Allocator:
    def __init__(self, num_blocks):
        self.refs = [0] * (num_blocks + 1)
        self.free = list(range(1, num_blocks + 1))

    def allocate(self, count):
        if count > len(self.free):
            return None
        blocks, self.free = self.free[:count], self.free[count:]
        for block in blocks:
            self.refs[block] = 1
        return blocks

    def touch(self, blocks):
        for block in blocks:
            if self.refs[block] == 0:
                self.free.remove(block)
            self.refs[block] += 1

    def release(self, blocks):
        if any(self.refs[block] == 0 for block in blocks):
            raise ValueError("a block is free")
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)
"""
_CHECK = """\
        if any(self.refs[block] == 0 for block in blocks):
            raise ValueError("a block is free")
"""
_IN_LOOP = """\
            if self.refs[block] == 0:
                raise ValueError("the block is free")
            self.refs[block] -= 1
"""
_LAST = """\
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)
"""

WRONG = tuple(
    WrongAnswer(name, changed(BASE, *changes), message)
    for name, changes, message in (
        (
            "head_freed_first",
            [("in reversed(blocks)", "in blocks")],
            "Blocks are freed in forward order, so the head of a table is allocated again first. Without its head "
            "the rest of a beginning cannot be found: free the tail first.",
        ),
        (
            "freed_to_the_front",
            [("self.free.append(block)", "self.free.insert(0, block)")],
            "Freed blocks go to the front and are allocated again at once. The block freed longest ago is "
            "allocated first: append.",
        ),
        (
            "shared_block_freed",
            [(_LAST, "            self.refs[block] = 0\n            self.free.append(block)\n")],
            "Release frees a block that another request still holds. A block is free when its last holder is gone.",
        ),
        (
            "lost_on_release",
            [("            if self.refs[block] == 0:\n                self.free.append(block)\n", "")],
            "Released blocks never become free: they leak, and free + held is no longer the whole pool. Append "
            "them to `free`.",
        ),
        (
            "touched_and_free",
            [("            if self.refs[block] == 0:\n                self.free.remove(block)\n", "")],
            "A free block that is touched stays in `free`, so it will be allocated to another request while it is "
            "held. Take it out.",
        ),
        (
            "touch_sets_one",
            [("            self.refs[block] += 1\n", "            self.refs[block] = 1\n")],
            "After touch a block counts one holder, however many there are. Add one, whether the block is "
             "free or held.",
        ),
        (
            "allocates_what_is_there",
            [("            return None\n", "            count = len(self.free)\n")],
            "When there are too few free blocks, all of them are allocated. All or nothing: return None.",
        ),
        (
            "one_must_stay",
            [("if count > len(self.free):", "if count >= len(self.free):")],
            "The last free block is never allocated: a request may take all free blocks, so use >.",
        ),
        (
            "lent_from_the_back",
            [("self.free[:count], self.free[count:]",
             "self.free[len(self.free) - count :], self.free[: len(self.free) - count]")],
            "Blocks are allocated from the back of `free`, where the most recently freed ones stand. Allocate "
            "from the front.",
        ),
        (
            "lent_without_count",
            [("        for block in blocks:\n            self.refs[block] = 1\n        return blocks",
             "        return blocks")],
            "Allocate counts no holder for its blocks, so touch and release treat them as free. Set refs to 1.",
        ),
        (
            "released_twice",
            [(_CHECK, ""), ("            if self.refs[block] == 0:\n                self.free.append(block)",
             "            if self.refs[block] <= 0:\n                self.free.append(block)")],
            "A table that is released a second time is accepted: its blocks stand in `free` twice and will be "
            "allocated to two requests. Raise ValueError.",
        ),
        (
            "refused_halfway",
            [(_CHECK, ""), ("            self.refs[block] -= 1\n", _IN_LOOP)],
            "The second release is refused halfway: some blocks have lost a holder by then. Look at all blocks before "
            "you change any.",
        ),
        (
            "ignored_twice",
            [(_CHECK, ""), ("            self.refs[block] -= 1\n",
             "            if self.refs[block] == 0:\n                continue\n"
             "            self.refs[block] -= 1\n")],
            "A second release is accepted in silence, and blocks that other requests hold lose a holder. Raise "
            "ValueError: a caller that releases twice has a mistake somewhere else.",
        ),
    )
)  # fmt: skip

RIGHT = (
    """\
from collections import OrderedDict


class Allocator:
    def __init__(self, num_blocks):
        self.free = OrderedDict((block, True) for block in range(1, num_blocks + 1))
        self.refs = {block: 0 for block in range(num_blocks + 1)}

    def allocate(self, count):
        if len(self.free) < count:
            return None
        blocks = [self.free.popitem(last=False)[0] for _ in range(count)]
        self.refs.update(dict.fromkeys(blocks, 1))
        return blocks

    def touch(self, blocks):
        for block in blocks:
            self.free.pop(block, None)
            self.refs[block] += 1

    def release(self, blocks):
        if not all(self.refs[block] for block in blocks):
            raise ValueError("released twice?")
        for block in blocks[::-1]:
            self.refs[block] -= 1
            if not self.refs[block]:
                self.free[block] = True
""",
    """\
from collections import deque


class Allocator:
    def __init__(self, num_blocks):
        self.refs, self.free = np.zeros(num_blocks + 1, dtype=int), deque(range(1, num_blocks + 1))

    def allocate(self, count):
        if count <= len(self.free):
            blocks = [self.free.popleft() for _ in range(count)]
            self.refs[blocks] = 1
            return blocks

    def touch(self, blocks):
        for block in [b for b in blocks if self.refs[b] == 0]:
            self.free.remove(block)
        for block in blocks:
            self.refs[block] += 1

    def release(self, blocks):
        if blocks and min(self.refs[blocks]) == 0:
            raise ValueError("a block is free")
        for block in blocks:
            self.refs[block] -= 1
        self.free.extend(block for block in reversed(blocks) if self.refs[block] == 0)
""",
)
