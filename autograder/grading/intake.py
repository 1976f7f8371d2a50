"""From a submitted file to answers: reads what strangers hand in, runs none of it, and says what was taken from where.

The answer to NAME: of all cells that define it (def, class, NAME = ...) the untouched stubs are left out; of the others
the last one above its check is taken, or else the last. With it goes what it needs of the notebook's other cells:
imports, definitions and assignments that bind the names it uses.
"""

from __future__ import annotations

import functools
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.grading.statements import Cell, Statement, statements
from autograder.plain import whole

MAX_FILE = 1 << 27  # bytes; an honest notebook with pictures in it has some tens of millions
MAX_CODE = 1 << 20  # characters of all code
MAX_CELLS = 5_000
MAX_BRACKETS, MAX_COMMAS = 4_000_000, 30_000_000  # in a file: its lists and objects then take at most some 1 GB
_MARK = re.compile(r"^(?:<{7} |={7}\r?$|>{7} )[^\n]*\n?", re.MULTILINE)


class Refused(Exception):
    """The file is no notebook that can be graded; the text says why, for its author."""


@dataclass(frozen=True)
class Notebook:
    """The code cells of a submission, and what had to be mended to read it."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def code(self) -> Code:
        """Its statements, parsed once for all exercises."""
        return Code(self.cells)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is run for an exercise. `cell` is None if nothing, or only stubs, define it.

    places   of each line of `source`: the number of its cell, and its line there
    """

    source: str = ""
    cell: int | None = None
    notes: tuple[str, ...] = field(default=())
    places: tuple[tuple[int, int], ...] = ()


def read_notebook(file: Path | bytes) -> Notebook:
    """The notebook in a file, or in its content, which may be anything. Refused says what is wrong with it."""
    raw = file if isinstance(file, bytes) else content_of(file)
    text, notes = _decoded(raw)
    if text.count("[") + text.count("{") > MAX_BRACKETS or text.count(",") > MAX_COMMAS:
        raise Refused("The file holds more lists and numbers than a notebook has. Clear the outputs.")
    try:
        found = _json(text)
    except Refused:
        whole, count = _second_versions(text)
        if not count:
            raise
        found = _json(whole)
        notes.append(f"The file has {count} unresolved merge conflicts; the second version of each was taken.")
    if not isinstance(found, dict):
        raise Refused("The file holds no notebook.")
    cells = tuple(_cells(found))
    if sum(len(cell.source) for cell in cells) > MAX_CODE:
        raise Refused(f"The notebook holds more than {MAX_CODE:,} characters of code.")
    return Notebook(cells, tuple(notes))


def content_of(path: Path) -> bytes:
    """The bytes of a regular file that is not too large. Refused if it is anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"The file cannot be read ({error.strerror}).") from None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise Refused("This is no regular file.")
    with os.fdopen(handle, "rb") as file:
        if about.st_size > MAX_FILE:
            raise Refused(f"The file has {about.st_size:,} bytes; {MAX_FILE:,} are the most. Clear the outputs.")
        return file.read(MAX_FILE + 1)


def _decoded(raw: bytes) -> tuple[str, list[str]]:
    marks = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    encoding = next((name for mark, name in marks.items() if raw.startswith(mark)), "utf-8")
    try:
        return raw.decode(encoding), [] if encoding == "utf-8" else [f"The file is written in {encoding}."]
    except UnicodeDecodeError:
        raise Refused("The file is not written in UTF-8, as notebooks are. Save it again in JupyterLab.") from None


def _json(text: str) -> Any:
    if not text.strip():
        raise Refused("The file is empty.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise Refused(f"The file is no JSON{where}, as a notebook is. Save it again in JupyterLab.") from None


def _second_versions(text: str) -> tuple[str, int]:
    """The text with the second version of each of git's conflicts, and how many there are; 0 if one does not end."""
    kept, at, side, count = [], 0, "", 0
    for mark in _MARK.finditer(text):
        kind = mark[0][0]
        if kind == "<" and not side:
            kept.append(text[at : mark.start()])
        elif kind == "=" and side == "<":
            at = mark.end()
        elif kind == ">" and side == "=":
            kept.append(text[at : mark.start()])
            at, count, kind = mark.end(), count + 1, ""
        else:
            continue
        side = kind
    return "".join(kept) + text[at:], 0 if side else count


