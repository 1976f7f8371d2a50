"""An nbgrader course: source notebooks with answers and hidden checks, the settings, and a gradebook to look at."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autograder.build import ROOT, dump, nbgrader_metadata, notebook, notebook_cell, write_atomically
from autograder.include import answer_of
from autograder.points import Points, points_in, shared_out
from autograder.seeds import hidden
from autograder.source import Cell, Lesson, read_lessons
from course_lib.cli import UserError

MARK = "course_seed.json"  # makes a directory one of ours; keeps the seed from which all hidden seeds are made
CLOSED = ("source", "autograded", "feedback", "reports")  # folders with answers, seeds or grades in them
CONFIG = "nbgrader_config.py"
EXPORTER = "autograder.grading.nbgrader_autograde.SandboxedGrading"  # CONFIG names it: nbgrader autograde uses it


def make_course(
    directory: Path,
    seed: int | None = None,
    root: Path = ROOT,
    *,
    notebooks: Sequence[str] | None = None,
    points: Mapping[str, float] | None = None,
) -> int:
    """Make an nbgrader course in `directory`, or bring its source/ up to date. Returns the exit code.

    seed        chooses the hidden inputs; None draws one (an existing course keeps its own)
    notebooks   numbers of the notebooks to have ("02"); None: all, or in an existing course those that it has
    points      what a notebook is worth ({"02": 10}), shared out over its checks as the lesson does; for the others
                the points that stand in source/ stay

    A directory that is not empty and not such a course is refused, and nothing in it is touched. In an existing
    course the seed, nbgrader_config.py, the gradebook and everything outside source/ stay as they are.
    """
    kept = _record(directory)
    if seed is not None and kept.get("seed", seed) != seed:
        raise UserError(f"{directory} has another seed already; grades would not be comparable. Make a new course.")
    _gradebook_class()
    every = read_lessons(root)
    numbers = kept.get("notebooks") if notebooks is None else _stems(notebooks, every)
    lessons = [lesson for lesson in every if numbers is None or lesson.stem in numbers]
    if not lessons:
        raise UserError(f"{directory / MARK} names no notebook that there is. Say which: --notebooks 02,03.")
    worth = _worth(directory, lessons, points or {})
    seed = next(s for s in (kept.get("seed"), seed, secrets.randbits(128)) if s is not None)
    sources = {one.stem: dump(source_notebook(with_points(one, worth[one.stem]), root, seed)) for one in lessons}

    book_file = directory / "gradebook.db"
    if book_file.is_file() and book_file.stat().st_size and not _is_database(book_file):
        raise UserError(f"{book_file} is no gradebook. Restore it, or move it away. Nothing was written.")
    directory.mkdir(parents=True, exist_ok=True)
    _close_all(directory)  # before anything is written, also what an earlier version left open
    for folder in CLOSED:
        (directory / folder).mkdir(mode=0o700, exist_ok=True)
    book_file.touch(mode=0o600)
    record = {"made_by": "python -m autograder course", "seed": seed}
    record |= {"notebooks": sorted(numbers)} if numbers is not None else {}
    write_atomically(directory / MARK, dump(record), mode=0o600)
    if not (directory / CONFIG).exists():
        write_atomically(directory / CONFIG, Path(__file__).with_name(CONFIG).read_text("utf-8"))
    for stem, text in sources.items():
        file = directory / "source" / stem / f"{stem}.ipynb"
        print(f"{file}: {'written' if write_atomically(file, text, mode=0o600) else 'up to date'}")
    for folder in sorted((directory / "source").iterdir()):
        if folder.is_dir() and folder.name not in sources:
            ours = folder.name in {lesson.stem for lesson in every}
            why = "no longer chosen; delete the folder to drop it" if ours else "not a notebook of this course"
            print(f"{folder}: {why} (left alone)")
    _close_all(directory)
    with open_gradebook(book_file) as book:
        for stem in sources:
            book.update_or_create_assignment(stem)
    if not re.search(rf"^[^#\n]*{re.escape(EXPORTER)}", (directory / CONFIG).read_text("utf-8", "replace"), re.M):
        print(
            f"{directory / CONFIG} lacks a line, and without it nbgrader autograde runs learners' notebooks under your "
            f'account. Add: c.Autograde.exporter_class = "{EXPORTER}"',
            file=sys.stderr,
        )
    print(f"Next: cd {directory} and nbgrader generate_assignment {next(iter(sources))}; `nbgrader` lists the rest.")
    return 0


def read_record(course: Path) -> dict[str, Any]:
    """What MARK holds: {"seed", perhaps "notebooks"}. UserError if it is something else."""
    file = course / MARK
    try:
        kept = json.loads(file.read_text("utf-8"))
        seed, notebooks = kept["seed"], kept.get("notebooks", [])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{file} holds no seed. Restore it, or make a new course elsewhere.") from None
    if type(seed) is not int or seed < 0:
        raise UserError(f"{file} holds no seed. Restore it, or make a new course elsewhere.")
    if not isinstance(notebooks, list) or not all(isinstance(one, str) for one in notebooks):
        raise UserError(f"{file} holds no list of notebooks. Restore it, or make a new course elsewhere.")
    return kept


def worth_of(course: Path, root: Path = ROOT) -> dict[str, Points]:
    """Points of each graded cell by assignment and grade id, as the course's own source/ says.

    What an instructor changed there counts: points, a check that was taken out, a notebook that was deleted. Cells and
    assignments that are none of ours are left out. UserError names a file that cannot be read.
    """
    found = {}
    for lesson in read_lessons(root):
        file = _source_file(course, lesson.stem)
        if file.is_file():
            known = {cell.grade_id for cell in lesson.cells if cell.check}
            found[lesson.stem] = {name: value for name, value in points_in(file).items() if name in known}
    return found


def with_points(lesson: Lesson, worth: Points) -> Lesson:
    """The lesson with a course's points, and without the checks that the course does not have."""
    known = [cell for cell in lesson.cells if not cell.check or cell.grade_id in worth]
    return replace(lesson, cells=tuple(replace(c, points=worth[c.grade_id]) if c.check else c for c in known))


