"""Continuous batching: which requests run in the next step, with which blocks. Integers only, no tensors.

schedule() plans a step and allocates its blocks (build_step.py); then commit() or undo().
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from course_lib.cache.manager import CacheManager, HitStats
from course_lib.schedule.build_step import Step, StepBuilder
from course_lib.schedule.profiles import Profile
from course_lib.schedule.refusals import expect_knobs, why_never
from course_lib.schedule.request import Request
from course_lib.schedule.step_record import StepRecord


class Scheduler:
    """Requests wait in order of arrival, run in order of admission, and are preempted from the end.

    cache                   a CacheManager, or anything with its methods
    profile                 the rules (profiles.py), which the next two change
    enable_chunked_prefill  False: every prompt runs in one step (Profile.without_chunking)
    plan_step               a policy in place of the profile's, for instance a learner's (Profile.with_policy)
    max_num_batched_tokens  tokens in a step, decodes included
    max_chunk               tokens of one request in a step; 0 = no further limit
    max_num_seqs            requests that run at once, partially prefilled ones included
    refuse_stuck            False: accept requests that can never run, to show starvation
    """

    builder = StepBuilder

    def __init__(
        self, cache: CacheManager, profile: Profile, *, max_num_batched_tokens: int, max_chunk: int = 0,
        max_num_seqs: int, enable_chunked_prefill: bool = True, plan_step: Callable | None = None,
        refuse_stuck: bool = True,
    ):  # fmt: skip
        if plan_step is not None and not enable_chunked_prefill:
            raise ValueError("enable_chunked_prefill=False is a policy, and plan_step is another: leave one out.")
        if plan_step is not None:
            profile = profile.with_policy(plan_step)
        elif not enable_chunked_prefill:
            profile = profile.without_chunking()
        expect_knobs(max_num_batched_tokens, max_chunk, max_num_seqs, profile)
        self.cache, self.profile, self.plan_step = cache, profile, profile.plan_step_for(cache.block_size)
        self.publish_early = profile.publish == "schedule"
        self.max_num_batched_tokens, self.max_chunk, self.max_num_seqs = max_num_batched_tokens, max_chunk, max_num_seqs
        self.refuse_stuck = refuse_stuck
        self.requests: dict[int, Request] = {}  # waiting and running
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._num_steps = 0
        self._planned: Step | None = None

    @property
    def in_step(self) -> bool:
        """Whether a step is planned that has neither been committed nor undone."""
        return self._planned is not None

    def add(self, request: Request) -> None:
        """Queue a request. ValueError, with the reason, for one that could never finish."""
        if request.id in self.requests:
            raise ValueError(f"request {request.id} is here already; give each request another id.")
        if self.refuse_stuck and (reason := why_never(request, self)):
            raise ValueError(f"request {request.id} can never finish: {reason}")
        self.requests[request.id] = request
        self.waiting.append(request)

    def abort(self, request_id: int) -> Request:
        """Remove a request, running or waiting, and release its blocks. KeyError if there is no such request."""
        if self.in_step:
            raise RuntimeError("a step is being computed; commit or undo it before a request is aborted.")
        request = self.requests[request_id]
        (self.running if request in self.running else self.waiting).remove(request)
        self._end(request, "aborted")
        return request

    def _end_done(self, requests: Iterable[Request]) -> list[Request]:
        """Remove those of the requests that are done, and release their blocks. Returns them."""
        finished = [r for r in requests if r.why_done()]
        for request in finished:
            self._end(request, request.why_done())
        if finished:
            self.running = [r for r in self.running if not r.finish_reason]
        return finished

    def _end(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        self.cache.release(request)
        del self.requests[request.id]

    def attach(self, request: Request, num_computed: int) -> bool:
        """Run a request whose first tokens were computed elsewhere and whose KV has arrived (disaggregated prefill).

        False, and nothing changed, when max_num_seqs requests run or too few blocks are free. Raises as `add` does.
        """
        if self.in_step:
            raise RuntimeError("a step is being computed; commit or undo it before a request is attached.")
        if not 0 < num_computed < request.num_tokens:
            raise ValueError(f"num_computed={num_computed} of {request.num_tokens} tokens: some, and not the newest.")
        self.add(request)
        stop = num_computed + 1  # room for the step that comes next as well
        if len(self.running) == self.max_num_seqs or not self.cache.allocate(request, stop):
            del self.requests[self.waiting.pop().id]
            return False
        self.running.append(self.waiting.pop())
        request.num_computed, request.num_cached = num_computed, 0
        self.cache.publish(request, 0, num_computed)
        return True

    # --- a step

    def schedule(self) -> Step:
        """Plan the next step and allocate its blocks. Follow with commit or undo, also when it is idle."""
        if self.in_step:
            raise RuntimeError("the step before has neither been committed nor undone.")
        step = self._planned = Step(self._num_steps)
        try:
            self.builder(self, step).build()
        except BaseException as error:
            self.roll_back(bookkeeping_intact=isinstance(error, Exception))
            raise
        return step

    def requeue(self, request: Request, index: int = 0) -> None:
        """Move a running request to this index of `waiting`; its blocks are released, and nothing of it is computed."""
        self.running.remove(request)
        self.cache.release(request)
        request.num_computed = request.num_cached = 0
        self.waiting.insert(index, request)

    def undo(self, step: Step) -> None:
        """The step was not computed: no request advances, its blocks are unpublished, and what it admitted waits again.

        What it preempted stays preempted, and what it evicted stays evicted: both are only work to redo.
        """
        self._expect_planned(step)
        if self.publish_early:
            for request_id, chunk in step.chunks.items():
                self.cache.unpublish(self.requests[request_id], chunk.start, chunk.stop)
        for request in reversed(step.admitted):  # the last first, so that each returns to its index
            self.requeue(request, step.queue_positions[request.id])
        self._planned = None

    def ends(self, step: Step) -> list[int]:
        """Ids of the requests that get a token in this step, in batch order: their chunk ends at their newest token."""
        return [i for i, chunk in step.chunks.items() if chunk.stop == len(self.requests[i].token_ids)]

    def commit(self, step: Step, sampled: Mapping[int, int], duration_us: int | None = None) -> StepRecord:
        """The step was computed: requests advance, full blocks are published, requests that are done are removed.

        sampled   request id -> its next token, for exactly the chunks that end at their request's newest token
        """
        finished = self.advance(step, sampled)
        return StepRecord(
            step=step.number,
            chunks=tuple((c.request_id, c.start, c.stop) for c in step.chunks.values()),
            sampled=tuple((i, int(sampled[i])) for i in step.chunks if i in sampled),
            hits=tuple((r.id, r.num_cached) for r in step.admitted),
            preempted=tuple(r.id for r in step.preempted),
            finished=tuple(r.id for r in finished),
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            free_blocks=self.cache.num_free,
            duration_us=duration_us,
        )

    def advance(self, step: Step, sampled: Mapping[int, int]) -> list[Request]:
        """As commit, without a record of the step (a simulator needs none). Returns the requests that are done."""
        self._expect_planned(step)
        ends = self.ends(step)
        if set(sampled) != set(ends):
            raise ValueError(f"tokens were sampled for requests {sorted(sampled)}; chunks end in those of {ends}.")
        if not self.publish_early:  # before any request advances: a prefix cache from outside may raise
            for request_id, chunk in step.chunks.items():
                self.cache.publish(self.requests[request_id], chunk.start, chunk.stop)
        for request in step.admitted:
            self.cache.count_lookup(request)
        for request_id, chunk in step.chunks.items():
            request = self.requests[request_id]
            if request_id in sampled:
                request.token_ids.append(int(sampled[request_id]))
            request.num_computed = chunk.stop
        finished = self._end_done([self.requests[i] for i in ends])
        self._planned = None
        self._num_steps += 1
        return finished

    def record_skipped_steps(self, steps: int, done: Iterable[Request]) -> list[Request]:
        """Count `steps` steps that fast_forward.py made at once. Remove the requests `done`, and return them."""
        self._num_steps += steps
        return self._end_done(done)

    def _expect_planned(self, step: Step) -> None:
        if step is not self._planned:
            raise RuntimeError(f"step {step.number} is not the one that was planned last, or is done already.")

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, as vLLM does: only while no request holds blocks.

        False, and nothing has changed, while requests run or a step is being computed. Waiting requests may be there.
        Hit statistics begin anew.
        """
        if self.running or self.in_step:
            return False
        self.cache.forget_prefixes()
        self.cache.stats = HitStats()
        return True

    # --- consistency and recovery

    def roll_back(self, *, bookkeeping_intact: bool = True) -> None:
        """After a step that raised: undo it if one is planned, and check; if that fails, recover.

        bookkeeping_intact   False: an interruption may have come in the middle of bookkeeping, so recover at once
        """
        try:
            if bookkeeping_intact:
                if self._planned is not None:
                    self.undo(self._planned)
                self.check()
                return
        except Exception:
            pass
        self.recover()

    def check(self) -> None:
        """Assert that requests, queue and cache agree; for tests, and after a step that raised."""
        assert len(self.requests) == len(self.running) + len(self.waiting), "a request is in no queue, or in two"
        assert not any(r.block_table or r.num_computed for r in self.waiting), "a waiting request holds something"
        for r in self.running:
            assert r.num_computed <= len(r.block_table) * self.cache.block_size, f"{r.id}: more computed than room"
            assert r.num_cached <= r.num_computed < r.num_tokens, f"{r.id}: {r.num_cached}, {r.num_computed}"
        self.cache.check(self.running)

    def recover(self) -> None:
        """After an interruption in the middle of bookkeeping: every request waits again with nothing computed.

        The cache is emptied. Tokens that were given stay given, and recomputing their KV is always right.
        """
        self._planned = None
        self.cache.reset()
        queue = {r.id: r for r in (*self.running, *self.waiting) if r.id in self.requests}
        self.running, self.waiting = [], deque()
        for request in (queue | self.requests).values():
            request.block_table, request.num_computed, request.num_cached = [], 0, 0
            if reason := request.why_done():
                request.finish_reason = reason
                del self.requests[request.id]
            else:
                self.waiting.append(request)
