"""solutions/*.py -> notebooks/*.ipynb and the index of exercises: the same bytes on every run and every machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

from autograder.include import answer_of
from autograder.questions import ASSET, questions_of
from autograder.source import REGION, Cell, Lesson, problem, read_lessons

ROOT = Path(__file__).resolve().parents[1]
INDEX = "course_lib/assets/exercises.json"
ORIGIN = "chunked_prefill_course"  # notebook metadata by which a generated file is known


def build(root: Path = ROOT, *, check: bool = False) -> int:
    """Write notebooks/ and the exercise index, or with `check` only compare. Returns the exit code.

    A file with the right content is left alone; a generated notebook without a source is removed.
    """
    wanted = generated_files(root)
    changed = [name for name, text in wanted.items() if not _same(root / name, text)]
    stale = [name for name in _generated_notebooks(root) if name not in wanted]
    for name in changed:
        print(f"{name} {'differs from its source' if check else 'written'}")
    for name in stale:
        print(f"{name} {'has no source in solutions/' if check else 'removed: its source is gone'}")
    if check and (changed or stale):
        print("Run python -m autograder build, and commit what it writes.")
        return 1
    for name in () if check else changed:
        write_atomically(root / name, wanted[name])
    for name in () if check else stale:
        (root / name).unlink()
    if not changed and not stale:
        print(f"{len(wanted) - 2} notebooks, {INDEX} and {ASSET} are up to date")
    return 0


def generated_files(root: Path) -> dict[str, str]:
    """Path below `root` -> text of every file that the build makes. UserError names the first bad source."""
    lessons = read_lessons(root)
    files = {f"notebooks/{lesson.stem}.ipynb": dump(learner_notebook(lesson, root)) for lesson in lessons}
    index = [entry for lesson in lessons for entry in _index_entries(lesson)]
    return files | {INDEX: dump(index), ASSET: dump(questions_of(lessons, root))}


def learner_notebook(lesson: Lesson, root: Path) -> dict:
    """The notebook with stubs, as nbgrader would release it: locked checks, checksums, nothing hidden."""
    cells = []
    for cell in lesson.cells:
        text = answer_of(lesson, cell, root).stub() if cell.solution else cell.text
        if REGION.search(text):
            problem(lesson.file, cell.id, "a solution or hidden-tests region is left for the learner", "Mark one hole.")
        metadata = nbgrader_metadata(cell)
        if cell.grade_id:
            metadata["nbgrader"] |= {"cell_type": cell.kind, "checksum": checksum(cell, text)}
            metadata |= {"deletable": False} | ({"editable": False} if cell.check else {})
        cells.append(notebook_cell(cell, text, metadata))
    return notebook(lesson, cells)


def nbgrader_metadata(cell: Cell) -> dict:
    """A cell's metadata as nbgrader's "Create Assignment" writes it; empty for a cell that is neither."""
    if not cell.grade_id:
        return {}
    graded = bool(cell.check)
    fields = {"grade": graded, "grade_id": cell.grade_id, "locked": graded, "schema_version": 3}
    fields |= {"solution": not graded, "task": False} | ({"points": cell.points} if graded else {})
    return {"nbgrader": fields}


def checksum(cell: Cell, text: str) -> str:
    """nbgrader's checksum of a cell: by it `nbgrader validate` sees that a check was edited."""
    flags = [str(bool(cell.check)), str(bool(cell.solution)), str(bool(cell.check))]  # grade, solution, locked
    points = [str(float(cell.points))] if cell.check else []
    content = "".join([text, cell.kind, *flags, cell.grade_id, *points])
    return hashlib.md5(content.encode(), usedforsecurity=False).hexdigest()


def notebook_cell(cell: Cell, text: str, metadata: dict) -> dict:
    made = {"cell_type": cell.kind, "id": cell.id, "metadata": metadata, "source": text.splitlines(keepends=True)}
    return made | ({"execution_count": None, "outputs": []} if cell.kind == "code" else {})


def notebook(lesson: Lesson, cells: list[dict]) -> dict:
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}, ORIGIN: {"source": lesson.file}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def dump(content: object) -> str:
    """JSON as Jupyter itself lays it out, so that saving an untouched notebook changes no line."""
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write_atomically(file: Path, text: str, mode: int = 0o644) -> bool:
    """Put `text` (UTF-8, \\n) into `file` all at once; False, and nothing touched, if it is there already.

    mode   of a new file, from its first moment on; one that is there keeps its own
    """
    if _content(file) == text.encode():
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as temporary:
            temporary.write(text.encode())
        os.chmod(name, file.stat().st_mode & 0o777 if file.exists() else mode)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
    return True


def _index_entries(lesson: Lesson) -> list[dict]:
    entries = []
    for cell in lesson.cells:
        if cell.solution:
            checks = lesson.checks(cell.solution)
            entry = {
                "name": cell.solution,
                "number": cell.exercise,
                "title": cell.title or _heading(lesson, cell),
                "notebook": lesson.stem,
                "grade_ids": [check.grade_id for check in checks],
                "points": sum(check.points for check in checks),
            }
            optional = {"minutes": cell.minutes, "difficulty": cell.difficulty}
            entries.append(entry | {key: value for key, value in optional.items() if value is not None})
    return entries


def _heading(lesson: Lesson, cell: Cell) -> str:
    """What the text calls the exercise ("### Exercise 2.1: which keys?"), or else the function's name."""
    pattern = re.compile(rf"^#+ +Exercise {re.escape(cell.exercise)}: *(.*\S)", re.MULTILINE)
    found = (pattern.search(c.text) for c in lesson.cells if c.kind == "markdown")
    return next((match[1] for match in found if match), cell.solution)


def _same(file: Path, text: str) -> bool:
    """Is `text` in the file, whatever line ends git gave it here? (JSON writes a real \\r as two letters.)"""
    content = _content(file)
    return content is not None and content.replace(b"\r\n", b"\n") == text.encode()


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _generated_notebooks(root: Path) -> list[str]:
    """Notebooks in notebooks/ that this builder made, as their metadata says. Only these may be removed."""
    names = []
    for file in sorted((root / "notebooks").glob("*.ipynb")):
        try:
            metadata = json.loads(file.read_text("utf-8"))["metadata"]
        except (ValueError, KeyError, TypeError, OSError):
            continue
        if isinstance(metadata, dict) and ORIGIN in metadata:
            names.append(f"notebooks/{file.name}")
    return names
