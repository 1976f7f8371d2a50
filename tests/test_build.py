"""From solutions/*.py to notebooks/*.ipynb: the same bytes always, and nothing for the learner to find."""

import json
import os
import re
import shutil

import nbformat
import pytest
from small_course import HALF, LESSON, SETUP, TYPED, make_root
from starting import run_python

from autograder.build import ROOT, build, dump, generated_files, learner_notebook
from autograder.source import read_lessons
from course_lib.cli import UserError

NOTEBOOK = "notebooks/01_small.ipynb"
INDEX = "course_lib/assets/exercises.json"


def cells_of(root, file=NOTEBOOK):
    return {cell["id"]: cell for cell in json.loads((root / file).read_text("utf-8"))["cells"]}


def command(*arguments, **more):
    return run_python("-m", "autograder", *arguments, **more)


def test_the_committed_notebooks_are_what_the_sources_say_from_whatever_directory_that_is_asked(tmp_path):
    run = command("build", "--check", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_exercise_index_agrees_with_the_checks_that_the_grader_keeps():
    from autograder.exercises import EXERCISES

    index = {entry["name"]: entry for entry in json.loads((ROOT / INDEX).read_text("utf-8"))}
    assert sorted(index) == sorted(EXERCISES)
    for name, exercise in EXERCISES.items():
        entry = index[name]
        assert (entry["number"], entry["notebook"]) == (exercise.number, exercise.notebook)
        assert entry["grade_ids"] == [f"{name}__{group.name}" for group in exercise.groups]


@pytest.mark.parametrize("root", ["small", "course"])
def test_a_notebook_is_valid_and_saving_it_with_jupyters_own_writer_changes_no_byte(root, tmp_path):
    root = make_root(tmp_path) if root == "small" else ROOT
    for name, text in generated_files(root).items():
        if name.endswith(".ipynb"):
            notebook = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
            assert nbformat.writes(notebook) + "\n" == text


def test_nbgrader_accepts_the_metadata_and_computes_the_same_checksums(tmp_path):
    from nbgrader.nbgraderformat import MetadataValidator
    from nbgrader.utils import compute_checksum

    for root in (make_root(tmp_path), ROOT):
        for lesson in read_lessons(root):
            notebook = nbformat.reads(dump(learner_notebook(lesson, root)), as_version=4)
            MetadataValidator().validate_nb(notebook)
            marked = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
            assert len(marked) == sum(bool(cell.grade_id) for cell in lesson.cells)
            for cell in marked:
                assert cell.metadata.nbgrader.checksum == compute_checksum(cell)


def test_a_solution_cell_and_a_check_cell_carry_what_nbgrader_needs(tmp_path):
    build(make_root(tmp_path))
    cells = cells_of(tmp_path)
    solution, check = (cells[name]["metadata"] for name in ("half-solution", "half-check"))
    common = {"schema_version": 3, "task": False, "cell_type": "code"}
    del solution["nbgrader"]["checksum"], check["nbgrader"]["checksum"]
    assert solution["nbgrader"] == common | {"grade": False, "grade_id": "half", "locked": False, "solution": True}
    fields = {"grade": True, "grade_id": "half__values", "locked": True, "solution": False, "points": 2}
    assert check["nbgrader"] == common | fields
    assert check["editable"] is False and solution["deletable"] is False
    assert cells["setup"]["metadata"] == {}


def test_a_notebook_has_no_outputs_no_counts_and_no_widgets(tmp_path):
    build(make_root(tmp_path))
    text = (tmp_path / NOTEBOOK).read_text("utf-8")
    assert "widgets" not in text
    for cell in cells_of(tmp_path).values():
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


def test_no_solution_is_left_for_the_learner(tmp_path):
    for root in (make_root(tmp_path), ROOT):
        for name, text in generated_files(root).items():
            assert "SOLUTION" not in text and "HIDDEN" not in text, name
    build(tmp_path)
    text = (tmp_path / NOTEBOOK).read_text("utf-8")
    assert "// by" not in text and "append(last)" not in text


def test_windows_line_ends_and_a_byte_order_mark_make_the_same_notebook(tmp_path):
    plain, windows = (make_root(tmp_path / name) for name in ("plain", "windows"))
    for file in (*windows.glob("solutions/*.py"), *windows.glob("course_lib/*.py")):
        file.write_bytes(b"\xef\xbb\xbf" * ("solutions" in file.parts) + file.read_bytes().replace(b"\n", b"\r\n"))
    build(plain)
    build(windows)
    assert (plain / NOTEBOOK).read_bytes() == (windows / NOTEBOOK).read_bytes()
    assert b"\r" not in (windows / NOTEBOOK).read_bytes()


def test_what_is_right_already_is_not_written_again(tmp_path, capsys):
    build(make_root(tmp_path))
    for file in (NOTEBOOK, INDEX):
        os.utime(tmp_path / file, (1, 1))
    assert build(tmp_path) == 0
    assert [(tmp_path / file).stat().st_mtime for file in (NOTEBOOK, INDEX)] == [1, 1]
    assert "up to date" in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_all_users_can_read_a_new_notebook_and_an_old_one_keeps_its_permissions(tmp_path):
    build(make_root(tmp_path))
    assert (tmp_path / NOTEBOOK).stat().st_mode & 0o777 == 0o644
    (tmp_path / NOTEBOOK).write_text("old")
    (tmp_path / NOTEBOOK).chmod(0o664)
    build(tmp_path)
    assert (tmp_path / NOTEBOOK).stat().st_mode & 0o777 == 0o664


def test_a_checkout_in_which_git_made_windows_line_ends_is_up_to_date(tmp_path):
    build(make_root(tmp_path))
    for file in (NOTEBOOK, INDEX):
        (tmp_path / file).write_bytes((tmp_path / file).read_bytes().replace(b"\n", b"\r\n"))
    assert build(tmp_path, check=True) == 0


def test_check_names_every_file_that_differs_and_writes_nothing(tmp_path, capsys):
    assert build(make_root(tmp_path)) == 0
    (tmp_path / NOTEBOOK).write_text("{}", "utf-8")
    (tmp_path / INDEX).unlink()
    source = tmp_path / "solutions" / "01_small.py"
    source.rename(source.with_name("02_other.py"))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    capsys.readouterr()
    assert build(tmp_path, check=True) == 1
    said = capsys.readouterr().out
    assert "notebooks/02_other.ipynb differs" in said and f"{INDEX} differs" in said
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def test_a_notebook_whose_source_is_gone_is_reported_and_removed_and_a_learners_own_stays(tmp_path, capsys):
    build(make_root(tmp_path))
    gone, mine = (tmp_path / "notebooks" / name for name in ("09_gone.ipynb", "mine.ipynb"))
    shutil.copy(tmp_path / NOTEBOOK, gone)
    mine.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "utf-8")
    assert build(tmp_path, check=True) == 1 and gone.exists()  # all else is right
    assert "notebooks/09_gone.ipynb has no source" in capsys.readouterr().out
    assert build(tmp_path) == 0
    assert not gone.exists() and mine.exists() and (tmp_path / NOTEBOOK).exists()


