"""From a file in solutions/ to cells: what the author wrote, refused early when it cannot become a lesson."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from course_lib.cli import UserError

CELL_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
FIELDS = {  # what a cell's header may say, by what the cell is; a missing required field is refused too
    "solution": {"required": ("exercise", "solution"), "optional": ("title", "minutes", "difficulty")},
    "check": {"required": ("check", "points"), "optional": ("group",)},
    "text": {"required": (), "optional": ()},
}
LAYOUT = ("lines_to_next_cell", "lines_to_end_of_cell_marker")  # jupytext's notes to itself
REGION = re.compile(r"(BEGIN|END) (SOLUTION|HIDDEN TESTS)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell as written. `role` is "solution", "check" or "text"; fields of other roles keep their defaults."""

    id: str
    kind: str  # "code", "markdown" or "raw"
    role: str
    text: str
    exercise: str = ""  # "2.1": notebook and running number
    solution: str = ""  # the function that the learner writes here
    title: str = ""
    minutes: int | None = None
    difficulty: int | None = None  # 1 .. 5
    check: str = ""  # the function that is judged here
    group: str = ""
    points: int | float = 0

    @property
    def grade_id(self) -> str:
        """nbgrader's id: the function's name, and for a check the name of its group behind it ("" for text)."""
        return f"{self.check}__{self.group or 'check'}" if self.role == "check" else self.solution


@dataclass(frozen=True, slots=True)
class Lesson:
    """One notebook: `stem` is its file name without the ending, and nbgrader's assignment name."""

    stem: str
    cells: tuple[Cell, ...]

    @property
    def file(self) -> str:
        return f"solutions/{self.stem}.py"

    def solution(self, name: str) -> Cell:
        return next(c for c in self.cells if c.solution == name)

    def checks(self, name: str) -> tuple[Cell, ...]:
        return tuple(c for c in self.cells if c.check == name)


def problem(file: str, cell: str, what: str, todo: str) -> NoReturn:
    """Refuse a source: which file and cell, what is wrong there, what to do."""
    raise UserError(f"{file}, cell {cell}: {what}. {todo}")


def read_lessons(root: Path) -> list[Lesson]:
    """Every solutions/*.py under `root`, by name. UserError when there is none or one cannot become a notebook."""
    files = sorted((root / "solutions").glob("*.py"))
    if not files:
        raise UserError(
            f"there is no solutions/*.py in {root}. Run this in a checkout of the course, not a copy of it."
        )
    lessons = [read_lesson(file) for file in files]
    owner: dict[str, str] = {}
    for lesson in lessons:
        for cell in lesson.cells:
            for key in filter(None, (cell.solution, cell.exercise)):
                if key in owner:
                    problem(lesson.file, cell.id, f"exercise {key} is in {owner[key]} already", "Give it another name.")
                owner[key] = lesson.file
    return lessons


def read_lesson(file: Path) -> Lesson:
    """Parse one py:percent file (any line ends) and check what can be checked without the library."""
    if importlib.util.find_spec("jupytext") is None:
        raise UserError("jupytext is not installed; it reads solutions/*.py. Run: pip install -e .[grade]")
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"solutions/{file.name} cannot be read: {error}. Correct it.") from error
    return _parsed(file.stem, f"solutions/{file.name}", text)


@functools.lru_cache(maxsize=64)
def _parsed(stem: str, where: str, text: str) -> Lesson:
    """The lesson that a text is. Parsing ten takes a second, and a command may need them several times."""
    import jupytext

    try:
        notebook = jupytext.reads(text, fmt="py:percent")
    except Exception as error:  # jupytext and nbformat raise many kinds; the author needs the file and the sentence
        raise UserError(f"{where} cannot be read as py:percent: {str(error).splitlines()[0]}. Correct it.") from error
    lesson = Lesson(stem, tuple(_cell(where, c.cell_type, c.source, dict(c.metadata)) for c in notebook.cells))
    _check_lesson(lesson)
    return lesson


def code_of(file: str, cell: str, text: str) -> ast.Module:
    """The syntax tree of a code cell, its IPython commands (lines that begin with % or !) left out."""
    python = "\n".join("" if line.lstrip()[:1] in ("%", "!") else line for line in text.split("\n"))
    try:
        return ast.parse(python)
    except SyntaxError as error:
        line = (text.split("\n") + [""])[(error.lineno or 1) - 1].strip()
        problem(
            file,
            cell,
            f"line {line!r} is not Python ({error.msg})",
            "Correct it; if it was a comment, reword its first word: jupytext takes '# copy ...', '# ls ...' and the "
            "like for shell commands.",
        )


