"""`nbgrader autograde`, and formgrader's button, with this engine: answers run in a sandbox, not notebooks in a kernel.

One line in a course's nbgrader_config.py switches it on, and without the line nbgrader runs notebooks itself:

    c.Autograde.exporter_class = "autograder.grading.nbgrader_autograde.SandboxedGrading"

nbgrader makes its exporter when it has found the submissions and is about to convert one after the other. This exporter
takes that step over for the notebooks of this course, and refuses them where the course has lost its seed or their
source; other assignments it converts as nbgrader does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from nbconvert.exporters import NotebookExporter
from nbformat.v4 import new_notebook
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde
from nbgrader.converters.base import NbGraderException
from nbgrader.preprocessors import AssignLatePenalties
from traitlets import Enum, Int

from autograder.build import ROOT
from autograder.course import MARK, worth_of
from autograder.grading.run import SAFE
from autograder.grading.sandbox import LEVELS, level
from autograder.source import read_lessons
from course_lib.cli import UserError


class SandboxedGrading(NotebookExporter):
    """Grades the submissions that nbgrader has found with `python -m autograder grade`."""

    accept_isolation = Enum(LEVELS, SAFE, help="the least isolation to grade at").tag(config=True)
    jobs = Int(1, min=1, help="processes at once").tag(config=True)

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        nbgrader = self.parent
        if isinstance(nbgrader, Autograde):
            self.course = Path(nbgrader.coursedir.root).resolve()  # nbgrader goes there before it converts
            stem, marked = nbgrader.coursedir.assignment_id, (self.course / MARK).is_file()
            try:
                ours = worth_of(self.course) if marked else {}
            except UserError as error:
                raise self._stop(str(error)) from None
            if stem in ours:
                nbgrader.convert_notebooks = self.grade
            elif stem in {lesson.stem for lesson in read_lessons(ROOT)}:
                missing = f"source/{stem}/{stem}.ipynb" if marked else MARK
                raise self._stop(
                    f"{self.course} has no {missing}, and without it learners' notebooks would run under your account. "
                    "Bring it back"
                )

    def grade(self) -> None:
        """Grade, then let nbgrader's plugin set late penalties. NbGraderException says what is wrong or not graded.

        The newest submission counts each time, also without --force and without a timestamp; --force grades anew what
        has not changed.
        """
        nbgrader, stem = self.parent, self.parent.coursedir.assignment_id
        self._refuse()
        students = self._students()
        command = [sys.executable, "-m", "autograder", "grade", str(self.course), "--assignment", stem]
        command += ["-j", str(self.jobs), "--accept-isolation", self.accept_isolation]
        command += ["--again"] if nbgrader.force else []
        if nbgrader.coursedir.student_id != "*" or nbgrader.coursedir.student_id_exclude:
            command += [f"--student={student}" for student in students]
        # A process of its own: formgrader's server, and nbgrader's command without a guard, cannot start workers.
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            encoding="utf-8", errors="replace", env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        ) as grading:  # fmt: skip
            for line in grading.stdout:
                nbgrader.log.info("%s", line.rstrip())
        if grading.returncode not in (0, 1):
            raise self._stop(f"nothing was graded (python -m autograder grade ended with {grading.returncode})")
        missing = [student for student in students if not self._penalty(student)]
        if grading.returncode or missing:
            raise self._stop(f"not graded: {', '.join(missing) or 'see above'}")

    def _refuse(self) -> None:
        """Stop before anything is changed."""
        found, course = level(), self.parent.coursedir
        if LEVELS.index(found) > LEVELS.index(self.accept_isolation):
            raise self._stop(
                f"this machine isolates answers by {found!r} only: a submission could read files and change grades. "
                f"Install bubblewrap (apt install bubblewrap); for code that you trust, write "
                f"c.SandboxedGrading.accept_isolation = {found!r} into nbgrader_config.py"
            )
        book = self.course / "gradebook.db"
        if course.db_url != f"sqlite:///{book}" and Path(course.db_url.removeprefix("sqlite:///")).resolve() != book:
            raise self._stop(f"grades go into {book}, and the settings name {course.db_url}. Take db_url out of them")
        if (course.submitted_directory, course.autograded_directory) != ("submitted", "autograded"):
            raise self._stop("submissions must lie in submitted/, and graded ones in autograded/, as is nbgrader's way")

    def _students(self) -> list[str]:
        """Whose submissions nbgrader has found, without those that it was told to leave out."""
        nbgrader = self.parent
        pattern = nbgrader._format_source("(?P<assignment_id>.*)", "(?P<student_id>.*)", escape=True)
        found = [re.match(pattern, folder)["student_id"] for folder in sorted(nbgrader.assignments)]
        left_out = (nbgrader.coursedir.student_id_exclude or "").split(",")
        return [student for student in found if student not in left_out]

    def _penalty(self, student: str) -> bool:
        """Set the late penalty as nbgrader is configured to; False if the gradebook has no such submission."""
        nbgrader, stem = self.parent, self.parent.coursedir.assignment_id
        with Gradebook(nbgrader.coursedir.db_url, nbgrader.coursedir.course_id) as book:
            try:
                book.find_submission(stem, student)
            except MissingEntry:
                return False
        if AssignLatePenalties in nbgrader.autograde_preprocessors:
            of = {"student": student, "assignment": stem, "notebook": stem, "db_url": nbgrader.coursedir.db_url}
            AssignLatePenalties(parent=nbgrader).preprocess(new_notebook(), {"nbgrader": of})
        return True

    def _stop(self, why: str) -> NbGraderException:
        """nbgrader's command ends with exit code 1 at this error, and formgrader shows the log."""
        self.parent.log.error("%s.", why.rstrip("."))
        return NbGraderException(why)
