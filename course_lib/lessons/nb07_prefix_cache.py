"""A prefix cache in the small, as notebook 07 builds it. The engine's own is cache/: allocator, prefix, manager, radix.

Integers and hashes only. `tests/test_nb07.py` holds these to the same decisions as the engine's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


class PrefixCache:
    """Finds a block by its chained hash. It fits into the engine: Engine(model, prefix_cache=PrefixCache(num_blocks)).

    A hash can have several blocks, computed by several requests; the one that was published first is found.
    """

    def __init__(self, num_blocks: int):
        """No block is found yet. The blocks are numbered 1 .. num_blocks."""
        self.hashes: list = [None] * (num_blocks + 1)  # of each block; None: it is not found
        self.blocks: dict = {}  # hash -> its blocks, the first published first

    def __contains__(self, block: int) -> bool:
        """Whether the block can be found, by whatever hash: `block in cache`."""
        return self.hashes[block] is not None

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest cached beginning: one for each hash, up to the first that is not found. A new list."""
        found = []
        for value in hashes:
            if value not in self.blocks:
                break
            found.append(self.blocks[value][0])
        return found

    def publish(self, value: bytes, block: int) -> None:
        """From now on the block is found by this hash. Publishing a block again, by any hash, changes nothing."""
        if self.hashes[block] is None:
            self.hashes[block] = value
            self.blocks.setdefault(value, []).append(block)

    def forget(self, block: int) -> None:
        """The block is found no more: another request is about to write into it. It was published before."""
        value = self.hashes[block]
        self.hashes[block] = None
        self.blocks[value].remove(block)
        if not self.blocks[value]:
            del self.blocks[value]


class Allocator:
    """Blocks 1 .. num_blocks, each free or held by requests. It never sees a token.

    refs   refs[block]: how many block tables hold the block; place 0 is unused
    free   the blocks that no table holds, the next to be allocated first
    """

    def __init__(self, num_blocks: int):
        """All blocks are free, in the order of their numbers."""
        self.refs = [0] * (num_blocks + 1)
        self.free = list(range(1, num_blocks + 1))

    def allocate(self, count: int) -> list[int] | None:
        """Give the first `count` free blocks one holder each, in a new list; None if there are fewer.

        Nothing changes then.
        """
        if count > len(self.free):
            return None
        blocks, self.free = self.free[:count], self.free[count:]
        for block in blocks:
            self.refs[block] = 1
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """One more holder for each of the blocks, whether it is held or free. A held block is not free."""
        for block in blocks:
            if self.refs[block] == 0:
                self.free.remove(block)
            self.refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each block of a table, which is in token order. A block with none left is free.

        Freed blocks go to the end of `free`: the table's last block first, so that it is allocated before the others.
        ValueError, and nothing changes, if one of the blocks has no holder.
        """
        if any(self.refs[block] == 0 for block in blocks):
            raise ValueError(f"no request holds some of {blocks}: were they released twice?")
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)


class RequestCache:
    """What a scheduler asks of the cache: a block table for a new request, and to publish what it has computed."""

    def __init__(self, allocator, prefix, block_size: int):
        """Keep the three: an Allocator and a PrefixCache, both perhaps in use already, and the tokens in a block."""
        self.allocator, self.prefix, self.block_size = allocator, prefix, block_size

    def admit(self, num_tokens: int, hashes: Sequence[bytes]) -> list[int] | None:
        """The block table for a request's `num_tokens` tokens: its hit first, new blocks behind it.

        hashes   one for each full block of the request, in token order
        returns  the table, a new list; None, and nothing changes, when there are not enough free blocks

        The hit is as long as it can be while one token is left to compute. Its blocks get one more holder. A new block
        that can still be found by what it held before is forgotten.
        """
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

    def commit(self, table: Sequence[int], hashes: Sequence[bytes], start: int, stop: int) -> None:
        """Tokens [start, stop) have been computed, and all before them: publish the blocks that this has filled."""
        for place in range(start // self.block_size, stop // self.block_size):
            self.prefix.publish(hashes[place], table[place])


@dataclass(eq=False)
class Node:
    """A run of blocks in a tree: `pages[i]` are the tokens that `blocks[i]` holds.

    children   by the first page of each
    """

    pages: list[tuple[int, ...]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    children: dict = field(default_factory=dict)


def pages_of(token_ids: Sequence[int], block_size: int) -> list[tuple[int, ...]]:
    """The tokens of each whole block; what is left over at the end is not in it."""
    whole = len(token_ids) // block_size * block_size
    return [tuple(token_ids[i : i + block_size]) for i in range(0, whole, block_size)]


def common(a: Sequence, b: Sequence) -> int:
    """How many items `a` and `b` have in common at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class RadixTree:
    """Finds cached beginnings without hashes: prompts that begin alike share their nodes from the root down."""

    def __init__(self, block_size: int):
        """An empty tree: the root, a Node without pages."""
        self.block_size, self.root = block_size, Node()

    def match(self, token_ids: Sequence[int]) -> list[int]:
        """Blocks of the longest cached beginning, in whole blocks, as a new list. Changes nothing."""
        pages, node, found = pages_of(token_ids, self.block_size), self.root, []
        while len(found) < len(pages) and pages[len(found)] in node.children:
            node = node.children[pages[len(found)]]
            same = common(node.pages, pages[len(found) :])
            found += node.blocks[:same]
            if same < len(node.pages):
                break
        return found

    def insert(self, token_ids: Sequence[int], blocks: Sequence[int]) -> int:
        """Put the whole blocks of `token_ids` in; returns how many of them were there already.

        Those keep the tree's own blocks. A node in which the prompt parts from it, or ends, is cut in two there: the
        node keeps the upper part, and the lower part becomes its child. What is new becomes one child, which keeps no
        list of the caller's.
        """
        pages, node, known = pages_of(token_ids, self.block_size), self.root, 0
        while known < len(pages) and pages[known] in node.children:
            node = node.children[pages[known]]
            same = common(node.pages, pages[known:])
            if same < len(node.pages):
                lower = Node(node.pages[same:], node.blocks[same:], node.children)
                node.pages, node.blocks, node.children = node.pages[:same], node.blocks[:same], {lower.pages[0]: lower}
            known += same
        if known < len(pages):
            node.children[pages[known]] = Node(pages[known:], list(blocks[known : len(pages)]))
        return known


