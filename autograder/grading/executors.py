"""Where submissions are graded: processes of this machine, or the workers of a Dask cluster.

What travels there is the content of a file and what it is to be graded by; back comes a Graded. Nothing is written
there. Both kinds take one Job after another (`submit`), tell which errors mean a lost worker, and say how many jobs
keep all workers busy (`width`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from autograder.grading.grade import Graded, Grader, grade_file
from autograder.grading.journal import version
from autograder.grading.memo import Memo
from autograder.grading.sandbox import level
from course_lib.cli import UserError

_ONE_AT_A_TIME = threading.Lock()  # what a known mistake prints is caught by way of sys.stdout, which threads share
ANSWERS_IN = 5  # seconds for a scheduler to answer


@dataclass(frozen=True, slots=True)
class Job:
    """A submission, and what it is to be graded by. The version is that of the grader which asks."""

    content: bytes
    assignment: str
    worth: Mapping[str, float]
    seed: int
    level: str
    version: str


def work(job: Job) -> tuple[Graded, bool]:
    """Its grades, and whether a call ended for want of time or memory. UserError if another grader runs here."""
    if version() != job.version:
        raise UserError("the course's sources are not those that the grading began with. Do not change them meanwhile.")
    with _ONE_AT_A_TIME:
        grader = Grader(job.level, memo())
        graded = grade_file(job.content, job.assignment, job.worth, job.seed, job.level, grader)
    return graded, grader.cut_short


@functools.lru_cache(maxsize=1)
def memo() -> Memo:
    """What this process remembers; a process that is handed one job after another has no other place for it."""
    return Memo()


class Local:
    """Processes of this machine; all are started anew when one was lost. They end when this process does."""

    def __init__(self, jobs: int):
        self.jobs, self.level = jobs, level()
        self.width = jobs + 1  # one waits in the line, so that no process does
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        theirs, self.leash = context.Pipe(duplex=False)
        self.pool = ProcessPoolExecutor(self.jobs, context, _begin, (theirs,))
        self.theirs = theirs  # kept for processes that are started later

    def submit(self, job: Job) -> Future:
        with _deaf_to_ctrl_c():  # as a process is that is started now
            try:
                return self.pool.submit(work, job)
            except BrokenExecutor:
                self.close()
                self._start()
                return self.pool.submit(work, job)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, (BrokenExecutor, CancelledError))

    def close(self) -> None:
        """End all processes at once, whatever they are doing."""
        self.leash.close()
        self.theirs.close()
        self.pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal; here it is the parent's affair, from a process's first moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(leash: Any) -> None:
    """In a new process: when the parent is gone, or has closed its end of the pipe, this process ends too."""

    def follow() -> None:
        leash.poll(None)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class Cluster:
    """The workers of a Dask scheduler. They need this course, in this version, and isolate answers themselves."""

    def __init__(self, address: str):
        try:
            import dask
            import distributed
        except ImportError:
            raise UserError("--scheduler needs Dask, which is not installed: pip install -e .[distributed]") from None
        self.address = address
        dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GB"})  # notebooks hold pictures
        try:
            asyncio.run(_knock(address))  # a Client that finds nobody there says so at length, and once more at the end
            self.client = distributed.Client(address, timeout=ANSWERS_IN, set_as_default=False)
        except (OSError, ValueError, TypeError):
            raise UserError(
                f"no Dask scheduler answers at {address!r}. Start one (dask scheduler), or leave --scheduler out."
            ) from None
        try:
            self.level = self._level()
        except BaseException:
            self.client.close()
            raise
        self.pool = self.client.get_executor(pure=False)
        self.gone = (distributed.scheduler.KilledWorker, distributed.comm.CommClosedError, CancelledError)

    def _level(self) -> str:
        """How all workers isolate answers; UserError if they have another grader, none, or differ."""
        if not self.client.nthreads():
            raise UserError(f"the scheduler at {self.address} has no worker. Start some: dask worker {self.address}")
        try:
            found = set(self.client.run(_about).values())
        except Exception as error:  # Dask passes on the text of an ImportError, and not its type
            raise UserError(
                f"the workers of {self.address} cannot grade ({error}): install this course where they run "
                "(pip install -e .[lab,distributed]), in the same version as here."
            ) from None
        if {there for there, _ in found} != {version()}:
            raise UserError(f"the workers of {self.address} have another version of the course, or of NumPy or Python.")
        levels = {isolation for _, isolation in found}
        if len(levels) > 1:
            raise UserError(
                f"the workers of {self.address} isolate answers in different ways ({', '.join(sorted(levels))}); a "
                "class is graded in one. Keep the workers of one kind."
            )
        return levels.pop()

    @property
    def width(self) -> int:
        return 2 * sum(self.client.nthreads().values()) or 1

    def submit(self, job: Job) -> Future:
        if self.client.status != "running":
            raise UserError(
                f"the scheduler at {self.address} does not answer any more. What was graded is kept: grade again."
            )
        return self.pool.submit(work_elsewhere, job)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, self.gone)

    def close(self) -> None:
        self.pool.shutdown(wait=False)
        self.client.close()


async def _knock(address: str) -> None:
    """OSError, ValueError or TypeError if no scheduler can be reached there."""
    from distributed.comm import connect
    from distributed.security import Security

    found = await connect(address, timeout=ANSWERS_IN, **Security().get_connection_args("client"))
    await found.close()


def work_elsewhere(job: Job) -> tuple[Graded, bool]:
    """`work`, on a machine that may isolate answers in another way than the others."""
    if level() != job.level:
        raise UserError(f"a worker isolates answers by {level()!r}, and the others by {job.level!r}.")
    return work(job)


def _about() -> tuple[str, str]:
    return version(), level()
