"""Remembers what was graded, so that the next run grades only what has changed, and one that was killed goes on.

Each line is finished work: a code over the line, what it was made of, and the grades. What it was made of is a digest
of the file's content and of all that its grade depends on. A line whose code does not fit (torn, damaged, of another
version of the grader, or written by somebody who does not know the course's seed) is not read.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import hmac
import importlib.metadata
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from autograder.grading.grade import Graded, Task
from autograder.plain import whole
from course_lib.cli import UserError

ROOT = Path(__file__).resolve().parents[2]
MAX_LINE = 1 << 26  # bytes; the grades of a submission with MAX_CODE of code have some millions
MAX_WASTE = 1 << 20  # bytes of lines that cannot be used, before the file is written anew
SYNC_SECONDS = 2  # at most so much work is lost when the machine loses its power


@functools.lru_cache(maxsize=1)
def version() -> str:
    """A digest of our sources and of what they compute with: another one may give other grades, or other words."""
    found = hashlib.sha256(repr((sys.version_info[:3], *map(_installed, ("numpy", "torch", "ipython")))).encode())
    files = [file for room in ("autograder", "course_lib") for file in (ROOT / room).rglob("*")]
    for file in sorted(file for file in files if file.suffix in (".py", ".json")):
        content = file.read_bytes()
        found.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def key_of(content: bytes, assignment: str, worth: Mapping[str, float], seed: int, level: str) -> str:
    """Names a piece of work: with the same key it comes to the same grades."""
    about = json.dumps([assignment, list(worth.items()), seed, level, version()])
    return hashlib.sha256(hashlib.sha256(content).digest() + about.encode()).hexdigest()


class Journal:
    """The journal in a file, locked against a second grader while the context is open. Only the parent process writes.

    again   what earlier runs did does not count
    """

    def __init__(self, file: Path, seed: int, *, again: bool = False):
        self.file = file
        self.code = hmac.new(f"journal of seed {seed}".encode(), version().encode(), "sha256").digest()
        self.handle = _opened(file)
        self.known: dict[str, str] = {}
        self.synced = time.monotonic()
        try:
            size = os.fstat(self.handle).st_size
            lengths = {}
            for key, text, length in self._lines():
                self.known[key], lengths[key] = text, length
            self.earlier = set(self.known) if again else set()
            if size > 2 * sum(lengths.values()) + MAX_WASTE:  # most of it cannot be used any more
                self._write_anew()
            elif size and os.pread(self.handle, 1, size - 1) != b"\n":
                self._append(b"\n")  # a torn line ends here
        except BaseException:
            self.close()
            raise

    def get(self, key: str) -> Graded | None:
        """What this work came to; None if it was not done, or what stands there is not as it must be."""
        if key in self.earlier:
            return None
        try:
            return graded_in(json.loads(self.known[key]))
        except (KeyError, ValueError):
            return None

    def add(self, key: str, graded: Graded) -> Graded:
        """Write finished work down. Returns it as `get` will give it, so that a run that was resumed says the same."""
        text = whole(json.dumps(asdict(graded), ensure_ascii=False))
        self.known[key] = text
        self.earlier.discard(key)
        self._append(self._line(key, text))
        if time.monotonic() > self.synced + SYNC_SECONDS:
            os.fsync(self.handle)
            self.synced = time.monotonic()
        return graded_in(json.loads(text))

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)  # and with it the lock
            self.handle = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _line(self, key: str, text: str) -> bytes:
        body = f"{key} {text}".encode()
        return hmac.new(self.code, body, "sha256").hexdigest().encode() + b" " + body + b"\n"

    def _lines(self) -> Iterator[tuple[str, str, int]]:
        """(key, text, length) of each line of ours."""
        with open(os.dup(self.handle), "rb") as file:
            while line := file.readline(MAX_LINE):
                code, _, body = line[:-1].partition(b" ")
                if line[-1:] == b"\n" and hmac.compare_digest(
                    hmac.new(self.code, body, "sha256").hexdigest().encode(), code
                ):
                    key, _, text = body.decode().partition(" ")
                    yield key, text, len(line)

    def _write_anew(self) -> None:
        """Only what can be used. A kill in between loses lines, and so time, but no grade."""
        os.ftruncate(self.handle, 0)
        for key, text in self.known.items():
            self._append(self._line(key, text))

    def _append(self, line: bytes) -> None:
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self.handle, left) :]
        except OSError as error:
            raise UserError(
                f"cannot write {self.file}: {error.strerror}. The older grades are as they were; what this run has "
                "graded so far is kept for the next."
            ) from None


def _opened(file: Path) -> int:
    """The file, made if need be, ours alone, locked. UserError if it is anything else."""
    try:
        handle = os.open(
            file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600
        )
    except OSError as error:
        what = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise UserError(f"cannot use {file}, where the grader keeps its journal: {what}. Nothing was graded.") from None
    about = os.fstat(handle)
    wrong = [
        (not stat.S_ISREG(about.st_mode), "it is no regular file"),
        (about.st_uid != os.geteuid(), "it belongs to somebody else"),
        (about.st_nlink != 1, "it has a second name (a hard link)"),
        (about.st_mode & 0o022, "others may write it"),
    ]
    for is_so, what in wrong:
        if is_so:
            os.close(handle)
            raise UserError(f"{file}, the grader's journal, is not to be trusted: {what}. Look at it and remove it.")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise UserError(f"another grader is at work here ({file} is locked). Wait until it has ended.") from None
        raise UserError(f"cannot lock {file} ({error.strerror}). Put the course on a disk of this machine.") from None
    os.fchmod(handle, 0o600)
    return handle


def graded_in(found: Any) -> Graded:
    """The Graded in what json reads, from the journal or grades.json. ValueError if it is none."""
    try:
        tasks = tuple(Task(**_known(Task, task)) for task in found["tasks"])
        graded = Graded(**{**_known(Graded, found), "tasks": tasks})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"these are no grades: {error}") from None
    texts = [graded.assignment, graded.isolation, *(text for t in tasks for text in (t.name, t.diagnosis))]
    numbers = [number for task in tasks for number in (task.score, task.max_score)]
    if not all(type(text) is str for text in texts) or not all(type(number) in (int, float) for number in numbers):
        raise ValueError("these are no grades: a text or a number is something else")
    return graded


def _known(kind: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that `found` has, lists as tuples."""
    names = {field.name for field in fields(kind)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items() if name in names}
