"""Starts a worker apart from everything: no network, no files but the interpreter's and ours, limits on what it uses.

Three levels, the safer first:
  namespaces   a fork server that has imported everything, in namespaces of its own (forkserver.py, namespaces.py)
  bubblewrap   an interpreter of its own for each submission, in namespaces that the program bwrap makes
  process      limits only: an answer could read files, so it is for code that you trust
An answer starts no process and opens no socket (seccomp.py); on the last level so, where the kernel can.
"""

from __future__ import annotations

import functools
import select
import socket
import time
from typing import Any

from autograder.grading import launch
from autograder.grading.launch import NotStarted
from autograder.grading.wire import MAX_ALL, WireError, encode, receive

LEVELS = ("namespaces", "bubblewrap", "process")
STARTING, LISTENING = 60, 30  # seconds that a worker may take to start, and to read what it is sent


class Gone(Exception):
    """The worker is not there any more, or does not answer in time; the text says which."""


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
        self.socket, self.left = ours, MAX_ALL
        ours.setblocking(False)

    def send(self, *messages: tuple) -> None:
        """Gone if nobody reads them within 30 s."""
        self.send_frames(*map(encode, messages))

    def send_frames(self, *frames: bytes) -> None:
        """The same for messages that are encoded already."""
        left = memoryview(b"".join(frames))
        deadline = time.monotonic() + LISTENING
        while left:
            if not select.select([], [self.socket], [], max(0.0, deadline - time.monotonic()))[1]:
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
        self.left -= count
        if self.left < 0:
            raise WireError("an answer that says too much in all")
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
                self.end = launch.worker(level, torch, theirs)
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
            self.control.send(("begin", *message))
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
