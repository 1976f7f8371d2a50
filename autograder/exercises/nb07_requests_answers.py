"""Kept answers to exercise 7.4, RequestCache: wrong ones by name, and right ones."""

from __future__ import annotations

from autograder.exercise import WrongAnswer
from autograder.exercises.nb07_shared import changed

BASE = """\
class RequestCache:
    def __init__(self, allocator, prefix, block_size):
        self.allocator, self.prefix, self.block_size = allocator, prefix, block_size

    def admit(self, num_tokens, hashes):
        hit = self.prefix.match(hashes[: (num_tokens - 1) // self.block_size])
        new = -(-num_tokens // self.block_size) - len(hit)
        revived = sum(self.allocator.refs[block] == 0 for block in hit)
        if new + revived > len(self.allocator.free):
            return None
        self.allocator.touch(hit)
        table = [*hit, *self.allocator.allocate(new)]
        for block in table[len(hit) :]:
            if block in self.prefix:
                self.prefix.forget(block)
        return table

    def commit(self, table, hashes, start, stop):
        for place in range(start // self.block_size, stop // self.block_size):
            self.prefix.publish(hashes[place], table[place])
"""
_TAKE = """\
        self.allocator.touch(hit)
        table = [*hit, *self.allocator.allocate(new)]
"""
_GATE = """\
        revived = sum(self.allocator.refs[block] == 0 for block in hit)
        if new + revived > len(self.allocator.free):
            return None
"""
_FORGET = """\
        for block in table[len(hit) :]:
            if block in self.prefix:
                self.prefix.forget(block)
"""
_LATE_TOUCH = """\
        fresh = self.allocator.allocate(new)
        for block in fresh:
            if block in self.prefix:
                self.prefix.forget(block)
        self.allocator.touch(hit)
        return [*hit, *fresh]
"""
_LIMIT = "hashes[: (num_tokens - 1) // self.block_size]"
_TRY = """\
        self.allocator.touch(hit)
        fresh = self.allocator.allocate(new)
        if fresh is None:
            {}return None
        table = [*hit, *fresh]
"""

