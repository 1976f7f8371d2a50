"""Progress is kept in one small file, and nothing about that file can stop a check."""

import json
import os
import stat

import numpy as np
import pytest

from autograder import check
from course_lib.__main__ import main as course_lib
from course_lib.learner import progress


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "deep" / "progress.json"))
    monkeypatch.delenv("COURSE_GRADING", raising=False)
    return tmp_path / "deep" / "progress.json"


def right_mask(chunk_len, cached_len):
    return np.arange(cached_len + chunk_len)[None, :] <= cached_len + np.arange(chunk_len)[:, None]


def row(facts, stem="02_mask"):
    return next(r for r in facts["notebooks"] if r["notebook"] == stem)


def test_a_check_that_passes_is_kept_and_one_that_fails_is_not(file, capsys):
    with pytest.raises(check.CheckFailed):
        check.chunk_attention_mask(lambda *_: np.ones((3, 8), bool))
    assert not file.exists() and row(progress.summary())["exercises"] == [0, 3]
    check.chunk_attention_mask(right_mask, group="values")
    assert row(progress.summary())["exercises"] == [0, 3], "one of two groups is not the exercise"
    check.chunk_attention_mask(right_mask, group="kv")
    facts = progress.summary()
    assert row(facts)["exercises"] == [1, 3] and row(facts)["points"][0] == 5
    check.progress()
    assert "02_mask" in capsys.readouterr().out


def test_what_is_next_is_the_first_exercise_that_is_not_done(file):
    for entry in json.loads((progress.ASSETS / "exercises.json").read_text("utf-8")):
        following = progress.summary()["next"]
        assert following["name"] == entry["name"]
        for grade_id in entry["grade_ids"]:
            progress.record_check(grade_id)
    assert progress.summary()["next"] is None and "All exercises are done." in progress.report()


def test_the_first_answer_to_a_question_counts_and_the_latest_is_kept(file):
    progress.record_answer("nb02-q1", 0, False)
    progress.record_answer("nb02-q1", 1, True)
    progress.record_answer("nb02-q2", 2, True)
    assert progress.load()["questions"]["nb02-q1"] == {"first_right": False, "option": 1, "right": True}
    assert row(progress.summary())["answered"] == [2, 8] and row(progress.summary())["right_at_first"] == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "checks": []}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_broken_file_is_set_aside_and_a_new_one_begins(file, content, capsys):
    file.parent.mkdir()
    file.write_bytes(content)
    check.chunk_attention_mask(right_mask, group="values")
    assert "could not be read" in capsys.readouterr().out
    assert list(json.loads(file.read_text())["checks"]) == ["chunk_attention_mask__values"]
    (aside,) = [f for f in file.parent.iterdir() if "broken" in f.name]
    assert aside.read_bytes() == content


def test_a_place_that_cannot_be_written_costs_a_line_and_no_check(tmp_path, monkeypatch, capsys):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "a file" / "progress.json"))
    check.chunk_attention_mask(right_mask, group="values")
    out = capsys.readouterr().out
    assert "progress is not kept" in out and "passes" in out


def test_nothing_is_read_or_written_while_grading(file, monkeypatch):
    monkeypatch.setenv("COURSE_GRADING", "1")
    check.chunk_attention_mask(right_mask, group="values")
    assert not file.exists()


def test_the_place_is_the_home_unless_it_is_set(monkeypatch):
    monkeypatch.delenv("COURSE_PROGRESS")
    assert progress.place().parent == progress.Path.home()
    monkeypatch.setenv("COURSE_PROGRESS", "~/drive/p.json")
    assert progress.place() == progress.Path.home() / "drive" / "p.json"


def test_the_file_is_whole_at_any_time(file, monkeypatch):
    """It is replaced, never written into: an interrupted write leaves the old one."""
    progress.record_check("a__b")
    before = file.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    progress.record_check("c__d")
    assert file.read_bytes() == before


def test_the_command_tells_the_same_to_people_and_programs(file, capsys):
    progress.record_check("ragged_mask__values")
    assert course_lib(["progress", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert row(facts)["exercises"] == [1, 3] and facts["file"] == str(file)
    assert course_lib(["progress"]) == 0
    out = capsys.readouterr().out
    assert f"Next: exercise {facts['next']['number']}" in out and str(file) in out
    assert not stat.S_ISDIR(file.stat().st_mode)
