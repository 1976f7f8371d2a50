"""Notebook 01: a cache and a prefill without pages, exercises that are a class or return objects, and its explorer."""

import json
from dataclasses import replace

import numpy as np
import pytest
from right_answers import right_answers
from small_course import SETUP, make_root

from autograder import check
from autograder.answers import InProcess
from autograder.build import ROOT
from autograder.check import evaluate
from autograder.drivers.nb01 import Noting
from autograder.exercise import Raised, Returned
from autograder.exercises import EXERCISES
from autograder.judge import judge
from autograder.kept import solution_text
from autograder.plain import Other
from course_lib.cli import UserError
from course_lib.lessons import nb01_divisible as lesson
from course_lib.lessons.nb01_divisible import KVCache, run_chunk
from course_lib.positions import Llama3Scaling
from course_lib.prefill import one_pass
from course_lib.prefill import prefill as paged_prefill
from course_lib.weights import SEEDED, seeded_model

TINY = seeded_model("tiny", arith="exact")
CACHE, PREFILL = EXERCISES["KVCache"], EXERCISES["prefill"]


def prompt(length, vocab=128):
    return [(7 * i * i + 3 * i) % vocab for i in range(length)]


def partitions(length, seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        ends = np.sort(rng.choice(np.arange(1, length), int(rng.integers(1, 6)), replace=False))
        yield np.diff([0, *ends, length]).tolist()


def same_as_one_pass(model, ids, sizes):
    (cache, logits), whole = lesson.prefill(model, ids, sizes), one_pass(model, ids)
    views = [cache.view(layer) for layer in range(model.config.num_layers)]
    kv_equal = all(np.array_equal(k, whole.k[i]) and np.array_equal(v, whole.v[i]) for i, (k, v) in enumerate(views))
    return kv_equal and np.array_equal(logits, whole.logits)


# The library's prefill without pages


def test_every_cut_leaves_the_bits_of_the_paged_models_one_pass():
    ids = prompt(41)
    for sizes in ([41], [1] * 41, *partitions(41, seed=3, count=20)):
        assert same_as_one_pass(TINY, ids, sizes), sizes


@pytest.mark.parametrize("shape", [{"head_dim": 10}, {"q_heads": 3, "kv_heads": 3}, {"q_heads": 6, "num_layers": 1}])
def test_models_of_other_shapes_have_the_same_bits_too(shape):
    model = seeded_model(config=replace(SEEDED["tiny"], **shape), arith="exact")
    assert same_as_one_pass(model, prompt(19), [5, 1, 13])


def test_a_tied_head_has_the_same_bits_too():
    model = seeded_model(config=replace(SEEDED["tiny"], tie_word_embeddings=True, rope_theta=500.0), arith="exact")
    assert same_as_one_pass(model, prompt(12), [7, 5])


def test_biases_norms_of_heads_and_scaled_frequencies_have_the_same_bits_too():
    options = {"qkv_bias": True, "qk_norm": True, "rope_scaling": Llama3Scaling(8, 1, 4, 32)}
    model = seeded_model(config=replace(SEEDED["tiny"], **options), arith="exact")
    assert same_as_one_pass(model, prompt(19), [5, 1, 13])
    assert not one_pass(model, prompt(19)).equals(one_pass(TINY, prompt(19)))


def test_what_cannot_be_run_is_refused_in_one_sentence():
    cache = KVCache(3, 2, 16)
    for ids in ([], [128], [-1, 3]):
        with pytest.raises(ValueError, match=r"at least one token id, each in 0 .. 127"):
            run_chunk(TINY, ids, cache)
    with pytest.raises(ValueError, match="exact arithmetic, not tile"):
        run_chunk(TINY.with_arithmetic("tile"), [1], cache)
    assert all(len(x) == 0 for layer in range(3) for x in cache.view(layer))


def test_the_cache_keeps_no_array_of_the_callers_and_takes_chunks_of_any_length():
    cache, k = KVCache(2, 1, 2), np.ones((3, 1, 2), np.float32)
    cache.append(1, k, 2 * k)
    k[:] = 9
    cache.append(1, k[:1], k[:1])
    assert cache.view(0)[0].shape == (0, 1, 2)
    assert cache.view(1)[0].ravel().tolist() == [1] * 6 + [9] * 2 and cache.view(1)[1].dtype == np.float32


# Exercises with a driver


def verdicts(exercise, fn, seed=check.PUBLIC_SEED):
    return [evaluate(exercise, group, fn, seed) for group in exercise.groups]


def test_a_driver_runs_with_copies_and_what_it_raises_is_an_outcome():
    calls = CACHE.group("reuse").cases(1)
    before = [arg.copy() for arg in calls[0].args[-2:]]
    assert calls[0].args[4] is True  # the arrays are overwritten

    class KVCache:
        def __init__(self, *sizes):
            raise OSError("disk full")

    outcomes = InProcess(KVCache, CACHE.driver).run(calls)
    assert all(isinstance(o, Raised) and o.message == "disk full" for o in outcomes)
    InProcess(CACHE.compile(right_answers(CACHE)[0]), CACHE.driver).run(calls)
    assert all(np.array_equal(x, y) for x, y in zip(calls[0].args[-2:], before, strict=True))


def test_the_librarys_class_is_refused_also_as_a_base_class_and_inside_another():
    class Inherits(KVCache):
        pass

    class Delegates:
        def __init__(self, *sizes):
            self.inner = KVCache(*sizes)

        def append(self, *args):
            self.inner.append(*args)

        def view(self, layer):
            return self.inner.view(layer)

    for fn in (KVCache, Inherits, Delegates, lambda *sizes: KVCache(*sizes)):
        for verdict in verdicts(CACHE, fn):
            ours = "the library's own course_lib.lessons.nb01_divisible.KVCache"
            assert not verdict.passed and ours in verdict.message


def test_the_engines_own_prefill_is_no_answer_either():
    def prefill(model, ids, sizes):
        run = paged_prefill(model, ids, sizes)

        class Cache:
            def view(self, layer):
                return run.k[layer], run.v[layer]

        return Cache(), run.logits

    for verdict in verdicts(PREFILL, prefill):
        assert "course_lib.prefill.prefill" in verdict.message


def test_an_unwritten_class_is_told_which_exercise_it_is():
    class KVCache:
        def __init__(self, num_layers, kv_heads, head_dim):
            raise NotImplementedError

    assert {v.message for v in verdicts(CACHE, KVCache)} == {
        "Exercise 1.1, KVCache, is not written yet. Replace the raise line with your answer."
    }
    unwritten = "        raise NotImplementedError\n"
    half_written = right_answers(CACHE)[0].replace("        return", unwritten + "        return")
    assert "is not written yet" in verdicts(CACHE, CACHE.compile(half_written))[0].message


def test_an_object_in_place_of_the_class_is_refused():
    with pytest.raises(TypeError, match=r"without calling it: check.KVCache\(KVCache\)"):
        check.KVCache(CACHE.compile(right_answers(CACHE)[0])(3, 2, 4))


@pytest.mark.parametrize(
    ("view", "says"),
    [
        ("None", "view(0) gives None, wanted a pair"),
        ("self.k[layer]", "view(0) gives something of type ndarray, wanted a pair"),
        ("self.k[layer], None", "gives None as its values, wanted an array of shape"),
        ("self.k[layer], 'v'", "gives v as its values, wanted an array of shape"),
        ("[self.k[layer], [k for k in range(3)]]", "gives values of shape [3], wanted"),
        ("self.k[layer][1:], self.v[layer]", "gives keys of shape"),
        ("self.k[layer].astype(int), self.v[layer]", "gives keys of dtype int64, wanted float32"),
    ],
)
def test_a_view_that_is_none_is_described_and_not_taken_for_another_mistake(view, says):
    source = CACHE.wrong_answer("overwrite").source.replace("self.k[layer] = k.copy()", "self.k[layer] = k[:1] * 0")
    source = source.replace("return self.k[layer], self.v[layer]", f"return {view}")
    verdict = verdicts(CACHE, CACHE.compile(source))[0]
    assert says.replace("(0)", "") in verdict.message.replace("(0)", "").replace("(1)", "").replace("(2)", "")
    assert verdict.mistake == ""


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("None", "it returned None, wanted a pair"),
        ("cache", "it returned something of type KVCache, wanted a pair"),
        ("cache, None", "the second thing that it returned, the logits, is None"),
        ("None, logits", "the first thing that it returned is None, wanted the cache"),
        ("cache, logits[:5]", "the logits have shape [5], wanted [128]"),
    ],
)
def test_a_prefill_that_returns_something_else_hears_what(returned, says):
    source = right_answers(PREFILL)[0].replace("return cache, last", f"logits = last\n    return {returned}")
    messages = [v.message for v in verdicts(PREFILL, PREFILL.compile(source))]
    assert says in messages[1]


