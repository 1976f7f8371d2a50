"""The checks are code that gives points, so they are held to: right answers everything, wrong ones their own words."""

import functools
import importlib
import inspect
import os
import pickle
import sys
import types

import numpy as np
import pytest
from right_answers import right_answers
from starting import ROOT, run_python

from autograder import check
from autograder.answers import InProcess
from autograder.check import evaluate
from autograder.exercise import Callback, Raised
from autograder.exercises import EXERCISES
from autograder.judge import judge
from autograder.ours import used
from autograder.plain import is_plain
from course_lib.attention.mask import chunk_attention_mask
from course_lib.positions import rope_cos_sin

SEEDS = (check.PUBLIC_SEED, 0, 2**60 + 5)
# Some seconds a check: one seed, and of the known mistakes the first four, in every run.
HEAVY = ("prefill", "block_attention", "check_composition", "my_policy", "plan_step")
ALL = list(EXERCISES.values())


def seeded(parameters, exercise_of, every_seed=True):
    """Each parameter set with each seed. Further seeds of a heavy exercise are slow; of all, if not every_seed.

    What is marked slow already stays so.
    """
    made = []
    for given in parameters:
        for seed in SEEDS:
            slow = seed != SEEDS[0] and (exercise_of(given).name in HEAVY or not every_seed)
            marks = [pytest.mark.slow] if slow or given.marks else []
            made.append(pytest.param(*given.values, seed, id=f"{given.id}-{seed}", marks=marks))
    return made


GROUPS = [pytest.param(e, g, id=f"{e.name}-{g.name}") for e in ALL for g in e.groups]
ONE_WAY = [p for p in GROUPS if p.values[1].cases]  # not a conversation, in which each call follows from the last
LIGHT_GROUPS = [  # those of heavy exercises are slow
    pytest.param(*p.values, id=p.id, marks=[pytest.mark.slow] if p.values[0].name in HEAVY else []) for p in GROUPS
]
WRONG = [
    pytest.param(e, w, id=f"{e.name}-{w.name}", marks=[pytest.mark.slow] * (e.name in HEAVY and place >= 4))
    for e in ALL
    for place, w in enumerate(e.wrong_answers)
]
RIGHT = [pytest.param(e, i, id=f"{e.name}-{i}") for e in ALL for i in range(len(right_answers(e)))]
EACH = [pytest.param(e, id=e.name) for e in ALL]


def library_function(exercise):
    module, _, name = exercise.solution.partition(":")
    return getattr(importlib.import_module(module), name)


def pasted(exercise):
    """The library's function as a learner's paste of it: the same text, another function."""
    return exercise.compile("from collections.abc import Sequence\n" + inspect.getsource(library_function(exercise)))


def in_process(exercise, fn):
    return InProcess(fn, exercise.driver, exercise.callbacks)


def verdicts(exercise, fn, seed=check.PUBLIC_SEED):
    return [evaluate(exercise, group, fn, seed) for group in exercise.groups]


# Right answers


@pytest.mark.parametrize("exercise, seed", seeded(EACH, lambda p: p.values[0]))
def test_a_pasted_copy_of_the_library_function_passes_every_group(exercise, seed):
    assert [v.message for v in verdicts(exercise, pasted(exercise), seed)] == [""] * len(exercise.groups)


@pytest.mark.parametrize("exercise, number, seed", seeded(RIGHT, lambda p: p.values[0]))
def test_a_right_answer_written_otherwise_passes_every_group(exercise, number, seed):
    fn = exercise.compile(right_answers(exercise)[number])
    assert [v.message for v in verdicts(exercise, fn, seed)] == [""] * len(exercise.groups)


@pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)
def test_every_exercise_keeps_five_wrong_answers_and_two_right_ones(exercise):
    assert len(exercise.wrong_answers) >= 5 and len(right_answers(exercise)) >= 2
    assert len({w.name for w in exercise.wrong_answers}) == len(exercise.wrong_answers)
    assert len({w.message for w in exercise.wrong_answers}) == len(exercise.wrong_answers)


