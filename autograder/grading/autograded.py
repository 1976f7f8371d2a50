"""Graded notebooks go into a course's autograded/, where formgrader and nbgrader's feedback look for them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from autograder.build import dump, nbgrader_metadata, notebook, notebook_cell, write_atomically
from autograder.grading.grade import Task
from autograder.grading.report import Row
from autograder.include import answer_of
from autograder.plain import whole
from autograder.source import Lesson

STAMPS = ("timestamp.txt", "submission_secret.txt")  # nbgrader's own, which its release_feedback reads
MAX_STAMP = 1_000  # bytes of one of them


def write_autograded(course: Path, lesson: Lesson, rows: Sequence[Row], root: Path) -> None:
    """Write a notebook for each row, all of the same lesson: its answers, and below each check what was found.

    Of the other files of a submission only nbgrader's own two go along. A learner's files stay out: nbgrader would copy
    them into the feedback.
    """
    stubs = {cell.solution: answer_of(lesson, cell, root).stub() for cell in lesson.cells if cell.solution}
    for row in rows:
        folder = course / "autograded" / row.student / lesson.stem
        text = storable(dump(_graded_notebook(lesson, row, stubs)))
        write_atomically(folder / f"{lesson.stem}.ipynb", text, mode=0o600)
        for name in STAMPS:
            stamp = stamp_in(course / "submitted" / row.student / lesson.stem / name)
            if stamp:
                write_atomically(folder / name, stamp, mode=0o600)
            else:
                (folder / name).unlink(missing_ok=True)


def storable(text: str) -> str:
    """Without what neither UTF-8 nor a page can hold: halves of characters, and NUL."""
    return whole(text).replace("\0", "\N{REPLACEMENT CHARACTER}")


def stamp_in(file: Path) -> str:
    """A short text that nbgrader, or a learner, has put beside a submission; empty if there is none."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as opened:
        regular = stat.S_ISREG(os.fstat(handle).st_mode)
        return opened.read(MAX_STAMP).decode("utf-8", "replace").strip() if regular else ""


def _graded_notebook(lesson: Lesson, row: Row, stubs: Mapping[str, str]) -> dict:
    """The lesson with the student's answers in it, and below each check what was found."""
    said = {task.name: task for task in row.graded.tasks}
    cells = []
    for cell in lesson.cells:
        text = (row.graded.answers.get(cell.solution) or stubs[cell.solution]) if cell.solution else cell.text
        made = notebook_cell(cell, text, nbgrader_metadata(cell))
        task = said.get(cell.grade_id) if cell.check else None
        if task is not None:
            made["outputs"] = [_output(task)]
        cells.append(made)
    return notebook(lesson, cells)


def _output(task: Task) -> dict:
    """A check's output as nbgrader reads it: an error costs the points, a line on stdout does not."""
    if task.score == task.max_score:
        return {"output_type": "stream", "name": "stdout", "text": [task.diagnosis + "\n"]}
    text = task.diagnosis
    return {"output_type": "error", "ename": "CheckFailed", "evalue": text[:200], "traceback": [f"CheckFailed: {text}"]}
