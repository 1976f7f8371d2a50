"""What a check is made of: data. A judge needs the calls and what came back, never the learner's function.

calls = group.cases(seed)                       arguments are plain data (plain.py), lists, or a Callback
outcomes = [Returned(...) or Raised(...), ...]  what the answer did with each, in this process or another
verdict = group.judge(calls, outcomes)

Groups are of three kinds:
  one way         cases, then judge
  apart           the same, but some calls meet an answer that remembers no other calls (a whole pass and its chunks)
  conversations   the answer calls functions of the judge's (a Callback in the arguments), or `talk` puts calls to the
                  answer as it goes, each in the light of the outcomes before it (a policy in a simulation)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autograder.plain import ARRAY


@dataclass(frozen=True, slots=True)
class Callback:
    """Stands in the arguments for a function of the judge's, which the answer calls.

    name    which function; the exercise's `callbacks[name]` makes it from this marker
    data    what that maker needs to know; hashable
    """

    name: str
    data: tuple = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the answer: answer(*args), or driver(answer, *args) where its exercise has a driver.

    `facts` is for the judge alone and is never sent with the call.
    """

    args: tuple
    label: str  # how a message writes the call: "chunk_attention_mask(3, 5)"
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Returned:
    """The answer came back. `value` is plain data, or an Other."""

    value: Any
    printed: str = ""
    asked: tuple[tuple, ...] = ()  # what it asked of each callback: (name, *arguments as plain data)


@dataclass(frozen=True, slots=True)
class Raised:
    """The answer raised. `line` is where in the learner's own code ("line 4: return mask"), or empty."""

    type: str
    message: str
    line: str = ""
    printed: str = ""
    asked: tuple[tuple, ...] = ()


Outcome = Returned | Raised
Apart = Callable[[Call], Hashable] | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says. Passed: `count` tells over what ("12 cases"). Not passed: what, which, where, in sentences.

    `mistakes` are the names of the known mistakes that do exactly the same.
    """

    passed: bool
    count: str = ""
    what: str = ""
    which: str = ""
    where: str = ""
    mistakes: tuple[str, ...] = ()

    @property
    def mistake(self) -> str:
        """The name of the one known mistake that does the same; empty if there is none, or several."""
        return self.mistakes[0] if len(self.mistakes) == 1 else ""

    @property
    def message(self) -> str:
        text = ""
        for part in (self.what, self.which, self.where):
            text += " " + part if part and text and not text.endswith("\n") else part
        return text


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that earn their points together: no constant answer and no stub passes any group.

    form    what a driver's result must look like (plain.fits); ARRAY: anything that can be read as an array of numbers
    apart   calls for which it gives the same meet one answer; that answer remembers nothing of the other calls
    talk    in place of cases and judge: talk(seed, ask) puts calls to the answer with ask(call) -> outcome
    """

    name: str
    cases: Callable[[int], list[Call]] | None = None
    judge: Callable[[list[Call], list[Outcome]], Verdict] | None = None
    form: Any = ARRAY
    apart: Apart = None
    talk: Callable[[int, Callable[[Call], Outcome]], Verdict] | None = None


def one_by_one(call: Call) -> Hashable:
    """For Group.apart: each call meets an answer that remembers none of the others."""
    return object()


def whole_or_chunk(call: Call) -> Hashable:
    """For Group.apart: the calls with facts["whole"], whole passes, meet one answer, and all others another."""
    return call.facts["whole"]


def separated(calls: Sequence[Call], apart: Apart) -> list[list[int]]:
    """The places of the calls that meet the same answer, for each answer in turn."""
    places: dict[Hashable, list[int]] = {}
    for place, call in enumerate(calls):
        places.setdefault(apart(call) if apart else None, []).append(place)
    return list(places.values())


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """A mistake that learners make: the text of a whole wrong answer, and the message for an answer that does the same.

    alike   share of the returned numbers that must be equal in every bit for an answer to count as this one
    """

    name: str
    source: str
    message: str
    reread: str = ""  # where to look, if not where the exercise says
    alike: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """One function, or class, that the learner writes.

    solution        "module:name" of ours; no answer is, or calls, it or one of `library`
    same            whether two outcomes of a call are the same; by it a known mistake is recognised
    kind_only       `same` looks at the kind of a test only: what is said of a known mistake may not hold in full
    reread          where the lesson explains it
    imports         what the answer may use without importing it
    library         further functions and classes that are not accepted as an answer, as "module:name"
    callbacks       makers of the functions that a Callback stands for
    driver          driver(answer, *args) -> plain data: what a call does with an answer that is a class, or that takes
                    or returns objects
    number          "2.1", and notebook, "02_mask": from the index that is built from solutions/
    """

    name: str
    solution: str
    groups: tuple[Group, ...]
    same: Callable[[Outcome, Outcome], bool]
    wrong_answers: tuple[WrongAnswer, ...]
    reread: str
    kind_only: bool = False
    imports: str = "import numpy as np"
    library: tuple[str, ...] = ()
    callbacks: Mapping[str, Callable[[Callback], Callable]] = field(default_factory=dict)
    driver: Callable | None = None
    number: str = ""
    notebook: str = ""

    def group(self, name: str) -> Group:
        """The group of that name; ValueError lists the names there are."""
        for group in self.groups:
            if group.name == name:
                return group
        raise ValueError(f"{self.name} has no group {name!r}; it has {', '.join(g.name for g in self.groups)}.")

    def compile(self, source: str) -> Callable:
        """The function or class that `source` (one of the kept answers) defines, in a new namespace."""
        namespace: dict[str, Any] = {"__name__": f"kept answer to {self.name}"}
        exec(compile(self.imports, f"<imports of {self.name}>", "exec"), namespace)
        exec(compile(source, f"<kept answer to {self.name}>", "exec"), namespace)
        return namespace[self.name]

    def wrong_answer(self, name: str) -> WrongAnswer:
        """The known mistake of that name; ValueError lists the names there are."""
        for wrong in self.wrong_answers:
            if wrong.name == name:
                return wrong
        raise ValueError(
            f"{self.name} has no wrong answer {name!r}; it has {', '.join(w.name for w in self.wrong_answers)}."
        )
