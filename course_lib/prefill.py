"""Prefill a prompt in chunks, with a prefix attached and other requests beside it, and read back its KV.

What a request leaves in the cache is the same, bit for bit, whatever the cut, the prefix and the requests
beside it (in the `exact` and `tile` arithmetics).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from course_lib.arithmetic.arrays import bfloat16_to_float32, bits
from course_lib.model import DEFAULT_WIRING, ChunkInput, Model, Wiring


@dataclass(frozen=True)
class KVSnapshot:
    """What a prefill left: the request's keys and values as read through its block table, and its logits.

    k, v      [layers, tokens, kv_heads, head_dim]
    logits    [vocab_size] of the last token
    dtype     float32 and float16 as such; "bfloat16" arrays hold the bits as uint16
    """

    k: np.ndarray
    v: np.ndarray
    logits: np.ndarray
    dtype: str = "float32"

    def equals(self, other: "KVSnapshot") -> bool:
        """Equal bits throughout, but that +0 and -0 count as one value, and all NaNs as one."""
        return self.dtype == other.dtype and self.sha256() == other.sha256()

    def sha256(self) -> dict[str, str]:
        """Hash of k, v and logits: bytes in C order, little-endian, -0 taken as +0 (as by adding +0.0) and every NaN
        as one and the same: the sign of a zero and the payload of a NaN decide no token."""
        arrays = {"k": self.k, "v": self.v, "logits": self.logits}
        return {name: hashlib.sha256(_canonical(x).tobytes()).hexdigest() for name, x in arrays.items()}

    def values(self, name: str) -> np.ndarray:
        """The array called k, v or logits as float32, each value unchanged."""
        array = getattr(self, name)
        return bfloat16_to_float32(array) if self.dtype == "bfloat16" else array.astype(np.float32)


def cut(length: int, size: int) -> list[int]:
    """Chunk lengths that add up to `length`: all of `size`, the last one what is left."""
    if length < 1 or size < 1:
        raise ValueError(f"cannot cut {length} tokens into chunks of {size}; both must be at least 1.")
    return [min(size, length - first) for first in range(0, length, size)]


def ragged(length: int, seed: int = 0) -> list[int]:
    """Random chunk lengths of 1 .. 100 tokens that add up to `length`, the same for a seed on every machine."""
    words, sizes = np.random.PCG64(seed), []
    while length:
        sizes.append(min(length, 1 + int(words.random_raw()) % 100))
        length -= sizes[-1]
    return sizes


def token_ids(length: int, vocab_size: int) -> list[int]:
    """A prompt of pseudo-random tokens, the same on every machine (PCG64's raw stream)."""
    return (np.random.PCG64(7).random_raw(length) % np.uint64(vocab_size)).astype(int).tolist()


def one_pass(model: Model, token_ids: Sequence[int], *, block_size: int = 16) -> KVSnapshot:
    """The reference: the whole prompt in one chunk, nothing cached, no other request in the batch."""
    return prefill(model, token_ids, [len(token_ids)], block_size=block_size)


def prefill(
    model: Model, token_ids: Sequence[int], sizes: Sequence[int], *, hit: int = 0, block_size: int = 16,
    beside: Sequence[Sequence[int]] = (), mask=None, positions=None, key_positions=None,
    wiring: Wiring = DEFAULT_WIRING, after_attach=None, fill: float = np.nan,
) -> KVSnapshot:  # fmt: skip
    """Run a prompt through `model` in chunks and return what it left in the cache.

    sizes      chunk lengths, in order; they add up to len(token_ids) - hit
    hit        tokens attached from the prefix cache: another request has computed them, in one pass. Its whole
               blocks are shared; a block that it fills in part is copied, since this request writes the rest of it.
    beside     other requests, as token ids. Each decodes one of its last tokens in every step; all tokens before
               those are computed first. So it needs more tokens than there are steps
    mask, positions, key_positions   a learner's functions, in place of the library's (model.Wiring)
    wiring     more places to put a fault; after_attach(pool, block_table) may spoil the attached prefix
    fill       what slots hold before they are written

    Raises ValueError when the sizes do not add up, hit is not in 0 .. len(token_ids) - 1, the prompt is longer than
    model.max_model_len, or one beside is too short.
    """
    token_ids, sizes = [int(t) for t in token_ids], [int(s) for s in sizes]
    _check(token_ids, sizes, hit, beside, block_size)
    if len(token_ids) > model.max_model_len:
        raise ValueError(f"a prompt of {len(token_ids)} tokens is too long: {model.why_no_longer}")
    given = {"mask": mask, "positions": positions, "key_positions": key_positions}
    wiring = replace(wiring, **{name: f for name, f in given.items() if f is not None})

    requests = [token_ids, token_ids[:hit], *beside]
    tables = _interleaved_tables([-(-len(ids) // block_size) for ids in requests])
    pool = model.new_pool(1 + sum(len(t) for t in tables), block_size, fill)
    table, prefix_table, beside_tables = tables[0], tables[1], tables[2:]
    if hit:
        model.forward([ChunkInput(token_ids[:hit], 0, prefix_table)], pool)
        whole = hit // block_size
        table[:whole] = prefix_table[:whole]
        if hit % block_size:
            pool.copy_block(prefix_table[whole], table[whole])
        if after_attach is not None:
            after_attach(pool, table)
    computed = [len(ids) - len(sizes) for ids in beside]
    if beside:
        model.forward([ChunkInput(ids[:n], 0, t) for ids, n, t in zip(beside, computed, beside_tables)], pool)

    start, logits = hit, None
    place = len(beside) // 2  # in the middle of the batch: nothing may depend on being its first or last chunk
    for step, size in enumerate(sizes):
        stop = start + size
        chunks = [
            ChunkInput([ids[n + step]], n + step, t, wants_logits=True)
            for ids, n, t in zip(beside, computed, beside_tables)
        ]
        last = stop == len(token_ids)
        chunks.insert(place, ChunkInput(token_ids[start:stop], start, table, cached=hit, wants_logits=last))
        logits = model.forward(chunks, pool, wiring)
        start = stop
    slots = pool.slots(table, 0, len(token_ids))
    if wiring.read_slots is not None:
        slots = wiring.read_slots(slots, hit)
    k, v = pool.kv_in(slots)
    return KVSnapshot(*(bits(x) for x in (k, v, logits[place])), dtype=str(k.dtype).removeprefix("torch."))


def _check(token_ids: list[int], sizes: list[int], hit: int, beside: Sequence[Sequence[int]], block_size: int) -> None:
    if block_size < 1:
        raise ValueError(f"block_size={block_size}; a block has at least 1 slot.")
    if not 0 <= hit < max(len(token_ids), 1):
        raise ValueError(
            f"a hit of {hit} tokens on a prompt of {len(token_ids)}: at least one token must be left to compute."
        )
    if not sizes or min(sizes) < 1 or sum(sizes) != len(token_ids) - hit:
        raise ValueError(
            f"chunk lengths {sizes[:8]} add up to {sum(sizes)}; {len(token_ids)} tokens less a hit of {hit} are wanted."
        )
    for number, ids in enumerate(beside):
        if len(ids) <= len(sizes):
            raise ValueError(
                f"request {number} beside has {len(ids)} tokens, but decodes one in each of {len(sizes)} steps."
            )


def _interleaved_tables(num_blocks: list[int]) -> list[list[int]]:
    """Block tables of the wanted lengths over blocks 1, 2, ..., dealt in turn and reversed.

    So no table is a run of neighbouring blocks, and block 0 (the null block) is in none.
    """
    tables: list[list[int]] = [[] for _ in num_blocks]
    block = 1
    for turn in range(max(num_blocks)):
        for table, length in zip(tables, num_blocks):
            if turn < length:
                table.append(block)
                block += 1
    return [table[::-1] for table in tables]


def _canonical(x: np.ndarray) -> np.ndarray:
    """Little-endian copy with one zero and one NaN, so that equal values have equal bytes."""
    if x.dtype == np.uint16:  # bfloat16 bits
        x = np.where(x == 0x8000, 0, x)
        return np.where((x & 0x7FFF) > 0x7F80, 0x7FC0, x).astype("<u2")
    return np.where(np.isnan(x), x.dtype.type(np.nan), x + x.dtype.type(0)).astype(x.dtype.newbyteorder("<"))