def test_right_tokens_at_wrong_positions_are_told_by_the_clean_values():
    verdict = verdicts(PREFILL, PREFILL.compile(PREFILL.wrong_answer("blind_chunks").source))[0]
    assert "layer 0 K differs" in verdict.what and "layer 0 V is equal" in verdict.what


def test_keeping_the_callers_array_costs_the_reuse_group_alone():
    views, reuse = verdicts(CACHE, CACHE.compile(CACHE.wrong_answer("keeps_the_callers_array").source))
    assert views.passed and not reuse.passed and "k.copy()" in reuse.message


def test_wrong_logits_cost_the_logits_group_alone():
    for name in ("first_logits", "every_chunks_logits", "summed_logits"):
        kv, logits = verdicts(PREFILL, PREFILL.compile(PREFILL.wrong_answer(name).source))
        assert kv.passed and logits.mistake == name


def test_the_chunks_that_ran_are_counted_even_when_the_result_is_right():
    noting = Noting(TINY.embedding)
    assert np.array_equal(noting[np.array([3, 4])], TINY.embedding[[3, 4]]) and noting.sizes == [2]
    kv, logits = verdicts(PREFILL, PREFILL.compile(PREFILL.wrong_answer("one_pass").source))
    assert logits.passed and "the cache is right, but the chunks that ran have" in kv.what


