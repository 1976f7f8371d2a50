"""Every notebook keeps the standard: it runs alone, stops at its first hole by name, and has all its parts."""

import ast
import contextlib
import os
import re
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from starting import run_python

from autograder.build import ROOT, dump, learner_notebook
from autograder.course import source_notebook
from autograder.source import read_lessons

LESSONS = {lesson.stem: lesson for lesson in read_lessons(ROOT)}
DETAILS = re.compile(r"<details><summary>(Hint ([123]): .+?)</summary>\n\n.+?\n\n</details>", re.DOTALL)
every_notebook = pytest.mark.parametrize("stem", LESSONS)


def run(notebook, tmp_path):
    """Execute in a fresh kernel, as JupyterLab does, up to the end or the first error: the notebook with outputs."""
    notebook = nbformat.reads(dump(notebook), as_version=4)
    client = NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(tmp_path)}})
    own = {"PYTHONPATH": str(ROOT), "COURSE_PROGRESS": str(tmp_path / "progress.json")}
    with contextlib.suppress(CellExecutionError):
        client.execute(env=os.environ | own)
    return notebook


def errors(notebook):
    return [(c.id, o) for c in notebook.cells for o in c.get("outputs", ()) if o.output_type == "error"]


@every_notebook
def test_the_solution_runs_from_start_to_end_and_passes_its_hidden_checks(stem, tmp_path):
    lesson = LESSONS[stem]
    done = run(source_notebook(lesson, ROOT, seed=4321), tmp_path)
    assert errors(done) == []
    for cell in done.cells:
        if cell.id in [c.id for c in lesson.cells if c.check]:
            said = "".join(o.text for o in cell.outputs if "text" in o)
            assert said.count(" passes.\n") == 2, f"{cell.id}: the visible and the hidden check say that they passed"
    stderr = [o.text for c in done.cells for o in c.get("outputs", ()) if o.get("name") == "stderr"]
    assert stderr == [], "nbgrader counts what goes to stderr as a failure"


# Up to its first hole a learner's notebook is the solution's, which runs above, and test_include.py runs every stub.
@pytest.mark.parametrize("stem", [pytest.param(s, marks=[pytest.mark.slow] * (s != "02_mask")) for s in LESSONS])
def test_the_learners_notebook_stops_at_its_first_hole_and_names_the_exercise(stem, tmp_path):
    lesson = LESSONS[stem]
    first = next(cell for cell in lesson.cells if cell.solution)
    ((where, error),) = errors(run(learner_notebook(lesson, ROOT), tmp_path))
    ids = [cell.id for cell in lesson.cells]
    assert ids.index(where) > ids.index(first.id) and f"Exercise {first.exercise}" in error.evalue
    assert first.solution in error.evalue


# --- its parts


@every_notebook
def test_an_exercise_says_its_minutes_and_difficulty_and_offers_three_staged_hints(stem):
    lesson = LESSONS[stem]
    texts = [cell.text for cell in lesson.cells]
    for place, cell in enumerate(lesson.cells):
        if not cell.solution:
            continue
        heading = max(i for i in range(place) if f"### Exercise {cell.exercise}:" in texts[i])
        below = texts[heading].split(f"Exercise {cell.exercise}:")[1]
        stated = re.search(r"(\d+) minutes, difficulty ([1-5]) of 5", below)
        assert stated, f"exercise {cell.exercise} does not say its minutes and difficulty"
        assert [int(x) for x in stated.groups()] == [cell.minutes, cell.difficulty], f"exercise {cell.exercise}"
        hints = [DETAILS.findall(text) for text in texts[heading:place] if "<details>" in text]
        assert [[number for _, number in found] for found in hints] == [["1", "2", "3"]], f"exercise {cell.exercise}"


@every_notebook
def test_a_notebook_asks_before_it_tells_and_breaks_things_and_can_be_moved(stem):
    code = [cell.text for cell in LESSONS[stem].cells if cell.kind == "code"]
    guesses = [t for t in code if re.search(r"= (\[)?None\b", t) or re.search(r": None[,}]", t)]
    assert guesses, "no recorded prediction"
    assert any("wrong_answer" in text for text in code), "no cell runs the wrong answers"
    assert any(re.search(r"^explore_\w+\(\)", text, re.MULTILINE) for text in code), "no explorer"
    last = [cell for cell in LESSONS[stem].cells if cell.kind == "markdown"][-1]
    assert "What you can do now" in last.text


@every_notebook
def test_what_a_notebook_refers_to_exists(stem):
    lesson = LESSONS[stem]
    text = "\n".join(cell.text for cell in lesson.cells if cell.kind == "markdown")
    planned = {f"{n:02}" for n in range(10)}
    assert set(re.findall(r"[Nn]otebook (\d\d)\b", text)) <= planned
    for section in re.findall(r"[Ss]ection (\d+)\b(?! of)", text):
        assert re.search(rf"^## {section}\. ", text, re.MULTILINE), f"there is no section {section}"
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        assert (ROOT / "notebooks" / target).exists(), f"{target} does not exist"
    assert not re.search(r"https?://", text) or "huggingface" in text or "github" in text or "arxiv" in text


def test_no_word_is_misspelt_in_what_people_read():
    pytest.importorskip("codespell_lib")
    files = [*sorted((ROOT / "solutions").iterdir()), ROOT / "README.md", ROOT / "course_lib", ROOT / "autograder"]
    known = "arithmetics,fo,te,nd,ue,ans"
    done = run_python("-m", "codespell_lib", "--skip", "*.safetensors,golden.json,*.pyc", "-L", known, *files)
    assert done.returncode == 0, done.stdout


@every_notebook
def test_a_notebook_needs_only_what_its_title_promises(stem):
    lesson = LESSONS[stem]
    names = set()
    for cell in lesson.cells:
        if cell.kind == "code" and "# include" not in cell.text:
            tree = ast.parse("\n".join("" if line.lstrip()[:1] in "%!" else line for line in cell.text.split("\n")))
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names.add((node.module or "").partition(".")[0])
    title = lesson.cells[0].text
    outside = names - set(sys.stdlib_module_names) - {"numpy", "matplotlib", "autograder", "course_lib"}
    assert outside <= ({"torch"} if "torch" in title.lower() else set())