def _cells(found: dict) -> Iterator[Cell]:
    """Code cells of a notebook in format 4, or in format 3, where they stand in worksheets."""
    listed = found.get("cells")
    if listed is None and isinstance(found.get("worksheets"), list):
        inside = [sheet.get("cells") for sheet in found["worksheets"] if isinstance(sheet, dict)]
        listed = [cell for cells in inside if isinstance(cells, list) for cell in cells]
    if not isinstance(listed, list):
        raise Refused("The file holds no cells.")
    if len(listed) > MAX_CELLS:
        raise Refused(f"The notebook has {len(listed):,} cells; {MAX_CELLS:,} are the most.")
    for number, cell in enumerate(listed, start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if isinstance(source, str):
            yield Cell(number, whole(source).replace("\r\n", "\n").replace("\r", "\n"), _grade_id(cell))


def _grade_id(cell: dict) -> str:
    metadata = cell.get("metadata")
    about = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    found = about.get("grade_id") if isinstance(about, dict) else None
    return found if isinstance(found, str) else ""


# --- which cell is the answer


class Code:
    """The statements of a notebook, found by the names that they bind or change."""

    def __init__(self, cells: tuple[Cell, ...]):
        self.statements, self.broken = statements(cells)
        self.by_name: dict[str, list[Statement]] = {}
        self.by_cell: dict[int, list[Statement]] = {}
        for one in self.statements:
            self.by_cell.setdefault(one.cell, []).append(one)
            for name in one.binds | one.changes:
                self.by_name.setdefault(name, []).append(one)

    def written(self, name: str) -> list[Statement]:
        """The statements that define an exercise's answer, stubs left out."""
        return [one for one in self.by_name.get(name, ()) if name in one.binds and not one.stub and not one.checks]


def defines(name: str, notebook: Notebook) -> bool:
    """Whether something in the notebook, other than a stub, defines an answer of that name."""
    return bool(notebook.code.written(name)) or _broken(name, notebook) is not None


def answer_to(name: str, notebook: Notebook) -> Answer:
    """The answer to an exercise, with all that it needs of other cells."""
    written = notebook.code.written(name)
    if not written:
        cell = _broken(name, notebook)  # the learner needs to see which line is no Python
        if cell is None:
            return Answer()
        lines = range(1, cell.source.count("\n") + 2)
        return Answer(cell.source, cell.number, places=tuple((cell.number, line) for line in lines))
    check = min((cell.number for cell in notebook.cells if _checks(name, cell)), default=0)
    above = [one for one in written if one.cell < check]
    candidates = above or written
    chosen = candidates[-1]
    notes = []
    if check and not above:
        notes.append(f"{name} stands below its check; it was taken from cell {chosen.cell}.")
    elif len(written) > 1:
        notes.append(f"{name} is defined {len(written)} times; the one in cell {chosen.cell} was taken.")
    if broken := _broken(name, notebook):
        where = f"{name} is also in cell {broken.number}, which is no Python"
        notes.append(f"{where}; the one in cell {chosen.cell} was taken.")
    needed = _with_needs(name, candidates, check, notebook.code)
    places = [(one.cell, one.line + i) for one in needed for i in range(one.source.count("\n") + 1)]
    source = "\n".join(one.source for one in needed) + "\n"
    return Answer(source, chosen.cell, tuple(notes), tuple(places))


def definitions(cell: Cell, notebook: Notebook) -> dict[str, str]:
    """What a cell binds at its top level: "written", "stub", or "broken" for each name, if the cell is no Python."""
    if broken := next((one for one in notebook.code.broken if one.number == cell.number), None):
        found = re.findall(r"^(?:async )?(?:def|class) (\w+)|^(\w+) *=", broken.source, re.MULTILINE)
        return {defined or assigned: "broken" for defined, assigned in found}
    statements = notebook.code.by_cell.get(cell.number, ())
    return {name: "stub" if one.stub else "written" for one in statements for name in one.binds | one.changes}


def _broken(name: str, notebook: Notebook) -> Cell | None:
    begins = re.compile(rf"^(?:(?:async )?(?:def|class) {name}\b|{name}\s*=)", re.MULTILINE)
    return next((cell for cell in reversed(notebook.code.broken) if begins.search(cell.source)), None)


def _checks(name: str, cell: Cell) -> bool:
    return cell.grade_id.startswith(f"{name}__") or re.search(rf"\bcheck\.{name}\(\s*{name}\b", cell.source) is not None


def _with_needs(name: str, candidates: list[Statement], check: int, code: Code) -> list[Statement]:
    """The last of the candidates, and the statements that bind what it uses, in the order of the notebook."""
    chosen: dict[int, Statement] = {}
    left: list[str] = []

    def take(one: Statement) -> set[str]:
        chosen[one.place] = one
        uses = one.uses()
        left.extend(uses)
        return uses

    for one in reversed(candidates):
        if name not in take(one) or one.defines:  # else it is made of the one before: f = functools.cache(f)
            break
    last = candidates[-1]
    for one in code.by_name.get(name, ()):  # f.calls = 0
        if name not in one.binds and one.place > last.place and (one.cell == last.cell or one.cell < check):
            take(one)
    for one in code.by_name.get("*", ()):  # a star binds what cannot be known
        take(one)
    known = {name}
    while left:
        needed = left.pop()
        if needed in known:
            continue
        known.add(needed)
        bound = False
        for one in code.by_name.get(needed, ()):
            bound = bound or needed in one.binds  # a part of what is bound later can not be changed yet
            if bound and one.place not in chosen and not one.checks and not one.stub:
                take(one)
    return [chosen[place] for place in sorted(chosen)]
