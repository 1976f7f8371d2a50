"""Starting a Python that finds this checkout, and course.py as on a new computer."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_python(*arguments, cwd=ROOT, env=(), **more):
    """A finished Python process in which course_lib and autograder can be imported from any `cwd`.

    env    what to add to the environment; `more` goes to subprocess.run, as input="..."
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), **dict(env)}
    line = [sys.executable, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, cwd=cwd, env=env, **{"text": True, **more})


def start(folder, *arguments, python=sys.executable, env=None, prefix=()):
    command = [*prefix, str(python), str(folder / "course.py"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, cwd=folder.parent)
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


def assert_refused(done, *says):
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for words in says:
        assert words in done.stderr