WRONG = tuple(
    WrongAnswer(name, changed(BASE, *changes), message)
    for name, changes, message in (
        (
            "nothing_left",
            [(_LIMIT, "hashes")],
            "When the whole prompt is cached, all of it is attached and nothing is left to compute: no logits, and so "
            "no first token, ever. Leave at least one token: match (num_tokens - 1) // block_size hashes.",
        ),
        (
            "always_one_block_less",
            [(_LIMIT, "hashes[: max(num_tokens // self.block_size - 1, 0)]")],
            "A block is held back even where a token is left over behind the last full block. Hold back only what is "
            "needed: (num_tokens - 1) // block_size hashes may hit.",
        ),
        (
            "touch_after_allocate",
            [(_TAKE + _FORGET + "        return table\n", _LATE_TOUCH)],
            "The new blocks are allocated before the hit is touched. A hit block that is free can then be allocated "
            "as a new one: the request evicts its own hit, and has the same block twice in its table. Touch first.",
        ),
        (
            "revived_not_counted",
            [(_GATE, "        if new > len(self.allocator.free):\n            return None\n")],
            "Hit blocks that are free are counted as room for the new ones. Touching takes them out of `free`: add "
            "them to what is needed.",
        ),
        (
            "leak_on_refusal",
            [(_GATE, ""), (_TAKE, _TRY.format(""))],
            "A refused request keeps its hold on the hit: those blocks leak, and are never free again. Look whether "
            "there is room before you touch.",
        ),
        (
            "touched_and_let_go",
            [(_GATE, ""), (_TAKE, _TRY.format("self.allocator.release(hit)\n            "))],
            "A refused request touches its hit and releases it again, which moves it to the end of `free`. Refusing "
            "changes nothing: look whether there is room before you touch.",
        ),
        (
            "revived_is_forgotten",
            [(_TAKE, _TAKE + "        for block in hit:\n            self.prefix.forget(block)\n")],
            "A hit block that is revived loses its hash, so the next request with this beginning does not find it. "
            "It keeps its content, so it keeps its hash.",
        ),
        (
            "not_forgotten",
            [(_FORGET, "")],
            "A new block is still found by what it held before. The new request overwrites that, and a request that "
            "then finds the block is served another text. Forget each new block that can be found.",
        ),
        (
            "published_early",
            [("        return table\n", "        for value, block in zip(hashes[len(hit) :], table[len(hit) :]):\n"
             "            self.prefix.publish(value, block)\n        return table\n")],
            "Blocks are published when they are allocated, before anything is written into them. A request that "
            "finds one attends to keys that are not there yet. Publish in commit.",
        ),
        (
            "part_of_a_block",
            [("stop // self.block_size):", "min(-(-stop // self.block_size), len(hashes))):")],
            "The block in which `stop` falls is published before it is full. Only whole blocks: stop // block_size.",
        ),
        (
            "whole_prompt_published",
            [("range(start // self.block_size, stop // self.block_size)",
             "range(start // self.block_size, len(hashes))")],
            "Commit publishes all blocks of the prompt after its first chunk. Publish the blocks up to `stop`.",
        ),
        (
            "straddling_block_missed",
            [("range(start // self.block_size,", "range(-(-start // self.block_size),")],
            "A block that one chunk began and the next one filled is never published. It is filled now, so begin at "
            "start // block_size.",
        ),
        (
            "new_not_rounded_up",
            [("-(-num_tokens // self.block_size) - len(hit)", "num_tokens // self.block_size - len(hit)")],
            "The tokens behind the last full block have no block. Round the number of blocks up.",
        ),
        (
            "hit_not_held",
            [("        self.allocator.touch(hit)\n", "")],
            "The hit is attached and not touched, so this request is not counted as a holder: the blocks can be "
            "allocated to others while it reads them. Touch them.",
        ),
        (
            "everything_new",
            [("hit = self.prefix.match(hashes[: (num_tokens - 1) // self.block_size])", "hit = []")],
            "The cache is never asked: every block is a new one.",
        ),
    )
)  # fmt: skip

RIGHT = (
    """\
class RequestCache:
    def __init__(self, allocator, prefix, block_size):
        self.a, self.p, self.b = allocator, prefix, block_size

    def admit(self, num_tokens, hashes):
        hit = self.p.match(hashes)
        while hit and len(hit) * self.b >= num_tokens:
            hit = hit[:-1]
        need = (num_tokens + self.b - 1) // self.b - len(hit)
        if need > len([block for block in self.a.free if block not in hit]):
            return None
        self.a.touch(hit)
        fresh = self.a.allocate(need)
        for block in fresh:
            if block in self.p:
                self.p.forget(block)
        return list(hit) + list(fresh)

    def commit(self, table, hashes, start, stop):
        for i in range(stop // self.b):
            if (i + 1) * self.b > start:
                self.p.publish(hashes[i], table[i])
""",
    """\
class RequestCache:
    def __init__(self, *parts):
        self.parts = parts

    def admit(self, num_tokens, hashes):
        allocator, prefix, size = self.parts
        blocks = prefix.match(hashes[: max(0, num_tokens - 1) // size])
        left = len(allocator.free) - sum(1 for block in blocks if not allocator.refs[block])
        new = -(-(num_tokens - size * len(blocks)) // size)
        if left < new:
            return
        allocator.touch(blocks)
        blocks = blocks[:]
        for block in allocator.allocate(new):
            if block in prefix:
                prefix.forget(block)
            blocks.append(block)
        return blocks

    def commit(self, table, hashes, start, stop):
        size = self.parts[2]
        for value, block in list(zip(hashes, table))[start // size : stop // size]:
            self.parts[1].publish(value, block)
""",
)
