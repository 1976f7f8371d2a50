"""The zip for Gradescope: its two scripts are run in a clean folder, as Gradescope runs them in /autograder."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("jupytext")

from test_grade import notebook

from autograder.exercises import EXERCISES
from autograder.grading import gradescope, launch, sandbox
from autograder.grading.gradescope import grade_submission, make_zip
from autograder.seeds import hidden
from course_lib.cli import UserError

SEED = 4711
MASK = "chunk_attention_mask"
NOTHING = "No notebook of 02_mask was handed in. Submit the file 02_mask.ipynb with your answers."


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    out = tmp_path_factory.mktemp("zip") / "mask.zip"
    assert make_zip(out, "02_mask", SEED) == 0
    return out


@pytest.fixture
def place(archive):
    """What Gradescope makes of the zip: source/, submission/ and run_autograder below one folder. No setup.sh yet."""
    folder = Path(tempfile.mkdtemp(prefix="autograder-"))
    folder.chmod(0o755)  # as /autograder is
    (folder / "submission").mkdir()
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            opened.extract(entry, folder / "source")
            (folder / "source" / entry.filename).chmod(stat.S_IMODE(entry.external_attr >> 16))
    shutil.copy(folder / "source" / "run_autograder", folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def ready(place):
    """The place with this Python in place of the environment that setup.sh makes."""
    python = place / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return place


def run(folder, script="run_autograder", **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    env |= {"AUTOGRADER_ROOT": str(folder), **more}
    return subprocess.run(["bash", folder / script], cwd=folder, env=env, capture_output=True, text=True, timeout=900)


def results(folder, *files):
    """results.json after these (name, content) were handed in; its form is as Gradescope asks."""
    for name, content in files:
        (folder / "submission" / name).parent.mkdir(exist_ok=True)
        (folder / "submission" / name).write_bytes(content.encode() if isinstance(content, str) else content)
    done = run(folder)
    text = (folder / "results" / "results.json").read_text("utf-8")
    assert done.returncode == 0, done.stderr
    made = json.loads(text)
    assert made["score"] == sum(test["score"] for test in made["tests"])
    for test in made["tests"]:
        assert 0 <= test["score"] <= test["max_score"] and test["output"] and test["visibility"] == "visible"
        assert test["status"] == ("passed" if test["score"] == test["max_score"] else "failed")
        grade_id = test["name"].replace(", ", "__")
        assert str(SEED) not in text and str(hidden(SEED, "02_mask", grade_id)) not in text
    return made


def scores(made):
    return {test["name"]: (test["score"], test["max_score"]) for test in made["tests"]}


def test_a_right_notebook_earns_all_points_under_any_name(ready):
    made = results(ready, ("my work (2).ipynb", notebook("02_mask")))
    assert made["score"] == 13 and len(made["tests"]) == 5
    assert "my work (2).ipynb was graded." in made["output"]
    assert f"{MASK}: Your answer was taken from cell 15, with what it uses of cell 2." in made["output"]
    assert f"isolation level {sandbox.level()}." in made["output"]


def test_a_known_mistake_is_named(ready):
    wrong = EXERCISES[MASK].wrong_answer("strict")
    made = results(ready, ("02_mask.ipynb", notebook("02_mask", {MASK: wrong.source})))
    assert scores(made)[f"{MASK}, values"] == (0, 3) and made["score"] == 8
    assert wrong.message in made["tests"][0]["output"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], NOTHING),
        ([("notes.txt", "hello")], NOTHING),
        ([("other.ipynb", json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))], NOTHING),
        ([("02_mask.ipynb", "")], "The file is empty."),
        ([("02_mask.ipynb", "{")], "The file is no JSON"),
        ([("02_mask.ipynb", b"\xff\xfa\x00")], "The file is not written in UTF-8"),
    ],
    ids=["nothing", "no notebook", "another notebook", "empty", "broken", "no text"],
)
def test_what_cannot_be_graded_is_told_and_earns_nothing(ready, files, said):
    made = results(ready, *files)
    assert made["score"] == 0 and len(made["tests"]) == 5
    assert all(said in test["output"] for test in made["tests"])


def test_of_two_notebooks_the_newest_is_graded_and_the_output_says_so(ready):
    old = notebook("02_mask", {MASK: EXERCISES[MASK].wrong_answer("strict").source})
    (ready / "submission" / "b.ipynb").write_text(old)
    os.utime(ready / "submission" / "b.ipynb", (1, 1))
    made = results(ready, ("a.ipynb", notebook("02_mask")))
    assert made["score"] == 13 and "a.ipynb was graded. It is the newest of 2 notebooks" in made["output"]


def test_grading_again_leaves_nothing_of_the_grade_before(ready):
    assert results(ready, ("02_mask.ipynb", notebook("02_mask")))["score"] == 13
    (ready / "submission" / "02_mask.ipynb").unlink()
    assert results(ready)["score"] == 0


@pytest.mark.parametrize("missing", ["source/settings.json", "venv/bin/python", "source/course"])
def test_results_are_written_even_if_the_grader_itself_fails(ready, missing):
    (ready / "submission" / "02_mask.ipynb").write_text(notebook("02_mask"))
    shutil.rmtree(ready / missing) if (ready / missing).is_dir() else (ready / missing).unlink()
    run(ready)
    made = json.loads((ready / "results" / "results.json").read_text())
    assert made["score"] == 0 and "no fault of the notebook" in made["output"]


def test_settings_and_results_are_closed_to_others(ready):
    results(ready)
    for path in (ready / "source" / "settings.json", ready / "results"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


PEEKS = """\
def {name}(*args):
    import os
    told = [os.getuid()]
    for path in ("{settings}", "{results}/x"):
        try:
            told.append(open(path, "w" if path.endswith("x") else "r").name)
        except OSError as error:
            told.append(type(error).__name__)
    raise ValueError(told)
