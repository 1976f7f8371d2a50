"""One submission: its answers are taken from the notebook, run in a sandbox on seen and unseen inputs, and judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autograder import seeds
from autograder.exercise import Exercise, Group, Verdict
from autograder.exercises import EXERCISES
from autograder.grading.intake import Answer, Refused, answer_to, read_notebook
from autograder.grading.remote import Remote, Sandboxes
from autograder.judge import reexported, verdict_on


@dataclass(frozen=True, slots=True)
class Task:
    """One graded cell: its grade id, the points that it earned, of how many, and what is said to the learner."""

    name: str
    score: float
    max_score: float
    diagnosis: str
    mistakes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Half a surrogate pair, which an answer's words may hold, is refused by every file and by the gradebook."""
        object.__setattr__(self, "diagnosis", self.diagnosis.encode("utf-8", "replace").decode())


@dataclass(frozen=True, slots=True)
class Graded:
    """A graded submission of one notebook.

    isolation   the level of the sandbox in which its answers ran
    notes       what had to be mended, and which of several cells was taken
    answers     the code that was run, by exercise
    """

    assignment: str
    isolation: str
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)

    @property
    def score(self) -> float:
        return sum(task.score for task in self.tasks)

    @property
    def max_score(self) -> float:
        return sum(task.max_score for task in self.tasks)


def grade_file(path: Path, assignment: str, worth: dict[str, float], course_seed: int, level: str) -> Graded:
    """Grade the notebook in a file that may hold anything. It never raises for what a learner wrote.

    worth         points of each graded cell of the assignment, by grade id ("attend__bits")
    course_seed   chooses the inputs that learners do not see
    """
    try:
        notebook = read_notebook(path)
    except Refused as error:
        return Graded(assignment, level, tuple(Task(name, 0, most, str(error)) for name, most in worth.items()))
    names = list(dict.fromkeys(grade_id.partition("__")[0] for grade_id in worth))
    needs_torch = any("torch" in EXERCISES[name].imports for name in names)
    boxes = Sandboxes(level, torch=needs_torch)
    tasks, notes, answers = [], list(notebook.notes), {}
    try:
        for name in names:
            answer = answer_to(name, notebook)
            notes += answer.notes
            answers |= {name: answer.source} if answer.cell is not None else {}
            groups = [grade_id for grade_id in worth if grade_id.partition("__")[0] == name]
            tasks += [_task(g, worth[g], answer, seeds.hidden(course_seed, assignment, g), boxes) for g in groups]
    finally:
        boxes.drop()
    return Graded(assignment, level, tuple(tasks), tuple(notes), answers)


def _task(grade_id: str, most: float, answer: Answer, hidden: int, boxes: Sandboxes) -> Task:
    name, _, group_name = grade_id.partition("__")
    exercise = EXERCISES[name]
    group = exercise.group(group_name)
    if answer.cell is None:
        return Task(grade_id, 0, most, f"Exercise {exercise.number}, {name}, is not written yet.")
    seen = judged(exercise, group, answer.source, seeds.PUBLIC, boxes)
    if not seen.passed:
        return Task(grade_id, 0, most, seen.message, seen.mistakes)
    unseen = judged(exercise, group, answer.source, hidden, boxes)
    if unseen.passed:
        return Task(grade_id, most, most, f"Passed: {seen.count}.")
    what = "It passes on the inputs that you see, and fails on others."  # which would tell them, and the right results
    said = " ".join(filter(None, (what, unseen.which if unseen.mistakes else "", unseen.where)))
    return Task(grade_id, 0, most, said, unseen.mistakes)


def judged(exercise: Exercise, group: Group, source: str, seed: int, boxes: Sandboxes) -> Verdict:
    """The verdict on an answer in a sandbox, with the cases that `seed` chooses."""
    answer = Remote(exercise, source, boxes)
    try:
        found = verdict_on(exercise, group, answer, seed)
    finally:
        answer.close()
    return reexported(answer.forbidden) if answer.forbidden else found
