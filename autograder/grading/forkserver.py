"""Starts workers fast: imports once what they need, then forks each of them.

It runs on the namespaces level, with a socket as stdin. The judge sends                and gets back
  START, with a socket: a worker for one submission, which talks over that socket       its process id; 0: it failed
  KILL and a process id: that worker ends, with all that it has started                 the process id

It holds no judge, no oracle and no seed, and never runs a line of an answer: each worker begins with the same clean
memory. A worker is the first process of its own namespaces. Between the two is a process that only waits for it, since
a process namespace begins with the next fork.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pkgutil
import signal
import socket
import struct
import sys

from autograder import drivers
from autograder.grading import limits, namespaces, worker
from course_lib import lessons

MESSAGE = struct.Struct(">cI")
START, KILL = b"s", b"k"


def main(visible: tuple[str, ...], *, torch: bool) -> int:
    """Serve until the judge closes the socket. visible: the files and folders that workers may read."""
    control = socket.socket(fileno=os.dup(0))
    limits.to_nowhere()
    _import_all(torch=torch)
    memory = limits.address_space() + limits.MEMORY
    namespaces.confine(visible)
    with contextlib.suppress(OSError):  # which each worker meets again, and refuses to start
        worker.filters()
    gc.collect()
    gc.freeze()  # a collection would write into memory that all workers share
    control.sendall(MESSAGE.pack(START, os.getpid()))
    while True:
        message, sockets, _, _ = socket.recv_fds(control, MESSAGE.size, 1)
        if len(message) < MESSAGE.size:
            return 0
        kind, process = MESSAGE.unpack(message)
        if kind == KILL:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        else:
            process = _start(control, sockets[0], memory)
            os.close(sockets[0])
        control.sendall(MESSAGE.pack(kind, process))


def _import_all(*, torch: bool) -> None:
    """Import what runs beside answers, and the library's functions that answers are compared with.

    Without torch, modules that need it are left to the server that has it.
    """
    if torch:
        limits.import_torch()
    else:
        sys.modules["torch"] = None  # an import of it fails at once
    for package in (drivers, lessons):
        for module in pkgutil.iter_modules(package.__path__):
            with contextlib.suppress(ImportError):
                worker.import_warm(f"{package.__name__}.{module.name}")
    if not torch:
        del sys.modules["torch"]


def _start(control: socket.socket, incoming: int, memory: int) -> int:
    try:
        process = os.fork()
    except OSError:
        return 0
    if process == 0:
        try:
            control.close()
            namespaces.end_with_parent()
            namespaces.detach()
            first = os.fork()
            if first == 0:
                namespaces.end_with_parent()
                namespaces.drop()
                limits.limit(memory)
                worker.serve_submission(socket.socket(fileno=incoming), sealed=True)
            else:
                os.close(incoming)
                os.waitpid(first, 0)
        finally:
            os._exit(0)
    return process
