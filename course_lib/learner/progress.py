"""What a learner has done, in one small JSON file: checks that passed, and questions as they were answered.

The file is ~/.chunked_prefill_course.json, or where COURSE_PROGRESS says: on Colab, for instance, a mounted drive.
Progress is a convenience: a file that is broken is set aside, one that cannot be written costs a printed line, and
neither stops a check. While nbgrader grades (COURSE_GRADING is set) nothing is read or written.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from course_lib.cli import Parser

ASSETS = Path(__file__).parents[1] / "assets"
EMPTY: dict = {"version": 1, "checks": {}, "questions": {}}


def place() -> Path:
    """Where progress is kept."""
    given = os.environ.get("COURSE_PROGRESS", "")
    return Path(given).expanduser() if given else Path.home() / ".chunked_prefill_course.json"


def load(file: Path | None = None) -> dict:
    """What has been done; nothing, when there is no file. A file that is broken is renamed and said so."""
    file = file or place()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return json.loads(json.dumps(EMPTY))
    except (OSError, UnicodeDecodeError) as error:
        return _set_aside(file, str(error))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _set_aside(file, str(error))
    good = isinstance(data, dict) and data.get("version") == 1
    if not good or not all(isinstance(data.get(key), dict) for key in ("checks", "questions")):
        return _set_aside(file, "it is not a progress file of this course")
    return data


def _set_aside(file: Path, why: str) -> dict:
    aside = file.with_name(f"{file.name}.broken-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        os.replace(file, aside)
        print(f"{file} could not be read ({why}). It is now {aside.name}, and a new one begins.")
    except OSError as error:
        print(f"{file} could not be read ({why}), nor set aside ({error}).")
    return json.loads(json.dumps(EMPTY))


def record_check(grade_id: str) -> None:
    """A check has passed."""
    _record("checks", grade_id, {"passed": f"{datetime.now():%Y-%m-%d %H:%M}"})


def record_answer(question_id: str, option: int, right: bool) -> None:
    """A question was answered: the first answer is what counts, the latest is kept beside it."""
    _record("questions", question_id, {"option": option, "right": right})


def _record(kind: str, name: str, entry: dict) -> None:
    if "COURSE_GRADING" in os.environ:
        return
    file = place()
    data = load(file)
    entries = data[kind]
    first = entries.get(name)
    if kind == "questions" and isinstance(first, dict) and "right" in first:
        entry = {**entry, "first_right": first.get("first_right", first["right"])}
    elif kind == "questions":
        entry = {**entry, "first_right": entry["right"]}
    elif first is not None:
        return
    entries[name] = entry
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as temporary:
            json.dump(data, temporary, indent=1, sort_keys=True)
        os.replace(name, file)
    except OSError as error:
        print(f"progress is not kept: {file}: {error.strerror or error}. Set COURSE_PROGRESS to a file you may write.")


def summary(done: Mapping | None = None) -> dict:
    """notebooks: one entry each with exercises and questions done and in all; next: the first exercise not done."""
    done = load() if done is None else done
    exercises = json.loads((ASSETS / "exercises.json").read_text(encoding="utf-8"))
    questions = json.loads((ASSETS / "questions.json").read_text(encoding="utf-8"))
    stems = dict.fromkeys([*(e["notebook"] for e in exercises), *questions])
    rows, following = [], None
    for stem in sorted(stems):
        mine = [e for e in exercises if e["notebook"] == stem]
        finished = [e for e in mine if all(g in done["checks"] for g in e["grade_ids"])]
        asked = [q["id"] for q in questions.get(stem, ())]
        answers = [done["questions"][i] for i in asked if isinstance(done["questions"].get(i), dict)]
        rows.append(
            {
                "notebook": stem,
                "exercises": [len(finished), len(mine)],
                "points": [sum(e["points"] for e in some) for some in (finished, mine)],
                "answered": [len(answers), len(asked)],
                "right_at_first": sum(bool(a.get("first_right")) for a in answers),
            }
        )
        following = following or next((e for e in mine if e not in finished), None)
    after = following and {key: following[key] for key in ("number", "name", "notebook")}
    return {"file": str(place()), "notebooks": rows, "next": after}


def report(facts: dict | None = None) -> str:
    """The summary for a person."""
    facts = summary() if facts is None else facts
    lines = [f"{'notebook':14} {'exercises':>9} {'points':>9} {'questions':>9}  right at first"]
    for row in facts["notebooks"]:
        done, points, answered = ("{}/{}".format(*row[key]) for key in ("exercises", "points", "answered"))
        lines.append(f"{row['notebook']:14} {done:>9} {points:>9} {answered:>9}  {row['right_at_first']}")
    following = facts["next"]
    todo = "All exercises are done."
    if following:
        todo = f"Next: exercise {following['number']}, {following['name']}, in {following['notebook']}.ipynb."
    return "\n".join([*lines, todo, f"Kept in {facts['file']} (set COURSE_PROGRESS to keep it elsewhere)."])


def main(argv) -> int:
    p = Parser(
        prog="python -m course_lib progress",
        description="What is done, and what is next. COURSE_PROGRESS names the file if it is not in your home.",
        example="python -m course_lib progress",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object")
    args = p.parse_args(argv)
    facts = summary()
    print(json.dumps(facts, indent=1) if args.json else report(facts))
    return 0