@pytest.mark.parametrize(
    "convert",
    [
        np.matrix,
        np.asfortranarray,
        lambda m: m[:, ::-1][:, ::-1],
        lambda m: m.astype(np.int8),
        lambda m: m.tolist(),
        lambda m: tuple(map(tuple, m)),
        lambda m: pytest.importorskip("torch").tensor(m),
    ],
    ids=["matrix", "fortran", "view", "int8", "lists", "tuples", "torch"],
)
def test_a_right_mask_of_any_array_type_passes(convert):
    assert all(v.passed for v in verdicts(EXERCISES["chunk_attention_mask"], lambda c, k: convert(_triangle(c, k))))


def _triangle(chunk_len, cached_len):
    return np.tri(chunk_len, cached_len + chunk_len, cached_len, dtype=bool)


def test_an_answer_that_writes_into_an_argument_is_told_which_and_spoils_no_other_call():
    def attend(q, k, v, mask):
        right = pasted(EXERCISES["attend"])(q, k, v, mask)
        k[:], mask[:] = 0, False
        return right

    for verdict in verdicts(EXERCISES["attend"], attend):
        assert "changed its argument k. " in verdict.message and not verdict.passed


def test_an_answer_that_returns_the_same_buffer_every_time_is_told_so():
    buffer = np.zeros((200, 200), dtype=bool)

    def chunk_attention_mask(chunk_len, cached_len):
        view = buffer[:chunk_len, : cached_len + chunk_len]
        view[:] = _triangle(chunk_len, cached_len)
        return view

    for verdict in verdicts(EXERCISES["chunk_attention_mask"], chunk_attention_mask):
        assert not verdict.passed
        assert "what an earlier call returned is another after this one. Return a new" in verdict.message


# Wrong answers


@pytest.mark.parametrize("exercise, wrong, seed", seeded(WRONG, lambda p: p.values[0], every_seed=False))
def test_a_kept_wrong_answer_loses_points_with_its_own_words(exercise, wrong, seed):
    fn = exercise.compile(wrong.source)
    failed = [v for v in verdicts(exercise, fn, seed) if not v.passed]
    assert failed
    for verdict in failed:
        assert verdict.mistake == wrong.name
        assert wrong.message in verdict.message and verdict.what and verdict.where.startswith("Reread notebook")


def _constants(calls):
    yield from (
        None,
        True,
        False,
        0,
        1,
        -1,
        0.5,
        "",
        "yes",
        [],
        (),
        {},
        [[True]],
        np.zeros(0),
        np.zeros((3, 8)),
        np.ones((3, 8), bool),
    )
    yield from (arg for call in calls[:1] for arg in call.args if not isinstance(arg, Callback))


@pytest.mark.parametrize("exercise, group", LIGHT_GROUPS)
def test_no_constant_passes_a_group(exercise, group):
    calls = group.cases(check.PUBLIC_SEED) if group.cases else []
    constants = [*_constants(calls)]
    if not exercise.callbacks:
        outcomes = in_process(exercise, pasted(exercise)).run([*calls[:1], *calls[-1:]])
        constants += [outcome.value for outcome in outcomes]
    for constant in constants:
        assert not evaluate(exercise, group, lambda *args, always=constant: always).passed, constant


@pytest.mark.parametrize("exercise, group", GROUPS)
def test_no_stub_and_no_echo_passes_a_group(exercise, group):
    def raises(error):
        def stub(*args, **kwargs):
            raise error.with_traceback(None)  # or its traceback grows with each call

        return stub

    arguments = len(group.cases(0)[0].args) if group.cases else 4
    echoes = [lambda *args, i=i: args[i] for i in range(arguments)]
    zeros = [lambda *args: np.zeros_like(args[0]), lambda *args: np.ones_like(args[0])]
    errors = [raises(error) for error in (AssertionError("no"), ValueError("no"), SystemExit(0), RecursionError())]
    for fn in (*echoes, *zeros, *errors):
        assert not evaluate(exercise, group, fn).passed


