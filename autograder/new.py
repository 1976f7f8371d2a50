"""`python -m autograder new NAME`: the skeleton of an exercise, in which every TODO is a place to fill."""

from __future__ import annotations

import importlib
import inspect
import keyword
from pathlib import Path

from autograder.build import ROOT, write_atomically
from autograder.source import Lesson, read_lessons
from course_lib.cli import UserError

CHECK = '''"""Exercise {number}, {name}: TODO what it asks, in one line."""

from __future__ import annotations

from collections.abc import Iterator

from autograder.kit import draws, exercise, values

SOLUTION = "{module}:{name}"


def arguments(seed: int) -> Iterator[tuple]:
    """TODO which situations there are. Every edge is a fixed case, so that no seed lacks one."""
    draw = draws(seed)
    yield from ()  # TODO yield ({parameters}), some of them drawn: draw(1, 20) is a number from 1 to 19


def label({parameters}) -> str:
    """How a message writes the call."""
    return f"{name}({shown})"


# TODO at least five: a name, a change of the solution (OLD  ->  NEW, two blanks before the arrow; or lines | code), and
# what to say to a learner whose answer does the same. autograder/kept.py shows the form.
MISTAKES = """
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, arguments, label)],
    mistakes=MISTAKES,
    reread="Reread notebook {notebook}, section 1.",  # TODO the section that explains it
)
'''

CELLS = """
# %% [markdown] id="{slug}-exercise"
# ### Exercise {number}: TODO the question that it answers?
#
# 8 minutes, difficulty 2 of 5 (TODO: here and in the solution's cell). TODO what is given, what is wanted, and what a
# learner needs to know.

# %% [markdown] id="{slug}-hints"
# <details><summary>Hint 1: a direction</summary>
#
# TODO
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# TODO
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# TODO
#
# </details>

# %% id="{slug}-solution" exercise="{number}" solution="{name}" minutes=8 difficulty=2
# include {module}:{name}

# %% id="{slug}-check-values" check="{name}" group="values" points=2
check.{name}({name}, group="values")
"""

RIGHT = """

def {name}_1({parameters}):
    raise NotImplementedError("TODO a right answer that is written otherwise than the course's")


def {name}_2({parameters}):
    raise NotImplementedError("TODO another one")
"""


def new_exercise(name: str, notebook: str, module: str, root: Path = ROOT) -> int:
    """Write the skeleton of exercise `name` for a notebook ("02"); nothing is written if anything is in its way.

    module   where the solution stands, "course_lib.attention.mask"; it has a docstring, which learners get
    """
    lessons = read_lessons(root)
    lesson = _lesson(lessons, notebook)
    solution = _solution(module, name)
    if any(cell.solution == name for one in lessons for cell in one.cells):
        raise UserError(f"there is an exercise {name} already. Choose another name, or change that one.")
    check = root / "autograder" / "exercises" / f"nb{lesson.stem[:2]}_{name.lower()}.py"
    if check.exists():
        raise UserError(f"{check.relative_to(root)} exists already. Remove it, or choose another name.")
    right = root / "tests" / "right_answers" / f"nb{lesson.stem[:2]}.py"
    parameters = list(inspect.signature(solution).parameters)
    made = {
        "name": name,
        "module": module,
        "number": f"{int(lesson.stem[:2])}.{1 + sum(bool(cell.solution) for cell in lesson.cells)}",
        "notebook": lesson.stem[:2],
        "slug": name.lower().replace("_", "-"),
        "parameters": ", ".join(parameters),
        "shown": ", ".join(f"{{{p}}}" for p in parameters),
    }
    source = root / lesson.file
    for file, text in (
        (source, source.read_text("utf-8").rstrip("\n") + "\n" + CELLS.format(**made)),
        (right, right.read_text("utf-8").rstrip("\n") + "\n" + RIGHT.format(**made)),
        (check, CHECK.format(**made)),
    ):
        write_atomically(file, text)
        print(f"{file.relative_to(root).as_posix()}: {'written' if file == check else 'its part added at the end'}")
    print("Fill every TODO, move the cells to where they belong, and run: python -m autograder build --check")
    return 0


def _lesson(lessons: list[Lesson], notebook: str) -> Lesson:
    for lesson in lessons:
        if notebook in (lesson.stem, lesson.stem[:2], lesson.stem[:2].lstrip("0")):
            return lesson
    raise UserError(f"there is no notebook {notebook!r}; there are {', '.join(lesson.stem for lesson in lessons)}.")


def _solution(module: str, name: str):
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"{name!r} is no name of a function. Give the name that the learner writes.")
    if not module.startswith("course_lib."):
        raise UserError(f"{module} is no module of course_lib. Write the solution there first, with its docstring.")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise UserError(f"there is no {module}:{name}. Write the solution first, with its docstring.") from None
    if not inspect.isfunction(found) or not inspect.getdoc(found):
        raise UserError(
            f"{module}:{name} is no function with a docstring. The docstring is what learners get: write it."
        )
    return found
