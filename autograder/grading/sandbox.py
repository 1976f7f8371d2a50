"""Starts a worker apart from everything: no network, no files but the interpreter's and ours, limits on what it uses.

Three levels, the safer first:
  namespaces   a fork server that has imported everything, in namespaces of its own (forkserver.py, namespaces.py)
  bubblewrap   an interpreter of its own for each submission, in namespaces that the program bwrap makes
  process      limits only: an answer could read files, so it is for code that you trust
An answer starts no process and opens no socket (seccomp.py); on the last level so, where the kernel can.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autograder.grading.forkserver import KILL, MESSAGE, START
from autograder.grading.wire import WireError, encode, receive

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("namespaces", "bubblewrap", "process")
STARTING, LISTENING = 60, 30  # seconds that a worker may take to start, and to read what it is sent


class Gone(Exception):
    """The worker is not there any more, or does not answer in time; the text says which."""


class NotStarted(Exception):
    """No worker could be started: no fault of an answer, but of the machine."""


@functools.lru_cache(maxsize=1)
def level() -> str:
    """The safest level that works on this machine, tried once."""
    for name in LEVELS[:-1]:
        if works(name):
            return name
    return LEVELS[-1]


def works(level: str) -> bool:
    """Whether workers start on this level, here and now, and system calls can be taken from answers.

    Without that an answer could start processes without end.
    """
    try:
        with Sandbox(level) as tried:
            return tried.sealed
    except (NotStarted, OSError):
        return False


class Line:
    """The judge's end of a socket to a worker or one of its children: frames, with a time limit."""

    def __init__(self, ours: socket.socket):
        self.socket = ours
        ours.setblocking(False)

    def send(self, *message: Any) -> None:
        """Gone if nobody reads it within 30 s."""
        left = memoryview(encode(message))
        while left:
            if not select.select([], [self.socket], [], LISTENING)[1]:
                raise Gone("it does not listen")
            try:
                left = left[self.socket.send(left[: 1 << 16]) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Gone("it has ended") from None

    def receive(self, seconds: float) -> tuple:
        """The next message. Gone when the other side has ended, or `seconds` have passed; WireError if it is none."""
        deadline = time.monotonic() + seconds
        value = receive(functools.partial(self._exactly, deadline))
        if not isinstance(value, tuple) or not value or not isinstance(value[0], str):
            raise WireError("no message")
        return value

    def _exactly(self, deadline: float, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise Gone("time")
            try:
                part = self.socket.recv(min(count - len(found), 1 << 20))
            except OSError:
                part = b""
            if not part:
                raise Gone("it has ended")
            found += part
        return bytes(found)

    def close(self) -> None:
        self.socket.close()


class Sandbox:
    """One worker. Leaving the context, or `kill`, ends it and all that it started.

    sealed   whether system calls can be taken from the answers in it
    """

    def __init__(self, level: str, *, torch: bool = False):
        self.level = level
        ours, theirs = socket.socketpair()
        self.control = Line(ours)
        with theirs:
            try:
                self.end = fork_server(torch).start(theirs) if level == "namespaces" else _start(level, torch, theirs)
            except (OSError, NotStarted):
                self.control.close()
                raise
        try:
            _, self.sealed = self.control.receive(STARTING)
        except (Gone, WireError, ValueError):
            self.kill()
            raise NotStarted(f"no worker started on the level {level}") from None

    def begin(self, *message: Any) -> Line:
        """The line to a new child, which runs an answer; the child that there was ends."""
        ours, theirs = socket.socketpair()
        line = Line(ours)
        try:
            with theirs:
                socket.send_fds(self.control.socket, [b"b"], [theirs.fileno()])
            self.control.send("begin", *message)
        except (OSError, Gone):
            line.close()
            raise Gone("it has ended") from None
        return line

    def kill(self) -> None:
        """End it; where it has a process namespace, all that is in it ends too."""
        self.control.close()
        self.end()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()


def _start(level: str, torch: bool, control: socket.socket) -> Callable[[], None]:
    """Start a worker with an interpreter of its own, below bwrap or not; what ends it."""
    start = f"from autograder.grading.worker import main; sys.exit(main(torch={torch}))"
    process = subprocess.Popen(
        [*(_bubblewrap() if level == "bubblewrap" else ()), *_python(start)],
        stdin=control, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=_environment(),
        **(nobody() if level == "process" else {}),
    )  # fmt: skip

    def end() -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    return end


@functools.lru_cache(maxsize=1)
def nobody() -> dict[str, Any]:
    """For Popen: as root, to run an answer as the user nobody, if that one can run this interpreter."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return {}
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    try:
        subprocess.run(_python("import numpy, autograder"), check=True, capture_output=True, timeout=60, **nobody)
    except (OSError, subprocess.SubprocessError):
        return {}
    return nobody


@functools.lru_cache(maxsize=2)
def fork_server(torch: bool) -> ForkServer:
    """This process's fork server; those with torch take two seconds to start, which a class shares."""
    return ForkServer(torch)


class ForkServer:
    """Starts and ends workers. It ends with this process; if it ends before, the next worker gets a new one."""

    def __init__(self, torch: bool):
        self.torch = torch
        self.control: socket.socket | None = None

    def start(self, control: socket.socket) -> Callable[[], None]:
        """Start a worker that has `control`; what ends it. NotStarted if none can be had."""
        for _ in range(2):  # the second time with a new server
            try:
                process = self._ask(START, 0, control)
            except (OSError, Gone):
                self.control = None
                continue
            if process:
                return functools.partial(self._end, process)
        raise NotStarted("the fork server starts no worker")

    def _end(self, process: int) -> None:
        """End a worker; if the server is gone, its workers are."""
        try:
            self._ask(KILL, process)
        except (OSError, Gone):
            self.control = None

    def _ask(self, kind: bytes, process: int, *sockets: socket.socket) -> int:
        if self.control is None:
            self.control = self._begin()
        socket.send_fds(self.control, [MESSAGE.pack(kind, process)], [one.fileno() for one in sockets])
        return self._said()

    def _said(self) -> int:
        answer = self.control.recv(MESSAGE.size, socket.MSG_WAITALL)
        if len(answer) < MESSAGE.size:
            raise Gone("the fork server has ended")
        return MESSAGE.unpack(answer)[1]

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        start = f"from autograder.grading.forkserver import main; sys.exit(main({visible()!r}, torch={self.torch}))"
        with theirs:
            self.process = subprocess.Popen(
                _python(start), stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, env=_environment(),
            )  # fmt: skip
        self.control = ours
        self._said()
        return ours


def _python(start: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {_paths()!r}; {start}"]


def _bubblewrap() -> list[str]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise OSError("bubblewrap is not installed")
    binds: list[str] = []
    for path in visible():
        binds += ["--ro-bind-try", path, path]
    return [
        bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--uid", "65534",
        "--gid", "65534", "--hostname", "sandbox", "--tmpfs", "/", "--dev", "/dev", "--remount-ro", "/dev",
        *binds, "--dir", "/tmp", "--chdir", "/tmp", "--remount-ro", "/", "--",
    ]  # fmt: skip


def _paths() -> list[str]:
    """Where the worker finds packages: ours, and the site-packages of this interpreter."""
    site = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return [str(ROOT), *site]


def visible() -> tuple[str, ...]:
    """Files that a worker may read: the interpreter with its libraries, and our two packages."""
    system = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives"]
    python = [sys.base_prefix, sys.prefix, *_paths()[1:], *(sysconfig.get_path(k) for k in ("stdlib", "platstdlib"))]
    ours = [str(ROOT / "autograder"), str(ROOT / "course_lib")]
    return tuple(dict.fromkeys([*system, *python, *ours]))


def _environment() -> dict[str, str]:
    """One thread each: many workers share the machine, and threads do not survive a fork."""
    return {
        "PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COURSE_GRADING": "1",
    }  # fmt: skip
