"""From a submitted file to answers: reads what strangers hand in, runs none of it, and says what was taken from where.

The answer to NAME: of all cells that define it (def, class, NAME = ...) the untouched stubs are left out; of the others
the last one above its check is taken, or else the last. With it goes what it needs of the notebook's other cells:
imports, definitions and assignments that bind the names it uses.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import stat
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.include import free_names

MAX_FILE = 1 << 27  # bytes; an honest notebook with pictures in it has some tens of millions
MAX_CODE = 1 << 20  # characters of all code
MAX_CELLS = 5_000
_CONFLICT = re.compile(r"^<<<<<<< .*?^=======\n(.*?)^>>>>>>> [^\n]*\n", re.MULTILINE | re.DOTALL)


class Refused(Exception):
    """The file is no notebook that can be graded; the text says why, for its author."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell. `number` counts all cells of the notebook from 1, as a reader does."""

    number: int
    source: str
    grade_id: str = ""


@dataclass(frozen=True, slots=True)
class Notebook:
    """The code cells of a submission, and what had to be mended to read it."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


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
    try:
        found = _json(text)
    except Refused:
        whole, count = _CONFLICT.subn(r"\1", text)
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


def _cells(found: dict) -> Iterator[Cell]:
    """Code cells of a notebook in format 4, or in format 3, where they stand in worksheets."""
    listed = found.get("cells")
    if listed is None and isinstance(found.get("worksheets"), list):
        sheets = [sheet for sheet in found["worksheets"] if isinstance(sheet, dict)]
        listed = [cell for sheet in sheets for cell in sheet.get("cells") or []]
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
            yield Cell(number, source.replace("\r\n", "\n").replace("\r", "\n"), _grade_id(cell))


def _grade_id(cell: dict) -> str:
    metadata = cell.get("metadata")
    about = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    found = about.get("grade_id") if isinstance(about, dict) else None
    return found if isinstance(found, str) else ""


# --- which cell is the answer


@dataclass(frozen=True, slots=True)
class _Part:
    """A statement at the top level of a cell. `text` is the cell's, without IPython's own lines if it has some."""

    cell: Cell
    node: ast.stmt
    text: str


def answer_to(name: str, notebook: Notebook) -> Answer:
    """The answer to an exercise, with all that it needs of other cells."""
    parts: list[_Part] = []
    broken: list[tuple[Cell, str]] = []
    for cell in notebook.cells:
        text, tree = _python(cell.source)
        parts += [_Part(cell, node, text) for node in tree.body] if tree else []
        if tree is None and re.search(rf"^(async )?(def|class) {name}\b", text, re.MULTILINE):
            broken.append((cell, text))
    written = [part for part in parts if name in _bound(part.node) and not _is_stub(part.node)]
    if not written:
        if broken:  # the learner needs to see which line is no Python
            cell, text = broken[-1]
            places = tuple((cell.number, line) for line in range(1, text.count("\n") + 2))
            return Answer(text, cell.number, places=places)
        return Answer()
    check = min((cell.number for cell in notebook.cells if _checks(name, cell)), default=0)
    above = [part for part in written if part.cell.number < check]
    chosen = (above or written)[-1]
    notes = []
    if check and not above:
        notes.append(f"{name} stands below its check; it was taken from cell {chosen.cell.number}.")
    elif len(written) > 1:
        notes.append(f"{name} is defined {len(written)} times; the one in cell {chosen.cell.number} was taken.")
    if broken:
        others = ", ".join(str(cell.number) for cell, _ in broken)
        notes.append(f"{name} is also in cell {others}, which is no Python; the one in {chosen.cell.number} was taken.")
    needed = _with_needs(name, chosen, parts)
    texts = [_source(part) for part in needed]
    places = [(p.cell.number, _first_line(p.node) + i) for p, t in zip(needed, texts) for i in range(t.count("\n") + 1)]
    return Answer("\n".join(texts) + "\n", chosen.cell.number, tuple(notes), tuple(places))


def definitions(cell: Cell) -> dict[str, str]:
    """What a cell binds at its top level: "written", "stub", or "broken" for each name, if the cell is no Python."""
    text, tree = _python(cell.source)
    if tree is None:
        found = re.findall(r"^(?:async )?(?:def|class) (\w+)|^(\w+) *=", text, re.MULTILINE)
        return {defined or assigned: "broken" for defined, assigned in found}
    return {name: "stub" if _is_stub(node) else "written" for node in tree.body for name in _bound(node)}


def _checks(name: str, cell: Cell) -> bool:
    return cell.grade_id.startswith(f"{name}__") or re.search(rf"\bcheck\.{name}\(", cell.source) is not None


def _python(source: str) -> tuple[str, ast.Module | None]:
    """A cell's text and its tree, IPython's own lines made Python as IPython does it. None: it is no Python."""
    text = re.sub(r"\A(\s*)%%(time|timeit|capture|prun)\b.*", r"\1", source)
    for transform in (str, _transformed):
        try:
            text = transform(text)
            return text, ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return source, None


def _transformed(source: str) -> str:
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell(source)


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement at the top level of a cell binds, or changes something in."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {_root(name) for target in targets for name in _targets(target)} - {""}
    if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
        return {
            name for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt) for name in _bound(inner)
        } | {name for handler in getattr(node, "handlers", []) for inner in handler.body for name in _bound(inner)}
    return set()


def _targets(target: ast.expr) -> list[ast.expr]:
    return (
        [t for part in target.elts for t in _targets(part)] if isinstance(target, (ast.Tuple, ast.List)) else [target]
    )


def _root(target: ast.expr) -> str:
    """The name at the beginning of a.b[0].c."""
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred)):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def _is_stub(node: ast.stmt) -> bool:
    """Whether a function, or every method of a class, only raises NotImplementedError."""
    if isinstance(node, ast.ClassDef):
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
        return bool(methods) and all(map(_is_stub, methods))
    if not isinstance(node, ast.FunctionDef):
        return False
    last = node.body[-1]
    only = [
        part for part in node.body[:-1] if not isinstance(part, ast.Expr) or not isinstance(part.value, ast.Constant)
    ]
    raised = last.exc if isinstance(last, ast.Raise) else None
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return not only and isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _with_needs(name: str, answer: _Part, parts: list[_Part]) -> list[_Part]:
    """The answer's statement, and those that bind what it uses, in the order of the notebook."""
    chosen = [answer, *(part for part in parts if "*" in _bound(part.node))]  # a star binds what cannot be known
    wanted, known = _used(answer.node), {name}
    while wanted - known:
        needed = (wanted - known).pop()
        known.add(needed)
        for part in parts:
            if needed in _bound(part.node) and part not in chosen and _may_run(part.node) and not _is_stub(part.node):
                chosen.append(part)
                wanted |= _used(part.node)
    return sorted(chosen, key=parts.index)


def _source(part: _Part) -> str:
    lines = part.text.split("\n")[_first_line(part.node) - 1 : part.node.end_lineno]
    if part.node.col_offset:  # behind a semicolon
        return ast.unparse(part.node)
    return "\n".join(lines) if len(lines) > 1 else lines[0][: part.node.end_col_offset or None]


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(line.lineno for line in getattr(node, "decorator_list", []))])


def _used(node: ast.stmt) -> set[str]:
    """The names that a statement takes from outside of it."""
    try:
        table = symtable.symtable(ast.unparse(node), "<statement>", "exec")
    except SyntaxError:  # such as a global line below the name's first use: the worker says so
        return set()
    return free_names(table) - set(dir(builtins))


def _may_run(statement: ast.stmt) -> bool:
    """A statement that checks something is left out: test cells of a submission are never run."""
    return not any(
        isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "check"
        for n in ast.walk(statement)
    )
