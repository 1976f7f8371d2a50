"""What the exercises of notebook 07 share: lists packed into one, and the judge that compares them with an oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index

import numpy as np

from autograder.compare import error_text, printed_note, why_not_an_array
from autograder.exercise import Call, Outcome, Raised, Verdict

Told = tuple[str, list[int]]  # an operation in words, and what is seen after it


def judge_told(calls: Sequence[Call], outcomes: Sequence[Outcome], told: Callable[[Call], list[Told]]) -> Verdict:
    """Compare what a driver saw after each operation with what the oracle tells; the first difference in words."""
    for call, outcome in zip(calls, outcomes, strict=True):
        what = error_text(call, outcome) if isinstance(outcome, Raised) else why_not_an_array(call, outcome)
        if what:
            return Verdict(False, what=what + printed_note(outcome))
        story, seen = told(call), unflat(outcome.value)
        for i, ((text, wanted), got) in enumerate(zip(story, seen, strict=True)):
            if got != wanted:
                own = text.partition(": ")[0]
                calls_before = [words for words, _ in story[:i] if ": " not in words]
                if own != text:  # what is seen after a call: that call is named already
                    calls_before.pop()
                behind = f" (the calls before it: {', '.join(calls_before[-3:])})" if calls_before else ""
                what = f"{call.label}: {text} gives {_shown(got)}, wanted {_shown(wanted)}{behind}."
                return Verdict(False, what=what + printed_note(outcome))
    return Verdict(True, count=f"{sum(len(told(call)) for call in calls)} calls")


def _shown(values: list) -> str:
    if values == [-1]:
        return "None"
    return str(values)


def whole(part, name: str) -> list[int]:
    """`part` as a list of whole numbers; TypeError says what `name` is, if it is something else."""
    try:
        return [index(number) for number in part]
    except TypeError:
        what = "None" if part is None else f"{part!r:.60}, of type {type(part).__name__},"
        raise TypeError(f"{name} is {what} and not a list of whole numbers") from None


def flat(parts: Sequence, names: Sequence[str]) -> list[int]:
    """Lists of whole numbers in one list. TypeError names a part that is something else."""
    lists = [whole(part, name) for part, name in zip(parts, names, strict=True)]
    return [number for part in lists for number in (len(part), *part)]


def unflat(numbers: np.ndarray) -> list[list[int]]:
    """The lists that `flat` was given."""
    numbers, parts, at = numbers.tolist(), [], 0
    while at < len(numbers):
        stop = at + 1 + numbers[at]
        parts.append(numbers[at + 1 : stop])
        at = stop
    return parts


def noted(error: Exception, call: int, refs: Sequence, free: Sequence) -> None:
    """Write into the error in which state it came up."""
    error.args = (f"{error}, in call {call}, when refs were {list(refs)[1:]} and free was {list(free)}",)


def name_of(number: int) -> bytes:
    """Stands for a hash: any bytes do."""
    return number.to_bytes(8, "little")


def parsed(operations: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Rows of (number, how many follow, those) as pairs: the number, and the list of those."""
    found, at = [], 0
    while at < len(operations):
        kind, count = operations[at : at + 2]
        found.append((kind, list(operations[at + 2 : at + 2 + count])))
        at += 2 + count
    return found
