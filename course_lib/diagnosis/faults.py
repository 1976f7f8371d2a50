"""Known faults of chunked prefill, kept so that they can be replayed.

Each fault is the right engine with one mistake in it. Replaying a fault on the same prompt, cut and
prefix gives the KV that exactly this mistake leaves; a learner's KV with the same hash has the same mistake.
`seen` says where the first difference shows (s: start of the first affected chunk).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from course_lib.model import ChunkInput, Model, Wiring
from course_lib.prefill import KVSnapshot, one_pass, prefill


@dataclass(frozen=True)
class Scenario:
    """What was run: the prompt, its cut, the attached prefix. Faults are replayed on it."""

    model: Model
    token_ids: Sequence[int]
    sizes: Sequence[int]
    hit: int = 0
    block_size: int = 16

    def run(self, fault: "Fault | None" = None) -> KVSnapshot:
        """The KV that `fault` leaves here; the right KV without one. ValueError if the fault cannot occur here."""
        changes = fault.build(self) if fault else {}
        model = changes.pop("model", self.model)
        return prefill(model, self.token_ids, self.sizes, hit=self.hit, block_size=self.block_size, **changes)


@dataclass(frozen=True)
class Fault:
    """name; what the mistake is, in a sentence; where it shows; and the prefill arguments that make it."""

    name: str
    what: str
    seen: str
    build: Callable[[Scenario], dict] = field(repr=False)


# --- positions


def _positions(rule: Callable[[int, int, int], int]) -> Callable[[Scenario], dict]:
    """Positions that count up from rule(cached, computed, take)."""
    return lambda s: {"positions": lambda cached, computed, take: rule(cached, computed, take) + np.arange(take)}


def _chunk_index_times_size(s: Scenario) -> dict:
    starts = np.cumsum([0, *s.sizes])
    size = s.sizes[0]
    return {
        "positions": lambda cached, done, take: cached + int(np.searchsorted(starts, done)) * size + np.arange(take)
    }


def _relative_keys(s: Scenario) -> dict:
    return {"key_positions": lambda cached, computed, take: np.arange(take)}


def _relative_queries(s: Scenario) -> dict:
    right = lambda cached, computed, take: cached + computed + np.arange(take)  # noqa: E731
    return {**_positions(lambda cached, computed, take: 0)(s), "key_positions": right}


# --- masks


def _mask(change: Callable[[np.ndarray, np.ndarray, int], np.ndarray]) -> Callable[[Scenario], dict]:
    """mask = change(query row in the chunk [chunk_len, 1], key [1, keys], cached_len)."""

    def mask(chunk_len: int, cached_len: int) -> np.ndarray:
        row, key = np.arange(chunk_len)[:, None], np.arange(cached_len + chunk_len)[None, :]
        return np.broadcast_to(change(row, key, cached_len), (chunk_len, cached_len + chunk_len))

    return lambda s: {"mask": mask}


def _hides_last_cached(row, key, cached):
    return (key <= cached + row) & ((key != cached - 1) | (cached == 0))


# --- writes and blocks


def _writes(target: Callable[[np.ndarray, int], np.ndarray]) -> Callable[[Scenario], dict]:
    return lambda s: {"wiring": Wiring(write_slots=target)}


def _prefix_block(s: Scenario) -> int:
    """A whole block inside the hit, not the first if there is another."""
    whole = s.hit // s.block_size
    if not whole:
        raise ValueError(f"a hit of {s.hit} tokens holds no whole block of {s.block_size}: this fault cannot occur.")
    return min(1, whole - 1)


def _shared_block_mutated(s: Scenario) -> dict:
    if not s.hit:
        raise ValueError("nothing is attached: this fault cannot occur.")

    def spoil(pool, table):
        target = pool.slots(table, s.hit // 2, s.hit // 2 + 1)
        pool.k[:, target], pool.v[:, target] = pool.v[:, target], pool.k[:, target]

    return {"after_attach": spoil}


def _stale_block(s: Scenario) -> dict:
    """The block has been allocated to another request, which wrote other tokens at the same positions."""
    number = _prefix_block(s)
    return {"after_attach": _block_of_another_prefix(s, number, own_tokens=False)}


def _block_hash_without_parent(s: Scenario) -> dict:
    """The block holds the right tokens at the right positions, computed after another beginning."""
    number = _prefix_block(s)
    if number == 0:
        raise ValueError("the hit's only whole block has no parent: this fault cannot occur.")
    return {"after_attach": _block_of_another_prefix(s, number, own_tokens=True)}


def _block_of_another_prefix(s: Scenario, number: int, own_tokens: bool):
    first, stop = number * s.block_size, (number + 1) * s.block_size
    ids = np.array(s.token_ids[:stop])
    other = (ids + 1) % s.model.config.vocab_size
    if own_tokens:
        other[first:] = ids[first:]

    def spoil(pool, table):
        scratch = s.model.new_pool(number + 1, s.block_size)
        blocks = list(range(number + 1))
        s.model.forward([ChunkInput(other.tolist(), 0, blocks)], scratch)
        source, target = scratch.slots(blocks, first, stop), pool.slots(table, first, stop)
        pool.k[:, target], pool.v[:, target] = scratch.kv_in(source)

    return spoil


def _swapped_blocks(s: Scenario) -> dict:
    whole = s.hit // s.block_size
    if whole < 2:
        raise ValueError(
            f"a hit of {s.hit} tokens holds no two whole blocks of {s.block_size}: this fault cannot occur."
        )

    def swap(slots: np.ndarray, cached: int) -> np.ndarray:
        if cached == 0:  # another request of the batch, without a prefix
            return slots
        slots, b = slots.copy(), s.block_size
        slots[: 2 * b] = np.concatenate([slots[b : 2 * b], slots[:b]])
        return slots

    return {"wiring": Wiring(read_slots=swap)}


def _another_kernel(s: Scenario) -> dict:
    return {"model": s.model.with_arithmetic("plain")}


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "chunk-relative positions",
            "positions restart at 0 in every chunk",
            "layer 0 K from s; layer 0 V clean",
            _positions(lambda cached, computed, take: 0),
        ),
        Fault(
            "positions reset at the prefix",
            "positions count from the end of the attached prefix, not from the start of the request",
            "layer 0 K from s; layer 0 V clean",
            _positions(lambda cached, computed, take: computed),
        ),
        Fault(
            "positions off by one",
            "positions are one too high in every chunk that has tokens before it",
            "layer 0 K from s; layer 0 V clean",
            _positions(lambda cached, computed, take: cached + computed + (cached + computed > 0)),
        ),
        Fault(
            "positions from 1",
            "positions count from 1 instead of 0, everywhere",
            "layer 0 K from the first computed token",
            _positions(lambda cached, computed, take: cached + computed + 1),
        ),
        Fault(
            "chunk index times chunk size",
            "a chunk's first position is taken as chunk index * chunk size, which ragged chunks break",
            "layer 0 K from the first chunk after one of another size",
            _chunk_index_times_size,
        ),
        Fault(
            "chunk-relative key positions",
            "keys are rotated by chunk-relative positions, queries by absolute ones",
            "layer 0 K from s; layer 0 V clean",
            _relative_keys,
        ),
        Fault(
            "chunk-relative query positions",
            "queries are rotated by chunk-relative positions, keys by absolute ones",
            "layer 0 clean; layer 1 from s",
            _relative_queries,
        ),
        Fault(
            "write slot off by one",
            "a chunk's keys and values are stored one slot too far",
            "layer 0 K and V, nearly all from s",
            _writes(lambda slots, start: np.append(slots[start + 1 :], 0)),
        ),
        Fault(
            "last write dropped",
            "the last key and value of a chunk are never stored",
            "layer 0 K and V, only chunk ends",
            _writes(lambda slots, start: np.append(slots[start:-1], 0)),
        ),
        Fault(
            "shared block mutated",
            "a shared block was written to",
            "layer 0 K and V at one position inside the hit",
            _shared_block_mutated,
        ),
        Fault(
            "stale block",
            "a block of the hit has been reused for other tokens",
            "layer 0 K and V, one whole block",
            _stale_block,
        ),
        Fault(
            "block hash without its parent",
            "a block of the hit has the right tokens but was computed after another beginning",
            "layer 0 clean; layer 1, one whole block inside the hit",
            _block_hash_without_parent,
        ),
        Fault(
            "mask hides the last cached key",
            "the mask is False at the last cached key",
            "layer 0 clean; layer 1 from s, small",
            _mask(_hides_last_cached),
        ),
        Fault(
            "mask one ahead",
            "each query also sees the next key",
            "layer 0 clean; layer 1",
            _mask(lambda row, key, cached: key <= cached + row + 1),
        ),
        Fault(
            "no causality in the chunk",
            "each query sees the whole chunk, later tokens included",
            "layer 0 clean; layer 1",
            _mask(lambda row, key, cached: key >= 0),
        ),
        Fault(
            "mask without the cached offset",
            "the mask is anchored at the top left, as is_causal is: row i sees keys 0 .. i",
            "layer 0 clean; layer 1 from s, large",
            _mask(lambda row, key, cached: key <= row),
        ),
        Fault(
            "cached keys missing",
            "each query sees its own chunk only",
            "layer 0 clean; layer 1 from s, large",
            _mask(lambda row, key, cached: (key >= cached) & (key <= cached + row)),
        ),
        Fault(
            "visible blocks swapped",
            "two blocks of the table are read in the wrong order; attention cannot tell, a gather can",
            "layer 0 K and V as gathered, two whole blocks",
            _swapped_blocks,
        ),
        Fault(
            "another kernel",
            "no mistake of logic: an ordinary kernel sums in another order",
            "rounding level, from layer 0 on",
            _another_kernel,
        ),
    )
}


def right(scenario: Scenario) -> KVSnapshot:
    """The one-pass KV that the scenario is judged by."""
    return one_pass(scenario.model, scenario.token_ids, block_size=scenario.block_size)


def replay(scenario: Scenario, snapshot: KVSnapshot) -> list[str]:
    """Names of the faults that leave exactly this KV and these logits in this scenario."""
    wanted, names = snapshot.sha256(), []
    for fault in FAULTS.values():
        try:
            left = scenario.run(fault)
        except ValueError:  # cannot occur here
            continue
        if left.sha256() == wanted:
            names.append(fault.name)
    return names
