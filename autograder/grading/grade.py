"""One submission: its answers are taken from the notebook, run in a sandbox on seen and unseen inputs, and judged."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autograder import seeds
from autograder.exercise import Exercise, Group, Verdict
from autograder.exercises import EXERCISES
from autograder.grading import explain
from autograder.grading.intake import Answer, Notebook, Refused, answer_to, read_notebook
from autograder.grading.memo import Memo
from autograder.grading.remote import Remote, Sandboxes
from autograder.judge import reexported
from autograder.plain import whole


@dataclass(frozen=True, slots=True)
class Task:
    """One graded cell: its grade id, the points that it earned, of how many, and what is said to the learner."""

    name: str
    score: float
    max_score: float
    diagnosis: str
    mistakes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "diagnosis", whole(self.diagnosis))  # an answer's own words may stand in it


@dataclass(frozen=True, slots=True)
class Graded:
    """A graded submission of one notebook.

    isolation   the level of the sandbox in which its answers ran
    notes       what had to be mended, and which of several cells was taken
    answers     the code that was run, by exercise
    taken       where it was found, in a sentence, by exercise
    """

    assignment: str
    isolation: str
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)

    @property
    def score(self) -> float:
        return sum(task.score for task in self.tasks)

    @property
    def max_score(self) -> float:
        return sum(task.max_score for task in self.tasks)


def grade_file(
    file: Path | bytes,
    assignment: str,
    worth: Mapping[str, float],
    course_seed: int,
    level: str,
    grader: Grader | None = None,
) -> Graded:
    """Grade the notebook in a file, or in its content, which may be anything. Never raises for what a learner wrote.

    worth         points of each graded cell of the assignment, by grade id ("attend__bits")
    course_seed   chooses the inputs that learners do not see
    grader        where a class is graded: with what is remembered of it
    """
    try:
        notebook = read_notebook(file)
    except Refused as error:
        return refused(error, assignment, level, worth)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of a "\d" in a cell, which is only read in this process
        return _graded(notebook, assignment, worth, course_seed, grader or Grader(level, Memo()))


def _graded(
    notebook: Notebook, assignment: str, worth: Mapping[str, float], course_seed: int, grader: Grader
) -> Graded:  # fmt: skip
    names = list(dict.fromkeys(grade_id.partition("__")[0] for grade_id in worth))
    grader.torch = any("torch" in EXERCISES[name].imports for name in names)
    tasks, notes, answers, taken = [], list(notebook.notes), {}, {}
    try:
        for name in names:
            answer = answer_to(name, notebook)
            notes += answer.notes
            if answer.cell is not None:
                answers[name], taken[name] = answer.source, explain.taken(answer)
            exercise = EXERCISES[name]
            not_run = explain.not_run(exercise, answer, notebook)
            remote = Remote(exercise, answer.source, grader)
            for grade_id, most in worth.items():
                if grade_id.partition("__")[0] != name:
                    continue
                if not_run:
                    tasks.append(Task(grade_id, 0, most, not_run))
                    continue
                hidden = seeds.hidden(course_seed, assignment, grade_id)
                group = exercise.group(grade_id.partition("__")[2])
                unseen = judged(exercise, group, remote, hidden, grader, names=False)
                if unseen.passed:
                    tasks.append(Task(grade_id, most, most, f"Passed: {unseen.count}."))
                else:
                    passed, said, mistakes = _alone(exercise, group, answer, notebook, hidden, grader)
                    tasks.append(Task(grade_id, most if passed else 0, most, said, mistakes))
            remote.close()
    finally:
        grader.drop()
    return Graded(assignment, grader.level, tuple(tasks), tuple(notes), answers, taken)


def refused(error: Refused, assignment: str, level: str, worth: Mapping[str, float]) -> Graded:
    """The grades of a file that is no notebook."""
    return Graded(assignment, level, tuple(Task(name, 0, most, str(error)) for name, most in worth.items()))


def _alone(
    exercise: Exercise, group: Group, answer: Answer, notebook: Notebook, hidden: int, grader: Grader
) -> tuple[bool, str, tuple[str, ...]]:  # fmt: skip
    """Of an answer that has not passed beside the other groups: whether it passes, what is said, known mistakes.

    It meets, in a process of its own, what a learner's check shows and then what only we know: that decides. So it is
    told what it would be told in a notebook, and is not failed for what it remembers of other groups.
    """
    remote = Remote(exercise, answer.source, grader)
    try:
        seen = judged(exercise, group, remote, seeds.PUBLIC, grader)
        if not seen.passed:
            return False, explain.explained(seen, exercise, answer, notebook), seen.mistakes
        unseen = judged(exercise, group, remote, hidden, grader)  # in the same process, as both checks of a cell are
    finally:
        remote.close()
    if unseen.passed:
        return True, f"Passed: {unseen.count}.", ()
    what = "It passes on the inputs that you see, and fails on others."  # which would tell them, and the right results
    which = unseen.which if unseen.mistakes else explain.kind_of_failure(unseen.what, answer)
    return False, " ".join(filter(None, (what, which, unseen.where))), unseen.mistakes


def judged(
    exercise: Exercise, group: Group, answer: Remote, seed: int, grader: Grader, *, names: bool = True
) -> Verdict:  # fmt: skip
    """The verdict on an answer in a sandbox, with the cases that `seed` chooses. names: as for Memo.verdict_on."""
    try:
        found = grader.memo.verdict_on(exercise, group, answer, seed, names=names)
    finally:
        grader.cut_short |= getattr(answer.failed, "type", "") in ("Timeout", "Ended")
    return reexported(answer.forbidden) if answer.forbidden else found


class Grader(Sandboxes):
    """The worker of one submission, beside what its process remembers of the class.

    cut_short   whether a call was ended for want of time, or ended by itself: on a machine that has too much to do, or
                too little memory, that may be no fault of the answer
    """

    def __init__(self, level: str, memo: Memo):
        super().__init__(level)
        self.memo, self.cut_short = memo, False
