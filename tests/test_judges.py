"""Judges believe nothing: whatever comes back from an answer, a judge neither raises, nor hangs, nor passes it."""

import functools
import random
import signal
from dataclasses import replace

import numpy as np
import pytest
from right_answers import right_answers

from autograder.answers import InProcess
from autograder.check import PUBLIC_SEED
from autograder.compare import first_far_index
from autograder.exercise import Raised, Returned
from autograder.exercises import EXERCISES
from autograder.judge import UNREADABLE, judge, read
from autograder.kit import STORY
from autograder.plain import Other, array_of, equal, fits

EACH = 60  # malformed outcomes of a group: some 3,500 in all
SECONDS = 20  # a hang; judges need less than one

ALONE = (
    None, True, -1, 0, 2**62, -(2**62), 10**400, 1.5, float("nan"), float("inf"), 1j, "", "text", b"\x00", (), ((),),
    [1], ((((((((((),),),),),),),),),), {}, {1: 2}, object(), Other("set", "{1}"), tuple(range(1_000)), (None,) * 3,
    (-1, -1, -1), (2**62,) * 4, ("gave", ()), (("gave", 1),), ((1, 2), (3,)), np.zeros(0), np.array(7), np.array([-1]),
    np.array([0.0]), np.array([np.nan]), np.array([1j]), np.zeros((2, 2, 2)), np.zeros((0, 3)), np.ones((3, 8), bool),
    np.array(["a"]), np.array([None]), np.full(40, 2**62), np.full((5, 5), -1), np.full((5, 5), np.inf, np.float32),
)  # fmt: skip


def damaged(value, rng, depth=0):
    """Plain data with one part cut off, doubled, or replaced."""
    if isinstance(value, tuple) and value and (depth < 1 or rng.random() < 0.6):
        place = rng.randrange(len(value))
        ways = [
            lambda: value[:-1],
            lambda: (*value, value[-1]),
            lambda: (*value[:place], damaged(value[place], rng, depth + 1), *value[place + 1 :]),
            lambda: (*value[:place], rng.choice(ALONE), *value[place + 1 :]),
            lambda: value[::-1],
        ]
        return rng.choice(ways)()
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind != "b":
        ways = [
            lambda: value[:-1] if value.ndim else value + 1,
            lambda: value.ravel()[:1],
            lambda: np.full(value.shape, -1, value.dtype) if value.dtype.kind != "u" else value + 1,
            lambda: np.full(value.shape, np.nan),
            lambda: value[None],
            lambda: value.astype(complex) + 1j,
            lambda: value.astype(str),
            lambda: np.full(value.shape, 2**62),
        ]
        return rng.choice(ways)()
    if type(value) in (int, float):
        return rng.choice([value + 1, -value - 1, float("nan"), 2**62, str(value), (value,), None, [value]])
    return rng.choice(ALONE)


def malformed(outcomes, rng):
    """The outcomes of a right answer with something wrong about them."""
    place = rng.randrange(len(outcomes))
    one = outcomes[place]
    value = one.value if isinstance(one, Returned) else None
    ways = [
        lambda: outcomes[:-1],
        lambda: [*outcomes, one],
        list,
        lambda: [*outcomes[:place], rng.choice([None, 5, "Returned", object()]), *outcomes[place + 1 :]],
        lambda: [*outcomes[:place], rng.choice(_odd(one)), *outcomes[place + 1 :]],
        lambda: [Returned(rng.choice(ALONE)) for _ in outcomes],
    ]
    near = [
        lambda: [*outcomes[:place], replace_value(one, damaged(value, rng)), *outcomes[place + 1 :]],
        lambda: [*outcomes[:place], replace_value(one, rng.choice(ALONE)), *outcomes[place + 1 :]],
        lambda: [replace_value(o, damaged(o.value, rng)) if isinstance(o, Returned) else o for o in outcomes],
    ]
    return rng.choice(ways if rng.random() < 0.2 else near)()


