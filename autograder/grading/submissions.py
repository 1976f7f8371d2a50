"""Finds what was handed in: a course of nbgrader or its submitted/ tree, a folder of notebooks, a zip of an LMS.

Whose it is says the folder or the file name; which assignment it is says its content, so a renamed file is found too.
"""

from __future__ import annotations

import re
import stat
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from autograder.grading.intake import MAX_FILE, Refused, answer_to, read_notebook
from course_lib.cli import UserError

MAX_UNPACKED = 1 << 33  # bytes of all notebooks in a zip
_MOODLE = re.compile(r"^(?P<student>.+)_\d+_assignsubmission_file(_.*)?$")
_CANVAS = re.compile(r"^(?P<student>[^_]+)(_LATE)?_\d+_\d+_(?P<file>.+)$")


@dataclass(frozen=True, slots=True)
class Submission:
    """One file of one student. `assignment` is empty if nothing says which it is."""

    student: str
    assignment: str
    path: Path
    problem: str = ""


def find(where: Path, assignments: Mapping[str, Sequence[str]], unpack_to: Path) -> list[Submission]:
    """All submissions in `where`, by student and assignment; the newest of each, where there are several.

    assignments   the names of the exercises of every assignment: {"02_mask": ["chunk_attention_mask", ...]}
    unpack_to     an empty directory for the notebooks of a zip
    """
    if where.is_file():
        if not zipfile.is_zipfile(where):
            raise UserError(f"{where} is no zip. Give a folder of submissions, a course, or a zip of Moodle or Canvas.")
        _unpack(where, unpack_to)
        where = unpack_to
    if not where.is_dir():
        raise UserError(f"there is no {where}. Give a folder of submissions, a course, or a zip of Moodle or Canvas.")
    if (where / "submitted").is_dir():
        where = where / "submitted"
    found = [s for file in _notebooks(where) for s in [_submission(where, file, assignments)] if s is not None]
    newest: dict[tuple[str, str], Submission] = {}
    for one in sorted(found, key=lambda s: (s.path.lstat().st_mtime_ns, str(s.path))):
        newest[one.student, one.assignment or one.path.name] = one
    return [newest[key] for key in sorted(newest)]


def _notebooks(where: Path) -> Iterator[Path]:
    """Files that end in .ipynb, links to none: what a link names is not the student's."""
    for path in sorted(where.rglob("*.ipynb")):
        inside = path.relative_to(where).parts
        hidden = any(part.startswith((".", "__MACOSX")) for part in inside)
        if not hidden and not any((where / Path(*inside[:n])).is_symlink() for n in range(1, len(inside))):
            yield path


def _submission(where: Path, file: Path, assignments: Mapping[str, Sequence[str]]) -> Submission | None:
    """Whose file it is, and of which assignment; None for a notebook that is none of ours."""
    inside = file.relative_to(where).parts
    student, name = _whose(inside)
    if len(inside) == 3 and inside[1] in assignments:  # an nbgrader tree: submitted/STUDENT/ASSIGNMENT/...
        return Submission(inside[0], inside[1], file)
    try:
        notebook = read_notebook(file)
    except Refused as error:
        named = next((a for a in assignments if a in name), "")
        return Submission(student, named, file, str(error))
    text = "\n".join(cell.source for cell in notebook.cells)
    marks = Counter()
    for assignment, names in assignments.items():
        for exercise in names:
            marks[assignment] += 2 * any(c.grade_id.partition("__")[0] == exercise for c in notebook.cells)
            marks[assignment] += f"check.{exercise}(" in text
            marks[assignment] += answer_to(exercise, notebook).cell is not None
    best = max(assignments, key=lambda a: (marks[a], a in name))
    return Submission(student, best, file) if marks[best] or best in name else None


def _whose(inside: Sequence[str]) -> tuple[str, str]:
    """(student, file name), from a folder of Moodle, a file name of Canvas, a folder, or what stands before _."""
    name = inside[-1].removesuffix(".ipynb")
    if len(inside) > 1:
        moodle = _MOODLE.match(inside[0])
        return (moodle["student"] if moodle else inside[0]), name
    canvas = _CANVAS.match(name)
    if canvas:
        return canvas["student"], canvas["file"]
    return re.split(r"[_ -]?\d\d_[a-z]", name, maxsplit=1)[0] or name, name


def _unpack(archive: Path, target: Path) -> None:
    """The notebooks of a zip, regular files only, each below its own folder; nothing lands outside of `target`."""
    total = 0
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            path = PurePosixPath(entry.filename.replace("\\", "/"))
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if entry.is_dir() or path.suffix != ".ipynb" or kind not in (0, stat.S_IFREG):
                continue
            if path.is_absolute() or ".." in path.parts or len(path.parts) > 10:
                raise UserError(
                    f"{archive} holds the path {entry.filename!r:.80}, which leads out of it. Nothing was graded."
                )
            total += min(entry.file_size, MAX_FILE + 1)
            if total > MAX_UNPACKED:
                raise UserError(f"{archive} holds more than {MAX_UNPACKED:,} bytes of notebooks. Nothing was graded.")
            file = target.joinpath(*path.parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(entry) as packed:
                file.write_bytes(packed.read(MAX_FILE + 1))