def test_two_different_errors_of_one_type_are_not_taken_for_one_mistake():
    raised = Raised("TypeError", "a row of 3")
    assert CACHE.same(raised, Raised("TypeError", "a row of 12", "line 4"))
    assert not CACHE.same(raised, Raised("TypeError", "b")) and not CACHE.same(raised, Returned(np.zeros(2)))
    assert CACHE.same(Returned(None), Returned(None)) and not CACHE.same(Returned(None), Returned(Other("x", "y")))


def test_the_cases_cover_one_token_single_tokens_one_pass_and_uneven_cuts_of_two_prompts():
    jobs = [job for call in PREFILL.group("kv").cases(5) for job in call.args[0]]
    assert all(sum(sizes) == len(ids) for ids, sizes in jobs) and ([1] in [sizes for _, sizes in jobs])
    assert any(sizes == [len(ids)] for ids, sizes in jobs if len(ids) > 8) and [1] * 8 in [sizes for _, sizes in jobs]
    first, second = PREFILL.group("kv").cases(5)[1].args[0]
    assert first[1] == second[1] and first[0] != second[0] and sorted(first[0]) == sorted(second[0])


def test_a_fixed_number_of_rows_is_named_whatever_the_number_is():
    source = CACHE.wrong_answer("fixed_rows").source
    for rows in (32, 64, 512, 4096):
        answer = CACHE.compile(source.replace("num_layers, 32,", f"num_layers, {rows},"))
        assert {v.mistake for v in verdicts(CACHE, answer)} == {"fixed_rows"}


# Wrong answers from outside: each must lose points on every seed


def in_a_cell(exercise, source):
    """What a notebook's cell with this text defines; its annotations are evaluated."""
    namespace = {"__name__": "a notebook"}
    exec(exercise.imports + "\n" + source, namespace)
    return namespace[exercise.name]


