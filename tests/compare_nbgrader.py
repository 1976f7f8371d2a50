"""Grades the same submissions with untouched nbgrader and with our engine, and lists every task that differs.

python tests/compare_nbgrader.py --plain 200     whole notebooks: right, wrong and unwritten answers, over all ten
python tests/compare_nbgrader.py --odd           those of odd.py: ours may give more there, never less

Exit code 1 if a plain one differs, or an odd one has less of ours. nbgrader takes 2 to 9 s of CPU for each.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import odd
from right_answers import right_answers
from starting import ROOT

from autograder.build import learner_notebook
from autograder.course import make_course, open_gradebook
from autograder.exercises import EXERCISES
from autograder.grading.sandbox import level
from autograder.source import read_lessons

ODD_STEM = "02_mask"
OFF = "--Autograde.exporter_class=nbconvert.exporters.NotebookExporter"


def plain_submissions(count, seed=1):
    """(student, assignment, notebook file) `count` times: each answer is right, a known mistake, or not written."""
    draw, lessons = random.Random(seed), read_lessons(ROOT)
    for number in range(count):
        lesson = lessons[number % len(lessons)]
        made = learner_notebook(lesson, ROOT)
        for cell in made["cells"]:
            exercise = EXERCISES.get(cell["metadata"].get("nbgrader", {}).get("grade_id", ""))
            if exercise is not None:
                kind = draw.choices(["right", "wrong", "stub"], [5, 4, 1])[0]
                wrong = [one.source for one in exercise.wrong_answers]
                if kind != "stub":
                    text = draw.choice(right_answers(exercise) if kind == "right" else wrong)
                    cell["source"] = f"{exercise.imports}\n\n\n{text}"
        yield f"s{number:03}", lesson.stem, json.dumps(made).encode()


def odd_submissions():
    """(student, assignment, notebook file) of every honest notebook in an odd state; the student's name says which."""
    for name, body in odd.BODIES.items():
        yield name.replace(" ", "-").replace("/", "-"), ODD_STEM, body()


def compare(folder, submissions, *, say=print):
    """{(assignment, student, task): (nbgrader's score or None, ours)} of the same submissions in two equal courses.

    say   is called with a line for each assignment that is done
    """
    ours, theirs = folder / "ours", folder / "theirs"
    stems = sorted({stem for _, stem, _ in submissions})
    make_course(ours, seed=11, notebooks=stems)
    for student, stem, content in submissions:
        file = ours / "submitted" / student / stem / f"{stem}.ipynb"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    shutil.copytree(ours, theirs)
    found = {}
    for stem in stems:
        _run(ROOT, "autograder", "grade", ours, "--assignment", stem, "--accept-isolation", level())
        _run(theirs, "nbgrader", "generate_assignment", stem)
        _run(theirs, "nbgrader", "autograde", stem, OFF)
        mine, nbgraders = _scores(ours, stem), _scores(theirs, stem)
        found |= {(stem, *key): (nbgraders.get(key), score) for key, score in mine.items()}
        students = len({student for student, _ in mine})
        differ = sum(nbgraders.get(key) != score for key, score in mine.items())
        say(f"{stem}: {students} submissions, {len(mine)} tasks, {differ} differ")
    return found


def _run(cwd, module, *arguments):
    home = str(cwd)
    own = dict.fromkeys(("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"), home) if cwd != ROOT else {}
    environment = os.environ | own | {"PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(run, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode > 1 or (done.returncode and module == "autograder"):  # nbgrader ends with 1 if one failed
        raise RuntimeError(done.stdout)


def _scores(course, stem):
    with open_gradebook(course / "gradebook.db") as book:
        submissions = book.assignment_submissions(stem)
        return {(s.student.id, g.name): g.score for s in submissions for n in s.notebooks for g in n.grades}


def table(found):
    """A line for each task that differs."""
    return [
        f"{stem:18}{student:40}{task:32}{'not graded' if theirs is None else f'{theirs:g}':>12}{ours:>8g}"
        for (stem, student, task), (theirs, ours) in sorted(found.items())
        if theirs != ours
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", type=int, metavar="N", default=0, help="so many plain submissions")
    parser.add_argument("--odd", action="store_true", help="the honest notebooks in odd states")
    parser.add_argument("--seed", type=int, default=1, help="draws the answers of the plain ones (default 1)")
    options = parser.parse_args()
    if not options.plain and not options.odd:
        parser.error("say --plain N, --odd, or both")
    bad = 0
    chosen = {"plain": list(plain_submissions(options.plain, options.seed))}
    chosen["odd"] = list(odd_submissions()) if options.odd else []
    for kind, submissions in chosen.items():
        if submissions:
            with tempfile.TemporaryDirectory(prefix="compare-") as folder:
                found = compare(Path(folder), submissions, say=lambda line: print(line, flush=True))
            less = sum(theirs is not None and ours < theirs for theirs, ours in found.values())
            bad += len(table(found)) if kind == "plain" else less
            print(
                f"\n{kind}: {len(submissions)} submissions, {len(found)} tasks, {len(table(found))} differ, {less} less"
            )
            print(f"{'assignment':18}{'student':40}{'task':32}{'nbgrader':>12}{'ours':>8}" if table(found) else "")
            print("\n".join(table(found)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
