"""Exercise 7.2, PrefixCache: which block holds this beginning?"""

from __future__ import annotations

import numpy as np

from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb01_cache import same
from autograder.exercises.nb07_shared import Told, flat, judge_told, name_of, parsed
from autograder.kept import known_mistakes

PUBLISH, FORGET, MATCH, CONTAINS = range(4)


def drive(make, num_blocks: int, operations: list[int]) -> list[int]:
    """Each operation is its kind, how many numbers follow, and those."""
    cache, seen, names = make(num_blocks), [], []
    for kind, given in parsed(operations):
        if kind == PUBLISH:
            cache.publish(name_of(given[0]), given[1])
            seen.append([])
        elif kind == FORGET:
            cache.forget(given[0])
            seen.append([])
        elif kind == MATCH:
            seen.append(cache.match([name_of(number) for number in given]))
        else:
            seen.append([int(block in cache) for block in range(1, num_blocks + 1)])
        names.append("what match gives")
    return flat(seen, names)


def call_cases(seed: int) -> list[Call]:
    """Few hashes and many blocks, so that copies, gaps in a chain and reused blocks are all there."""
    rng = np.random.default_rng(seed)
    calls = []
    for num_blocks in (5, 9):
        hashes = rng.choice(10_000, 4, replace=False).tolist()
        operations, held = [], {}

        def add(kind, *given, operations=operations):
            operations.extend((kind, len(given), *given))

        add(MATCH, *hashes)
        order = [0, 2, 0, 1, 0] + rng.integers(0, 4, 45).tolist()
        for i, which in enumerate(order):
            free = [block for block in range(1, num_blocks + 1) if block not in held]
            if held and (not free or (i > 5 and rng.random() < 0.45)):
                block = int(rng.choice(sorted(held)))
                add(FORGET, block)
                del held[block]
            else:
                block = int(rng.choice(free))
                held[block] = hashes[which]
                add(PUBLISH, hashes[which], block)
                if i % 3 == 0:
                    add(PUBLISH, hashes[which], block)
            add(MATCH, *hashes)
            add(MATCH, hashes[which], hashes[0], int(rng.integers(10_000, 20_000)), hashes[which])
            add(CONTAINS)
        calls.append(Call((num_blocks, operations), f"PrefixCache({num_blocks})"))
    return calls


def _told(call: Call) -> list[Told]:
    num_blocks, operations = call.args
    published: list[tuple[int, int]] = []  # (block, hash), the first published first
    story = []
    for kind, given in parsed(operations):
        if kind == PUBLISH:
            if given[1] not in [block for block, _ in published]:
                published.append((given[1], given[0]))
            story.append((f"publish(h{given[0]}, {given[1]})", []))
        elif kind == FORGET:
            published = [pair for pair in published if pair[0] != given[0]]
            story.append((f"forget({given[0]})", []))
        elif kind == MATCH:
            firsts = [next((b for b, value in published if value == number), None) for number in given]
            found = firsts[: firsts.index(None)] if None in firsts else firsts
            story.append((f"match([{', '.join(f'h{number}' for number in given)}])", found))
        else:
            inside = [int(block in [b for b, _ in published]) for block in range(1, num_blocks + 1)]
            story.append((f"`block in cache` for blocks 1 to {num_blocks}", inside))
    return story


def judge_calls(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return judge_told(calls, outcomes, _told)


SOLUTION = "course_lib.lessons.nb07_prefix_cache:PrefixCache"

MISTAKES = r"""
    goes_on_behind_a_gap
      break  ->  continue
    Match goes on behind a block that it does not find. What it finds there belongs to later positions: a hit is a
    beginning, so stop at the first hash that is missing.

    last_copy
      self.blocks[value][0]  ->  self.blocks[value][-1]
    Of several copies the last is found. The one that was published first is wanted.

    one_block_for_each_hash
      self.blocks.setdefault(value, []).append(block)  ->  self.blocks[value] = [block]
      self.blocks[value].remove(block)  ->  self.blocks[value] = []
    Each hash has one block, so a second copy pushes the first one out, and forgetting either loses both. Two
    requests that compute the same block at the same time make two copies.

    first_copy_only
      if self.hashes[block] is None:  ->  if self.hashes[block] is None and value not in self.blocks:
      value = self.hashes[block]  ->  value = self.hashes[block]\nif value is None:\n    return
    A second copy is not kept. When the first is forgotten nothing is found, although the second copy is whole.

    forget_all_copies
      self.hashes[block] = None  ->  self.hashes = [None if h == value else h for h in self.hashes]
      self.blocks[value].remove(block)  ->  self.blocks[value] = []
    Forget drops all copies of a block's content. Only the one block is about to be overwritten.

    found_after_forget
      self.blocks[value].remove(block)  ->
    Forget clears the block's entry and leaves the hash's: match still finds the block, which will soon hold another
    text. Clear both directions.

    still_contained
      self.hashes[block] = None  ->
    After forget the block is no longer matched, but `block in cache` is still True. Clear both directions.

    published_twice
      if self.hashes[block] is None:  ->  if True:
    Publishing a block a second time lists it twice, so it is still found after forget. Publish it once.

    match_takes_the_block
      self.blocks[value][0]  ->  self.blocks[value].pop(0)
      if value not in self.blocks:  ->  if not self.blocks.get(value):
      self.blocks[value].remove(block)  ->  if block in self.blocks[value]:\n    self.blocks[value].remove(block)
    Match takes the block out of the table, so the next request does not find it. Matching changes nothing.

    unordered_copies
      self.blocks[value][0]  ->  min(self.blocks[value])
    Of several copies the one with the lowest number is found. The one that was published first is wanted.

    all_or_nothing
      break  ->  return []
    Match gives nothing when any block is missing. The blocks in front of the gap are a hit.

    contains_every_block
      self.hashes[block] is not None  ->  block < len(self.hashes)
    `block in cache` is True for every block that exists. It is asked whether the block can be found now.
"""

EXERCISE = Exercise(
    name="PrefixCache",
    groups=(Group("calls", call_cases, judge_calls),),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 07, section 3.",
    solution=SOLUTION,
    library=("course_lib.cache.prefix:PrefixIndex",),
    driver=drive,
)
