"""course.py: what it does before anything is installed, and what each command starts."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from starting import ROOT, assert_refused, start

import course
from course_lib.learner.environment import Environment

# ---- before anything is installed


def other_pythons(last_minor):
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {name: path for m in range(last_minor + 1) if (path := shutil.which(name := f"python3.{m}"))}
    found |= {path.parents[1].name: path for path in versions.glob("*/bin/python")}
    for name, path in sorted(found.items()):
        ask = [path, "-c", "import sys; print(sys.version_info < (3, 10))"]
        asked = subprocess.run(ask, capture_output=True, text=True)
        if asked.stdout.strip() == "True":
            yield name, path


def test_a_python_that_is_too_old_gets_one_line():
    pythons = list(other_pythons(9))
    if not pythons:
        pytest.skip("no Python below 3.10 is installed here")
    for name, python in pythons:
        done = subprocess.run([python, ROOT / "course.py", "demo"], capture_output=True, text=True)
        assert_refused(done, "the course needs 3.10 to 3.14", "Python " + name.removeprefix("python")[:3])


@pytest.mark.parametrize("version", [(2, 7), (3, 9), (3, 15)])
def test_other_versions_are_turned_away_before_anything_is_imported(version):
    trick = f"import sys, runpy; sys.version_info = {(*version, 0)}; runpy.run_path({str(ROOT / 'course.py')!r})"
    done = subprocess.run([sys.executable, "-c", trick], capture_output=True, text=True)
    assert_refused(done, f"Python {version[0]}.{version[1]};")


def test_course_py_is_readable_to_the_pythons_that_it_turns_away():
    tree = ast.parse((ROOT / "course.py").read_text(encoding="utf-8"), feature_version=(3, 4))
    modern = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.Starred)
    assert not [node for node in ast.walk(tree) if isinstance(node, modern)]
    assert (ROOT / "course.py").read_bytes().isascii()


def test_help_needs_nothing_but_the_standard_library(copy, bare_python, clean_env):
    for arguments in ((), ("--help",), ("test", "--help"), ("demo", "-h")):
        done = start(copy, *arguments, python=bare_python, env=clean_env)
        assert done.returncode == 0
        for command in course.COMMANDS:
            assert f"python3 course.py {command}" in done.stdout
    assert not (copy / ".venv").exists()


def test_an_unknown_command_is_refused_with_the_known_ones(copy):
    assert_refused(start(copy, "frobnicate"), "'frobnicate'", "demo, lab, check, test, grade, doctor, bench")


def test_an_unknown_bench_is_refused_with_the_known_ones(monkeypatch, tmp_path, capsys):
    (tmp_path / "arithmetic.py").write_text("")
    monkeypatch.setattr(course, "BENCH", tmp_path)
    assert course.main(["bench"]) == course.main(["bench", "../../course"]) == 2
    assert capsys.readouterr().err.count("one of these names: arithmetic") == 2


# ---- an environment that will do


def test_an_active_environment_that_has_what_is_needed_is_used_as_it_is(copy):
    done = start(copy, "demo", "--json", "--flag=two words")
    assert json.loads(done.stdout) == [sys.executable, ["demo", "--json", "--flag=two words"], str(copy)]
    assert not (copy / ".venv").exists()


def test_doctor_never_installs_and_runs_where_the_user_is(copy, bare_python, clean_env):
    done = start(copy, "doctor", "x.ipynb", python=bare_python, env=clean_env)
    assert json.loads(done.stdout)[1:] == [["doctor", "x.ipynb"], str(copy.parent)]
    assert not (copy / ".venv").exists()


def test_the_exit_code_is_the_commands_own(copy):
    (copy / "course_lib" / "__main__.py").write_text("raise SystemExit(9)")
    assert start(copy, "demo").returncode == 9


@pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")
def test_ctrl_c_in_a_command_is_the_commands_to_handle(copy):
    (copy / "course_lib" / "__main__.py").write_text(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    raise SystemExit(7)\n"
    )
    child = subprocess.Popen([sys.executable, copy / "course.py", "demo"], text=True, start_new_session=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == "ready\n"
    os.killpg(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (7, "")


# ---- the commands


@pytest.fixture
def started(monkeypatch):
    """What course.py would start, instead of starting it."""
    calls = []
    monkeypatch.setattr(course.HERE, "python_for", lambda extras: "/a python")
    monkeypatch.setattr(course, "run", lambda python, command, folder=ROOT: calls.append((command, folder)) or 0)
    return calls


@pytest.fixture
def course_of_two(monkeypatch, tmp_path):
    """A course of two notebooks, a picture and what Jupyter leaves; and the folder of the learner's copies."""
    source, work = tmp_path / "notebooks", tmp_path / "work"
    (source / "figures").mkdir(parents=True)
    (source / ".ipynb_checkpoints").mkdir()
    for name in ("02_mask.ipynb", "03_positions.ipynb"):
        (source / name).write_text(json.dumps(a_notebook(name)))
    for name in ("figures/a.png", ".ipynb_checkpoints/02.ipynb"):
        (source / name).write_text(f"new {name}")
    work.mkdir()
    for name, value in (("ROOT", tmp_path), ("NOTEBOOKS", source), ("WORK", work)):
        monkeypatch.setattr(course, name, value)
    return source, work


