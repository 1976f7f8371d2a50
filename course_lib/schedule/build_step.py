"""How a step comes about: ask the policy, give each chunk its blocks, ask again when something has changed.

Planning and reserving are one walk. A request is let in only after all that comes before it has its blocks, and is
looked up in the prefix cache at that moment: it sees what they evicted, and what they published.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from course_lib.schedule.refusals import expect_plan, room_for
from course_lib.schedule.request import Chunk, Request


@dataclass
class Step:
    """A step that is planned and has its blocks, and is not computed yet. Without chunks it is idle."""

    number: int
    chunks: dict[int, Chunk] = field(default_factory=dict)  # by request id, in batch order
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks.values())


class StepBuilder:
    """Fills one step of a scheduler."""

    def __init__(self, scheduler, step: Step):
        self.scheduler, self.cache, self.step = scheduler, scheduler.cache, step
        self._looked_up: dict[int, Request] = {}  # who waits, with a hit counted as computed
        self._offered: list[Request] = []  # those of the queue whom the policy was shown last
        self._window = 1  # how many it is shown
        self._full = False  # nobody more is let in

    def build(self) -> None:
        """Raises whatever a policy or a prefix cache of one's own raises, and leaves the step to be undone."""
        try:
            for _ in range(10 + 4 * len(self.scheduler.requests)):
                if self._reserve(self._plan()):
                    return
            raise RuntimeError("plan_step or the prefix cache keeps changing its answer within one step.")
        finally:  # who was looked up and not let in is looked up afresh in a later step
            for request in self._looked_up.values():
                if not request.block_table:
                    request.num_computed = request.num_cached = 0

    def _plan(self) -> Sequence[Chunk]:
        """What the policy wants now, of all that runs, those let in by this step included, and of who may come."""
        s = self.scheduler
        self._offered = self._offer()
        seen = (*s.running, *self._offered)
        alone = s.profile.lone_ignores_cap and len(s.requests) == 1
        computed = [(r, r.num_computed) for r in seen] if s.own_policy else []
        try:
            wanted = s.plan_step(
                seen,
                max_num_batched_tokens=s.max_num_batched_tokens,
                max_chunk=0 if alone else s.max_chunk,
                max_num_seqs=s.max_num_seqs,
            )
            if s.own_policy:
                wanted = expect_plan(wanted, {r.id: r for r in seen}, s.max_num_batched_tokens, s.max_num_seqs)
        finally:
            changed = [r.id for r, before in computed if r.num_computed != before]
            for r, before in computed:
                r.num_computed = before
            if changed:
                raise ValueError(f"plan_step changed num_computed of {changed}: it plans, and commit advances.")
        if not self._offered:
            return wanted
        came = {r.id for r in self._offered}
        return sorted(wanted, key=lambda chunk: chunk.request_id in came)  # who runs already has the first claim

    def _offer(self) -> list[Request]:
        """Those of the queue whom the policy may let in, with what they find in the cache counted as computed."""
        s = self.scheduler
        seats = s.max_num_seqs - len(s.running)
        if self.step.preempted or self._full or not seats:  # nobody is let in by a step that had to preempt
            return []
        if s.own_policy:
            offered = list(s.waiting)
        else:  # the shipped policies keep the queue's order, so they need not see further than they get
            offered = list(islice(s.waiting, seats if s.profile.shares_evenly else min(seats, self._window)))
        for request in offered:
            if request.id not in self._looked_up:
                self._look_up(request)
        return offered

    def _look_up(self, request: Request) -> list[int]:
        hit = self.cache.match(request)
        request.num_computed = request.num_cached = len(hit) * self.cache.block_size
        self._looked_up[request.id] = request
        return hit

    def _reserve(self, plan: Sequence[Chunk]) -> bool:
        """Give each chunk its blocks. False when the plan must be made again: somebody was preempted or did not
        fit, a hit has changed, or there may be something left for more. What is reserved stays reserved."""
        s, step = self.scheduler, self.step
        for chunk in plan:
            request = s.requests[chunk.request_id]
            if request.id in step.chunks and step.chunks[request.id] == chunk:
                continue
            if request.block_table:  # it runs
                if not self.cache.allocate(request, chunk.stop):
                    self._preempt()
                    return False
            elif len(s.running) == s.max_num_seqs:  # a policy of one's own wants more than there are seats
                continue
            elif not self._admit(request, chunk):
                return False
            step.chunks[request.id] = chunk
            if s.publish_early:
                self.cache.publish(request, chunk.start, chunk.stop)
        step.chunks = {c.request_id: c for c in plan if c.request_id in step.chunks}
        if s.own_policy or not self._offered or not all(r.block_table for r in self._offered):
            return True
        self._window *= 2  # all who were shown came in
        return not s.waiting or step.num_tokens == s.max_num_batched_tokens

    def _admit(self, request: Request, chunk: Chunk) -> bool:
        """Let a request in with its hit if there is room. Nothing is taken unless it gets in."""
        found = request.num_computed
        hit = self._look_up(request)
        if request.num_computed != found:
            return False
        if not self.cache.allocate(request, chunk.stop, hit=hit, room_for=room_for(request, self.scheduler)):
            self._full = True  # and those behind wait as well: no overtaking
            return False
        self.scheduler.waiting.remove(request)
        self.scheduler.running.append(request)
        self.step.admitted.append(request)
        return True

    def _preempt(self) -> None:
        """Take all blocks from the request admitted last, which may be the one that asked; it is recomputed later."""
        victim = self.scheduler.running[-1]
        self.scheduler.send_back(victim, self.step.chunks.pop(victim.id, None))
        if victim in self.step.admitted:  # let in too early, by this very step
            self.step.admitted.remove(victim)
            self.scheduler.restore_order(self.step)
            self._full = True
        else:
            victim.num_preemptions += 1
            self.step.preempted.append(victim)