"""


@pytest.fixture
def without_namespaces(monkeypatch):
    """A container like many: root, and no isolation but processes."""
    monkeypatch.setattr(sandbox, "level", lambda: "process")
    launch.nobody.cache_clear()


def test_without_namespaces_answers_run_as_nobody_and_read_neither_seed_nor_results(ready, without_namespaces):
    if not launch.nobody():
        pytest.skip("needs root, and a Python that does not lie in a closed folder")
    (ready / "results").mkdir(mode=0o700)
    peeks = PEEKS.format(name=MASK, settings=ready / "source" / "settings.json", results=ready / "results")
    (ready / "submission" / "02_mask.ipynb").write_text(notebook("02_mask", {MASK: peeks}))
    made = grade_submission(ready)
    assert made["score"] == 8  # the other two exercises
    assert "[65534, 'PermissionError', 'PermissionError']" in made["tests"][0]["output"]
    assert gradescope.NO_NAMESPACES in made["output"]


def test_without_namespaces_and_without_root_the_output_says_what_that_means(ready, without_namespaces, monkeypatch):
    monkeypatch.setattr(launch, "nobody", dict)
    (ready / "submission" / "02_mask.ipynb").write_text(notebook("02_mask"))
    made = grade_submission(ready)
    assert made["score"] == 13 and gradescope.NOT_ROOT in made["output"]


def test_the_zip_holds_scripts_that_can_be_run_settings_of_the_owner_alone_and_is_the_same_each_time(archive, tmp_path):
    again = tmp_path / "again.zip"
    make_zip(again, "02_mask", SEED)
    assert again.read_bytes() == archive.read_bytes() and stat.S_IMODE(again.stat().st_mode) == 0o600
    with zipfile.ZipFile(archive) as opened:
        modes = {entry.filename: stat.S_IMODE(entry.external_attr >> 16) for entry in opened.infolist()}
    assert modes["setup.sh"] == modes["run_autograder"] == 0o755 and modes["settings.json"] == 0o600
    assert not any("__pycache__" in name for name in modes)


def test_without_a_seed_a_secret_one_is_drawn(tmp_path):
    seeds = set()
    for name in ("a.zip", "b.zip"):
        make_zip(tmp_path / name, "02_mask")
        with zipfile.ZipFile(tmp_path / name) as opened:
            seeds.add(json.loads(opened.read("settings.json"))["seed"])
    assert len(seeds) == 2 and all(seed > 2**64 for seed in seeds)


def test_torch_is_asked_for_where_answers_use_it_alone(archive, tmp_path):
    make_zip(tmp_path / "bits.zip", "04_bits", 1)
    with zipfile.ZipFile(tmp_path / "bits.zip") as bits, zipfile.ZipFile(archive) as mask:
        assert b"\ntorch" in bits.read("requirements.txt") and b"torch" not in mask.read("requirements.txt")


@pytest.mark.parametrize(
    ("out", "assignment", "said"),
    [
        ("mask.tar", "02_mask", "does not end in .zip"),
        ("mask.zip", "mask", "there are 00_"),
        ("no/mask.zip", "02_mask", "folder"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_written(tmp_path, out, assignment, said):
    with pytest.raises(UserError, match=said):
        make_zip(tmp_path / out, assignment, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_setup_makes_an_environment_of_its_own_in_which_submissions_are_graded(place):
    done = run(place, "source/setup.sh")
    if done.returncode and ("NewConnectionError" in done.stderr or "Temporary failure" in done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    assert results(place, ("02_mask.ipynb", notebook("02_mask")))["score"] == 13
    magic = {MASK: EXERCISES[MASK].wrong_answer("strict").source + "\n%timeit 1\n"}  # read by IPython
    assert results(place, ("02_mask.ipynb", notebook("02_mask", magic)))["score"] == 8
