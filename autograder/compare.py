"""Comparing outcomes with what is wanted, and saying in words where they differ first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autograder.exercise import Call, Outcome, Raised, Returned, Verdict
from autograder.plain import ARRAY, Other, equal, short

CLOSE = 5e-4  # of the largest expected value; our float answers are within 1e-4, every known mistake is beyond 1e-3


def same_integers(a: Outcome, b: Outcome) -> bool:
    """Both returned equal plain data (arrays of one shape and kind, with equal numbers), or raised the same error."""
    return _same(
        a,
        b,
        lambda x, y: (
            x.dtype.kind in "biu"
            and y.dtype.kind in "biu"
            and np.array_equal(x, y)
            or x.dtype.kind == y.dtype.kind == "f"
            and np.array_equal(x, y, equal_nan=True)
        ),
    )


def same_floats(a: Outcome, b: Outcome) -> bool:
    """Both returned arrays of one shape that are close (NaN beside NaN), or both raised the same error."""
    return _same(a, b, lambda x, y: x.dtype.kind in "biuf" and y.dtype.kind in "biuf" and first_far_index(x, y) is None)


def _same(a: Outcome, b: Outcome, alike: Callable[[np.ndarray, np.ndarray], bool]) -> bool:
    if isinstance(a, Raised) or isinstance(b, Raised):
        return isinstance(a, Raised) and isinstance(b, Raised) and (a.type, a.message) == (b.type, b.message)
    return _same_values(a.value, b.value, alike)


def _same_values(x: Any, y: Any, alike: Callable[[np.ndarray, np.ndarray], bool]) -> bool:
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.shape == y.shape and alike(x, y)
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(_same_values(a, b, alike) for a, b in zip(x, y))
    return equal(x, y)


def first_far_index(got: np.ndarray, wanted: np.ndarray, within: float = CLOSE) -> tuple[int, ...] | None:
    """Index of the first element that is off by more than `within` times the largest finite wanted value."""
    finite = np.abs(wanted[np.isfinite(wanted)])
    limit = within * max(float(finite.max(initial=0.0)), 1e-6)
    with np.errstate(invalid="ignore"):
        near = (np.abs(got.astype(np.float64) - wanted) <= limit) | (np.isnan(got) & np.isnan(wanted)) | (got == wanted)
    return None if near.all() else first_index(~near)


def first_index(differs: np.ndarray) -> tuple[int, ...]:
    """Index of the first True, in C order."""
    return tuple(int(i) for i in np.argwhere(differs)[0])


def first_trouble(
    calls: Sequence[Call],
    outcomes: Sequence[Outcome],
    wrong_with: Callable[[Call, Any], str | None],
    form: Any = ARRAY,
) -> Verdict | None:
    """The verdict on the first call that raised, or returned no array or a wrong one; None if there is none.

    wrong_with(call, value)   what is wrong with the value, in a sentence, or None
    form                      that of the group
    """
    for call, outcome in zip(calls, outcomes, strict=True):
        if form is ARRAY:
            what = why_not_an_array(call, outcome)
        else:
            what = error_text(call, outcome) if isinstance(outcome, Raised) else None
        what = what or wrong_with(call, outcome.value)
        if what:
            return Verdict(False, what=what + printed_note(outcome))
    return None


def keeps_bits(
    calls: Sequence[Call], outcomes: Sequence[Outcome], wrong_with: Callable, whose: Callable[[int], str], which: str
) -> Verdict:
    """Passed if the values are right and the rows of each chunk equal those of one pass in every bit.

    Call 0 is the one pass, the others are its chunks: facts["rows"] says which of its rows a chunk computes. The answer
    is compared with itself, never with the library's bits.

    whose(row)   names what a row belongs to
    which        what makes such a difference, for the verdict
    """
    trouble = first_trouble(calls, outcomes, wrong_with)
    if trouble:
        return trouble
    whole, *chunks = returned(outcomes)
    for call, got in zip(calls[1:], chunks, strict=True):
        start, stop = call.facts["rows"]
        if got.dtype != whole.dtype or not np.array_equal(got, whole[start:stop]):
            row = 0 if got.dtype != whole.dtype else first_index(got != whole[start:stop])[0]
            what = (
                f"Your values are right, but their bits depend on the cut: {whose(start + row)} has other last bits "
                f"in the chunk [{start}, {stop}) than in one pass of {len(whole)} tokens."
            )
            return Verdict(False, what=what, which=which)
    return Verdict(True, count=f"{len(chunks)} chunks equal one pass in every bit")


def why_not_an_array(call: Call, outcome: Outcome) -> str | None:
    """What the call did instead, in a sentence, if it did not return an array; None if it did."""
    if isinstance(outcome, Raised):
        return error_text(call, outcome)
    if outcome.value is None:
        return f"{call.label} returned None. Does your function end in a return line?"
    if isinstance(outcome.value, Other):
        other = outcome.value
        return f"{call.label} returned something of type {other.kind}, {other.text}, and not an array of numbers."
    if not isinstance(outcome.value, np.ndarray):
        if isinstance(outcome.value, tuple):
            text = short(outcome.value, 80)
            return f"{call.label} returned a list that is no array of numbers (rows of several lengths?): {text}."
        return f"{call.label} returned {outcome.value!r:.80}, and not an array of numbers."
    return None


def error_text(call: Call, outcome: Raised) -> str:
    """The learner's own error, with its place; an argument that was changed, in words."""
    if outcome.type == "ArgumentChanged":
        return (
            f"{call.label} changed its argument {outcome.message}. The caller still needs it as it was: "
            "work on a copy, or make a new object."
        )
    if outcome.type in ("Ended", "Timeout", "Unreadable") and not outcome.line:  # a sandbox says so
        return f"{call.label.rstrip(',')}: {outcome.message}."
    if outcome.type == "ResultChanged":
        return f"{call.label.rstrip(',')}: {outcome.message}. Return a new list or array each time, or a copy."
    text = f": {outcome.message}" if outcome.message else ""
    place = f" ({outcome.line})" if outcome.line else ""
    return f"{call.label} raised {outcome.type}{text}{place}."


def printed_note(outcome: Outcome) -> str:
    """The first lines that the answer printed in this call, as they are shown to its author."""
    lines = outcome.printed.strip().splitlines()
    if not lines:
        return ""
    shown = "\n".join(line[:120] for line in lines[:3]) + ("\n..." if len(lines) > 3 else "")
    return f"\nYour function printed:\n{shown}\n"


def wrong_shape(call: Call, got: np.ndarray, wanted: tuple[int, ...], hint: str) -> str | None:
    """A sentence if the shape is another than wanted; `hint` says what the axes are."""
    if got.shape == wanted:
        return None
    return f"{call.label} has shape {list(got.shape)}, wanted {list(wanted)}: {hint}."


def counted(number: int, noun: str) -> str:
    """1 token, 2 tokens, 8,192 tokens."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def spans(indices: Sequence[int]) -> str:
    """Sorted indices for a reader: 0 to 5, 8, 10 and 11."""
    runs: list[list[int]] = []
    for i in indices:
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    words = [str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs]
    if len(words) > 5:
        words = [*words[:4], f"{len(words) - 4} more runs"]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"


def returned(outcomes: Sequence[Outcome]) -> list[np.ndarray]:
    """The values, once `first_trouble` has found that every call returned an array."""
    return [o.value for o in outcomes if isinstance(o, Returned)]
