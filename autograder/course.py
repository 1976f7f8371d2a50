"""An nbgrader course: source notebooks with answers and hidden checks, the settings, and a gradebook to look at."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from autograder.build import ROOT, dump, nbgrader_metadata, notebook, notebook_cell, write_atomically
from autograder.include import answer_of
from autograder.seeds import hidden
from autograder.source import Cell, Lesson, read_lessons
from course_lib.cli import UserError

MARK = "course_seed.json"  # makes a directory one of ours; keeps the seed from which all hidden seeds are made


def make_course(directory: Path, seed: int | None = None, root: Path = ROOT) -> int:
    """Make an nbgrader course in `directory`, or bring its source/ up to date. Returns the exit code.

    seed   chooses the hidden inputs; None draws one (an existing course keeps its own)

    A directory that is not empty and not such a course is refused, and nothing in it is touched. In an existing
    course the seed, nbgrader_config.py, the gradebook and everything outside source/ stay as they are.
    """
    kept = _kept_seed(directory)
    if kept is not None and seed not in (None, kept):
        raise UserError(f"{directory} has another seed already; grades would not be comparable. Make a new course.")
    _gradebook_class()
    lessons = read_lessons(root)
    seed = next(s for s in (kept, seed, secrets.randbits(128)) if s is not None)
    notebooks = {lesson.stem: dump(source_notebook(lesson, root, seed)) for lesson in lessons}

    directory.mkdir(parents=True, exist_ok=True)
    for folder in ("source", "autograded"):  # closed before anything is in them
        (directory / folder).mkdir(mode=0o700, exist_ok=True)
    book_file = directory / "gradebook.db"
    book_file.touch(mode=0o600)
    write_atomically(directory / MARK, dump({"made_by": "python -m autograder course", "seed": seed}))
    _close(directory / MARK)
    if not (directory / "nbgrader_config.py").exists():
        write_atomically(
            directory / "nbgrader_config.py", Path(__file__).with_name("nbgrader_config.py").read_text("utf-8")
        )
    for stem, text in notebooks.items():
        file = directory / "source" / stem / f"{stem}.ipynb"
        print(f"{file}: {'written' if write_atomically(file, text) else 'up to date'}")
    for folder in sorted((directory / "source").iterdir()):
        if folder.is_dir() and folder.name not in notebooks:
            print(f"{folder}: not a notebook of this course (left alone)")
    for path in (book_file, directory / "autograded", directory / "source", *(directory / "source").rglob("*")):
        _close(path)
    with open_gradebook(book_file) as book:
        for stem in notebooks:
            book.update_or_create_assignment(stem)
    print(f"Next: cd {directory} and nbgrader generate_assignment {next(iter(notebooks))}; `nbgrader` lists the rest.")
    return 0


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


def _kept_seed(directory: Path) -> int | None:
    """The seed of the course in `directory`, None if there is nothing yet; UserError if it is something else."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file. Give a directory for the course.")
    if not directory.exists() or not any(directory.iterdir()):
        return None
    try:
        seed = json.loads((directory / MARK).read_text("utf-8"))["seed"]
    except FileNotFoundError:
        raise UserError(
            f"{directory} is not empty and has no {MARK}, so it is not such a course. Give another directory."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{directory / MARK} holds no seed. Restore it, or make a new course elsewhere.") from None
    if not isinstance(seed, int):
        raise UserError(f"{directory / MARK} holds no seed. Restore it, or make a new course elsewhere.")
    return seed


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
