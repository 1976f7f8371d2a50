"""From what came back to a verdict, and to the known mistakes that do exactly the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from autograder.answers import InProcess
from autograder.exercise import Apart, Call, Exercise, Group, Outcome, Raised, Returned, Verdict, WrongAnswer
from autograder.plain import ARRAY, array_of, fits, is_plain

MOST_REPLAYED = 200  # first calls of a conversation that, with its last, decide which known mistake it was
MOST_SAID = 8_000  # characters of what is wrong; messages have some hundred
MOST_NAMED = 3  # known mistakes that do the same; if more do, what they did tells little
UNREADABLE = Raised("Unreadable", "what came back could not be read")


class Replay:
    """What a known mistake does with a group's calls. Each is made when it is asked for first, in their order."""

    def __init__(self, exercise: Exercise, group: Group, wrong: WrongAnswer, calls: Sequence[Call]):
        self.group, self.wrong, self.calls = group, wrong, calls
        self.answer = InProcess(exercise.compile(wrong.source), exercise.driver, exercise.callbacks)
        self.outcomes: list[Outcome | None] = []

    def outcome(self, index: int) -> Outcome | None:
        """Of the call with this index; None if what came back is not as it must be."""
        while len(self.outcomes) <= index:
            (came,) = self.answer.run([self.calls[len(self.outcomes)]], apart=self.group.apart)
            self.outcomes.append(read(came, self.group.form))
        return self.outcomes[index]


def replays(exercise: Exercise, group: Group, calls: Sequence[Call]) -> Iterator[Replay]:
    """A Replay of each known mistake."""
    return (Replay(exercise, group, wrong, calls) for wrong in exercise.wrong_answers)


class Runs(Protocol):
    """An answer, wherever it runs: in this process (answers.InProcess) or in a sandbox."""

    def run(self, calls: Sequence[Call], *, apart: Apart = None) -> list[Outcome]: ...


def verdict_on(exercise: Exercise, group: Group, answer: Runs, seed: int) -> Verdict:
    """The verdict on an answer in one group, with the cases that `seed` chooses."""
    if group.talk:
        return converse(exercise, group, answer, seed)
    calls = group.cases(seed)
    return judge(exercise, group, calls, answer.run(calls, apart=group.apart))


def reexported(name: str) -> Verdict:
    """The verdict on an answer that is, or calls, "module:name" of ours."""
    what = f"This is, or calls, the library's own {name.replace(':', '.')}."
    return Verdict(False, what=what, which="Write the rule yourself: the docstring says what it must do.")


def judge(
    exercise: Exercise,
    group: Group,
    calls: Sequence[Call],
    outcomes: Sequence[Outcome],
    known: Iterable[Replay] | None = None,
) -> Verdict:
    """The group's own verdict; a failed one gets the names and words of the known mistakes that do the same.

    known   `replays` of these calls, kept by a caller who judges many answers

    Nothing about the outcomes is believed: what is not as a judge expects it is an answer that could not be read.
    """
    found = [read(outcome, group.form) for outcome in outcomes]
    if len(found) != len(calls) or None in found:
        return Verdict(False, what="What came back from your answer could not be read.", where=exercise.reread)
    return unwritten(exercise, found) or named(
        exercise,
        found,
        group.judge(list(calls), found),
        replays(exercise, group, calls) if known is None else known,
    )


def converse(
    exercise: Exercise, group: Group, answer: Runs, seed: int, known: Iterable[Replay] | None = None
) -> Verdict:  # fmt: skip
    """The verdict of a conversation: the group puts its calls one by one, and the first and the last name a mistake.

    known   () where no known mistake is to be named
    """
    calls, outcomes = [], []

    def ask(call: Call) -> Outcome:
        outcome = read(answer.run([call])[0], group.form) or UNREADABLE
        calls.append(call)
        outcomes.append(outcome)
        return outcome

    verdict = group.talk(seed, ask)
    if stub := unwritten(exercise, outcomes):
        return stub
    if len(calls) > MOST_REPLAYED:
        calls, outcomes = [*calls[:MOST_REPLAYED], calls[-1]], [*outcomes[:MOST_REPLAYED], outcomes[-1]]
    return named(exercise, outcomes, verdict, replays(exercise, group, calls) if known is None else known)


