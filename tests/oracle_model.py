"""A model whose KV is the truth: each slot remembers the tokens that produced it.

OracleModel stands in for a Model in the engine. What a slot holds is a number made from the token written there,
its position, and what the slot before it in the request held, so a slot equals `content(prefix)` only if the whole
beginning was computed, in the right slots, from the right tokens. Logits follow from that number.
"""

from types import SimpleNamespace

import numpy as np

EMPTY, TORN = None, "torn by a step that failed"


class Failure(Exception):
    """Injected into a forward."""


def extend(before: int, token: int, position: int) -> int:
    return hash((before, token, position))  # of integers: the same in every process


def content(token_ids) -> int:
    """What the slot of the last of these tokens holds if all of them were computed right."""
    value = 0
    for position, token in enumerate(token_ids):
        value = extend(value, token, position)
    return value


class OraclePool:
    def __init__(self, num_blocks: int, block_size: int):
        self.block_size = block_size
        self.cells: list = [EMPTY] * (num_blocks * block_size)

    def slot(self, block_table, position: int) -> int:
        block = block_table[position // self.block_size]  # IndexError: past the table
        assert block > 0, "the null block was allocated"
        return block * self.block_size + position % self.block_size


class OracleModel:
    """fail: None, or "before" or "after" its writes, for the next forward only."""

    def __init__(self, vocab_size: int):
        self.config, self.max_model_len = SimpleNamespace(vocab_size=vocab_size), 10**6
        self.fail: str | None = None
        self.tables: list[list[int]] = []  # block tables of the last forward, in batch order
        self.watch = lambda chunks: None  # called with the chunks of every forward

    def new_pool(self, num_blocks: int, block_size: int) -> OraclePool:
        return OraclePool(num_blocks, block_size)

    def forward(self, chunks, pool, wiring):
        """As Model.forward: all chunks write before any of them reads, as each layer of a real model does."""
        fail, self.fail = self.fail, None
        self.tables = [list(chunk.block_table) for chunk in chunks]
        self.watch(chunks)
        if fail == "before":
            raise Failure
        written: dict[int, tuple] = {}  # slot -> (token, its position, slot before it)
        for chunk in chunks:
            assert len(chunk.token_ids) >= 1, "a chunk of no tokens"
            before = pool.slot(chunk.block_table, chunk.start - 1) if chunk.start else None
            given = self._positions(chunk, wiring)
            for position, token in enumerate(chunk.token_ids, chunk.start):
                slot = pool.slot(chunk.block_table, position)
                assert slot not in written, "two tokens of a step share a slot"
                written[slot] = (token, given[position - chunk.start], before)
                before = slot
        if fail == "after":
            for slot in written:
                pool.cells[slot] = TORN
            raise Failure
        for slot in list(written):
            self._resolve(slot, written, pool)
        rows = []
        for chunk in chunks:
            for position in range(self.read_to(chunk, pool)):  # attention reads them all
                held = pool.cells[pool.slot(chunk.block_table, position)]
                assert held is not EMPTY, f"attention reads position {position}, which nobody has written"
            if chunk.wants_logits:
                last = pool.cells[pool.slot(chunk.block_table, chunk.start + len(chunk.token_ids) - 1)]
                rows.append(self.logits(last))
        return np.array(rows).reshape(len(rows), self.config.vocab_size)

    def read_to(self, chunk, pool: OraclePool) -> int:
        """How many of the request's slots attention reads."""
        return chunk.start + len(chunk.token_ids)

    def _positions(self, chunk, wiring) -> list[int]:
        """The positions that the engine's functions give; those of a row with a wrong mask are wrong as well."""
        take, cached = len(chunk.token_ids), chunk.cached
        call = (cached, chunk.start - cached, take)
        given = list(wiring.positions(*call)) if wiring.positions else list(range(chunk.start, chunk.start + take))
        if wiring.mask is not None:
            mask = wiring.mask(take, chunk.start)
            for row in range(take):
                if list(mask[row]) != [key <= chunk.start + row for key in range(chunk.start + take)]:
                    given[row] = -1
        return [int(position) for position in given]

    def _resolve(self, slot: int, written: dict, pool: OraclePool) -> None:
        """Fill `slot`, after the slots before it that this step writes as well (a twin's, with same-step hits)."""
        chain = []
        while slot in written:
            chain.append((slot, *written.pop(slot)))
            slot = chain[-1][3]
        for slot, token, position, before in reversed(chain):
            held = 0 if before is None else pool.cells[before]
            assert isinstance(held, int), f"slot {before} holds {held}, and a token after it is computed from it"
            pool.cells[slot] = extend(held, token, position)

    def logits(self, held) -> np.ndarray:
        """[vocab_size]: any numbers, as long as they follow from what the slot holds."""
        assert isinstance(held, int), f"logits from a slot that holds {held}"
        return np.array([hash((held, token)) % 1000 / 100 for token in range(self.config.vocab_size)])
