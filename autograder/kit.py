"""What most exercises share: an exercise from its solution and the text of its mistakes, draws, two kinds of group."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autograder.answers import InProcess
from autograder.compare import error_text, first_index, first_trouble, printed_note, same_integers, wrong_shape
from autograder.drivers.play import Stage, play
from autograder.exercise import Call, Exercise, Group, Outcome, Raised, Returned, Verdict
from autograder.kept import known_mistakes
from autograder.plain import ARRAY, Either, Other, array_of, equal, plain, short

STORY = ([Either((str, object), (str, str, str))], [str])  # the form of what `play` returns


def exercise(
    solution: str, *, mistakes: str, groups: Sequence[Group], same: Callable = same_integers, **more
) -> Exercise:
    """The exercise to write what `solution` ("module:name") is; `more` are further fields of Exercise."""
    return Exercise(
        name=solution.partition(":")[2],
        solution=solution,
        groups=tuple(groups),
        same=same,
        wrong_answers=known_mistakes(solution, mistakes),
        **more,
    )


def draws(seed: int) -> Callable[[int, int], int]:
    """draw(low, high): a random int in [low, high); the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    return lambda low, high: int(rng.integers(low, high))


def found(name: str) -> Any:
    """The function or class "module:name"."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def values(
    name: str,
    solution: str,
    arguments: Callable[[int], Iterable[tuple | Call]],
    label: Callable[..., str] | None = None,
    trouble: Callable[[Call, Any, Any], str | None] | None = None,
    *,
    count: str = "cases",
    driver: Callable | None = None,
    form: Any = ARRAY,
) -> Group:
    """A group of one-way calls, in which the solution's own results are the right ones.

    arguments   from a seed, the arguments of each call; or whole Calls, whose labels say more than arguments do
    label       how a message writes a call with these arguments
    trouble     trouble(call, got, wanted): what is wrong with a value, in a sentence, or None. Without it the first
                element that is not equal is named
    """

    def cases(seed: int) -> list[Call]:
        return [args if isinstance(args, Call) else Call(tuple(args), label(*args)) for args in arguments(seed)]

    def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
        right = InProcess(found(solution), driver).run(calls)
        wanted = {id(call): outcome for call, outcome in zip(calls, right)}

        def wrong_with(call: Call, got: Any) -> str | None:
            value = wanted[id(call)].value
            return (trouble or unequal)(call, got, array_of(value) if form is ARRAY else value)

        found_trouble = first_trouble(calls, outcomes, wrong_with, form=form)
        return found_trouble or Verdict(True, count=f"{len(calls)} {count}")

    return Group(name, cases, judge, form=form)


def unequal(call: Call, got: Any, wanted: Any) -> str | None:
    """A sentence about the first difference from exact plain data, or None: shape, kind of number, then values."""
    if not isinstance(wanted, np.ndarray) or not wanted.ndim:
        return None if _same(got, wanted) else f"{call.label} is {shown(got)}, it should be {shown(wanted)}."
    shape = wrong_shape(call, got, wanted.shape, "as many as the docstring says")
    if shape or _same(got, wanted):
        return shape
    if got.dtype.kind not in ("biu" if wanted.dtype.kind in "biu" else "f"):
        return f"{call.label} has dtype {got.dtype}, wanted {wanted.dtype}."
    at = first_index(got != wanted)
    place = at[0] if len(at) == 1 else at
    return f"{call.label}: number {place} is {shown(got[at])}, it should be {shown(wanted[at])}."


def _same(got: Any, wanted: Any) -> bool:
    """Equal numbers of one kind, whether they came as a list, a tuple or an array; anything else must be equal."""
    if isinstance(got, tuple) and isinstance(wanted, tuple):
        return len(got) == len(wanted) and all(map(_same, got, wanted))
    x, y = array_of(got), array_of(wanted)
    if x is None or y is None:
        return equal(got, wanted)
    same_kind = (x.dtype.kind in "biu") == (y.dtype.kind in "biu") or not x.size
    return same_kind and np.array_equal(x, y)


MOST_SHOWN = 1_000  # numbers that are written out, before the text is cut


def shown(value: Any, limit: int = 80) -> str:
    """Plain data for a reader: tuples and arrays as lists, numbers without their type, not above `limit` characters."""
    if isinstance(value, Other):
        return value.text
    if isinstance(value, np.ndarray) and value.size > MOST_SHOWN:
        return f"an array of shape {list(value.shape)}"
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    return short(_lists(value), limit)


def _lists(value: Any) -> Any:
    return [_lists(part) for part in value] if isinstance(value, tuple) else value


# --- classes


class Script(list):
    """Lines for `play`, each played on the solution's objects as it is written: what comes next may depend on it."""

    def __init__(self, solution: str, known: Mapping[str, Callable] | None = None):
        super().__init__()
        self.stage = Stage(found(solution), known)

    def do(self, owner: str, what: str, *args: Any) -> Any:
        """Add a line; what comes of it, None where the solution raises."""
        self.append((owner, what, *args))
        with contextlib.suppress(Exception):
            return self.stage.line(owner, what, *args)


