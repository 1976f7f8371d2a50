"""Starting course.py as a stranger would."""

import subprocess
import sys


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
