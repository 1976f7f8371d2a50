"""What every command line of the course shares: one clear line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

USAGE_ERROR = 2
MOST_NUMBER = 2**63 - 1
MOST_PROCESSES = 61  # more than Windows can wait for


class UserError(Exception):
    """A request that is refused before anything was changed.

    The message is one line: what came, what was wanted, what to do. A command prints it and exits with 2.
    """


class Parser(argparse.ArgumentParser):
    """An argument parser that keeps its `example` readable in --help and answers a bad flag in one line.

    example: the command line shown under --help, for instance "python -m course_lib demo --json".
    """

    def __init__(self, *args, example: str = "", **kwargs) -> None:
        if example:
            kwargs["epilog"] = f"example:\n  {example}"
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise SystemExit(refuse(self.prog, f"{message} (see {self.prog} --help)"))


def refuse(prog: str, message: object) -> int:
    """Print `message` as one line on stderr and return the exit code for a bad request (2)."""
    print(f"{prog}: {' '.join(str(message).split())}", file=sys.stderr)
    return USAGE_ERROR


def run_command(prog: str, command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run `command(argv)` and return its exit code.

    A UserError, an error of the operating system, or a lack of memory becomes one line and exit code 2.
    """
    try:
        code = command(argv)
        sys.stdout.flush()
        return code
    except UserError as error:
        return refuse(prog, error)
    except MemoryError as error:
        return refuse(prog, f"not enough memory ({error}). Ask for something smaller.")
    except BrokenPipeError:  # the reader of our output (head, less) has closed it: there is nothing left to say
        close_stdout()
        return 128 + 13
    except OSError as error:
        return refuse(prog, f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))


def close_stdout() -> None:
    """Throw away what is still printed, because its reader has gone: Python would fail at it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def file_to_write(text: str | Path) -> Path:
    """Argument type: a path where a file may be written, because a regular file, or nothing yet, is there.

    A link counts as what it points at. Raises UserError for a folder, a name that ends with a slash, a device, a pipe
    or a socket, for the file that stdout or stderr is redirected into, when the file or its folder may not be written,
    and when the folder is not there.
    """
    path = Path(text)  # which forgets a slash at the end
    folder = Path(os.path.realpath(path)).parent
    try:
        there = path.stat()
        if not stat.S_ISREG(there.st_mode):
            kind = "folder" if stat.S_ISDIR(there.st_mode) else "device, a pipe or a socket"
            raise UserError(f"cannot write {path}: it is a {kind}. Name a regular file, or one that is not there yet.")
        if name := _stream_into(there):
            raise UserError(
                f"cannot write {path}: {name} is redirected into that file. Name another file, or leave the option "
                "out and keep the redirection."
            )
        if not os.access(path, os.W_OK):
            raise UserError(f"cannot write {path}: it is there and may not be written. Name another file.")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from None
    if os.path.basename(text) in ("", ".", ".."):
        raise UserError(f"cannot write {text}: such a name is that of a folder. End with the file's name.")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"cannot write {path}: name a file in a folder that exists and may be written.")
    return path


def _stream_into(there: os.stat_result) -> str:
    """The name of the stream of this process that goes into the file; "" if neither does."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        with contextlib.suppress(OSError):  # a closed stream goes nowhere
            if os.path.samestat(there, os.fstat(number)):
                return name
    return ""


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write `pieces`, one behind the other, as the file at `path`, which holds either all of them or what it held.

    A link stays a link: what it points at is written. UserError, which names `path`, if it cannot be written.
    """
    file_to_write(path)
    try:
        replace_file(Path(os.path.realpath(path)), pieces)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from None


def replace_file(target: Path, pieces: Iterable[bytes]) -> None:
    """Write `pieces` to a temporary file in the same folder, which then takes the place of `target` and has its mode.

    OSError if that fails; the temporary file is gone then, and `target` is as it was.
    """
    temporary = target.with_name(f".{os.urandom(8).hex()}.part")  # short, however long the name of the target is
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        with open(temporary, "xb", opener=partial(os.open, mode=0o666 if mode is None else 0o600)) as file:
            for piece in pieces:
                file.write(piece)
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def positive(text: str) -> int:
    """Argument type: a whole number of at least 1."""
    return _whole(text, 1)


def not_negative(text: str) -> int:
    """Argument type: a whole number of at least 0."""
    return _whole(text, 0)


def processes(text: str) -> int:
    """Argument type: how many processes, from 1 to MOST_PROCESSES."""
    return _whole(text, 1, MOST_PROCESSES)


def at_most(most: int) -> Callable[[str], int]:
    """Argument type: a whole number from 1 to `most`."""
    return lambda text: _whole(text, 1, most)


def _whole(text: str, least: int, most: int = MOST_NUMBER) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{text[:40]} is too small: at least {least} is needed")
    if number > most:
        raise argparse.ArgumentTypeError(f"{text[:40]} is too large: at most {most:,} is possible")
    return number
