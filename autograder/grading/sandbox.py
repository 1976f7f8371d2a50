"""Starts a worker apart from everything: no network, no files but the interpreter's and ours, limits on what it uses.

Two levels so far: "bubblewrap" (namespaces made by the bwrap program), and "process" (limits only: an answer could read
files and open connections there, so it is for code that you trust).
"""

from __future__ import annotations

import functools
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from autograder.grading.wire import WireError, encode, receive

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("bubblewrap", "process")  # the safer first
WORKER = (sys.executable, "-I", "-S", "-c")
MEMORY = 8 << 30  # bytes of address space; torch alone reserves some
FILE_SIZE = 64 << 20
CPU_SECONDS = 600


class Gone(Exception):
    """The worker is not there any more, or does not answer in time; the text says which."""


@functools.lru_cache(maxsize=1)
def level() -> str:
    """The safest level that works on this machine, tried once."""
    for name in LEVELS[:-1]:
        try:
            with Sandbox(name):
                return name
        except (Gone, OSError):
            continue
    return LEVELS[-1]


class Sandbox:
    """One worker. Leaving the context, or `kill`, ends it and all that it started."""

    def __init__(self, level: str, *, torch: bool = False):
        self.level = level
        self.process = subprocess.Popen(
            _command(level),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            close_fds=True,
            start_new_session=True,
            preexec_fn=_limit,
            env=_environment(),
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        if torch:
            self.send("torch")
        self.send("hello")
        if self.receive(60)[0] != "hello":
            self.kill()
            raise Gone("it did not start")

    def send(self, *message: Any) -> None:
        """Gone if nobody reads it within 30 s."""
        left = memoryview(encode(message))
        pipe = self.process.stdin.fileno()
        os.set_blocking(pipe, False)
        while left:
            if not select.select([], [pipe], [], 30)[1]:
                raise Gone("it does not listen")
            try:
                left = left[os.write(pipe, left[: 1 << 16]) :]
            except BrokenPipeError:
                raise Gone("it has ended") from None

    def receive(self, seconds: float) -> tuple:
        """The next message. Gone when the worker has ended, or `seconds` have passed; WireError if it is none."""
        deadline = time.monotonic() + seconds
        value = receive(functools.partial(self._exactly, deadline))
        if not isinstance(value, tuple) or not value or not isinstance(value[0], str):
            raise WireError("no message")
        return value

    def _exactly(self, deadline: float, count: int) -> bytes:
        found, pipe = bytearray(), self.process.stdout.fileno()
        while len(found) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise Gone("time")
            part = os.read(pipe, min(count - len(found), 1 << 20))
            if not part:
                raise Gone("it has ended")
            found += part
        return bytes(found)

    def kill(self) -> None:
        """End it; under bubblewrap its whole process namespace ends with it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()
        self.process.wait()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()


def _command(level: str) -> list[str]:
    start = f"import sys; sys.path[:0] = {_paths()!r}; from autograder.grading.worker import main; sys.exit(main())"
    worker = [*WORKER, start]
    if level == "process":
        return worker
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise OSError("bubblewrap is not installed")
    binds: list[str] = []
    for path in _visible():
        binds += ["--ro-bind-try", path, path]
    return [
        bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--uid", "65534",
        "--gid", "65534", "--hostname", "sandbox", "--tmpfs", "/", "--proc", "/proc", "--dev", "/dev",
        "--size", str(FILE_SIZE), "--tmpfs", "/tmp", *binds,  # behind /tmp, since the course may lie in it
        "--chdir", "/tmp", "--remount-ro", "/", "--", *worker,
    ]  # fmt: skip


def _paths() -> list[str]:
    """Where the worker finds packages: ours, and the site-packages of this interpreter."""
    site = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return [str(ROOT), *site]


def _visible() -> list[str]:
    """Files that a worker may read: the interpreter with its libraries, and our two packages."""
    system = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives"]
    python = [sys.base_prefix, sys.prefix, *_paths()[1:], *(sysconfig.get_path(k) for k in ("stdlib", "platstdlib"))]
    ours = [str(ROOT / "autograder"), str(ROOT / "course_lib")]
    return list(dict.fromkeys([*system, *python, *ours]))


def _environment() -> dict[str, str]:
    """One thread each: many workers share the machine, and threads do not survive a fork."""
    return {
        "PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COURSE_GRADING": "1",
    }  # fmt: skip


def _limit() -> None:
    for what, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, FILE_SIZE),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
