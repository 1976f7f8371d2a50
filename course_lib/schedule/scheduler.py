"""Continuous batching: who runs in the next step, with which blocks. Integers only; it never meets a tensor.

schedule() plans a step and reserves its blocks; then commit() or undo(). A request is looked up in the prefix
cache only after all that comes before it in the step has its blocks, so that it sees what they evicted.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from course_lib.cache.manager import CacheManager
from course_lib.schedule.limits import expect_budget, expect_plan, why_never
from course_lib.schedule.policies import plan_whole_prompt
from course_lib.schedule.profiles import Profile
from course_lib.schedule.request import Chunk, Request
from course_lib.trace import StepRecord


@dataclass
class Step:
    """A step that is planned and has its blocks, and is not computed yet. Without chunks it is idle."""

    number: int
    chunks: dict[int, Chunk] = field(default_factory=dict)  # by request id, in batch order
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    looked_up: list[Request] = field(default_factory=list)
    full: bool = False  # somebody waiting did not fit, so nobody behind is admitted

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks.values())


class Scheduler:
    """Requests wait in order of arrival, run in order of admission, and are preempted from the end.

    cache                   a CacheManager, or anything with its methods
    profile                 the rules (profiles.py)
    max_num_batched_tokens  tokens in a step, decodes included
    max_chunk               tokens of one request in a step; 0 = no limit of its own
    max_num_seqs            requests that run at once, those with a prompt half done included
    plan_step               a policy in place of the profile's, for instance a learner's; it sees all that wait
    refuse_stuck            False: accept requests that can never run, to show starvation
    """

    def __init__(
        self, cache: CacheManager, profile: Profile, *, max_num_batched_tokens: int, max_chunk: int = 0,
        max_num_seqs: int, enable_chunked_prefill: bool = True, plan_step: Callable | None = None,
        refuse_stuck: bool = True,
    ):  # fmt: skip
        expect_budget(max_num_batched_tokens, max_chunk, max_num_seqs)
        self.cache, self.profile = cache, profile
        self.max_num_batched_tokens, self.max_chunk, self.max_num_seqs = max_num_batched_tokens, max_chunk, max_num_seqs
        shipped = profile.policy(cache.block_size) if enable_chunked_prefill else plan_whole_prompt
        self.plan_step = plan_step or shipped
        self.chunks_prompts = plan_step is not None or shipped is not plan_whole_prompt
        self.cuts_whole_blocks = plan_step is None and self.chunks_prompts and profile.whole_blocks
        self.refuse_stuck = refuse_stuck
        # The shipped policies keep the queue's order, so they need not see further than there are seats. Another
        # one may take back what it planned when it is asked again, so nothing is published before it is computed.
        self._own_policy = plan_step is not None
        self._publish_early = profile.publish == "schedule" and not self._own_policy
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
            raise ValueError(f"request {request.id} is here already; give each request an id of its own.")
        if self.refuse_stuck and (reason := why_never(request, self)):
            raise ValueError(f"request {request.id} can never finish: {reason}")
        self.requests[request.id] = request
        self.waiting.append(request)

    def abort(self, request_id: int) -> Request:
        """Take a request out, running or waiting; its blocks are free again. KeyError if there is none such."""
        if self.in_step:
            raise RuntimeError("a step is being computed; commit or undo it before a request is aborted.")
        request = self.requests[request_id]
        (self.running if request in self.running else self.waiting).remove(request)
        self._end(request, "aborted")
        return request

    def _end(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        self.cache.release(request)
        del self.requests[request.id]

    # --- plan and reserve

    def schedule(self) -> Step:
        """Plan the next step and reserve its blocks. Follow with commit or undo, also when it is idle."""
        if self.in_step:
            raise RuntimeError("the step before has neither been committed nor undone.")
        step = self._planned = Step(self._num_steps)
        try:
            while not self._reserve(self._plan(step), step):
                pass
        except BaseException:
            self.undo(step)
            raise
        self._forget_lookups(step)
        return step

    def _plan(self, step: Step) -> list[Chunk]:
        """What the policy wants now: of all that runs, those admitted in this step included, and of who may come."""
        waiting: Sequence[Request] = ()
        if not (step.preempted or step.full):  # no admission in a step that had to preempt, and no overtaking
            seats = self.max_num_seqs - len(self.running)
            waiting = list(self.waiting if self._own_policy and seats else islice(self.waiting, seats))
        requests = [*self.running, *waiting]
        alone = self.profile.lone_ignores_cap and len(self.requests) == 1
        plan = self.plan_step(
            requests,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_chunk=0 if alone else self.max_chunk,
            max_num_seqs=self.max_num_seqs,
        )
        expect_plan(plan, {r.id: r for r in requests}, self.max_num_batched_tokens, self.max_num_seqs)
        came = {r.id for r in waiting}
        return sorted(plan, key=lambda chunk: chunk.request_id in came)  # who runs already has the first claim

    def _reserve(self, plan: list[Chunk], step: Step) -> bool:
        """Give each chunk its blocks. False when the plan must be made again: somebody was preempted or did not
        fit, or a prefix hit has changed how much there is to compute. What is reserved stays reserved."""
        for chunk in plan:
            request = self.requests[chunk.request_id]
            if step.chunks.get(request.id) == chunk:
                continue
            if request.block_table:  # it runs
                if not self.cache.allocate(request, chunk.stop):
                    self._preempt(step)
                    return False
            elif len(self.running) == self.max_num_seqs:  # a policy of its own wants more than there are seats
                continue
            elif not self._admit(request, chunk, step):
                return False
            step.chunks[request.id] = chunk
            if self._publish_early:
                self.cache.publish(request, chunk.start, chunk.stop)
        step.chunks = {c.request_id: c for c in plan if c.request_id in step.chunks}
        return True

    def _admit(self, request: Request, chunk: Chunk, step: Step) -> bool:
        """Look the prompt up, then let it in with its hit if there is room. Nothing is taken unless it gets in."""
        hit = self.cache.match(request)
        num_cached = len(hit) * self.cache.block_size
        if num_cached != request.num_computed:  # hit first, then cut the tail
            request.num_computed = request.num_cached = num_cached
            step.looked_up.append(request)
            return False
        if not self.cache.allocate(request, chunk.stop, hit=hit, room_for=self._room_for(request)):
            step.full = True
            return False
        if request.read_cache:
            self.cache.stats.count(request.num_tokens, num_cached)
        self.waiting.remove(request)
        self.running.append(request)
        step.admitted.append(request)
        return True

    def _room_for(self, request: Request) -> int:
        """Tokens that must have room for the request to be admitted, beside its first chunk."""
        if self.profile.room == "first chunk":
            return 0
        if self.profile.room == "whole prompt":
            return request.num_tokens  # what it generated before a preemption included
        blocks_for, longest = self.cache.blocks_for, lambda r: r.prompt_len + r.max_tokens - 1
        promised = sum(blocks_for(longest(r)) - len(r.block_table) for r in self.running)
        return (blocks_for(longest(request)) + promised) * self.cache.block_size

    def _preempt(self, step: Step) -> None:
        """Take all blocks from the request admitted last, which may be the one that asked; it is recomputed later."""
        victim = self.running.pop()
        self._take_back(victim, step.chunks.pop(victim.id, None))
        victim.num_preemptions += 1
        step.preempted.append(victim)

    def _take_back(self, request: Request, chunk: Chunk | None) -> None:
        """From running to the front of the queue, as if it had never been admitted."""
        if chunk is not None and self._publish_early:
            self.cache.unpublish(request, chunk.start, chunk.stop)
        self.cache.release(request)
        request.num_computed = request.num_cached = 0
        self.waiting.appendleft(request)

    def _forget_lookups(self, step: Step) -> None:
        """Who was looked up and not admitted is looked up afresh in a later step."""
        for request in step.looked_up:
            if not request.block_table:
                request.num_computed = request.num_cached = 0

    # --- after the step

    def undo(self, step: Step) -> None:
        """The step was not computed: nobody has advanced, nothing it published is found, who it admitted waits again.

        Whoever it preempted stays preempted, and what it evicted stays evicted: both are only work to redo.
        """
        self._expect_planned(step)
        for request_id, chunk in step.chunks.items():
            if self._publish_early:
                self.cache.unpublish(self.requests[request_id], chunk.start, chunk.stop)
        for request in reversed(step.admitted):
            self.running.remove(request)
            self._take_back(request, None)
        self._forget_lookups(step)
        self._planned = None

    def commit(self, step: Step, sampled: Mapping[int, int], duration_us: int | None = None) -> StepRecord:
        """The step was computed: requests advance, full blocks are published, who is done gives its blocks back.

        sampled   request id -> its next token, for exactly the chunks that end at their request's newest token
        """
        self._expect_planned(step)
        ends = [i for i, chunk in step.chunks.items() if chunk.stop == self.requests[i].num_tokens]
        if set(sampled) != set(ends):
            raise ValueError(f"tokens were sampled for requests {sorted(sampled)}; chunks end in those of {ends}.")
        for request_id, chunk in step.chunks.items():
            request = self.requests[request_id]
            request.num_computed = chunk.stop
            if not self._publish_early:
                self.cache.publish(request, chunk.start, chunk.stop)
        finished = []
        for request_id in ends:
            request = self.requests[request_id]
            request.token_ids.append(int(sampled[request_id]))
            if reason := request.why_done():
                finished.append(request_id)
                self._end(request, reason)
        if finished:
            self.running = [r for r in self.running if not r.finish_reason]
        self._planned = None
        self._num_steps += 1
        return StepRecord(
            step=step.number,
            chunks=tuple((c.request_id, c.start, c.stop) for c in step.chunks.values()),
            sampled=tuple((i, int(sampled[i])) for i in ends),
            hits=tuple((r.id, r.num_cached) for r in step.admitted),
            preempted=tuple(r.id for r in step.preempted),
            finished=tuple(finished),
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            free_blocks=self.cache.num_free,
            duration_us=duration_us,
        )

    def _expect_planned(self, step: Step) -> None:
        if step is not self._planned:
            raise RuntimeError(f"step {step.number} is not the one that was planned last, or is done already.")

    def check(self) -> None:
        """Assert that requests, queue and cache agree; for tests, after every step."""
        assert len(self.requests) == len(self.running) + len(self.waiting), "a request is in no queue, or in two"
        assert not any(r.block_table or r.num_computed for r in self.waiting), "a waiting request holds something"
        for r in self.running:
            assert r.num_computed <= len(r.block_table) * self.cache.block_size, f"{r.id}: more computed than room"
            assert r.num_cached <= r.num_computed < r.num_tokens, f"{r.id}: {r.num_cached}, {r.num_computed}"
        self.cache.check(self.running)
