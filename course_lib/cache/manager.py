"""Blocks for requests: hits attached, new blocks allocated, full blocks published. Integers only.

The scheduler's interface to the cache. `radix_manager` offers the same methods over a radix tree.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course_lib.cache.allocator import BlockAllocator
from course_lib.cache.prefix import PrefixIndex, extend_hashes


@dataclass
class HitStats:
    """Hit statistics: one look-up for each request that reads the cache, counted when its first admission commits.

    What a request finds again after a preemption is mostly its own, so that it would speak of preemptions and not of
    shared prefixes; vLLM, too, keeps those look-ups apart.
    """

    num_lookups: int = 0
    num_hits: int = 0  # look-ups that found at least one block
    tokens_wanted: int = 0  # tokens that the requests had when they were looked up
    tokens_hit: int = 0

    def count(self, wanted: int, hit: int) -> None:
        self.num_lookups += 1
        self.num_hits += hit > 0
        self.tokens_wanted += wanted
        self.tokens_hit += hit

    @property
    def hit_rate(self) -> float:
        """Share of the tokens that came from the cache."""
        return self.tokens_hit / self.tokens_wanted if self.tokens_wanted else 0.0


class CacheManager:
    """Paged KV cache bookkeeping over a BlockAllocator and a PrefixIndex.

    num_blocks   blocks that can be allocated, numbered from 1
    block_size   tokens in a block
    prefix       a PrefixIndex, or an object with its methods (a learner's, for instance); None turns caching off
    """

    def __init__(
        self, num_blocks: int, block_size: int, prefix: PrefixIndex | None = None, *, uncached_first: bool = True
    ):
        if block_size < 1:
            raise ValueError(f"block_size={block_size}; a block has at least 1 slot.")
        self.block_size, self.prefix = block_size, prefix
        self.allocator = BlockAllocator(num_blocks, prefix, uncached_first=uncached_first)
        self.stats = HitStats()
        self._num_published = 0  # times that blocks were published or unpublished

    @property
    def num_blocks(self) -> int:
        return self.allocator.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, those with cached content included."""
        return self.allocator.num_free

    @property
    def version(self) -> int:
        """Grows when a block is published, unpublished or evicted; while it is unchanged, `match` returns the same."""
        return self._num_published + self.allocator.num_evicted

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, request) -> list[int]:
        """Cached blocks of the longest prefix of the request's tokens: whole blocks, and at least one token is left.

        Allocates nothing: the request may still not be admitted.
        """
        if self.prefix is None or not request.read_cache:
            return []
        most = (request.num_tokens - 1) // self.block_size  # the last token is computed: its logits are needed
        blocks = list(self.prefix.match(self._hashes(request, most)))
        if len(blocks) > most:
            raise ValueError(f"the prefix cache matched {len(blocks)} blocks for {most} hashes: one block for each.")
        return blocks

    def allocate(self, request, stop: int, *, hit: Sequence[int] = (), room_for: int = 0) -> bool:
        """Allocate blocks for the request's tokens [0, stop); False, and nothing changed, when too few are free.

        hit        blocks found by `match`, attached first: they must not be allocated as new ones
        room_for   for an admission: False unless blocks for this many tokens, counted from 0 like `stop`, are free as
                   well. Beyond `stop` they are only checked for, not allocated. 0: `stop` alone decides
        """
        if not (hit or room_for) and stop <= len(request.block_table) * self.block_size:
            return True  # most decodes
        have = len(request.block_table) + len(hit)
        new = max(self.blocks_for(stop) - have, 0)
        revived = sum(map(self.allocator.is_free, hit))  # leave the free list, so count as used
        if max(new, self.blocks_for(room_for) - have) + revived > self.allocator.num_free:
            return False
        if hit:
            self.allocator.touch(hit)
        try:
            blocks = self.allocator.allocate(new)
        except BaseException:
            self.allocator.release(hit)
            raise
        request.block_table += [*hit, *blocks]
        return True

    def publish(self, request, start: int, stop: int) -> None:
        """Publish the blocks that are full once tokens [start, stop) are computed: from now on `match` finds them."""
        if self.prefix is None or not (blocks := self._filled(start, stop)):
            return
        hashes = self._hashes(request, blocks.stop)
        self._num_published += 1
        for block in blocks:
            self.prefix.publish(hashes[block], request.block_table[block])

    def unpublish(self, request, start: int, stop: int) -> None:
        """Undo `publish`: tokens [start, stop) were not computed after all."""
        if self.prefix is None:
            return
        self._num_published += 1
        for block in self._filled(start, stop):
            if request.block_table[block] in self.prefix:
                self.prefix.forget(request.block_table[block])

    def release(self, request) -> None:
        """Release all blocks of the request; published ones stay cached until they are allocated again."""
        self.allocator.release(request.block_table)
        request.block_table = []

    def count_lookup(self, request) -> None:
        """Count the look-up of a request that was admitted, unless it was preempted before."""
        if self.prefix is not None and request.read_cache and not request.num_preemptions:
            self.stats.count(request.num_tokens, request.num_cached)

    def reset(self) -> None:
        """Forget everything, whatever state it was left in: all blocks are free, nothing is found."""
        self.forget_prefixes()
        self.allocator = BlockAllocator(self.num_blocks, self.prefix, uncached_first=self.allocator.uncached_first)

    def forget_prefixes(self) -> None:
        """No block is found any more. Blocks that requests hold stay theirs, and the free order stays as it is."""
        self._num_published += 1
        if isinstance(self.prefix, PrefixIndex):
            self.prefix.clear()
        elif self.prefix is not None:
            for block in range(1, self.num_blocks + 1):
                if block in self.prefix:
                    self.prefix.forget(block)

    def check(self, requests: Iterable) -> None:
        """Assert the bookkeeping of allocator and prefix cache, given all requests that hold blocks."""
        self.allocator.check(request.block_table for request in requests)
        if isinstance(self.prefix, PrefixIndex):
            self.prefix.check()

    def _filled(self, start: int, stop: int) -> range:
        return range(start // self.block_size, stop // self.block_size)

    def _hashes(self, request, count: int) -> list[bytes]:
        extend_hashes(request.block_hashes, request.token_ids, self.block_size, request.keys)
        return request.block_hashes[:count]