def serve_prompts(
    prompts: Sequence[Sequence[int]], *, num_blocks: int, block_size: int, block_hash, allocator, prefix, cache
) -> tuple[list[int], str]:
    """Serve prompts, two at a time, with the parts given, and watch what a request would read.

    block_hash               a function; allocator, prefix, cache: classes, as above
    returns                  tokens that hit, of each prompt served; and the first trouble in words, "" if there is none

    Every slot of the pool notes the tokens that it was computed from: what K and V depend on. A slot that a request
    reads must have been computed from its own beginning.
    """
    pool, index, hits, running, slots = allocator(num_blocks), prefix(num_blocks), [], [], {}
    requests, new, original = cache(pool, index, block_size), [], pool.allocate

    def allocate(count):  # notes which blocks are new to a request: the others of its table are its hit
        blocks = original(count)
        new.extend(blocks or ())
        return blocks

    pool.allocate = allocate
    try:
        for tokens in prompts:
            parent, hashes = bytes(32), []
            for page in pages_of(tokens, block_size):
                hashes.append(parent := block_hash(parent, page))
            if len(running) == 2:
                pool.release(running.pop(0)[2])
            new.clear()
            while (blocks := requests.admit(len(tokens), hashes)) is None:
                if not running:
                    return hits, f"a prompt of {len(tokens)} tokens is refused though no request runs"
                pool.release(running.pop(0)[2])
            hits.append(sum(block not in new for block in blocks) * block_size)
            if hits[-1] >= len(tokens):
                return hits, "the whole prompt is attached: no token is left to compute, so there are no logits"
            running.append([tuple(tokens), hashes, blocks, hits[-1]])
            for request in reversed(running):  # each computes one chunk, which may end inside a block
                if trouble := _compute_chunk(request, requests, slots, block_size):
                    return hits, trouble
        for request in running:
            pool.release(request[2])
    except Exception as error:
        return hits, f"{type(error).__name__}: {error}"
    if len(pool.free) != num_blocks or len(set(pool.free)) != num_blocks:
        return hits, f"all requests are gone, and {len(set(pool.free))} of {num_blocks} blocks are free"
    return hits, ""


def _compute_chunk(request: list, requests: RequestCache, slots: dict, block_size: int) -> str:
    """Compute the request's next tokens, and commit them. Returns what is wrong with a slot that they read, or ""."""
    tokens, hashes, blocks, start = request
    stop = min(start + 2 * block_size + 1, len(tokens))
    if start == stop:
        return ""
    for position in range(start, stop):
        slots[blocks[position // block_size], position % block_size] = tokens[: position + 1]
    for position in range(stop):
        seen = slots.get((blocks[position // block_size], position % block_size))
        if seen != tokens[: position + 1]:
            what = "nothing was written" if seen is None else "the keys of another text stand"
            return f"a request reads the slot of its position {position}, where {what}"
    requests.commit(blocks, hashes, start, stop)
    request[3] = stop
    return ""
