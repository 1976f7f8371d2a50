"""The index of the prefix cache as vLLM has it: a table from chained hashes of full blocks to blocks.

A block's hash covers its tokens and its parent's hash, so it names the whole beginning up to its end: equal
hash means equal tokens at equal positions after an equal prefix, which is what K and V depend on. Only full
blocks have one.
"""

import hashlib
import json
from collections.abc import Sequence
from struct import pack

Keys = Sequence[tuple[str, str]]


def root_hash(keys: Keys = ()) -> bytes:
    """The parent of a request's first block: what besides tokens its KV depends on, or may be shared by.

    keys   (kind, value) pairs, such as ("salt", "tenant 7") or ("adapter", "x"). The kind is part of the hash,
           so an adapter that is called like a salt is not mistaken for it
    """
    return hashlib.sha256(json.dumps(sorted(keys)).encode()).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of a full block: SHA-256 of its parent's hash and its tokens, 8 bytes each, little-endian."""
    return hashlib.sha256(parent + pack(f"<{len(token_ids)}q", *token_ids)).digest()


def extend_hashes(hashes: list[bytes], token_ids: Sequence[int], block_size: int, keys: Keys = ()) -> None:
    """Append to `hashes` those of the full blocks of `token_ids` that it does not have yet."""
    full = len(token_ids) // block_size
    if len(hashes) >= full:
        return
    parent = hashes[-1] if hashes else root_hash(keys)
    for block in range(len(hashes), full):
        parent = block_hash(parent, token_ids[block * block_size : (block + 1) * block_size])
        hashes.append(parent)


class PrefixIndex:
    """Which block holds the KV of which beginning. A block computed twice is kept twice; the first is found."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, list[int]] = {}
        self._hashes: dict[int, bytes] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest beginning of the chain that is cached. Takes nothing and changes nothing."""
        blocks = []
        for value in hashes:
            found = self._blocks.get(value)
            if found is None:
                break
            blocks.append(found[0])
        return blocks

    def publish(self, value: bytes, block: int) -> None:
        """From now on `block` is found by `value`: its K and V are complete. Publishing it again changes nothing."""
        if (known := self._hashes.get(block)) is not None:
            if known != value:
                raise ValueError(f"block {block} is published as other content; forget it before it is reused.")
            return
        self._hashes[block] = value
        self._blocks.setdefault(value, []).append(block)

    def forget(self, block: int) -> None:
        """`block` is found no more: it is allocated again, or its step failed. ValueError if it was not published."""
        if block not in self._hashes:
            raise ValueError(f"block {block} is not published, so it cannot be forgotten.")
        value = self._hashes.pop(block)
        blocks = self._blocks[value]
        blocks.remove(block)
        if not blocks:
            del self._blocks[value]

    def clear(self) -> None:
        """Forget every block."""
        self._blocks, self._hashes = {}, {}

    def check(self) -> None:
        """Assert that both directions of the table agree."""
        pairs = sorted((block, value) for value, blocks in self._blocks.items() for block in blocks)
        assert all(self._blocks.values()), "a hash without blocks was left behind"
        assert pairs == sorted(self._hashes.items()), "hash -> blocks and block -> hash disagree"
