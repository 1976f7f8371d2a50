"""What a student is told beside a judge's verdict: cells and lines of their own notebook, and what to do about errors.

A judge knows the text that was run, which is composed of statements of several cells. Here its line numbers become
cells and lines. Nothing of a submission is run here.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from autograder.exercise import Exercise, Verdict
from autograder.grading.intake import Answer, Notebook, definitions

MOST_SAID = 4_000  # characters of one diagnosis
_PLACE = re.compile(r"\((?:(?P<file><your answer>), )?line (?P<line>\d+)(?=[:)])")
_RAISED = re.compile(
    r" raised (?P<type>\w+)(?:: (?P<text>.*?))?(?: \(cell \d+, line \d+(?:: .*?)?\))?\.(?:\s|$)", re.DOTALL
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+| \((?:/[^()]*|unknown location)\)(?= \(cell|\.)")  # another one each time
_ENDS = {  # what a sandbox says of a call that did not come back: how it is told of inputs that are not seen
    ": your code took longer": "your code took too long, and was stopped",
    ": your cells took longer": "your cells took too long to run, and were stopped",
    ": the answers of this notebook took longer": "the answers of this notebook took too long in all",
    ": your code ended the process": "your code ended the process, or used more memory than there is",
    ": what came back could not": "what came back could not be read",
}
_JUPYTERS = ("display", "get_ipython", "exit", "quit")  # names that only a notebook has


def not_run(exercise: Exercise, answer: Answer, notebook: Notebook) -> str:
    """What is said of an answer that is not there, or is no Python; "" of one that can be run."""
    return _unwritten(exercise, notebook) if answer.cell is None else _no_python(answer)


def _unwritten(exercise: Exercise, notebook: Notebook) -> str:
    """Why there is no answer to judge: its stub is untouched, it has another name, or its cell is gone."""
    name = exercise.name
    found = [(cell, definitions(cell, notebook)) for cell in notebook.cells]
    if any(name in names for _, names in found):
        return f"Exercise {exercise.number}, {name}, is not written yet."
    where = f"Exercise {exercise.number}: no cell of the notebook defines {name}."
    for cell, names in found:
        if others := [other for other in names if cell.grade_id == name or _alike(other, [name])]:
            return f"{where} Cell {cell.number} defines {others[-1]}: is that your answer? Then call it {name}."
    return f"{where} Copy its cell from a fresh notebook, and write your answer there."


def _no_python(answer: Answer) -> str:
    try:
        ast.parse(answer.source)
    except SyntaxError as error:
        line = error.lineno or 1
        return (
            f"Cell {answer.cell} is no Python, so nothing of it could be run. Line {line}: {error.msg}.\n"
            f"    {_line(answer, line)}\nMend that line, or the one above it."
        )
    except (ValueError, RecursionError, MemoryError) as error:
        return f"Cell {answer.cell} cannot be read as Python: {error}."
    return ""


def explained(verdict: Verdict, exercise: Exercise, answer: Answer, notebook: Notebook) -> str:
    """What a judge says, with the places in the notebook, and with what to do about an error where there is a hint."""
    what = _ADDRESS.sub("", placed(verdict.what[: 2 * MOST_SAID], answer))
    hint = _hint(what, exercise, answer, notebook)
    which = " ".join(filter(None, (hint, placed(verdict.which, answer))))
    return replace(verdict, what=what, which=which).message[:MOST_SAID]


def placed(said: str, answer: Answer) -> str:
    """`said` with "cell 12, line 3" in place of lines of the text that was run."""

    def there(found: re.Match) -> str:
        line = int(found["line"])
        if not 0 < line <= len(answer.places):
            return found[0]
        text = _line(answer, line)
        if said.startswith(":", found.end()) and not said.startswith(f": {text}", found.end()):
            return found[0]  # a line of other code, such as one that the answer made itself
        cell, inside = answer.places[line - 1]
        return f"(cell {cell}, line {inside}" + (f": {text}" if found["file"] and text else "")

    return _PLACE.sub(there, said)


def kind_of_failure(said: str, answer: Answer) -> str:
    """What is said of an error with inputs that learners do not see: its kind and place, which do not tell them."""
    for found, told in _ENDS.items():
        if found in said and " raised " not in said:
            return f"There {told}."
    said = said[:MOST_SAID]
    raised = _raised(placed(said, answer))
    if raised is None or not isinstance(getattr(builtins, raised["type"], None), type):
        return ""
    place = _PLACE.search(said)
    line = int(place["line"]) if place else 0
    if not 0 < line <= len(answer.places):
        return f"There it raises {raised['type']}."
    cell, inside = answer.places[line - 1]
    return f"There it raises {raised['type']} (cell {cell}, line {inside}: {_line(answer, line)})."


def taken(answer: Answer) -> str:
    """Where an answer was found: "Your answer was taken from cell 12, with what it uses of cells 2 and 5."."""
    others = sorted({cell for cell, _ in answer.places} - {answer.cell})
    if not others:
        return f"Your answer was taken from cell {answer.cell}."
    *first, last = map(str, others)
    listed = f"cells {', '.join(first)} and {last}" if first else f"cell {last}"
    return f"Your answer was taken from cell {answer.cell}, with what it uses of {listed}."


def _raised(said: str) -> re.Match | None:
    """The type and text of the error in a message. The first words are the judge's; what follows may hold anything."""
    at = said.find(" raised ")
    return _RAISED.match(said, at) if at >= 0 else None


def _line(answer: Answer, line: int) -> str:
    lines = answer.source.split("\n")
    return lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""


