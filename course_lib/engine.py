"""The serving engine: plan, allocate, forward, sample, commit; step after step, for all requests at once."""

import time
from collections.abc import Callable, Iterator, Sequence
from operator import index

import numpy as np

from course_lib.arithmetic.arrays import bits, to_numpy
from course_lib.model import ChunkInput, Model, Wiring
from course_lib.sampling import sample
from course_lib.schedule.build_step import Step
from course_lib.schedule.profiles import profile_named
from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler
from course_lib.schedule.step_record import StepRecord


class Engine:
    """Continuous batching over one paged KV pool.

    model                    a Model, in any arithmetic and on any device
    num_blocks, block_size   the pool: blocks that requests can hold, and tokens in each
    max_num_batched_tokens, max_chunk, max_num_seqs   see Scheduler; max_num_seqs is by default 256, or
                             max_num_batched_tokens if that is less
    profile                  a name in schedule.profiles.PROFILES
    enable_prefix_caching, enable_chunked_prefill     as in vLLM
    plan_step, mask, positions, prefix_cache          your functions, and an object of your class, in place of
                             schedule.plan.plan_step, attention.mask.chunk_attention_mask, positions.positions and
                             cache.prefix.PrefixIndex
    refuse_stuck             False: accept requests that can never run, to show starvation

    `logits` holds the last step's logits [vocab_size] of each request that got a token in it, by request id.
    """

    def __init__(
        self, model: Model, *, num_blocks: int, block_size: int = 16, max_num_batched_tokens: int = 2048,
        max_chunk: int = 0, max_num_seqs: int | None = None, profile: str = "course",
        enable_prefix_caching: bool = True, enable_chunked_prefill: bool = True, plan_step: Callable | None = None,
        mask: Callable | None = None, positions: Callable | None = None, prefix_cache=None, refuse_stuck: bool = True,
    ):  # fmt: skip
        rules = profile_named(profile)
        cache = rules.new_cache(
            num_blocks, block_size, enable_prefix_caching=enable_prefix_caching, prefix_cache=prefix_cache
        )
        if max_num_seqs is None:
            max_num_seqs = min(256, max_num_batched_tokens)
        self.scheduler = Scheduler(
            cache, rules, max_num_batched_tokens=max_num_batched_tokens, max_chunk=max_chunk,
            max_num_seqs=max_num_seqs, enable_chunked_prefill=enable_chunked_prefill, plan_step=plan_step,
            refuse_stuck=refuse_stuck,
        )  # fmt: skip
        self._use(model)
        self.logits: dict[int, np.ndarray] = {}
        self._wiring = Wiring(mask=mask, positions=positions)
        self._next_id = 0

    @property
    def model(self) -> Model:
        """The model. Setting another resets the prefix cache and makes a new pool: no KV of the old one is ever read.

        RuntimeError, and nothing has changed, while there are unfinished requests. After a change of a model's own
        weights call reset_prefix_cache: that cannot be seen from here.
        """
        return self._model

    @model.setter
    def model(self, model: Model) -> None:
        if self.unfinished or not self.scheduler.reset_prefix_cache():
            raise RuntimeError(
                f"{len(self.scheduler.requests)} requests are not finished, and what they have computed is the old "
                "model's: run or abort them, then set the new one."
            )
        self._use(model)

    def _use(self, model: Model) -> None:
        cache = self.scheduler.cache
        self._model = model
        self.pool = model.new_pool(cache.num_blocks + 1, cache.block_size)  # block 0 is never allocated

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, as vLLM's method of this name: after the model's weights were changed, or to
        measure from an empty cache.

        True if it was done. False, and nothing has changed, while requests hold blocks: run or abort them first.
        """
        return self.scheduler.reset_prefix_cache()

    def add_request(
        self, token_ids: Sequence[int], *, max_tokens: int = 16, temperature: float = 0.0, seed: int = 0,
        salt: str = "", stop_token_ids: Sequence[int] = (), read_cache: bool = True,
    ) -> Request:  # fmt: skip
        """Add a prompt to the waiting requests. The engine updates the returned Request: `generated` grows, and
        `finish_reason` is no longer "" once it is finished.

        Raises ValueError, with the reason, for a prompt that can never be served; nothing has changed then.
        """
        ids = [_whole(token, "a token id") for token in token_ids]
        max_tokens, seed = _whole(max_tokens, "max_tokens"), _whole(seed, "seed")
        stop = frozenset(_whole(token, "a stop token") for token in stop_token_ids)
        if not isinstance(salt, str):
            raise ValueError(f"salt is {salt!r:.40}, expected a text.")
        if bad := [token for token in ids if not 0 <= token < self.model.config.vocab_size]:
            raise ValueError(f"token id {bad[0]} is not in the vocabulary 0 .. {self.model.config.vocab_size - 1}.")
        if len(ids) + max_tokens - 1 > self.model.max_model_len:
            raise ValueError(
                f"{len(ids)} tokens and {max_tokens} more can never finish: {self.model.why_no_longer}"
            )
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature={temperature}; give 0 for greedy, or a positive number.")
        request = Request(
            self._next_id, ids, max_tokens=max_tokens, arrival=self._next_id, salt=salt, temperature=temperature,
            seed=seed, stop_token_ids=stop, read_cache=bool(read_cache),
        )  # fmt: skip
        self.scheduler.add(request)
        self._next_id += 1
        return request

    def step(self) -> StepRecord:
        """One forward over all that is planned. If it raises, no request has advanced, and the next step works."""
        begin, computing = time.perf_counter(), False
        try:
            planned = self.scheduler.schedule()
            computing = True
            sampled = self._compute(planned) if planned.chunks else {}
            computing = False
            return self.scheduler.commit(planned, sampled, round((time.perf_counter() - begin) * 1e6))
        except BaseException as error:  # Ctrl-C may come in the middle of bookkeeping
            self.scheduler.roll_back(bookkeeping_intact=computing or isinstance(error, Exception))
            raise

    def _compute(self, planned: Step) -> dict[int, int]:
        """Forward and sample: the next token of each request whose chunk ends at its newest token."""
        requests = self.scheduler.requests
        ends = [requests[i] for i in self.scheduler.ends(planned)]
        sampled = {request.id for request in ends}
        inputs = []
        for chunk in planned.chunks.values():
            request = requests[chunk.request_id]
            inputs.append(
                ChunkInput(
                    request.token_ids[chunk.start : chunk.stop], chunk.start, request.block_table,
                    cached=request.num_cached,
                    wants_logits=request.id in sampled,  # the logits of other chunks are not even computed
                )
            )  # fmt: skip
        logits = to_numpy(self.model.forward(inputs, self.pool, self._wiring))
        self.logits = {request.id: row for request, row in zip(ends, logits)}
        return {
            r.id: sample(self.logits[r.id], temperature=r.temperature, seed=r.seed, index=r.num_tokens) for r in ends
        }

    @property
    def unfinished(self) -> bool:
        return bool(self.scheduler.requests)

    def run(self) -> list[StepRecord]:
        """Step until every request is done. RuntimeError when a step plans nothing: the planner is stuck."""
        records = []
        while self.unfinished:
            records.append(self._progress())
        return records

    def stream(self, request: Request) -> Iterator[int]:
        """The request's tokens as they come. Steps the engine, and so all other requests, when it has no token to give.

        When a step raises, so does the stream; a new stream(request) begins with the request's first token again.
        """
        given = 0
        while True:
            while given < len(request.generated):
                yield request.generated[given]
                given += 1
            if request.finish_reason:
                return
            self._progress()

    def _progress(self) -> StepRecord:
        record = self.step()
        if not record.chunks and not record.preempted:
            waiting = sorted(self.scheduler.requests)
            raise RuntimeError(f"step {record.step} planned nothing, although requests {waiting[:8]} are not done.")
        return record

    def abort(self, request: Request) -> None:
        """Remove a request, whether it waits or runs, and free its blocks. A finished one is left as it is."""
        if not request.finish_reason:
            self._expect_own(request)
            self.scheduler.abort(request.id)

    def _expect_own(self, request: Request) -> None:
        if self.scheduler.requests.get(request.id) is not request:
            raise ValueError(f"request {request.id} does not run or wait in this engine.")

    def kv(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the request's computed tokens, as KVSnapshot has them.

        returns   k, v [layers, tokens, kv_heads, head_dim], copies on the CPU; bfloat16 as its bits (uint16)

        ValueError when it is finished, because its blocks are free: read it before its last step.
        """
        if request.finish_reason:
            raise ValueError(f"request {request.id} is finished and its blocks are free; read its KV while it runs.")
        self._expect_own(request)
        k, v = self.pool.kv_in(self.pool.slots(request.block_table, 0, request.num_computed))
        return bits(k), bits(v)


def _whole(value, what: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise ValueError(f"{what} is {value!r:.40}, expected a whole number.") from None
