"""Calls that run apart meet an answer that remembers none of the others, wherever it keeps what it remembers."""

import functools

import pytest

from autograder.answers import InProcess
from autograder.apart import fresh
from autograder.exercise import Call, one_by_one

REMEMBERS = """\
# global list
seen = []
def answer(x):
    seen.append(x)
    return len(seen)
# global number
n = 0
def answer(x):
    global n
    n += 1
    return n
# global of a helper
seen = []
def note(x):
    seen.append(x)
def answer(x):
    note(x)
    return len(seen)
# default
def answer(x, seen=[]):
    seen.append(x)
    return len(seen)
# attribute
def answer(x):
    answer.n = getattr(answer, "n", 0) + 1
    return answer.n
# closure
def make():
    n = 0
    def answer(x):
        nonlocal n
        n += 1
        return n
    return answer
answer = make()
# object
class Memo:
    def __init__(self):
        self.n = 0
    def __call__(self, x):
        self.n += 1
        return self.n
answer = Memo()
# method
class Memo:
    n = 0
    def go(self, x):
        self.n += 1
        return self.n
answer = Memo().go
# class
class Memo:
    n = 0
def answer(x):
    Memo.n += 1
    return Memo.n
# cache
import functools
n = []
@functools.lru_cache
def once():
    n.append(1)
    return len(n)
def answer(x):
    n.append(0)
    return len(n) * once()
# deque
from collections import deque
n = deque()
def answer(x):
    n.append(x)
    return len(n)
# namespace
from types import SimpleNamespace
m = SimpleNamespace(n=0)
def answer(x):
    m.n += 1
    return m.n
# base class
class Base:
    n = 0
class Memo(Base):
    pass
def answer(x):
    Base.n += 1
    return Memo.n
# object with slots
class Memo:
    __slots__ = ("n",)
memo = Memo()
memo.n = 0
def answer(x):
    memo.n += 1
    return memo.n
# partial
import functools
def counts(seen, x):
    seen.append(x)
    return len(seen)
answer = functools.partial(counts, [])
"""
SOURCES = dict(part.split("\n", 1) for part in ("\n" + REMEMBERS).split("\n# ")[1:])


def defined(source):
    namespace = {"__name__": "a notebook"}
    exec(source, namespace)
    return namespace["answer"]


@pytest.mark.parametrize("where", SOURCES)
def test_what_an_answer_remembers_is_not_there_in_another_call(where):
    calls = [Call((x,), "answer") for x in range(3)]
    together = [o.value for o in InProcess(defined(SOURCES[where])).run(calls)]
    apart = [o.value for o in InProcess(defined(SOURCES[where])).run(calls, apart=one_by_one)]
    assert len(set(together)) > 1 and len(set(apart)) == 1


def test_a_copy_computes_what_the_answer_computes():
    source = """
import numpy as np
TABLE = np.arange(10)
class Base:
    factor = 2
class Doubles(Base):
    def __init__(self, x):
        super().__init__()
        self.x = x
    def __call__(self):
        return self.x * self.factor
def is_even(n):
    return n == 0 or is_odd(n - 1)
def is_odd(n):
    return n > 0 and is_even(n - 1)
def answer(x, *, more=1):
    return [Doubles(int(TABLE[x]))(), is_even(x), more]
"""
    answer = defined(source)
    assert fresh(answer)(4) == answer(4) == [8, True, 1]
    assert fresh(functools.partial(answer, more=5))(3) == [6, False, 5]


def test_what_a_library_made_is_not_copied():
    assert fresh(len) is len and fresh(functools.reduce) is functools.reduce and fresh(InProcess) is InProcess


def test_a_class_with_slots_has_a_copy_that_works():
    source = """
import dataclasses
@dataclasses.dataclass(slots=True)
class Box:
    size: int
    things: list = dataclasses.field(default_factory=list)
    def put(self, thing):
        self.things.append(thing)
        return len(self.things) <= self.size
answer = Box
"""
    box = fresh(defined(source))(1)
    assert box.put("a") and not box.put("b")
