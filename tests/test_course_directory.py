"""The directory that `python -m autograder course` makes: what is in it, what stays in it, and its settings."""

import os
import re
import shutil

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_course import HALF, LESSON, SETUP, TYPED, hidden_seeds, make_root

from autograder.__main__ import main
from autograder.build import ROOT, dump
from autograder.course import MARK, make_course, source_notebook, worth_of
from autograder.points import shared_out
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


# ---- some of the notebooks, with an instructor's points


OTHER = "\n".join([
    SETUP,
    TYPED.replace("grow", "widen").replace("1.2", "2.1").replace("points=1.5", "points=2"),
    TYPED.replace("grow", "spread").replace("1.2", "2.2"),
])  # fmt: skip


@pytest.fixture
def two(tmp_path):
    """A checkout of two lessons and where a course may be made of them."""
    return make_root(tmp_path / "root", {"01_small": LESSON, "02_other": OTHER}), tmp_path / "made"


def stems(course):
    return sorted(folder.name for folder in (course / "source").iterdir())


def test_a_course_of_some_notebooks_stays_one_until_others_are_chosen(two, capsys):
    root, course = two
    make_course(course, 7, root, notebooks=["1"])
    assert stems(course) == ["01_small"] and set(worth_of(course, root)) == {"01_small"}
    make_course(course, None, root)
    assert stems(course) == ["01_small"], "as before"
    make_course(course, None, root, notebooks=["01_small", "02"])
    assert stems(course) == ["01_small", "02_other"]
    assert len(hidden_seeds(course)) == 4
    before, _ = tree(course / "source"), capsys.readouterr()
    make_course(course, None, root, notebooks=["02"])
    assert tree(course / "source") == before
    assert "01_small: no longer chosen; delete the folder to drop it (left alone)" in capsys.readouterr().out
    shutil.rmtree(course / "source" / "01_small")
    make_course(course, None, root)
    assert set(worth_of(course, root)) == {"02_other"}


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"notebooks": ["01", "12", "x"]}, "there is no notebook 12, x. Choose from 01, 02."),
        ({"notebooks": []}, "no notebook is named"),
        ({"notebooks": ["01"], "points": {"02": 3}}, "there is no notebook 02. Choose from 01."),
        ({"points": {"01": 0.25}}, "0.25 points cannot be shared out over the 2 checks of 01_small"),
        ({"points": {"01": 3.1}}, "Give a whole or quarter number"),
    ],
)
def test_what_cannot_be_chosen_is_refused_and_nothing_is_made(two, chosen, complaint):
    root, course = two
    with pytest.raises(UserError, match=re.escape(complaint)):
        make_course(course, None, root, **chosen)
    assert not course.exists()


def test_points_are_the_lessons_own_until_an_instructor_sets_others(two):
    root, course = two
    make_course(course, 7, root)
    assert worth_of(course, root)["01_small"] == {"half__values": 2, "grow__values": 1.5}
    make_course(course, None, root, points={"01": 7})
    assert worth_of(course, root)["01_small"] == {"half__values": 4, "grow__values": 3}
    assert worth_of(course, root)["02_other"] == {"widen__values": 2, "spread__values": 1.5}
    file = course / "source" / "01_small" / "01_small.ipynb"
    file.write_text(file.read_text().replace('"points": 4', '"points": 9'))  # as JupyterLab's panel does
    make_course(course, None, root)
    assert worth_of(course, root)["01_small"] == {"half__values": 9, "grow__values": 3}, "another run keeps them"


def test_a_check_that_is_taken_out_of_source_is_not_graded_and_a_cell_of_the_instructors_own_is_not_ours(two):
    root, course = two
    make_course(course, 7, root)
    file = course / "source" / "01_small" / "01_small.ipynb"
    notebook = nbformat.read(file, as_version=4)
    fields = {"schema_version": 3, "grade": True, "grade_id": "essay", "locked": False, "solution": True, "points": 5}
    notebook.cells.append(nbformat.v4.new_markdown_cell("why?", metadata={"nbgrader": fields | {"task": False}}))
    notebook.cells = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") != "half__values"]
    nbformat.write(notebook, file)
    assert worth_of(course, root)["01_small"] == {"grow__values": 1.5}


@pytest.mark.parametrize("content", ["{", "{}", '{"cells": [{"metadata": {"nbgrader": {"grade": true}}}]}'])
def test_a_source_that_holds_no_points_is_refused_in_a_sentence(two, content):
    root, course = two
    make_course(course, 7, root)
    (course / "source" / "01_small" / "01_small.ipynb").write_text(content)
    with pytest.raises(UserError, match="holds no points"):
        worth_of(course, root)


@given(
    st.lists(st.sampled_from([1, 1.5, 2, 3, 4, 6]), min_size=1, max_size=9),
    st.integers(1, 400),
)
def test_points_are_shared_out_exactly_and_in_proportion(weights, quarters):
    named = {str(number): weight for number, weight in enumerate(weights)}
    total = quarters / 4
    if quarters < len(weights):
        with pytest.raises(UserError):
            shared_out(total, named, "it")
        return
    shares = shared_out(total, named, "it")
    assert sum(shares.values()) == total and min(shares.values()) >= 0.25
    if total == sum(weights):
        assert shares == named
    for one, other in zip(sorted(named, key=named.get), sorted(named, key=named.get)[1:]):
        assert shares[one] <= shares[other] + 0.25


@pytest.mark.skipif(os.name == "nt", reason="Windows has no mode bits")
def test_at_no_moment_can_others_read_what_a_course_keeps_to_itself(two, monkeypatch):
    """Every change of a file is looked at as it happens, in a directory that others can read."""
    root, course = two
    seen = []

    def others_can_read():
        for name in (MARK, "gradebook.db", "source", "autograded", "feedback", "reports"):
            path = course / name
            if path.exists() and path.stat().st_mode & 0o077:
                seen.append(name)

    for function in ("chmod", "replace", "mkdir", "open", "close"):
        real = getattr(os, function)

        def watched(*args, real=real, **more):
            result = real(*args, **more)
            others_can_read()
            return result

        monkeypatch.setattr(os, function, watched)
    before = os.umask(0o022)
    try:
        make_course(course, 7, root)
    finally:
        os.umask(before)
    assert course.stat().st_mode & 0o055 == 0o055 and seen == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--notebooks", "02,99"], "there is no notebook 99"),
        (["--notebooks", ","], "no notebook is named"),
        (["--points", "02"], "does not say what notebooks are worth"),
        (["--points", "02=-1"], "does not say what notebooks are worth"),
        (["--points", "02=1"], "cannot be shared out over the 5 checks"),
    ],
)
def test_the_command_refuses_in_one_line_and_makes_nothing(tmp_path, capsys, flags, words):
    try:
        code = main(["course", str(tmp_path / "made"), *flags])
    except SystemExit as stopped:
        code = stopped.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err
    assert not (tmp_path / "made").exists()


def test_the_command_makes_a_part_of_the_course_with_other_points(tmp_path):
    assert main(["course", str(tmp_path / "made"), "--notebooks", "2,05", "--points", "02=10, 05=5.5"]) == 0
    assert {stem: sum(worth.values()) for stem, worth in worth_of(tmp_path / "made").items()} == {
        "02_mask": 10, "05_budget": 5.5,
    }  # fmt: skip
