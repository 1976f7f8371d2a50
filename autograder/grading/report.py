"""What a grader writes: grades in JSON, one line a task in CSV, a page for each student in HTML."""

from __future__ import annotations

import csv
import html
import io
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from autograder.grading.grade import Graded, Task
from autograder.plain import whole

MAX_PAGE = 100_000  # bytes
FOR_DIAGNOSES, FOR_CODE = 36_000, 24_000  # bytes of a page; with its other parts, each cut, it stays below MAX_PAGE
START = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
  background: #fff; color: #1a1a1a; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.25rem; margin-top: 2rem; }} h3 {{ font-size: 1rem; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; background: #f4f4f4; padding: .7rem;
  border-left: 4px solid #888; }}
pre.ok {{ border-color: #1a7f4b; }} pre.no {{ border-color: #b3261e; }}
table {{ border-collapse: collapse; }} caption {{ text-align: left; font-weight: bold; }}
th, td {{ text-align: left; font-weight: normal; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #bbb; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #121212; color: #eaeaea; }} pre {{ background: #242424; }}
  pre.ok {{ border-color: #5fce95; }} pre.no {{ border-color: #ff8a80; }} th, td {{ border-color: #555; }}
}}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{head}</p>
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A graded submission, and whose it is."""

    student: str
    graded: Graded


def as_json(rows: Sequence[Row]) -> str:
    """A list of {student, assignment, score, max_score, isolation, notes, taken, tasks: [{name, score, ...}]}."""
    made = [
        {
            "student": row.student,
            "assignment": row.graded.assignment,
            "score": row.graded.score,
            "max_score": row.graded.max_score,
            "isolation": row.graded.isolation,
            "notes": list(row.graded.notes),
            "taken": dict(row.graded.taken),
            "tasks": [asdict(task) | {"mistakes": list(task.mistakes)} for task in row.graded.tasks],
        }
        for row in rows
    ]
    return whole(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def as_csv(rows: Sequence[Row]) -> str:
    """student, assignment, task, score, max_score, mistakes, diagnosis: a line for each task."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(("student", "assignment", "task", "score", "max_score", "mistakes", "diagnosis"))
    for row in rows:
        for task in row.graded.tasks:
            fields = (row.student, row.graded.assignment, task.name, task.score, task.max_score)
            out.writerow([_cell(field) for field in (*fields, " ".join(task.mistakes), task.diagnosis)])
    return whole(text.getvalue())


def _cell(value: object) -> object:
    """A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def as_html(row: Row) -> str:
    """A page of one submission, for its author: what each check found, and where its answer stood.

    It loads nothing, runs nothing, and stays below MAX_PAGE bytes whatever the answers hold.
    """
    graded = row.graded
    title = f"{graded.assignment}: {graded.score:g} of {graded.max_score:g} points"
    head = f"{_cut(row.student, 400)}. Answers were run at the isolation level {_cut(graded.isolation, 100)}."
    head += " Cells are counted from the top, text cells too." * bool(graded.taken)
    parts = [START.format(title=_cut(title, 400), head=head), *_summary(graded)]
    if graded.notes:
        listed = "".join(f"<li>{_cut(note, 800)}</li>\n" for note in graded.notes[:20])
        parts.append(f"<h2>About your file</h2>\n<ul>\n{listed}</ul>\n")
    names = list(dict.fromkeys(task.name.partition("__")[0] for task in graded.tasks))
    for name in names:
        parts.append(f"<h2>{_cut(name, 400)}</h2>\n")
        if name in graded.taken:
            parts.append(f"<p>{_cut(graded.taken[name], 800)}</p>\n")
        for task in (one for one in graded.tasks if one.name.partition("__")[0] == name):
            parts.append(f"<h3>{_cut(task.name.partition('__')[2] or task.name, 400)}: {_outcome(task)}</h3>\n")
            kind = "ok" if task.score == task.max_score else "no"
            said = _cut(task.diagnosis, FOR_DIAGNOSES // len(graded.tasks))
            parts.append(f'<pre class="{kind}">{said}</pre>\n')
        if name in graded.answers:
            code = _cut(graded.answers[name], FOR_CODE // len(names))
            summary = f"<summary>The code of {_cut(name, 400)} that was run</summary>"
            parts.append(f"<details>{summary}\n<pre><code>{code}</code></pre></details>\n")
    return "".join(parts) + "</main>\n</body>\n</html>\n"


def _summary(graded: Graded) -> list[str]:
    rows = [
        f'<tr><th scope="row">{_cut(task.name.replace("__", ", "), 400)}</th><td>{_outcome(task)}</td></tr>\n'
        for task in graded.tasks
    ]
    head = '<thead><tr><th scope="col">check</th><th scope="col">result</th></tr></thead>'
    return ["<table>\n<caption>All checks</caption>\n", head, "<tbody>\n", *rows, "</tbody></table>\n"]


def _outcome(task: Task) -> str:
    result = "passed" if task.score == task.max_score else "failed"
    return f"{result}, {task.score:g} of {task.max_score:g} points"


def _cut(value: str, most: int) -> str:
    """Escaped text of at most `most` bytes; what is longer ends in "[...]"."""
    text = _text(value[:most])
    if len(value) <= most and len(text.encode()) <= most:
        return text
    kept, left = [], most - len(" [...]")
    for character in value[:most]:
        escaped = _text(character)
        left -= len(escaped.encode())
        if left < 0:
            break
        kept.append(escaped)
    return "".join(kept) + " [...]"


def _text(value: str) -> str:
    """Escaped, and without the characters that change the direction or place of what is shown."""
    return html.escape("".join(c for c in value if c == "\n" or c.isprintable()))


def table(rows: Sequence[Row]) -> str:
    """What the terminal shows: a line for each submission, with the known mistakes that were recognised."""
    lines = [f"{'student':30}{'assignment':16}{'points':>9}  first thing to mend"]
    for row in rows:
        graded = row.graded
        first = next((task for task in graded.tasks if task.score < task.max_score), None)
        points = f"{graded.score:g} / {graded.max_score:g}"
        said = _in_a_line(first) if first else ""
        lines.append(f"{_narrow(row.student):30}{_narrow(graded.assignment):16}{points:>9}  {said}".rstrip())
    return "\n".join(lines) + "\n"


def _in_a_line(task: Task) -> str:
    name, _, group = task.name.partition("__")
    mistakes = f" ({', '.join(task.mistakes)})" * bool(task.mistakes)
    said = " ".join("".join(c for c in task.diagnosis[:300] if c.isprintable() or c in " \n").split())
    return textwrap.shorten(f"{name}, {group}{mistakes}: {said}", 110, placeholder=" ...")


def _narrow(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:29]
