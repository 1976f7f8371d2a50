"""`python -m autograder grade`: every submission is a task of its own; only this process writes grades."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from autograder.build import ROOT, write_atomically
from autograder.course import MARK, read_record, with_points, worth_of
from autograder.grading import report
from autograder.grading.executors import Cluster, Local
from autograder.grading.gradebook import write_back
from autograder.grading.journal import Journal, graded_in
from autograder.grading.report import Row
from autograder.grading.rounds import Pool, Progress, Rounds
from autograder.grading.sandbox import LEVELS, level
from autograder.grading.submissions import find, without_notebook
from autograder.source import Lesson, read_lessons
from course_lib.cli import UserError

_UNFINISHED = re.compile(r"\..+\.[a-z0-9_]{8}")  # the names that build.write_atomically gives them
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
    scheduler: str = "",
    again: bool = False,
    course: Path | None = None,
) -> int:
    """Grade what was handed in. Returns the exit code: 0 if all was graded, 1 if something could not be.

    course      into which the grades of a zip or folder go, with its points and hidden inputs
    scheduler   address of a Dask scheduler whose workers grade; without it `jobs` processes of this machine do
    again       grade all anew; else only what has changed since the last run, or was not finished by it

    In a course made by `python -m autograder course`, grades go into its gradebook.db and autograded/. In reports/
    stand grades.json, grades.csv and pages/STUDENT/ASSIGNMENT.html; rows of students and assignments that were not
    asked for stay. What could not be graded gets no grade, and keeps an older one.
    """
    lessons = read_lessons(ROOT)
    if course is not None and not (course / MARK).is_file():
        raise UserError(f"{course} is no course. Make one: python -m autograder course {course}")
    home = course or where  # where grades and reports go
    seed = _seed(home)
    if (home / MARK).is_file():  # only what the course has, with its points
        worth = worth_of(home)
        lessons = [with_points(lesson, worth[lesson.stem]) for lesson in lessons if lesson.stem in worth]
        if not lessons:
            raise UserError(f"{home / 'source'} holds no notebook. Run: python -m autograder course {home}")
    by_number = {lesson.stem.partition("_")[0]: lesson.stem for lesson in lessons}
    assignments = [by_number.get(one, one) for one in assignments]  # 02 is 02_mask
    unknown = set(assignments) - {lesson.stem for lesson in lessons}
    if unknown:
        names = ", ".join(lesson.stem for lesson in lessons)
        raise UserError(f"there is no assignment {', '.join(sorted(unknown))}; there are {names}.")
    if not (dry_run or scheduler):
        _refuse_below(accepted, level(), "this machine isolates")
    with tempfile.TemporaryDirectory() as unpacked:
        exercises = {lesson.stem: [c.solution for c in lesson.cells if c.solution] for lesson in lessons}
        found = find(where, exercises, Path(unpacked))
        found += without_notebook(where, found, exercises)
        chosen = [one for one in found if _asked_for(one.student, one.assignment, students, assignments)]
        unknown = set(students) - {one.student for one in found}
        if unknown and found:
            names = ", ".join(sorted(unknown))
            raise UserError(f"nothing of {names} was found in {where}. --dry-run lists whose submissions there are.")
        if not chosen:
            raise UserError(f"no submission was found in {where}.")
        if dry_run:
            for one in chosen:
                print(f"{one.student:24}{one.assignment or '?':20}{one.name}")
            return 0
        out = Reports(home, json_file)
        here = {(one.student, one.assignment) for one in chosen}
        kept = [
            row
            for row in out.rows()
            if not _asked_for(row.student, row.graded.assignment, students, assignments)
            or (course is not None and (row.student, row.graded.assignment) not in here)  # who is not in this zip
        ]
        worth = {lesson.stem: {c.grade_id: c.points for c in lesson.cells if c.check} for lesson in lessons}
        todo = [one for one in chosen if one.assignment]
        rows, ungraded = [], []
        with Journal(_journal(home), seed, again=again) as journal, _pool(jobs, scheduler, accepted) as pool:
            progress = Progress(len(todo))
            rounds = Rounds(pool, journal, worth, seed)
            for one, came in rounds.run(todo):
                ungraded += [(one, came)] if isinstance(came, str) else []
                rows += [] if isinstance(came, str) else [Row(one.student, one.noted(came))]
                progress.one(rounds.known)
            missing = {(one.student, one.assignment) for one, _ in ungraded}
            kept += [row for row in out.rows() if (row.student, row.graded.assignment) in missing]
            rows.sort(key=lambda row: (row.student, row.graded.assignment))
            out.write(rows, kept)
            noticed = _into_the_gradebook(home, rows, lessons) if (home / MARK).is_file() else []
            _sweep(out.folder)
            _sweep(home / "autograded")
    print(report.table(rows), end="")
    for text in noticed:
        print(text, file=sys.stderr)
    for one, what in ungraded:
        said = f"{one.assignment} of {one.student} could not be graded, no fault of the answer ({what}). Grade again."
        print(" ".join(said.split()), file=sys.stderr)
    unread = [one for one in chosen if not one.assignment]
    for one in unread:
        print(f"{one.name} of {one.student}: {one.problem or 'it is none of the assignments'}", file=sys.stderr)
    return 1 if unread or ungraded else 0


def _refuse_below(accepted: str, found: str, who: str) -> None:
    if LEVELS.index(found) > LEVELS.index(accepted):
        raise UserError(
            f"{who} answers by {found!r} only: a submission could read files and change grades. "
            f"Install bubblewrap (apt install bubblewrap); for code that you trust, --accept-isolation {found}."
        )


def _asked_for(student: str, assignment: str, students: Sequence[str], assignments: Sequence[str]) -> bool:
    return (not students or student in students) and (not assignments or assignment in assignments)


@contextlib.contextmanager
def _pool(jobs: int, scheduler: str, accepted: str) -> Iterator[Pool]:
    pool = Cluster(scheduler) if scheduler else Local(jobs)
    try:
        _refuse_below(accepted, pool.level, f"the workers of {scheduler} isolate")
        yield pool
    except KeyboardInterrupt:
        raise UserError(
            "stopped. No grade was written; what is graded is kept, and the same command goes on."
        ) from None
    finally:
        pool.close()


def _seed(where: Path) -> int:
    """The course's own seed, or 0 where there is no course: then unseen inputs are the same for all that use it."""
    return read_record(where)["seed"] if (where / MARK).is_file() else 0


