"""The hole of an exercise: pasted from the library, or typed between two markers; cut out for the learner."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from dataclasses import dataclass
from pathlib import Path

from autograder.source import Cell, Lesson, code_of, imported_names, problem

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
INCLUDE = re.compile(r"# include (?P<module>course_lib(\.\w+)+):(?P<name>\w+)")
SUPPLIED = {"np", "torch"}  # what an included function may use without an import line in its own cell


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a solution cell in three parts; `hole` is what the learner writes, at the function's end."""

    before: str  # import lines, signature, docstring, and what else is given
    hole: str
    after: str  # what follows the function; mostly nothing
    reminder: str  # the statement that stands in for a missing answer

    def stub(self) -> str:
        """What the learner gets."""
        return "\n".join(filter(None, (self.before, self.reminder, self.after)))

    def solved(self) -> str:
        """What nbgrader's instructor gets.

        The reminder stands below the region, where a finished answer never comes: nbgrader cuts the region out,
        has one stub text for all exercises, and would otherwise lose the exercise's name.
        """
        indent = self.reminder[: -len(self.reminder.lstrip())]
        ends = _always_leaves(self.hole)
        hole = self.hole if ends else f"{self.hole}\n{indent}return"
        region = (self.before, indent + BEGIN, hole, indent + END, self.reminder, self.after)
        return "\n".join(filter(None, region))


def answer_of(lesson: Lesson, cell: Cell, root: Path) -> Answer:
    """The three parts of a solution cell; UserError when the untouched stub would not raise."""
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
    signature, body = _library_function(lesson, cell, root, match["module"])
    before = "\n\n\n".join(filter(None, (imports.strip(), signature)))
    return Answer(before, body, "", _reminder(cell, "    "))


def _library_function(lesson: Lesson, cell: Cell, root: Path, module: str) -> tuple[str, str]:
    """Signature with docstring, and body, exactly as the library has them. Read, not imported: torch may be absent."""
    file = root.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        file = file.with_suffix("") / "__init__.py"
    if not file.is_file():
        problem(lesson.file, cell.id, f"there is no module {module}", "Correct the # include line.")
    text = file.read_text("utf-8-sig")
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == cell.solution]
    if len(found) != 1:
        problem(
            lesson.file,
            cell.id,
            f"{module} has {len(found)} functions {cell.solution} at its top level",
            "Correct the # include line, or the library.",
        )
    function = found[0]
    if ast.get_docstring(function) is None:
        problem(
            lesson.file, cell.id, f"{module}.{cell.solution} has no docstring", "Write one: it is the learner's task."
        )
    lines = text.split("\n")
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)]) - 1
    doc_end = function.body[0].end_lineno
    if len(function.body) < 2 or function.body[1].lineno <= doc_end:
        problem(
            lesson.file,
            cell.id,
            f"{module}.{cell.solution} has no body below its docstring",
            "Include another function.",
        )
    return "\n".join(lines[first:doc_end]), "\n".join(lines[doc_end : function.end_lineno])


def _typed(lesson: Lesson, cell: Cell) -> Answer:
    lines = cell.text.split("\n")
    marks = [(i, line.strip()) for i, line in enumerate(lines) if re.search(r"(BEGIN|END) (SOLUTION|HIDDEN)", line)]
    if [mark for _, mark in marks] != [BEGIN, END]:
        problem(
            lesson.file, cell.id, f"it needs one {BEGIN!r} and then one {END!r}", "Mark the hole, or write # include."
        )
    (begin, _), (end, _) = marks
    found = [n for n in code_of(lesson.file, cell.id, cell.text).body if getattr(n, "name", None) == cell.solution]
    if len(found) != 1 or not isinstance(found[0], ast.FunctionDef):
        problem(lesson.file, cell.id, f"it does not define one function {cell.solution}", "Correct the name.")
    function = found[0]
    if ast.get_docstring(function) is None or function.body[0].end_lineno > begin:
        problem(lesson.file, cell.id, f"{cell.solution} has no docstring above the hole", "Write one: it is the task.")
    if not begin < function.end_lineno <= end:
        problem(
            lesson.file,
            cell.id,
            f"the hole is not the end of {cell.solution}",
            f"Put {END!r} below its last statement, and what must follow into a function of its own.",
        )
    indent = lines[begin][: -len(lines[begin].lstrip())]
    parts = (lines[:begin], lines[begin + 1 : end], lines[end + 1 :])
    return Answer(*("\n".join(part) for part in parts), _reminder(cell, indent))


def _reminder(cell: Cell, indent: str) -> str:
    sentence = f"Exercise {cell.exercise}: write {cell.solution}, then run this cell again."
    return f'{indent}raise NotImplementedError("{sentence}")'


def _check_names(lesson: Lesson, cell: Cell, answer: Answer) -> None:
    """The cell must run alone: every name it uses is built in, imported in it, or np or torch."""
    text = answer.solved()
    top = symtable.symtable(text, f"{lesson.file}:{cell.id}", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    free = _free_names(top) - bound - set(dir(builtins))
    if unknown := sorted(free - SUPPLIED):
        problem(
            lesson.file,
            cell.id,
            f"{cell.solution} uses {', '.join(unknown)}, which this cell does not import",
            "Add an import line above # include, or change the library's function.",
        )
    earlier = [c for c in lesson.cells[: lesson.cells.index(cell)] if c.kind == "code"]
    given = {name for c in earlier for name in imported_names(code_of(lesson.file, c.id, c.text))}
    if missing := sorted((free & SUPPLIED) - given):
        problem(
            lesson.file,
            cell.id,
            f"{cell.solution} uses {', '.join(missing)}, which no cell above imports",
            "Import it in the notebook's first code cell.",
        )


def _free_names(table: symtable.SymbolTable) -> set[str]:
    """Names that a scope, or one inside it, looks up at the top level of the cell."""
    at_top = table.get_type() == "module"
    own = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (at_top or s.is_global())}
    return own.union(*(_free_names(child) for child in table.get_children()))


def _always_leaves(hole: str) -> bool:
    """Does the hole's last statement return or raise? (True only where that is certain.)"""
    body = ast.parse("def f():\n" + hole).body[0].body
    return isinstance(body[-1], (ast.Return, ast.Raise))


def _check_stub(lesson: Lesson, cell: Cell, answer: Answer) -> None:
    """Calling the stub must raise the reminder, whatever it is called with: nothing may leave before it."""
    tree = code_of(lesson.file, cell.id, answer.stub())
    function = next(node for node in tree.body if getattr(node, "name", None) == cell.solution)
    leaves = (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom)
    first = next((s for s in function.body if any(isinstance(node, leaves) for node in ast.walk(s))), None)
    reached = first is not None and ast.unparse(first) == ast.unparse(ast.parse(answer.reminder.strip()))
    if not reached or function.decorator_list:
        problem(
            lesson.file,
            cell.id,
            f"an untouched {cell.solution} would not raise its reminder",
            "Keep returns, yields, raises and decorators out of what is given, and the hole out of branches and loops.",
        )