def a_notebook(title, answer="raise NotImplementedError", check="check.f(f)", mine=()):
    notes = {"grade_id": "f", "solution": True}
    cells = [("title", title, {}), ("f", answer, {"nbgrader": notes}), ("f-check", check, {}), *mine]
    made = [{"id": i, "cell_type": "code", "source": text, "metadata": m} for i, text, m in cells]
    return {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def test_lab_copies_what_is_new_and_never_overwrites(course_of_two, started, capsys):
    source, work = course_of_two
    (work / "02_mask.ipynb").write_text("my answer")
    assert course.main(["lab", "--no-browser"]) == 0
    assert (work / "02_mask.ipynb").read_text() == "my answer"
    assert (work / "03_positions.ipynb").read_text() == (source / "03_positions.ipynb").read_text()
    assert (work / "figures" / "a.png").read_text() == "new figures/a.png"
    assert not (work / ".ipynb_checkpoints").exists()
    (command, folder) = started[0]
    assert command[:2] == ["-m", "jupyterlab"] and command[-1] == "--no-browser" and folder == work
    assert "02_mask.ipynb (yours; it cannot be read as a notebook)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "copied",
    [
        a_notebook("02_mask.ipynb"),
        a_notebook("02_mask.ipynb", answer="def f(): return 1", mine=[("mine", "f()", {})]),
        a_notebook("02_mask.ipynb", check="check.f(f)\n"),
    ],
    ids=["untouched", "answered, with a cell added", "a line end more"],
)
def test_a_copy_that_differs_in_its_answers_alone_is_kept_without_a_word_more(course_of_two, started, capsys, copied):
    (course_of_two[1] / "02_mask.ipynb").write_text(json.dumps(copied))
    assert course.main(["lab"]) == 0
    said = capsys.readouterr().out
    assert os.path.join("work", "02_mask.ipynb") + " (yours)\n" in said and "doctor" not in said


def test_a_copy_that_is_older_than_the_course_is_named_with_what_to_do(course_of_two, started, capsys):
    copied = a_notebook("02_mask.ipynb, last year", answer="def f(): return 1", check="check.old(f)")
    (course_of_two[1] / "02_mask.ipynb").write_text(json.dumps(copied))
    copied = a_notebook("03_positions.ipynb")
    del copied["cells"][2]
    (course_of_two[1] / "03_positions.ipynb").write_text(json.dumps(copied))
    assert course.main(["lab"]) == 0
    said = capsys.readouterr().out
    older, path = "(yours; answers aside, {})", os.path.join("work", "02_mask.ipynb")
    assert f"{path} {older.format('2 of its cells differ from the course' + chr(39) + 's of today')}" in said
    assert older.format("1 of the course's are missing") in said
    assert said.count(f"`python3 course.py doctor {path} --fix`") == 1
    assert json.loads((course_of_two[1] / "02_mask.ipynb").read_text())["cells"][1]["source"] == "def f(): return 1"


