"""A radix tree of cached prompts, as SGLang's class of the same name: which blocks hold the beginning of this prompt?

A node is a run of whole blocks. Prompts that begin alike share their nodes from the root down, and part where their
blocks first differ. A block is the tree's until `evict` returns it. A match that ends inside a node cuts it in two:

    insert 1 2 3 4 5 6        root - [1 2 3 4 5 6]
    match  1 2 3 9 -> 3       root - [1 2 3] - [4 5 6]
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Node:
    """Tokens that one run of blocks holds. Outside this file: a handle for `lock` and `unlock`, nothing more."""

    tokens: tuple = ()
    blocks: tuple = ()  # one number for each block_size tokens
    edge: tuple = ()  # this node's key in parent.children: (namespace, tokens of its first block)
    parent: "Node | None" = None  # None: the root, or no longer in the tree
    used: int = 0  # the tree's clock when a match or an insert last came through
    lock: int = 0  # locks held on this node or on anything below it
    children: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """The cached beginning of a prompt."""

    num_tokens: int  # a multiple of block_size
    blocks: list[int]  # one for each whole block, in token order
    node: Node = field(repr=False)  # where it ends: lock it before the next evict


class RadixCache:
    """Finds, keeps and gives up cached prefixes, in whole blocks of `block_size` tokens (SGLang: pages).

    `keys` are (kind, value) pairs, in any order, that separate caches: (("salt", "s1"),) shares nothing with ().
    """

    def __init__(self, block_size: int = 1):
        if block_size < 1:
            raise ValueError(f"block_size={block_size}; a block holds at least 1 token.")
        self.block_size, self.protected = block_size, 0  # protected: tokens in locked nodes
        self._root = Node()
        self._held: set[int] = set()  # every block in the tree
        self._clock = 0  # counts matches and inserts: the same calls evict the same leaves on every machine

    @property
    def evictable(self) -> int:
        """Tokens in unlocked nodes: `evict` can free them all, since nothing locked is ever below them."""
        return len(self._held) * self.block_size - self.protected

    def match(self, token_ids: Sequence[int], keys: Sequence[tuple] = ()) -> Match:
        """The longest cached beginning of `token_ids`, in whole blocks; it counts as used now.

        A request must keep a token to compute: it passes token_ids[:-1]. ValueError if `keys` are not pairs.
        """
        path, num_tokens, inside = self._walk(tuple(token_ids), keys)
        node = self._arrive(path, inside)
        return Match(num_tokens, [block for n in path for block in n.blocks], node)

    def insert(self, token_ids: Sequence[int], blocks: Sequence[int], keys: Sequence[tuple] = ()) -> int:
        """Put the whole blocks of `token_ids` in the tree; returns how many leading tokens were there already.

        `blocks` is the block table; what lies past the last whole block is ignored. Where tokens were there already
        the tree keeps its own blocks, and the caller may free those that differ. ValueError, and nothing changes, if
        `keys` are not pairs, or `blocks` is too short, repeats a block, or names one that holds other tokens here.
        """
        count = len(token_ids) // self.block_size
        if len(blocks) < count:
            raise ValueError(f"{len(blocks)} blocks for {len(token_ids)} tokens, not {count}: pass the block table.")
        tokens = tuple(token_ids[: count * self.block_size])
        path, num_cached, inside = self._walk(tokens, keys)
        known = [block for node in path for block in node.blocks][: num_cached // self.block_size]
        blocks = tuple(blocks[:count])
        taken = [block for i, block in enumerate(blocks) if block in self._held and known[i : i + 1] != [block]]
        if taken or len(set(blocks)) < count:
            what = f"block {taken[0]} already holds other tokens" if taken else f"{list(blocks)} repeats a block"
            raise ValueError(f"{what}. Was it freed while in use? A block of the tree is free when evict returns it.")
        parent = self._arrive(path, inside)
        if num_cached < len(tokens):
            rest, new = tokens[num_cached:], blocks[len(known) :]
            edge = (tuple(sorted(keys)), rest[: self.block_size])
            parent.children[edge] = Node(rest, new, edge, parent, used=self._clock)
            self._held.update(new)
        return num_cached

    def lock(self, node: Node) -> None:
        """Keep a match from eviction until `unlock`: +1 on its node and on all above. ValueError if it was evicted."""
        for n in self._to_root(node):
            self.protected += 0 if n.lock else len(n.tokens)
            n.lock += 1

    def unlock(self, node: Node) -> None:
        """Take back one `lock` of the same node. ValueError, and nothing changes, if it has none of its own."""
        path = self._to_root(node)
        if node.lock == (below := sum(child.lock for child in node.children.values())):
            raise ValueError(f"this node is not locked ({below} locks are further down): unlock once for each lock.")
        for n in path:
            n.lock -= 1
            self.protected -= 0 if n.lock else len(n.tokens)

    def evict(self, num_tokens: int) -> list[int]:
        """Free `num_tokens` tokens or more: unlocked leaves, the least recently used first, each one whole.

        Returns the freed blocks, a leaf's tail first; fewer if the rest is locked. ValueError for a negative number.
        """
        if num_tokens < 0:
            raise ValueError(f"num_tokens={num_tokens}; ask for 0 or more tokens to free.")
        # No two leaves have the same time, since a call marks one path: heapq never compares the nodes themselves.
        freed, heap = [], sorted((node.used, node) for _, node in self._nodes() if self._is_candidate(node))
        while heap and len(freed) * self.block_size < num_tokens:
            _, leaf = heapq.heappop(heap)
            freed.extend(reversed(leaf.blocks))
            self._held.difference_update(leaf.blocks)
            parent, leaf.parent = leaf.parent, None  # a late lock on the leaf is refused
            del parent.children[leaf.edge]
            if self._is_candidate(parent):  # that was its last child
                heapq.heappush(heap, (parent.used, parent))
        return freed

    def rows(self) -> list[tuple[int, list[int], int, int]]:
        """(depth, token ids, number of tokens, lock) of each node, parents first: for drawings and tests."""
        return [(depth, list(n.tokens), len(n.tokens), n.lock) for depth, n in self._nodes() if n is not self._root]

    def check(self) -> None:
        """AssertionError, with the numbers, if the bookkeeping does not add up."""
        held, tokens_in = set(), {"locked": 0, "unlocked": 0}
        for depth, node in self._nodes():
            at, size = f"node {list(node.tokens[:6])} at depth {depth}", len(node.tokens)
            assert (size == 0) == (node is self._root), f"{at}: {size} tokens; the root alone has none"
            assert size == len(node.blocks) * self.block_size, f"{at}: {size} tokens in blocks {node.blocks}"
            assert held.isdisjoint(node.blocks), f"{at}: a block of {node.blocks} is in another node too"
            held.update(node.blocks)
            for edge, child in node.children.items():
                want = ((node.edge or edge)[0], child.tokens[: self.block_size])
                assert child.parent is node and child.edge == edge == want, f"{at}: child {want} is under {edge}"
                times = (child.used, node.used, self._clock)
                assert times[0] <= times[1] <= times[2], f"{at}: times of a child, of it and of the clock are {times}"
            locks = [node.lock, *(child.lock for child in node.children.values())]
            assert locks[0] >= sum(locks[1:]), f"{at}: lock {locks[0]}, its children have {locks[1:]}"
            tokens_in["locked" if node.lock else "unlocked"] += size
        assert held == self._held, f"blocks {held ^ self._held} are in no node, or in one and not counted"
        counted = {"locked": self.protected, "unlocked": self.evictable}
        assert counted == tokens_in, f"tokens counted: {counted}, found: {tokens_in}"

    def _walk(self, tokens: tuple, keys: Sequence[tuple]) -> tuple[list[Node], int, int]:
        """Down the tree along `tokens`, changing nothing: nodes from the root, tokens matched, those of the last."""
        for pair in keys:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise ValueError(f'keys hold {pair!r}, expected (kind, value) pairs, as in keys=(("salt", "s1"),).')
        namespace = tuple(sorted(keys))
        path, at, inside, size = [self._root], 0, 0, self.block_size
        while at + size <= len(tokens) and inside == len(path[-1].tokens):
            child = path[-1].children.get((namespace, tokens[at : at + size]))  # a whole block, not its 1st token
            if child is None:
                break
            path.append(child)
            inside, at = size, at + size
            while inside < len(child.tokens) and child.tokens[inside : inside + size] == tokens[at : at + size]:
                inside, at = inside + size, at + size
        return path, at, inside

    def _arrive(self, path: list[Node], inside: int) -> Node:
        """Cut the last node of `path` if the match ends inside it, mark the path as used now, return its end."""
        node, cut = path[-1], inside // self.block_size
        if inside < len(node.tokens):
            # The old object stays the lower part, so a handle still ends where its match ended.
            upper = Node(node.tokens[:inside], node.blocks[:cut], node.edge, node.parent, lock=node.lock)
            node.tokens, node.blocks, node.parent = node.tokens[inside:], node.blocks[cut:], upper
            node.edge = (node.edge[0], node.tokens[: self.block_size])
            upper.parent.children[upper.edge], upper.children[node.edge], path[-1] = upper, node, upper
        self._clock += 1
        for node in path:  # not the part cut off, which the call did not reach (SGLang marks it as well)
            node.used = self._clock
        return path[-1]

    def _is_candidate(self, node: Node) -> bool:
        return not node.children and node.lock == 0 and node is not self._root

    def _to_root(self, node: Node) -> list[Node]:
        """The node and all above it. ValueError if that does not end at this tree's root."""
        path = [node]
        while getattr(path[-1], "parent", None) is not None:
            path.append(path[-1].parent)
        if path[-1] is not self._root:
            raise ValueError("this node is not in the tree: evicted since, or of another tree. Lock right after match.")
        return path

    def _nodes(self) -> Iterator[tuple[int, Node]]:
        """(depth, node), parents first, the root at depth -1. A stack: a chain of nodes may be thousands deep."""
        stack = [(-1, self._root)]
        while stack:
            depth, node = stack.pop()
            yield depth, node
            stack.extend((depth + 1, child) for child in reversed(node.children.values()))
