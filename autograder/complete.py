"""What an exercise lacks before learners may have it; `python -m autograder build --check` refuses it until then."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from autograder.exercises import EXERCISES
from autograder.include import answer_of
from autograder.source import Cell, Lesson, read_lessons

MISTAKES, RIGHT, HINTS = 5, 2, 3  # the least of each


def lacking(root: Path) -> list[str]:
    """One line for each thing that an exercise of the notebooks lacks: which exercise, what, where to add it."""
    lessons = read_lessons(root)
    found = [f"{cell.solution}: {what}" for lesson, cell in _solutions(lessons) for what in _lacks(root, lesson, cell)]
    in_lessons = {cell.solution for _, cell in _solutions(lessons)}
    return found + [
        f"{name}: no notebook has it. Add its cells to solutions/." for name in EXERCISES if name not in in_lessons
    ]


def _solutions(lessons: list[Lesson]) -> list[tuple[Lesson, Cell]]:
    return [(lesson, cell) for lesson in lessons for cell in lesson.cells if cell.solution]


def _lacks(root: Path, lesson: Lesson, cell: Cell) -> Iterator[str]:
    name, notebook = cell.solution, f"nb{lesson.stem[:2]}"
    contract = ast.get_docstring(_definition(answer_of(lesson, cell, root).stub(), name)) or ""
    if not contract or "TODO" in contract:
        yield "its docstring is not written. It is the contract: say shapes, dtypes and what every edge gives."
    if (hints := _hints(lesson, cell)) < HINTS:
        yield f"{hints} of {HINTS} hints. Add <details><summary>Hint ... above its cell in {lesson.file}."
    if any("TODO" in c.text for c in lesson.cells if c.id.startswith(cell.id.rpartition("-")[0])):
        yield f"a cell of it in {lesson.file} still says TODO."
    if (right := _right_answers(root / "tests" / "right_answers" / f"{notebook}.py", name)) < RIGHT:
        yield f"{right} of {RIGHT} right answers. Write {name}_1 and {name}_2 in tests/right_answers/{notebook}.py."
    if name not in EXERCISES:
        yield f"nothing judges it. Run: python -m autograder new {name} --notebook {lesson.stem[:2]}"
        return
    exercise = EXERCISES[name]
    if len(exercise.wrong_answers) < MISTAKES:
        yield f"{len(exercise.wrong_answers)} of {MISTAKES} known mistakes. Add them, each with its message."
    groups, checks = [g.name for g in exercise.groups], [c.group for c in lesson.checks(name)]
    if groups != checks:
        yield f"its groups are {', '.join(groups)}, and the notebook checks {', '.join(checks)}. Make them the same."
    empty = [group.name for group in exercise.groups if group.cases and not group.cases(0)]
    if empty:
        yield f"group {', '.join(empty)} has no case. Draw some, with every edge in fixed ones."
    for file in _files(root, exercise):
        if "TODO" in file.read_text("utf-8"):
            yield f"{file.relative_to(root).as_posix()} still says TODO."


def _definition(text: str, name: str) -> ast.AST:
    return next(node for node in ast.parse(text).body if getattr(node, "name", None) == name)


def _hints(lesson: Lesson, cell: Cell) -> int:
    """How many hints stand between the exercise before it, or the beginning, and its cell."""
    above = lesson.cells[: lesson.cells.index(cell)]
    last = max((i for i, c in enumerate(above) if c.solution), default=0)
    return sum(len(re.findall(r"<summary>Hint", c.text)) for c in above[last:] if c.kind == "markdown")


def _right_answers(file: Path, name: str) -> int:
    """How many right answers to an exercise the file has; one that only raises NotImplementedError is none."""
    if not file.is_file():
        return 0
    numbered = re.compile(rf"{name}_\d+")
    found = [n for n in ast.parse(file.read_text("utf-8")).body if numbered.fullmatch(getattr(n, "name", ""))]
    return sum("NotImplementedError" not in ast.unparse(node) for node in found)


def _files(root: Path, exercise) -> list[Path]:
    modules = [
        f for f in (root / "autograder" / "exercises").glob("nb*.py") if exercise.solution in f.read_text("utf-8")
    ]
    return sorted(modules)
