"""One process at a time: a lock on a file, which the system releases when its holder ends, however it ends.

Standard library only: course.py takes it before anything is installed.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

HELD_BY_ANOTHER = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[tuple[int, ...]]:
    """Holds the lock on `path`, a file that is made at need and never deleted; waits while another process holds it.

    waiting   called once, before the wait, if there is one

    Yields the descriptors that a child process must inherit (`pass_fds`) to hold the lock as well: a child that
    outlives a killed parent then still keeps others out. () on Windows, where a lock is its process's alone.
    On a file system without locks nothing is locked. Raises OSError if the file cannot be made.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _taken(handle):
            waiting()
            while not _taken(handle):
                time.sleep(0.2)
        yield (handle,) if fcntl else ()
    finally:
        os.close(handle)  # and no explicit unlock, which would undo the lock of a child that still works


def _taken(handle: int) -> bool:
    try:
        if fcntl:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        return error.errno not in HELD_BY_ANOTHER
    return True