def _odd(outcome):
    made = [
        Raised("", "", ""), Raised(3, "x"), Raised("ValueError", None), Raised("ValueError", "x" * 10_000),
        Raised("E", "m", 5), Raised("ArgumentChanged", ""), Raised("AssertionErrox", "", asked=((),)),
    ]  # fmt: skip
    for asked in (None, 5, ["x"], (5,), ((),), ((object(),),), (("prefill_fn", [1]),), ((1, 2, 3),)):
        made.append(replace(outcome, asked=asked))
    return [*made, replace(outcome, printed=None)]


def replace_value(outcome, value):
    return replace(outcome, value=value) if isinstance(outcome, Returned) else Returned(value)


def means_the_same(got, right):
    """Whether damage did not change what an outcome says (a mirrored pair of equal numbers, say)."""
    if type(got) is not type(right):
        return False
    if isinstance(got, Raised):
        return got.type == right.type
    if fits(right.value, STORY):  # of an error in a story only the type matters, and not the line it came from
        return fits(got.value, STORY) and [r[:2] for r in got.value[0]] == [r[:2] for r in right.value[0]]
    if isinstance(right.value, tuple) and len(right.value) == 4 and right.value[3] is True:  # notebook 04's kernels
        return fits(got.value, (object,) * 4) and same_value(
            got.value[:2], right.value[:2]
        )  # a turned one is not needed
    return same_value(got.value, right.value)


def same_value(x, y):
    """Equal, or as close as a judge of floats asks; what is None in a right outcome is not looked at."""
    if isinstance(x, tuple) and isinstance(y, tuple) and array_of(y) is None:
        return len(x) == len(y) and all(b is None or same_value(a, b) for a, b in zip(x, y))
    a, b = array_of(x), array_of(y)
    if a is None or b is None:
        return a is None and b is None and equal(x, y)
    return a.shape == b.shape and a.dtype.kind in "biuf" and first_far_index(a, b.astype(np.float64)) is None


@pytest.fixture
def limit():
    def stop(*_):
        raise TimeoutError(f"the judge did not come to an end in {SECONDS} s")

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS * 5)
    yield
    signal.alarm(0)


GROUPS = [pytest.param(e, g, id=f"{e.name}-{g.name}") for e in EXERCISES.values() for g in e.groups]


@pytest.mark.parametrize("exercise, group", GROUPS)
def test_a_malformed_outcome_is_refused_without_an_error(exercise, group, limit):
    rng = random.Random(f"{exercise.name} {group.name}")
    answer = InProcess(exercise.compile(right_answers(exercise)[0]), exercise.driver, exercise.callbacks)
    nameless = replace(exercise, wrong_answers=())  # names are looked for by other tests
    if group.talk:
        for _ in range(EACH):
            ask = functools.partial(one_malformed, answer, group, rng, rng.random())
            assert not group.talk(PUBLIC_SEED, ask).passed
        return
    calls = group.cases(PUBLIC_SEED)
    right = answer.run(calls, apart=group.apart)
    assert judge(nameless, group, calls, right).passed
    for _ in range(EACH):
        outcomes = malformed(right, rng)
        verdict = judge(nameless, group, calls, outcomes)
        assert isinstance(verdict.message, str)
        if verdict.passed:
            assert len(outcomes) == len(right)
            for got, wanted in zip(outcomes, right):
                is_test = exercise.callbacks and isinstance(got, Returned)  # what a learner's test returns is not read
                assert means_the_same(got, wanted) or is_test, (got, wanted)


def one_malformed(answer, group, rng, share, call):
    """What a conversation hears: a share of right outcomes, and the others malformed."""
    if rng.random() < share:
        return read(answer.run([call])[0], group.form) or UNREADABLE
    return read(Returned(rng.choice(ALONE)), group.form) or UNREADABLE
