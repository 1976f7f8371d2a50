"""All submissions of a class, first many at once, then alone those whose grade may be the machine's fault."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from autograder.grading.executors import Job
from autograder.grading.grade import Graded, refused
from autograder.grading.intake import Refused, content_of
from autograder.grading.journal import Journal, key_of, version
from autograder.grading.submissions import Submission
from course_lib.cli import UserError

TRIES = 3  # of a submission whose worker was lost: so many beside others, and again so many alone


class Pool(Protocol):
    """executors.Local or executors.Cluster."""

    level: str
    width: int

    def submit(self, job: Job) -> Future: ...

    def is_lost(self, error: BaseException) -> bool: ...


@dataclass(eq=False, slots=True)
class _Piece:
    """Work at hand. Who handed in the very same file waits for it too."""

    key: str
    waiting: list[tuple[Submission, int]] = field(default_factory=list)  # with how often its worker was lost


class Rounds:
    """Grades submissions in a pool and keeps a journal of it.

    worth   points of each graded cell, by assignment and grade id
    seed    the course's: chooses the inputs that learners do not see
    """

    def __init__(self, pool: Pool, journal: Journal, worth: Mapping[str, Mapping[str, float]], seed: int):
        self.pool, self.journal, self.worth, self.seed = pool, journal, worth, seed
        self.again: list[Submission] = []
        self.known = 0  # submissions whose grades stood in the journal already

    def run(self, todo: Sequence[Submission]) -> Iterator[tuple[Submission, Graded | str]]:
        """Each submission with its grades, or with the reason for which it could not be graded.

        A call that was ended for want of time may have been right on a machine with less to do: such a submission is
        graded once more, alone, and that counts. So is one that took its worker with it, or met an error of ours.
        """
        self.again = []
        yield from self._round(todo, self.pool.width, last=False)
        again = self.again
        yield from self._round(again, 1, last=True)

    def _round(
        self, todo: Sequence[Submission], width: int, *, last: bool
    ) -> Iterator[tuple[Submission, Graded | str]]:
        queue = deque((one, 0) for one in todo)
        running: dict[Future, _Piece] = {}
        while queue or running:
            while queue and len(running) < width:
                one, losses = queue.popleft()
                found = self._begin(one, losses, running)
                if found is not None:
                    yield one, found
            for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                piece, error = running.pop(future), _error(future)
                if error is None:
                    graded, cut_short = future.result()
                    if last or not cut_short:
                        graded = self.journal.add(piece.key, graded)
                        yield from ((one, graded) for one, _ in piece.waiting)
                    else:
                        self.again += [one for one, _ in piece.waiting]
                    continue
                for one, losses in piece.waiting:
                    if self.pool.is_lost(error) and losses + 1 < TRIES:
                        queue.append((one, losses + 1))
                    elif last:
                        yield one, _what(self.pool.is_lost(error), error)
                    else:
                        self.again.append(one)

    def _begin(self, one: Submission, losses: int, running: dict[Future, _Piece]) -> Graded | None:
        """Put it among the running ones, unless its grades are known already."""
        worth = self.worth[one.assignment]
        try:
            content = content_of(one.path)
        except Refused as error:
            return refused(error, one.assignment, self.pool.level, worth)
        key = key_of(content, one.assignment, worth, self.seed, self.pool.level)
        if (known := self.journal.get(key)) is not None:
            self.known += 1
            return known
        for piece in running.values():
            if piece.key == key:
                piece.waiting.append((one, losses))
                return None
        job = Job(content, one.assignment, worth, self.seed, self.pool.level, version())
        running[self.pool.submit(job)] = _Piece(key, [(one, losses)])
        return None


def _error(future: Future) -> BaseException | None:
    """What came up in place of grades. UserError, such as that the sources were changed, ends the whole run."""
    try:
        future.result()
    except UserError:
        raise
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return error
    return None


def _what(lost: bool, error: BaseException) -> str:
    if lost:
        return f"its process was ended from outside, {TRIES} times; is there too little memory?"
    return f"{type(error).__name__}: {error}"


class Progress:
    """How many are done, how fast, and how long it will take: one changing line on a terminal, else a line each 50."""

    def __init__(self, total: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self.total, self.out, self.clock = total, out or sys.stderr, clock
        self.done, self.known, self.began, self.width = 0, 0, clock(), 0

    def one(self, known: int = 0) -> None:
        """One more is done. So many of all that are done had been graded before."""
        self.done, self.known = self.done + 1, known
        last = self.done == self.total
        if self.out.isatty():
            self._show(end="\n" if last else "")
        elif last or not self.done % 50:
            print(self._text(), file=self.out, flush=True)

    def _show(self, end: str) -> None:
        text = self._text()
        print(f"\r{text:{self.width}}", end=end, file=self.out, flush=True)
        self.width = len(text)

    def _text(self) -> str:
        passed = self.clock() - self.began
        rate = (self.done - self.known) / passed if passed > 0 else 0.0
        left = f", {_duration((self.total - self.done) / rate)} left" if rate and self.done < self.total else ""
        before = f", {self.known} of them earlier" if self.known else ""
        speed = f", {rate:.1f} a second" if self.done > self.known else ""
        return f"{self.done} of {self.total} graded{before}{speed}{left}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
