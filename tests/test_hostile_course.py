"""A course with hostile neighbours: all are graded, no grade of another changes, nobody reads what is not theirs."""

import json
import os

import hostile
import hostile_files
import pytest
from isolation import isolated
from starting import ROOT

pytest.importorskip("nbgrader")

from autograder import seeds
from autograder.course import make_course, open_gradebook
from autograder.grading import remote
from autograder.grading.run import grade
from autograder.grading.sandbox import level
from autograder.grading.submissions import find
from autograder.source import read_lessons
from course_lib.cli import UserError

SEED = 771_234_567
CANARY = "canary-8f3a1c"
STEM = "03_positions"
RIGHT = "def positions(cached, computed, take):\n    return np.arange(cached + computed, cached + computed + take)\n"
LESSON = next(lesson for lesson in read_lessons(ROOT) if lesson.stem == STEM)
NAMES = {STEM: [cell.solution for cell in LESSON.cells if cell.solution]}
RIGHT_FILE = hostile_files.text(hostile_files.cell(RIGHT), hostile_files.cell(f"# {CANARY}", cell_type="markdown"))
WRONG_FILE = hostile_files.text(hostile_files.cell(hostile_files.WRONG))
ENDS = ("ends the process", "kills everything", "answers ahead", "raises html", "raises what no file can hold")


def handed_in(course, student):
    folder = course / "submitted" / student / STEM
    folder.mkdir(parents=True)
    return folder


def attacked_course(folder, files, answers):
    """A course in which ann (first) and zoe (last) are right, and every other one attacks. Student -> what they do."""
    make_course(folder, seed=SEED)
    with open_gradebook(folder / "gradebook.db") as book:
        book.update_or_create_student("ann", last_name=CANARY)
    for student in ("ann", "zoe"):
        (handed_in(folder, student) / f"{STEM}.ipynb").write_text(RIGHT_FILE)
    does = {}
    for number, name in enumerate(files):
        student = hostile_files.STUDENTS[number] if number < len(hostile_files.STUDENTS) else f"m{number:03}"
        hostile_files.MAKERS[name](handed_in(folder, student), folder)
        does[student] = name
    for number, name in enumerate(answers):
        source = hostile.answer(name, str(folder / "gradebook.db"))
        (handed_in(folder, f"n{number:03}") / f"{STEM}.ipynb").write_text(
            hostile_files.text(hostile_files.cell(source))
        )
        does[f"n{number:03}"] = name
    return does


def written(course):
    """All that grading writes for learners and instructors: path -> bytes."""
    folders = [path for name in ("feedback", "autograded", "reports") for path in (course / name).rglob("*")]
    return {path: path.read_bytes() for path in [*folders] if path.is_file()}


def handed_in_now(course):
    found = {}
    for folder, _, names in os.walk(course / "submitted"):
        for name in names:
            about = os.lstat(os.path.join(folder, name))
            if about.st_nlink == 1:  # the gradebook, of which one is a hard link, does change
                found[folder, name] = about.st_mode, about.st_size, about.st_mtime_ns
    return found


def expect_unharmed(course, does):
    before = handed_in_now(course)
    grade(course, jobs=2, accepted=level())
    assert handed_in_now(course) == before
    rows = {row["student"]: row for row in json.loads((course / "reports" / "grades.json").read_text("utf-8"))}
    for student in ("ann", "zoe"):
        assert rows[student]["score"] == 4, rows[student]
    assert len(rows) >= len(does)  # two are not found: a hidden file, and a folder too deep to look into
    others = {student: row["score"] for student, row in rows.items() if student not in ("ann", "zoe")}
    assert set(others.values()) == {0}, others
    hidden = [str(seeds.hidden(SEED, STEM, cell.grade_id)) for cell in LESSON.cells if cell.check]
    outputs = written(course)
    assert len(outputs) > 2 * len(rows)
    for path, content in outputs.items():
        assert not [word for word in (CANARY, str(SEED), *hidden) if word.encode() in content], path
    with open_gradebook(course / "gradebook.db") as book:
        for student in ("ann", "zoe"):
            assert book.find_grade("positions__values", STEM, STEM, student).auto_score == 2
        assert len(book.students) >= len(rows)
    table = (course / "reports" / "grades.csv").read_text("utf-8")
    assert "\n=" not in table and ",=" not in table
    pages = [content for path, content in outputs.items() if path.suffix == ".html"]
    assert pages and not [page for page in pages if b"<script" in page or b"<img" in page]


@isolated
def test_in_a_course_with_hostile_neighbours_all_are_graded_and_none_is_harmed(tmp_path, monkeypatch):
    quick = [name for name in hostile_files.MAKERS if name not in hostile_files.SLOW][::4]
    files = [*quick, "half a surrogate in the answer's words", "half a surrogate"]
    expect_unharmed(tmp_path, attacked_course(tmp_path, files, ENDS[:3]))


@isolated
@pytest.mark.slow
def test_in_a_course_with_all_hostile_neighbours_all_are_graded_and_none_is_harmed(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 3)
    answers = [name for name in hostile.BODIES if name not in hostile.WAIT]
    expect_unharmed(tmp_path, attacked_course(tmp_path, hostile_files.MAKERS, answers))


# Zips


def test_in_a_zip_no_name_and_no_bomb_harms_another(tmp_path):
    hostile_files.lms_zip(tmp_path / "all.zip", RIGHT_FILE, WRONG_FILE)
    found = {one.student: one for one in find(tmp_path / "all.zip", NAMES, tmp_path / "unpacked")}
    assert {"Ann Other_17", "Ann Other_99", "Bob_18", "Bob_19", "Mal", "Many"} <= set(found)
    assert found["Ann Other_17"].path.read_text() == RIGHT_FILE == found["Bob_18"].path.read_text()
    assert all(path.parent == tmp_path / "unpacked" for path in (tmp_path / "unpacked").rglob("*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.zip", "unpacked"]


@pytest.mark.parametrize("damage", [slice(0, 200), slice(40, None), slice(None, -30)])
def test_a_damaged_zip_is_refused_in_a_sentence(tmp_path, damage):
    hostile_files.lms_zip(tmp_path / "whole.zip", RIGHT_FILE, WRONG_FILE)
    (tmp_path / "all.zip").write_bytes((tmp_path / "whole.zip").read_bytes()[damage])
    try:
        found = find(tmp_path / "all.zip", NAMES, tmp_path / "unpacked")
    except UserError as error:
        assert "is no zip that can be read" in str(error)
    else:  # what can still be read is; the rest is an empty file
        assert all(one.assignment in (STEM, "") for one in found)


def test_a_file_of_a_zip_that_is_damaged_harms_itself_alone(tmp_path):
    hostile_files.lms_zip(tmp_path / "whole.zip", RIGHT_FILE, WRONG_FILE)
    content = bytearray((tmp_path / "whole.zip").read_bytes())
    at = content.index(b"Ann Other_99") + 60
    content[at : at + 8] = b"\xff" * 8
    (tmp_path / "all.zip").write_bytes(content)
    found = {one.student: one for one in find(tmp_path / "all.zip", NAMES, tmp_path / "unpacked")}
    assert found["Ann Other_17"].assignment == STEM and found["Ann Other_99"].problem
