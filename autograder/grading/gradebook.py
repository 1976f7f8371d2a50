"""Grades and comments go into the gradebook of nbgrader."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from autograder.course import open_gradebook, with_points, worth_of
from autograder.grading.autograded import stamp_in, storable, write_autograded
from autograder.grading.grade import Task
from autograder.grading.report import Row
from autograder.source import Lesson
from course_lib.cli import UserError


def write_back(course: Path, rows: Sequence[Row], lessons: Sequence[Lesson], root: Path) -> list[str]:
    """Write graded submissions into a course made by `python -m autograder course`: all of them, or none.

    Returns what the instructor should know, in sentences: of scores that a person gave, and of times that are none.

    A task's automatic score and the comment on its answer are what this grading says. What a person gave stays: scores,
    comments, extra credit, extensions and late penalties. Doing it again changes nothing. Rows that could not be
    graded must not be among `rows`. UserError if the gradebook cannot be written.
    """
    from sqlalchemy.exc import OperationalError

    worth = worth_of(course, root)
    chosen = {one.stem: with_points(one, worth[one.stem]) if one.stem in worth else one for one in lessons}
    by_stem: dict[str, list[Row]] = {}
    noticed: list[str] = []
    for row in rows:
        by_stem.setdefault(row.graded.assignment, []).append(row)
    try:
        with open_gradebook(course / "gradebook.db") as book:
            for stem, some in by_stem.items():
                assignment = _Assignment(book.db, chosen[stem], course)
                assignment.write(some)
                noticed += assignment.noticed
            book.db.commit()
    except OperationalError as error:
        raise UserError(
            f"{course / 'gradebook.db'} cannot be written ({error.orig}), and no grade was. "
            "Close what else uses it, see that it may be written, and grade again."
        ) from None
    for stem, some in by_stem.items():
        write_autograded(course, chosen[stem], some, root)
    return noticed


class _Assignment:
    """One assignment of the gradebook, read and written in few statements: nbgrader's own way takes one a grade."""

    def __init__(self, db: Any, lesson: Lesson, course: Path):
        from nbgrader import api

        self.db, self.lesson, self.course, self.api = db, lesson, course, api
        self.id = self._id_of(api.Assignment, {"name": lesson.stem})
        self.notebook = self._id_of(api.Notebook, {"name": lesson.stem, "assignment_id": self.id})
        self.cells: dict[str, str] = {}  # name -> id, of graded cells and of answers
        self.noticed: list[str] = []  # as write_back returns it
        self._cells()

    def _id_of(self, kind: Any, fields: Mapping[str, Any]) -> str:
        """The id of the entry with these fields, which is made if it is not there."""
        found = self.db.query(kind.id).filter_by(**fields).first()
        if found is None:
            self.db.add(kind(**fields))
            self.db.flush()
            found = self.db.query(kind.id).filter_by(**fields).one()
        return found[0]

    def _cells(self) -> None:
        """Graded and answer cells, which `nbgrader generate_assignment` also writes. Its sources of checks stay: they
        hold the hidden tests, with which nbgrader overwrites what was handed in."""
        api, at = self.api, {"notebook_id": self.notebook}
        sources = _sources(self.course / "source" / self.lesson.stem / f"{self.lesson.stem}.ipynb")
        known = {name for (name,) in self.db.query(api.SourceCell.name).filter_by(**at)}
        graded = {cell.name: cell for cell in self.db.query(api.GradeCell).filter_by(**at)}
        answers = {cell.name: cell for cell in self.db.query(api.SolutionCell).filter_by(**at)}
        for cell in self.lesson.cells:
            name = cell.grade_id
            if cell.check:
                if name not in graded:
                    graded[name] = api.GradeCell(name=name, max_score=cell.points, cell_type="code", **at)
                    self.db.add(graded[name])
                elif graded[name].max_score != cell.points:
                    graded[name].max_score = cell.points
            elif cell.solution and name not in answers:
                answers[name] = api.SolutionCell(name=name, **at)
                self.db.add(answers[name])
            if name and name not in known:
                text = sources.get(name, cell.text)
                self.db.add(api.SourceCell(name=name, source=text, cell_type="code", locked=bool(cell.check), **at))
        self.db.flush()
        self.cells = {name: cell.id for name, cell in (answers | graded).items()}

    def write(self, rows: Sequence[Row]) -> None:
        """Put the rows' scores and comments into the session, without a commit."""
        api = self.api
        have = {name for (name,) in self.db.query(api.Student.id)}
        self._insert(api.Student, [{"id": row.student} for row in rows if row.student not in have])
        where = self._submissions(rows)
        fields = api.Grade.id, api.Grade.notebook_id, api.Grade.cell_id, api.Grade.auto_score, api.Grade.manual_score
        grades = {(g.notebook_id, g.cell_id): g for g in self._of_notebook(api.Grade, *fields)}
        fields = api.Comment.id, api.Comment.notebook_id, api.Comment.cell_id, api.Comment.auto_comment
        comments = {(c.notebook_id, c.cell_id): c for c in self._of_notebook(api.Comment, *fields)}
        new_grades, old_grades, new_comments, old_comments = [], [], [], []
        for row in rows:
            said: dict[str, list[Task]] = {}
            for task in row.graded.tasks:
                said.setdefault(task.name.partition("__")[0], []).append(task)
            for name, tasks in said.items():
                at = {"notebook_id": where[row.student], "cell_id": self.cells[name]}
                text = comment_on(tasks)
                before = comments.get(tuple(at.values()))
                other = before is None or before.auto_comment != text
                if before is None:
                    new_comments.append({"id": api.new_uuid(), "auto_comment": text} | at)
                elif other:
                    old_comments.append({"key": before.id, "auto_comment": text})
                for task in tasks:
                    at = {"notebook_id": where[row.student], "cell_id": self.cells[task.name]}
                    grade = grades.get(tuple(at.values()))
                    if grade is None:
                        given = {"auto_score": task.score, "needs_manual_grade": False}
                        new_grades.append({"id": api.new_uuid()} | at | given)
                    elif grade.manual_score is None:
                        old_grades.append({"key": grade.id, "auto_score": task.score, "needs_manual_grade": False})
                    elif other or grade.auto_score != task.score:  # a person looked at something else
                        old_grades.append({"key": grade.id, "auto_score": task.score, "needs_manual_grade": True})
                        self.noticed.append(
                            f"{row.student}, {self.lesson.stem}: a person scored {task.name}, and something else was "
                            'found now. That score stays; formgrader says "needs manual grading".'
                        )
        self._insert(api.Grade, new_grades)
        self._insert(api.Comment, new_comments)
        self._update(api.Grade, old_grades)
        self._update(api.Comment, old_comments)

    def _submissions(self, rows: Sequence[Row]) -> dict[str, str]:
        """The id of each student's submitted notebook. A submission has the time that timestamp.txt says, or none:
        formgrader takes one with another time for not graded."""
        from nbgrader.utils import parse_utc

        api = self.api
        kept = api.SubmittedAssignment
        found = {s.student_id: s.id for s in self.db.query(kept.id, kept.student_id).filter_by(assignment_id=self.id)}
        new, old, times = [], [], {}
        for row in rows:
            stamp = stamp_in(self.course / "submitted" / row.student / self.lesson.stem / "timestamp.txt")
            times[row.student] = _time(stamp, parse_utc)
            if stamp and times[row.student] is None:
                self.noticed.append(
                    f"{row.student}, {self.lesson.stem}: timestamp.txt holds no time ({stamp[:40]!r}), so the "
                    "submission has none and is not late."
                )
            if row.student in found:
                old.append({"key": found[row.student], "timestamp": times[row.student]})
            else:
                found[row.student] = api.new_uuid()
                about = {"assignment_id": self.id, "student_id": row.student, "timestamp": times[row.student]}
                new.append({"id": found[row.student]} | about)
        self._insert(kept, new)
        self._update(kept, old)
        kept = api.SubmittedNotebook
        there = self.db.query(kept.id, kept.assignment_id).filter_by(notebook_id=self.notebook)
        books = {submission: notebook for notebook, submission in there}
        missing = [found[row.student] for row in rows if found[row.student] not in books]
        books |= {submission: api.new_uuid() for submission in missing}
        self._insert(kept, [{"id": books[one], "notebook_id": self.notebook, "assignment_id": one} for one in missing])
        return {row.student: books[found[row.student]] for row in rows}

    def _of_notebook(self, kind: Any, *fields: Any) -> list:
        submitted = self.api.SubmittedNotebook
        return (
            self.db.query(*fields)
            .join(submitted, submitted.id == kind.notebook_id)
            .filter(submitted.notebook_id == self.notebook)
            .all()
        )

    def _insert(self, kind: Any, made: list[dict]) -> None:
        if made:
            self.db.execute(kind.__table__.insert(), made)

    def _update(self, kind: Any, changed: list[dict]) -> None:
        """Give the entries with the ids "key" their other fields."""
        from sqlalchemy import bindparam

        table = kind.__table__
        if changed:
            self.db.execute(table.update().where(table.c.id == bindparam("key")), changed)


def comment_on(tasks: Sequence[Task]) -> str:
    """What was found about an answer, each line indented: nbgrader's feedback page reads comments as Markdown, and a
    learner's HTML in an error message would run there. Indented text is shown as it is."""
    lines = [line for task in tasks for line in f"{task.name}: {task.diagnosis}".splitlines()]
    return storable("\n".join(f"    {line}" for line in lines))


def _sources(file: Path) -> dict[str, str]:
    """The cells of a course's source notebook, hidden tests included, by grade id."""
    if not file.is_file():
        return {}
    cells = json.loads(file.read_text("utf-8"))["cells"]
    return {c["metadata"].get("nbgrader", {}).get("grade_id", ""): "".join(c["source"]) for c in cells}


def _time(stamp: str, parse: Any) -> datetime | None:
    """The time that a timestamp.txt says, as nbgrader reads it (UTC); None for what is no time."""
    try:
        return parse(stamp) if stamp else None
    except (ValueError, OverflowError, TypeError):
        return None
