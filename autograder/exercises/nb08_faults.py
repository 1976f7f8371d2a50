"""The engines of exercise 8.4 in words: right in four ways, and wrong in the ways of real ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from autograder.exercises import nb08_parts as parts
from course_lib.cache.manager import CacheManager
from course_lib.schedule.build_step import StepBuilder

RIGHT = {
    "plain": "a right engine",
    "busy": "a right engine, in which two other users decode in every step, and take the blocks of what is preempted",
    "tree": "a right engine whose cache is a radix tree",
    "early": "a right engine that finds blocks from the step on that writes them (as vLLM does), so that prompts which "
    "come together hit each other",
}


_KV = "compare K, V and logits with reference(tokens), in every bit"
_BITS = "in every bit (np.array_equal; a sum or a tolerance does not show it)"
_K, _V, _LOGITS = (
    f"compare K of every layer {_BITS}",
    f"compare V of every layer {_BITS}",
    f"compare all logits {_BITS}",
)
_HIT = "K, V and logits are right, only too much is computed: compare `hit` with what it should be"


class Fault(NamedTuple):
    """A mistake of a wrong engine, how a test comes to refuse it, and the part of the engine that makes it.

    what      what is wrong in it
    needs     the kind of question that shows it, as in nb08_asks
    compare   advice to a test that asks it and still accepts the engine
    args      arguments of Engine, from the chunk size
    cache, builder   classes of its scheduler
    spoil     or what is done to the results of a right engine
    """

    what: str
    needs: str
    compare: str = _KV
    cache: type = CacheManager
    builder: type = StepBuilder
    args: Callable[[int], dict[str, Any]] = lambda chunk: {}
    spoil: Callable[[parts.Result, Callable], None] | None = None


FAULTS: dict[str, dict[str, Fault]] = {
    "behind_a_hit": {
        "tail_from_0": Fault(
            "positions behind a hit begin at 0", "hit", args=lambda chunk: {"positions": parts.behind_hit}
        ),
        "on_chunk_grid": Fault(
            "the first position of a chunk is taken as a multiple of the chunk size",
            "uneven",
            args=lambda chunk: {"positions": parts.on_chunk_grid(chunk)},
        ),
        "part_block": Fault(
            "a block is recognised by its first token, so one that is shared in part is attached as a whole",
            "part",
            cache=parts.PartBlock,
        ),
        "full_hit": Fault(
            "a prompt is attached to its last token, and nothing is left to compute (nano-vllm, issue 144)",
            "whole",
            "such an engine stops by itself; do not catch that",
            cache=parts.FullHit,
        ),
        "left_before_hit": Fault(
            "what is left to compute is counted before the hit is known, so a chunk runs past the prompt's end "
            "(nano-vllm, pull request 207)",
            "hit",
            "it shows where the last chunk is not a full one: choose lengths that do not fit the chunk size",
            args=lambda chunk: {"plan_step": parts.left_before_hit},
        ),
        "sees_ahead": Fault(
            "a chunk that does not end the prompt reads keys behind its own queries (nano-vllm, issue 212)",
            "chunks",
            "compare K and V of every layer with reference(tokens); those of layer 0 are clean",
        ),
        "last_token": Fault(
            "behind a hit the last token is never computed: the logits are those of the token before it",
            "hit",
            "compare K and V of all tokens, or the logits, with reference(tokens)",
            spoil=parts.last_token,
        ),
        "freed_hit": Fault(
            "the first attached block is freed too soon and overwritten after the last step; all later tokens, and the "
            "logits, are right",
            "hit",
            "compare K and V of all tokens, the attached ones too",
            spoil=parts.freed_hit,
        ),
        "swapped_keys": Fault(
            "in layer 0, K of two tokens at the end of the hit stand in each other's slots after the last step; V, all "
            "other K and the logits are right",
            "hit",
            "compare K of every layer, element by element; a sum does not show it",
            spoil=parts.swapped("k"),
        ),
        "swapped_values": Fault(
            "in layer 0, V of two tokens at the end of the hit stand in each other's slots after the last step; K, all "
            "other V and the logits are right",
            "hit",
            "compare V of every layer, element by element; a sum does not show it",
            spoil=parts.swapped("v"),
        ),
        "keys_last_bit": Fault(
            "after a hit the last layer's K is rotated by less exact angles: a last bit differs, V and logits are "
            "right",
            "hit",
            _K,
            spoil=parts.last_bit("k", -1, "hit"),
        ),
        "values_last_bit": Fault(
            "after a hit the last layer's V is summed in another order: a last bit differs, K and logits are right",
            "hit",
            _V,
            spoil=parts.last_bit("v", -1, "hit"),
        ),
        "logits_last_bit": Fault(
            "after a hit the logits are summed in another order: a last bit differs, K and V are right",
            "hit",
            _LOGITS,
            spoil=parts.last_bit("logits", -1, "hit"),
        ),
    },
    "saved": {
        "never_hits": Fault("nothing is ever found in the cache", "hit", _HIT, builder=parts.NeverHits),
        "whole_chunks": Fault(
            "only chunks that are cached from end to end are skipped", "uneven", _HIT, builder=parts.WholeChunks
        ),
        "chunk_then_match": Fault(
            "the first chunk is cut before the look-up, so no hit is longer than a chunk (dynamo, issue 13188)",
            "long",
            _HIT,
            builder=parts.ChunkThenMatch,
        ),
        "hash_from_chunk": Fault(
            "the chain of block hashes begins anew in every chunk, so blocks of later chunks are not found again",
            "long",
            _HIT,
            cache=parts.HashFromChunk,
        ),
    },
    "order": {
        "publishes_early": Fault(
            "blocks are found as soon as they are allocated, before anything is written into them (see nano-vllm, "
            "issue 208)",
            "together",
            cache=parts.PublishesEarly,
        ),
        "keeps_computed": Fault(
            "after a preemption a request goes on where it had stopped, though its last, partly filled block is gone",
            "preempt_part",
            builder=parts.KeepsComputed,
        ),
        "prompt_only": Fault(
            "after a preemption the prompt is computed again, and K and V of the answer's tokens are not (akin to "
            "nano-vllm, issue 144)",
            "preempt_answer",
            "compare K and V of all tokens with reference(tokens), those of the answer too",
            spoil=parts.answer_lost,
        ),
        "readmitted_keys": Fault(
            "after a preemption layer 0's K is rotated by less exact angles: a last bit differs, V and logits are "
            "right",
            "preempt",
            _K,
            spoil=parts.last_bit("k", 0, "had"),
        ),
        "readmitted_values": Fault(
            "after a preemption the last layer's V is summed in another order: a last bit differs, K and logits are "
            "right",
            "preempt",
            _V,
            spoil=parts.last_bit("v", -1, "had"),
        ),
        "readmitted_logits": Fault(
            "after a preemption the logits are summed in another order: a last bit differs, K and V are right",
            "preempt",
            _LOGITS,
            spoil=parts.last_bit("logits", -1, "had"),
        ),
    },
}

_NAMES = [*RIGHT, *(name for faults in FAULTS.values() for name in faults)]


def engine_of(key: int) -> str:
    """The name of the engine that a marker's key stands for. A test that sees the key learns nothing from it."""
    return random.Random(key).choice(_NAMES)


def key_of(name: str, draw: Callable[[int, int], int]) -> int:
    """A key of that engine, by draw(low, high)."""
    while engine_of(key := draw(0, 1 << 62)) != name:
        pass
    return key
