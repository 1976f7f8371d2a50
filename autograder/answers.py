"""Call an answer and write down what happened, as plain data. Nothing here judges."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from autograder.apart import fresh
from autograder.drivers import ResultChanged, called
from autograder.drivers.lines import line_of
from autograder.exercise import Apart, Call, Callback, Outcome, Raised, Returned, separated
from autograder.plain import Other, equal, plain, short

MAX_PRINTED = 2_000  # characters kept of what an answer prints
MAX_TEXT = 300  # characters kept of an error message


class InProcess:
    """An answer in this process, as a judge sees it: calls go in, outcomes come back."""

    def __init__(
        self,
        answer: Callable,
        driver: Callable | None = None,
        callbacks: Mapping[str, Callable[[Callback], Callable]] | None = None,
    ):
        self.answer, self.driver, self.callbacks = answer, driver, callbacks or {}
        self.returned: list[tuple[Any, Any]] = []  # the first result and the last one, each with what it was then

    def run(self, calls: Sequence[Call], *, apart: Apart = None) -> list[Outcome]:
        """The outcome of answer(*args), or driver(answer, *args), for each call, on copies of the arguments.

        apart   as Group.apart: which calls meet an answer that remembers nothing of the others

        Nothing that the answer prints or warns reaches the screen: the first characters are kept in the outcome.
        KeyboardInterrupt passes through.
        """
        parts, outcomes = separated(calls, apart), [None] * len(calls)
        answers = [self]
        if apart:
            answers = [InProcess(fresh(self.answer), self.driver, self.callbacks) for _ in parts]
        for answer, places in zip(answers, parts):
            for place in places:
                outcomes[place] = answer._one(calls[place])
        return outcomes

    def _one(self, call: Call) -> Outcome:
        asked: list[tuple] = []
        args = [self._argument(arg, asked) for arg in call.args]
        with _captured() as printed:
            try:
                given = self.driver(self.answer, *args) if self.driver else called(self.answer, *args)
                value = plain(given)
                if self.driver is None:
                    self._expect_unchanged(given, value)
            except (Exception, SystemExit) as error:
                kind, text = type(error).__name__, _said(error)
                return Raised(kind, text, line_of(error), printed(), tuple(asked))
        return Returned(value, printed(), tuple(asked))

    def _expect_unchanged(self, given: Any, value: Any) -> None:
        """Raise ResultChanged if this call has written into what the first call or the last one returned."""
        for earlier, then in self.returned:
            if not isinstance(then, Other) and not equal(plain(earlier), then):
                raise ResultChanged("what an earlier call returned is another after this one")
        self.returned[1:] = [(given, value)]

    def _argument(self, value: Any, asked: list[tuple]) -> Any:
        """A copy, so that an answer that writes into its arguments spoils no other call; a Callback made callable."""
        if isinstance(value, Callback):
            return handle(self.callbacks[value.name](value), value.name, asked)
        return copy.deepcopy(value)


def handle(function: Callable, name: str, asked: list[tuple]) -> Callable:
    """A function that passes whole numbers on to `function` and notes them; nothing in it tells which one it is."""
    signature = inspect.signature(function)

    def asks(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = [_integers(arg) for arg in bound.arguments.values()]
        result = function(*given)
        asked.append((name, *map(plain, given)))
        return result

    asks.__name__ = asks.__qualname__ = function.__name__
    asks.__doc__, asks.__signature__ = function.__doc__, signature
    return asks


def _integers(value: Any) -> Any:
    """A callback's argument as an int or a tuple of ints; as it is where that is not possible."""
    try:
        return operator.index(value)
    except TypeError:
        pass
    value = tuple(value) if isinstance(value, Iterator) else value  # it can be read once
    try:
        return tuple(operator.index(item) for item in value)
    except TypeError:
        return value


class _Capped(io.TextIOBase):
    """A text stream that keeps the first characters and forgets the rest."""

    def __init__(self) -> None:
        self.kept = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.kept += text[: MAX_PRINTED - len(self.kept)]
        return len(text)


@contextlib.contextmanager
def _captured() -> Iterator[Callable[[], str]]:
    stream = _Capped()

    def note(message, category, filename, lineno, file=None, line=None):
        stream.write(f"{category.__name__}: {message}\n")

    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream), warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = note
        yield lambda: stream.kept


def _said(error: BaseException) -> str:
    """The error's own text in one line, whatever its __str__ does."""
    try:
        text = str(error)
    except Exception:
        text = "(its text raises)"
    return short(text, MAX_TEXT)
