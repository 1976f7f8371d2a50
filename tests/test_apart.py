"""Calls that run apart meet an answer that remembers none of the others, wherever it keeps what it remembers."""

import functools

import pytest

from autograder.answers import InProcess
from autograder.apart import fresh
from autograder.exercise import Call

REMEMBERS = {
    "global": "seen = []\ndef answer(x):\n    seen.append(x)\n    return len(seen)",
    "global of a helper": "seen = []\ndef note(x):\n    seen.append(x)\n\ndef answer(x):\n    note(x)\n    return len(seen)",
    "default": "def answer(x, seen=[]):\n    seen.append(x)\n    return len(seen)",
    "attribute": "def answer(x):\n    answer.n = getattr(answer, 'n', 0) + 1\n    return answer.n",
    "closure": "def make():\n    n = 0\n    def answer(x):\n        nonlocal n\n        n += 1\n        return n\n    return answer\nanswer = make()",
    "global number": "n = 0\ndef answer(x):\n    global n\n    n += 1\n    return n",
    "object": "class Memo:\n    def __init__(self):\n        self.n = 0\n    def __call__(self, x):\n        self.n += 1\n        return self.n\nanswer = Memo()",
    "class": "class Memo:\n    n = 0\n\ndef answer(x):\n    Memo.n += 1\n    return Memo.n",
    "cache": "import functools\nn = []\n@functools.lru_cache\ndef once():\n    n.append(1)\n    return len(n)\ndef answer(x):\n    n.append(0)\n    return len(n) * once()",
    "partial": "import functools\ndef counts(seen, x):\n    seen.append(x)\n    return len(seen)\nanswer = functools.partial(counts, [])",
    "base class": "class Base:\n    n = 0\nclass Memo(Base):\n    pass\n\ndef answer(x):\n    Base.n += 1\n    return Memo.n",
    "object of a library": "import types\nmemo = types.SimpleNamespace(n=0)\ndef answer(x):\n    memo.n += 1\n    return memo.n",
    "object with slots": "class Memo:\n    __slots__ = ('n',)\nmemo = Memo()\nmemo.n = 0\ndef answer(x):\n    memo.n += 1\n    return memo.n",
    "deque": "import collections\nseen = collections.deque()\ndef answer(x):\n    seen.append(x)\n    return len(seen)",
    "method": "class Memo:\n    def __init__(self):\n        self.n = 0\n    def go(self, x):\n        self.n += 1\n        return self.n\nanswer = Memo().go",
}


def defined(source):
    namespace = {"__name__": "a notebook"}
    exec(source, namespace)
    return namespace["answer"]


@pytest.mark.parametrize("where", REMEMBERS)
def test_what_an_answer_remembers_is_not_there_in_another_call(where):
    calls = [Call((x,), "answer") for x in range(3)]
    together = [o.value for o in InProcess(defined(REMEMBERS[where])).run(calls)]
    apart = [o.value for o in InProcess(defined(REMEMBERS[where])).run(calls, apart=True)]
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


def test_what_a_library_made_is_not_copied():
    assert fresh(len) is len and fresh(functools.reduce) is functools.reduce and fresh(InProcess) is InProcess
