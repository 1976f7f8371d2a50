"""`python -m autograder grade`: every submission is a task of its own; only this process writes grades."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from autograder.build import ROOT, write_atomically
from autograder.course import MARK, with_points, worth_of
from autograder.grading import report
from autograder.grading.grade import Graded, Task, grade_file
from autograder.grading.gradebook import write_back
from autograder.grading.report import Row
from autograder.grading.sandbox import LEVELS, level
from autograder.grading.submissions import Submission, find
from autograder.source import Lesson, read_lessons
from course_lib.cli import UserError

SAFE = "bubblewrap"  # levels at which the code of strangers may run


def grade(
    where: Path,
    *,
    jobs: int = 1,
    accepted: str = SAFE,
    students: Sequence[str] = (),
    assignments: Sequence[str] = (),
    json_file: Path | None = None,
    dry_run: bool = False,
) -> int:
    """Grade what was handed in. Returns the exit code: 0 if all was graded, 1 if something could not be.

    In a course made by `python -m autograder course`, grades go into its gradebook.db and autograded/. Beside what was
    handed in stand grades.json, grades.csv and feedback/ afterwards.
    """
    found_level = level()
    if LEVELS.index(found_level) > LEVELS.index(accepted):
        raise UserError(
            f"this machine isolates answers by {found_level!r} only: a submission could read files and change grades. "
            f"Install bubblewrap (apt install bubblewrap); for code that you trust, --accept-isolation {found_level}."
        )
    lessons = read_lessons(ROOT)
    if (where / MARK).is_file():  # only what the course has, with its points
        worth = worth_of(where)
        lessons = [with_points(lesson, worth[lesson.stem]) for lesson in lessons if lesson.stem in worth]
    unknown = set(assignments) - {lesson.stem for lesson in lessons}
    if unknown:
        names = ", ".join(lesson.stem for lesson in lessons)
        raise UserError(f"there is no assignment {', '.join(sorted(unknown))}; there are {names}.")
    with tempfile.TemporaryDirectory() as unpacked:
        exercises = {lesson.stem: [c.solution for c in lesson.cells if c.solution] for lesson in lessons}
        chosen = [
            one
            for one in find(where, exercises, Path(unpacked))
            if (not students or one.student in students) and (not assignments or one.assignment in assignments)
        ]
        if not chosen:
            raise UserError(f"no submission was found in {where}.")
        if dry_run:
            for one in chosen:
                print(f"{one.student:24}{one.assignment or '?':20}{one.path.name}")
            return 0
        seed = _seed(where)
        rows = list(_graded(chosen, lessons, seed, found_level, jobs))
    rows.sort(key=lambda row: (row.student, row.graded.assignment))
    _write(where, rows, lessons, json_file)
    print(report.table(rows), end="")
    unread = [one for one in chosen if not one.assignment]
    for one in unread:
        print(f"{one.path.name} of {one.student}: {one.problem or 'it is none of the assignments'}", file=sys.stderr)
    return 1 if unread else 0


def _seed(where: Path) -> int:
    """The course's own seed, or 0 where there is no course: then unseen inputs are the same for all that use it."""
    mark = where / MARK
    return json.loads(mark.read_text("utf-8"))["seed"] if mark.is_file() else 0


def _graded(chosen: Sequence[Submission], lessons: Sequence[Lesson], seed: int, how: str, jobs: int) -> Iterator[Row]:
    worth = {lesson.stem: {c.grade_id: c.points for c in lesson.cells if c.check} for lesson in lessons}
    todo = [one for one in chosen if one.assignment]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        tasks = {
            pool.submit(grade_file, one.path, one.assignment, worth[one.assignment], seed, how): one for one in todo
        }
        for done, task in enumerate(as_completed(tasks), start=1):
            one = tasks[task]
            try:
                graded = task.result()
            except Exception as error:  # ours, and not the learner's: no points are given or taken for it
                said = f"This could not be graded ({type(error).__name__}: {error}). It is no fault of the answer."
                missing = tuple(Task(name, 0, most, said) for name, most in worth[one.assignment].items())
                graded = Graded(one.assignment, how, missing)
            if sys.stderr.isatty():
                print(f"\r{done} of {len(tasks)} graded", end="\n" if done == len(tasks) else "", file=sys.stderr)
            yield Row(one.student, graded)


def _write(where: Path, rows: Sequence[Row], lessons: Sequence[Lesson], json_file: Path | None) -> None:
    if (where / MARK).is_file():
        write_back(where, rows, lessons, ROOT)
    beside = where if where.is_dir() else where.parent
    write_atomically(json_file or beside / "grades.json", report.as_json(rows), mode=0o600)
    write_atomically(beside / "grades.csv", report.as_csv(rows), mode=0o600)
    for row in rows:
        page = beside / "feedback" / row.student / row.graded.assignment / "index.html"
        write_atomically(page, report.as_html(row), mode=0o600)
