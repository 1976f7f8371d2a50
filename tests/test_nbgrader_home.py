"""At home in nbgrader: its command grades with this engine, its gradebook keeps what people gave, its pages show it."""

import json
import os
import subprocess
import sys
import sysconfig

import pytest
from compare_nbgrader import compare, plain_submissions, table
from right_answers import right_answers
from starting import ROOT

pytest.importorskip("nbgrader")

from autograder.build import learner_notebook
from autograder.course import make_course, open_gradebook
from autograder.exercises import EXERCISES
from autograder.grading import gradebook
from autograder.grading.grade import Graded, Task
from autograder.grading.gradebook import write_back
from autograder.grading.report import Row
from autograder.grading.sandbox import LEVELS, level
from autograder.source import read_lessons
from course_lib.cli import UserError

STEM = "02_mask"
LESSONS = read_lessons(ROOT)
LESSON = next(lesson for lesson in LESSONS if lesson.stem == STEM)
TASKS = {cell.grade_id: cell.points for cell in LESSON.cells if cell.check}
LEVEL = level()
real_isolation = pytest.mark.skipif(LEVEL == LEVELS[-1], reason=f"hostile code needs isolation; here is {LEVEL} only")
with_modes = pytest.mark.skipif(os.name == "nt", reason="Windows has no mode bits")


