"""Grades and comments go into nbgrader's gradebook, and graded notebooks into autograded/, as nbgrader has them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from autograder.build import dump, nbgrader_metadata, notebook, notebook_cell, write_atomically
from autograder.course import open_gradebook
from autograder.grading.report import Row
from autograder.include import answer_of
from autograder.source import Lesson


def write_back(course: Path, rows: Sequence[Row], lessons: Sequence[Lesson], root: Path) -> None:
    """Write graded submissions into a course made by `python -m autograder course`. Grades by hand stay.

    A task's automatic score and the comment on its answer are what this grading says; doing it again changes nothing.
    """
    warnings.filterwarnings("ignore", module="nbgrader")  # SQLAlchemy's, about how nbgrader 0.9.6 adds rows
    by_stem = {lesson.stem: lesson for lesson in lessons}
    with open_gradebook(course / "gradebook.db") as book:
        for stem in dict.fromkeys(row.graded.assignment for row in rows):
            _structure(book, by_stem[stem])
        for row in rows:
            _grades(book, row)
    for row in rows:
        lesson = by_stem[row.graded.assignment]
        file = course / "autograded" / row.student / lesson.stem / f"{lesson.stem}.ipynb"
        write_atomically(file, dump(_graded_notebook(lesson, row, root)))


def _structure(book, lesson: Lesson) -> None:
    """The assignment's graded and answer cells, which `nbgrader generate_assignment` also writes."""
    book.update_or_create_assignment(lesson.stem)
    book.update_or_create_notebook(lesson.stem, lesson.stem)
    for cell in lesson.cells:
        if cell.check:
            known = {"max_score": cell.points, "cell_type": "code"}
            book.update_or_create_grade_cell(cell.grade_id, lesson.stem, lesson.stem, **known)
        elif cell.solution:
            book.update_or_create_solution_cell(cell.grade_id, lesson.stem, lesson.stem)
        if cell.grade_id:
            source = {"source": cell.text, "cell_type": "code", "locked": bool(cell.check)}
            book.update_or_create_source_cell(cell.grade_id, lesson.stem, lesson.stem, **source)


def _grades(book, row: Row) -> None:
    stem = row.graded.assignment
    book.update_or_create_student(row.student)
    book.update_or_create_submission(stem, row.student)
    said: dict[str, list[str]] = {}
    for task in row.graded.tasks:
        grade = book.find_grade(task.name, stem, stem, row.student)
        grade.auto_score = task.score
        grade.needs_manual_grade = grade.manual_score is not None
        said.setdefault(task.name.partition("__")[0], []).append(f"{task.name}: {task.diagnosis}")
    for name, texts in said.items():
        book.find_comment(name, stem, stem, row.student).auto_comment = "\n\n".join(texts)
    book.db.commit()


def _graded_notebook(lesson: Lesson, row: Row, root: Path) -> dict:
    """The lesson with the student's answers in it, and below each check what was found."""
    said = {task.name: task for task in row.graded.tasks}
    cells = []
    for cell in lesson.cells:
        text = cell.text
        if cell.solution:
            text = row.graded.answers.get(cell.solution) or answer_of(lesson, cell, root).stub()
        made = notebook_cell(cell, text, nbgrader_metadata(cell))
        task = said.get(cell.grade_id) if cell.check else None
        if task is not None:
            made["outputs"] = [_output(task)]
        cells.append(made)
    return notebook(lesson, cells)


def _output(task) -> dict:
    """A check's output as nbgrader reads it: an error costs the points, a line on stdout does not."""
    if task.score == task.max_score:
        return {"output_type": "stream", "name": "stdout", "text": [task.diagnosis + "\n"]}
    text = task.diagnosis
    return {"output_type": "error", "ename": "CheckFailed", "evalue": text[:200], "traceback": [f"CheckFailed: {text}"]}
