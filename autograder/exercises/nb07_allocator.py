"""Exercise 7.3, Allocator: blocks are allocated, shared and released."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.drivers.play import play
from autograder.kit import Script, exercise, played, same_story

SOLUTION = "course_lib.lessons.nb07_prefix_cache:Allocator"


class Pools(Script):
    """Requests that hold blocks of two allocators, "a" and "b", and what is seen of these after each call.

    again   whether tables of which a block is free are released a second time, which must be refused
    """

    def __init__(self, num_blocks: int, again: bool):
        super().__init__(SOLUTION)
        self.num_blocks, self.again = num_blocks, again
        self.tables: dict[str, list[list[int]]] = {"a": [], "b": []}
        self.gone: dict[str, list[int]] = {"a": [], "b": []}
        for name in self.tables:
            self.then(name, "new", num_blocks)

    def then(self, name: str, what: str, argument: object) -> list[int] | None:
        came = self.do(name, what, argument)
        self.do(name, ".refs", *range(1, self.num_blocks + 1))
        self.do(name, ".free")
        return came

    def allocate(self, name: str, count: int) -> None:
        table = self.then(name, "allocate", count)
        self.tables[name] += [table] if table else []

    def touch(self, name: str, blocks: list[int]) -> None:
        self.then(name, "touch", blocks)
        self.tables[name] += [blocks] if blocks else []

    def release(self, name: str, place: int) -> None:
        table = self.gone[name] = self.tables[name].pop(place)
        self.then(name, "release", table)
        if self.again and 0 in self.do(name, ".refs", *table):
            self.then(name, "release", table)

    def edges(self, name: str) -> None:
        """No block, all, one too many; of the three in a table the first, the last or the middle one becomes free."""
        most = self.num_blocks
        self.allocate(name, 0), self.touch(name, []), self.then(name, "release", [])
        self.allocate(name, most + 1), self.allocate(name, most), self.allocate(name, 0), self.allocate(name, 1)
        self.release(name, 0)
        if most < 3:
            return
        for places in ((1, 2), (0, 1), (0, 2)):
            self.allocate(name, 3)
            table = self.tables[name][0]
            self.touch(name, [table[place] for place in places]), self.touch(name, table[:2]), self.touch(name, table)
            self.touch(name, table), self.release(name, 2), self.release(name, 2), self.release(name, 2)
            self.allocate(name, most - 3), self.release(name, 0), self.allocate(name, 1)  # the one that has become free
            while self.tables[name]:
                self.release(name, 0)
            self.touch(name, table), self.release(name, 0)  # what is free is shared again
        self.allocate(name, 2), self.do(name, "spoil", "result"), self.release(name, 0)
        self.do(name, "spoil", "arguments"), self.touch(name, self.gone[name][:1]), self.release(name, 0)

    def steps(self, rng: np.random.Generator, count: int) -> None:
        for _ in range(count):
            name, draw = str(rng.choice(["a", "b"])), rng.random()
            tables = self.tables[name]
            if not tables or draw < 0.4:
                self.allocate(name, int(rng.integers(0, 5)))
            elif draw < 0.65:
                some = [*tables, self.gone[name]][int(rng.integers(len(tables) + 1))]
                self.touch(name, some[:2] if rng.integers(2) else some[-2:])
            else:
                self.release(name, int(rng.integers(len(tables))))
        for name, tables in self.tables.items():
            while tables:
                self.release(name, 0)
            self.allocate(name, self.num_blocks)


def scripts(seed: int, again: bool) -> Iterator[tuple[str, Pools]]:
    rng = np.random.default_rng(seed)
    for num_blocks in (1, 3, 8):
        script = Pools(num_blocks, again)
        script.edges("a"), script.edges("b"), script.steps(rng, 5 * num_blocks)
        yield f"Allocator({num_blocks})", script


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

    allocated_from_the_back
      self.free[:count], self.free[count:]  ->  self.free[len(self.free) - count :], self.free[: len(self.free) - count]
    Blocks are allocated from the back of `free`, where the most recently freed ones stand. Allocate from the front.

    allocated_without_count
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

    all_must_be_free
      any(self.refs[block] == 0 for block in blocks)  ->  blocks and all(self.refs[block] == 0 for block in blocks)
    A second release is refused only if all its blocks are free. Another request may still hold some of them, which
    then lose that holder. Refuse if any is free.

    shared_between_allocators
      self.refs = [0]  ->  Allocator.refs = [0]
      self.free = list  ->  Allocator.free = list
    Two allocators share their counts, and the second one begins those of the first anew. What belongs to one object
    is kept as self.something; a variable of the class belongs to all objects.

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
