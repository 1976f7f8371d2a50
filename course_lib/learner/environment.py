"""An environment for course.py's commands: the active one if it satisfies the requirements, else a .venv made here.

Standard library only: this runs before anything is installed.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from course_lib.cli import UserError
from course_lib.learner.lock import locked
from course_lib.learner.pip_says import conflicts, explain, explain_conflict, not_found, where_set, without

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_TORCH_MB, PLAIN_TORCH_MB = 200, (3_000 if sys.platform == "linux" else 250)
DOWNLOAD_MB = {"": 30, "lab": 100, "dev": 150}  # all but torch, rounded up
PIP_SETTINGS = {"PIP_RETRIES": "2", "PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


class Environment:
    """Decides which Python runs a command of the project in `root`, and sets one up when there is none.

    root    folder with pyproject.toml and constraints.txt; .venv, .venv.log and .venv.lock are made there, nowhere else
    """

    def __init__(self, root: Path) -> None:
        self.root, self.venv, self.log = root, root / ".venv", root / ".venv.log"
        self.venv_python = self.venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.stamp = self.venv / "course.json"  # {"digest": see _digest, "extras": installed ones, "done": bool}
        self.lock: tuple[int, ...] = ()  # descriptors of .venv.lock, open in a step's process as well
        self.in_conflict: dict[str, str] = {}  # of the last step: package -> the constraint that pip could not meet

    def python_for(self, extras: Iterable[str]) -> str:
        """Path of a Python that has the core and these extras of pyproject.toml; installs them at need.

        Of several processes that ask at the same time one sets up, and the others wait and use what it made.
        """
        if not self.missing(extras):
            return sys.executable
        if not self.venv_has(extras):
            with locked(self.root / ".venv.lock", self._say_waiting) as self.lock:
                if not self.venv_has(extras):
                    self.set_up(set(extras))
        return str(self.venv_python)

    def _say_waiting(self) -> None:
        say(f"Another course.py is setting up {self.venv.name}; waiting for it")

    def missing(self, extras: Iterable[str]) -> list[str]:
        """The requirements of the core and these extras that the running Python's environment does not satisfy."""
        return [line for line in self.requirements(extras) if not is_satisfied(line)]

    def requirements(self, extras: Iterable[str]) -> list[str]:
        """Requirement lines of pyproject.toml (read as Python lists: Python 3.10 has no tomllib)."""
        text = (self.root / "pyproject.toml").read_text(encoding="utf-8")
        lists = {name: ast.literal_eval(body) for name, body in re.findall(r"^(\w+) = (\[\n.*?^\])", text, re.M | re.S)}
        found, wanted = list(lists["dependencies"]), list(extras)
        for extra in wanted:
            for line in lists[extra]:
                own = re.fullmatch(r"chunked-prefill-course\[(.*)\]", line)
                wanted.extend(own[1].split(",")) if own else found.append(line)
        return found

    def venv_has(self, extras: Iterable[str]) -> bool:
        have = self._read_stamp()
        return bool(
            have
            and have["done"]
            and have.get("digest") == self._digest()  # absent from the stamps of an earlier course.py
            and self.venv_python.exists()
            and ("dev" in have["extras"] or set(extras) <= set(have["extras"]))
        )

    def set_up(self, extras: set[str]) -> None:
        """Make .venv if need be and install the project with these extras into it.

        What an earlier set-up installed stays usable if this one fails; one that was killed is redone from nothing.
        """
        before = self._read_stamp()
        if before is None and self.venv.exists():
            raise UserError(
                f"{self.venv} was not made by course.py. Activate it and install into it (pip install -e "
                f'"{self._target(extras)}"), or delete it; then run this again'
            )
        self.log.write_text("", encoding="utf-8")
        say(f"Setting up {self.venv.name}, once; details go to {self.log.name}")
        if not (before and before["done"] and self.venv_python.exists()):
            if self.venv.exists():
                say("  the last set-up was not finished: starting over")
                shutil.rmtree(self.venv)
            self.venv.mkdir()
            self._write_stamp(set(), done=False)
            self._step("making a virtual environment", [sys.executable, "-m", "venv", str(self.venv)])
            before = None
        have = set(before["extras"]) if before else set()
        self._write_stamp(have, done=False)
        try:
            self._install(have | extras, fetch_torch=bool(extras) and not have & {"lab", "dev"})
        except UserError:  # pip undoes what it could not finish
            if before:
                self.stamp.write_text(json.dumps(before), encoding="utf-8")
            raise
        self._write_stamp(have | extras, done=True)

    def _install(self, extras: set[str], fetch_torch: bool) -> None:
        if fetch_torch and sys.platform == "linux" and not has_nvidia_gpu():
            fetch_torch = not self._cpu_torch()
        megabytes = max(DOWNLOAD_MB[e] for e in ["", *extras] if e in DOWNLOAD_MB) + PLAIN_TORCH_MB * fetch_torch
        what = f"{'torch, ' if fetch_torch else ''}{'Jupyter and the rest' if extras else 'NumPy'}"
        size = f"{megabytes / 1000:.0f} GB" if megabytes > 1000 else f"{megabytes} MB"
        what, pins = f"{what}, up to {size} to download", "constraints.txt"
        while not self._step(what, self._pip("-c", pins, "-e", self._target(extras)), conflict_ok=True):
            pins = self._loosened(pins)

    def _loosened(self, pins: str) -> str:
        """Path of a copy of the file `pins` without the lines that the user's own constraints exclude."""
        text, there = (self.root / pins).read_text(encoding="utf-8"), where_set(str(self.venv_python))
        looser = without(text, set(self.in_conflict))
        if looser == text or not there:  # leaving pins out changes nothing, or the user has no constraints
            reason = explain_conflict(self.in_conflict, there, self.requirements(["dev"]))
            raise UserError(f"{reason} (log: {self.log})")
        say(f"  trying other versions of {', '.join(self.in_conflict)}, which your pip's constraints allow")
        copy = self.venv / "constraints.txt"
        copy.write_text(looser, encoding="utf-8")
        return str(copy)

    def _cpu_torch(self) -> bool:
        """True if torch's CPU build was installed: from wherever pip looks anyway, else from PyTorch's own index.

        In this order: a mirror, a cache or a wheel on disk may be all there is, and an index that cannot be reached
        costs pip minutes of retries, package by package. Where the user's own constraints exclude the tested version,
        PyTorch's index is asked for the newest that they allow.
        """
        pin = re.search(r"^torch==(\S+)", (self.root / "constraints.txt").read_text(encoding="utf-8"), re.M)[1]
        what, want = f"torch {pin}, CPU build, {CPU_TORCH_MB} MB", f"torch=={pin}+cpu"
        if self._step(f"{what}, if pip's index has it", self._pip(want), missing_ok=True):
            return True
        try:
            urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=5).close()
        except OSError:
            say("  PyTorch's CPU index cannot be reached: torch comes with CUDA libraries, which are not needed here")
            return False
        if self._step(f"{what}, from pytorch.org", self._pip(want, "--extra-index-url", CPU_INDEX), missing_ok=True):
            return True
        if "torch" not in self.in_conflict:
            return False
        (any_version,) = (line for line in self.requirements(["lab"]) if line.startswith("torch>"))
        what = "torch, CPU build, in a version that your pip's constraints allow, from pytorch.org"
        return self._step(what, self._pip(any_version, "--index-url", CPU_INDEX), missing_ok=True)

    def _pip(self, *arguments: str) -> list[str]:
        return [str(self.venv_python), "-m", "pip", "install", *arguments]

    def _step(self, what: str, command: list[str], missing_ok: bool = False, conflict_ok: bool = False) -> bool:
        """Run a command into the log while showing that time passes.

        False if the command failed in a way that is allowed. missing_ok: what was asked for is not on offer, or the
        user's own pip constraints exclude it; conflict_ok: the latter only (`self.in_conflict` then names the
        constraints). Any other failure raises UserError.
        """
        line, settings = ProgressLine(what), PIP_SETTINGS | os.environ
        with open(self.log, "ab") as log:
            start = log.tell()
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root, env=settings,
                pass_fds=self.lock,
            )  # fmt: skip
            try:
                while child.poll() is None:
                    try:
                        child.wait(timeout=1)
                    except subprocess.TimeoutExpired:
                        line.tick()
            except KeyboardInterrupt:
                child.terminate()
                child.wait()
                raise
        if child.returncode == 0:
            line.end("done")
            return True
        text = self.log.read_bytes()[start:].decode("utf-8", "replace")
        if shutil.disk_usage(self.root).free < 2**20:  # then the log could not be written either
            text = "No space left on device"
        self.in_conflict = conflicts(text)
        if self.in_conflict and (missing_ok or conflict_ok):
            line.end("not to be had under its constraints")
            return False
        if missing_ok and not_found(text):
            line.end("it does not")
            return False
        line.end("failed")
        raise UserError(f"{explain(text)} (log: {self.log})")

    def _target(self, extras: set[str]) -> str:
        return f".[{','.join(sorted(extras))}]" if extras else "."

    def _digest(self) -> str:
        """SHA-256 of all that decides what belongs in .venv, its path included."""
        files = [(self.root / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
        return hashlib.sha256(b"\0".join([os.fsencode(self.root), *files])).hexdigest()

    def _read_stamp(self) -> dict | None:
        try:
            return json.loads(self.stamp.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _write_stamp(self, extras: set[str], done: bool) -> None:
        state = {"digest": self._digest(), "extras": sorted(extras), "done": done}
        self.stamp.write_text(json.dumps(state), encoding="utf-8")


class ProgressLine:
    """One line that counts the seconds on a terminal; a line now and then elsewhere."""

    def __init__(self, what: str) -> None:
        self.what, self.seconds, self.live = what, 0, sys.stdout.isatty()
        say(f"  {what} ...", end="" if self.live else "\n")

    def tick(self) -> None:
        self.seconds += 1
        if self.live:
            say(f"\r  {self.what} ... {self.seconds} s", end="")
        elif self.seconds % 15 == 0:
            say(f"    {self.seconds} s so far")

    def end(self, how: str) -> None:
        say(f"\r  {self.what} ... {how}, {self.seconds} s" if self.live else f"    {how}, {self.seconds} s")


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


def is_satisfied(requirement: str) -> bool:
    """Does the running Python's environment hold this requirement, such as "torch>=2.6,<3"?"""

    def numbers(version: str) -> tuple[int, ...]:
        return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0]))

    name, bounds = re.fullmatch(r"([\w.-]+)(.*)", requirement).groups()
    try:
        have = numbers(metadata.version(name))
    except (metadata.PackageNotFoundError, KeyError, AttributeError):  # absent, or its metadata is damaged
        return False
    return all((have >= numbers(v)) == (op == ">=") for op, v in re.findall(r"(>=|<)([\d.]+)", bounds))


def has_nvidia_gpu() -> bool:
    return bool(shutil.which("nvidia-smi")) or os.path.exists("/proc/driver/nvidia/version")