@pytest.mark.parametrize("exercise, group", GROUPS)
def test_an_untouched_stub_is_told_which_exercise_it_is(exercise, group):
    def stub(*args):
        raise NotImplementedError("from the notebook")

    want = f"Exercise {exercise.number}, {exercise.name}, is not written yet. Replace the raise line with your answer."
    assert evaluate(exercise, group, stub).message == want
    with pytest.raises(check.CheckFailed) as caught:
        getattr(check, exercise.name)(stub, group=group.name)
    assert str(caught.value) == want


def test_a_plain_attention_kernel_earns_logic_and_not_bits_and_hears_why():
    exercise = EXERCISES["attend"]
    plain = exercise.compile(exercise.wrong_answer("plain").source)
    einsum = exercise.compile("""\
def attend(q, k, v, mask):
    scores = np.einsum("qd,kd->qk", q, k, optimize=True) / q.shape[-1] ** 0.5
    scores = np.where(mask, scores, -1e30)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("qk,kd->qd", weights, v, optimize=True)
""")
    for seed in range(20):
        for fn in (plain, einsum):
            logic, bits = verdicts(exercise, fn, seed)
            assert logic.passed and not bits.passed and bits.mistake == "plain"
            assert "exact.matmul" in bits.message


def test_one_layer_deeper_the_kv_cache_shows_what_layer_0_cannot():
    exercise = EXERCISES["chunk_attention_mask"]
    message = evaluate(
        exercise, exercise.group("kv"), exercise.compile(exercise.wrong_answer("top_left").source)
    ).message
    assert "layer 1 K differs" in message and "layer 0 is equal" in message


def test_chunk_relative_positions_are_told_by_name_and_by_the_clean_values():
    exercise = EXERCISES["positions"]
    message = evaluate(exercise, exercise.group("kv"), lambda cached, computed, take: np.arange(take)).message
    assert "layer 0 K differs" in message and "layer 0 V is equal" in message and "chunk-relative" in message


def test_an_error_is_shown_with_its_type_text_and_line():
    with pytest.raises(check.CheckFailed, match=r"raised ZeroDivisionError: division by zero \(line \d+: return 1 / 0"):
        check.positions(_divides)


def _divides(cached, computed, take):
    return 1 / 0


def test_float64_rounded_at_the_end_does_not_hide_the_order_of_its_sums():
    exercise = EXERCISES["attend"]
    fn = exercise.compile(exercise.wrong_answer("float64_rounded").source)
    for seed in range(10):
        logic, bits = verdicts(exercise, fn, seed)
        assert logic.passed and bits.mistake == "float64_rounded"


def test_the_lessons_check_every_group_once():
    pytest.importorskip("jupytext")
    from autograder.source import read_lessons

    lessons = read_lessons(ROOT)
    in_lessons = [(lesson.stem, c.check, c.group) for lesson in lessons for c in lesson.cells if c.check]
    assert sorted(in_lessons) == sorted((e.notebook, e.name, g.name) for e in ALL for g in e.groups)
    numbers = {c.solution: c.exercise for lesson in lessons for c in lesson.cells if c.solution}
    assert numbers == {e.name: e.number for e in ALL}


def test_the_sections_that_messages_send_to_exist():
    for exercise in ALL:
        text = (ROOT / "solutions" / f"{exercise.notebook}.py").read_text("utf-8")
        for place in (exercise.reread, *(w.reread for w in exercise.wrong_answers if w.reread)):
            section = place.removeprefix(f"Reread notebook {exercise.notebook[:2]}, section ").removesuffix(".")
            assert f"\n# ## {section}. " in text, place


# The library's own function is no answer