def loses(exercise, source):
    """Whether a group fails, on each of two seeds."""
    return all(
        any(not evaluate(exercise, group, in_a_cell(exercise, source), seed).passed for group in exercise.groups)
        for seed in (check.PUBLIC_SEED, 0)
    )


INIT = """\
class KVCache:
    def __init__(self, num_layers, kv_heads, head_dim):
        self.k = [np.zeros((0, kv_heads, head_dim), np.float32) for _ in range(num_layers)]
        self.v = [x.copy() for x in self.k]
"""
APPEND = """\
    def append(self, layer, k, v):
        self.k[layer] = np.concatenate([self.k[layer], k])
        self.v[layer] = np.concatenate([self.v[layer], v])
"""
VIEW = """\
    def view(self, layer):
        return self.k[layer], self.v[layer]
"""
BUFFER = """\
class KVCache:
    def __init__(self, num_layers, kv_heads, head_dim):
        self.rows = np.zeros((2, num_layers, 8, kv_heads, head_dim), np.float32)
        self.used = [0] * num_layers

    def append(self, layer, k, v):
        start, stop = self.used[layer], self.used[layer] + len(k)
        while stop > self.rows.shape[2]:
            self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)], axis=2)
        self.rows[:, layer, start:stop] = k, v
        self.used[layer] = stop

    def view(self, layer):
        return self.rows[0, layer, : self.used[layer]], self.rows[1, layer, : self.used[layer]]
"""
STORE = """\
class KVCache:
    store = {}

    def __init__(self, num_layers, kv_heads, head_dim):
        self.empty = np.zeros((0, kv_heads, head_dim), np.float32)

    def append(self, layer, k, v):
        self.store[layer] = [np.concatenate(pair) for pair in zip(self.view(layer), (k, v))]

    def view(self, layer):
        return self.store.get(layer, [self.empty, self.empty])
"""
WRONG_CACHES = {
    "a_buffer_that_doubles_once": BUFFER.replace("while stop", "if stop"),
    "a_ring_of_256_rows": INIT + APPEND + VIEW.replace("[layer],", "[layer][-256:],"),
    "one_count_for_all_layers": BUFFER.replace("self.used[layer]", "self.used[0]"),
    "the_whole_buffer_is_given": BUFFER.replace("layer, : self.used[layer]]", "layer]"),
    "rows_in_use_are_those_that_are_not_zero": BUFFER.replace(
        "self.rows[0, layer, : self.used[layer]]", "self.rows[0, layer][self.rows[0, layer].any(axis=(1, 2))]"
    ),
    "views_share_one_buffer": INIT
    + "        self.out = np.zeros((2, 9000, kv_heads, head_dim), np.float32)\n"
    + APPEND
    + """\
    def view(self, layer):
        n = len(self.k[layer])
        self.out[:, :n] = self.k[layer], self.v[layer]
        return self.out[0, :n], self.out[1, :n]
""",
    "state_in_the_class": STORE,
    "state_in_the_class_emptied_in_init": STORE.replace("self.empty =", "self.store.clear()\n        self.empty ="),
    "state_in_a_default": STORE.replace("    store = {}\n", "")
    .replace("head_dim):", "head_dim, store={}):")
    .replace("self.empty =", "self.store = store\n        self.empty ="),
    "state_in_the_class_of_a_dataclass": "from dataclasses import dataclass\n\n@dataclass\n"
    + STORE.replace(
        "    def __init__(self, num_layers, kv_heads, head_dim):\n        self.empty",
        "    num_layers: int\n    kv_heads: int\n    head_dim: int\n\n    def __post_init__(self):\n        self.empty",
    ).replace("(0, kv_heads, head_dim)", "(0, self.kv_heads, self.head_dim)"),
    "only_keys_are_copied": INIT.replace("self.v = [x.copy() for x in self.k]", "self.v = [[] for x in self.k]")
    + APPEND.replace("self.v[layer] = np.concatenate([self.v[layer], v])", "self.v[layer].append(v)")
    + VIEW.replace("self.v[layer]", "np.concatenate([self.k[layer][:0], *self.v[layer]])"),
    "copied_when_viewed": INIT
    + "        self.new = [[] for _ in self.k]\n"
    + "    def append(self, layer, k, v):\n        self.new[layer].append((k, v))\n"
    + """\
    def view(self, layer):
        while self.new[layer]:
            k, v = self.new[layer].pop(0)
            self.k[layer] = np.concatenate([self.k[layer], k])
            self.v[layer] = np.concatenate([self.v[layer], v])
        return self.k[layer], self.v[layer]
""",
    "the_appended_array_is_cleared": INIT + APPEND + "        k[:] = 0\n" + VIEW,
    "values_are_float64": INIT + APPEND.replace(", v])", ", v.astype(float)])") + VIEW,
    "an_empty_layer_is_float64": INIT.replace("np.float32", "float")
    + APPEND.replace("])", "]).astype(np.float32)")
    + VIEW,
    "rounded_to_float16": INIT + APPEND.replace(", v])", ", v.astype(np.float16).astype(np.float32)])") + VIEW,
    "a_view_uses_the_rows_up": INIT
    + APPEND
    + VIEW.replace(
        "return self.k[layer], self.v[layer]",
        "out = self.k[layer], self.v[layer]\n        self.k[layer] = self.k[layer][:0]\n        return out",
    ),
    "a_token_like_the_one_before_is_dropped": INIT
    + APPEND.replace(
        "        self.k[layer] =",
        "        if (k[:1] == self.k[layer][-1:]).all() and len(self.k[layer]):\n            return\n"
        "        self.k[layer] =",
    )
    + VIEW,
    "more_layers_than_three_share_one": (INIT + APPEND + VIEW).replace("[layer]", "[min(layer, 2)]"),
}


