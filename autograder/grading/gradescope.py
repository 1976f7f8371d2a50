"""Grading on Gradescope: `python -m autograder gradescope OUT.zip --assignment 02_mask` makes what is uploaded there.

The zip holds setup.sh and run_autograder, the two packages, and settings.json with the points and the seed. There it is
unpacked into /autograder/source; this module then grades /autograder/submission and writes results/results.json
(Autograder Specifications, https://gradescope-autograders.readthedocs.io/en/latest/specs/, read 2026-12-01).
"""

from __future__ import annotations

import json
import secrets
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from autograder.exercises import EXERCISES
from autograder.grading import launch, sandbox
from autograder.grading.grade import Graded, grade_file
from autograder.grading.submissions import find
from course_lib.cli import UserError, write_whole

MOST_SAID = 8_000  # characters of one output
SETUP = """\
#!/usr/bin/env bash
# Runs once, as root, when Gradescope builds the image from this zip. AUTOGRADER_ROOT is for trying it elsewhere.
set -euo pipefail
root="${AUTOGRADER_ROOT:-/autograder}"
if [ -z "${AUTOGRADER_ROOT:-}" ]; then
    apt-get update
    apt-get install -y --no-install-recommends bubblewrap python3 python3-venv util-linux
fi
python3 -m venv "$root/venv"
"$root/venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check \\
    -r "$root/source/requirements.txt" -c "$root/source/constraints.txt"
chmod -R a+rX "$root/source/course" "$root/venv"
chmod 600 "$root/source/settings.json"
mkdir -p "$root/results"
chmod 700 "$root/results"
"""
RUN = """\
#!/usr/bin/env bash
# Runs for each submission: grades what is in submission/, and writes results/results.json in any case.
root="${AUTOGRADER_ROOT:-/autograder}"
mkdir -p "$root/results"
chmod 700 "$root/results"
chmod 600 "$root/source/settings.json"
rm -f "$root/results/results.json"
(cd "$root/source/course" && "$root/venv/bin/python" -m autograder.grading.gradescope "$root")
if [ ! -s "$root/results/results.json" ]; then
    said="The grader itself failed, which is no fault of the notebook. Tell your instructor."
    echo "{\\"score\\": 0, \\"output\\": \\"$said\\"}" > "$root/results/results.json"
fi
"""
NO_NAMESPACES = (
    "This container offers no namespaces, so answers ran in a process of their own, as the user nobody. They could "
    "read neither the settings nor the results. The network, and what else everyone may read, was open to them."
)
NOT_ROOT = (
    "The grader did not run as root here and there are no namespaces, so answers ran under the grader's own account: "
    "they could read the settings and change the results. Use such grades only for code that you trust."
)


def make_zip(out: Path, assignment: str, seed: int | None = None) -> int:
    """Write the zip for one notebook, readable by its owner alone. Returns the exit code.

    seed   chooses the inputs that learners do not see; None draws one
    """
    from autograder.build import ROOT
    from autograder.source import read_lessons

    if out.suffix != ".zip":
        raise UserError(f"Gradescope takes a zip, and {out} does not end in .zip. Name it so.")
    lessons = {lesson.stem: lesson for lesson in read_lessons(ROOT)}
    if assignment not in lessons:
        raise UserError(f"there is no assignment {assignment}; there are {', '.join(lessons)}.")
    worth = {cell.grade_id: cell.points for cell in lessons[assignment].cells if cell.check}
    settings = {
        "assignment": assignment,
        "worth": worth,
        "seed": secrets.randbits(128) if seed is None else seed,
    }
    names = dict.fromkeys(grade_id.partition("__")[0] for grade_id in worth)
    files = {
        "setup.sh": SETUP.encode(),
        "run_autograder": RUN.encode(),
        "settings.json": json.dumps(settings, indent=1).encode(),
        "constraints.txt": (ROOT / "constraints.txt").read_bytes(),
        "requirements.txt": _requirements(any("torch" in EXERCISES[name].imports for name in names)).encode(),
    } | {f"course/{path.relative_to(ROOT).as_posix()}": path.read_bytes() for path in _packages(ROOT)}
    write_whole(out, [_zipped(files)])
    out.chmod(0o600)  # it holds the seed
    print(f"{out}: the autograder of {assignment}, {sum(worth.values()):g} points in {len(worth)} checks.")
    print("Upload it at Gradescope: Configure Autograder. Keep it to yourself, since it holds the seed of the checks.")
    return 0