def _alike(name: str, names: Sequence[str]) -> str:
    """The name among `names` that is spelled much like this one, if any; of long ones that would take long."""
    names = [one for one in names if len(one) <= 40][:500]
    return next(iter(difflib.get_close_matches(name[:40], names, 1, 0.8)), "")


def _hint(said: str, exercise: Exercise, answer: Answer, notebook: Notebook) -> str:
    """What to do about the error in a message; "" where the message says it all."""
    if re.search(r": your (code|cells) took longer than \d+ s\b", said) and " raised " not in said:
        return "Look for a loop that never ends, or for work done again and again: right answers need under a second."
    if ": your code ended the process" in said and " raised " not in said:
        return "Take out what ends Python, and look how large the lists and arrays become that it makes."
    if said.endswith(f", {exercise.name}, is not written yet."):
        return _methods_to_write(exercise, answer)
    if "returned something of type generator" in said:
        return "A function with yield gives one value after another: return all of them at once."
    if "returned something of type coroutine" in said:
        return "Write def in place of async def."
    found = _raised(said)
    if found is None:
        return ""
    kind, text = found["type"], found["text"] or ""
    kind_of = "class" if isinstance(_solution(exercise), type) else "function"
    hints = [_before_any_call(said, answer)]
    if kind == "NameError" and (name := re.match(r"name '(\w+)' is not defined", text)):
        hints.append(_missing(name[1], answer, notebook))
    elif kind == "ModuleNotFoundError" and (name := re.match(r"No module named '([\w.]+)'", text)):
        usual = "NumPy and torch" if "torch" in exercise.imports else "NumPy"
        hints.append(f"Answers are graded with {usual} and Python's own library: write it without {name[1]}.")
    elif kind == "TypeError" and re.match(rf"{exercise.name}(\.__init__)?\(\) (takes|missing|got)", text):
        hints.append(f"It is called as {_signature(exercise)}.")
    elif kind == "TypeError" and "object is not callable" in text and "(cell" not in said:
        hints.append(f"Cell {answer.cell} gives the name {exercise.name} to something else: write a {kind_of}.")
    elif kind == "UnboundLocalError" and (name := re.search(r"local variable '(\w+)'", text)):
        hints.append(f"No line has given {name[1]} a value before that one in this call: look at the branches above.")
    elif kind == "EOFError":
        hints.append("Nobody answers input() while an answer is graded: use the arguments.")
    elif kind in ("FileNotFoundError", "PermissionError"):
        hints.append("An answer is graded without files and without a network: use the arguments.")
    elif kind == "RecursionError":
        hints.append("It calls itself without end: give it a case in which it does not.")
    elif kind == "SystemExit":
        hints.append("An answer returns its result: take out what ends Python.")
    return " ".join(filter(None, hints))


def _before_any_call(said: str, answer: Answer) -> str:
    """A sentence, if the error came up in a statement that is no function and no class."""
    place = re.search(r"\(cell (\d+), line (\d+)", said)
    if place is None:
        return ""
    at = answer.places.index(where) + 1 if (where := (int(place[1]), int(place[2]))) in answer.places else 0
    try:
        statement = next((s for s in ast.parse(answer.source).body if s.lineno <= at <= s.end_lineno), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if statement is None or isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return ""
    return "That line stands outside of your function, so the error came up before the first call."


def _missing(name: str, answer: Answer, notebook: Notebook) -> str:
    """Why the notebook has a name and the answer does not, or that the notebook has none."""
    if name in _JUPYTERS:
        return f"Only notebooks have {name}: take it out of your answer."
    if name in sys.stdlib_module_names:
        return f"Write import {name} in the cell of your answer."
    nodes = list(ast.walk(ast.parse(answer.source)))
    known = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    known |= {n.arg for n in nodes if isinstance(n, ast.arg)} | {n for n in dir(builtins) if n != "help"}
    for cell in notebook.cells:
        here = definitions(cell, notebook)
        known |= here.keys()
        if here.get(name) == "broken":
            return f"Cell {cell.number} would define {name}, but it is no Python: mend it."
        if here.get(name) == "stub":
            return f"{name} is not written yet (cell {cell.number}): write it first."
        if name in here:
            return f"Cell {cell.number} defines {name}, but only after the line that needs it has run."
    close = _alike(name, sorted(known - {name}))
    if close:
        return f"No cell of the notebook defines {name}. Did you mean {close}?"
    return f"No cell of the notebook defines {name}: is it misspelled, or was its cell deleted?"


def _methods_to_write(exercise: Exercise, answer: Answer) -> str:
    """The methods of a class that still raise the stub's error, where others are written."""
    found = [s for s in ast.parse(answer.source).body if isinstance(s, ast.ClassDef) and s.name == exercise.name]
    methods = [part for s in found[-1:] for part in s.body if isinstance(part, ast.FunctionDef)]
    left = [
        m for m in methods if isinstance(m.body[-1], ast.Raise) and "NotImplementedError" in ast.unparse(m.body[-1])
    ]
    if not left or len(left) == len(methods):
        return ""
    named = [f"{m.name} (cell {answer.places[m.lineno - 1][0]}, line {answer.places[m.lineno - 1][1]})" for m in left]
    return f"Still to be written: {', '.join(named)}."


def _solution(exercise: Exercise) -> object:
    module, _, attribute = exercise.solution.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _signature(exercise: Exercise) -> str:
    parameters = inspect.signature(_solution(exercise)).parameters.values()
    return f"{exercise.name}({', '.join(str(p.replace(annotation=p.empty)) for p in parameters)})"
