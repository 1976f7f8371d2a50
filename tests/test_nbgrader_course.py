"""The course under untouched nbgrader: what it releases, what it grades, and what a student gets back."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from small_course import HALF, LESSON, SETUP, make_root

from autograder.build import ROOT, dump, learner_notebook
from autograder.course import MARK, make_course, source_notebook
from autograder.include import answer_of
from autograder.source import read_lessons
from course_lib.cli import UserError

STUB_LINE = "# Your code goes here, in place of the next line."


def nbgrader(course, *arguments):
    """Run nbgrader as an instructor does, in the course's directory, away from this user's own settings."""
    home = course.parent / "home"
    home.mkdir(exist_ok=True)
    clean = {"JUPYTER_CONFIG_DIR": str(home), "JUPYTER_DATA_DIR": str(home), "IPYTHONDIR": str(home)}
    environment = os.environ | clean | {"PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(run, capture_output=True, text=True, cwd=course, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tree(directory):
    return {file.relative_to(directory): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def hidden_seeds(course):
    return set(re.findall(r"seed=(\d+)", "".join(file.read_text("utf-8") for file in course.glob("source/*/*.ipynb"))))


# ---- the directory


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    directory = tmp_path_factory.mktemp("small")
    make_course(directory / "course", 7, make_root(directory / "root"))
    return directory


@pytest.fixture
def course(made_once, tmp_path):
    """A course of the small lesson with seed 7; its checkout is tmp_path / "root"."""
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "course"


def test_a_course_has_its_settings_a_seed_a_gradebook_and_a_source_for_each_notebook(course):
    assert sorted(map(str, tree(course))) == [
        MARK, "gradebook.db", "nbgrader_config.py", os.path.join("source", "01_small", "01_small.ipynb"),
    ]  # fmt: skip


def test_the_source_notebook_holds_the_answers_and_a_hidden_check_with_a_seed(course):
    notebook = nbformat.read(course / "source" / "01_small" / "01_small.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = {cell.id: cell for cell in notebook.cells}
    lines = cells["half-check"].source.split("\n")
    assert lines[0] == 'check.half(half, group="values")' and lines[1] == "### BEGIN HIDDEN TESTS"
    assert re.fullmatch(r'check\.half\(half, group="values", seed=\d{19}\)', lines[2])
    assert lines[3:] == ["### END HIDDEN TESTS"]
    assert "    ### BEGIN SOLUTION\n    # a comment that belongs" in cells["half-solution"].source
    fields = {"schema_version": 3, "grade": True, "grade_id": "half__values", "locked": True, "solution": False}
    assert cells["half-check"].metadata == {"nbgrader": fields | {"task": False, "points": 2}}


def test_every_hidden_check_has_a_seed_of_its_own_that_the_courses_seed_decides(course, tmp_path):
    lesson = read_lessons(tmp_path / "root")[0]

    def seeds(seed):
        return set(re.findall(r"seed=(\d+)", dump(source_notebook(lesson, tmp_path / "root", seed))))

    assert len(hidden_seeds(course)) == 2 and hidden_seeds(course) == seeds(7)
    assert not seeds(7) & seeds(8)


def test_the_seed_is_for_the_instructors_eyes(course):
    assert os.name == "nt" or (course / MARK).stat().st_mode & 0o077 == 0


def test_formgrader_lists_the_assignments_at_once(course):
    from nbgrader.apps.api import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    api = NbGraderAPI(CourseDirectory(root=str(course)))
    assert [(a["name"], a["status"]) for a in api.get_assignments()] == [("01_small", "draft")]
    with api.gradebook as gradebook:
        assert [assignment.name for assignment in gradebook.assignments] == ["01_small"]


def test_a_second_run_updates_the_sources_and_keeps_seed_settings_and_grades(course, tmp_path):
    seeds = hidden_seeds(course)
    with (course / "nbgrader_config.py").open("a") as settings:
        settings.write("# mine\n")
    (course / "submitted").mkdir()
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        gradebook.add_student("ada")
    before = tree(course)
    make_course(course, None, tmp_path / "root")
    assert tree(course) == before
    make_root(tmp_path / "root", LESSON.replace("what is half of three?", "what is half of four?"))
    make_course(course, 7, tmp_path / "root")
    changed = {str(file) for file, content in tree(course).items() if before.get(file) != content}
    assert changed == {os.path.join("source", "01_small", "01_small.ipynb")}
    assert hidden_seeds(course) == seeds
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        assert gradebook.find_student("ada")


@pytest.mark.parametrize(
    ("spoil", "seed", "complaint"),
    [
        (lambda course: (course / MARK).unlink(), None, "is not empty and has no"),
        (lambda course: (course / MARK).write_text("{}"), None, "holds no seed"),
        (lambda course: (course / MARK).write_text('{"seed": "x"}'), None, "holds no seed"),
        (lambda course: (course / MARK).write_text("["), None, "holds no seed"),
        (lambda course: None, 8, "has another seed already"),
    ],
)
def test_a_directory_that_is_not_this_course_is_left_as_it_is(course, tmp_path, spoil, seed, complaint):
    spoil(course)
    before = tree(course)
    with pytest.raises(UserError, match=complaint):
        make_course(course, seed, tmp_path / "root")
    assert tree(course) == before


def test_a_file_in_the_place_of_the_course_is_refused(tmp_path):
    (tmp_path / "course").write_text("")
    with pytest.raises(UserError, match="is a file"):
        make_course(tmp_path / "course", None, make_root(tmp_path / "root"))


def test_a_bad_source_leaves_no_half_made_course(tmp_path):
    root = make_root(tmp_path / "root", {"01_a": LESSON, "02_b": SETUP + HALF.replace("points=2", "points=0")})
    with pytest.raises(UserError):
        make_course(tmp_path / "course", None, root)
    assert not (tmp_path / "course").exists()


# ---- what nbgrader releases


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A course from the real lessons, released: (directory, lessons)."""
    course = tmp_path_factory.mktemp("nbgrader") / "course"
    make_course(course)
    lessons = read_lessons(ROOT)
    for lesson in lessons:
        nbgrader(course, "generate_assignment", lesson.stem)
    return course, lessons


