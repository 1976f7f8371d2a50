"""The questions of a notebook: solutions/NN_topic.questions.json, checked and put into course_lib's assets."""

from __future__ import annotations

import json
import re
from pathlib import Path

from autograder.source import Lesson, problem
from course_lib.cli import UserError

ASSET = "course_lib/assets/questions.json"
OWN, SPACED = 6, 2  # questions about this notebook at least, and about others
_FIELDS = {"id", "question", "options", "explanation", "anchor", "spaced"}
_HEADING = re.compile(r"^#+ +(.*\S)", re.MULTILINE)


def questions_of(lessons: list[Lesson], root: Path) -> dict[str, list[dict]]:
    """Notebook stem -> its questions, each with the notebook and the section to read again.

    A notebook without a file has none. UserError names the file and the question that breaks a rule.
    """
    found, owners = {}, {}
    for lesson in lessons:
        file = root / "solutions" / f"{lesson.stem}.questions.json"
        if not file.is_file():
            continue
        where = f"solutions/{file.name}"
        try:
            questions = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise UserError(f"{where} is not JSON: {error}. Correct it.") from None
        if not isinstance(questions, list) or not all(isinstance(q, dict) for q in questions):
            raise UserError(f"{where} is not a list of objects. Write one object for each question.")
        found[lesson.stem] = [_question(where, q, lesson, lessons, owners) for q in questions]
        spaced = sum("spaced" in q for q in questions)
        if len(questions) - spaced < OWN or spaced != SPACED:
            own = len(questions) - spaced
            raise UserError(f"{where} has {own} questions of its own and {spaced} spaced; {OWN} and {SPACED} wanted.")
    return found


def _question(where: str, q: dict, lesson: Lesson, lessons: list[Lesson], owners: dict[str, str]) -> dict:
    name = str(q.get("id"))

    def wrong(what: str, todo: str):
        problem(where, name, what, todo)

    if not re.fullmatch(rf"nb{lesson.stem[:2]}-q[1-9]\d*", name):
        wrong("the id is not nbNN-qK", f"Write nb{lesson.stem[:2]}-q1 and so on.")
    if name in owners:
        wrong(f"{owners[name]} has this id already", "Give each question a different id.")
    owners[name] = where
    if extra := sorted(q.keys() - _FIELDS):
        wrong(f"it has {', '.join(extra)}, which mean nothing here", f"Fields are {', '.join(sorted(_FIELDS))}.")
    for key in ("question", "explanation", "anchor"):
        if not isinstance(q.get(key), str) or not q[key].strip():
            wrong(f"{key} is missing or not a text", "Write it.")
    options = q.get("options")
    if not isinstance(options, list) or not 3 <= len(options) <= 4:
        wrong("options is not a list of three or four", "Offer one right and two or three wrong answers.")
    for option in options:
        kinds = {"right", "misconception"} & set(option) if isinstance(option, dict) else set()
        good = len(kinds) == 1 and set(option) == {"text", *kinds} and all(str(v).strip() for v in option.values())
        if not good or option.get("right", True) is not True or not isinstance(option["text"], str):
            wrong(f"option {option!r:.60} is neither right nor a mistake", 'Give "right": true or a misconception.')
    if sum("right" in option for option in options) != 1:
        wrong("not exactly one option is right", "Mark one.")
    for key in ("text", "misconception"):
        texts = [option[key] for option in options if key in option]
        if len(set(texts)) < len(texts):
            wrong(f"two options have the same {key}", "Each wrong answer shows a different mistake.")
    stem, _, cell = q["anchor"].rpartition("#")
    if bool(stem) != ("spaced" in q) or stem != q.get("spaced", ""):
        wrong(f"anchor {q['anchor']!r} and spaced {q.get('spaced')!r} do not fit", "A spaced one is NN_topic#cell-id.")
    return {**q, "notebook": stem or lesson.stem, "section": _section(where, name, stem or lesson.stem, cell, lessons)}


def _section(where: str, name: str, stem: str, cell: str, lessons: list[Lesson]) -> str:
    """The last heading at or above the anchored cell."""
    lesson = next((one for one in lessons if one.stem == stem), None)
    ids = [c.id for c in lesson.cells] if lesson else []
    if cell not in ids:
        problem(where, name, f"there is no cell {cell!r} in notebook {stem!r}", "Correct the anchor.")
    above = [c.text for c in lesson.cells[: ids.index(cell) + 1] if c.kind == "markdown"]
    return _HEADING.findall("\n".join(above))[-1]