@pytest.mark.parametrize("name", WRONG_CACHES)
def test_a_wrong_cache_from_outside_loses_points_on_every_seed(name):
    assert loses(CACHE, WRONG_CACHES[name])


RIGHT = solution_text(PREFILL.solution)
LAST = "return cache, logits"
WRONG_PREFILLS = {
    "the_first_call_again": "memo = []\n" + RIGHT.replace(LAST, "memo.append((cache, logits))\n    return memo[0]"),
    "the_first_logits_again": "memo = []\n" + RIGHT.replace(LAST, "memo.append(logits)\n    return cache, memo[0]"),
    **{
        f"logits_remembered_by_{key}": "memo = {}\n"
        + RIGHT.replace(LAST, f"return cache, memo.setdefault({key}, logits)")
        for key in ("len(ids)", "ids[0]", "ids[-1]", "sum(ids)", "tuple(sizes)", "tuple(sorted(ids))")
    },
    "remembered_on_the_function": RIGHT.replace(
        LAST, "prefill.logits = getattr(prefill, 'logits', logits)\n    return cache, prefill.logits"
    ),
    "sizes_are_used_up": RIGHT.replace("for size in sizes:", "while sizes:\n        size = sizes.pop(0)"),
    "ids_are_used_up": RIGHT.replace("ids[start : start + size]", "ids[:size]").replace(
        "start += size", "del ids[:size]"
    ),
    "sizes_are_sorted": RIGHT.replace("in sizes", "in sorted(sizes)"),
    "equal_sizes_once": RIGHT.replace("in sizes", "in dict.fromkeys(sizes)"),
    "single_tokens": RIGHT.replace("in sizes", "in [1] * len(ids)"),
    "the_last_two_chunks_as_one": RIGHT.replace("in sizes", "in [*sizes[:-2], sum(sizes[-2:])]"),
    "four_chunks_at_most": RIGHT.replace("in sizes", "in sizes[:4]"),
    "the_start_goes_on_by_one": RIGHT.replace("start += size", "start += 1"),
    "the_last_token_runs_twice": RIGHT.replace(LAST, "return cache, run_chunk(model, ids[-1:], cache)"),
    "logits_in_float16": RIGHT.replace(LAST, "return cache, logits.astype(np.float16)"),
    "the_caches_of_two_prompts_share_state": STORE.replace("self.empty =", "self.store.clear()\n        self.empty =")
    + "\n"
    + RIGHT,
}


