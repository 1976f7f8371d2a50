"""Answers that attack: none earns a point that it should not, harms anything outside, tells a secret, or stops the grader."""

import json
import shutil
import socket
import threading

import hostile
import hostile_design
import odd
import pytest
from isolation import isolated, levels
from starting import ROOT, run_python

from autograder import seeds
from autograder.exercise import Returned
from autograder.exercises import EXERCISES
from autograder.grading import remote
from autograder.grading.grade import grade_file
from autograder.grading.sandbox import level
from autograder.plain import equal

SECRET = "canary-8f3a1c"
COURSE = 771_234_567
WORTH = {f"positions__{group.name}": 2 for group in EXERCISES["positions"].groups}


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


def some(names, share, slow=()):
    """Every `share`th in every run; the others, and those in `slow`, are slow."""
    quick = [name for name in names if name not in slow][1::share]
    return [pytest.param(n, marks=[] if n in quick else [pytest.mark.slow]) for n in names]


def hidden_words(assignment, worth):
    """What no learner may read: the seeds of unseen inputs, and how a message would write the calls that they choose."""
    words = {str(COURSE)}
    for grade_id in worth:
        name, _, group_name = grade_id.partition("__")
        seed = seeds.hidden(COURSE, assignment, grade_id)
        words.add(str(seed))
        cases = EXERCISES[name].group(group_name).cases
        if cases:
            seen = {call.label for call in cases(seeds.PUBLIC)}
            words |= {call.label for call in cases(seed) if len(call.label) > 20} - seen
    return words


def graded_at(how, tmp_path, source, assignment, worth):
    """The graded submission of one answer, after a look at what it says."""
    graded = grade_file(submitted(tmp_path, source), assignment, worth, COURSE, how)
    said = " ".join([*graded.notes, *(task.diagnosis for task in graded.tasks)])
    assert SECRET not in said and not [word for word in hidden_words(assignment, worth) if word in said]
    assert all(task.diagnosis for task in graded.tasks) and graded.max_score == sum(worth.values())
    return graded


@isolated
@pytest.mark.parametrize("how", levels())
@pytest.mark.parametrize("name", some(hostile.BODIES, 4, hostile.WAIT - {"never returns"}))
def test_a_hostile_answer_gains_nothing_and_harms_nothing(name, how, tmp_path, monkeypatch, listening):
    monkeypatch.setattr(remote, "SECONDS", 3)
    port, heard = listening
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    graded = graded_at(how, tmp_path, hostile.answer(name, str(secret), port), "03_positions", WORTH)
    assert graded.score == 0
    assert secret.read_text() == SECRET and not heard
    assert sorted(file.name for file in tmp_path.iterdir()) == ["secret.txt", "submitted.ipynb"]


@isolated
@pytest.mark.parametrize("how", levels())
@pytest.mark.parametrize("name", some(hostile_design.ATTACKS, 4, hostile_design.SLOW))
def test_an_attack_on_an_exercise_earns_what_its_honest_part_earns(name, how, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 3)
    attack = hostile_design.ATTACKS[name]
    graded = graded_at(how, tmp_path, attack.source, attack.assignment, attack.worth)
    earned = {task.name.partition("__")[2] for task in graded.tasks if task.score}
    assert earned <= set(attack.honest), [task.diagnosis for task in graded.tasks]


ONE_WAY = [
    (exercise.name, group.name)
    for exercise in EXERCISES.values()
    for group in exercise.groups
    if group.cases and not exercise.callbacks and exercise.notebook != "04_attention"
]


@pytest.mark.parametrize("graded", some(ONE_WAY, 4), ids=" ".join)
def test_a_table_of_the_visible_cases_passes_no_hidden_ones(graded):
    """A right answer of which only what the visible cases ask for is known: of any other call it returns nothing."""
    name, group_name = graded
    exercise = EXERCISES[name]
    group = exercise.group(group_name)
    answer = hostile_design.ours(exercise)
    public = group.cases(seeds.PUBLIC)
    table = list(zip(public, answer.run(public, apart=group.apart), strict=True))

    def looked_up(call):
        found = (outcome for known, outcome in table if equal(plain_args(known), plain_args(call)))
        return next(found, Returned(None))

    for seed in (seeds.hidden(COURSE, exercise.notebook, f"{name}__{group_name}"), 3, 4):
        calls = group.cases(seed)
        verdict = group.judge(calls, [looked_up(call) for call in calls])
        assert not verdict.passed


def plain_args(call):
    from autograder.plain import plain

    return plain(call.args)


@isolated
def test_a_table_of_the_visible_cases_is_told_apart_from_an_answer(tmp_path):
    table = hostile_design.table("positions", "values")
    graded = graded_at(level(), tmp_path, table, "03_positions", {"positions__values": 2})
    (task,) = graded.tasks
    assert task.score == 0 and "passes on the inputs that you see" in task.diagnosis


@isolated
def test_a_course_that_lies_in_the_folder_for_temporary_files_isolates_too(tmp_path):
    for name in ("autograder", "course_lib"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    found = run_python("-m", "autograder", "level", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert found.stdout.strip() == level(), found.stderr


@isolated
@pytest.mark.parametrize("how", levels())
def test_after_an_attack_the_next_submission_is_graded_as_ever(how, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 3)
    right = (
        "def positions(cached, computed, take):\n    return list(range(cached + computed, cached + computed + take))\n"
    )
    for name in ("kills everything", "answers ahead", "says that it has ended"):
        grade_file(submitted(tmp_path, hostile.answer(name)), "03_positions", WORTH, COURSE, how)
        assert grade_file(submitted(tmp_path, right), "03_positions", WORTH, COURSE, how).score == 4


# Honest notebooks


@pytest.mark.parametrize("name", some(odd.BODIES, 3))
def test_an_honest_notebook_earns_all_its_points_whatever_state_it_is_in(name, tmp_path):
    file = tmp_path / "Copy of work (3).ipynb"
    file.write_bytes(odd.BODIES[name]())
    graded = grade_file(file, "02_mask", odd.MASK, COURSE, level())
    assert graded.score == 5, [task.diagnosis for task in graded.tasks]
    assert all(task.diagnosis.startswith("Passed") for task in graded.tasks)


@pytest.mark.parametrize("name", some(odd.OTHERS, 3))
def test_an_honest_answer_to_another_exercise_earns_all_its_points(name, tmp_path):
    one = odd.OTHERS[name]
    graded = grade_file(submitted(tmp_path, one.source), one.assignment, one.worth, COURSE, level())
    assert graded.score == graded.max_score, [task.diagnosis for task in graded.tasks]
