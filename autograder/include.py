"""The hole of an exercise: pasted from the library, or typed between two markers; cut out for the learner.

A class has a hole for each method.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from dataclasses import dataclass, replace
from pathlib import Path

from autograder.source import Cell, Lesson, code_of, imported_names, problem

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
INCLUDE = re.compile(r"# include (?P<module>course_lib(\.\w+)+):(?P<name>\w+)")
_ANSWERS = (ast.FunctionDef, ast.ClassDef)
SUPPLIED = {"np", "torch"}  # what an included function may use without an import line in its own cell


@dataclass(frozen=True, slots=True)
class Hole:
    """What the learner writes, at the end of a function or method, and what is given above it."""

    given: str  # import lines, signature, docstring, and what else is given
    text: str
    indent: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a solution cell: one hole for a function, one for each method of a class."""

    holes: tuple[Hole, ...]
    after: str  # what follows the last hole; mostly nothing
    reminder: str  # the statement that stands in for a missing answer, without its indent

    @property
    def before(self) -> str:
        """What is given above the first hole."""
        return self.holes[0].given

    @property
    def hole(self) -> str:
        """All from the first hole to the end of the last, what is given between them included."""
        first, *others = self.holes
        return "\n".join([first.text, *(text for hole in others for text in (hole.given, hole.text))])

    def stub(self) -> str:
        """What the learner gets."""
        parts = [text for hole in self.holes for text in (hole.given, hole.indent + self.reminder)]
        return "\n".join(filter(None, (*parts, self.after)))

    def solved(self) -> str:
        """What nbgrader's instructor gets.

        The reminder stands below the region, where a finished answer never comes: nbgrader cuts the region out,
        has one stub text for all exercises, and would otherwise lose the exercise's name.
        """
        parts = []
        for hole in self.holes:
            text = hole.text if _always_leaves(hole) else f"{hole.text}\n{hole.indent}return"
            parts += [hole.given, hole.indent + BEGIN, text, hole.indent + END, hole.indent + self.reminder]
        return "\n".join(filter(None, (*parts, self.after)))


def answer_of(lesson: Lesson, cell: Cell, root: Path) -> Answer:
    """The parts of a solution cell; UserError when the untouched stub would not raise."""
    included = [line for line in cell.text.split("\n") if re.match(r"\s*#\s*include\b", line)]
    if included:
        answer = _included(lesson, cell, root, included)
        _check_names(lesson, cell, answer)
    else:
        answer = _typed(lesson, cell)
    _check_stub(lesson, cell, answer)
    return answer


