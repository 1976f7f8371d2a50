"""Allocates the blocks of the KV pool, by number. It uses no tensors and knows no tokens."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol


class CachedBlocks(Protocol):
    """What an allocator needs of a prefix cache: whether a block is cached (found by its content), and to forget it."""

    def __contains__(self, block: int) -> bool: ...

    def forget(self, block: int) -> None: ...


class BlockAllocator:
    """Blocks 1 .. num_blocks, each with its reference count: the block tables that hold it. Block 0 is the null block.

    A block whose reference count is 0 is free. A free block that is `cached` keeps its content, and can be revived by
    `touch`, until it is allocated again: then it is evicted, which means forgotten. Free blocks are allocated least
    recently used first, and of one request's blocks the tail first, with one exception:

    uncached_first   True: freed blocks that are not cached go to the front of the free order, as a group, because
                     allocating them loses nothing (vLLM 0.33; without a prefix cache that is all blocks). False: all
                     go to the back (vLLM 0.11)
    """

    def __init__(self, num_blocks: int, cached: CachedBlocks | None = None, *, uncached_first: bool = True):
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks}; at least 1 is needed.")
        self.num_blocks = num_blocks
        self.cached, self.uncached_first = cached, uncached_first
        self.refs = [0] * (num_blocks + 1)  # the reference count of each block
        self.num_evicted = 0  # cached blocks that were allocated again
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks + 1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def free_order(self) -> list[int]:
        """Free blocks, the next to be allocated first."""
        return list(self._free)

    def is_free(self, block: int) -> bool:
        return block in self._free

    def allocate(self, count: int) -> list[int] | None:
        """Allocate `count` free blocks; None, and nothing changes, when fewer are free."""
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks; ask for 0 or more.")
        if count > len(self._free):
            return None
        blocks = list(islice(self._free, count))
        if self.cached is not None:
            for block in blocks:
                if block in self.cached:
                    self.cached.forget(block)  # its content is about to be overwritten
                    self.num_evicted += 1
        refs, free = self.refs, self._free
        for block in blocks:
            del free[block]
            refs[block] = 1
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """Increment the reference count of each block, free or not: a prefix hit. What is cached stays cached."""
        self._expect(blocks)
        for block in blocks:
            if self.refs[block] == 0:
                del self._free[block]
            self.refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Decrement the reference count of each block of a table, given in token order; the tail is freed first.

        Raises ValueError, and changes nothing, for a block whose reference count is too low.
        """
        self._expect(blocks)
        refs, free = self.refs, self._free
        if not all(map(refs.__getitem__, blocks)) or len(set(blocks)) < len(blocks):
            for block, times in Counter(blocks).items():
                if times > refs[block]:
                    raise ValueError(
                        f"block {block} is released {times} times but held {refs[block]} times. "
                        "Was this request released twice? Clear its block table when it finishes."
                    )
        if self.cached is None and self.uncached_first:  # all go to the front: the last of the table ends up first
            to_front = free.move_to_end
            for block in blocks:
                refs[block] -= 1
                if not refs[block]:
                    free[block] = None
                    to_front(block, False)
            return
        front: list[int] = []
        cached = self.cached if self.uncached_first else None
        for block in reversed(blocks):
            refs[block] = count = refs[block] - 1
            if count == 0:
                if cached is not None and block not in cached:
                    front.append(block)
                else:
                    free[block] = None
        for block in reversed(front):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def _expect(self, blocks: Sequence[int]) -> None:
        if not blocks or 1 <= min(blocks) <= max(blocks) <= self.num_blocks:
            return
        for block in blocks:
            if not 1 <= block <= self.num_blocks:
                raise ValueError(f"no block {block}; there are 1 .. {self.num_blocks} (0 is the null block).")

    def check(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        """Assert the bookkeeping: each block is free or held, never both, never lost; held as often as `tables` say."""
        held = {block for block in range(1, self.num_blocks + 1) if self.refs[block]}
        assert min(self.refs) >= 0 and self.refs[0] == 0, f"a count is below zero, or block 0 is held: {self.refs}"
        assert held.isdisjoint(self._free), f"blocks both free and held: {sorted(held & self._free.keys())}"
        lost = self.num_blocks - len(held) - len(self._free)
        assert lost == 0, f"{len(held)} held + {len(self._free)} free is not {self.num_blocks}: {lost} lost"
        if tables is not None:
            count = Counter(block for table in tables for block in table)
            wrong = {b: (self.refs[b], count[b]) for b in held | count.keys() if self.refs[b] != count[b]}
            assert not wrong, f"block: (reference count, tables that list it) {wrong}"
