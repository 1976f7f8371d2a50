"""Serving prompts through an engine of exercise 8.4: what comes back is plain data."""

from __future__ import annotations

import functools
from collections.abc import Callable

from autograder.exercise import Callback
from autograder.exercises.nb08_faults import BLOCK, JUNK, model_of, new_engine
from course_lib.cache.radix_manager import RadixManager
from course_lib.prefill import one_pass
from course_lib.schedule.request import Request

MAX_TOKENS = 160  # of all prompts together
MAX_STEPS = 240


class EngineStopped(AssertionError):
    """The engine under test could not go on."""


class _Server:
    """One engine, from its first prompt to its last. A request that has its answer is read and aborted."""

    def __init__(self, name: str, weights: int, chunk: int, answer: int, preempt: int, prompts):
        self.name, self.chunk, self.answer, self.preempt = name, chunk, answer, preempt
        busy = 2 if name == "busy" else 0
        tokens = sum(len(p) for p in prompts) + len(prompts) * (answer + BLOCK)
        self.engine = new_engine(name, weights, chunk, len(prompts) + busy, tokens // BLOCK + busy * (MAX_STEPS + 8))
        for r in range(busy):
            self.engine.add_request([5 * i % 7 + r for i in range(3 + r)], max_tokens=MAX_STEPS)
        for _ in range(busy):
            self.engine.step()
        self.steps: dict[int, int] = {}
        self.prompts, self.first_id = [], busy

    def serve(self, prompts) -> list[tuple]:
        """Results of prompts that come together: (tokens, hit, k, v, logits) each."""
        requests, results = [self._add(prompt) for prompt in prompts], {}
        for _ in range(MAX_STEPS):
            record = self.engine.step()
            computed = {chunk[0] for chunk in record.chunks}
            mine = [r for r in requests if r.id not in results]
            if not any(r.id in computed for r in mine):
                raise EngineStopped("the engine stopped: a request waits, and no step computes any of its tokens.")
            for request in mine:
                self.steps[request.id] = self.steps.get(request.id, 0) + (request.id in computed)
                if len(request.generated) >= self.answer:
                    results[request.id] = self._take_out(request)
            self._preempt()
            if len(results) == len(requests):
                return [results[r.id] for r in requests]
        raise EngineStopped(f"the engine stopped: no end after {MAX_STEPS} steps.")

    def _add(self, prompt):
        ids = list(prompt)
        if self.name == "last_token":  # one token is left out of the look-up, and never computed afterwards
            ids = ids[:-1] if self.engine.scheduler.cache.match(Request(-1, ids)) else ids
        self.prompts.append(tuple(prompt))
        return self.engine.add_request(ids, max_tokens=self.answer + 1)

    def _take_out(self, request) -> tuple:
        prompt = self.prompts[request.id - self.first_id]
        tokens = prompt + tuple(request.generated[:-1])
        result = (tokens, request.num_cached, *self.engine.kv(request), self.engine.logits[request.id])
        self.engine.abort(request)
        return result

    def _preempt(self) -> None:
        """Preempt each request once, when it has had `preempt` steps."""
        scheduler = self.engine.scheduler
        for request in reversed(list(scheduler.running)):
            if self.preempt and self.steps.get(request.id) == self.preempt:
                self.steps[request.id] += MAX_STEPS
                scheduler.had[request.id] = request.num_computed
                table = request.block_table
                scheduler.requeue(request)
                self._overwrite(table)
            elif self.name == "prompt_only" and request.id in scheduler.had:
                if request.prompt_len <= request.num_computed < request.num_tokens - 1:
                    request.num_computed = request.num_tokens - 1

    def _overwrite(self, table) -> None:
        """Overwrite the blocks of a preempted request that the cache cannot find, as other requests may have done."""
        cache, pool = self.engine.scheduler.cache, self.engine.pool
        found = cache.tree._held if isinstance(cache, RadixManager) else cache.prefix
        for block in table:
            if block not in found:
                slots = slice(block * BLOCK, (block + 1) * BLOCK)
                pool.k[:, slots], pool.v[:, slots] = JUNK, JUNK


@functools.lru_cache(maxsize=2048)
def _served(name: str, weights: int, prompts: tuple, chunk: int, answer: int, together: bool, preempt: int):
    """What serve gives back, or the text of what went wrong in the engine."""
    server = _Server(name, weights, chunk, answer, preempt, prompts)
    try:
        return [r for wave in ([prompts] if together else [[p] for p in prompts]) for r in server.serve(wave)]
    except EngineStopped as stopped:
        return str(stopped)
    except (ValueError, IndexError) as error:
        return f"the engine stopped: {error}"


def make_serve(marker: Callback) -> Callable:
    """The serve(prompts, chunk, ...) that a Callback("serve", (name, weights seed)) stands for."""

    def serve(prompts, chunk, answer=1, together=False, preempt=0):
        result = _served(*marker.data, _prompts(prompts), *_knobs(chunk, answer, together, preempt))
        if isinstance(result, str):
            raise EngineStopped(result)
        return [(list(tokens), hit, k.copy(), v.copy(), logits.copy()) for tokens, hit, k, v, logits in result]

    return serve


def make_reference(marker: Callback) -> Callable:
    """The reference(token_ids) that a Callback("reference", (weights seed,)) stands for: one cold pass."""

    def reference(token_ids):
        snapshot = _reference(*marker.data, *_prompts([token_ids]))
        return snapshot.k.copy(), snapshot.v.copy(), snapshot.logits.copy()

    return reference


@functools.lru_cache(maxsize=256)
def _reference(weights: int, ids: tuple[int, ...]):
    return one_pass(model_of(weights), ids)


def _prompts(prompts) -> tuple[tuple[int, ...], ...]:
    vocab = model_of(0).config.vocab_size
    try:
        made = tuple(tuple(int(t) for t in prompt) for prompt in prompts)
    except (TypeError, ValueError):
        raise ValueError("serve takes a list of prompts, each a list of token ids.") from None
    if not made or not all(made) or sum(map(len, made)) > MAX_TOKENS:
        raise ValueError(f"give at least one prompt, none empty, of {MAX_TOKENS} tokens together at most.")
    if min(map(min, made)) < 0 or max(map(max, made)) >= vocab:
        raise ValueError(f"token ids must be numbers from 0 to {vocab - 1}.")
    return made


def _knobs(chunk, answer, together, preempt) -> tuple[int, int, bool, int]:
    try:
        chunk, answer, preempt = int(chunk), int(answer), int(preempt)
    except (TypeError, ValueError):
        raise ValueError("chunk, answer and preempt are whole numbers.") from None
    if not (2 <= chunk and 1 <= answer <= 8 and preempt >= 0):
        raise ValueError(
            f"chunk={chunk}, answer={answer}, preempt={preempt}: wanted at least 2, 1 to 8, and at least 0."
        )
    return chunk, answer, bool(together), preempt