def played(
    name: str,
    solution: str,
    scripts: Callable[[int], Iterable[tuple[str, Iterable[tuple]]]],
    driver: Callable = play,
) -> Group:
    """A group for a class: scripts are played on the answer's objects and on the solution's, and compared line by line.

    scripts   from a seed, pairs (label, lines), with lines as `play` reads them. Where the solution raises, the answer
              must raise the same type of error. What a method returns that is to return nothing is not looked at
    driver    the exercise's: `play`, or `play` with what else its scripts name

    Such an exercise is compared by `same_story`.
    """
    make = found(solution)

    def cases(seed: int) -> list[Call]:
        return [Call((list(script),), label) for label, script in scripts(seed)]

    def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
        told = 0
        for call, outcome in zip(calls, outcomes, strict=True):
            (script,) = call.args
            what = error_text(call, outcome) if isinstance(outcome, Raised) else None
            what = what or _difference(call.label, make, script, *outcome.value, driver(make, script)[0])
            if what:
                return Verdict(False, what=what + printed_note(outcome))
            told += sum(not what.startswith(".") for _, what, *_ in script)
        return Verdict(True, count=f"{told} calls")

    return Group(name, cases, judge, form=STORY)


def same_story(a: Outcome, b: Outcome) -> bool:
    """The same came of every line of a script, wherever in the two answers it came from."""
    if isinstance(a, Returned) and isinstance(b, Returned):
        return _same(a.value[0], b.value[0])
    return same_integers(a, b)


def _difference(label: str, make: type, script: list[tuple], got: tuple, places: tuple, right: tuple) -> str | None:
    """The first line of a script of which something else came, in a sentence."""
    if not len(got) == len(places) == len(script):
        return f"{label}: what came back could not be read."
    several = len({owner for owner, *_ in script}) > 1
    before: list[str] = []
    for line, came, wanted, place in zip(script, got, right, places):
        words, looks = _words(line, make.__name__, several, before), line[1].startswith(".")
        if came[0] == "raised" and came[1] in ("ArgumentChanged", "ResultChanged"):
            return error_text(Call((), f"{label}: {words}"), Raised(came[1], came[2]))
        if not _as_wanted(came, wanted, getattr(make, line[1], None)):
            behind = before[-4:-1] if looks else before[-3:]
            story = f" (the calls before it: {', '.join(behind)})" if behind else ""
            return f"{label}: {words} {_came(came, place, looks)}, wanted {_came(wanted)}{story}."
        before += [] if looks else [words]
    return None


def _as_wanted(came: tuple, wanted: tuple, method: Callable | None) -> bool:
    """Whether the same came of a line: an equal value, unless the method returns nothing, or an error of that type."""
    if "raised" in (came[0], wanted[0]):
        return came[0] == wanted[0] and (came[1] == wanted[1] or came[1].endswith(f" ({wanted[1]})"))
    nothing = getattr(method, "__annotations__", {}).get("return", 0) is None
    return nothing or _same(came[1], plain(wanted[1]))


def _words(line: tuple, name: str, several: bool, before: list[str]) -> str:
    """A line of a script for a reader; `before` are the calls before it."""
    owner, what, *args = line
    own = f"{owner}." if several else ""
    texts = ", ".join(arg if isinstance(arg, str) else shown(arg) for arg in args)
    if what == "spoil":
        last = next((text for text in reversed(before) if not text.startswith("the caller")), "")
        return f"the caller overwrites the {args[0]} of {last}"
    if what.startswith("new"):
        return f"{owner} = " * several + f"{what[4:] or name}({texts})"
    if not what.startswith("."):
        return f"{own}{what}({texts})"
    after = f" after {before[-1]}" * bool(before)
    if what == ".in":
        return f"which of {shown(args)} are in {owner if several else 'it'}{after}"
    return f"{own}{what[1:]}" + f" at {shown(args)}" * bool(args) + after


def _came(result: tuple, place: str | None = None, looks: bool = False) -> str:
    """What came of a line, in words; place is None for what is wanted."""
    if result[0] != "raised":
        text = shown(plain(result[1]), 400)
        return text if place is None else f"{'is' if looks else 'gives'} {text}"
    if place is None:
        return result[1]
    return f"raises {result[1]}: {short(result[2], 100)}" + f" ({place})" * bool(place)
