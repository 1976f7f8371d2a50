"""A discrete-event simulation of a server: the real scheduler and cache, with a step cost in place of a model.

A request that arrives at time t is seen by the first step that begins at t or later. Everything is modelled, in
whole microseconds, and the same again for the same input.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from course_lib.cost.metrics import DEFAULT_TARGETS, Report, Targets
from course_lib.cost.prompts import TOKEN, fill_prompt
from course_lib.cost.work import StepCost, work_of
from course_lib.cost.workload import Arrival, check
from course_lib.schedule.fast_forward import decode_many, decode_only_steps
from course_lib.schedule.profiles import profile_named
from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler
from course_lib.schedule.step_record import StepRecord

Watch = Callable[[int, StepRecord], None]  # called with a step's begin, in us, and its record


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The knobs of one server, as Engine has them. The default pool holds 524,288 tokens."""

    profile: str = "course"
    num_blocks: int = 32_768
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_chunk: int = 0
    max_num_seqs: int = 256
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    plan_step: Callable | None = None
    refuse_stuck: bool = True

    def scheduler(self) -> Scheduler:
        """A fresh scheduler over an empty cache. ValueError for knobs that cannot work together."""
        rules = profile_named(self.profile)
        cache = rules.new_cache(self.num_blocks, self.block_size, enable_prefix_caching=self.enable_prefix_caching)
        return Scheduler(
            cache, rules, max_num_batched_tokens=self.max_num_batched_tokens, max_chunk=self.max_chunk,
            max_num_seqs=min(self.max_num_seqs, self.max_num_batched_tokens), plan_step=self.plan_step,
            enable_chunked_prefill=self.enable_chunked_prefill, refuse_stuck=self.refuse_stuck,
        )  # fmt: skip


@dataclass(eq=False)
class SimRequest(Request):
    """A request with the times of its tokens, in us; `arrival` is in us too. -1: no token yet.

    gaps        times between its tokens, if they are kept
    first_hit   tokens that it found in the prefix cache when it was first admitted
    """

    first_us: int = -1
    last_us: int = -1
    worst_us: int = 0
    first_hit: int = 0
    gaps: list[int] = field(default_factory=list)


def streaming_user(id: int, context: int, tokens: int, since_us: int) -> SimRequest:
    """A user in the middle of an answer of `tokens` tokens, the first of which came at since_us: for push_computed.

    context   tokens that its next decode reads, at least 2: the prompt, and that first token
    """
    times = {"arrival": since_us, "first_us": since_us, "last_us": since_us}
    return SimRequest(id, [id << 24] * context, max_tokens=tokens, prompt_len=context - 1, **times)


