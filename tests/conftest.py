"""What all tests share: markers that skip with a reason, a copy of the project, a Python that has nothing."""

import json
import os
import shutil
import tempfile
import venv
from pathlib import Path

# Before NumPy and torch are imported: their threads wait by spinning, and beside a second worker that costs minutes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What tests do is no learner's progress. Started notebooks and commands inherit this.
os.environ["COURSE_PROGRESS"] = str(Path(tempfile.gettempdir()) / f"course_progress_{os.getpid()}.json")

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

# Wall time says nothing about bits, and a shared machine is slow at times.
settings.register_profile("course", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("course")


@pytest.hookimpl(trylast=True)  # after -m and -k: importing torch takes seconds, so only when it matters
def pytest_collection_modifyitems(items):
    for marker, why_not in (("gpu", _no_gpu), ("browser", _no_browser)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := why_not()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str:
    try:
        import torch
    except ImportError:
        return "needs a CUDA device: torch is not installed"
    return "" if torch.cuda.is_available() else "needs a CUDA device: torch sees none"


def _no_browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return "" if any(map(shutil.which, names)) else f"needs a browser: none of {', '.join(names)} is on PATH"


@pytest.fixture(autouse=True)
def not_grading(monkeypatch):
    """A test that reads nbgrader's settings in this process sets this for all tests behind it."""
    monkeypatch.delenv("COURSE_GRADING", raising=False)


@pytest.fixture
def clean_env():
    """The process environment without what would change what a started Python or pip does."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "VIRTUAL_ENV", "COV_"))}


@pytest.fixture
def copy(tmp_path):
    """A project folder with a space in its name, in which `python -m course_lib` only tells how it was called."""
    folder = tmp_path / "my course"
    (folder / "course_lib" / "learner").mkdir(parents=True)
    for name in ("course.py", "pyproject.toml", "constraints.txt", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    parts = ("__init__.py", "copies.py", "environment.py", "lock.py", "notebook_file.py", "pip_says.py")
    for name in ("__init__.py", "cli.py", *(f"learner/{part}" for part in parts)):
        shutil.copy(ROOT / "course_lib" / name, folder / "course_lib" / name)
    told = "import json, os, sys\nprint(json.dumps([sys.executable, sys.argv[1:], os.getcwd()]))\n"
    (folder / "course_lib" / "__main__.py").write_text(told)
    return folder


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    """A Python that has nothing but the standard library, like a new computer's."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


@pytest.fixture
def command(capsys):
    """command(*argv) -> exit code, stdout, stderr."""

    from course_lib.__main__ import main

    def run(*argv):
        try:
            code = main([str(a) for a in argv])
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def refused(command):
    """refused(*argv) -> the one line on stderr."""

    def run(*argv):
        code, out, err = command(*argv)
        assert (code, out) == (2, ""), err
        assert len(err.splitlines()) == 1 and len(err) < 1000
        return err

    return run


@pytest.fixture
def as_json(command):
    """as_json(*argv) -> exit code and the object printed."""

    def run(*argv):
        code, out, err = command(*argv, "--json")
        assert err == ""
        return code, json.loads(out)

    return run