def without_ids(notebook):
    for cell in notebook["cells"]:
        del cell["id"]
    return notebook | {"nbformat_minor": 0}


def test_a_copy_whose_cells_have_no_ids_is_matched_by_its_texts(course_of_two, started, capsys):
    _, work = course_of_two
    colab = without_ids(a_notebook("02_mask.ipynb", answer="def f(): return 1"))
    colab["cells"][2]["source"] = ["check.f(f)\r\n"]
    (work / "02_mask.ipynb").write_text(json.dumps(colab))
    (work / "03_positions.ipynb").write_text(json.dumps(without_ids(a_notebook("last year's"))))
    assert course.main(["lab"]) == 0
    said = capsys.readouterr().out
    assert os.path.join("work", "02_mask.ipynb") + " (yours)\n" in said
    assert "(yours; answers aside, 1 of the course's are missing or differ)" in said


def test_a_check_without_an_id_is_matched_by_its_grade_id(course_of_two, started, capsys):
    source, work = course_of_two
    handed_out = a_notebook("02_mask.ipynb")
    handed_out["cells"][2]["metadata"] = {"nbgrader": {"grade_id": "f__check", "solution": False}}
    (source / "02_mask.ipynb").write_text(json.dumps(handed_out))
    older = without_ids(json.loads(json.dumps(handed_out)))
    older["cells"][2]["source"] = "check.old(f)"
    (work / "02_mask.ipynb").write_text(json.dumps(older))
    assert course.main(["lab"]) == 0
    assert "answers aside, 1 of its cells differ from the course's of today)" in capsys.readouterr().out


@pytest.mark.parametrize("odd", [[1], {"a": 1}, 7, None], ids=str)
def test_lab_goes_on_whatever_a_cell_of_a_copy_has_as_its_id(course_of_two, started, capsys, odd):
    copied = a_notebook("02_mask.ipynb", mine=[(odd, "mine", {})])
    copied["cells"][0]["id"] = odd
    (course_of_two[1] / "02_mask.ipynb").write_text(json.dumps(copied))
    assert course.main(["lab"]) == 0 and started
    assert os.path.join("work", "02_mask.ipynb") + " (yours)\n" in capsys.readouterr().out


def test_lab_goes_on_when_a_copy_cannot_be_read_and_gives_no_advice_for_an_older_one(
    course_of_two, started, monkeypatch, capsys
):
    _, work = course_of_two
    (work / "02_mask.ipynb").write_text("{}")
    (work / "03_positions.ipynb").mkdir()
    real = Path.read_bytes

    def forbidden(path):  # as a file of mode 0 is to all users but root
        if path == work / "02_mask.ipynb":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert course.main(["lab"]) == 0 and started
    said = capsys.readouterr().out
    assert "02_mask.ipynb (yours; it cannot be read)" in said and "For a fresh " in said
    assert "03_positions.ipynb (yours; it cannot be read as a notebook)" in said
    assert "--fix" not in said and (work / "02_mask.ipynb").read_text() == "{}"


def test_a_folder_that_may_not_be_written_stops_lab_only_if_it_is_work(course_of_two, started, monkeypatch, capsys):
    _, work = course_of_two
    real = shutil.copyfile

    def forbidden_in(folder):
        def copyfile(source, target):
            if Path(target).parent == folder:
                raise PermissionError(13, "Permission denied", target)
            real(source, target)

        monkeypatch.setattr(course.shutil, "copyfile", copyfile)

    forbidden_in(work / "figures")
    assert course.main(["lab"]) == 0 and started and (work / "03_positions.ipynb").is_file()
    assert "skipped " + os.path.join("work", "figures", "a.png") + " (Permission denied)" in capsys.readouterr().out
    (work / "02_mask.ipynb").unlink()
    started.clear()
    forbidden_in(work)
    assert course.main(["lab"]) == 2 and not started