class SimServer:
    """One server and its clock. Push arrivals in order of time, and run it up to each before it is pushed.

    report   where its waits are counted; several servers may share one
    watch    called for each step; then every step is made one by one
    fast     False: step by step, which gives the same result and takes longer
    """

    def __init__(
        self, config: ServerConfig, cost: StepCost, report: Report, *, watch: Watch | None = None, fast: bool = True
    ):
        self.scheduler, self.cost, self.report = config.scheduler(), cost, report
        self.clock_us, self.stuck = 0, False  # stuck: no step can run until a request arrives
        self._watch, self._fast = watch, fast and watch is None
        self._backlog: deque[SimRequest | tuple[int, Arrival]] = deque()

    @property
    def idle(self) -> bool:
        return not (self._backlog or self.scheduler.requests)

    def push(self, id: int, arrival: Arrival) -> None:
        """A request comes. Its tokens are made when its turn is near, so a long queue stays small."""
        self._wake(arrival.time_us)
        self._backlog.append((id, arrival))

    def push_computed(self, request: SimRequest, time_us: int) -> None:
        """A request comes whose prompt was computed elsewhere, with its KV, at time_us."""
        self._wake(time_us)
        self._backlog.append(request)

    def _wake(self, time_us: int) -> None:
        self.stuck = False
        if self.idle:
            self.clock_us = max(self.clock_us, time_us)

    def run_until(self, time_us: int | None = None) -> list[SimRequest]:
        """Begin every step that begins before time_us (None: run until all is done). Returns the finished, in order."""
        finished: list[SimRequest] = []
        while not self.idle and (time_us is None or self.clock_us < time_us):
            self._queue_arrivals()
            steps = decode_only_steps(self.scheduler) if self._fast else 0
            if steps:
                finished += self._decode_steps(steps, time_us)
            elif not self._step(finished):
                self.stuck = True
                if time_us is None:
                    self._give_up()
                else:
                    self.clock_us = time_us
        return finished

    def _queue_arrivals(self) -> None:
        """Pass arrivals on to the scheduler, no more than its policy may be shown in the next step.

        Two at least: some profiles treat a request differently when it is the only one.
        """
        s = self.scheduler
        while self._backlog and (s.profile.shown == "all" or self._watch or len(s.waiting) < max(s.max_num_seqs, 2)):
            ahead = self._backlog[0]
            try:
                if not isinstance(ahead, Request):
                    s.add(self._request(*ahead))
                elif not s.attach(ahead, ahead.num_tokens - 1):
                    return  # in order: those behind wait as well
            except ValueError as error:
                self.report.num_refused += 1
                self.report.why_refused = self.report.why_refused or str(error)
            self._backlog.popleft()

    def _give_up(self) -> None:
        self.report.num_starved += len(self.scheduler.requests) + len(self._backlog)
        for request_id in list(self.scheduler.requests):
            self.scheduler.abort(request_id)
        self._backlog.clear()

    def _request(self, id: int, arrival: Arrival) -> SimRequest:
        s = self.scheduler
        if s.refuse_stuck and arrival.prompt_tokens > (pool := s.cache.num_blocks * s.cache.block_size):
            raise ValueError(f"a prompt of {arrival.prompt_tokens} tokens, and the pool holds {pool}.")
        request = SimRequest(id, [], max_tokens=arrival.output_tokens, arrival=arrival.time_us)
        fill_prompt(request, arrival, self.scheduler.cache)
        return request

    # --- time passes

    def _step(self, finished: list[SimRequest]) -> bool:
        """One step of the scheduler. False when it did nothing: no step can run until a request arrives."""
        s = self.scheduler
        step = s.schedule()
        served = [s.requests[i] for i in step.chunks]
        sampled = dict.fromkeys(s.ends(step), TOKEN)
        with_token: list[SimRequest] = [s.requests[i] for i in sampled]
        prefills, contexts = [], []
        for request, chunk in zip(served, step.chunks.values()):
            if request.decoding:
                contexts.append(chunk.stop)
            else:
                prefills.append((chunk.start, chunk.stop))
        duration = self.cost.work_us(work_of(prefills, contexts)) if served else 0
        for request in step.admitted:
            if request.first_us < 0 and not request.num_preemptions:
                request.first_hit = request.num_cached
        record = s.commit(step, sampled, duration) if self._watch else None
        finishing = [r for r in with_token if r.finish_reason] if record else s.advance(step, sampled)
        if not served and not step.preempted:
            return False
        begin, self.clock_us = self.clock_us, self.clock_us + duration
        if served:
            self._record_tokens(with_token, [duration])
        for request in finishing:
            self.report.finish(request)
        finished += finishing
        if record:
            self._watch(begin, record)
        return True

    def _decode_steps(self, steps: int, until: int | None) -> list[SimRequest]:
        """At most `steps` decode-only steps, those that begin before `until`. Returns the finished."""
        running: list[SimRequest] = list(self.scheduler.running)
        durations = self.cost.decode_run_us(len(running), sum(r.num_tokens for r in running), steps)
        if until is not None:
            durations = durations[: _begun(durations, until - self.clock_us)]
        self.clock_us += sum(durations)
        self._record_tokens(running, durations)
        finished = decode_many(self.scheduler, len(durations), TOKEN)
        for request in finished:
            self.report.finish(request)
        return finished

    def _record_tokens(self, requests: list[SimRequest], durations: list[int]) -> None:
        """Steps of these durations have just been made, and each gave each of these requests a token."""
        report, now, others = self.report, self.clock_us, durations[1:]
        first, longest, keep = now - sum(others), max(others, default=0), self.report.keep
        all_equal = durations.count(durations[0]) == len(durations)  # the usual case; a Counter is slow
        num_steps = {durations[0]: len(durations)} if all_equal else Counter(durations)  # by duration
        report.steps.update(num_steps)
        num_steps[durations[0]] -= 1  # the gap that the first step ends began with the token before: see below
        gaps = {us: steps * len(requests) for us, steps in num_steps.items() if steps}
        for request in requests:
            if request.first_us < 0:
                request.first_us = request.last_us = first
                continue
            gap = first - request.last_us
            request.last_us = now
            gaps[gap] = gaps.get(gap, 0) + 1
            if gap > request.worst_us or longest > request.worst_us:
                request.worst_us = max(gap, longest)
            if keep:
                request.gaps += [gap, *others]
        report.itl.update(gaps)


def simulate(
    workload: Iterable[Arrival], config: ServerConfig, cost: StepCost, *, targets: Targets = DEFAULT_TARGETS,
    replicas: int = 1, keep: bool = False, watch: Watch | None = None, fast: bool = True,
) -> Report:  # fmt: skip
    """Serve a workload and say what the waits were.

    replicas   equal servers; requests go round robin, in order of arrival
    keep       keep every request's gaps (report.requests); else memory does not grow with the workload
    watch      called with the begin and the StepRecord of every step; then steps are made one by one

    Raises ValueError for a workload out of order, or knobs that cannot work together.
    """
    if replicas < 1:
        raise ValueError(f"replicas={replicas}: at least 1 is needed.")
    report = Report(targets, keep=keep)
    servers = [SimServer(config, cost, report, watch=watch, fast=fast) for _ in range(replicas)]
    for number, arrival in enumerate(check(workload)):
        report.begin_us = arrival.time_us if report.begin_us is None else report.begin_us
        server = servers[number % replicas]
        server.run_until(arrival.time_us)
        server.push(number, arrival)
    for server in servers:
        server.run_until()
    return report


def _begun(durations: list[int], time_us: int) -> int:
    """How many of these steps, back to back from 0, begin before time_us (above 0)."""
    ends = list(accumulate(durations))
    return min(bisect_left(ends, time_us) + 1, len(ends))
