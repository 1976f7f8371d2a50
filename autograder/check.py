"""The learner's front door: check.NAME(my_function) says what differs, which mistake does that, and where to reread.

from autograder import check
check.chunk_attention_mask(chunk_attention_mask)                   # all groups
check.chunk_attention_mask(chunk_attention_mask, group="values")   # one of them
check.names()                                                      # what can be checked
check.progress()                                                   # what is done, and what is next
"""

from __future__ import annotations

from collections.abc import Callable

from autograder import seeds
from autograder.answers import InProcess
from autograder.exercise import Exercise, Group, Verdict
from autograder.exercises import EXERCISES
from autograder.judge import reexported, verdict_on
from autograder.ours import used
from course_lib.learner import progress as _progress

PUBLIC_SEED = seeds.PUBLIC  # a graded check passes a hidden seed


class CheckFailed(AssertionError):
    """An answer did not pass. Notebooks show the message alone, without a traceback through our code."""

    def _render_traceback_(self) -> list[str]:
        return [f"CheckFailed: {self}"]


def evaluate(exercise: Exercise, group: Group, fn: Callable, seed: int = PUBLIC_SEED) -> Verdict:
    """The verdict on fn in one group, with the cases that `seed` (any int of at least 0) chooses."""
    ours = used(fn, (exercise.solution, *exercise.library))
    if ours:
        return reexported(ours)
    return verdict_on(exercise, group, InProcess(fn, exercise.driver, exercise.callbacks), seed)


def progress() -> None:
    """Print what is done, and what is next (also: python -m course_lib progress)."""
    print(_progress.report())


def names() -> list[str]:
    """The functions that can be checked, in the order of the notebooks."""
    return list(EXERCISES)


def _check(exercise: Exercise, fn: Callable, group: str | None, seed: int | None) -> None:
    if not callable(fn):
        raise TypeError(
            f"check.{exercise.name} got an object of type {type(fn).__name__}. Give it {exercise.name} itself, without "
            f"calling it: check.{exercise.name}({exercise.name})"
        )
    groups = exercise.groups if group is None else (exercise.group(group),)
    verdicts = {g.name: evaluate(exercise, g, fn, PUBLIC_SEED if seed is None else seed) for g in groups}
    passed = [f"{name} ({v.count})" for name, v in verdicts.items() if v.passed]
    failed = [name for name, v in verdicts.items() if not v.passed]
    for name, verdict in verdicts.items():
        if verdict.passed:
            _progress.record_check(f"{exercise.name}__{name}")
    title = f"Exercise {exercise.number} {exercise.name}"
    if not failed:
        print(f"{title}: {' and '.join(passed)} {'passes' if len(passed) == 1 else 'pass'}.")
        return
    message = verdicts[failed[0]].message
    lines = [message if message.startswith("Exercise") else f"{title}, {failed[0]}: {message}"]
    lines += [f"Group {name} fails too." for name in failed[1:]] + [f"Group {text} passes." for text in passed]
    raise CheckFailed("\n".join(lines))


def _front(exercise: Exercise) -> Callable:
    def check(fn: Callable, group: str | None = None, seed: int | None = None) -> None:
        _check(exercise, fn, group, seed)

    check.__name__ = check.__qualname__ = exercise.name
    check.__doc__ = (
        f"Check your {exercise.name} (exercise {exercise.number}): prints one line, or raises CheckFailed.\n\n"
        f"group   one of {', '.join(g.name for g in exercise.groups)}; all of them if not given\n"
        "seed    chooses the inputs; any whole number of at least 0"
    )
    return check


_FRONT = {exercise.name: _front(exercise) for exercise in EXERCISES.values()}


def __getattr__(name: str) -> Callable:
    if name in _FRONT:
        return _FRONT[name]
    raise AttributeError(f"there is no exercise {name!r}; check.names() lists them: {', '.join(_FRONT)}")


def __dir__() -> list[str]:
    return [*_FRONT, "CheckFailed", "names", "progress"]