@pytest.mark.skipif(os.name == "nt", reason="makes symbolic links")
def test_lab_never_writes_through_a_link(course_of_two, started, tmp_path, capsys):
    _, work = course_of_two
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (work / "02_mask.ipynb").symlink_to(elsewhere / "gone.ipynb")
    (work / "03_positions.ipynb").symlink_to("03_positions.ipynb")
    (work / "figures").symlink_to(elsewhere)
    assert course.main(["lab"]) == 0 and started
    said = capsys.readouterr().out
    assert not list(elsewhere.iterdir()) and (work / "02_mask.ipynb").is_symlink()
    assert said.count("(a link to nothing)") == 2 and "skipped " + os.path.join("work", "figures", "a.png") in said
    (work / "figures").unlink()
    (work / "figures").write_text("a file")
    assert course.main(["lab"]) == 0 and (work / "figures").read_text() == "a file"


@pytest.mark.parametrize(
    ("user", "given", "passed"),
    [
        (0, ["--port", "9"], ["--allow-root", "--port", "9"]),
        (0, ["--allow-root"], ["--allow-root"]),
        (0, ["--ServerApp.allow_root=True"], ["--ServerApp.allow_root=True"]),
        (1000, ["--port", "9"], ["--port", "9"]),
        (None, [], []),  # Windows
    ],
)
def test_root_is_told_that_jupyterlab_is_to_allow_it(course_of_two, started, monkeypatch, capsys, user, given, passed):
    if user is None:
        monkeypatch.delattr(os, "geteuid", raising=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user, raising=False)
    assert course.main(["lab", *given]) == 0
    assert started == [(["-m", "jupyterlab", *passed], course_of_two[1])]
    assert ("You are root" in capsys.readouterr().out) is (given != passed)


def test_lab_without_notebooks_says_how_to_make_them(monkeypatch, tmp_path, started, capsys):
    monkeypatch.setattr(course, "NOTEBOOKS", tmp_path / "notebooks")
    assert course.main(["lab"]) == 2
    assert "python -m autograder build" in capsys.readouterr().err and not started


def test_test_leaves_out_the_long_ones_unless_told(started):
    course.main(["test", "-k", "mask", "-x"])
    course.main(["test", "--all", "-q"])
    course.main(["test"])
    chosen, everything, plain = (command[2:] for command, _ in started)
    assert chosen == ["-m", "not slow and not gpu and not browser", "-k", "mask", "-x"]
    assert everything == ["-q"]
    assert plain[:2] == chosen[:2] and "-n" in plain


def test_test_passes_its_words_to_pytest_and_fails_when_no_test_ran(copy):
    if Environment(ROOT).missing(["dev"]):
        pytest.skip("the running environment lacks some of the dev extra, so course.py would install it")
    (copy / "tests").mkdir()
    (copy / "tests" / "test_it.py").write_text(
        "import pytest\ndef test_mask(): pass\ndef test_other(): assert 0\n"
        "@pytest.mark.slow\ndef test_mask_long(): assert 0\n"
    )
    done = start(copy, "test", "-k", "mask")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    assert start(copy, "test", "-k", "other").returncode == 1
    assert start(copy, "test", "-k", "no_such_test").returncode == 5
    assert start(copy, "test", "--all", "-k", "mask_long").returncode == 1


def test_check_says_one_line_an_item_and_fails_when_one_does(copy):
    if Environment(ROOT).missing(["lab"]):
        pytest.skip("the running environment lacks some of the lab extra, so course.py would install it")
    (copy / "notebooks").mkdir()
    (copy / "notebooks" / "02_mask.ipynb").write_text("{}")
    main = copy / "course_lib" / "__main__.py"
    main.write_text("")
    well = start(copy, "check")
    assert well.returncode == 0 and well.stdout.count("ok    ") == 4, well.stdout
    main.write_text("import sys\nif 'torch' in sys.argv: print('some detail'); sys.exit('layer 2 differs')")
    ill = start(copy, "check")
    assert ill.returncode == 1
    assert [line[:4] for line in ill.stdout.splitlines()[:4]] == ["ok  ", "ok  ", "FAIL", "ok  "]
    assert "layer 2 differs" in ill.stdout
