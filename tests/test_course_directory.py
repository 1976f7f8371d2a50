"""The directory that `python -m autograder course` makes: what is in it, what stays in it, and its settings."""

import os
import re
import shutil

import nbformat
import pytest
from small_course import HALF, LESSON, SETUP, hidden_seeds, make_root

from autograder.build import ROOT, dump
from autograder.course import MARK, make_course, source_notebook
from autograder.source import read_lessons
from course_lib.cli import UserError

pytestmark = pytest.mark.xdist_group("course directory")  # one course serves them all


def tree(directory):
    return {file.relative_to(directory): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


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


def open_to_others(folder):
    return [file for file in [folder, *folder.rglob("*")] if file.stat().st_mode & 0o077]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no mode bits")
def test_the_hidden_seeds_and_the_gradebook_are_for_their_owner_alone(course, tmp_path):
    def secrets():
        return [name for name in (MARK, "gradebook.db", "source", "autograded") if open_to_others(course / name)]

    assert secrets() == []
    for file in [course / MARK, *course.rglob("*")]:
        file.chmod(0o755 if file.is_dir() else 0o644)
    assert len(secrets()) == 4
    (course / "source" / "01_small" / "link").symlink_to(tmp_path / "root")
    before = {file: file.stat().st_mode for file in [course / "nbgrader_config.py", tmp_path / "root"]}
    make_course(course, None, tmp_path / "root")
    (course / "source" / "01_small" / "link").unlink()
    assert secrets() == [], "a second run closes a course that an earlier version left open"
    assert before == {file: file.stat().st_mode for file in before}


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
    source = course / "source" / "01_small" / "01_small.ipynb"
    os.utime(source, (1, 1))
    make_course(course, None, tmp_path / "root")
    assert tree(course) == before and source.stat().st_mtime == 1
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


@pytest.fixture(scope="module")
def settings():
    from traitlets.config.loader import PyFileConfigLoader

    return PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / "autograder")).load_config()


def test_feedback_leaves_hidden_tests_out_of_the_code_and_out_of_what_a_traceback_quotes(settings):
    """A learner whose cell has a syntax error gets IPython's traceback, which quotes the lines around the call."""
    hide = next(step for step in settings.GenerateFeedback.preprocessors if step.__name__ == "HideHiddenTests")
    hidden = "### BEGIN HIDDEN TESTS\ncheck.f(f, seed=1164358783390833301)\n### END HIDDEN TESTS"
    quoted = "NameError\n 1 check.f(f)\n 2 ### BEGIN HIDDEN TESTS\n"
    quoted += " 3 check.f(f, seed=\x1b[32m1164358783390833301\x1b[39m)"
    error = nbformat.v4.new_output("error", ename="NameError", evalue="f", traceback=quoted.split("\n"))
    graded = nbformat.v4.new_code_cell(f"check.f(f)\n{hidden}", outputs=[error])
    mine = nbformat.v4.new_code_cell("# BEGIN HIDDEN TESTS is only a comment here")
    notebook, _ = hide().preprocess(nbformat.v4.new_notebook(cells=[graded, mine]), {})
    nbformat.validate(notebook)
    assert "1164358783390833301" not in nbformat.writes(notebook) and "NameError" in nbformat.writes(notebook)
    assert [text for text in notebook.cells[0].outputs[0].traceback if text] == ["NameError", " 1 check.f(f)"]
    assert notebook.cells[0].source == "check.f(f)\n# (hidden tests ran here)"
    assert notebook.cells[1].source == "# BEGIN HIDDEN TESTS is only a comment here"


def test_a_copied_cell_and_colabs_widgets_do_not_stop_nbgrader_for_the_others(settings):
    from nbgrader.converters import Autograde
    from nbgrader.preprocessors import DeduplicateIds, OverwriteCells

    steps = settings.Autograde.sanitize_preprocessors
    tidy = next(step for step in steps if step.__name__ == "TidySubmission")
    restore = next(step for step in steps if step.__name__ == "RestoreChecks")
    theirs = {tidy: DeduplicateIds, restore: OverwriteCells}
    assert [theirs.get(step, step) for step in steps] == Autograde().sanitize_preprocessors
    fields = {"grade": False, "grade_id": "f", "locked": False, "schema_version": 3, "solution": True, "task": False}
    cells = [nbformat.v4.new_code_cell("f", metadata={"nbgrader": dict(fields)}) for _ in range(2)]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"widgets": {"a type": {}}, "mine": 1})
    notebook, _ = tidy().preprocess(notebook, {})
    assert [dict(cell.metadata) for cell in notebook.cells] == [{}, {"nbgrader": fields}]
    assert notebook.metadata == {"mine": 1}
