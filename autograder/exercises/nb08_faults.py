"""Engines for exercise 8.4: the course's own, right in three ways and wrong in the ways of real ones.

A wrong engine is the right one with one part replaced.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import block_hash, root_hash
from course_lib.cache.radix_manager import RadixManager
from course_lib.engine import Engine
from course_lib.model import Model
from course_lib.schedule.build_step import StepBuilder
from course_lib.schedule.plan import plan_step
from course_lib.schedule.request import Chunk
from course_lib.weights import SEEDED, seeded_model

BLOCK = 4
SIZES = {"hidden_size": 32, "q_heads": 2, "kv_heads": 1, "num_layers": 2, "intermediate_size": 32}
JUNK = 0.5  # what a slot holds before it is written: a wrong read gives wrong numbers and no error


@functools.lru_cache(maxsize=4)
def model_of(seed: int) -> Model:
    """Two layers, exact arithmetic: small, since an engine runs some dozens of steps for each question."""
    return seeded_model(config=replace(SEEDED["tiny"], **SIZES), seed=seed, backend="numpy", arith="exact")


class FullHit(CacheManager):
    """A prompt may be attached to its last token (nano-vllm, issue 144)."""

    def match(self, request):
        return self.prefix.match(self._hashes(request, request.num_tokens // self.block_size))


class PartBlock(CacheManager):
    """A block is known by its first token alone: a block that is shared in part is attached as a whole."""

    def _hashes(self, request, count):
        parent, hashes = root_hash(request.keys), []
        for block in range(count):
            first = block * self.block_size
            parent = block_hash(parent, request.token_ids[first : first + 1])
            hashes.append(parent)
        return hashes


class ChunkThenMatch(StepBuilder):
    """The first chunk is cut first, and only what is in it is looked up (dynamo, issue 13188)."""

    def _look_up(self, request):
        return self._shorten(request, super()._look_up(request))

    def _shorten(self, request, hit):
        hit = hit[: self._most(len(hit) * self.cache.block_size) // self.cache.block_size]
        request.num_computed = request.num_cached = len(hit) * self.cache.block_size
        return hit

    def _most(self, hit: int) -> int:
        return self.scheduler.max_chunk


class WholeChunks(ChunkThenMatch):
    """Only chunks that are cached from end to end are skipped."""

    def _most(self, hit: int) -> int:
        return hit // self.scheduler.max_chunk * self.scheduler.max_chunk


class NeverHits(ChunkThenMatch):
    def _most(self, hit: int) -> int:
        return 0


class HashFromChunk(CacheManager):
    """The chain of hashes begins anew in every chunk."""

    def publish(self, request, start, stop):
        parent = root_hash(request.keys)
        for block in self._filled(start, stop):
            first = block * self.block_size
            parent = block_hash(parent, request.token_ids[first : first + self.block_size])
            self.prefix.publish(parent, request.block_table[block])


class PublishesEarly(CacheManager):
    """A prompt's blocks are found as soon as they are allocated (nano-vllm, issue 208)."""

    def allocate(self, request, stop, *, hit=(), room_for=0):
        first = not request.block_table
        done = super().allocate(request, max(stop, room_for), hit=hit, room_for=room_for)
        if done and first:
            self.publish(request, 0, request.num_tokens)
        return done


class KeepsComputed(StepBuilder):
    """After a preemption a request goes on where it had stopped."""

    def _look_up(self, request):
        hit = super()._look_up(request)
        request.num_computed = max(request.num_computed, self.scheduler.had.get(request.id, 0))
        return hit


class PromptOnly(StepBuilder):
    """Where nothing of the prompt is left to compute, only the newest token is (see _prompt_only)."""

    def _look_up(self, request):
        hit = super()._look_up(request)
        if request.num_computed >= request.prompt_len:
            request.num_computed = request.num_tokens - 1
        return hit


def _prompt_only(requests, **knobs):
    """Of a request that was preempted only the prompt is computed again (nano-vllm, issue 144)."""
    chunks = plan_step(requests, **knobs)
    ends = {r.id: r.prompt_len for r in requests if r.num_computed < r.prompt_len < r.num_tokens}
    return tuple(Chunk(c.request_id, c.start, min(c.stop, ends.get(c.request_id, c.stop))) for c in chunks)


def _left_before_hit(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
    """How much is left is counted as if nothing had been attached (nano-vllm, pull request 207)."""
    chunks, budget = [], max_num_batched_tokens
    for r in requests:
        cached = 0 if r.decoding else r.num_cached
        take = min(r.num_tokens - r.num_computed + cached, max_chunk, budget)
        chunks.append(Chunk(r.id, r.num_computed, r.num_computed + take))
        budget -= take
    return tuple(chunks)


class SeesAhead:
    """A model in which a chunk that does not end its prompt reads keys behind its queries (nano-vllm, issue 212)."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, chunks, pool, wiring):
        middle = {(len(c.token_ids), c.start) for c in chunks if not c.wants_logits}

        def mask(take, start):
            return np.tri(take, start + take, start, dtype=bool) | ((take, start) in middle)

        return self._model.forward(chunks, pool, replace(wiring, mask=mask))


def _behind_hit(cached, computed, take):
    return computed + np.arange(take)


_CACHES = {
    "full_hit": FullHit, "part_block": PartBlock, "hash_from_chunk": HashFromChunk, "publishes_early": PublishesEarly,
}  # fmt: skip
_BUILDERS = {
    "chunk_then_match": ChunkThenMatch, "whole_chunks": WholeChunks, "never_hits": NeverHits,
    "keeps_computed": KeepsComputed, "prompt_only": PromptOnly,
}  # fmt: skip


def new_engine(name: str, weights: int, chunk: int, seats: int, num_blocks: int) -> Engine:
    """The engine called `name`, without requests."""
    model = model_of(weights)
    own = {}
    if name == "tail_from_0":
        own["positions"] = _behind_hit
    if name == "on_chunk_grid":
        own["positions"] = lambda cached, computed, take: (cached + computed) // chunk * chunk + np.arange(take)
    if name in ("prompt_only", "left_before_hit"):
        own["plan_step"] = {"prompt_only": _prompt_only, "left_before_hit": _left_before_hit}[name]
    engine = Engine(
        SeesAhead(model) if name == "sees_ahead" else model, num_blocks=num_blocks, block_size=BLOCK,
        max_num_batched_tokens=seats * (chunk + 1), max_chunk=chunk, max_num_seqs=seats, **own,
    )  # fmt: skip
    engine.pool.k[...], engine.pool.v[...] = JUNK, JUNK
    if name == "tree":
        engine.scheduler.cache = RadixManager(num_blocks, BLOCK)
    if name in _CACHES:
        engine.scheduler.cache.__class__ = _CACHES[name]
    engine.scheduler.builder = _BUILDERS.get(name, StepBuilder)
    engine.scheduler.had = {}  # request id -> tokens computed when it was preempted
    return engine