def test_nothing_is_written_when_one_source_is_bad(tmp_path):
    make_root(tmp_path, {"01_good": SETUP + HALF, "02_bad": SETUP + TYPED.replace("points=1.5", "points=-1")})
    with pytest.raises(UserError):
        build(tmp_path)
    assert not list((tmp_path / "notebooks").iterdir())


def test_the_index_says_what_the_cells_say(tmp_path):
    build(make_root(tmp_path))
    half, grow = json.loads((tmp_path / INDEX).read_text("utf-8"))
    assert half == {
        "name": "half", "number": "1.1", "title": "what is half of three?", "notebook": "01_small",
        "grade_ids": ["half__values"], "points": 2, "minutes": 5, "difficulty": 1,
    }  # fmt: skip
    assert grow == {
        "name": "grow", "number": "1.2", "title": "grow", "notebook": "01_small",
        "grade_ids": ["grow__values"], "points": 1.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "cell", "complaint"),
    [
        ('id="setup"', 'id="grow-check"', "grow-check", "used twice"),
        (' id="setup"', "", "that begins 'import numpy as np'", "has no id"),
        ('id="setup"', 'id="Set up"', "Set up", "not words of a-z"),
        ('id="setup"', f'id="{"a" * 65}"', "a" * 65, "64 characters at most"),
        ('check="half" group', 'check="halve" group', "half-solution", "nothing checks half"),
        ('"half-check" check="half"', '"half-check" check="half" grups="kv"', "half-check", "'grups'"),
        ('solution="half" minutes=5', 'solution="half" points=5', "half-solution", "'points'"),
        ("minutes=5", "minutes=0", "half-solution", "minutes is 0"),
        ("difficulty=1", "difficulty=6", "half-solution", "difficulty is 6"),
        ('exercise="1.1"', "exercise=1.1", "half-solution", "exercise is 1.1"),
        ('exercise="1.1" ', "", "half-solution", "does not say 'exercise'"),
        (" points=2", "", "half-check", "does not say 'points'"),
        ("points=2", "points=true", "half-check", "points is True"),
        ('id="half-text"', 'id="half-text" check="half" points=1', "half-text", "a check is code"),
        ('check.half(half, group="values")', "pass", "half-check", "does not call check.half"),
        ('check.half(half, group="values")', "check.half(half)", "half-check", "does not call check.half"),
        ("check.half(half", "### BEGIN HIDDEN TESTS\ncheck.half(half", "half-check", "region"),
        ("import numpy as np\n", "import numpy as np\n### BEGIN SOLUTION\n", "setup", "region"),
        ("import numpy as np\n", "import numpy as np\n# copy the keys\n", "setup", "'copy the keys' is not Python"),
        ("import numpy as np\n", "import numpy as (\n", "setup", "is not Python"),
        ("# ### Exercise 1.1", "# ### BEGIN SOLUTION", "half-text", "region"),
    ],
)  # fmt: skip
def test_a_bad_source_is_refused_by_file_and_cell(tmp_path, old, new, cell, complaint):
    assert old in LESSON
    make_root(tmp_path, LESSON.replace(old, new))
    with pytest.raises(UserError) as refusal:
        build(tmp_path)
    message = str(refusal.value)
    assert message.startswith(f"solutions/01_small.py, cell {cell}: ") and complaint in message
    assert "\n" not in message and message.endswith(".")