def _worth(directory: Path, lessons: Sequence[Lesson], totals: Mapping[str, float]) -> dict[str, Points]:
    """What each check is to be worth: shared out anew where a total is given, else as before, else as in the lesson."""
    wanted = {stem: total for key, total in totals.items() for stem in _stems([key], lessons)}
    worth = {}
    for lesson in lessons:
        own = {cell.grade_id: cell.points for cell in lesson.cells if cell.check}
        file = _source_file(directory, lesson.stem)
        before = points_in(file) if file.is_file() else {}
        if lesson.stem in wanted:
            worth[lesson.stem] = shared_out(wanted[lesson.stem], own, lesson.stem)
        else:
            worth[lesson.stem] = {name: before.get(name, value) for name, value in own.items()}
    return worth


def _stems(numbers: Sequence[str], lessons: Sequence[Lesson]) -> set[str]:
    """The notebooks with these numbers ("02", "2") or names ("02_mask"); UserError says which there are."""
    by_number = {lesson.stem.partition("_")[0]: lesson.stem for lesson in lessons}
    named = by_number | {stem: stem for stem in by_number.values()}
    unknown = [number for number in numbers if number.zfill(2) not in named]
    if unknown or not numbers:
        said = f"there is no notebook {', '.join(unknown)}" if unknown else "no notebook is named"
        raise UserError(f"{said}. Choose from {', '.join(by_number)}.")
    return {named[number.zfill(2)] for number in numbers}


def _source_file(course: Path, stem: str) -> Path:
    return course / "source" / stem / f"{stem}.ipynb"


def _close_all(directory: Path) -> None:
    """What holds answers, seeds or grades is for its owner alone."""
    for path in (directory / MARK, *map(directory.joinpath, CLOSED), *directory.glob("grade*")):
        if path.exists():
            _close(path)
    for path in (directory / "source").rglob("*"):
        _close(path)


def _close(path: Path) -> None:
    """To its owner alone. A link, and what another instructor made in a shared course, stay as they are."""
    if not path.is_symlink():
        with contextlib.suppress(PermissionError):
            os.chmod(path, 0o700 if path.is_dir() else 0o600)


def source_notebook(lesson: Lesson, root: Path, seed: int) -> dict:
    """The instructor's notebook: answers between BEGIN/END SOLUTION, and a hidden check with its own seed."""
    cells = []
    for cell in lesson.cells:
        text = cell.text
        if cell.solution:
            text = answer_of(lesson, cell, root).solved()
        elif cell.check:
            text = "\n".join(
                [text, "### BEGIN HIDDEN TESTS", _hidden_check(lesson, cell, seed), "### END HIDDEN TESTS"]
            )
        cells.append(notebook_cell(cell, text, nbgrader_metadata(cell)))
    return notebook(lesson, cells)


def _hidden_check(lesson: Lesson, cell: Cell, seed: int) -> str:
    """The visible call on other inputs."""
    group = f'group="{cell.group}", ' if cell.group else ""
    return f"check.{cell.check}({cell.check}, {group}seed={hidden(seed, lesson.stem, cell.grade_id)})"


def _record(directory: Path) -> dict[str, Any]:
    """What the course in `directory` keeps ({"seed", perhaps "notebooks"}), {} if there is nothing yet.

    UserError if it is something else.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file. Give a directory for the course.")
    if not directory.exists() or not any(directory.iterdir()):
        return {}
    try:
        return read_record(directory)
    except FileNotFoundError:
        raise UserError(
            f"{directory} is not empty and has no {MARK}, so it is not such a course. Give another directory."
        ) from None


def _is_database(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(16) == b"SQLite format 3\0"


def _gradebook_class():
    """nbgrader's Gradebook; imported here, so that learners need no nbgrader."""
    try:
        from nbgrader.api import Gradebook
    except ImportError:
        raise UserError("nbgrader is not installed; it keeps the gradebook. Run: pip install -e .[grade]") from None
    return Gradebook


@contextlib.contextmanager
def open_gradebook(file: Path) -> Iterator:
    """nbgrader's Gradebook in a file, open while the context is."""
    with _scripts_on_path(), _gradebook_class()(f"sqlite:///{file.resolve()}") as book:
        yield book


@contextlib.contextmanager
def _scripts_on_path() -> Iterator[None]:
    """nbgrader starts `alembic` by its bare name; it stands beside this Python, whether or not that is on PATH."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before
