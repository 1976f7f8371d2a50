"""What a grading process remembers changes no verdict."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autograder import seeds
from autograder.answers import InProcess
from autograder.exercise import Exercise, Raised, Returned
from autograder.exercises import EXERCISES
from autograder.grading.memo import Memo, digest
from autograder.judge import verdict_on
from autograder.kit import found
from autograder.plain import Other

HIDDEN = seeds.hidden(7, "x", "y")
QUICK = ("chunk_attention_mask", "attend", "positions", "block_hash", "plan_step")


def answers(exercise, count):
    """The right answer, one that does nothing, and the first known mistakes."""
    yield lambda: found(exercise.solution)
    yield lambda: lambda *args: None
    for wrong in exercise.wrong_answers[:count]:
        yield lambda source=wrong.source: exercise.compile(source)


def verdicts(exercise, group, count, judged):
    seen = []
    for make in answers(exercise, count):
        seen.append(judged(exercise, group, InProcess(make(), exercise.driver, exercise.callbacks), HIDDEN))
    return seen


def compare(exercise, count):
    memo = Memo()
    for group in exercise.groups:
        if group.talk and count:
            continue  # nothing of a conversation is kept
        plainly = verdicts(exercise, group, count, verdict_on)
        assert plainly[0].passed and not plainly[1].passed
        for _ in range(2):  # the second time all is remembered
            assert verdicts(exercise, group, count, memo.verdict_on) == plainly


@pytest.mark.parametrize("name", QUICK)
def test_verdicts_are_the_same_with_a_memory(name):
    compare(EXERCISES[name], 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXERCISES)
def test_verdicts_are_the_same_with_a_memory_for_all_known_mistakes(name):
    compare(EXERCISES[name], len(EXERCISES[name].wrong_answers))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXERCISES)
def test_judging_an_answer_leaves_the_cases_as_they_were(name):
    """They are used again: what a judge, a reference or a known mistake writes into them would be seen by the next."""
    exercise = EXERCISES[name]
    for group in exercise.groups:
        if group.talk:
            continue
        calls, again = group.cases(HIDDEN), group.cases(HIDDEN)
        memo = Memo()
        memo.verdict_on(exercise, group, InProcess(lambda *args: None, exercise.driver, exercise.callbacks), HIDDEN)
        (known,) = memo.known.values()
        outcomes = InProcess(found(exercise.solution), exercise.driver, exercise.callbacks).run(known.calls)
        group.judge(list(known.calls), outcomes)
        assert same(known.calls, calls) and same(calls, again), name


def same(a, b):
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a).__module__ == "torch":
        return bool((a == b).all())
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if hasattr(type(a), "__slots__") and hasattr(type(a), "__dataclass_fields__"):
        return all(same(getattr(a, name), getattr(b, name)) for name in type(a).__dataclass_fields__)
    return callable(a) or a == b or a != a


def test_a_class_pays_once_for_what_a_known_mistake_does(monkeypatch):
    exercise, compiled = EXERCISES["positions"], []
    compile_once = Exercise.compile
    monkeypatch.setattr(Exercise, "compile", lambda self, text: compiled.append(text) or compile_once(self, text))
    memo = Memo()
    for fault in range(3):  # three answers, each wrong in a way of its own
        answer = InProcess(lambda *args, fault=fault: np.arange(fault))
        assert not memo.verdict_on(exercise, exercise.groups[0], answer, HIDDEN).passed
    assert compiled == [wrong.source for wrong in exercise.wrong_answers]


def test_an_equal_answer_is_not_judged_again():
    judged = []
    exercise = EXERCISES["positions"]
    group = exercise.groups[0]
    counting = replace(group, judge=lambda calls, outcomes: judged.append(1) or group.judge(calls, outcomes))
    memo = Memo()
    for _ in range(3):
        assert memo.verdict_on(exercise, counting, InProcess(found(exercise.solution)), HIDDEN).passed
    assert len(judged) == 1


DIFFERENT = [
    1, True, 1.0, "1", b"1", None, 0.0, -0.0, (), (1,), ((1,),), (1, 1), np.array(1), np.array([1]), np.array([1.0]),
    np.array([[1]]), np.array([1], np.int32), Other("int", "1"), ("int", "1"), float("nan"), "\ud800",
    [1], [], {}, ("ab", "c"), ("a", "bc"), ("s1:a",), "(1", np.float32([0.0]), np.float32([-0.0]),
]  # fmt: skip


def test_no_two_outcomes_that_a_judge_could_tell_apart_have_one_digest():
    outcomes = [Returned(value) for value in DIFFERENT]
    outcomes += [Returned(1, "x"), Returned(1, "", (("f", 1),)), Raised("1", ""), Raised("", "1"), Raised("", "", "1")]
    assert len({digest([outcome]) for outcome in outcomes}) == len(outcomes)
    once = "a text of its own"
    assert digest([Returned((once, once))]) == digest([Returned((once, "".join(once)))])
    assert digest([Returned(1), Returned(2)]) != digest([Returned((1, 2))])
    assert digest([Returned(np.arange(6).reshape(2, 3).T)]) == digest([Returned(np.arange(6).reshape(2, 3).T.copy())])


def test_what_is_no_outcome_has_no_digest():
    deep = ()
    for _ in range(100_000):
        deep = (deep,)
    for value in (Path("x"), np.array([None]), np.float32(1), object(), len, deep):
        assert digest([Returned(value)]) is None
    assert digest([None]) is None and digest(["x"]) is None


def test_what_a_submission_returns_is_not_kept():
    exercise = EXERCISES["positions"]
    memo = Memo()
    large = np.zeros(1 << 20)
    memo.verdict_on(exercise, exercise.groups[0], InProcess(lambda *args: large), HIDDEN)
    (known,) = memo.known.values()
    assert [len(key) for key in known.verdicts] == [32]