def nbgrader(course, *arguments, code=0):
    """Run nbgrader as an instructor does, away from this user's own settings: what it logs."""
    home = course.parent / "home"
    home.mkdir(exist_ok=True)
    own = {name: str(home) for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
    run = [sys.executable, "-m", "nbgrader", *map(str, arguments)]
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])  # nbgrader starts alembic
    environment = os.environ | own | {"PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(run, capture_output=True, text=True, cwd=course, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def autograde(course, *arguments, code=0):
    return nbgrader(course, "autograde", STEM, f"--SandboxedGrading.accept_isolation={LEVEL}", *arguments, code=code)


def handed_out():
    return learner_notebook(LESSON, ROOT)


def answered(**answers):
    """The learner's notebook with right answers, but for those given."""
    made = handed_out()
    for cell in made["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id", "")
        if name in EXERCISES:
            exercise = EXERCISES[name]
            cell["source"] = f"{exercise.imports}\n\n\n{answers.get(name, right_answers(exercise)[-1])}"
    return json.dumps(made)


def hand_in(course, student, text, name=f"{STEM}.ipynb", **stamps):
    folder = course / "submitted" / student / STEM
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    for stamp, content in stamps.items():
        (folder / f"{stamp}.txt").write_text(content)
    return folder


def scores(course):
    with open_gradebook(course / "gradebook.db") as book:
        found = book.assignment_submissions(STEM)
        return {s.student.id: (s.score, s.max_score, s.needs_manual_grade) for s in found}


def mode(path):
    return path.stat().st_mode & 0o777


# ---- `nbgrader autograde`


ENDS = "def chunk_attention_mask(*args):\n    import ctypes\n    ctypes.string_at(0)\n"
PAGE = "<img src=x onerror=alert(1)>"
SAYS = f'def chunk_attention_mask(*args):\n    raise ValueError("{PAGE}\\n\\n<script>alert(2)</script>")\n'


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of two notebooks with points of its own, and one run of `nbgrader autograde` over an odd class."""
    course = tmp_path_factory.mktemp("home") / "course"
    make_course(course, seed=5, notebooks=["02", "03"], points={"02": 10})
    strict = EXERCISES["chunk_attention_mask"].wrong_answer("strict").source
    hand_in(course, "ann", answered(), timestamp="2026-03-01 10:00:00 UTC", submission_secret="s")
    hand_in(course, "bob", answered(chunk_attention_mask=strict))
    hand_in(course, "cyd", "{")
    hand_in(course, "dan", answered(), "Copy of mask.ipynb", timestamp="yesterday")
    (course / "submitted" / "eve" / STEM).mkdir(parents=True)
    hand_in(course, "fay", answered(chunk_attention_mask=SAYS))
    if LEVEL != LEVELS[-1]:
        hand_in(course, "gus", answered(chunk_attention_mask=ENDS))
    if hasattr(os, "mkfifo"):
        os.mkfifo(hand_in(course, "hal", "") / "z.ipynb")
        (course / "submitted" / "hal" / STEM / f"{STEM}.ipynb").unlink()
        (hand_in(course, "ida", answered()) / "data.csv").symlink_to(course / "course_seed.json")
    hand_in(course, "zoe", answered())
    before = contents(course / "submitted")
    log = autograde(course)
    assert contents(course / "submitted") == before
    return course, log


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def test_the_engine_grades_each_submission_and_nothing_stops_the_run_for_those_who_follow(course):
    folder, log = course
    found = scores(folder)
    mask = 10 - sum(TASKS[name] for name in TASKS if name.startswith("chunk_attention_mask")) * 10 / sum(TASKS.values())
    assert {name: found[name] for name in ("ann", "dan", "zoe")} == dict.fromkeys(
        ("ann", "dan", "zoe"), (10, 10, False)
    )
    assert 0 < found["bob"][0] < 10 and found["cyd"] == (0, 10, False)
    assert found["fay"][0] == found.get("gus", found["fay"])[0] == pytest.approx(mask, abs=0.5)
    if hasattr(os, "mkfifo"):
        assert found["hal"] == (0, 10, False) and found["ida"] == (10, 10, False)
    assert "eve" not in found and f"eve/{STEM}" in log, "nbgrader says so, and formgrader shows it as not graded"


def test_no_file_of_a_learner_goes_along_into_autograded(course):
    written = {path.name for path in (course[0] / "autograded").rglob("*") if not path.is_dir()}
    assert written == {f"{STEM}.ipynb", "timestamp.txt", "submission_secret.txt"}


def test_formgrader_takes_every_graded_submission_for_graded(course):
    """It compares timestamp.txt with the gradebook; no timestamp is none in both."""
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config

    config = Config()
    config.CourseDirectory.root = str(course[0])
    stamp = course[0] / "submitted" / "dan" / STEM / "timestamp.txt"
    kept = stamp.read_text()
    stamp.unlink()  # nbgrader itself stops at it
    try:
        api = NbGraderAPI(config=config)
        assert api.get_autograded_students(STEM) == set(scores(course[0]))
        (ann,) = [one for one in api.get_submissions(STEM) if one["student"] == "ann"]
        assert (ann["score"], ann["timestamp"], ann["autograded"]) == (10, "2026-03-01T10:00:00", True)
    finally:
        stamp.write_text(kept)


def test_feedback_says_what_was_found_and_runs_nothing_that_a_learner_wrote(course):
    folder = course[0]
    nbgrader(folder, "generate_feedback", STEM)
    page = (folder / "feedback" / "bob" / STEM / f"{STEM}.html").read_text("utf-8")
    assert "Each query misses its own key" in page
    page = (folder / "feedback" / "fay" / STEM / f"{STEM}.html").read_text("utf-8")
    assert "onerror=alert(1)" in page and PAGE not in page and "<script>alert(2)" not in page


@pytest.mark.slow
def test_a_page_is_made_anew_for_a_new_submission_without_a_timestamp(course):
    folder = course[0]
    nbgrader(folder, "generate_feedback", STEM, "--student", "bob")
    hand_in(folder, "bob", answered())
    autograde(folder, "--student", "bob")
    assert scores(folder)["bob"] == (10, 10, False)
    nbgrader(folder, "generate_feedback", STEM, "--student", "bob")
    page = (folder / "feedback" / "bob" / STEM / f"{STEM}.html").read_text("utf-8")
    assert "Each query misses its own key" not in page


@pytest.mark.slow
def test_late_penalties_are_set_as_nbgrader_is_told_to(course):
    folder = course[0]
    nbgrader(folder, "db", "assignment", "add", STEM, "--duedate", "2026-02-28 10:00:00 UTC")
    try:
        autograde(folder, "--student", "ann", "--LateSubmissionPlugin.penalty_method=zero")
        with open_gradebook(folder / "gradebook.db") as book:
            assert book.find_submission(STEM, "ann").late_submission_penalty == 10
        autograde(folder, "--student", "ann")
        with open_gradebook(folder / "gradebook.db") as book:
            assert book.find_submission(STEM, "ann").late_submission_penalty == 0
    finally:
        with open_gradebook(folder / "gradebook.db") as book:
            book.update_or_create_assignment(STEM, duedate=None)


@pytest.mark.slow
@with_modes
def test_what_holds_grades_is_for_its_owner_alone_whatever_nbgrader_does_with_it(course):
    folder = course[0]
    before, submitted = os.umask(0o022), [mode(path) for path in (folder / "submitted").rglob("*")]
    folder.chmod(0o755)
    try:
        nbgrader(folder, "export")
        nbgrader(folder, "generate_assignment", STEM, "--force")
        nbgrader(folder, "db", "student", "add", "new")
        book = (folder / "gradebook.db").rename(folder / "kept.db")
        nbgrader(folder, "db", "student", "list")
        assert mode(folder / "gradebook.db") == 0o600, "made anew by nbgrader"
        book.replace(folder / "gradebook.db")
    finally:
        os.umask(before)
    closed = ("source", "autograded", "feedback", "reports", "gradebook.db", "grades.csv", "course_seed.json")
    assert [name for name in closed if mode(folder / name) & 0o077] == []
    assert mode(folder / "release" / STEM) & 0o055 == 0o055 and mode(folder) == 0o755
    assert [mode(path) for path in (folder / "submitted").rglob("*")] == submitted


@pytest.mark.slow
@with_modes
def test_feedback_can_be_released_through_an_exchange(course, tmp_path):
    folder, exchange = course[0], tmp_path / "exchange"
    exchange.mkdir()
    exchange.chmod(0o777)
    at = (f"--Exchange.root={exchange}", "--student", "ann")
    nbgrader(folder, "generate_feedback", STEM, "--student", "ann")
    nbgrader(folder, "release_feedback", STEM, *at)
    assert len(list(exchange.glob("chunked-prefill/feedback/*.html"))) == 1


# ---- what the setting refuses, and what it leaves to nbgrader


@pytest.fixture
def converter(course, monkeypatch):
    """converter(**settings of the course directory) -> nbgrader's Autograde, set as in the course's settings."""
    from nbgrader.converters import Autograde
    from nbgrader.coursedir import CourseDirectory

    from autograder.grading.nbgrader_autograde import SandboxedGrading

    def made(**settings):
        place = CourseDirectory(root=str(course[0]), **({"assignment_id": STEM, "student_id": "*"} | settings))
        return Autograde(coursedir=place, exporter_class=SandboxedGrading)

    return made


def refusal(found, course):
    from nbgrader.converters.base import NbGraderException

    before = contents(course)
    with pytest.raises(NbGraderException) as stopped:
        found.start()
    assert contents(course) == before
    return str(stopped.value)


def test_without_isolation_it_refuses_in_a_sentence_and_changes_nothing(course, converter, monkeypatch):
    monkeypatch.setattr("autograder.grading.nbgrader_autograde.level", lambda: LEVELS[-1])
    said = refusal(converter(), course[0])
    assert "isolates answers by 'process' only" in said and "c.SandboxedGrading.accept_isolation = 'process'" in said


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"db_url": "sqlite:////tmp/other.db"}, "Take db_url out"),
        ({"autograded_directory": "marked"}, "graded ones in autograded/"),
    ],
)
def test_settings_that_the_engine_does_not_follow_are_refused(course, converter, monkeypatch, settings, sentence):
    monkeypatch.setattr("autograder.grading.nbgrader_autograde.level", lambda: LEVELS[0])
    assert sentence in refusal(converter(**settings), course[0])


def test_a_source_without_points_is_refused_in_a_sentence(course, converter):
    file = course[0] / "source" / STEM / f"{STEM}.ipynb"
    kept = file.read_text("utf-8")
    file.write_text("{")
    try:
        assert "holds no points" in refusal(converter(), course[0])
    finally:
        file.write_text(kept, "utf-8")


def test_an_assignment_of_the_instructors_own_is_left_to_nbgrader(course, converter):
    from nbgrader.converters import Autograde, BaseConverter
    from nbgrader.converters.base import NbGraderException

    from autograder.grading.nbgrader_autograde import SandboxedGrading

    for assignment, taken in ((STEM, True), ("midterm", False)):
        found = converter(assignment_id=assignment)
        SandboxedGrading(parent=found)
        assert ("convert_notebooks" in vars(found)) == taken, assignment
    with pytest.raises(NbGraderException, match="no source/05_budget/05_budget.ipynb"):
        SandboxedGrading(parent=converter(assignment_id="05_budget"))  # ours, and this course has dropped it
    assert Autograde.convert_notebooks is BaseConverter.convert_notebooks, "only that object is changed"


# ---- the same points


@pytest.mark.slow
@pytest.mark.parametrize("count", [12])
def test_plain_submissions_have_the_points_that_untouched_nbgrader_gives(tmp_path, count):
    """More of them, and the odd ones, compares tests/compare_nbgrader.py."""
    submissions = list(plain_submissions(count, seed=count))
    found = compare(tmp_path, submissions)
    assert {(stem, student) for stem, student, _ in found} == {(stem, student) for student, stem, _ in submissions}
    assert table(found) == []
    assert {ours > 0 for _, ours in found.values()} == {True, False}


# ---- the gradebook


@pytest.fixture
def book_of(tmp_path):
    """A course with nothing handed in."""
    folder = tmp_path / "course"
    make_course(folder, seed=5, notebooks=["02", "03"])
    return folder


def row(student, *, share=1, said="said", stem=STEM):
    lesson = next(one for one in LESSONS if one.stem == stem)
    tasks = tuple(Task(c.grade_id, share * c.points, c.points, said) for c in lesson.cells if c.check)
    return Row(student, Graded(stem, LEVEL, tasks))


def test_what_a_person_gave_stays_and_is_marked_only_where_something_else_was_found(book_of):
    first, second = list(TASKS)[:2]
    write_back(book_of, [row("ann", share=0)], LESSONS, ROOT)
    with open_gradebook(book_of / "gradebook.db") as book:
        grade = book.find_grade(first, STEM, STEM, "ann")
        grade.manual_score, grade.extra_credit, grade.needs_manual_grade = 1, 0.5, False
        book.find_comment("attend", STEM, STEM, "ann").manual_comment = "well tried"
        book.find_submission_notebook(STEM, STEM, "ann").late_submission_penalty = 2
        book.db.commit()
    for share, needs in ((0, False), (1, True)):
        write_back(book_of, [row("ann", share=share)], LESSONS, ROOT)
        with open_gradebook(book_of / "gradebook.db") as book:
            grade = book.find_grade(first, STEM, STEM, "ann")
            assert (grade.manual_score, grade.extra_credit, grade.score) == (1, 0.5, 1.5)
            assert (grade.auto_score, grade.needs_manual_grade) == (share * TASKS[first], needs)
            other = book.find_grade(second, STEM, STEM, "ann")
            assert (other.score, other.needs_manual_grade) == (share * TASKS[second], False)
            assert book.find_comment("attend", STEM, STEM, "ann").comment == "well tried"
            assert book.find_submission_notebook(STEM, STEM, "ann").late_submission_penalty == 2


def test_students_keep_their_names_and_one_of_another_case_is_another_student(book_of):
    with open_gradebook(book_of / "gradebook.db") as book:
        book.add_student("Ann", first_name="Ann", last_name="Other", email="a@b.c", lms_user_id="7")
        book.add_student("bob", first_name="Bob")
    write_back(book_of, [row("ann"), row("bob")], LESSONS, ROOT)
    with open_gradebook(book_of / "gradebook.db") as book:
        found = {s.id: (s.first_name, s.last_name, s.email, s.lms_user_id, s.score) for s in book.students}
    full = sum(TASKS.values())
    names = {"Ann": ("Ann", "Other", "a@b.c", "7", 0), "bob": ("Bob", None, None, None, full)}
    assert found == names | {"ann": (None, None, None, None, full)}


def test_all_grades_are_written_or_none(book_of, monkeypatch):
    real = gradebook._Assignment.write

    def stops_at_the_second(entry, rows):
        if entry.lesson.stem != STEM:
            raise MemoryError
        real(entry, rows)

    monkeypatch.setattr(gradebook._Assignment, "write", stops_at_the_second)
    with pytest.raises(MemoryError):
        write_back(book_of, [row("ann"), row("ann", stem="03_positions")], LESSONS, ROOT)
    assert scores(book_of) == {} and not list((book_of / "autograded").iterdir())


@pytest.mark.slow
def test_a_gradebook_that_something_else_is_writing_to_is_refused_in_a_sentence(book_of, monkeypatch):
    import sqlite3

    connect = sqlite3.dbapi2.connect
    monkeypatch.setattr(sqlite3.dbapi2, "connect", lambda *args, **more: connect(*args, **(more | {"timeout": 0})))
    other = connect(book_of / "gradebook.db")
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(UserError, match="cannot be written.*locked.*no grade was"):
            write_back(book_of, [row("ann")], LESSONS, ROOT)
    finally:
        other.rollback()
        other.close()
    assert scores(book_of) == {}


def test_two_hundred_students_take_as_many_statements_as_two(book_of, monkeypatch):
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    statements = []

    def count(connection, cursor, statement, *rest):
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", count)
    monkeypatch.setattr(gradebook, "write_autograded", lambda *args: None)
    try:
        counts = []
        for number in (1, 2, 200):
            del statements[:]
            write_back(book_of, [row(f"{number}-{i}") for i in range(number)], LESSONS, ROOT)
            counts.append(len(statements))
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    assert counts[1] == counts[2] and len(scores(book_of)) == 203


def test_nbgraders_own_hidden_tests_stay_whichever_comes_first(book_of):
    def kept():
        with open_gradebook(book_of / "gradebook.db") as book:
            return {c.name: c.source for c in book.find_notebook(STEM, STEM).source_cells if c.name in TASKS}

    write_back(book_of, [row("ann")], LESSONS, ROOT)
    ours = kept()
    nbgrader(book_of, "generate_assignment", STEM)
    theirs = kept()
    write_back(book_of, [row("ann")], LESSONS, ROOT)
    assert ours == theirs == kept() and all("HIDDEN TESTS" in text for text in ours.values())
    assert scores(book_of) == {"ann": (sum(TASKS.values()), sum(TASKS.values()), False)}


def test_points_that_an_instructor_edits_in_source_are_what_the_gradebook_counts(book_of):
    file = book_of / "source" / STEM / f"{STEM}.ipynb"
    content = json.loads(file.read_text("utf-8"))
    for cell in content["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade"):
            cell["metadata"]["nbgrader"]["points"] = 1
    file.write_text(json.dumps(content))
    write_back(book_of, [row("ann", share=0)], LESSONS, ROOT)
    assert scores(book_of)["ann"] == (0, len(TASKS), False)


def test_text_that_cannot_be_stored_costs_nobody_a_grade(book_of):
    write_back(book_of, [row("ann", said="\ud800 \0 half"), row("bob")], LESSONS, ROOT)
    assert set(scores(book_of)) == {"ann", "bob"}
    with open_gradebook(book_of / "gradebook.db") as book:
        assert "half" in book.find_comment("attend", STEM, STEM, "ann").comment
    assert "half" in (book_of / "autograded" / "ann" / STEM / f"{STEM}.ipynb").read_text("utf-8")