def _included(lesson: Lesson, cell: Cell, root: Path, lines: list[str]) -> Answer:
    want = "# include course_lib.module:function"
    match = INCLUDE.fullmatch(lines[0].rstrip())
    if len(lines) > 1 or not match:
        problem(lesson.file, cell.id, f"{lines[-1].strip()!r} is not one line of the form {want!r}", "Write it so.")
    if match["name"] != cell.solution:
        problem(lesson.file, cell.id, f"it includes {match['name']} as the exercise {cell.solution}", "Use one name.")
    imports, rest = cell.text.split(lines[0])
    others = [
        node
        for node in code_of(lesson.file, cell.id, imports).body
        if not isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    if others or rest.strip():
        problem(
            lesson.file,
            cell.id,
            "something other than import lines stands beside # include",
            "Move it to another cell.",
        )
    first, *others = _library_holes(lesson, cell, root, match["module"])
    before = "\n\n\n".join(filter(None, (imports.strip(), first.given)))
    return Answer((replace(first, given=before), *others), "", _reminder(cell))


def _library_holes(lesson: Lesson, cell: Cell, root: Path, module: str) -> list[Hole]:
    """Signatures with docstrings, and bodies, exactly as the library has them. Read, not imported: torch may be absent.

    The body of a function, or of each method of a class, is a hole.
    """
    file = root.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        file = file.with_suffix("") / "__init__.py"
    if not file.is_file():
        problem(lesson.file, cell.id, f"there is no module {module}", "Correct the # include line.")
    text = file.read_text("utf-8-sig")
    found = [n for n in ast.parse(text).body if isinstance(n, _ANSWERS) and n.name == cell.solution]
    if len(found) != 1:
        problem(
            lesson.file,
            cell.id,
            f"{module} has {len(found)} functions {cell.solution} at its top level",
            "Correct the # include line, or the library.",
        )
    lines = text.split("\n")
    start, holes = _first_line(found[0]), []
    for function in _functions(found[0]):
        name = f"{module}.{cell.solution}" + (f".{function.name}" if function is not found[0] else "")
        if ast.get_docstring(function) is None or ast.get_docstring(found[0]) is None:
            problem(lesson.file, cell.id, f"{name} has no docstring", "Write one: it is the learner's task.")
        doc_end = function.body[0].end_lineno
        if len(function.body) < 2 or function.body[1].lineno <= doc_end:
            problem(lesson.file, cell.id, f"{name} has no body below its docstring", "Include another function.")
        indent = " " * function.body[0].col_offset
        holes.append(Hole("\n".join(lines[start:doc_end]), "\n".join(lines[doc_end : function.end_lineno]), indent))
        start = function.end_lineno
    if not holes or start != found[0].end_lineno:
        problem(
            lesson.file, cell.id, f"{module}.{cell.solution} does not end in a method", "Put its methods at its end."
        )
    return holes


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    """Index of the line on which it begins, decorators included."""
    return min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1


def _functions(node: ast.FunctionDef | ast.ClassDef) -> list[ast.FunctionDef]:
    """The function itself, or the methods of a class."""
    return [node] if isinstance(node, ast.FunctionDef) else [n for n in node.body if isinstance(n, ast.FunctionDef)]


def _typed(lesson: Lesson, cell: Cell) -> Answer:
    lines = cell.text.split("\n")
    marks = [(i, line.strip()) for i, line in enumerate(lines) if re.search(r"(BEGIN|END) (SOLUTION|HIDDEN)", line)]
    if not marks or [mark for _, mark in marks] != [BEGIN, END] * (len(marks) // 2):
        problem(
            lesson.file, cell.id, f"it needs one {BEGIN!r} and then one {END!r}", "Mark the hole, or write # include."
        )
    found = [n for n in code_of(lesson.file, cell.id, cell.text).body if getattr(n, "name", None) == cell.solution]
    functions = _functions(found[0]) if len(found) == 1 and isinstance(found[0], _ANSWERS) else []
    if not functions:
        problem(
            lesson.file,
            cell.id,
            f"it does not define one function {cell.solution}, or one class with methods",
            "Correct the name.",
        )
    if len(functions) != len(marks) // 2:
        holes = f"{len(marks) // 2} holes for {len(functions)} functions"
        problem(lesson.file, cell.id, f"it has {holes}", "Mark one hole in the function, or in each method.")
    if ast.get_docstring(found[0]) is None:
        problem(lesson.file, cell.id, f"{cell.solution} has no docstring above the hole", "Write one: it is the task.")
    holes, start = [], 0
    for function, (begin, _), (end, _) in zip(functions, marks[::2], marks[1::2], strict=True):
        if ast.get_docstring(function) is None or function.body[0].end_lineno > begin:
            problem(
                lesson.file, cell.id, f"{function.name} has no docstring above the hole", "Write one: it is the task."
            )
        if not begin < function.end_lineno <= end:
            problem(
                lesson.file,
                cell.id,
                f"the hole is not the end of {function.name}",
                f"Put {END!r} below its last statement, and move what must follow into another function.",
            )
        indent = lines[begin][: -len(lines[begin].lstrip())]
        holes.append(Hole("\n".join(lines[start:begin]), "\n".join(lines[begin + 1 : end]), indent))
        start = end + 1
    return Answer(tuple(holes), "\n".join(lines[start:]), _reminder(cell))


def _reminder(cell: Cell) -> str:
    sentence = f"Exercise {cell.exercise}: write {cell.solution}, then run this cell again."
    return f'raise NotImplementedError("{sentence}")'


def _check_names(lesson: Lesson, cell: Cell, answer: Answer) -> None:
    """The cell must run alone: every name it uses is built in, imported in it, np or torch, or an earlier exercise's.

    (A later exercise may stand on what the learner wrote before it in the same notebook.)
    """
    text = answer.solved()
    top = symtable.symtable(text, f"{lesson.file}:{cell.id}", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    free = free_names(top) - bound - set(dir(builtins))
    earlier = [c for c in lesson.cells[: lesson.cells.index(cell)] if c.kind == "code"]
    if unknown := sorted(free - SUPPLIED - {c.solution for c in earlier}):
        problem(
            lesson.file,
            cell.id,
            f"{cell.solution} uses {', '.join(unknown)}, which this cell does not import",
            "Add an import line above # include, or change the library's function.",
        )
    given = {name for c in earlier for name in imported_names(code_of(lesson.file, c.id, c.text))}
    if missing := sorted((free & SUPPLIED) - given):
        problem(
            lesson.file,
            cell.id,
            f"{cell.solution} uses {', '.join(missing)}, which no cell above imports",
            "Import it in the notebook's first code cell.",
        )


def free_names(table: symtable.SymbolTable) -> set[str]:
    """Names that a scope, or one inside it, looks up or sets at the top level of the cell."""
    at_top = table.get_type() == "module"
    own = {s.get_name() for s in table.get_symbols() if (s.is_referenced() if at_top else s.is_global())}
    return own.union(*(free_names(child) for child in table.get_children()))


def _always_leaves(hole: Hole) -> bool:
    """Does the hole's last statement return or raise? (True only where that is certain.)"""
    body = ast.parse("def f():\n" + hole.text).body[0].body
    return isinstance(body[-1], (ast.Return, ast.Raise))


def _check_stub(lesson: Lesson, cell: Cell, answer: Answer) -> None:
    """Calling the stub must raise the reminder, whatever it is called with: nothing may leave before it."""
    tree = code_of(lesson.file, cell.id, answer.stub())
    found = next(node for node in tree.body if getattr(node, "name", None) == cell.solution)
    if not all(_reaches(function, answer.reminder) for function in _functions(found)) or found.decorator_list:
        problem(
            lesson.file,
            cell.id,
            f"an untouched {cell.solution} would not raise its reminder",
            "Keep returns, yields, raises and decorators out of what is given, and the hole out of branches and loops.",
        )


def _reaches(function: ast.FunctionDef, reminder: str) -> bool:
    leaves = (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom)
    first = next((s for s in function.body if any(isinstance(node, leaves) for node in ast.walk(s))), None)
    reached = first is not None and ast.unparse(first) == ast.unparse(ast.parse(reminder))
    return reached and not function.decorator_list