def _re_exports(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        return function(*args, **kwargs)

    def quiet(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception:
            return None

    class Holder:
        method = staticmethod(function)

        def __call__(self, *args, **kwargs):
            return function(*args, **kwargs)

    yield from (
        function,
        functools.partial(function),
        wrapped,
        quiet,
        Holder().method,
        Holder(),
        lambda *args, **kwargs: function(*args, **kwargs),
    )
    yield functools.lru_cache(function)
    if not isinstance(function, type):
        yield types.FunctionType(function.__code__, function.__globals__, "mine", function.__defaults__)
    yield lambda *args, **kwargs: list(map(functools.partial(function, **kwargs), *([arg] for arg in args)))[0]


@pytest.mark.parametrize("exercise", EACH)
def test_the_library_function_is_refused_in_every_disguise(exercise):
    for fn in _re_exports(library_function(exercise)):
        for verdict in verdicts(exercise, fn):
            assert not verdict.passed and exercise.solution.replace(":", ".") in verdict.message


def test_an_earlier_answer_and_the_supplied_operations_may_be_called():
    def ragged_mask(q_lens, kv_lens):
        blocks = [chunk_attention_mask(q, kv - q) for q, kv in zip(q_lens, kv_lens)]
        rows = [
            np.hstack([b if i == r else np.zeros((len(b), c.shape[1]), bool) for i, c in enumerate(blocks)])
            for r, b in enumerate(blocks)
        ]
        return np.vstack(rows)

    assert all(v.passed for v in verdicts(EXERCISES["ragged_mask"], ragged_mask))
    assert not evaluate(
        EXERCISES["chunk_attention_mask"],
        EXERCISES["chunk_attention_mask"].groups[0],
        lambda c, k: ragged_mask([c], [c + k]),
    ).passed
    assert all(v.passed for v in verdicts(EXERCISES["rope"], pasted(EXERCISES["rope"])))
    assert rope_cos_sin.__code__ not in {library_function(EXERCISES["rope"]).__code__}


@pytest.mark.parametrize("exercise", EACH)
def test_equal_text_is_an_answer_even_if_it_compiles_to_equal_code(exercise):
    function = library_function(exercise)
    twin = exercise.compile("from collections.abc import Sequence\n" + inspect.getsource(function))
    assert used(twin, (exercise.solution,)) == ""


def test_a_library_function_imported_inside_an_answer_is_found():
    def chunk_attention_mask(chunk_len, cached_len):
        from course_lib.attention import mask

        return mask.chunk_attention_mask(chunk_len, cached_len)

    def positions(cached, computed, take):
        import course_lib.positions

        return course_lib.positions.positions(cached, computed, take)

    for fn in (chunk_attention_mask, positions):
        verdict = evaluate(EXERCISES[fn.__name__], EXERCISES[fn.__name__].groups[0], fn)
        assert "the library's own" in verdict.message


def test_an_attribute_that_is_called_as_a_library_function_beside_it_is_none():
    from course_lib.cost.linear import percentile

    library = ("course_lib.cost.linear:percentile",)
    found = {"__name__": "no module of that name", "np": np, "percentile": percentile}  # as in notebook 06
    exec("def itl(gaps):\n    return np.percentile(gaps, 50)\n", found)
    assert used(found["itl"], library) == ""
    exec("def itl(gaps):\n    return (lambda: percentile(gaps, 50))()\n", found)
    assert used(found["itl"], library) == library[0]
    exec("class itl:\n    rule = staticmethod(lambda gaps: [percentile(gaps, p) for p in (50, 99)])\n", found)
    assert used(found["itl"], library) == library[0]


# A check is data


def _is_data(value):
    if isinstance(value, Callback):
        return isinstance(value.name, str) and all(isinstance(x, (int, str)) for x in value.data)
    return all(map(_is_data, value)) if isinstance(value, (list, tuple)) else is_plain(value)


@pytest.mark.parametrize("exercise, group", ONE_WAY)
def test_the_judge_gives_the_same_verdict_on_what_travelled(exercise, group):
    calls = group.cases(7)
    assert all(_is_data(arg) for call in calls for arg in call.args)
    for source in (right_answers(exercise)[0], exercise.wrong_answers[0].source):
        outcomes = in_process(exercise, exercise.compile(source)).run(calls, apart=group.apart)
        travelled = pickle.loads(pickle.dumps(outcomes))
        assert judge(exercise, group, group.cases(7), travelled) == judge(exercise, group, calls, outcomes)


@pytest.mark.parametrize("exercise, group", ONE_WAY)
def test_another_seed_chooses_other_inputs(exercise, group):
    seeds = [repr([(c.label, c.args) for c in group.cases(seed)]) for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]


# The front door


def test_success_is_one_line_on_stdout(capfd):
    assert check.positions(lambda cached, computed, take: range(cached + computed, cached + computed + take)) is None
    out, err = capfd.readouterr()
    assert err == "" and out.count("\n") == 1
    assert out.startswith("Exercise 3.1 positions: values (12 cases) and kv (3 cuts")


def test_what_an_answer_prints_and_warns_reaches_no_screen_and_does_no_harm(capfd):
    def positions(cached, computed, take):
        for _ in range(2_000):
            print("x" * 1_000)
            print("y", file=sys.stderr)
        np.array([1.0]) / 0
        return list(range(cached + computed, cached + computed + take))

    check.positions(positions)
    out, err = capfd.readouterr()
    assert err == "" and len(out) < 300


def test_what_a_failing_answer_printed_is_shown_to_its_author():
    def positions(cached, computed, take):
        print("cached is", cached)
        return np.arange(take)

    with pytest.raises(check.CheckFailed, match="Your function printed:\ncached is 0"):
        check.positions(positions)


def test_a_failing_group_is_told_in_full_and_the_others_in_a_word():
    exercise = EXERCISES["attend"]
    with pytest.raises(check.CheckFailed) as caught:
        check.attend(exercise.compile(exercise.wrong_answer("plain").source))
    assert str(caught.value).startswith(
        "Exercise 2.3 attend, bits: "
    ) and "Group logic (13 cases close to float64) passes." in str(caught.value)
    with pytest.raises(check.CheckFailed, match="Group bits fails too."):
        check.attend(exercise.compile(exercise.wrong_answer("no_scale").source))
    check.attend(exercise.compile(exercise.wrong_answer("plain").source), group="logic")


def test_a_notebook_shows_the_message_without_a_traceback():
    assert check.CheckFailed("Row 0 ...")._render_traceback_() == ["CheckFailed: Row 0 ..."]


def test_names_that_do_not_exist_are_answered_with_those_that_do():
    assert check.names() == list(EXERCISES) and set(check.names()) <= set(dir(check))
    with pytest.raises(AttributeError, match="chunk_attention_mask, ragged_mask"):
        check.chunk_attention_msak  # noqa: B018
    with pytest.raises(ValueError, match="values, kv"):
        check.positions(lambda *a: 1, group="bits")
    with pytest.raises(TypeError, match=r"without calling it: check.positions\(positions\)"):
        check.positions(np.arange(3))


def test_checks_need_nothing_but_numpy():
    code = """
import sys
from autograder import check
from autograder.exercises import EXERCISES
from right_answers import right_answers
for exercise in EXERCISES.values():
    if "torch" not in exercise.imports:  # notebook 04 says that it needs it
        getattr(check, exercise.name)(exercise.compile(right_answers(exercise)[0]))
unwanted = {"torch", "nbgrader", "jupytext", "nbformat", "matplotlib", "IPython"}
print(sorted({name.partition(".")[0] for name in sys.modules} & unwanted))
"""
    done = run_python("-c", code, env={"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])})
    assert done.returncode == 0 and done.stderr == "" and done.stdout.splitlines()[-1] == "[]"


def test_a_call_that_raised_is_plain_data_too():
    outcomes = InProcess(_divides).run(EXERCISES["positions"].groups[0].cases(0)[:1])
    assert isinstance(outcomes[0], Raised) and outcomes[0].type == "ZeroDivisionError"
