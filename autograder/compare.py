"""From what came back to a verdict: WHAT differs, WHICH mistake does exactly this, WHERE to reread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from autograder.answers import perform
from autograder.exercise import Call, Exercise, Group, Other, Outcome, Raised, Returned, Verdict, WrongAnswer

CLOSE = 5e-4  # of the largest expected value; our float answers are within 1e-4, every known mistake is beyond 1e-3


def judge(exercise: Exercise, group: Group, calls: Sequence[Call], outcomes: Sequence[Outcome]) -> Verdict:
    """The group's own verdict; a failed one gets the name and words of the known mistake that does the same."""
    if exercise.mode != "test" or all(isinstance(o, Raised) for o in outcomes):
        if any(isinstance(o, Raised) and o.type == "NotImplementedError" for o in outcomes):
            what = f"Exercise {exercise.number}, {exercise.name}, is not written yet."
            return Verdict(False, what=what, which="Replace the raise line with your answer.")
    verdict = group.judge(list(calls), list(outcomes))
    if verdict.passed:
        return verdict
    wrong = replay(exercise, calls, outcomes)
    if wrong is None:
        return replace(verdict, where=verdict.where or exercise.reread)
    return replace(verdict, which=wrong.message, where=wrong.reread or exercise.reread, mistake=wrong.name)


def replay(exercise: Exercise, calls: Sequence[Call], outcomes: Sequence[Outcome]) -> WrongAnswer | None:
    """The known mistake that does the same as `outcomes` in every call, or None."""
    arrays = [o.value for o in outcomes if isinstance(o, Returned) and isinstance(o.value, np.ndarray)]
    numbers = sum(array.size for array in arrays)
    for wrong in exercise.wrong_answers:
        fn, unequal = exercise.compile(wrong.source), 0
        for call, outcome in zip(calls, outcomes, strict=True):
            (theirs,), _ = perform(fn, [call], callbacks=exercise.callbacks, driver=exercise.driver)
            if not exercise.same(outcome, theirs):
                break  # not this mistake; most differ at the first call
            if wrong.alike and isinstance(outcome, Returned) and isinstance(outcome.value, np.ndarray):
                unequal += int((outcome.value != theirs.value).sum())
                if unequal > (1 - wrong.alike) * numbers:
                    break  # not this mistake, whatever the remaining calls return
        else:  # no call ruled it out
            return wrong
    return None


def same_integers(a: Outcome, b: Outcome) -> bool:
    """Both returned equal arrays of one shape, or both raised the same type of error."""
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
    """Both returned arrays of one shape that are close (NaN beside NaN), or both raised the same type of error."""
    return _same(a, b, lambda x, y: x.dtype.kind in "biuf" and y.dtype.kind in "biuf" and first_far_index(x, y) is None)


def _same(a: Outcome, b: Outcome, equal: Callable[[np.ndarray, np.ndarray], bool]) -> bool:
    if isinstance(a, Raised) or isinstance(b, Raised):
        return isinstance(a, Raised) and isinstance(b, Raised) and a.type == b.type
    x, y = a.value, b.value
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return type(x) is type(y) and x == y
    return x.shape == y.shape and equal(x, y)


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
    calls: Sequence[Call], outcomes: Sequence[Outcome], wrong_with: Callable[[Call, np.ndarray], str | None]
) -> Verdict | None:
    """The verdict on the first call that raised, returned no array, or returned a wrong one; None if there is none.

    wrong_with(call, array)   what is wrong with the array, in a sentence, or None
    """
    for call, outcome in zip(calls, outcomes, strict=True):
        what = why_not_an_array(call, outcome) or wrong_with(call, outcome.value)
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
        if other.kind in ("list", "tuple"):
            return f"{call.label} returned a {other.kind} that is no array (rows of several lengths?): {other.text}."
        return f"{call.label} returned something of type {other.kind}, {other.text}, and not an array of numbers."
    return None


def error_text(call: Call, outcome: Raised) -> str:
    """The learner's own error, with its place."""
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
