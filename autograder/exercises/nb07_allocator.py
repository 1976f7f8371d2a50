"""Exercise 7.3, Allocator: blocks are allocated, shared and released."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.drivers.play import play
from autograder.kit import exercise, found, played, same_story

SOLUTION = "course_lib.lessons.nb07_prefix_cache:Allocator"


def script(rng: np.random.Generator, num_blocks: int, again: bool) -> list[tuple]:
    """Random operations of requests that hold blocks, on two allocators in turn; the solution says which there are.

    again   some tables are released a second time, which must be refused
    """
    lines: list[tuple] = []
    pools = {name: found(SOLUTION)(num_blocks) for name in ("a", "b")}
    tables: dict[str, list[list[int]]] = {name: [] for name in pools}
    gone: dict[str, list[int]] = {name: [] for name in pools}

    def looks(name):
        return [(name, ".refs", *range(1, num_blocks + 1)), (name, ".free")]

    def do(name, what, argument):
        lines.extend([(name, what, argument), *looks(name)])
        return getattr(pools[name], what)(argument)

    def allocate(name, number):
        table = do(name, "allocate", number)
        tables[name] += [table] if table else []

    def touch(name, table, part):
        shared = table[part]
        do(name, "touch", shared)
        tables[name].append(list(shared))

    def release(name, place):
        gone[name] = tables[name].pop(place)
        do(name, "release", list(gone[name]))
        if again and any(pools[name].refs[block] == 0 for block in gone[name]):
            lines.extend([(name, "release", list(gone[name])), *looks(name)])

    for name in pools:
        lines += [(name, "new", num_blocks), *looks(name)]
    for name in pools:  # the first of three is free, the others are not; what is free is shared again
        allocate(name, 3)
        touch(name, tables[name][0], slice(-2, None))
        release(name, 0), release(name, 0), touch(name, gone[name], slice(0, 2))
        allocate(name, num_blocks), allocate(name, 0), allocate(name, num_blocks - 2), release(name, -1)
    for _ in range(36):
        name, draw = str(rng.choice(list(pools))), rng.random()
        if not tables[name] or draw < 0.4:
            allocate(name, int(rng.integers(0, 5)))
        elif draw < 0.65:
            some = [*tables[name], gone[name]][int(rng.integers(len(tables[name]) + 1))]
            touch(name, some, slice(0, 2) if rng.integers(2) else slice(-2, None))
        else:
            release(name, int(rng.integers(len(tables[name]))))
    for name in pools:
        while tables[name]:
            release(name, 0)
        allocate(name, num_blocks)
    return lines


def scripts(seed: int, again: bool) -> Iterator[tuple[str, list[tuple]]]:
    rng = np.random.default_rng(seed)
    for num_blocks in (3, 6, 8, 11):
        yield f"Allocator({num_blocks})", script(rng, num_blocks, again)


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

EXERCISE = exercise(
    SOLUTION,
    groups=[
        played("trace", SOLUTION, lambda seed: scripts(seed, again=False)),
        played("twice", SOLUTION, lambda seed: scripts(seed, again=True)),
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 07, section 4.",
    library=("course_lib.cache.allocator:BlockAllocator",),
    same=same_story,
    driver=play,
)
