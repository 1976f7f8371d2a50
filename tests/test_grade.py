"""Submissions are found, graded and written back; what was handed in is never changed."""

import csv
import io
import json
import tempfile
import zipfile

import pytest
from starting import ROOT

pytest.importorskip("nbgrader")

from autograder.course import make_course, open_gradebook
from autograder.exercises import EXERCISES
from autograder.grading import report, run, sample
from autograder.grading.grade import Graded, Task
from autograder.grading.report import Row
from autograder.grading.run import grade
from autograder.grading.sandbox import level
from autograder.grading.submissions import find
from autograder.include import answer_of
from autograder.source import read_lessons
from course_lib.cli import UserError

LESSONS = {lesson.stem: lesson for lesson in read_lessons(ROOT)}
NAMES = {stem: [c.solution for c in lesson.cells if c.solution] for stem, lesson in LESSONS.items()}
LEVEL = level()


def notebook(stem, answers=()):
    """A lesson as handed in: the solutions, or for some exercises another text."""
    lesson, cells = LESSONS[stem], []
    for cell in lesson.cells:
        text = cell.text
        if cell.solution:
            text = dict(answers).get(cell.solution, answer_of(lesson, cell, ROOT).solved())
        about = {"nbgrader": {"grade_id": cell.grade_id}} if cell.grade_id else {}
        cells.append({"cell_type": cell.kind, "source": text, "metadata": about})
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def stub(stem, name):
    lesson = LESSONS[stem]
    return answer_of(lesson, lesson.solution(name), ROOT).stub()


