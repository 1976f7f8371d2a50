"""Answers that attack: none earns a point, harms anything outside, tells a secret, or stops the grader."""

import json
import shutil
import socket
import threading

import hostile
import odd
import pytest
from starting import ROOT, run_python

from autograder.exercises import EXERCISES
from autograder.grading import remote
from autograder.grading.grade import grade_file
from autograder.grading.sandbox import level

SECRET = "canary-8f3a1c"
WORTH = {f"positions__{group.name}": 2 for group in EXERCISES["positions"].groups}
safe = pytest.mark.skipif(level() == "process", reason="no bubblewrap here: hostile code would really run")


def submitted(folder, source):
    file = folder / "submitted.ipynb"
    cells = [{"cell_type": "code", "source": source, "metadata": {}}]
    file.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return file


@pytest.fixture
def listening():
    """A port of this machine, and what was sent to it."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        over = threading.Event()

        def listen():
            while not over.is_set():
                try:
                    heard.append(server.accept())
                except TimeoutError:
                    pass

        thread = threading.Thread(target=listen)
        thread.start()
        yield server.getsockname()[1], heard
        over.set()
        thread.join()


def some(names, share):
    """Every `share`th in every run; the others are slow."""
    return [pytest.param(n, marks=[] if i % share == 1 else [pytest.mark.slow]) for i, n in enumerate(names)]


@safe
@pytest.mark.parametrize("name", some(hostile.BODIES, 4))
def test_a_hostile_answer_gains_nothing_and_harms_nothing(name, tmp_path, monkeypatch, listening):
    monkeypatch.setattr(remote, "SECONDS", 3)
    port, heard = listening
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    file = submitted(tmp_path, hostile.answer(name, str(secret), port))
    graded = grade_file(file, "03_positions", WORTH, 5, level())
    assert graded.score == 0 and graded.max_score == 4
    assert secret.read_text() == SECRET and not heard
    said = " ".join(task.diagnosis for task in graded.tasks)
    assert SECRET not in said and str(2**60)[:6] not in said and all(task.diagnosis for task in graded.tasks)


@safe
def test_a_course_that_lies_in_the_folder_for_temporary_files_isolates_too(tmp_path):
    for name in ("autograder", "course_lib"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    found = run_python("-m", "autograder", "level", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert found.stdout.strip() == level(), found.stderr


@safe
def test_after_an_attack_the_next_submission_is_graded_as_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 3)
    right = (
        "def positions(cached, computed, take):\n    return list(range(cached + computed, cached + computed + take))\n"
    )
    for name in ("kills everything", "floods the judge"):
        grade_file(submitted(tmp_path, hostile.answer(name)), "03_positions", WORTH, 5, level())
        assert grade_file(submitted(tmp_path, right), "03_positions", WORTH, 5, level()).score == 4


# Honest notebooks


MASK = {"chunk_attention_mask__values": 3, "chunk_attention_mask__kv": 2}


@pytest.mark.parametrize("name", some(odd.BODIES, 3))
def test_an_honest_notebook_earns_all_its_points_whatever_state_it_is_in(name, tmp_path):
    file = tmp_path / "Copy of work (3).ipynb"
    file.write_bytes(odd.BODIES[name]())
    graded = grade_file(file, "02_mask", MASK, 5, level())
    assert graded.score == 5, [task.diagnosis for task in graded.tasks]
    assert all(task.diagnosis.startswith("Passed") for task in graded.tasks)
