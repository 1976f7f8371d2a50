"""Serving prompts through an engine of exercise 8.4."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autograder.exercise import Callback
from autograder.exercises.nb08_faults import engine_of
from autograder.exercises.nb08_parts import BLOCK, BUILDERS, CACHES, JUNK, MAX_TOKENS, SPOILS, Result, functions_of
from course_lib.cache.radix_manager import RadixManager
from course_lib.engine import Engine
from course_lib.model import ChunkInput, Model, Wiring
from course_lib.prefill import KVSnapshot, one_pass
from course_lib.weights import SEEDED, seeded_model

MAX_STEPS = 240
SIZES = {"hidden_size": 32, "q_heads": 2, "kv_heads": 1, "num_layers": 2, "intermediate_size": 32}


class EngineStopped(AssertionError):
    """The engine under test could not go on."""


@functools.lru_cache(maxsize=4)
def model_of(seed: int) -> Model:
    """Two layers, exact arithmetic: small, since an engine runs some dozens of steps for each question."""
    return seeded_model(config=replace(SEEDED["tiny"], **SIZES), seed=seed, backend="numpy", arith="exact")


class Remembering:
    """The model for engines that compute the same chunks again and again: each is computed once.

    In exact arithmetic a chunk depends on its tokens, their positions, and the K and V before it, and on nothing else.
    A step's chunks are computed one after the other: one that reads blocks of the same step stands behind their writer.

    sees_ahead   whether a chunk that does not end its prompt reads keys behind its queries
    """

    def __init__(self, weights: int, sees_ahead: bool):
        self._weights, self._sees_ahead = weights, sees_ahead

    def __getattr__(self, name):
        return getattr(model_of(self._weights), name)

    def forward(self, chunks, pool, wiring):
        logits = np.zeros((len(chunks), self.config.vocab_size), np.float32)
        for row, chunk in zip(logits, chunks):
            slots = pool.slots(chunk.block_table, 0, chunk.start + len(chunk.token_ids))
            before, new = slots[: chunk.start], slots[chunk.start :]
            places = None
            if wiring.positions:
                places = tuple(wiring.positions(chunk.cached, chunk.start - chunk.cached, len(new)).tolist())
            pool.k[:, new], pool.v[:, new], row[...] = _computed(
                self._weights, tuple(chunk.token_ids), chunk.start, places,
                self._sees_ahead and not chunk.wants_logits,
                pool.k[:, before].tobytes(), pool.v[:, before].tobytes(),
            )  # fmt: skip
        return logits[[chunk.wants_logits for chunk in chunks]]


@functools.lru_cache(maxsize=2048)
def _computed(weights: int, ids: tuple, start: int, places: tuple | None, sees_ahead: bool, k: bytes, v: bytes):
    """K and V of a chunk's tokens, and its last token's logits, after `start` tokens with the given K and V."""
    model, stop = model_of(weights), start + len(ids)
    pool = model.new_pool(1 + stop, 1)
    slots = np.arange(1, stop + 1)
    for x, held in ((pool.k, k), (pool.v, v)):
        x[:, slots[:start]] = np.frombuffer(held, np.float32).reshape(len(x), start, *x.shape[2:])
    wiring = Wiring(
        positions=places and (lambda cached, computed, take: np.array(places)),
        mask=(lambda take, start: np.ones((take, start + take), bool)) if sees_ahead else None,
    )
    (logits,) = model.forward([ChunkInput(ids, start, slots.tolist(), wants_logits=True)], pool, wiring)
    return *pool.kv_in(slots[start:]), logits


class _Server:
    """One engine, from its first prompt to its last. A request that has its answer is read and aborted."""

    def __init__(self, name: str, weights: int, chunk: int, answer: int, preempt: int, prompts):
        self.answer, self.preempt, self.busy = answer, preempt, name == "busy"
        others = 2 if self.busy else 0
        seqs = len(prompts) + others
        blocks = sum(len(p) + answer + BLOCK for p in prompts) // BLOCK + others * (MAX_STEPS // BLOCK + 2)
        self.engine = Engine(
            Remembering(weights, name == "sees_ahead"), num_blocks=blocks, block_size=BLOCK,
            max_num_batched_tokens=seqs * (chunk + 1), max_chunk=chunk, max_num_seqs=seqs,
            profile="vllm-0.33.0" if name == "early" else "course", **functions_of(name, chunk),
        )  # fmt: skip
        self.engine.pool.k[...], self.engine.pool.v[...] = JUNK, JUNK
        scheduler = self.scheduler = self.engine.scheduler
        scheduler.profile = replace(scheduler.profile, lone_request_ignores_max_chunk=False)
        scheduler.builder = BUILDERS.get(name, scheduler.builder)
        if name in CACHES:
            scheduler.cache.__class__ = CACHES[name]
        if name == "tree":
            scheduler.cache = RadixManager(blocks, BLOCK)
        self.had = scheduler.had = {}  # request id -> tokens computed when it was preempted
        self.steps: dict[int, int] = {}
        for r in range(others):
            self.engine.add_request([5 * i % 7 + r for i in range(3 + r)], max_tokens=MAX_STEPS)
        for _ in range(others):
            self.engine.step()

    def serve(self, prompts) -> list[Result]:
        """Results of prompts that come together."""
        requests = [self.engine.add_request(prompt, max_tokens=self.answer + 1) for prompt in prompts]
        results: dict[int, Result] = {}
        for _ in range(MAX_STEPS):
            computed = {chunk[0] for chunk in self.engine.step().chunks}
            mine = [r for r in requests if r.id not in results]
            if not any(r.id in computed for r in mine):
                raise EngineStopped("the engine stopped: a request waits, and no step computes any of its tokens.")
            for request in mine:
                self.steps[request.id] = self.steps.get(request.id, 0) + (request.id in computed)
                if len(request.generated) >= self.answer:
                    read = *self.engine.kv(request), self.engine.logits[request.id], request.prompt_len
                    results[request.id] = Result(
                        tuple(request.token_ids[:-1]), request.num_cached, *read, self.had.get(request.id, 0)
                    )
                    self.engine.abort(request)
            for request in self.scheduler.running[::-1]:
                if self.preempt and self.steps.get(request.id) == self.preempt and request.id not in self.had:
                    self._preempt(request)
            if len(results) == len(requests):
                return [results[r.id] for r in requests]
        raise EngineStopped(f"the engine stopped: no end after {MAX_STEPS} steps.")

    def _preempt(self, request) -> None:
        """Its blocks that the cache cannot find are overwritten, as other requests may do; in `busy` all are taken."""
        cache, pool, table = self.scheduler.cache, self.engine.pool, request.block_table
        self.had[request.id] = request.num_computed
        self.scheduler.requeue(request)
        if self.busy:
            cache.allocator.release(cache.allocator.allocate(cache.num_free))
        found = cache.tree._held if isinstance(cache, RadixManager) else cache.prefix
        for block in table:
            if block not in found:
                slots = slice(block * BLOCK, (block + 1) * BLOCK)
                pool.k[:, slots], pool.v[:, slots] = JUNK, JUNK


@functools.lru_cache(maxsize=1024)
def _served(name: str, weights: int, prompts: tuple, chunk: int, answer: int, together: bool, preempt: int):
    """The results, or the text of what went wrong in the engine."""
    server = _Server(name, weights, chunk, answer, preempt, prompts)
    try:
        return [r for wave in ([prompts] if together else [[p] for p in prompts]) for r in server.serve(wave)]
    except EngineStopped as stopped:
        return str(stopped)
    except Exception as error:  # of a wrong engine
        return f"the engine stopped: {error}"


def _answered(name: str, weights: int, *question) -> list[tuple]:
    """(tokens, hit, k, v, logits) of each prompt, copies, as the engine of that name gives them; or EngineStopped."""
    when, spoil = SPOILS.get(name, ("", None))
    results = _served("plain" if spoil else name, weights, *question)
    if isinstance(results, str):
        raise EngineStopped(results)
    copies = [r._replace(k=r.k.copy(), v=r.v.copy(), logits=r.logits.copy()) for r in results]
    for result in copies if spoil else ():
        if getattr(result, when):
            spoil(result, lambda ids: _reference(weights, ids).logits)
    return [(list(r.tokens), *r[1:5]) for r in copies]


def make_serve(marker: Callback) -> Callable:
    """The serve(prompts, chunk, ...) that a Callback("serve", (weights seed, key of an engine)) stands for."""
    weights, key = marker.data

    def serve(prompts, chunk, answer=1, together=False, preempt=0):
        try:
            knobs = int(chunk), int(answer), bool(together), int(preempt)
        except (TypeError, ValueError):
            raise ValueError("chunk, answer and preempt are whole numbers.") from None
        if not (1 <= knobs[0] and 1 <= knobs[1] <= 8 and knobs[3] >= 0):
            given = f"chunk={chunk}, answer={answer}, preempt={preempt}"
            raise ValueError(f"{given}: wanted at least 1, 1 to 8, and at least 0.")
        return _answered(engine_of(key), weights, _checked(prompts), *knobs)

    return serve


def make_reference(marker: Callback) -> Callable:
    """The reference(token_ids) that a Callback("reference", (weights seed,)) stands for: one cold pass."""
    (weights,) = marker.data

    def reference(token_ids):
        snapshot = _reference(weights, *_checked([token_ids]))
        return snapshot.k.copy(), snapshot.v.copy(), snapshot.logits.copy()

    return reference


@functools.lru_cache(maxsize=256)
def _reference(weights: int, ids: tuple[int, ...]) -> KVSnapshot:
    return one_pass(model_of(weights), ids)


def _checked(prompts) -> tuple[tuple[int, ...], ...]:
    vocab = SEEDED["tiny"].vocab_size
    try:
        made = tuple(tuple(int(t) for t in prompt) for prompt in prompts)
    except (TypeError, ValueError):
        raise ValueError("serve takes a list of prompts, each a list of token ids.") from None
    if not made or not all(made) or sum(map(len, made)) > MAX_TOKENS:
        raise ValueError(f"give at least one prompt, none empty, of {MAX_TOKENS} tokens together at most.")
    if min(map(min, made)) < 0 or max(map(max, made)) >= vocab:
        raise ValueError(f"token ids must be numbers from 0 to {vocab - 1}.")
    return made