def hand_in(folder, student, stem, text, file=None):
    path = folder / student / stem / (file or f"{stem}.ipynb")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course in which ann is right, bob has one known mistake and one stub, cyd handed in no notebook; graded."""
    folder = tmp_path_factory.mktemp("course")
    make_course(folder, seed=77)
    wrong = EXERCISES["chunk_attention_mask"].wrong_answer("strict").source
    hand_in(folder / "submitted", "ann", "02_mask", notebook("02_mask"))
    bobs = {"chunk_attention_mask": wrong, "ragged_mask": stub("02_mask", "ragged_mask")}
    hand_in(folder / "submitted", "bob", "02_mask", notebook("02_mask", bobs), "Copy of 02_mask.ipynb")
    hand_in(folder / "submitted", "cyd", "02_mask", "{")
    before = contents(folder / "submitted")
    assert grade(folder, jobs=2, accepted=LEVEL) == 0
    assert contents(folder / "submitted") == before
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def grades(folder):
    found = json.loads((folder / "reports" / "grades.json").read_text())
    return {(g["student"], t["name"]): t for g in found for t in g["tasks"]}


def test_right_wrong_and_unwritten_answers_get_what_they_are_worth(course):
    found = grades(course)
    assert all(t["score"] == t["max_score"] for (who, _), t in found.items() if who == "ann")
    assert found["bob", "chunk_attention_mask__values"]["mistakes"] == ["strict"]
    assert found["bob", "chunk_attention_mask__values"]["score"] == found["bob", "ragged_mask__values"]["score"] == 0
    assert "is not written yet" in found["bob", "ragged_mask__values"]["diagnosis"]
    assert found["bob", "attend__bits"]["score"] == 2
    assert all(t["score"] == 0 and "no JSON" in t["diagnosis"] for (who, _), t in found.items() if who == "cyd")
    assert {g["isolation"] for g in json.loads((course / "reports" / "grades.json").read_text())} == {LEVEL}


def test_the_gradebook_has_the_same_grades_and_the_words(course):
    found = grades(course)
    with open_gradebook(course / "gradebook.db") as book:
        for (student, task), graded in found.items():
            grade_row = book.find_grade(task, "02_mask", "02_mask", student)
            assert grade_row.auto_score == graded["score"] and not grade_row.needs_manual_grade
        comment = book.find_comment("chunk_attention_mask", "02_mask", "02_mask", "bob").auto_comment
    assert "Each query misses its own key" in comment


def test_grading_again_changes_nothing_and_keeps_a_grade_given_by_hand(course):
    with open_gradebook(course / "gradebook.db") as book:
        book.find_grade("ragged_mask__values", "02_mask", "02_mask", "bob").manual_score = 1
        book.db.commit()
    kept = ("reports", "autograded")
    before = {
        name: contents(course / name) if (course / name).is_dir() else (course / name).read_text() for name in kept
    }
    assert grade(course, accepted=LEVEL) == 0
    after = {
        name: contents(course / name) if (course / name).is_dir() else (course / name).read_text() for name in kept
    }
    assert after == before
    with open_gradebook(course / "gradebook.db") as book:
        assert book.find_grade("ragged_mask__values", "02_mask", "02_mask", "bob").manual_score == 1


def test_no_hidden_seed_is_in_anything_that_is_written(course):
    from autograder.seeds import hidden

    seeds = [str(hidden(77, "02_mask", cell.grade_id)) for cell in LESSONS["02_mask"].cells if cell.check]
    for path, content in contents(course).items():
        if "source" not in path.relative_to(course).parts and path.name != "gradebook.db":  # nbgrader's own has them
            assert not any(seed.encode() in content for seed in seeds), path


def test_nbgrader_makes_its_own_feedback_of_what_was_graded(course):
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config

    config = Config()
    config.CourseDirectory.root = str(course)
    done = NbGraderAPI(config=config).generate_feedback("02_mask", "bob")
    assert done["success"], done["log"]
    pages = list((course / "feedback" / "bob" / "02_mask").glob("02_mask.html"))
    assert pages and "Each query misses its own key" in pages[0].read_text("utf-8")


# Where submissions come from


def test_a_moodle_and_a_canvas_zip_are_read(tmp_path):
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("Ann Other_123_assignsubmission_file_/work.ipynb", notebook("03_positions"))
        made.writestr("doebob_12_3456_02_mask-1.ipynb", notebook("02_mask"))
        made.writestr("__MACOSX/._x.ipynb", "junk")
        made.writestr("readme.txt", "hello")
    found = [(s.student, s.assignment) for s in find(archive, NAMES, tmp_path / "unpacked")]
    assert found == [("Ann Other", "03_positions"), ("doebob", "02_mask")]


def test_a_zip_that_leads_out_of_itself_is_refused(tmp_path):
    archive = tmp_path / "evil.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("../../evil.ipynb", notebook("02_mask"))
    with pytest.raises(UserError, match="leads out of it"):
        find(archive, NAMES, tmp_path / "unpacked")
    assert not list(tmp_path.rglob("evil.ipynb"))


def test_of_two_submissions_the_newest_counts_whatever_its_name(tmp_path):
    import os

    old = hand_in(tmp_path, "ann", "x", notebook("02_mask"), "02_mask.ipynb")
    new = hand_in(tmp_path, "ann", "y", notebook("02_mask"), "final (2).ipynb")
    os.utime(old, (1, 1))
    os.utime(new, (2, 2))
    (only,) = find(tmp_path, NAMES, tmp_path / "unpacked")
    assert only.path == new and only.assignment == "02_mask"


def test_links_are_not_followed(tmp_path):
    secret = hand_in(tmp_path / "secret", "x", "02_mask", notebook("02_mask"))
    (tmp_path / "in" / "ann").mkdir(parents=True)
    (tmp_path / "in" / "ann" / "02_mask.ipynb").symlink_to(secret)
    (tmp_path / "in" / "bob").symlink_to(secret.parent)
    (only,) = find(tmp_path / "in", NAMES, tmp_path / "unpacked")
    assert only.student == "ann" and "symbolic link" in only.problem


@pytest.mark.parametrize("where", ["nowhere", "file.txt", "empty"])
def test_where_nothing_was_handed_in_one_sentence_says_so(tmp_path, where):
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError):
        grade(tmp_path / where, accepted=LEVEL)


# Reports


def rows(said, student="ann"):
    task = Task("positions__values", 0, 2, said, ("chunk_relative",))
    return [Row(student, Graded("03_positions", "bubblewrap", (task,)))]


def test_a_page_runs_nothing_and_loads_nothing():
    page = report.as_html(rows("<script>alert(1)</script> \u202e&amp;", "<img src=x onerror=1>")[0])
    assert "<script" not in page and "<img" not in page and "\u202e" not in page and "http" not in page
    assert "&lt;script&gt;" in page


def test_a_table_of_grades_has_no_formula_in_it():
    (_, line) = csv.reader(io.StringIO(report.as_csv(rows('=HYPERLINK("x")', "@ann"))))
    assert line[0] == "'@ann" and line[-1].startswith("'=") and line[3:5] == ["0", "2"]


def test_half_of_a_two_part_character_stops_no_report():
    made = rows("wrong: \ud800 \U0001f600", "a\udfff")
    for text in (report.as_json(made), report.as_csv(made), report.as_html(made[0]), report.table(made)):
        assert "wrong: " in text.encode().decode()
    assert "\U0001f600" in report.as_json(made)


def test_the_grades_have_the_keys_that_others_read():
    (only,) = json.loads(report.as_json(rows("wrong")))
    assert {"student", "assignment", "score", "max_score", "isolation", "tasks"} <= set(only)
    assert {"name", "score", "max_score", "diagnosis"} <= set(only["tasks"][0])


# The sample class


EARNED = {
    "ann-right": 13, "cem-nothing-yet": 0, "dora-one-mistake": 8, "eve-all-wrong": 0, "fay-half": 5,
    "gus-plain-kernel": 11, "hal-syntax-error": 8, "ida-lost-metadata-and-checks": 13, "jon-half-a-file": 0,
}  # fmt: skip
HOSTILE = {"jack-ends-the-process": 0, "kim-reads-a-file": 0, "leo-never-returns": 10}
HARMLESS = {"jill-misspells-her-function": 8, "ken-prints-and-returns-nothing": 8, "lea-forgot-an-import": 10}


@pytest.fixture(params=[LEVEL, "process"])
def at_level(request, monkeypatch):
    """This machine as it is, and as it would be without isolation."""
    if LEVEL == "process" and request.param_index:
        pytest.skip("this machine has no other level")
    for module in (sample, run):
        monkeypatch.setattr(module, "level", lambda: request.param)
    return request.param


def test_the_sample_class_has_twelve_students_and_hostile_ones_only_where_they_are_harmless(at_level):
    lesson = LESSONS["02_mask"]
    students = sample.handed_in(lesson)
    hostile = [text for text in students.values() if b"os._exit" in text or b"/etc/passwd" in text or b"while" in text]
    assert len(students) == 12 and bool(hostile) == (at_level != "process")


@pytest.mark.slow
def test_the_sample_class_gets_the_grades_that_its_names_say(at_level, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert sample.main() == 0
    said = capsys.readouterr().out
    assert ("no hostile answers" in said) == (at_level == "process") and ": written" not in said
    (file,) = tmp_path.rglob("grades.json")
    made = json.loads(file.read_text("utf-8"))
    earned = EARNED | (HARMLESS if at_level == "process" else HOSTILE)
    assert {one["student"]: one["score"] for one in made} == earned
    page = said.split("A feedback page: ")[1].splitlines()[0]
    assert "Each query misses its own key" in open(page, encoding="utf-8").read()
    assert "chunk_attention_mask, values (strict): Row 0 of chunk_attention_mask(3, 5)" in said


def test_the_table_has_a_line_for_each_submission_and_no_line_breaks_of_theirs():
    text = report.table(rows("Cell 3 is no Python.\n    def f(x\nMend \x1b[31m it. " + "x " * 500, "ann\nb" * 20))
    head, line = text.splitlines()
    assert head.startswith("student") and "\x1b" not in text and len(line) < 180
    assert line.endswith(" ...") and "positions, values (chunk_relative): Cell 3 is no Python. def f(x Mend" in line
