"""Exercise 7.3, Allocator: blocks are allocated, shared and released."""

from __future__ import annotations

from collections import Counter

import numpy as np

from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb01_cache import same
from autograder.exercises.nb07_shared import Told, flat, judge_told, noted, whole
from autograder.kept import known_mistakes

ALLOCATE, TOUCH, RELEASE, AGAIN = range(4)
NONE, REFUSED = -1, -2


def drive(make, num_blocks: int, operations: list[int]) -> list[int]:
    """Rows (kind, request, number); after each: what came back, and then the state: refs of all blocks, and free."""
    allocator, tables, gone, seen, names = make(num_blocks), {}, [], [], []
    for kind, request, number in zip(operations[::3], operations[1::3], operations[2::3], strict=True):
        back = []
        if kind == ALLOCATE:
            given = allocator.allocate(number)
            back = [NONE] if given is None else whole(given, f"what allocate({number}) gives")
            if given is not None:
                tables[request] = back
        elif kind == TOUCH:
            tables[request] = _part(tables.get(number, gone), request)
            try:
                allocator.touch(list(tables[request]))
            except Exception as error:
                noted(error, len(seen) // 3 + 1, list(allocator.refs), allocator.free)
                raise
        else:
            gone = tables.pop(request, []) if kind == RELEASE else gone
            try:
                allocator.release(list(gone))
            except ValueError:
                back = [REFUSED]
        refs = allocator.refs
        seen += [back, [refs[block] for block in range(1, num_blocks + 1)], list(allocator.free)]
        names += ["what allocate gives", "what refs holds", "what free holds"]
    return flat(seen, names)


def _part(table: list[int], request: int) -> list[int]:
    """What a request shares of another's table: two blocks of its beginning, or of its end."""
    return table[:2] if request % 2 else table[-2:]


def trace_cases(seed: int) -> list[Call]:
    rng = np.random.default_rng(seed)
    return [_call(rng, num_blocks, releases_again=False) for num_blocks in (6, 8, 11)]


def twice_cases(seed: int) -> list[Call]:
    rng = np.random.default_rng(seed)
    return [_call(rng, num_blocks, releases_again=True) for num_blocks in (6, 8, 11)]


def _call(rng: np.random.Generator, num_blocks: int, releases_again: bool) -> Call:
    """Random operations that are possible; the oracle runs alongside to know which requests hold blocks."""
    operations, oracle, next_request = [], _Oracle(num_blocks), 0

    def add(kind, request, number=0):
        operations.extend((kind, request, number))
        return oracle.play(kind, request, number)

    add(ALLOCATE, 0, 3), add(TOUCH, 2, 0), add(RELEASE, 0)  # the first of the three is free, the others are not
    if releases_again:
        add(AGAIN, 0)
    add(RELEASE, 2), add(TOUCH, 4, -1), add(ALLOCATE, 5, num_blocks), add(ALLOCATE, 6, num_blocks - 2), add(RELEASE, 6)
    next_request = 7
    for _ in range(36):
        draw, holders = rng.random(), sorted(oracle.tables)
        if not holders or draw < 0.4:
            add(ALLOCATE, next_request, int(rng.integers(0, 5)))
        elif draw < 0.65:
            add(TOUCH, next_request, int(rng.choice([*holders, -1])))  # -1: the table released last
        else:
            add(RELEASE, int(rng.choice(holders)))
            if releases_again and any(oracle.count()[block] == 0 for block in oracle.gone):
                add(AGAIN, 0)
        next_request += 1
    for request in sorted(oracle.tables):
        add(RELEASE, request)
    add(ALLOCATE, next_request, num_blocks), add(RELEASE, next_request)
    if releases_again:
        add(AGAIN, 0)
    return Call((num_blocks, operations), f"Allocator({num_blocks})")


class _Oracle:
    """Tables, and a list of the free blocks. Counts are made from the tables, never kept."""

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self.tables: dict[int, list[int]] = {}
        self.free, self.gone = list(range(1, num_blocks + 1)), []

    def count(self) -> Counter:
        return Counter(block for table in self.tables.values() for block in table)

    def play(self, kind: int, request: int, number: int) -> Told:
        back: list[int] = []
        if kind == ALLOCATE:
            text = f"allocate({number})"
            if number > len(self.free):
                return text, [NONE]
            back = self.tables[request] = self.free[:number]
            self.free = self.free[number:]
        elif kind == TOUCH:
            blocks = _part(self.tables.get(number, self.gone), request)
            text, self.tables[request] = f"touch({blocks})", blocks
            self.free = [block for block in self.free if block not in blocks]
        elif kind == RELEASE:
            self.gone = self.tables.pop(request, [])
            text, left = f"release({self.gone})", self.count()
            self.free = self.free + [block for block in reversed(self.gone) if not left[block]]
        else:
            text, back = f"release({self.gone}) a second time", [REFUSED]
        return text, back


def _told(call: Call) -> list[Told]:
    num_blocks, operations = call.args
    oracle, story = _Oracle(num_blocks), []
    for kind, request, number in zip(operations[::3], operations[1::3], operations[2::3], strict=True):
        text, back = oracle.play(kind, request, number)
        what = f"{text}: `refs` of the blocks 1 to {num_blocks} after it"
        count = oracle.count()
        story += [(text, back), (what, [count[block] for block in range(1, num_blocks + 1)])]
        story.append((f"{text}: `free` after it", list(oracle.free)))
    return story


def judge_calls(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    verdict = judge_told(calls, outcomes, _told)
    if verdict.passed:
        return Verdict(True, count=f"{sum(len(call.args[1]) // 3 for call in calls)} calls")
    what = verdict.what.replace("gives [-2], wanted []", "raises ValueError")
    what = what.replace("a second time gives [], wanted [-2]", "a second time is accepted, wanted ValueError")
    return Verdict(False, what=what)


SOLUTION = "course_lib.lessons.nb07_prefix_cache:Allocator"

MISTAKES = r"""
    head_freed_first
      reversed(blocks)  ->  blocks
    Blocks are freed in forward order, so the head of a table is allocated again first. Without its head the rest of
    a beginning cannot be found: free the tail first.

    freed_to_the_front
      self.free.append(block)  ->  self.free.insert(0, block)
    Freed blocks go to the front and are allocated again at once. The block freed longest ago is allocated first:
    append.

    shared_block_freed
      self.refs[block] -= 1  ->  self.refs[block] = 0
    Release frees a block that another request still holds. A block is free when its last holder is gone.

    lost_on_release
      self.free.append(block)  ->  pass
    Released blocks never become free: they leak, and free + held is no longer the whole pool. Append them to
    `free`.

    touched_and_free
      self.free.remove(block)  ->  pass
    A free block that is touched stays in `free`, so it will be allocated to another request while it is held. Take
    it out.

    touch_sets_one
      self.refs[block] += 1  ->  self.refs[block] = 1
    After touch a block counts one holder, however many there are. Add one, whether the block is free or held.

    allocates_what_is_there
      return None  ->  count = len(self.free)
    When there are too few free blocks, all of them are allocated. All or nothing: return None.

    one_must_stay
      count > len(self.free)  ->  count >= len(self.free)
    The last free block is never allocated: a request may take all free blocks, so use >.

    lent_from_the_back
      self.free[:count], self.free[count:]  ->  self.free[len(self.free) - count :], self.free[: len(self.free) - count]
    Blocks are allocated from the back of `free`, where the most recently freed ones stand. Allocate from the front.

    lent_without_count
      self.refs[block] = 1  ->  pass
    Allocate counts no holder for its blocks, so touch and release treat them as free. Set refs to 1.

    released_twice
      any(self.refs[block] == 0 for block in blocks)  ->  False
      self.refs[block] -= 1  ->  self.refs[block] -= 1\nif self.refs[block] < 0:\n    self.free.append(block)
    A table that is released a second time is accepted: its blocks stand in `free` twice and will be allocated to
    two requests. Raise ValueError.

    refused_halfway
      any(self.refs[block] == 0 for block in blocks)  ->  False
      self.refs[block] -= 1  ->  if self.refs[block] == 0:\n    raise ValueError("it is free")\nself.refs[block] -= 1
    The second release is refused halfway: some blocks have lost a holder by then. Look at all blocks before you
    change any.

    ignored_twice
      any(self.refs[block] == 0 for block in blocks)  ->  False
      self.refs[block] -= 1  ->  if self.refs[block] == 0:\n    continue\nself.refs[block] -= 1
    A second release is accepted in silence, and blocks that other requests hold lose a holder. Raise ValueError: a
    caller that releases twice has a mistake somewhere else.
"""

EXERCISE = Exercise(
    name="Allocator",
    number="7.3",
    notebook="07_prefix_cache",
    mode="equal",
    groups=(Group("trace", 3, trace_cases, judge_calls), Group("twice", 1, twice_cases, judge_calls)),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 07, section 4.",
    library=(SOLUTION, "course_lib.cache.allocator:BlockAllocator"),
    driver=drive,
)
