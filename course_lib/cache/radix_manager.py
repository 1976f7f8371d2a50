"""The methods of CacheManager over a radix tree, as in SGLang: the tree owns cached blocks, requests lock them.

Two things differ from the hash table. Content is kept once: a request that computed what the tree has already
releases its copy, and its block table names the tree's blocks. And a whole leaf is evicted at once.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from course_lib.cache.manager import HitStats
from course_lib.cache.radix import Node, RadixCache


class RadixManager:
    """Blocks 1 .. num_blocks, each of them free, in the tree, or private to one request."""

    def __init__(self, num_blocks: int, block_size: int):
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks}; at least 1 is needed.")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tree = RadixCache(block_size)
        self.stats = HitStats()
        self.version = 0  # grows whenever a look-up might find something else: on publish and on evict
        self._free: deque[int] = deque(range(1, num_blocks + 1))
        self._locked: dict[int, tuple[Node, int]] = {}  # request id -> its node, and how many of its blocks lead there

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, those that would have to be evicted included."""
        return len(self._free) + self.tree.evictable // self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, request) -> list[int]:
        """Cached blocks of the longest prefix, at least one token left to compute. Nothing is locked yet."""
        if not request.read_cache:
            return []
        return self.tree.match(request.token_ids[: request.num_tokens - 1], request.keys).blocks

    def allocate(self, request, stop: int, *, hit: Sequence[int] = (), room_for: int = 0) -> bool:
        """As CacheManager.allocate: blocks for tokens [0, stop), all or nothing."""
        if request.id not in self._locked:
            cached = self.tree.match(request.token_ids[: len(hit) * self.block_size], request.keys)
            self.tree.lock(cached.node)  # first, so that its own hit is not evicted to make room for it
            self._locked[request.id] = cached.node, len(cached.blocks)
        have = len(request.block_table) + len(hit)
        new = max(self.blocks_for(stop) - have, 0)
        if max(new, self.blocks_for(room_for) - have) > self.num_free:
            if not request.block_table:
                self._unlock(request)
            return False
        if new > len(self._free):
            self.version += 1
            self._free.extend(self.tree.evict((new - len(self._free)) * self.block_size))
        request.block_table += [*hit, *(self._free.popleft() for _ in range(new))]
        return True

    def publish(self, request, start: int, stop: int) -> None:
        """Put the full blocks of tokens [0, stop) into the tree; copies of what it has already become free."""
        if start // self.block_size == stop // self.block_size:
            return
        self.version += 1
        tokens = request.token_ids[: stop // self.block_size * self.block_size]
        self.tree.insert(tokens, request.block_table, request.keys)
        cached = self.tree.match(tokens, request.keys)
        for i, block in enumerate(cached.blocks):
            if request.block_table[i] != block:
                self._free.append(request.block_table[i])
                request.block_table[i] = block
        self.tree.lock(cached.node)
        self._unlock(request)
        self._locked[request.id] = cached.node, len(cached.blocks)

    def release(self, request) -> None:
        """Private blocks become free, the tail first; what is in the tree stays until it is evicted."""
        if request.id in self._locked:
            private = request.block_table[self._unlock(request) :]
            self._free.extend(reversed(private))
        request.block_table = []

    def count_lookup(self, request) -> None:
        """Count the look-up of a request that was admitted, unless it was preempted before."""
        if request.read_cache and not request.num_preemptions:
            self.stats.count(request.num_tokens, request.num_cached)

    def reset(self) -> None:
        """Forget everything, whatever state it was left in: all blocks are free, nothing is found."""
        self.tree = RadixCache(self.block_size)
        self._free = deque(range(1, self.num_blocks + 1))
        self._locked = {}
        self.version += 1

    def forget_prefixes(self) -> None:
        """No block is found any more. ValueError while requests hold some: the tree owns blocks that they share."""
        if self._locked:
            raise ValueError(f"requests {sorted(self._locked)[:8]} hold blocks of the tree; let them finish first.")
        self.reset()

    def _unlock(self, request) -> int:
        node, num_blocks = self._locked.pop(request.id)
        self.tree.unlock(node)
        return num_blocks

    def check(self, requests: Iterable) -> None:
        """Assert that each block is free, in the tree or private, once."""
        self.tree.check()
        tables = {r.id: r.block_table for r in requests}
        assert tables.keys() == self._locked.keys(), f"{tables.keys()} hold blocks, {self._locked.keys()} hold locks"
        private = [block for i, table in tables.items() for block in table[self._locked[i][1] :]]
        outside = [*self._free, *private]
        cached = (self.tree.evictable + self.tree.protected) // self.block_size
        assert len(set(outside)) == len(outside), f"free or private twice: {sorted(outside)}"
        assert len(outside) + cached == self.num_blocks, f"{len(outside)} + {cached} is not {self.num_blocks}: lost"
        for i, table in tables.items():
            node, num_blocks = self._locked[i]
            assert node.lock > 0 and len(table) >= num_blocks, f"request {i}: {num_blocks} cached of {table}"
