"""Exercise 7.2, PrefixCache: which block holds this beginning?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.drivers.play import play
from autograder.kit import exercise, played, same_story

SOLUTION = "course_lib.lessons.nb07_prefix_cache:PrefixCache"


def edges(h: list[bytes]) -> Iterator[tuple]:
    """Each rule once, on two caches of which the second stays empty: copies, a second hash, gaps, blocks used again."""
    looks = [("a", "match", h[:2]), ("a", "match", [h[2], h[1]]), ("a", ".in", 1, 2, 3), ("a", "match", [])]
    yield from [("a", "new", 3), ("b", "new", 3), *looks]
    for line in (
        *[("publish", h[0], 1), ("publish", h[0], 3), ("publish", h[0], 1)],  # two copies; the first once more
        *[("publish", h[1], 1), ("publish", h[1], 2), ("publish", h[1], 2)],  # not under a second hash
        *[("forget", 1), ("publish", h[0], 1), ("publish", h[0], 3), ("forget", 3)],  # now it is the second copy
        *[("forget", 1), ("publish", h[2], 1), ("forget", 2), ("publish", h[0], 2), ("publish", h[1], 3)],
        *[("forget", 2), ("forget", 3), ("publish", h[2], 3), ("publish", h[2], 2), ("forget", 3), ("forget", 1)],
    ):
        yield from [("a", *line), *looks]
    yield from [("b", "match", h[:1]), ("b", ".in", 1, 2, 3), ("b", "publish", h[1], 2), ("a", ".in", 1, 2, 3)]
    yield from [("b", "match", h[1:2]), ("b", "match", [h[1], h[1], h[0]]), ("b", "match", h[1:2])]
    yield from [("b", "spoil", "result"), ("b", "spoil", "arguments"), ("b", "match", h[1:2]), ("a", "match", h[1:])]
    yield from [("c", "new", 1), ("c", "publish", h[3], 1), ("c", "match", h[3:]), ("c", "forget", 1), ("c", ".in", 1)]


def random_lines(rng: np.random.Generator, num_blocks: int, hashes: list[bytes]) -> Iterator[tuple]:
    """Few hashes and many blocks, so that copies, gaps in a chain and reused blocks are all there."""
    held: dict[int, bytes] = {}
    yield "cache", "new", num_blocks
    for step in range(50):
        value, free = hashes[rng.integers(0, 4)], [block for block in range(1, num_blocks + 1) if block not in held]
        if held and (not free or (step > 5 and rng.random() < 0.45)):
            block = int(rng.choice(sorted(held)))
            yield "cache", "forget", block
            del held[block]
        else:
            block = int(rng.choice(free))
            held[block] = value
            yield "cache", "publish", value, block
            if rng.random() < 0.3:
                again = int(rng.choice(sorted(held)))
                yield "cache", "publish", held[again] if rng.random() < 0.5 else value, again
        yield "cache", "match", [hashes[i] for i in rng.permutation(4)]
        yield "cache", "match", [value, hashes[0], b"never", value]
        yield "cache", ".in", *range(1, num_blocks + 1)


def scripts(seed: int) -> Iterator[tuple[str, Iterator[tuple]]]:
    rng = np.random.default_rng(seed)
    for num_blocks in (3, 5, 9):
        hashes = [b"h%d" % number for number in rng.choice(10_000, 4, replace=False)]
        yield f"PrefixCache({num_blocks})", edges(hashes) if num_blocks == 3 else random_lines(rng, num_blocks, hashes)


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

    last_again
      if self.hashes[block] is None:  ->  if self.hashes[block] is not None:\n    self.forget(block)\nif True:
    Publishing a block again forgets it first, so it moves behind its copies, or is found by another hash. A block that
    is published already stays as it is.

    second_hash
      if self.hashes[block] is None:  ->  if self.hashes[block] != value:
    A block that is published already is found by a second hash as well, and forget clears only one of them. A block
    that has a hash keeps it: publish does nothing then.

    none_for_no_hash
      return found  ->  return found or None
    Match gives None when nothing is found. The beginning that was found is empty then: return an empty list.

    shared_between_caches
      class PrefixCache:  ->  class PrefixCache:\n    blocks = {}
      self.blocks = {}  ->
    Two caches share one table: what is published in one is found in the other. What belongs to one object is made in
    __init__, as self.something; a variable of the class belongs to all objects.

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

EXERCISE = exercise(
    SOLUTION,
    groups=[played("calls", SOLUTION, scripts)],
    mistakes=MISTAKES,
    reread="Reread notebook 07, section 3.",
    library=("course_lib.cache.prefix:PrefixIndex",),
    same=same_story,
    driver=play,
)
