"""Starts the processes of workers: what they run, what they may read, and in which environment."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autograder.grading.forkserver import KILL, MESSAGE, START

ROOT = Path(__file__).resolve().parents[2]


class NotStarted(Exception):
    """No worker could be started: no fault of an answer, but of the machine."""


def worker(level: str, torch: bool, control: socket.socket) -> Callable[[], None]:
    """Start a worker that has `control`; what ends it. NotStarted or OSError if none can be had."""
    return fork_server(torch).start(control) if level == "namespaces" else _interpreter(level, torch, control)


def _interpreter(level: str, torch: bool, control: socket.socket) -> Callable[[], None]:
    """Start a worker with an interpreter of its own, below bwrap or not; what ends it."""
    start = f"from autograder.grading.worker import main; sys.exit(main(torch={torch}))"
    process = subprocess.Popen(
        [*(_bubblewrap() if level == "bubblewrap" else ()), *_python(start)],
        stdin=control, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=_environment(torch), **(nobody() if level == "process" else {}),
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
        self.process: subprocess.Popen | None = None
        self.control: socket.socket | None = None

    def start(self, control: socket.socket) -> Callable[[], None]:
        """Start a worker that has `control`; what ends it. NotStarted if none can be had."""
        for _ in range(2):  # the second time with a new server
            try:
                process = self._ask(START, 0, control)
            except (OSError, EOFError):
                self._forget()
                continue
            if process:
                return functools.partial(self._end, process)
        raise NotStarted("the fork server starts no worker")

    def _end(self, process: int) -> None:
        """End a worker; if the server is gone, its workers are."""
        try:
            self._ask(KILL, process)
        except (OSError, EOFError):
            self._forget()

    def _forget(self) -> None:
        """End the server, whatever state it is in."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.control is not None:
            self.control.close()
        self.process = self.control = None

    def _ask(self, kind: bytes, process: int, *sockets: socket.socket) -> int:
        if self.control is None:
            self.control = self._begin()
        socket.send_fds(self.control, [MESSAGE.pack(kind, process)], [one.fileno() for one in sockets])
        return self._said()

    def _said(self) -> int:
        answer = self.control.recv(MESSAGE.size, socket.MSG_WAITALL)
        if len(answer) < MESSAGE.size:
            raise EOFError
        return MESSAGE.unpack(answer)[1]

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        start = f"from autograder.grading.forkserver import main; sys.exit(main({visible()!r}, torch={self.torch}))"
        with theirs:
            self.process = subprocess.Popen(
                _python(start), stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, env=_environment(self.torch),
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


def _environment(torch: bool) -> dict[str, str]:
    """One thread each: many workers share the machine, and threads do not survive a fork.

    torch looks into /proc for what the processor can do, and there is none in a sandbox: it is told, so that an answer
    has the very bits there that it has in a notebook on this machine.
    """
    capability = {}
    if torch:
        from torch.backends import cpu

        capability = {"ATEN_CPU_CAPABILITY": cpu.get_cpu_capability().lower()}
    return capability | {
        "PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COURSE_GRADING": "1",
    }  # fmt: skip