def _journal(where: Path) -> Path:
    """Where the journal stands: in a course, but beside a folder or a zip, in which students' files lie."""
    where = where.resolve()
    if (where / MARK).is_file() or (where / "submitted").is_dir():
        return where / ".grading_journal"
    return where.with_name(f".{where.name}.grading_journal")


class Reports:
    """The folder of grades.json, grades.csv and pages: reports/ in a course or folder, NAME-reports/ beside a zip."""

    def __init__(self, where: Path, json_file: Path | None):
        self.folder = where / "reports" if where.is_dir() else where.with_name(f"{where.stem}-reports")
        self.json_file = json_file or self.folder / "grades.json"

    def rows(self) -> list[Row]:
        """What the last run wrote. UserError if it is something else."""
        try:
            return [Row(one["student"], graded_in(one)) for one in json.loads(self.json_file.read_text("utf-8"))]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError, RecursionError):
            raise UserError(
                f"{self.json_file} holds no grades that this grader wrote, so rows in it cannot be kept. Move it away."
            ) from None

    def write(self, rows: Sequence[Row], kept: Sequence[Row]) -> None:
        """Write what was graded now, and keep older rows. A file that cannot be written stays as it was."""
        every = sorted([*rows, *kept], key=lambda row: (row.student, row.graded.assignment))
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(self.json_file, report.as_json(every), mode=0o600)
            write_atomically(self.folder / "grades.csv", report.as_csv(every), mode=0o600)
            for row in rows:
                page = self.folder / "pages" / row.student / f"{row.graded.assignment}.html"
                write_atomically(page, report.as_html(row), mode=0o600)
        except OSError as error:
            raise _cannot_write(error, self.folder) from None


def _into_the_gradebook(course: Path, rows: Sequence[Row], lessons: Sequence[Lesson]) -> list[str]:
    from sqlalchemy.exc import SQLAlchemyError  # nbgrader's gradebook is made of it

    try:
        return write_back(course, rows, lessons, ROOT)
    except OSError as error:
        raise _cannot_write(error, course) from None
    except SQLAlchemyError as error:
        text = f"cannot write {course / 'gradebook.db'}: {str(error).partition('[SQL')[0]}"
        raise UserError(f"{text}. What was graded is kept: mend that and grade again.") from None


def _sweep(folder: Path) -> None:
    """Remove what runs that were killed while they wrote have left of files that were not finished."""
    for path in folder.rglob(".*"):
        if _UNFINISHED.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def _cannot_write(error: OSError, folder: Path) -> UserError:
    return UserError(
        f"cannot write {error.filename2 or error.filename or folder}: {error.strerror}. No file is half written, and "
        "what was graded is kept: mend that and grade again."
    )
