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
from autograder.compare import judge
from autograder.exercise import Raised, Returned
from autograder.exercises import EXERCISES
from autograder.exercises.nb01_prefill import _Noting
from autograder.packing import pack, unpack
from autograder.plain import Other
from course_lib.cli import UserError
from course_lib.lessons import nb01_divisible as lesson
from course_lib.lessons.nb01_divisible import KVCache, run_chunk
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


# Several arrays in one


def test_what_is_packed_comes_back_with_its_shape_and_dtype():
    values = [np.float32([[1.5, np.inf]]), [3, 2, 1], np.zeros((0, 2, 4), np.float32), True, np.float64(1 / 3), []]
    back = unpack(pack(values, "abcdef"))
    for value, got in zip(values, back, strict=True):
        assert got.dtype == np.asarray(value).dtype and np.array_equal(got, value) and got.shape == np.shape(value)


@pytest.mark.parametrize("value", [None, "text", [np.zeros(2), np.zeros(3)], 1j, {}])
def test_what_is_no_array_of_numbers_is_refused_by_its_name(value):
    with pytest.raises(TypeError, match="the logits is (None|of type)"):
        pack([[1], value], ["sizes", "the logits"])


# Exercises with a driver


def verdicts(exercise, fn, seed=check.PUBLIC_SEED):
    return [evaluate(exercise, group, fn, seed) for group in exercise.groups]


def test_a_driver_runs_with_copies_and_what_it_raises_is_an_outcome():
    calls = CACHE.group("reuse").cases(1)
    before = [arg.copy() for arg in calls[0].args[-2:]]

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
        ("None", "view(0) gives NoneType, wanted a pair"),
        ("self.k[layer]", "view(0) gives ndarray, wanted a pair"),
        ("self.k[layer], None", "what view(0) gives as its values is None"),
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
        ("cache, None", "the second thing, the logits, is None"),
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
    noting = _Noting(TINY.embedding)
    assert np.array_equal(noting[np.array([3, 4])], TINY.embedding[[3, 4]]) and noting.sizes == [2]
    kv, logits = verdicts(PREFILL, PREFILL.compile(PREFILL.wrong_answer("one_pass").source))
    assert logits.passed and "the cache is right, but the chunks that ran have" in kv.what


def test_two_different_errors_of_one_type_are_not_taken_for_one_mistake():
    raised = Raised("TypeError", "a")
    assert CACHE.same(raised, Raised("TypeError", "a", "line 4"))
    assert not CACHE.same(raised, Raised("TypeError", "b")) and not CACHE.same(raised, Returned(np.zeros(2)))
    assert CACHE.same(Returned(None), Returned(None)) and not CACHE.same(Returned(None), Returned(Other("x", "y")))


def test_the_cases_cover_single_tokens_one_pass_and_twenty_partitions():
    calls = PREFILL.group("kv").cases(5)
    length = len(calls[0].args[0])
    assert [length] in [c.args[1] for c in calls] and [1] * length in [c.args[1] for c in calls]
    assert len(calls) == 22 and all(sum(c.args[1]) == length <= 60 for c in calls)
    assert all(len(set(c.args[1])) > 1 for c in calls[:20])


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
