"""Finds what was handed in: a course of nbgrader or its submitted/ tree, a folder of notebooks, a zip of an LMS.

Whose it is says the folder or the file name; which assignment it is says its content, so a renamed file is found too.
Names come from strangers as well: none of them decides where something is written.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from autograder.grading.grade import Graded
from autograder.grading.intake import MAX_FILE, Notebook, Refused, defines, read_notebook
from course_lib.cli import UserError

MAX_UNPACKED = 1 << 32  # bytes of all notebooks in a zip
MAX_ENTRIES = 100_000  # files in a zip
MAX_DEPTH = 10  # folders in folders
MAX_NAME = 150  # bytes of a student's name; it names a folder of feedback
NOTHING = "It holds no notebook of this course."
_MOODLE = re.compile(r"^(?P<student>.+)_(?P<id>\d+)_assignsubmission_file(_.*)?$", re.DOTALL)
_CANVAS = re.compile(r"^(?P<student>[^_]+)(_LATE)?_(?P<id>\d+)_\d+_(?P<file>.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Submission:
    """One file of one student. `assignment` is empty if nothing says which it is.

    id        the LMS's number of the student: two may have one name
    name      what the file is called where it was found
    several   how many files of this student and assignment there were; this one counts
    """

    student: str
    assignment: str
    path: Path
    problem: str = ""
    id: str = ""
    name: str = ""
    several: int = 1

    def noted(self, graded: Graded) -> Graded:
        """Its grades, with a note where other files of it were not looked at."""
        if self.several == 1:
            return graded
        note = f"{self.several} notebooks were handed in. What counts is {self.name[-60:]!r}, the last that was saved."
        return replace(graded, notes=(note, *graded.notes))


def find(where: Path, assignments: Mapping[str, Sequence[str]], unpack_to: Path) -> list[Submission]:
    """All submissions in `where`, by student and assignment; the newest of each, where there are several.

    assignments   the names of the exercises of every assignment: {"02_mask": ["chunk_attention_mask", ...]}
    unpack_to     an empty directory for the notebooks of a zip
    """
    if where.is_file():
        files = _unpacked(where, unpack_to)
    elif where.is_dir():
        where = where / "submitted" if (where / "submitted").is_dir() else where
        files = list(_notebooks(where))
    else:
        raise UserError(f"there is no {where}. Give a folder of submissions, a course, or a zip of Moodle or Canvas.")
    found = [
        replace(one, name=inside[-1])
        for inside, path in files
        if (one := _submission(inside, path, assignments)) is not None
    ]
    ids = defaultdict(set)
    for one in found:
        ids[one.student].add(one.id)
    several = defaultdict(list)
    for one in found:
        student = f"{one.student}_{one.id}" if one.id and len(ids[one.student]) > 1 else one.student
        several[student, one.assignment or one.name].append(replace(one, student=student))
    return [_newest(several[key], assignments) for key in sorted(several)]


def without_notebook(
    where: Path, found: Sequence[Submission], assignments: Mapping[str, Sequence[str]]
) -> list[Submission]:
    """Who handed in something of which `find` has found nothing, with the problem: else nobody would hear of it."""
    if (where / "submitted").is_dir():
        return list(_bare_folders(where / "submitted", found, assignments))
    return list(_bare_of_an_lms(where, found))


def _bare_folders(where: Path, found: Sequence[Submission], assignments: Collection[str]) -> Iterator[Submission]:
    """Folders STUDENT/ASSIGNMENT, and those of students, in which nothing of ours was found."""
    seen = {folder for one in found for folder in one.path.parents}
    for student in _folders(where):
        try:
            bare = [folder for folder in _folders(student) if folder.name in assignments and folder not in seen]
        except OSError:
            bare = []
        for folder in bare or [student] * (student not in seen):
            problem = NOTHING if os.access(folder, os.R_OK | os.X_OK) else "It may not be read."
            yield Submission(_readable(student.name), "", folder, problem, name=str(folder.relative_to(where)))


def _bare_of_an_lms(where: Path, found: Sequence[Submission]) -> Iterator[Submission]:
    """What Moodle or Canvas names as a student's, where nothing of ours was found of that student."""
    if where.is_file():
        with zipfile.ZipFile(where) as opened:
            names = {entry.filename.replace("\\", "/").partition("/")[0] for entry in opened.infolist()}
    else:
        names = set(os.listdir(where))
    seen = {one.id for one in found}
    for name in sorted(names):
        match = _MOODLE.match(name) or _CANVAS.match(name)
        if match and match["id"] not in seen:
            yield Submission(_readable(match["student"]), "", where, NOTHING, match["id"], name)


def _folders(where: Path) -> list[Path]:
    found = [Path(one.path) for one in os.scandir(where) if one.is_dir()]
    return sorted(one for one in found if not one.name.startswith((".", "__MACOSX")))


def _newest(found: Sequence[Submission], assignments: Mapping[str, Sequence[str]]) -> Submission:
    """The last that was saved, of those that hold an answer or a check of their assignment if there are such."""

    def rank(one: Submission) -> tuple:
        holds = False
        if len(found) > 1 and one.assignment:
            try:
                holds = _marks(read_notebook(one.path), assignments[one.assignment]) > 0
            except Refused:
                pass
        return holds, one.path.lstat().st_mtime_ns, str(one.path)

    return replace(max(found, key=rank), several=len(found))