def _packages(root: Path) -> Iterator[Path]:
    for package in ("autograder", "course_lib"):
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _requirements(torch: bool) -> str:
    """What answers are graded with. Versions are in constraints.txt; IPython reads the magics in cells."""
    lines = ["numpy>=2.0,<3", "ipython"]
    if torch:  # the build without CUDA, a tenth as large (pytorch.org, 2026)
        lines = ["--extra-index-url https://download.pytorch.org/whl/cpu", *lines, "torch>=2.6,<3"]
    return "\n".join(lines) + "\n"


def _zipped(files: dict[str, bytes]) -> bytes:
    """A zip whose bytes depend on the files alone."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            mode = 0o755 if name in ("setup.sh", "run_autograder") else 0o600 if name == "settings.json" else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.create_system, entry.compress_type = 3, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return made.getvalue()


# --- at Gradescope


def grade_submission(root: Path) -> dict[str, Any]:
    """Grade what lies in root/submission, by root/source/settings.json: the content of results.json."""
    began = time.monotonic()
    settings = json.loads((root / "source" / "settings.json").read_text("utf-8"))
    assignment, worth = settings["assignment"], settings["worth"]
    names = list(dict.fromkeys(grade_id.partition("__")[0] for grade_id in worth))
    with tempfile.TemporaryDirectory() as unpacked:
        found = find(root / "submission", {assignment: names}, Path(unpacked))
    if not found:
        said = f"No notebook of {assignment} was handed in. Submit the file {assignment}.ipynb with your answers."
        tests = [_test(name, 0, most, said) for name, most in worth.items()]
        return _results(tests, said, began)
    newest = max(found, key=lambda one: (not one.problem, one.path.lstat().st_mtime_ns, str(one.path)))
    level, means = _isolation()
    graded = grade_file(newest.path, assignment, worth, settings["seed"], level)
    tests = [_test(task.name, task.score, task.max_score, task.diagnosis) for task in graded.tasks]
    return _results(tests, _about(graded, newest.path.name, len(found), means), began)


def _isolation() -> tuple[str, str]:
    """The level at which answers run, and in words what that means if it is the lowest.

    The lowest is accepted: a submission has a container of its own here. As root, answers then run as nobody.
    """
    level = sandbox.level()
    if level != "process":
        return level, ""
    return level, NO_NAMESPACES if launch.nobody() else NOT_ROOT


def _about(graded: Graded, file: str, count: int, means: str) -> str:
    lines = [f"{file} was graded." + f" It is the newest of {count} notebooks that were handed in." * (count > 1)]
    lines += [f"{name}: {where}" for name, where in graded.taken.items()]
    lines += ["(Cells are counted from the top, text cells too.)"] * bool(graded.taken)
    lines += [*graded.notes, f"Answers were run at the isolation level {graded.isolation}.", means]
    return "\n".join(filter(None, lines))


def _test(name: str, score: float, most: float, said: str) -> dict[str, Any]:
    return {
        "name": name.replace("__", ", "),
        "score": score,
        "max_score": most,
        "status": "passed" if score == most else "failed",
        "output": _shown(said),
        "output_format": "text",
        "visibility": "visible",
    }


def _results(tests: list[dict[str, Any]], said: str, began: float) -> dict[str, Any]:
    return {
        "score": sum(test["score"] for test in tests),
        "execution_time": round(time.monotonic() - began),
        "output": _shown(said),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }


def _shown(text: str) -> str:
    return "".join(c for c in text[:MOST_SAID] if c == "\n" or c.isprintable())


def main(root: Path) -> int:
    """Write root/results/results.json, whatever happens."""
    try:
        results = grade_submission(root)
    except Exception as error:  # ours, and not the learner's
        print(f"{type(error).__name__}: {error}")  # Gradescope keeps stdout for instructors
        said = "This could not be graded, which is no fault of the notebook. Tell your instructor."
        results = _results([], said, time.monotonic())
    target = root / "results" / "results.json"
    target.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(target, [json.dumps(results, indent=1).encode()])
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
