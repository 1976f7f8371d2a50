"""Classes of made-up students: right, half done, wrong, odd and broken notebooks, each file another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from starting import ROOT

from autograder.exercises import EXERCISES
from autograder.include import answer_of
from autograder.source import read_lessons

LESSONS = {lesson.stem: lesson for lesson in read_lessons(ROOT)}
STEMS = ("02_mask", "03_positions")
BROKEN = (b"", b"{", b"\xff\x00\xff", b"[]", b'{"cells": 3}', b'{"cells": []}')


def names_in(stem: str) -> list[str]:
    return [cell.solution for cell in LESSONS[stem].cells if cell.solution]


def stub(stem: str, name: str) -> str:
    return answer_of(LESSONS[stem], LESSONS[stem].solution(name), ROOT).stub()


def notebook(stem: str, answers: dict[str, str], *, who: str = "", bare: bool = False) -> dict:
    """A lesson as handed in: the solutions, or for some exercises another text. bare: no checks and no metadata."""
    cells = [{"cell_type": "markdown", "source": f"by {who}", "metadata": {}}]
    for cell in LESSONS[stem].cells:
        if bare and cell.check:
            continue
        text = cell.text
        if cell.solution:
            text = answers.get(cell.solution) or answer_of(LESSONS[stem], cell, ROOT).solved()
        about = {"nbgrader": {"grade_id": cell.grade_id}} if cell.grade_id and not bare else {}
        cells.append({"cell_type": cell.kind, "source": text, "metadata": about})
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def one(number: int, stem: str, who: str) -> bytes:
    """What the student with this number handed in."""
    names, kind, turn = names_in(stem), number % 8, number // 8
    wrong = {name: (w := EXERCISES[name].wrong_answers)[(turn + number) % len(w)].source for name in names}
    if kind == 0:
        return json.dumps(notebook(stem, {}, who=who)).encode()
    if kind == 1:
        return json.dumps(notebook(stem, {name: stub(stem, name) for name in names}, who=who)).encode()
    if kind in (2, 3):  # one mistake, or one in each
        few = {names[turn % len(names)]: wrong[names[turn % len(names)]]}
        return json.dumps(notebook(stem, few if kind == 2 else wrong, who=who)).encode()
    if kind == 4:
        return json.dumps(notebook(stem, wrong, who=who, bare=True)).encode("utf-16")
    if kind == 5:
        raises = {
            name: f"def {name}(*args):\n    print('x' * 9999)\n    raise ValueError('\\ud800 {who}')" for name in names
        }
        return b"\xef\xbb\xbf" + json.dumps(notebook(stem, raises, who=who)).encode()
    if kind == 6:
        mixed = {names[0]: f"def {names[0]}(:\n    pass\n", names[-1]: stub(stem, names[-1])}
        return json.dumps(notebook(stem, mixed, who=who)).replace("\\n", "\\r\\n").encode()
    return BROKEN[turn % len(BROKEN)]


def hand_in(course: Path, count: int) -> list[Path]:
    """`count` submissions in submitted/, of as many students."""
    return [write(course, who, stem, content) for who, stem, content in some(count)]


def some(count: int) -> Iterator[tuple[str, str, bytes]]:
    for number in range(count):
        who, stem = f"student{number:03}", STEMS[number // 8 % 2 if count > 20 else number % 2]
        yield who, stem, one(number, stem, who)


def write(course: Path, who: str, stem: str, content: bytes, *, when: int = 0, name: str = "") -> Path:
    path = course / "submitted" / who / stem / (name or f"{stem}.ipynb")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if when:
        os.utime(path, (when, when))
    return path
