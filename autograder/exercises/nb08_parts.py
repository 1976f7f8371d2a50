"""What is wrong in the wrong engines of exercise 8.4: a part of the engine, or one place in what a right one gives.

nb08_faults says in words what each of them does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import block_hash, root_hash
from course_lib.schedule.build_step import StepBuilder
from course_lib.schedule.plan import plan_step
from course_lib.schedule.request import Chunk

BLOCK = 4
MAX_TOKENS = 160  # of all prompts together
JUNK = 0.5  # what a slot holds before it is written: a wrong read gives wrong numbers and no error


class FullHit(CacheManager):
    def match(self, request):
        return self.prefix.match(self._hashes(request, request.num_tokens // self.block_size))


class PartBlock(CacheManager):
    def _hashes(self, request, count):
        hashes = [root_hash(request.keys)]
        for block in range(count):
            hashes.append(block_hash(hashes[-1], request.token_ids[block * BLOCK : block * BLOCK + 1]))
        return hashes[1:]


class HashFromChunk(CacheManager):
    def publish(self, request, start, stop):
        parent = root_hash(request.keys)
        for block in self._filled(start, stop):
            parent = block_hash(parent, request.token_ids[block * BLOCK : (block + 1) * BLOCK])
            self.prefix.publish(parent, request.block_table[block])


class PublishesEarly(CacheManager):
    def allocate(self, request, stop, *, hit=(), room_for=0):
        first = not request.block_table
        done = super().allocate(request, max(stop, room_for), hit=hit, room_for=room_for)
        if done and first:
            self.publish(request, 0, request.num_tokens)
        return done


class KeepsComputed(StepBuilder):
    def _look_up(self, request):
        hit = super()._look_up(request)
        request.num_computed = max(request.num_computed, self.scheduler.had.get(request.id, 0))
        return hit


def attaches(most: Callable[[int, int], int]) -> type[StepBuilder]:
    """Of a hit it attaches only most(hit, max_chunk) tokens, in whole blocks."""

    class AttachesLess(StepBuilder):
        def _look_up(self, request):
            hit = super()._look_up(request)
            hit = hit[: most(len(hit) * BLOCK, self.scheduler.max_chunk) // BLOCK]
            request.num_computed = request.num_cached = len(hit) * BLOCK
            return hit

    return AttachesLess


CACHES = {
    "full_hit": FullHit, "part_block": PartBlock, "hash_from_chunk": HashFromChunk, "publishes_early": PublishesEarly,
}  # fmt: skip
BUILDERS = {
    "keeps_computed": KeepsComputed,
    "never_hits": attaches(lambda hit, chunk: 0),
    "whole_chunks": attaches(lambda hit, chunk: hit // chunk * chunk),
    "chunk_then_match": attaches(lambda hit, chunk: chunk),
}


def _left_before_hit(requests, *, max_chunk, **knobs):
    cached = {r.id: 0 if r.decoding else r.num_cached for r in requests}
    return tuple(
        Chunk(c.request_id, c.start, min(c.stop + cached[c.request_id], c.start + max_chunk))
        for c in plan_step(requests, max_chunk=max_chunk, **knobs)
    )


def functions_of(name: str, chunk: int) -> dict[str, Callable]:
    """The functions that the engine of that name is given in place of the library's, for a chunk size."""
    if name == "tail_from_0":
        return {"positions": lambda cached, computed, take: computed + np.arange(take)}
    if name == "on_chunk_grid":
        return {"positions": lambda cached, computed, take: (cached + computed) // chunk * chunk + np.arange(take)}
    return {"plan_step": _left_before_hit} if name == "left_before_hit" else {}


class Result(NamedTuple):
    """What an engine has of one prompt when its answer is there."""

    tokens: tuple[int, ...]  # the prompt, and the answer without its last token
    hit: int  # tokens attached at the last admission
    k: np.ndarray  # [layers, tokens, kv_heads, head_dim]
    v: np.ndarray
    logits: np.ndarray  # [vocab_size] of the last of the tokens
    prompt_len: int
    had: int  # tokens computed when it was preempted; 0 if it never was


def _last_token(r: Result, logits_of: Callable) -> None:
    r.k[:, -1], r.v[:, -1], r.logits[...] = JUNK, JUNK, logits_of(r.tokens[:-1])


def _freed_hit(r: Result, logits_of: Callable) -> None:
    r.k[:, :BLOCK], r.v[:, :BLOCK] = JUNK, JUNK


def _answer_lost(r: Result, logits_of: Callable) -> None:
    lost = slice(max(r.hit, r.prompt_len), r.had)
    r.k[:, lost], r.v[:, lost] = JUNK, JUNK


def _swapped(part: str, layer: int) -> Callable:
    """The last two tokens change places in one layer."""

    def spoil(r: Result, logits_of: Callable) -> None:
        x = getattr(r, part)[layer]
        x[-2:] = x[:-3:-1].copy()

    return spoil


def _last_bit(part: str, layer: int | None = None, computed: bool = False) -> Callable:
    """The smallest number of k[layer], v[layer] or logits becomes the next float32, which no tolerance shows.

    computed   of the tokens behind the hit
    """

    def spoil(r: Result, logits_of: Callable) -> None:
        x = r.logits if layer is None else getattr(r, part)[layer, r.hit if computed else 0 :]
        place = np.unravel_index(np.abs(x).argmin(), x.shape)
        x[place] = np.nextafter(x[place], np.float32(np.inf))

    return spoil


# name -> what must be above 0 in a right result, and spoil(result, logits_of) that makes it a wrong one, in place
SPOILS: dict[str, tuple[str, Callable[[Result, Callable], None]]] = {
    "last_token": ("hit", _last_token),
    "freed_hit": ("hit", _freed_hit),
    "swapped_keys": ("hit", _swapped("k", 0)),
    "swapped_values": ("hit", _swapped("v", -1)),
    "keys_last_bit": ("hit", _last_bit("k", -1)),
    "values_last_bit": ("hit", _last_bit("v", 0)),
    "logits_last_bit": ("hit", _last_bit("logits")),
    "prompt_only": ("had", _answer_lost),
    "readmitted_keys": ("had", _last_bit("k", 0, computed=True)),
    "readmitted_values": ("had", _last_bit("v", -1, computed=True)),
    "readmitted_logits": ("had", _last_bit("logits")),
}
