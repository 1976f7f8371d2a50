"""An answer in a sandbox, as a judge sees it: the same `run` as an answer in this process (answers.InProcess)."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from autograder.answers import handle
from autograder.exercise import Call, Callback, Exercise, Outcome, Raised
from autograder.grading.sandbox import Gone, Sandbox
from autograder.grading.wire import WireError
from autograder.grading.worker import unpacked
from autograder.plain import plain

SECONDS = 20  # wall-clock time of one call; right answers need less than one
QUESTIONS = 100_000  # most calls of the judge's functions within one call of an answer


class Remote:
    """What a learner's cells define under the exercise's name, in a worker that is started when it is needed.

    Each Remote meets an answer that has not run before. `close` ends it.
    """

    def __init__(self, exercise: Exercise, source: str, sandboxes: Sandboxes):
        self.exercise, self.source, self.sandboxes = exercise, source, sandboxes
        self.open = False
        self.forbidden = ""  # the library's function that it is or calls
        self.failed: Outcome | None = None  # what every further call comes to

    def run(self, calls: Sequence[Call], *, apart: bool = False) -> list[Outcome]:
        """The outcome of each call. apart: each meets an answer that remembers none of the others."""
        outcomes = []
        for call in calls:
            if apart:
                self.close()
            outcomes.append(self._one(call))
        return outcomes

    def close(self) -> None:
        """End the child that runs this answer."""
        if self.open:
            self.open = False
            try:
                sandbox = self.sandboxes.get()
                sandbox.send("end")
                if sandbox.receive(SECONDS)[0] != "ended":
                    raise WireError("not ended")
            except (Gone, WireError):
                self.sandboxes.drop()

    def _one(self, call: Call) -> Outcome:
        if self.failed is not None:
            return self.failed
        try:
            sandbox = self.sandboxes.get()
            if not self.open:
                self._begin(sandbox)
                if self.failed is not None:
                    return self.failed
            asked: list[tuple] = []
            functions = [
                handle(self.exercise.callbacks[arg.name](arg), arg.name, asked)
                for arg in call.args
                if isinstance(arg, Callback)
            ]
            sandbox.send("call", _numbered(call.args), tuple(map(_described, functions)))
            return self._answer(sandbox, functions, asked)
        except Gone as gone:
            if str(gone) == "time":
                self.failed = Raised("Timeout", f"your code took longer than {SECONDS} s and was stopped")
            else:
                self.failed = Raised("Ended", "your code ended the process, or used more memory than there is")
        except (WireError, TypeError, ValueError, IndexError):
            self.failed = Raised("Unreadable", "what came back could not be read")
        self.open = False
        self.sandboxes.drop()
        return self.failed

    def _begin(self, sandbox: Sandbox) -> None:
        exercise = self.exercise
        library = (exercise.solution, *exercise.library)
        driver = f"{exercise.driver.__module__}:{exercise.driver.__name__}" if exercise.driver else ""
        sandbox.send("begin", self.source, exercise.name, exercise.imports, library, driver)
        self.open = True
        kind, *rest = sandbox.receive(SECONDS)
        if kind == "ready":
            (self.forbidden,) = rest
        elif kind == "outcome":
            self.failed = unpacked(tuple(rest))
        else:
            raise Gone("it has ended")

    def _answer(self, sandbox: Sandbox, functions: list, asked: list[tuple]) -> Outcome:
        """Serve the judge's functions until the outcome comes; what was asked is noted here, not believed."""
        for _ in range(QUESTIONS):
            kind, *rest = sandbox.receive(SECONDS)
            if kind == "outcome":
                return replace(unpacked(tuple(rest)), asked=tuple(asked))
            if kind != "ask":
                raise Gone("it has ended")
            number, args = rest
            function = functions[number]
            try:
                result = function(*args)
            except Exception as error:  # about what the learner gave it
                sandbox.send("raised", type(error).__name__, str(error)[:300])
            else:
                sandbox.send("told", plain(result))
        raise WireError("too many questions")


class Sandboxes:
    """The worker of one submission, started anew when it had to be ended."""

    def __init__(self, level: str, *, torch: bool = False):
        self.level, self.torch = level, torch
        self.current: Sandbox | None = None

    def get(self) -> Sandbox:
        if self.current is None:
            self.current = Sandbox(self.level, torch=self.torch)
        return self.current

    def drop(self) -> None:
        if self.current is not None:
            self.current.kill()
            self.current = None


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
