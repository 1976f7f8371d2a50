"""What a grader writes: grades in JSON, one line a task in CSV, a page for each student in HTML."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from autograder.grading.grade import Graded

MOST_SAID = 4_000  # characters of one diagnosis on a page


@dataclass(frozen=True, slots=True)
class Row:
    """A graded submission, and whose it is."""

    student: str
    graded: Graded


def as_json(rows: Sequence[Row]) -> str:
    """A list of {student, assignment, score, max_score, isolation, notes, tasks: [{name, score, max_score, ...}]}."""
    made = [
        {
            "student": row.student,
            "assignment": row.graded.assignment,
            "score": row.graded.score,
            "max_score": row.graded.max_score,
            "isolation": row.graded.isolation,
            "notes": list(row.graded.notes),
            "tasks": [asdict(task) | {"mistakes": list(task.mistakes)} for task in row.graded.tasks],
        }
        for row in rows
    ]
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """student, assignment, task, score, max_score, mistakes, diagnosis: a line for each task."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(("student", "assignment", "task", "score", "max_score", "mistakes", "diagnosis"))
    for row in rows:
        for task in row.graded.tasks:
            fields = (row.student, row.graded.assignment, task.name, task.score, task.max_score)
            out.writerow([_cell(field) for field in (*fields, " ".join(task.mistakes), task.diagnosis)])
    return text.getvalue()


def _cell(value: object) -> object:
    """A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def as_html(row: Row) -> str:
    """A page of one submission, for its author: what each check found. It loads nothing and runs nothing."""
    graded = row.graded
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{_text(graded.assignment)}</title>",
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
        "pre{white-space:pre-wrap;background:#f4f4f4;padding:.7rem;border-left:4px solid #b33}"
        ".ok{border-color:#2a7}@media(prefers-color-scheme:dark){body{background:#111;color:#eee}pre{background:#222}}"
        "</style>",
        f"<h1>{_text(graded.assignment)}: {graded.score:g} of {graded.max_score:g} points</h1>",
        f"<p>{_text(row.student)}</p>",
    ]
    parts += [f"<p>{_text(note)}</p>" for note in graded.notes]
    for task in graded.tasks:
        kind = "ok" if task.score == task.max_score else "no"
        parts.append(f"<h2>{_text(task.name)}: {task.score:g} of {task.max_score:g}</h2>")
        parts.append(f"<pre class={kind}>{_text(task.diagnosis[:MOST_SAID])}</pre>")
    return "\n".join(parts) + "</html>\n"


def _text(value: str) -> str:
    """Escaped, and without the characters that change the direction or place of what is shown."""
    return html.escape("".join(c for c in value if c == "\n" or c.isprintable()))


def table(rows: Sequence[Row]) -> str:
    """What the terminal shows: a line for each submission."""
    lines = [f"{'student':30}{'assignment':18}{'points':>12}  first thing to mend"]
    for row in rows:
        graded = row.graded
        first = next((f"{t.name}: {t.diagnosis}" for t in graded.tasks if t.score < t.max_score), "")
        points = f"{graded.score:g} / {graded.max_score:g}"
        shown = " ".join("".join(c for c in first if c.isprintable() or c == " ").split())[:70]
        lines.append(f"{_narrow(row.student):30}{graded.assignment:18}{points:>12}  {shown}".rstrip())
    return "\n".join(lines) + "\n"


def _narrow(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:29]
