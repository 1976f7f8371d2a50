"""What is wrong in the wrong engines of exercise 8.4: parts of an engine, and results spoiled in one place.

nb08_faults says in words what each of them does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import block_hash, root_hash
from course_lib.schedule.build_step import StepBuilder
from course_lib.schedule.request import Chunk

BLOCK = 4
JUNK = 0.5  # what a slot holds before it is written: a wrong read gives wrong numbers and no error


class Result(NamedTuple):
    """What an engine has of one prompt when its answer is there."""

    tokens: tuple[int, ...]  # the prompt, and the answer without its last token
    hit: int  # tokens attached at the last admission
    k: np.ndarray  # [layers, tokens, kv_heads, head_dim]
    v: np.ndarray
    logits: np.ndarray  # [vocab_size] of the last of the tokens
    prompt_len: int
    had: int  # tokens computed when it was preempted; 0 if it never was


# --- parts of an engine that do something else


class FullHit(CacheManager):
    def match(self, request):
        return self.prefix.match(self._hashes(request, request.num_tokens // self.block_size))


class PartBlock(CacheManager):
    def _hashes(self, request, count):
        parent, hashes = root_hash(request.keys), []
        for block in range(count):
            first = block * self.block_size
            parent = block_hash(parent, request.token_ids[first : first + 1])
            hashes.append(parent)
        return hashes


class HashFromChunk(CacheManager):
    def publish(self, request, start, stop):
        parent = root_hash(request.keys)
        for block in self._filled(start, stop):
            first = block * self.block_size
            parent = block_hash(parent, request.token_ids[first : first + self.block_size])
            self.prefix.publish(parent, request.block_table[block])


class PublishesEarly(CacheManager):
    def allocate(self, request, stop, *, hit=(), room_for=0):
        first = not request.block_table
        done = super().allocate(request, max(stop, room_for), hit=hit, room_for=room_for)
        if done and first:
            self.publish(request, 0, request.num_tokens)
        return done


class ChunkThenMatch(StepBuilder):
    def _look_up(self, request):
        hit = super()._look_up(request)
        hit = hit[: self._most(len(hit) * BLOCK) // BLOCK]
        request.num_computed = request.num_cached = len(hit) * BLOCK
        return hit

    def _most(self, hit: int) -> int:
        return self.scheduler.max_chunk


class WholeChunks(ChunkThenMatch):
    def _most(self, hit: int) -> int:
        return hit // self.scheduler.max_chunk * self.scheduler.max_chunk


class NeverHits(ChunkThenMatch):
    def _most(self, hit: int) -> int:
        return 0


class KeepsComputed(StepBuilder):
    def _look_up(self, request):
        hit = super()._look_up(request)
        request.num_computed = max(request.num_computed, self.scheduler.had.get(request.id, 0))
        return hit


def left_before_hit(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
    chunks, budget = [], max_num_batched_tokens
    for r in requests:
        cached = 0 if r.decoding else r.num_cached
        take = min(r.num_tokens - r.num_computed + cached, max_chunk, budget)
        chunks.append(Chunk(r.id, r.num_computed, r.num_computed + take))
        budget -= take
    return tuple(chunks)


def behind_hit(cached: int, computed: int, take: int) -> np.ndarray:
    return computed + np.arange(take)


def on_chunk_grid(chunk: int) -> Callable:
    return lambda cached, computed, take: (cached + computed) // chunk * chunk + np.arange(take)


# --- what a right engine has, spoiled in one place: spoil(result, logits_of), in place


def last_token(r: Result, logits_of: Callable) -> None:
    if r.hit:
        r.k[:, -1], r.v[:, -1] = JUNK, JUNK
        r.logits[...] = logits_of(r.tokens[:-1])


def freed_hit(r: Result, logits_of: Callable) -> None:
    if r.hit:
        r.k[:, :BLOCK], r.v[:, :BLOCK] = JUNK, JUNK


def swapped(part: str) -> Callable:
    """In layer 0 the last attached token and the first computed one change places."""

    def spoil(r: Result, logits_of: Callable) -> None:
        if r.hit:
            x = getattr(r, part)
            x[0, [r.hit - 1, r.hit]] = x[0, [r.hit, r.hit - 1]]

    return spoil


def last_bit(part: str, layer: int, when: str) -> Callable:
    """Where result.`when` is above 0, the smallest number of `part` becomes the next float32: no tolerance and few sums
    show it. layer: of K and V
    """

    def spoil(r: Result, logits_of: Callable) -> None:
        if getattr(r, when):
            x = r.logits if part == "logits" else getattr(r, part)[layer]
            place = np.unravel_index(np.abs(x).argmin(), x.shape)
            x[place] = np.nextafter(x[place], np.float32(np.inf))

    return spoil


def answer_lost(r: Result, logits_of: Callable) -> None:
    lost = slice(max(r.hit, r.prompt_len), r.had)
    r.k[:, lost], r.v[:, lost] = JUNK, JUNK
