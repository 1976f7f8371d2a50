"""Runs answers in a sandbox: `python -m autograder.grading.worker`, with frames (wire.py) on stdin and stdout.

The judge sends                       and the worker
("torch",)                            imports torch, for the children that need it
("begin", source, name, imports,      forks; the child defines the answer and says ("ready", which function of ours it
  library, driver)                      is), or ("outcome", ...) with the error that came up. It runs what follows:
("call", args, functions)             ("outcome", ...): what the answer did; before that, whenever the answer calls a
("told", value), ("raised", ...)        function of the judge's, ("ask", number, args)
("end",)                              the child ends, with whatever it has started: ("ended", its status)

This process holds no judge, no oracle and no known mistake, and knows no seed. The parent of the children never runs a
line of an answer, so that each child begins with the same clean memory.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import linecache
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from autograder.answers import InProcess
from autograder.drivers.lines import line_of
from autograder.exercise import Call, Callback, Outcome, Raised, Returned
from autograder.grading.wire import encode, receive
from autograder.ours import used
from autograder.plain import plain

FILE = "<your answer>"


class Channel:
    """Frames over two file descriptors. EOFError when the other side is gone."""

    def __init__(self, incoming: int, outgoing: int):
        self.incoming, self.outgoing = incoming, outgoing

    def send(self, *message: Any) -> None:
        left = memoryview(encode(message))
        while left:
            left = left[os.write(self.outgoing, left) :]

    def receive(self) -> tuple:
        return receive(self._exactly)

    def _exactly(self, count: int) -> bytes:
        """Read without a buffer: what belongs to a child must not wait in the parent's memory."""
        found = bytearray()
        while len(found) < count:
            part = os.read(self.incoming, min(count - len(found), 1 << 20))
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
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(imports, "<imports>", "exec"), namespace)
    exec(compile(source, FILE, "exec"), namespace)
    if name not in namespace:
        raise NameError(f"your notebook defines no {name}")
    return namespace[name]


def serve(channel: Channel, begin: tuple) -> None:
    """One child: define the answer, and run calls until ("end",)."""
    source, name, imports, library, driver = begin
    try:
        answer = define(source, name, imports)
        forbidden = used(answer, library)
    except (Exception, SystemExit) as error:
        channel.send("outcome", *packed(Raised(type(error).__name__, str(error)[:300], line_of(error))))
        return
    channel.send("ready", forbidden)
    runner = InProcess(answer, _driver(driver))
    while (message := channel.receive())[0] == "call":
        _, args, described = message
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


def main() -> int:
    """Serve until the judge closes stdin."""
    channel = Channel(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    while True:
        try:
            kind, *begin = channel.receive()
        except EOFError:
            return 0
        if kind == "hello":
            channel.send("hello")
            continue
        if kind == "torch":
            import torch  # once, before the children are forked; no operation, which would start threads

            torch.set_num_threads(1)
            continue
        if kind != "begin":
            continue  # what was sent to a child that is gone
        child = os.fork()
        if child == 0:
            status = 1
            try:
                serve(channel, tuple(begin))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        _end_all_others()
        channel.send("ended", status)


def _end_all_others() -> None:
    """In a process namespace of our own, end whatever an answer has left behind."""
    if os.getpid() <= 2:  # elsewhere this would end the user's other processes
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    sys.exit(main())