def _notebooks(where: Path) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Files that end in .ipynb, with the parts of their path. Links to folders are not followed: they name another's
    files."""
    left = [()]
    while left:
        inside = left.pop()
        try:
            entries = sorted(os.scandir(where.joinpath(*inside)), key=lambda entry: entry.name)
        except OSError:  # it may not be read, or is gone
            continue
        for entry in entries:
            parts = (*inside, entry.name)
            if entry.name.startswith((".", "__MACOSX")):
                continue
            if entry.name.endswith(".ipynb"):
                yield parts, Path(entry.path)
            if entry.is_dir(follow_symlinks=False) and len(parts) < MAX_DEPTH:
                left.append(parts)


def _submission(inside: Sequence[str], file: Path, assignments: Mapping[str, Sequence[str]]) -> Submission | None:
    """Whose file it is, and of which assignment; None for a notebook that is none of ours."""
    student, number, name = _whose(inside)
    if len(inside) == 3 and inside[1] in assignments:  # an nbgrader tree: submitted/STUDENT/ASSIGNMENT/...
        return Submission(_readable(inside[0]), inside[1], file)
    student = _readable(student)
    try:
        notebook = read_notebook(file)
    except Refused as error:
        named = next((a for a in assignments if a in name), "")
        return Submission(student, named, file, str(error), number)
    marks = {assignment: _marks(notebook, names) for assignment, names in assignments.items()}
    best = max(assignments, key=lambda a: (marks[a], a in name))
    return Submission(student, best, file, "", number) if marks[best] or best in name else None


def _marks(notebook: Notebook, exercises: Sequence[str]) -> int:
    """How much in a notebook speaks for an assignment: answers, checks, and grade ids, which count twice."""
    ids = {cell.grade_id.partition("__")[0] for cell in notebook.cells}
    text = "\n".join(cell.source for cell in notebook.cells)
    return sum(2 * (name in ids) + defines(name, notebook) + (f"check.{name}(" in text) for name in exercises)


def _whose(inside: Sequence[str]) -> tuple[str, str, str]:
    """(student, number in the LMS, file name): from a folder of Moodle, a file name of Canvas, a folder, or what stands
    before the assignment's name."""
    name = inside[-1].removesuffix(".ipynb")
    if len(inside) > 1:
        moodle = _MOODLE.match(inside[0])
        return (moodle["student"], moodle["id"], name) if moodle else (inside[0], "", name)
    canvas = _CANVAS.match(name)
    if canvas:
        return canvas["student"], canvas["id"], canvas["file"]
    return re.split(r"[_ -]?\d\d_[a-z]", name, maxsplit=1)[0] or name, "", name


def _readable(student: str) -> str:
    """A student's name that every file system, encoding and spreadsheet takes. Different names stay different."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in student).replace("/", "_")
    if len(text.encode()) <= MAX_NAME and text == student:
        return student
    digest = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text.encode()[: MAX_NAME - 9].decode('utf-8', 'ignore')}-{digest}"


# --- zips


def _unpacked(archive: Path, target: Path) -> list[tuple[tuple[str, ...], Path]]:
    """The notebooks of a zip, regular files only, each with the parts of its path. All is looked at before one is
    written, into a file whose name is a number."""
    target.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = [(entry, _parts(archive, entry)) for entry in opened.infolist() if _is_notebook(entry)]
            sizes = sum(min(entry.file_size, MAX_FILE + 1) for entry, _ in entries)
            if sizes > MAX_UNPACKED or len(opened.infolist()) > MAX_ENTRIES:
                limits = f"{MAX_UNPACKED:,} bytes of notebooks, or {MAX_ENTRIES:,} files"
                raise UserError(f"{archive} holds more than {limits}. Nothing was graded.")
            files = []
            for number, (entry, parts) in enumerate(entries):
                if not any(part.startswith((".", "__MACOSX")) for part in parts):
                    path = target / f"{number:06}.ipynb"
                    _write(opened, entry, path)
                    files.append((parts, path))
            return files
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        kinds = "Give a folder of submissions, a course, or a zip of Moodle or Canvas."
        raise UserError(f"{archive} is no zip that can be read ({error!s:.80}). {kinds}") from None


def _is_notebook(entry: zipfile.ZipInfo) -> bool:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    return entry.filename.endswith(".ipynb") and kind in (0, stat.S_IFREG)


def _parts(archive: Path, entry: zipfile.ZipInfo) -> tuple[str, ...]:
    path = PurePosixPath(entry.filename.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or len(path.parts) > MAX_DEPTH:
        raise UserError(f"{archive} holds the path {entry.filename!r:.80}, which leads out of it. Nothing was graded.")
    return path.parts


def _write(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    """Unpack one file, and give it its own time; what is damaged, or has a password, becomes an empty file."""
    try:
        with opened.open(entry) as packed:
            content = packed.read(MAX_FILE + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, OSError):
        content = b""
    path.write_bytes(content)
    try:
        seconds = time.mktime((*entry.date_time, 0, 0, -1))
        os.utime(path, (seconds, seconds))
    except (ValueError, OverflowError):  # no date at all
        os.utime(path, (0, 0))
