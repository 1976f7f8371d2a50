"""An answer in a sandbox, as a judge sees it: the same `run` as an answer in this process (answers.InProcess)."""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autograder.answers import handle
from autograder.exercise import Apart, Call, Callback, Exercise, Outcome, Raised, separated
from autograder.grading.sandbox import Gone, Line, Sandbox
from autograder.grading.wire import WireError, encode
from autograder.grading.worker import unpacked
from autograder.plain import plain

SECONDS = 20  # wall-clock time of one call; right answers need less than one
ALL_SECONDS = 300  # of all calls of a submission; right answers need less than five
TOGETHER, SOCKET_HOLDS = 32, 1 << 16  # calls, and bytes, that are sent at once
MOST_ASKED = 1 << 18  # bytes of the arguments that an answer gives a function of the judge's
QUESTIONS = 100_000  # most calls of the judge's functions within one call of an answer


class Remote:
    """What a learner's cells define under the exercise's name, in a worker that is started when it is needed.

    Each Remote meets an answer that has not run before. `close` ends it.
    """

    def __init__(self, exercise: Exercise, source: str, sandboxes: Sandboxes):
        self.exercise, self.source, self.sandboxes = exercise, source, sandboxes
        self.line: Line | None = None  # to the child that runs it
        self.ready = False  # its cells have run
        self.forbidden = ""  # the library's function that it is or calls
        self.failed: Outcome | None = None  # what every further call comes to

    def run(self, calls: Sequence[Call], *, apart: Apart = None) -> list[Outcome]:
        """The outcome of each call. apart: as Group.apart, which calls meet an answer that remembers no others."""
        outcomes: list = [None] * len(calls)
        for places in separated(calls, apart):
            if apart:
                self.close()
            for batch in _batches([calls[place] for place in places]):
                together, places = places[: len(batch)], places[len(batch) :]
                for place, outcome in zip(together, self._together(*zip(*batch))):
                    outcomes[place] = outcome
        return outcomes

    def close(self) -> None:
        """Have done with the child that runs this answer; it ends when the next one begins."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def _together(self, calls: Sequence[Call], frames: Sequence[bytes]) -> list[Outcome]:
        """The outcomes of calls that are sent at once. A call that is given functions of the judge's is alone."""
        outcomes: list[Outcome] = []
        try:
            if self.failed is None and self.line is None:
                self._begin()
            if self.failed is None:
                asked: list[tuple] = []
                functions = [
                    handle(self.exercise.callbacks[arg.name](arg), arg.name, asked)
                    for arg in calls[0].args
                    if isinstance(arg, Callback)
                ]
                if functions:
                    self.line.send(("call", _numbered(calls[0].args), tuple(map(_described, functions))))
                else:
                    self.line.send_frames(*frames)
                outcomes += (self._answer(functions, asked) for _ in calls)
        except Gone as gone:
            if str(gone) == "time":
                self.failed = Raised("Timeout", self._took())
            else:
                self.failed = Raised("Ended", "your code ended the process, or used more memory than there is")
        except (WireError, TypeError, ValueError, IndexError):
            self.failed = Raised("Unreadable", "what came back could not be read")
        if len(outcomes) < len(calls):
            self.close()
            self.sandboxes.drop()
        return outcomes + [self.failed] * (len(calls) - len(outcomes))

    def _begin(self) -> None:
        exercise = self.exercise
        library = (exercise.solution, *exercise.library)
        driver = f"{exercise.driver.__module__}:{exercise.driver.__name__}" if exercise.driver else ""
        self.line = self.sandboxes.get().begin(self.source, exercise.name, exercise.imports, library, driver)
        kind, *rest = self._received(SECONDS)
        self.ready = True
        if kind == "ready":
            (self.forbidden,) = rest
        elif kind == "outcome":
            self.failed = unpacked(tuple(rest))
        else:
            raise Gone("it has ended")

    def _received(self, seconds: float) -> tuple:
        """What comes next, within the time of a call and what is left of that of the submission."""
        begun = time.monotonic()
        try:
            return self.line.receive(min(seconds, self.sandboxes.seconds_left))
        finally:
            self.sandboxes.seconds_left -= time.monotonic() - begun

    def _took(self) -> str:
        if self.sandboxes.seconds_left <= 0:
            return f"the answers of this notebook took longer than {ALL_SECONDS} s in all, and the rest was not run"
        if not self.ready:
            return f"your cells took longer than {SECONDS} s to run, before any call, and were stopped"
        return f"your code took longer than {SECONDS} s and was stopped"

    def _answer(self, functions: list, asked: list[tuple]) -> Outcome:
        """Serve the judge's functions until the outcome comes; what was asked is noted here, not believed."""
        deadline = time.monotonic() + SECONDS  # of what the judge computes for it, too
        for _ in range(QUESTIONS):
            kind, *rest = self._received(deadline - time.monotonic())
            if kind == "outcome":
                return replace(unpacked(tuple(rest)), asked=tuple(asked))
            if kind != "ask":
                raise Gone("it has ended")
            number, args = rest
            function = functions[number]
            if type(args) is not tuple or _size(args) > MOST_ASKED:
                raise WireError("more than a question")
            try:
                result = function(*args)
            except Exception as error:  # about what the learner gave it
                self.line.send(("raised", type(error).__name__, str(error)[:300]))
            else:
                self.line.send(("told", plain(result)))
        raise WireError("too many questions")


class Sandboxes:
    """The worker of one submission, started anew when it had to be ended."""

    def __init__(self, level: str, *, torch: bool = False):
        self.level, self.torch = level, torch
        self.current: Sandbox | None = None
        self.seconds_left: float = ALL_SECONDS  # for the answers; the judge's own time is not counted

    def get(self) -> Sandbox:
        if self.current is None:
            self.current = Sandbox(self.level, torch=self.torch)
        return self.current

    def drop(self) -> None:
        if self.current is not None:
            self.current.kill()
            self.current = None


def _batches(calls: Sequence[Call]) -> Iterator[list[tuple[Call, bytes]]]:
    """Calls that are sent together, so that the worker need not wait: as many as a socket holds without a reader.

    Each with its frame, which is empty for a call that is given functions: what they are is not known yet.
    """
    batch, size = [], 0
    for call in calls:
        alone = any(isinstance(arg, Callback) for arg in call.args)
        frame = b"" if alone else encode(("call", call.args, ()))
        if batch and (alone or len(batch) == TOGETHER or size + len(frame) > SOCKET_HOLDS):
            yield batch
            batch, size = [], 0
        batch.append((call, frame))
        size += len(frame)
        if alone:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _size(value: Any) -> int:
    """Some bytes more than plain data takes as a frame."""
    if isinstance(value, (tuple, list)):
        return 20 + sum(map(_size, value))
    return value.nbytes + 60 if isinstance(value, np.ndarray) else 30 + 6 * len(value) if isinstance(value, str) else 30


def _numbered(args: Sequence) -> tuple:
    """The arguments as they travel: a function of the judge's is a number."""
    numbers = itertools.count()
    return tuple(Callback(arg.name, (next(numbers),)) if isinstance(arg, Callback) else arg for arg in args)


def _described(function: Callable) -> tuple:
    """(name, parameters, docstring) of a function that answers may call."""
    parameters = [
        (p.name, p.default is not p.empty, None if p.default is p.empty else p.default)
        for p in inspect.signature(function).parameters.values()
    ]
    return function.__name__, tuple(parameters), inspect.getdoc(function) or ""
