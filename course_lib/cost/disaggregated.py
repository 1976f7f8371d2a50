"""Prefill and decode on separate servers: no decode ever waits for a prompt, and every prompt's KV travels.

The first token comes from the prefill server; the second after the transfer, from a decode server. Left out:
the prefill server's blocks are free as soon as it is done, and decode servers look nothing up in a prefix cache.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from course_lib.cost.metrics import DEFAULT_TARGETS, Report, Targets
from course_lib.cost.simulator import ServerConfig, SimRequest, SimServer
from course_lib.cost.work import StepCost
from course_lib.cost.workload import Arrival, check


@dataclass(frozen=True)
class Transfer:
    """Sending a prompt's KV takes fixed_us + ns_per_token per prompt token; each prefill server sends one at a time.

    The default is 131,072 bytes per token (Llama 3 8B: 2 x 32 layers x 8 heads x 128 x 2 bytes) at 50 GB/s, the
    line rate of one 400 Gbit/s network port.
    """

    fixed_us: int = 1_000
    ns_per_token: int = 2_622

    def __post_init__(self) -> None:
        if min(self.fixed_us, self.ns_per_token) < 0:
            raise ValueError(f"{self}: times are 0 or more.")

    def duration_us(self, tokens: int) -> int:
        return self.fixed_us + -(-tokens * self.ns_per_token // 1000)


DEFAULT_TRANSFER = Transfer()


def simulate_disaggregated(
    workload: Iterable[Arrival], config: ServerConfig, cost: StepCost, *, transfer: Transfer = DEFAULT_TRANSFER,
    prefill_servers: int = 1, decode_servers: int = 1, targets: Targets = DEFAULT_TARGETS, keep: bool = False,
) -> Report:  # fmt: skip
    """Serve a workload with separate prefill and decode servers. Requests go round robin to each kind.

    config   the knobs of every server; prompts and decodes never meet on one
    Otherwise as simulator.simulate.
    """
    if prefill_servers < 1 or decode_servers < 1:
        raise ValueError(f"{prefill_servers} prefill and {decode_servers} decode servers: at least 1 of each.")
    report = Report(targets, keep=keep)
    prefill = [_PrefillServer(config, cost, report, transfer) for _ in range(prefill_servers)]
    decode = [SimServer(replace(config, enable_prefix_caching=False), cost, report) for _ in range(decode_servers)]
    for number, (ready_us, request) in enumerate(_handed_over(check(workload), prefill, report)):
        if request.why_done():  # its first token was its last
            report.finish(request)
            continue
        server = decode[number % decode_servers]
        server.run_until(ready_us)
        server.push_computed(request, ready_us)
    for server in decode:
        server.run_until()
    return report


class _PrefillServer:
    """A server that computes prompts, and the link over which it sends their KV."""

    def __init__(self, config: ServerConfig, cost: StepCost, report: Report, transfer: Transfer):
        self._transfer, self._link_free_us = transfer, 0
        # Waits are counted where a request ends, so what this server finishes is counted in a report that is dropped;
        # its steps and refusals are the run's.
        own = Report()
        own.steps = report.steps
        self.sim, self._own, self._report = SimServer(config, cost, own), own, report
        self._arrivals: dict[int, Arrival] = {}

    def push(self, id: int, arrival: Arrival) -> None:
        self._arrivals[id] = arrival
        self.sim.push(id, arrival._replace(output_tokens=1))

    def run_until(self, time_us: int) -> Iterator[tuple[int, SimRequest]]:
        """(time at which its KV has arrived, request with its first token) for each that is done."""
        for done in self.sim.run_until(time_us):
            arrival = self._arrivals.pop(done.id)
            self._link_free_us = max(self._link_free_us, done.last_us) + self._transfer.duration_us(done.prompt_len)
            request = SimRequest(
                done.id, done.token_ids, max_tokens=arrival.output_tokens, arrival=done.arrival,
                prompt_len=done.prompt_len, first_us=done.first_us, last_us=done.last_us, first_hit=done.first_hit,
            )  # fmt: skip
            yield self._link_free_us, request

    def settle(self) -> None:
        """No request comes any more: add the refused and the starved of this server to the run's report."""
        self.sim.run_until()
        self._report.num_refused += self._own.num_refused
        self._report.num_starved += self._own.num_starved
        self._report.why_refused = self._report.why_refused or self._own.why_refused


def _handed_over(
    arrivals: Iterator[Arrival], servers: list[_PrefillServer], report: Report
) -> Iterator[tuple[int, SimRequest]]:
    """(time, request) in order of time, as the KV of one prompt after the other reaches the decode side."""
    ready: list[tuple[int, int, SimRequest]] = []

    def run(time_us: int) -> Iterator[tuple[int, SimRequest]]:
        for server in servers:
            for at, request in server.run_until(time_us):
                heapq.heappush(ready, (at, request.id, request))
        while ready and ready[0][0] < time_us:  # whatever is prefilled from now on is ready later than this
            at, _, request = heapq.heappop(ready)
            yield at, request

    time_us = 0
    for number, arrival in enumerate(arrivals):
        time_us = arrival.time_us
        report.begin_us = time_us if report.begin_us is None else report.begin_us
        yield from run(time_us)
        servers[number % len(servers)].push(number, arrival)
    while ready or not all(server.sim.idle or server.sim.stuck for server in servers):
        time_us += 1_000_000  # not all at once, so that what is left of a long queue is never held whole
        yield from run(time_us)
    for server in servers:
        server.settle()
