"""Builds a step: ask the policy, allocate blocks for each chunk, ask again when something has changed.

Allocation goes through the plan chunk by chunk. A request is admitted only after every chunk before it has its blocks,
and its prefix hit is what the cache holds at that moment: earlier chunks may have evicted blocks, or published some.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from course_lib.schedule.refusals import room_for
from course_lib.schedule.request import Chunk, Request


@dataclass
class Step:
    """A step that is planned and has its blocks, and is not computed yet. Without chunks it is idle."""

    number: int
    chunks: dict[int, Chunk] = field(default_factory=dict)  # by request id, in batch order
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    queue_positions: dict[int, int] = field(default_factory=dict)  # request id -> index at which it waited, if admitted

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks.values())


class StepBuilder:
    """Fills one step of a scheduler."""

    def __init__(self, scheduler, step: Step):
        self.scheduler, self.cache, self.step = scheduler, scheduler.cache, step
        # Look-ups of this step, by request id: the request, its hit, and the version of the cache at that time.
        self._lookups: dict[int, tuple[Request, list[int], int]] = {}
        self._front_size = 1  # waiting requests shown to a policy that sees the front of the queue
        self._admission_closed = False  # this step admits no further request

    def build(self) -> None:
        """Plan the step and allocate its blocks. If this raises, the caller must undo the step."""
        try:
            for _ in range(10 + 4 * len(self.scheduler.requests)):
                # 1) Choose which waiting requests the policy is shown; their prefix hits count as computed.
                offered = self._offer()
                # 2) Ask the policy which tokens to compute.
                plan = self._plan(offered)
                # 3) Allocate each chunk's blocks. If a request was preempted, did not fit or lost its hit: plan again.
                if not self._allocate(plan):
                    continue
                # 4) Done, unless every request shown was admitted: then there may be room for more of the queue.
                if self._is_complete(offered):
                    return
            raise RuntimeError("the cache keeps changing its answer within one step, so no plan for it holds.")
        finally:  # a request that was not admitted has nothing computed; a later step looks it up again
            for request, _, _ in self._lookups.values():
                if not request.block_table:
                    request.num_computed = request.num_cached = 0

    def _offer(self) -> list[Request]:
        """The waiting requests that the policy is shown, looked up in the prefix cache."""
        s = self.scheduler
        free_seqs = s.max_num_seqs - len(s.running)
        if self.step.preempted or self._admission_closed or not free_seqs:  # a step that preempts admits nothing
            return []
        counts = {"front": min(free_seqs, self._front_size), "admissible": free_seqs, "all": len(s.waiting)}
        offered = list(islice(s.waiting, counts[s.profile.shown]))
        for request in offered:
            if request.id not in self._lookups:
                self._look_up_and_record(request)
        return offered

    def _look_up_and_record(self, request: Request) -> list[int]:
        hit = self._look_up(request)
        self._lookups[request.id] = request, hit, self.cache.version
        return hit

    def _look_up(self, request: Request) -> list[int]:
        """The blocks of the request's prefix hit, whose tokens count as computed from here on."""
        hit = self.cache.match(request)
        request.num_computed = request.num_cached = len(hit) * self.cache.block_size
        return hit

    def _plan(self, offered: Sequence[Request]) -> Sequence[Chunk]:
        """The policy's chunks for the running requests and those offered, the chunks of running requests first."""
        s = self.scheduler
        ignore_max_chunk = s.profile.lone_request_ignores_max_chunk and len(s.requests) == 1
        plan = s.plan_step(
            (*s.running, *offered),
            max_num_batched_tokens=s.max_num_batched_tokens,
            max_chunk=0 if ignore_max_chunk else s.max_chunk,
            max_num_seqs=s.max_num_seqs,
        )
        if not offered:
            return plan
        new = {request.id for request in offered}
        return sorted(plan, key=lambda chunk: chunk.request_id in new)

    def _allocate(self, plan: Sequence[Chunk]) -> bool:
        """Allocate each chunk's blocks. False when the plan is stale; blocks allocated so far are kept."""
        s, step = self.scheduler, self.step
        for chunk in plan:
            request = s.requests[chunk.request_id]
            if request.id in step.chunks and step.chunks[request.id] == chunk:  # allocated for an earlier plan
                continue
            if request.block_table:  # running
                if not self.cache.allocate(request, chunk.stop):
                    self._preempt()
                    return False
            elif len(s.running) == s.max_num_seqs:  # the plan has more new requests than may run
                continue
            elif not self._admit(request, chunk):
                return False
            step.chunks[request.id] = chunk
            if s.publish_early:
                self.cache.publish(request, chunk.start, chunk.stop)
        step.chunks = {c.request_id: c for c in plan if c.request_id in step.chunks}
        return True

    def _admit(self, request: Request, chunk: Chunk) -> bool:
        """Admit a request if its hit is what the plan counted on, and its blocks are free; else allocate nothing."""
        s = self.scheduler
        _, hit, version = self._lookups[request.id]
        if version != self.cache.version:  # blocks were evicted or published since the look-up
            counted_on = request.num_computed
            hit = self._look_up_and_record(request)
            if request.num_computed != counted_on:
                return False
        if not self.cache.allocate(request, chunk.stop, hit=hit, room_for=room_for(request, s)):
            self._admission_closed = True  # requests behind it wait as well: no overtaking
            return False
        self.step.queue_positions[request.id] = index = s.waiting.index(request)
        del s.waiting[index]
        s.running.append(request)
        self.step.admitted.append(request)
        return True

    def _preempt(self) -> None:
        """Preempt the request admitted last, perhaps the one that needs the block: its blocks are released, and it is
        recomputed later."""
        s, step = self.scheduler, self.step
        victim = s.running[-1]
        chunk = step.chunks.pop(victim.id, None)
        if chunk is not None and s.publish_early:
            self.cache.unpublish(victim, chunk.start, chunk.stop)
        s.requeue(victim, step.queue_positions.get(victim.id, 0))
        if victim in step.admitted:  # in this step: the admission is rolled back and not counted as a preemption
            step.admitted.remove(victim)
            self._admission_closed = True
        else:
            victim.num_preemptions += 1
            step.preempted.append(victim)

    def _is_complete(self, offered: Sequence[Request]) -> bool:
        if not offered or not all(request.block_table for request in offered):
            return True
        self._front_size *= 2
        return not self.scheduler.waiting or self.step.num_tokens == self.scheduler.max_num_batched_tokens