def test_two_checks_of_one_group_are_refused(tmp_path):
    again = TYPED.partition('# %% id="grow-check"')[2]
    make_root(tmp_path, LESSON + '\n# %% id="again"' + again)
    with pytest.raises(UserError, match="cell again: grade id grow__values is used twice"):
        build(tmp_path)


def test_a_check_above_its_exercise_is_refused(tmp_path):
    first, second = HALF.split('# %% id="half-check"')
    make_root(tmp_path, SETUP + '# %% id="half-check"' + second + "\n" + first)
    with pytest.raises(UserError, match="no solution cell above it is named half"):
        build(tmp_path)


def test_one_exercise_in_two_lessons_is_refused(tmp_path):
    make_root(tmp_path, {"01_a": SETUP + HALF, "02_b": SETUP + HALF})
    complaint = "solutions/02_b.py, cell half-solution: exercise half is in solutions/01_a.py"
    with pytest.raises(UserError, match=complaint):
        build(tmp_path)


def test_a_file_that_is_not_text_is_refused_in_one_line(tmp_path):
    make_root(tmp_path)
    (tmp_path / "solutions" / "01_small.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"^solutions/01_small.py cannot be read"):
        build(tmp_path)


def test_an_ipython_command_in_a_cell_survives(tmp_path):
    build(make_root(tmp_path, LESSON.replace("import numpy as np\n", "import numpy as np\n# %matplotlib inline\n")))
    assert "%matplotlib inline\n" in cells_of(tmp_path)["setup"]["source"]


def test_the_same_bytes_come_from_another_process_with_another_hash_seed_and_locale(tmp_path):
    build(make_root(tmp_path, LESSON.replace("what is half", "“what” is half")))
    script = (
        "import sys; from pathlib import Path; from autograder.build import generated_files\n"
        f"sys.stdout.buffer.write(generated_files(Path({str(tmp_path)!r}))[{NOTEBOOK!r}].encode())"
    )
    hashed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = {"PYTHONHASHSEED": hashed, "LC_ALL": "C", "PYTHONUTF8": "0"}
    run = run_python("-c", script, env=env, text=False, check=True)
    assert run.stdout == (tmp_path / NOTEBOOK).read_bytes()


def test_the_command_line_answers_and_refuses_in_one_line():
    for arguments in ([], ["build"], ["course"]):
        shown = command(*arguments, "--help")
        assert shown.returncode == 0 and "example:\n  python -m autograder" in shown.stdout
    wrong = ["", "bild", "build --chek", "course", "course x --seed -1", "build extra"]
    for arguments in map(str.split, wrong):
        refused = command(*arguments)
        assert refused.returncode == 2 and refused.stdout == ""
        assert re.fullmatch(r"python -m autograder[^\n]*\n", refused.stderr), refused.stderr


def test_a_path_that_the_system_refuses_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    run = command("course", str(tmp_path / "file" / "course"))
    assert run.returncode == 2 and re.fullmatch(r"python -m autograder course: .*file[^\n]*\n", run.stderr)