def unwritten(exercise: Exercise, outcomes: Sequence[Outcome]) -> Verdict | None:
    """The verdict on an exercise that is not written yet; None if it is."""
    if any(isinstance(outcome, Raised) and _is_stub(outcome) for outcome in outcomes):
        what = f"Exercise {exercise.number}, {exercise.name}, is not written yet."
        return Verdict(False, what=what, which="Replace the raise line with your answer.")
    return None


def named(exercise: Exercise, outcomes: Sequence[Outcome], verdict: Verdict, known: Iterable[Replay]) -> Verdict:
    """The verdict, with the words of the known mistakes that do the same as `outcomes` in place of the general ones."""
    wrong = [] if verdict.passed else alike(exercise, outcomes, known)
    verdict = replace(verdict, what=verdict.what[:MOST_SAID])
    if not wrong or len(wrong) > MOST_NAMED:
        return replace(verdict, where=verdict.where or ("" if verdict.passed else exercise.reread))
    which = wrong[0].message
    if len(wrong) > 1:
        which = "Several mistakes do this. " + " Or: ".join(w.message for w in wrong)
    if exercise.kind_only:
        which = f"A known test asks the same kinds of question, and accepts and refuses the same. Of that one: {which}"
    elif only_errors(outcomes):
        which = f"The same error comes of a mistake that we know, and of others: {which}"
    where = next((w.reread for w in wrong if w.reread), exercise.reread)
    return replace(verdict, which=which, where=where, mistakes=tuple(w.name for w in wrong))


def only_errors(outcomes: Sequence[Outcome]) -> bool:
    """Whether no call returned: then a known mistake with the same errors may be another mistake."""
    return all(isinstance(outcome, Raised) for outcome in outcomes)


def alike(exercise: Exercise, outcomes: Sequence[Outcome], known: Iterable[Replay]) -> list[WrongAnswer]:
    """The known mistakes that do the same as `outcomes` in every call."""
    numbers = sum(x.size for o in outcomes if isinstance(o, Returned) for x in _arrays(o.value))
    found = []
    for replay in known:
        wrong, unequal = replay.wrong, 0
        for index, outcome in enumerate(outcomes):
            theirs = replay.outcome(index)
            if theirs is None or not exercise.same(outcome, theirs):
                break  # not this mistake; most differ at the first call
            if wrong.alike and isinstance(outcome, Returned):
                unequal += _unequal(outcome.value, theirs.value)
                if unequal > (1 - wrong.alike) * numbers:
                    break  # not this mistake, whatever the remaining calls return
        else:  # no call ruled it out
            found.append(wrong)
    closest = max((wrong.alike for wrong in found), default=0)
    return [wrong for wrong in found if wrong.alike == closest]


def _arrays(value: Any) -> list[np.ndarray]:
    """The arrays in plain data, in order."""
    if isinstance(value, tuple):
        return [array for part in value for array in _arrays(part)]
    return [value] if isinstance(value, np.ndarray) else []


def _unequal(mine: Any, theirs: Any) -> int:
    """How many numbers in the arrays of plain data differ; NaN equals NaN."""
    pairs = zip(_arrays(mine), _arrays(theirs))
    return sum(int(((x != y) & ~((x != x) & (y != y))).sum()) if x.shape == y.shape else x.size for x, y in pairs)


def _is_stub(outcome: Raised) -> bool:
    """Whether it is the stub's own error, or one written like it, and not a library's NotImplementedError."""
    own = outcome.message == "" or outcome.message.startswith("Exercise ") or "raise Not" in outcome.line
    return outcome.type == "NotImplementedError" and own


def read(outcome: Outcome, form: Any) -> Outcome | None:
    """The outcome, its value an array where one is wanted and can be had; None if it is not as it must be."""
    texts = [outcome.printed] if isinstance(outcome, (Returned, Raised)) else [None]
    texts += [outcome.type, outcome.message, outcome.line] if isinstance(outcome, Raised) else []
    if not all(isinstance(text, str) for text in texts):
        return None
    asked = outcome.asked
    if not isinstance(asked, tuple) or not all(isinstance(a, tuple) and a and is_plain(a) for a in asked):
        return None
    if isinstance(outcome, Raised):
        return outcome
    if form is ARRAY:
        value = array_of(outcome.value) if is_plain(outcome.value) else None
        if value is not None:
            return replace(outcome, value=value)
        return outcome if is_plain(outcome.value) else None
    return outcome if is_plain(outcome.value) and fits(outcome.value, form) else None