def imported_names(tree: ast.Module) -> set[str]:
    """Names that the import statements at the top level of a cell bind."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def _cell(file: str, kind: str, text: str, header: dict) -> Cell:
    header = {key: value for key, value in header.items() if key not in LAYOUT}
    first_line = text.strip().split("\n")[0][:60]
    name = header.pop("id", None)
    if not isinstance(name, str):
        problem(file, f"that begins {first_line!r}", "it has no id", 'Write # %% id="..." above it.')
    if not CELL_ID.fullmatch(name) or len(name) > 64:
        problem(file, name, "this id is not words of a-z and 0-9 joined by -, 64 characters at most", "Rename it.")
    role = next((role for role in ("solution", "check") if role in header), "text")
    if role != "text" and kind != "code":
        problem(file, name, f"a {role} is code, and this is a {kind} cell", "Remove the [..] from its header.")
    fields = FIELDS[role]
    for key in header:
        if key not in (*fields["required"], *fields["optional"]):
            known = ", ".join(("id", *fields["required"], *fields["optional"]))
            problem(file, name, f"its header says {key!r}, which a {role} cell has no use for", f"It may say: {known}.")
    for key in fields["required"]:
        if key not in header:
            problem(file, name, f"its header does not say {key!r}, which a {role} cell needs", f"Add {key}=...")
    _check_values(file, name, header)
    if kind == "code":
        code_of(file, name, text)
    if role != "solution" and REGION.search(text):
        problem(file, name, "a solution or hidden-tests region outside a solution cell", "The builder writes those.")
    return Cell(id=name, kind=kind, role=role, text=text, **header)


def _check_values(file: str, cell: str, header: dict) -> None:
    def whole(value: object, low: int, high: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    def word(value: object) -> bool:
        return isinstance(value, str) and value.isascii() and value.isidentifier()

    wanted = {
        "exercise": (lambda v: isinstance(v, str) and re.fullmatch(r"\d+\.\d+", v), 'a number in quotes, "2.1"'),
        "solution": (word, "the name of a function, in quotes"),
        "check": (word, "the name of a function, in quotes"),
        "group": (word, "a name, in quotes"),
        "title": (lambda v: isinstance(v, str) and v.strip(), "text in quotes"),
        "points": (lambda v: type(v) in (int, float) and v > 0, "a number above 0"),
        "minutes": (lambda v: whole(v, 1, 240), "a whole number from 1 to 240"),
        "difficulty": (lambda v: whole(v, 1, 5), "a whole number from 1 to 5"),
    }
    for key, value in header.items():
        accepts, what = wanted[key]
        if not accepts(value):
            problem(file, cell, f"{key} is {value!r}", f"It must be {what}.")


def _check_lesson(lesson: Lesson) -> None:
    seen: set[str] = set()
    solved: set[str] = set()
    graded: set[str] = set()
    for cell in lesson.cells:
        if cell.id in seen:
            problem(lesson.file, cell.id, "this id is used twice", "Rename one of the two cells.")
        seen.add(cell.id)
        if cell.grade_id and cell.grade_id in graded:
            problem(lesson.file, cell.id, f"grade id {cell.grade_id} is used twice", "Give this check another group.")
        graded.add(cell.grade_id)
        if cell.solution:
            solved.add(cell.solution)
            if not lesson.checks(cell.solution):
                problem(
                    lesson.file, cell.id, f"nothing checks {cell.solution}", f'Add a cell with check="{cell.solution}".'
                )
        if cell.check:
            if cell.check not in solved:
                problem(
                    lesson.file,
                    cell.id,
                    f"no solution cell above it is named {cell.check}",
                    "Correct the name or the order.",
                )
            _check_call(lesson.file, cell)


def _check_call(file: str, cell: Cell) -> None:
    """A check cell must really check: points for a cell that calls something else are given for nothing."""
    want = f"check.{cell.check}({cell.check}" + (f', group="{cell.group}")' if cell.group else ")")
    calls = {ast.unparse(node) for node in ast.walk(code_of(file, cell.id, cell.text)) if isinstance(node, ast.Call)}
    if ast.unparse(ast.parse(want)) not in calls:
        problem(file, cell.id, f"it does not call {want}", "Write that call.")
