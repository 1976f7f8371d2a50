"""Runs the answers of one submission in a sandbox, each in a child of its own.

The judge sends on the worker's socket        and the worker
                                              first says ("hello", whether system calls can be taken from children)
a byte with another socket, and then          ends the child that there was, and forks one that has the new socket and
("begin", source, name, imports, library,     not this one: nothing that an answer writes can pass for the worker's word
  driver)

The judge sends on a child's socket           and the child
                                              first says ("ready", which function of ours the answer is), or
                                              ("outcome", ...) with the error that came up as the cells ran
("call", args, functions)                     says ("outcome", ...): what the answer did; before that, whenever it calls
("told", value), ("raised", ...)              a function of the judge's, ("ask", number, args)

This process holds no judge, no oracle and no known mistake, and knows no seed. It never runs a line of an answer, so
that each child begins with the same clean memory.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import linecache
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

from autograder.answers import InProcess
from autograder.drivers.lines import line_of
from autograder.exercise import Call, Callback, Outcome, Raised, Returned
from autograder.grading import limits, seccomp
from autograder.grading.wire import encode, receive
from autograder.ours import used
from autograder.plain import plain

FILE = "<your answer>"


class Channel:
    """Frames over a socket. EOFError when the other side is gone."""

    def __init__(self, socket: socket.socket):
        self.socket = socket

    def send(self, *message: Any) -> None:
        self.socket.sendall(encode(message))

    def receive(self) -> tuple:
        return receive(self._exactly)

    def _exactly(self, count: int) -> bytes:
        """Read without a buffer: what belongs to a child must not wait in the parent's memory."""
        found = bytearray()
        while len(found) < count:
            part = self.socket.recv(min(count - len(found), 1 << 20))
            if not part:
                raise EOFError
            found += part
        return bytes(found)


def asking(channel: Channel, number: int, name: str, parameters: tuple, doc: str) -> Callable:
    """A function that asks the judge. `parameters` are triples (name, whether it has a default, the default)."""
    signature = inspect.Signature(
        [
            inspect.Parameter(
                word, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default if has else inspect.Parameter.empty
            )
            for word, has, default in parameters
        ]
    )

    def function(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        channel.send("ask", number, tuple(map(plain, bound.arguments.values())))
        kind, *rest = channel.receive()
        if kind == "told":
            return rest[0]
        raise _error(*rest)

    function.__name__ = function.__qualname__ = name
    function.__doc__, function.__signature__ = doc, signature
    return function


def _error(kind: str, text: str) -> Exception:
    """The judge's error: of Python's own type of that name, or of a new one."""
    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found(text)
    return type(kind, (RuntimeError,), {})(text)


def define(source: str, name: str, imports: str) -> Any:
    """The function or class `name` that a learner's cells define."""
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    namespace: dict[str, Any] = {"__name__": "__main__", "display": print}  # as a notebook has it
    exec(compile(imports, "<imports>", "exec"), namespace)
    exec(compile(source, FILE, "exec"), namespace)
    if name not in namespace:
        raise NameError(f"your notebook defines no {name}")
    return namespace[name]


def serve(channel: Channel, begin: tuple) -> None:
    """One child: define the answer, and run calls until the judge closes the socket (EOFError)."""
    source, name, imports, library, driver = begin
    try:
        answer = define(source, name, imports)
        forbidden = used(answer, library)
    except (Exception, SystemExit) as error:
        channel.send("outcome", *packed(Raised(type(error).__name__, str(error)[:300], line_of(error))))
        return
    channel.send("ready", forbidden)
    runner = InProcess(answer, _driver(driver))
    while True:
        _, args, described = channel.receive()
        functions = [asking(channel, number, *one) for number, one in enumerate(described)]
        runner.callbacks = {function.__name__: _chosen(functions) for function in functions}
        (outcome,) = runner.run([Call(args, "")])
        channel.send("outcome", *packed(outcome))


def _chosen(functions: list[Callable]) -> Callable[[Callback], Callable]:
    return lambda marker: functions[marker.data[0]]


def _driver(name: str) -> Callable | None:
    if not name:
        return None
    module, _, function = name.partition(":")
    if not module.startswith("autograder.drivers"):
        raise ValueError(f"{name} is no driver")
    return getattr(importlib.import_module(module), function)


def packed(outcome: Outcome) -> tuple:
    """An outcome as plain data."""
    if isinstance(outcome, Raised):
        return "raised", outcome.type, outcome.message, outcome.line, outcome.printed
    return "returned", outcome.value, outcome.printed


def unpacked(fields: tuple) -> Outcome:
    """The outcome of `packed`; TypeError or ValueError if it is none. What it holds is not believed yet."""
    kind, *rest = fields
    if kind == "raised":
        kind, message, line, printed = rest
        return Raised(kind, message, line, printed)
    value, printed = rest
    return Returned(value, printed)


def main(*, torch: bool) -> int:
    """A worker with an interpreter of its own, whose stdin is its socket, until the judge closes that."""
    control = socket.socket(fileno=os.dup(0))
    limits.to_nowhere()
    if torch:
        limits.import_torch()
    limits.limit(limits.address_space() + limits.MEMORY)
    serve_submission(control, sealed=False)
    return 0


@functools.lru_cache(maxsize=1)
def filters() -> tuple[seccomp.Filter, seccomp.Filter]:
    """What a worker takes from itself, and then from each child. OSError where there is no such thing."""
    return seccomp.Filter(name for name in seccomp.EVERY if name not in seccomp.WORKER), seccomp.Filter(seccomp.WORKER)


def serve_submission(control: socket.socket, *, sealed: bool) -> None:
    """Run the answers of one submission, each in a child, until the judge closes the socket.

    sealed   raise OSError where system calls cannot be taken from this process; without it, that is only told
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the first process of a namespace ignores
    seal = None
    try:
        first, then = filters()
        first.apply()
        seal = then
    except OSError:
        if sealed:
            raise
    channel, child = Channel(control), 0
    channel.send("hello", seal is not None)
    while True:
        byte, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            if seal is None:  # otherwise it can have started none
                _end_all_others()
        if not byte:
            return
        _, *begin = channel.receive()
        _import_ours(*begin[-2:])
        child = os.fork()
        if child == 0:
            try:
                control.close()
                limits.to_nowhere()  # of its own: what is changed about a file that two have open, both see
                if seal:
                    seal.apply()
                serve(Channel(socket.socket(fileno=sockets[0])), tuple(begin))
            finally:
                os._exit(0)
        os.close(sockets[0])


def _import_ours(library: Sequence[str], driver: str) -> None:
    """Import here what the children need, so that it is there in all of them."""
    for name in library:
        importlib.import_module(name.partition(":")[0])
    if driver:
        import_warm(driver.partition(":")[0])


def import_warm(name: str) -> None:
    """Import a module; if it has `warm`, have it make what calls share."""
    getattr(importlib.import_module(name), "warm", int)()


def _end_all_others() -> None:
    """In a process namespace of our own, end whatever an answer has left behind."""
    if os.getpid() <= 2:  # elsewhere this would end the user's other processes
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
