"""Chunked prefill, bit for bit. Each command sets up what it needs on first use, then runs.

  python3 course.py demo [--json]      the idea in seconds; needs NumPy only
  python3 course.py lab                copy the notebooks to work/ and open them in JupyterLab
  python3 course.py check              is this computer ready? one line an item, under a minute
  python3 course.py test [-k mask]     the project's tests; --all adds the long ones, the rest goes to pytest
  python3 course.py doctor [NOTEBOOK]  what is installed, to paste into a question; or what is wrong with a notebook
  python3 course.py grade              a sample class of twelve is graded, to look at; instructors use autograder grade
  python3 course.py bench [NAME]       a side-by-side measurement from tests/bench/

An active environment that has what a command needs is used as it is; otherwise .venv is made here.
"""
# Parses on Pythons that it does not run on (hence % and no stars), so that they get a sentence, not a traceback.

import sys

if not (3, 10) <= sys.version_info[:2] <= (3, 14):
    sys.stderr.write(
        "course.py: this is Python %d.%d; the course needs 3.10 to 3.14. Start it with one of those "
        "(python3.11 course.py; on Windows py -3.11 course.py) or get one from python.org.\n" % sys.version_info[:2]
    )
    sys.exit(2)

import os
import shutil
import signal
import subprocess
from pathlib import Path

from course_lib.cli import UserError, refuse
from course_lib.learner.copies import compared
from course_lib.learner.environment import Environment, say
from course_lib.learner.pip_says import explain

ROOT = Path(__file__).resolve().parent
NOTEBOOKS, WORK, BENCH = ROOT / "notebooks", ROOT / "work", ROOT / "tests" / "bench"
HERE = Environment(ROOT)
LEARN = ["lab", "serve"]  # what notebooks need; 09 starts the server
ROOT_FLAGS = ("--allow-root", "--ServerApp.allow_root")  # JupyterLab's own two names for it


def demo(arguments):
    return run(HERE.python_for([]), ["-m", "course_lib", "demo"] + arguments)


def lab(arguments):
    if not any(NOTEBOOKS.glob("*.ipynb")):
        raise UserError("there are no notebooks in %s; `python -m autograder build` makes them" % NOTEBOOKS)
    python = HERE.python_for(LEARN)
    WORK.mkdir(parents=True, exist_ok=True)
    older, unreadable = [], []
    for source in sorted(NOTEBOOKS.rglob("*")):
        target = WORK / source.relative_to(NOTEBOOKS)
        if not source.is_file() or ".ipynb_checkpoints" in source.parts:
            continue
        name = target.relative_to(ROOT)
        if os.path.lexists(str(target)):  # exists() is False for a link to nothing, and copying would follow it
            say("kept    %s (%s)" % (name, kept(source, target, older, unreadable)))
        elif stands_in_the_way(target.parent):
            say("skipped %s (%s is no folder of its own)" % (name, stands_in_the_way(target.parent).relative_to(ROOT)))
        else:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(source), str(target))
                say("copied  %s" % name)
            except PermissionError as error:
                if target.parent == WORK:  # no notebook can be copied, and Jupyter could save none
                    raise
                say("skipped %s (%s)" % (name, error.strerror))
    if older:
        say(
            "Your answers stay good. `python3 course.py doctor %s --fix` mends imports of what has moved; to start "
            "a notebook afresh, move your copy out of %s and run this again." % (older[0], WORK.relative_to(ROOT))
        )
    if unreadable:
        say("For a fresh %s, move yours out of %s and run this again." % (unreadable[0], WORK.relative_to(ROOT)))
    if is_root() and not any(a.split("=")[0] in ROOT_FLAGS for a in arguments):
        say("You are root, which JupyterLab refuses unless told --allow-root: it is told so.")
        arguments = ["--allow-root"] + arguments
    return run(python, ["-m", "jupyterlab"] + arguments, folder=WORK)


def kept(source, target, older, unreadable):
    """What is said of the learner's `target`; adds its name to `older` or to `unreadable` if there is advice on it."""
    if not os.path.exists(str(target)):
        unreadable.append(target.relative_to(ROOT))
        return "a link to nothing"
    if source.suffix != ".ipynb":
        return "yours"
    try:
        differs = compared(target, source)
    except UserError as error:
        unreadable.append(target.relative_to(ROOT))
        return "yours; %s" % error
    if differs:
        older.append(target.relative_to(ROOT))
        return "yours; " + differs
    return "yours"


