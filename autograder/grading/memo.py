"""What one grading process remembers of a class, so that it pays once for what many submissions share.

Kept are, by exercise, group and seed: the cases, what the known mistakes do with them, and the verdict on equal
outcomes. Nothing of it comes from what a submission says: verdicts are the judge's, filed under a digest of all that
the judge reads. A conversation depends on the answer, so nothing is kept of one.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autograder.exercise import Call, Exercise, Group, Outcome, Raised, Returned, Verdict
from autograder.judge import Replay, Runs, converse, judge
from autograder.plain import Other

MOST_VERDICTS = 2_000  # of one group and seed; then they are forgotten. One has some kB


class Memo:
    """The memory of one process. Verdicts are the same with it and without."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str, int], _Known] = {}

    def verdict_on(
        self, exercise: Exercise, group: Group, answer: Runs, seed: int, *, names: bool = True
    ) -> Verdict:  # fmt: skip
        """What judge.verdict_on says of an answer. names: False where known mistakes need not be looked for."""
        if group.talk:
            return converse(exercise, group, answer, seed, None if names else ())
        at = (exercise.name, group.name, seed)
        known = self.known.setdefault(at, _Known(exercise, group))
        calls = known.cases(seed)
        outcomes = answer.run(calls, apart=group.apart)
        key = digest(outcomes)
        if key is None:  # nothing that a judge could read
            return judge(exercise, group, calls, outcomes, known)
        if key not in known.verdicts:
            try:
                verdict = judge(exercise, group, calls, outcomes, known if names else ())
            except BaseException:  # a replay may have stopped half-way
                del self.known[at]
                raise
            if not (names or verdict.passed):
                return verdict
            if len(known.verdicts) >= MOST_VERDICTS:
                known.verdicts.clear()
            known.verdicts[key] = verdict
        return known.verdicts[key]


class _Known:
    """Of one group and seed. Iterating goes through the known mistakes, each compiled when it first comes up."""

    def __init__(self, exercise: Exercise, group: Group):
        self.exercise, self.group = exercise, group
        self.calls: list[Call] | None = None
        self.replays: list[Replay] = []
        self.verdicts: dict[bytes, Verdict] = {}

    def cases(self, seed: int) -> list[Call]:
        if self.calls is None:
            self.calls = self.group.cases(seed)
        return self.calls

    def __iter__(self) -> Iterator[Replay]:
        for index, wrong in enumerate(self.exercise.wrong_answers):
            if index == len(self.replays):
                self.replays.append(Replay(self.exercise, self.group, wrong, self.calls))
            yield self.replays[index]


def digest(outcomes: Sequence[Outcome]) -> bytes | None:
    """The same for outcomes that are the same to every bit, kind and text; None if one of them is no outcome."""
    found = _Hashed()
    try:
        for outcome in outcomes:
            if type(outcome) is Raised:
                parts = ("raised", outcome.type, outcome.message, outcome.line, outcome.printed, outcome.asked)
            elif type(outcome) is Returned:
                parts = ("returned", outcome.value, outcome.printed, outcome.asked)
            else:
                return None
            _Plain(found, protocol=5).dump(parts)
    except (TypeError, RecursionError):
        return None
    return found.hash.digest()


class _Hashed:
    """A file that only keeps a digest of what is written."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return len(data)


class _Plain(pickle.Pickler):
    """Writes plain data so that other data is other bytes; nothing ever reads them. TypeError for what is not plain."""

    def __init__(self, file: Any, protocol: int):
        super().__init__(file, protocol)
        self.fast = True  # equal data is equal bytes, whether parts of it are one object or several

    def reducer_override(self, value: Any) -> tuple:
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return str, (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
        if type(value) is Other:
            return str, (value.kind, value.text)
        if value is str:
            return NotImplemented
        raise TypeError(type(value).__name__)
