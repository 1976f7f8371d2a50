"""Sends requests to a server and records the answers: users who stream while a long prompt arrives, or a trace."""

import asyncio
import gc
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field

from course_lib.load.address import Endpoint
from course_lib.load.client import Record, ask, first_model
from course_lib.load.measure import Stream
from course_lib.load.prompts import Job

FEW = 16  # events that each user gets before the long prompt is sent, and again once it is answered
TICK_S = 0.005


@dataclass
class Run:
    """What was sent and what came.

    late_ns      the longest that this process was late for a timer: shorter gaps may be its own
    late_at_ns   when that was
    """

    records: list[Record]
    began_ns: int = 0
    ended_ns: int = 0
    interrupted: bool = False
    late_ns: int = 0
    late_at_ns: int = 0
    trouble: list[str] = field(default_factory=list)

    def streams(self) -> list[Stream]:
        """Every request that was sent, its times in microseconds from the start of the run."""
        return [self._stream(record) for record in self.records if record.sent_ns]

    def us(self, at_ns: int) -> int:
        return (at_ns - self.began_ns) // 1_000

    def _stream(self, record: Record) -> Stream:
        return Stream(
            record.job.name,
            record.job.role,
            record.usage[0] if record.usage else record.job.prompt_tokens,
            self.us(record.sent_ns[0]),
            self.us(record.sent_ns[-1]),
            tuple(map(self.us, record.event_ns)),
            self.us(record.end_ns or self.ended_ns),
            record.state,
            record.usage[1] if record.usage and record.state == "done" else 0,
        )


def ask_model(endpoint: Endpoint, timeout_s: float) -> str:
    """The first model that the server lists. UserError if it lists none."""
    return asyncio.run(first_model(endpoint, timeout_s))


def run_load(
    endpoint: Endpoint,
    jobs: list[Job],
    sent: list[bytes],
    timeout_s: float,
    say: Callable[[str], None] = lambda _: None,
) -> Run:
    """Send the body of every job and wait for the answers. Ctrl-C ends it early; what has come so far is kept.

    If a job has the role "prompt" it is sent once all others stream, and they are stopped FEW events after its answer.
    Otherwise each job is sent when it arrives, whether or not those before it are answered.
    """
    run = Run([Record(job) for job in jobs])
    freeze = any(job.role == "prompt" for job in jobs)
    try:
        with _quiet_collector():
            asyncio.run(_main(run, _freeze if freeze else _replay, endpoint, sent, timeout_s, say))
    except KeyboardInterrupt:
        run.interrupted = True
    finally:
        run.ended_ns = time.perf_counter_ns()
    return run


async def _main(run: Run, scenario, endpoint: Endpoint, sent: list[bytes], timeout_s: float, say) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: run.trouble.append(str(context.get("message"))))
    watch = asyncio.create_task(_watch(run))
    tasks: list[asyncio.Task] = []

    def start(i: int) -> asyncio.Task:
        tasks.append(asyncio.create_task(ask(endpoint, run.records[i], sent[i], timeout_s)))
        return tasks[-1]

    run.began_ns = time.perf_counter_ns()
    try:
        await scenario(run.records, start, say)
    finally:  # cancelled here, or by Ctrl-C
        for task in (*tasks, watch):
            task.cancel()
        await asyncio.gather(*tasks, watch, return_exceptions=True)


async def _freeze(records: list[Record], start: Callable[[int], asyncio.Task], say) -> None:
    """All users; the long prompt once each user has FEW events (or a quarter of its answer) or has ended; then FEW."""
    users, prompt = records[:-1], records[-1]
    for i in range(len(users)):
        start(i)
    few = min(FEW, -(-users[0].job.max_tokens // 4))
    await _until(lambda: all(user.state != "waiting" or len(user.event_ns) >= few for user in users))
    streaming = sum(user.state == "waiting" for user in users)
    say(f"{streaming} of {len(users)} users are streaming; sending the prompt of {prompt.job.prompt_tokens:,} tokens")
    await start(len(users))
    say(f"the prompt is {'answered' if prompt.state == 'done' else prompt.state}; {FEW} more events of each user")
    goal = [len(user.event_ns) + FEW for user in users]
    await _until(lambda: all(user.state != "waiting" or len(user.event_ns) >= g for user, g in zip(users, goal)))
    for user in users:
        if user.state == "waiting":
            user.state = "stopped"


async def _replay(records: list[Record], start: Callable[[int], asyncio.Task], say) -> None:
    """Each request at its arrival, and on until all are answered."""
    began = time.perf_counter()
    tasks = []
    for i, record in enumerate(records):
        await asyncio.sleep(max(0.0, began + record.job.arrival_us / 1e6 - time.perf_counter()))
        tasks.append(start(i))
    say(f"all {len(records):,} requests are sent")
    await asyncio.gather(*tasks)


async def _until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(TICK_S)


async def _watch(run: Run) -> None:
    """Record how late this process wakes from a sleep of TICK_S."""
    while True:
        before = time.perf_counter_ns()
        await asyncio.sleep(TICK_S)
        now = time.perf_counter_ns()
        late = now - before - int(TICK_S * 1e9)
        if late > run.late_ns:
            run.late_ns, run.late_at_ns = late, now


@contextmanager
def _quiet_collector():
    """Keep the garbage collector from searching what is in memory already: that takes milliseconds."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