def stands_in_the_way(folder):
    """The link or file in WORK that stands where `folder` or a folder above it would be; None if there is none."""
    for place in [folder] + list(folder.parents):
        if place == WORK:
            return None
        if place.is_symlink() or place.is_file():
            return place


def is_root():
    """False on Windows, which has no such user."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def test(arguments):
    options = [] if "--all" in arguments else ["-m", "not slow and not gpu and not browser"]
    chosen = [a for a in arguments if a != "--all"]
    spread = ["-n", "auto", "--maxprocesses", "4", "--dist", "loadgroup"]
    return run(HERE.python_for(["dev"]), ["-m", "pytest"] + options + (chosen or spread))


def grade(arguments):
    if arguments:
        raise UserError("grade takes nothing; to grade submissions: python -m autograder grade DIR")
    return run(HERE.python_for(["lab", "grade"]), ["-m", "autograder.grading.sample"])


def bench(arguments):
    there = sorted(path.stem for path in BENCH.glob("[a-z]*.py"))
    if not arguments or arguments[0] not in there:
        raise UserError("bench wants one of these names: %s" % (", ".join(there) or "(there are none)"))
    extras = ["lab", "grade"] if arguments[0] == "grading" else LEARN
    return run(HERE.python_for(extras), [str(BENCH / (arguments[0] + ".py"))] + arguments[1:])


def doctor(arguments):
    """Installs nothing: it is asked when something is wrong. A notebook's path counts from where the user is."""
    python = str(HERE.venv_python) if HERE.missing(LEARN) and HERE.venv_python.exists() else sys.executable
    return run(python, ["-m", "course_lib", "doctor"] + arguments, folder=Path.cwd())


def check(arguments):
    python = HERE.python_for(LEARN)
    prefill = ["prefill", "--prompt-len", "200", "--chunk", "1,7,64,ragged", "--hit", "48", "--backend"]
    items = [("environment", ["doctor"])]
    for backend in ("numpy", "torch"):
        items.append(("%s: K, V and logits in chunks equal one pass, bit for bit" % backend, prefill + [backend]))
    for book in sorted(NOTEBOOKS.glob("*.ipynb")) + sorted(WORK.glob("*.ipynb")):
        items.append(("%s can be opened" % book.relative_to(ROOT), ["doctor", str(book)]))
    wrong = 0
    for what, command in items:
        # Passive: torch's threads wait by spinning, which on a busy machine costs a minute here.
        how = child(ROOT, OMP_WAIT_POLICY="PASSIVE")
        done = subprocess.run(
            [python, "-m", "course_lib"] + command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how
        )
        said = done.stdout.decode("utf-8", "replace").split("\n")
        wrong += done.returncode != 0
        say("ok    " + what if done.returncode == 0 else "FAIL  %s: %s" % (what, "; ".join(filter(None, said[-3:]))))
    say("Something is wrong. `python3 course.py doctor` says more." if wrong else "All is well.")
    return 1 if wrong else 0


COMMANDS = {"demo": demo, "lab": lab, "check": check, "test": test, "grade": grade, "doctor": doctor, "bench": bench}


def child(folder, **settings):
    """How the project's own commands are started: they find course_lib and autograder from any folder.

    settings: environment variables that hold unless the user has set them.
    """
    path = os.pathsep.join([str(ROOT)] + [p for p in [os.environ.get("PYTHONPATH")] if p])
    return {"cwd": str(folder), "env": dict(settings, **dict(os.environ, PYTHONPATH=path))}


def run(python, command, folder=ROOT):
    """The command's exit code. Ctrl-C is the command's to handle (JupyterLab asks, pytest sums up)."""
    # A handler that does nothing, and not SIG_IGN: that one the command would inherit.
    before = signal.signal(signal.SIGINT, lambda *ignored: None)
    try:
        code = subprocess.Popen([python] + command, **child(folder)).wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def main(arguments):
    name = arguments[0] if arguments else "--help"
    if name not in COMMANDS or "--help" in arguments or "-h" in arguments:
        if name.strip("-") in COMMANDS or name in ("-h", "--help", "help"):
            say(__doc__.strip())
            return 0
        return refuse("course.py", "no command %r; there are %s" % (name, ", ".join(COMMANDS)))
    try:
        return COMMANDS[name](arguments[1:])
    except UserError as error:
        return refuse("course.py", error)
    except OSError as error:
        return refuse("course.py", "%s (%s)" % (explain(str(error)), error))
    except KeyboardInterrupt:
        refuse("course.py", "stopped; run it again to go on")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