@pytest.mark.parametrize("name", WRONG_PREFILLS)
def test_a_wrong_prefill_from_outside_loses_points_on_every_seed(name):
    assert loses(PREFILL, WRONG_PREFILLS[name])


def test_what_an_argument_lost_is_told_by_the_arguments_name():
    for name, argument in (("sizes_are_used_up", "sizes"), ("ids_are_used_up", "ids")):
        for verdict in verdicts(PREFILL, PREFILL.compile(WRONG_PREFILLS[name])):
            assert f"changed its argument {argument}" in verdict.message
    for verdict in verdicts(CACHE, CACHE.compile(WRONG_CACHES["the_appended_array_is_cleared"])):
        assert "changed its argument k" in verdict.message
    views, _ = verdicts(CACHE, CACHE.compile(WRONG_CACHES["views_share_one_buffer"]))
    assert "a later call changed what a view had given" in views.message


# Right answers of unusual form

DATACLASS = """\
from dataclasses import dataclass, field

@dataclass{options}
class KVCache:
    num_layers: int
    kv_heads: int
    head_dim: int
    kept: dict = field(default_factory=dict)

    def append(self, layer, k, v):
        self.kept.setdefault(layer, []).append((k.copy(), v.copy()))

    def view(self, layer):
        empty = np.zeros((0, self.kv_heads, self.head_dim), np.float32)
        kept = [(empty, empty), *self.kept.get(layer, ())]
        return [np.concatenate(part) for part in zip(*kept)]
"""
HONEST_CACHES = {
    "dataclass": DATACLASS.format(options=""),
    "dataclass_with_slots": DATACLASS.format(options="(slots=True)"),
    "slots": INIT.replace("KVCache:\n", "KVCache:\n    __slots__ = ('k', 'v')\n") + APPEND + VIEW,
    "buffer": BUFFER,
    "one_array_for_both": BUFFER.replace(
        "self.rows[0, layer, : self.used[layer]], self.rows[1, layer, : self.used[layer]]",
        "self.rows[:, layer, : self.used[layer]]",
    ),
    "inherits": "class Base:\n"
    + INIT.partition("\n")[2]
    + APPEND
    + "\nclass KVCache(Base):\n    def __init__(self, *sizes):\n        super().__init__(*sizes)\n"
    + VIEW,
    "deque": "from collections import deque\n"
    + INIT.replace("self.k = [", "self.k = deque(").replace("num_layers)]", "num_layers))")
    + APPEND
    + VIEW,
}


@pytest.mark.parametrize("name", HONEST_CACHES)
def test_an_honest_cache_of_unusual_form_passes_and_serves_a_prefill(name):
    answer = in_a_cell(CACHE, HONEST_CACHES[name])
    for seed in (check.PUBLIC_SEED, 0):
        assert [v.message for v in verdicts(CACHE, answer, seed)] == ["", ""]
    fn = in_a_cell(PREFILL, HONEST_CACHES[name] + "\n" + RIGHT)
    assert [v.message for v in verdicts(PREFILL, fn)] == ["", ""]


def test_a_verdict_of_a_driven_exercise_needs_the_outcomes_alone():
    for exercise in (CACHE, PREFILL):
        group = exercise.groups[0]
        wrong = exercise.wrong_answers[0]
        calls = group.cases(11)
        outcomes = InProcess(exercise.compile(wrong.source), exercise.driver).run(calls)
        assert judge(exercise, group, group.cases(11), outcomes).mistake == wrong.name


# A class with holes

LIBRARY_CLASS = '''"""A module."""

import numpy as np


class Box:
    """Keeps things."""

    def __init__(self, size):
        """An empty one."""
        self.things = np.zeros(size)  # a comment

    def put(self, thing):
        """Keep it."""
        self.things = [*self.things, thing]

    def look(self):
        """All of them."""
        return self.things
'''
TYPED_CLASS = '''
# %% id="a" exercise="1.1" solution="Box"
class Box:
    """Keeps things."""

    def __init__(self, size):
        """An empty one."""
        ### BEGIN SOLUTION
        self.things = [None] * size
        ### END SOLUTION

    def look(self):
        """All of them."""
        given = 1
        ### BEGIN SOLUTION
        return self.things, given
        ### END SOLUTION
'''
CHECK = '\n# %% id="b" check="Box" points=1\ncheck.Box(Box)\n'
REMINDER = "Exercise 1.1: write Box, then run this cell again."