def released(course, stem):
    return nbformat.read(course / "release" / stem / f"{stem}.ipynb", as_version=4)


def test_the_released_notebook_is_the_committed_one_cell_by_cell(real):
    """nbgrader's release has one line more in each hole: its stub text, the same for all exercises."""
    course, lessons = real
    for lesson in lessons:
        ours = learner_notebook(lesson, ROOT)
        theirs = released(course, lesson.stem)
        assert theirs.metadata == ours["metadata"]
        for cell, their in zip(ours["cells"], theirs.cells, strict=True):
            if "solution" in str(cell["metadata"]) and cell["metadata"]["nbgrader"]["solution"]:
                del cell["metadata"]["nbgrader"]["checksum"], their.metadata.nbgrader["checksum"]
                lines = their.source.split("\n")
                assert sum(line.strip() == STUB_LINE for line in lines) == 1
                their.source = "\n".join(line for line in lines if line.strip() != STUB_LINE)
            assert (their.id, their.cell_type) == (cell["id"], cell["cell_type"])
            assert their.source == "".join(cell["source"])
            assert their.metadata == cell["metadata"]


def test_the_seed_of_a_course_is_drawn_and_long(real):
    assert json.loads((real[0] / MARK).read_text("utf-8"))["seed"].bit_length() > 90


def test_the_release_holds_no_answer_and_no_hidden_seed(real):
    course, lessons = real
    secrets = hidden_seeds(course)
    assert len(secrets) == sum(bool(cell.check) for lesson in lessons for cell in lesson.cells)
    text = "".join(file.read_text("utf-8") for file in (course / "release").rglob("*") if file.is_file())
    assert not [secret for secret in secrets if secret in text]
    assert "SOLUTION" not in text and "HIDDEN" not in text
    for lesson in lessons:
        sources = "\n".join(cell.source for cell in released(course, lesson.stem).cells)
        for cell in lesson.cells:
            if cell.solution:
                assert answer_of(lesson, cell, ROOT).hole.strip() not in sources
