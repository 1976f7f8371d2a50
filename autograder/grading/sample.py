"""A class of twelve to look at: `python3 course.py grade` makes it, grades it, and says where a feedback page is."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path

from autograder.build import ROOT
from autograder.course import make_course
from autograder.exercises import EXERCISES
from autograder.grading.run import grade
from autograder.grading.sandbox import level
from autograder.include import answer_of
from autograder.source import Lesson, read_lessons

STEM = "02_mask"
ENDS = "def {name}(*args):\n    import os\n    os._exit(0)\n"
LOOPS = "def {name}(*args):\n    while True:\n        pass\n"
READS = "def {name}(*args):\n    raise ValueError(open('/etc/passwd').read())\n"


def main() -> int:
    """Make the class in a temporary course and grade it; the course stays, to be looked at."""
    folder = Path(tempfile.mkdtemp(prefix="sample-class-"))
    with contextlib.redirect_stdout(io.StringIO()):  # what it wrote is not what this is about
        make_course(folder, seed=12)
    lesson = next(one for one in read_lessons(ROOT) if one.stem == STEM)
    for student, content in handed_in(lesson).items():
        file = folder / "submitted" / student / STEM / f"{STEM}.ipynb"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    if not isolated():
        print(
            f"This machine isolates answers by {level()!r} only. So the class has no hostile answers, and submissions "
            "of strangers should not be graded here; docs/INSTRUCTORS.md says what to do.\n"
        )
    slow = " Grading takes about a minute, since one answer never returns." * isolated()
    print(f"Twelve students have handed in {STEM}.{slow}\n")
    code = grade(folder, jobs=2, accepted=level())
    page = folder / "reports" / "pages" / "dora-one-mistake" / f"{STEM}.html"
    print(f"\nA feedback page: {page}\nThe gradebook, and what was handed in: {folder}")
    return code


def isolated() -> bool:
    """Whether hostile answers may run on this machine."""
    return level() != "process"


def handed_in(lesson: Lesson) -> dict[str, bytes]:
    """Student -> notebook file. What each did, its name says."""
    names = [cell.solution for cell in lesson.cells if cell.solution]
    mask, ragged, attend = names
    wrong = {name: EXERCISES[name].wrong_answers[0].source for name in names}
    right = _file(lesson, {})
    hostile = {
        "jack-ends-the-process": {name: ENDS.format(name=name) for name in names},
        "kim-reads-a-file": {name: READS.format(name=name) for name in names},
        "leo-never-returns": {ragged: LOOPS.format(name=ragged)},
    }
    harmless = {
        "jill-misspells-her-function": {mask: EXERCISES[mask].wrong_answer("strict").source.replace("_mask(", "_msk(")},
        "ken-prints-and-returns-nothing": {mask: f"def {mask}(*args):\n    print(args)\n"},
        "lea-forgot-an-import": {ragged: f"def {ragged}(q_lens, kv_lens):\n    return itertools.chain(q_lens)\n"},
    }
    return {
        "ann-right": right,
        "cem-nothing-yet": _file(lesson, {name: _stub(lesson, name) for name in names}),
        "dora-one-mistake": _file(lesson, {mask: EXERCISES[mask].wrong_answer("strict").source}),
        "eve-all-wrong": _file(lesson, wrong),
        "fay-half": _file(lesson, {attend: _stub(lesson, attend), ragged: wrong[ragged]}),
        "gus-plain-kernel": _file(lesson, {attend: EXERCISES[attend].wrong_answer("plain").source}),
        "hal-syntax-error": _file(lesson, {mask: f"def {mask}(chunk_len, cached_len)\n    return None\n"}),
        "ida-lost-metadata-and-checks": _file(lesson, {}, bare=True),
        "jon-half-a-file": right[: len(right) // 2],
    } | {who: _file(lesson, answers) for who, answers in (hostile if isolated() else harmless).items()}


def _stub(lesson: Lesson, name: str) -> str:
    return answer_of(lesson, lesson.solution(name), ROOT).stub()


def _file(lesson: Lesson, answers: dict[str, str], *, bare: bool = False) -> bytes:
    """The lesson with the right answers, but for those given. bare: without checks, and with no cell's metadata."""
    cells = []
    for cell in lesson.cells:
        if bare and cell.check:
            continue
        text = cell.text
        if cell.solution:
            text = answers.get(cell.solution) or answer_of(lesson, cell, ROOT).solved()
        about = {} if bare or not cell.grade_id else {"nbgrader": {"grade_id": cell.grade_id}}
        cells.append({"cell_type": cell.kind, "source": text, "metadata": about})
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


if __name__ == "__main__":
    raise SystemExit(main())
