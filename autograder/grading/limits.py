"""What a worker does to its own process before it runs answers: no output, and limits on what it may use."""

from __future__ import annotations

import ctypes
import os
import resource
import sys

MEMORY = 2 << 30  # bytes of address space that an answer may take, beside what the imports have
CPU_SECONDS = 600
OPEN_FILES = 64
NOT_DUMPABLE = 4  # PR_SET_DUMPABLE of prctl(2)


def to_nowhere() -> None:
    """Have stdin, stdout and stderr lead nowhere: answers may print."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)


def import_torch() -> None:
    """Once, before children are forked. No operation: that would start threads, and a child would wait for them."""
    import torch

    torch.set_num_threads(1)


def limit(memory: int) -> None:
    """Limit this process and those that it starts. memory: bytes of address space."""
    if sys.platform == "linux":  # and no process of the same user may look into its memory, or write there
        ctypes.CDLL(None).prctl(NOT_DUMPABLE, 0, 0, 0, 0)
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def address_space() -> int:
    """Bytes of address space that this process has, or 1 GiB where the system does not say: torch takes 0.6 of it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30
