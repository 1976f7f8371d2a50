"""What a learner's cells say, statement by statement: which names each binds and uses. Nothing of it is run.

The text may be anything, and this runs in the grader's own process: whatever takes a parser long, or deep into the
stack, has a limit, and no function here calls itself.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
import symtable
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

from autograder.include import free_names

# Characters of a cell that is parsed. Python 3.10.13 crashes on a chain x.a.a.a... of a million, not of 100,000
# (tried 2026-12); a longer cell is left to the sandbox.
MAX_CELL = 50_000
# IPython reads a cell once for each line of its own: lines times characters, over all cells (500,000 take some 6 s)
MAX_MAGIC = 500_000
MAX_KEPT, MAX_KEPT_LINES, KEPT = 8_000, 200, 1_000  # of texts about which a process remembers what it found
_OWN_LINE = re.compile(r"^\s*[%!?]|=\s*[%!]|\?\s*$", re.MULTILINE)
_SEMICOLON = re.compile(rb"[ \t\f]*;")
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell. `number` counts all cells of the notebook from 1, as a reader does."""

    number: int
    source: str
    grade_id: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement at the top level of a cell.

    place     its number in the notebook
    cell      the number of its cell, and line, where in the cell it begins
    source    its text, with decorators
    binds     names that it binds
    changes   names of which it changes a part: TABLE in TABLE[1] = 2
    defines   whether it is a def or a class
    stub      whether it is a function that only raises NotImplementedError, or a class of such methods
    checks    whether it calls something of `check`: test cells of a submission are never run
    """

    place: int
    cell: int
    line: int
    source: str
    binds: frozenset[str]
    changes: frozenset[str]
    defines: bool
    stub: bool
    checks: bool

    def uses(self) -> frozenset[str]:
        """The names that it takes from outside of it."""
        return (_used if _is_small(self.source) else _used.__wrapped__)(self.source)


def statements(cells: Iterable[Cell]) -> tuple[list[Statement], list[Cell]]:
    """All statements in the order of the notebook, and the cells that are no Python or too long to be parsed."""
    found: list[Statement] = []
    broken, left = [], MAX_MAGIC
    for cell in cells:
        text = re.sub(r"\A(\s*)%%(time|timeit|capture|prun)\b.*", r"\1", cell.source)
        parsed = _parsed(text) if len(text) <= MAX_CELL else None
        if parsed is None and len(text) <= MAX_CELL and (own_lines := len(_OWN_LINE.findall(text))):
            left -= own_lines * len(text)
            text = _transformed(text) if left > 0 else text
            parsed = _parsed(text)
        if parsed is None:
            broken.append(Cell(cell.number, text, cell.grade_id))
            continue
        found += [Statement(len(found) + i, cell.number, *rest) for i, rest in enumerate(parsed)]
    return found, broken


def _is_small(text: str) -> bool:
    """Whether what is found out about a text is kept: a class shares most cells. 1,000 such texts take some 100 MB."""
    return len(text) <= MAX_KEPT and text.count("\n") + text.count(";") <= MAX_KEPT_LINES


def _parsed(text: str) -> tuple[tuple, ...] | None:
    """Of each statement what Statement holds behind place and cell; None for what is no Python."""
    return (_parsed_small if _is_small(text) else _parsed_small.__wrapped__)(text)


@functools.lru_cache(maxsize=KEPT)
def _parsed_small(text: str) -> tuple[tuple, ...] | None:
    tree, lines = _tree(text), _Lines(text)
    return None if tree is None else tuple(_statement(node, lines) for node in tree.body)


@functools.lru_cache(maxsize=KEPT)
def _used(source: str) -> frozenset[str]:
    try:
        names = free_names(symtable.symtable(source, "<statement>", "exec"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # too deep, or only the compiler refuses it
        names = set(_WORD.findall(source))
    return frozenset(names - set(dir(builtins)))


def _tree(text: str) -> ast.Module | None:
    """None for what is no Python, or too deep for the parser."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the learner's text, such as '\d'
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _transformed(source: str) -> str:
    """The cell with IPython's own lines made Python, as IPython does it."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return TransformerManager().transform_cell(source)
    except (SyntaxError, ValueError, RuntimeError):  # RuntimeError: more than 500 such lines
        return source


def _statement(node: ast.stmt, lines: _Lines) -> tuple:
    binds, changes = _bound(node)
    defines = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    line, source = _first_line(node), lines.of(node)
    checks = "check" in source and _checks(node)
    return line, source, frozenset(binds), frozenset(changes), defines, _is_stub(node), checks


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(line.lineno for line in getattr(node, "decorator_list", []))])


class _Lines:
    """A cell's text, from which statements are cut: a parser counts columns in bytes."""

    def __init__(self, text: str):
        self.text = text.encode()
        self.starts = [0, *(newline.end() for newline in re.finditer(b"\n", self.text))]

    def of(self, node: ast.stmt) -> str:
        """The statement's lines with their comments, without what stands beside it before or behind a semicolon."""
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        if not _SEMICOLON.match(self.text, end):
            end = self.text.find(b"\n", end)
        end = len(self.text) if end < 0 else end
        return self.text[self.starts[_first_line(node) - 1] + node.col_offset : end].decode()


_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _bound(node: ast.stmt) -> tuple[set[str], set[str]]:
    """Names that a statement binds, in its branches too, and names of which it changes a part."""
    binds, changes, left = set(), set(), [node]
    while left:
        part = left.pop()
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            binds.add(part.name)
            continue
        if isinstance(part, (ast.Import, ast.ImportFrom)):
            binds |= {(alias.asname or alias.name).partition(".")[0] for alias in part.names}
            continue
        if isinstance(part, _SCOPES) or (isinstance(part, ast.AnnAssign) and part.value is None):
            continue
        if isinstance(getattr(part, "ctx", None), ast.Store):
            (binds if isinstance(part, ast.Name) else changes).add(_root(part))
        elif isinstance(part, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and part.name:
            binds.add(part.name)
        left += ast.iter_child_nodes(part)
    return binds, changes - {""}


def _root(target: ast.expr) -> str:
    """The name at the beginning of a.b[0].c."""
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred)):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def _is_stub(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
        return bool(methods) and all(map(_only_raises, methods))
    return isinstance(node, ast.FunctionDef) and _only_raises(node)


def _only_raises(node: ast.FunctionDef) -> bool:
    last = node.body[-1]
    only = [
        part for part in node.body[:-1] if not isinstance(part, ast.Expr) or not isinstance(part.value, ast.Constant)
    ]
    raised = last.exc if isinstance(last, ast.Raise) else None
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return not only and isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _checks(node: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "check" for n in ast.walk(node)
    )