def class_answer(directory, cell, library=LIBRARY_CLASS):
    pytest.importorskip("jupytext")
    from autograder.include import answer_of
    from autograder.source import read_lessons

    root = make_root(directory, SETUP + cell + CHECK)
    (root / "course_lib" / "box.py").write_text(library, "utf-8")
    lesson = read_lessons(root)[0]
    return answer_of(lesson, lesson.solution("Box"), root)


INCLUDED = '\n# %% id="a" exercise="1.1" solution="Box"\n# include course_lib.box:Box\n'


@pytest.mark.parametrize("cell", [INCLUDED, TYPED_CLASS], ids=["included", "typed"])
def test_each_method_of_a_class_is_a_hole_and_raises_the_reminder(tmp_path, cell):
    answer, space = class_answer(tmp_path, cell), {"np": np}
    stub = answer.stub()
    exec(stub, space)
    for name, method in vars(space["Box"]).items():
        if callable(method):
            with pytest.raises(NotImplementedError) as error:
                method(*[None] * method.__code__.co_argcount)
            assert str(error.value) == REMINDER and method.__doc__, name
    assert "self.things" not in stub and "SOLUTION" not in stub
    exec(answer.solved(), space)
    assert len(space["Box"](2).look()) == 2
    marks = [line.strip() for line in answer.solved().split("\n") if "SOLUTION" in line]
    assert marks == ["### BEGIN SOLUTION", "### END SOLUTION"] * (len(marks) // 2)
    assert len(marks) // 2 == stub.count("raise NotImplementedError") == stub.count("def ")


def test_an_included_class_is_the_librarys_text_to_the_letter(tmp_path):
    answer = class_answer(tmp_path, INCLUDED)
    assert f"\n{answer.before}\n{answer.hole}\n" in LIBRARY_CLASS and answer.after == ""
    space = {"np": np}
    exec(answer.solved(), space)
    assert space["Box"](1).put(2) is None  # a method without a return never reaches the reminder


@pytest.mark.parametrize(
    ("cell", "library", "complaint"),
    [
        (TYPED_CLASS.replace("        ### END SOLUTION\n\n    def look", "\n    def look"), "", "needs one '### BEGIN"),
        (
            TYPED_CLASS.replace("    def look", "    def more(self):\n        return 1\n\n    def look"),
            "",
            "2 holes for 3",
        ),
        (TYPED_CLASS.replace('        """All of them."""\n', ""), "", "look has no docstring above the hole"),
        (TYPED_CLASS.replace('    """Keeps things."""\n', ""), "", "Box has no docstring above the hole"),
        (TYPED_CLASS.replace("given = 1", "return 1"), "", "an untouched Box would not raise its reminder"),
        (TYPED_CLASS.replace("    def look", "    @property\n    def look"), "", "an untouched Box would not raise"),
        (TYPED_CLASS.replace("class Box:", "@print\nclass Box:"), "", "an untouched Box would not raise"),
        (TYPED_CLASS + "        self.more = 1\n", "", "the hole is not the end of look"),
        (INCLUDED, LIBRARY_CLASS.replace('        """Keep it."""\n', ""), "Box.put has no docstring"),
        (INCLUDED, LIBRARY_CLASS.replace('    """Keeps things."""\n', ""), "has no docstring"),
        (INCLUDED, LIBRARY_CLASS + "\n    size = 3\n", "course_lib.box.Box does not end in a method"),
        (INCLUDED, 'class Box:\n    """Nothing."""\n', "course_lib.box.Box does not end in a method"),
        (
            INCLUDED,
            LIBRARY_CLASS.replace("[*self", "[*SIZES, *self"),
            "Box uses SIZES, which this cell does not import",
        ),
    ],
)
def test_a_class_that_cannot_become_an_exercise_is_refused_with_its_reason(tmp_path, cell, library, complaint):
    with pytest.raises(UserError) as refusal:
        class_answer(tmp_path, cell, library or LIBRARY_CLASS)
    assert complaint in str(refusal.value)


def test_a_later_exercise_may_stand_on_an_earlier_one_of_its_notebook(tmp_path):
    pytest.importorskip("jupytext")
    from autograder.include import answer_of
    from autograder.source import read_lessons

    user = '\n# %% id="c" exercise="1.2" solution="boxes"\n# include course_lib.boxes:boxes\n'
    check_user = '\n# %% id="d" check="boxes" points=1\ncheck.boxes(boxes)\n'
    for order, good in (((INCLUDED, CHECK, user, check_user), True), ((user, check_user, INCLUDED, CHECK), False)):
        root = make_root(tmp_path / str(good), SETUP + "".join(order))
        (root / "course_lib" / "box.py").write_text(LIBRARY_CLASS, "utf-8")
        text = 'def boxes(n):\n    """Many."""\n    return [Box(1) for _ in range(n)]\n'
        (root / "course_lib" / "boxes.py").write_text(text, "utf-8")
        lesson = read_lessons(root)[0]
        if good:
            assert answer_of(lesson, lesson.solution("boxes"), root).hole == "    return [Box(1) for _ in range(n)]"
        else:
            with pytest.raises(UserError, match="boxes uses Box, which this cell does not import"):
                answer_of(lesson, lesson.solution("boxes"), root)


# The explorer, and the numbers of the questions


@pytest.mark.parametrize("cut", ["one pass", "8 + 8 + 8", "5 + 11 + 2 + 6"])
@pytest.mark.parametrize("flip", [0, 1, 13, 23])
def test_the_explorers_rows_are_those_that_the_lessons_prefill_changes(flip, cut):
    pytest.importorskip("matplotlib")
    from course_lib.widgets.changed_rows import CUTS, TOKENS, changed_rows, explore_changed_rows

    ids, other = prompt(TOKENS), prompt(TOKENS)
    other[flip] = (other[flip] + 1) % 128
    before, after = (lesson.prefill(TINY, x, CUTS[cut])[0] for x in (ids, other))
    differs = [[(a != b).any(axis=(1, 2)) for a, b in zip(before.view(i), after.view(i))] for i in range(3)]
    assert np.array_equal(changed_rows(flip, CUTS[cut]), differs)
    explorer = explore_changed_rows()
    said = explorer.set(flip=flip, cut=cut)
    assert f"{int(np.sum(differs))} of {6 * TOKENS} rows change" in said
    faces = [cell.get_hatch() == "///" for line in explorer._artists["cells"] for cell in line]
    assert np.array_equal(np.reshape(faces, (3, 2, TOKENS)), differs)


def test_a_look_ahead_reaches_back_to_the_beginning_of_the_chunk():
    pytest.importorskip("matplotlib")
    from course_lib.widgets.changed_rows import CUTS, changed_rows, explore_changed_rows

    for cut, first in (("one pass", 0), ("8 + 8 + 8", 8), ("5 + 11 + 2 + 6", 5), ("one token at a time", 13)):
        rows = changed_rows(13, CUTS[cut], look_ahead=True)
        assert int(np.argmax(rows.any(axis=(0, 1)))) == first
        said = explore_changed_rows().set(flip=13, cut=cut, look_ahead=True)
        assert (f"back to token {first}" in said) == (first < 13)


def test_the_numbers_in_the_questions_are_computed():
    questions = json.loads((ROOT / "solutions" / "01_divisible.questions.json").read_text("utf-8"))
    right = {q["id"]: next(o["text"] for o in q["options"] if o.get("right")) for q in questions}
    assert right["nb01-q1"] == f"1 and {1_000 - 600}"
    assert right["nb01-q3"] == str(3 * 5)
    assert "the weights 4 times, and 48 earlier keys" in right["nb01-q6"] and sum(range(0, 32, 8)) == 48
