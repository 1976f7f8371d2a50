"""From what came back to a verdict: WHAT differs, WHICH mistake does exactly this, WHERE to reread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autograder.answers import InProcess
from autograder.exercise import Call, Exercise, Group, Outcome, Raised, Returned, Verdict, WrongAnswer
from autograder.plain import ARRAY, Other, array_of, equal, fits, is_plain, short

MOST_REPLAYED = 200  # first calls of a conversation that, with its last, decide which known mistake it was
MOST_NAMED = 3  # known mistakes that do the same; if more do, what they did tells little
UNREADABLE = Raised("Unreadable", "what came back could not be read")
CLOSE = 5e-4  # of the largest expected value; our float answers are within 1e-4, every known mistake is beyond 1e-3


def judge(exercise: Exercise, group: Group, calls: Sequence[Call], outcomes: Sequence[Outcome]) -> Verdict:
    """The group's own verdict; a failed one gets the names and words of the known mistakes that do the same.

    Nothing about the outcomes is believed: what is not as a judge expects it is an answer that could not be read.
    """
    read = [_read(outcome, group.form) for outcome in outcomes]
    if len(read) != len(calls) or None in read:
        return Verdict(False, what="What came back from your answer could not be read.", where=exercise.reread)
    return unwritten(exercise, read) or named(exercise, group, calls, read, group.judge(list(calls), read))


def converse(exercise: Exercise, group: Group, answer: InProcess, seed: int) -> Verdict:
    """The verdict of a conversation: the group puts its calls one by one, and the first and the last name a mistake."""
    calls, outcomes = [], []

    def ask(call: Call) -> Outcome:
        outcome = _read(answer.run([call])[0], group.form) or UNREADABLE
        calls.append(call)
        outcomes.append(outcome)
        return outcome

    verdict = group.talk(seed, ask)
    if stub := unwritten(exercise, outcomes):
        return stub
    if len(calls) > MOST_REPLAYED:
        calls, outcomes = [*calls[:MOST_REPLAYED], calls[-1]], [*outcomes[:MOST_REPLAYED], outcomes[-1]]
    return named(exercise, group, calls, outcomes, verdict)


def unwritten(exercise: Exercise, outcomes: Sequence[Outcome]) -> Verdict | None:
    """The verdict on an exercise that is not written yet; None if it is."""
    if any(isinstance(outcome, Raised) and _is_stub(outcome) for outcome in outcomes):
        what = f"Exercise {exercise.number}, {exercise.name}, is not written yet."
        return Verdict(False, what=what, which="Replace the raise line with your answer.")
    return None


def named(
    exercise: Exercise, group: Group, calls: Sequence[Call], outcomes: Sequence[Outcome], verdict: Verdict
) -> Verdict:
    """The verdict, with the words of the known mistakes that do the same as `outcomes` in place of the general ones."""
    wrong = [] if verdict.passed else replay(exercise, group, calls, outcomes)
    if not wrong or len(wrong) > MOST_NAMED:
        return replace(verdict, where=verdict.where or ("" if verdict.passed else exercise.reread))
    which = wrong[0].message
    if len(wrong) > 1:
        which = "Several mistakes do this. " + " Or: ".join(w.message for w in wrong)
    if exercise.kind_only:
        which = f"A known test asks the same kinds of question, and accepts and refuses the same. Of that one: {which}"
    where = next((w.reread for w in wrong if w.reread), exercise.reread)
    return replace(verdict, which=which, where=where, mistakes=tuple(w.name for w in wrong))


def replay(exercise: Exercise, group: Group, calls: Sequence[Call], outcomes: Sequence[Outcome]) -> list[WrongAnswer]:
    """The known mistakes that do the same as `outcomes` in every call."""
    numbers = sum(x.size for o in outcomes if isinstance(o, Returned) for x in _arrays(o.value))
    found = []
    for wrong in exercise.wrong_answers:
        answer, unequal = InProcess(exercise.compile(wrong.source), exercise.driver, exercise.callbacks), 0
        for call, outcome in zip(calls, outcomes, strict=True):
            theirs = _read(answer.run([call], apart=group.apart)[0], group.form)
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


def _read(outcome: Outcome, form: Any) -> Outcome | None:
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
