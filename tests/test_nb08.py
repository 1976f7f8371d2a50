"""Notebook 08: its functions say what the engine does, and its wrong engines are wrong where the advice says."""

import json
import re
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.build import ROOT
from autograder.check import evaluate
from autograder.exercise import Callback, Returned
from autograder.exercises import EXERCISES
from autograder.exercises.nb08_composition import WEIGHTS
from autograder.exercises.nb08_engines import EngineStopped, make_reference, make_serve
from autograder.exercises.nb08_faults import FAULTS, RIGHT, key_of, usage
from autograder.exercises.nb08_parts import MAX_TOKENS
from autograder.judge import judge
from autograder.kit import draws
from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex
from course_lib.commands import walkthrough
from course_lib.cost.linear import PRESETS, LinearCost, chunked, exclusive_baseline
from course_lib.cost.work import pairs
from course_lib.lessons.nb08_both import admit, check_composition, next_chunk, two_by_two
from course_lib.schedule.plan import plan_step
from course_lib.schedule.request import Request

COMPOSITION = EXERCISES["check_composition"]
REFERENCE = make_reference(Callback("reference", (0,)))
A = [(7 * i * i + 3 * i) % 128 for i in range(24)]
B = A[:18] + [5, 4, 3, 2, 1]


def serve_of(name, weights=0):
    return make_serve(Callback("serve", (weights, key_of(name, draws(0)))))


# The functions of the lesson


@given(prompt=st.integers(1, 60), shared=st.integers(0, 60), block_size=st.integers(1, 20))
def test_admit_is_what_the_cache_attaches(prompt, shared, block_size):
    shared = min(shared, prompt)
    cache = CacheManager(200, block_size, PrefixIndex())
    before = Request(0, [*range(shared), *range(1_000, 1_060)])
    cache.allocate(before, shared)
    cache.publish(before, 0, shared)
    found = cache.match(Request(1, list(range(prompt))))
    assert admit(prompt, shared, block_size) == len(found) * block_size


@given(tokens=st.integers(1, 50), computed=st.integers(0, 49), left=st.integers(-3, 60), max_chunk=st.integers(0, 20))
def test_next_chunk_is_what_the_planner_gives_to_a_request_alone(tokens, computed, left, max_chunk):
    request = Request(0, list(range(tokens)), num_computed=min(computed, tokens - 1))
    plan = plan_step([request], max_num_batched_tokens=left, max_chunk=max_chunk, max_num_seqs=1)
    start = request.num_computed
    assert next_chunk(request, left, max_chunk) == (plan[0].start, plan[0].stop) if plan else (start, start)


@given(
    tail=st.integers(1, 9_000), hit=st.integers(0, 9_000), users=st.integers(1, 60), chunk=st.integers(50, 9_000),
    fixed=st.integers(1, 9_000), token=st.integers(0, 60), decode=st.integers(0, 900),
)  # fmt: skip
def test_the_four_ways_are_the_cost_models_timelines(tail, hit, users, chunk, fixed, token, decode):
    m, prompt = LinearCost(fixed, token, decode), tail + hit
    lines = [f(m, prompt, users, *more) for f, more in (
        (exclusive_baseline, ()), (chunked, (chunk,)), (exclusive_baseline, (hit,)), (chunked, (chunk, hit)),
    )]  # fmt: skip
    assert two_by_two(prompt, hit, users, chunk, m) == [(line.ttft_us, line.worst_stall_us) for line in lines]


# The engines of the exercise


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_engine_gives_a_cold_runs_bits_whatever_is_asked(name):
    rng = np.random.default_rng(5)
    for _ in range(6):
        cut = int(rng.integers(3, 20))
        prompts = [A, A[:cut] + rng.integers(0, 128, 5).tolist()]
        asked = {"answer": int(rng.integers(1, 4)), "together": bool(rng.integers(2)), "preempt": int(rng.integers(5))}
        results = serve_of(name)(prompts, int(rng.integers(1, 12)), **asked)
        for prompt, (tokens, hit, *left) in zip(prompts, results):
            assert tokens[: len(prompt)] == prompt and len(tokens) == len(prompt) + asked["answer"] - 1
            assert all(np.array_equal(*pair) for pair in zip(left, REFERENCE(tokens)))
            assert hit % 4 == 0 and hit < len(tokens)


def test_right_engines_differ_in_the_hits_of_prompts_that_come_together_and_of_preempted_ones():
    together = {name: [r[1] for r in serve_of(name)([A, B], 6, together=True)] for name in RIGHT}
    again = {name: serve_of(name)([A], 6, answer=3, preempt=5)[0][1] for name in RIGHT}
    assert together == {"plain": [0, 0], "busy": [0, 0], "tree": [0, 0], "early": [0, 4]}
    assert again == {"plain": 24, "busy": 0, "tree": 24, "early": 24}
    for name in RIGHT:
        assert [r[1] for r in serve_of(name)([A, B, A], 7)] == [0, 16, 20]


ASKED = {  # a call of serve for each kind of question
    "chunks": (([A], 9), {}),
    "hit": (([A, B], 9), {}),
    "uneven": (([A, B], 9), {}),
    "short": (([A, B], 9), {}),
    "part": (([A, B], 9), {}),
    "long": (([A, B], 9), {}),
    "whole": (([A, A], 9), {}),
    "together": (([A, B], 6), {"together": True}),
    "preempt": (([A], 6), {"preempt": 2}),
    "preempt_part": (([A], 6), {"preempt": 1}),
    "preempt_answer": (([A], 6), {"answer": 3, "preempt": 5}),
}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in FAULTS.items() for name in names])
def test_a_mistake_shows_in_the_advised_question_and_not_in_one_prompt_alone(group, name):
    def refuses(args, options):
        try:
            results = serve_of(name)(*args, **options)
        except EngineStopped:
            return True
        right = serve_of("plain")(*args, **options)
        same = all(np.array_equal(x, y) for r in results for x, y in zip(r[2:], REFERENCE(r[0])))
        return not same or (group == "saved" and [r[1] for r in results] != [r[1] for r in right])

    needs = FAULTS[group][name].needs
    assert refuses(*ASKED[needs])
    assert not refuses(([A], 40), {})  # alone and in one chunk nothing can show
    assert needs == "chunks" or not refuses(*ASKED["chunks"])


@pytest.mark.parametrize("name", [name for names in FAULTS.values() for name in names])
def test_what_a_wrong_engine_returns_has_the_right_shapes_and_dtypes(name):
    for args, options in ASKED.values():
        try:
            results = serve_of(name)(*args, **options)
        except EngineStopped:
            continue
        for tokens, hit, *arrays in results:
            assert type(hit) is int and all(type(token) is int for token in tokens)
            for got, want in zip(arrays, REFERENCE(tokens), strict=True):
                assert got.shape == want.shape and got.dtype == want.dtype and np.isfinite(got).all()


# What each of these engines has wrong, by (array, layers, tokens) in the third result of serve([A, B, A], 7)
ALONE = {
    "logits_last_bit": {"logits"},
    "keys_last_bit": {"k1"},
    "values_last_bit": {"v0"},
    "swapped_keys": {"k0"},
    "swapped_values": {"v1"},
    "freed_hit": {"k0", "k1", "v0", "v1"},
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_some_engines_are_wrong_in_one_place_alone(name, weights):
    tokens, hit, k, v, logits = serve_of(name, weights)([A, B, A], 7)[2]
    right_k, right_v, right = make_reference(Callback("reference", (weights,)))(tokens)
    differ = {f"{x}{layer}" for x, a, b in (("k", k, right_k), ("v", v, right_v)) for layer in (0, 1)
              if not np.array_equal(a[layer], b[layer])}  # fmt: skip
    assert differ | ({"logits"} if (logits != right).any() else set()) == ALONE[name]
    if name.endswith("last_bit"):
        assert all(np.allclose(a, b) for a, b in ((k, right_k), (v, right_v), (logits, right)))
        assert sum((a != b).sum() for a, b in ((k, right_k), (v, right_v), (logits, right))) == 1
    if name == "freed_hit":
        assert np.array_equal(k[:, 4:], right_k[:, 4:]) and np.array_equal(v[:, 4:], right_v[:, 4:])


def test_kept_tests_ask_what_their_words_say():
    def asked(name):
        for wrong in COMPOSITION.wrong_answers:
            if wrong.name == name:
                fn, calls = COMPOSITION.compile(wrong.source), []
                break
        serve = serve_of("plain")

        def logged(prompts, chunk, answer=1, together=False, preempt=0):
            calls.append(("serve", prompts, chunk, answer, together, preempt))
            return serve(prompts, chunk, answer, together, preempt)

        fn(logged, REFERENCE)
        return usage(Returned(None, asked=tuple(calls)))

    assert not asked("one_prompt") & {"hit", "together", "preempt_part"} and "chunks" in asked("one_prompt")
    assert "chunks" not in asked("whole_prompts") and "whole" in asked("whole_prompts")
    assert not asked("never_preempts") & {"preempt_part", "preempt_answer"}
    assert "together" not in asked("one_after_the_other") and "part" not in asked("even_lengths")
    assert "whole" not in asked("never_twice")
    assert (
        "preempt" in asked("preempts_the_prompt")
        and "preempt_part" in asked("preempts_the_prompt")
        and "preempt_answer" not in asked("preempts_the_prompt")
    )


@pytest.mark.parametrize("seed", [WEIGHTS[0], *(pytest.param(s, marks=pytest.mark.slow) for s in WEIGHTS[1:])])
def test_the_weights_of_every_seed_show_every_mistake_to_the_shipped_test(seed):
    for names in FAULTS.values():
        for name in names:
            with pytest.raises(AssertionError):
                check_composition(serve_of(name, seed), make_reference(Callback("reference", (seed,))))


def test_a_test_that_breaks_has_not_refused_and_hears_what_serve_takes():
    for body, says in (
        ("serve('a prompt', 4)", "takes a list of prompts"),
        ("serve([[1, 2]], 0)", "chunk=0, answer=1, preempt=0: wanted at least 1"),
        ("serve([[1]], 4, answer=9)", "wanted at least 1, 1 to 8"),
        (f"serve([[1] * {MAX_TOKENS + 1}], 4)", f"of {MAX_TOKENS} tokens together at most"),
        ("serve([[128]], 4)", "numbers from 0 to 127"),
        ("serve([[1], []], 4)", "none empty"),
        ("serve([[1, 2]], 4)[0].hit", "AttributeError"),
    ):
        fn = COMPOSITION.compile(f"def check_composition(serve, reference):\n    {body}\n")
        message = evaluate(COMPOSITION, COMPOSITION.group("order"), fn).message
        assert "your test itself broke" in message and says in message, message


def test_an_engine_that_stops_is_refused_by_asking_and_a_test_that_catches_it_lets_it_through():
    ask = "def check_composition(serve, reference):\n    serve([list(range(8))] * 2, 8)\n"
    with pytest.raises(EngineStopped, match="no step computes any of its tokens"):
        COMPOSITION.compile(ask)(serve_of("full_hit"), REFERENCE)
    caught = ask.replace("    serve", "    try: serve") + "    except AssertionError: pass\n"
    message = evaluate(COMPOSITION, COMPOSITION.group("behind_a_hit"), COMPOSITION.compile(caught)).message
    assert "full_hit" in message


def test_results_are_copies():
    first = serve_of("plain")([A], 9)
    first[0][2][...] = 0
    assert np.array_equal(serve_of("plain")([A], 9)[0][2], REFERENCE(A)[0])


# Tests that learners wrote

TEST = """\
def check_composition(serve, reference):
    a = [(7 * i * i + 3 * i) % 128 for i in range(24)]
    b = a[:18] + [5, 4, 3, 2, 1]
    one, pair, again = serve([a, b, a], 7), serve([a, b], 6, together=True), serve([a], 6, answer=3, preempt=5)
    assert [r[1] for r in one] == [0, 16, 20]
    for tokens, hit, k, v, logits in one + pair + again:
        rk, rv, rl = reference(tokens)
        three = ((k, rk), (v, rv), (logits, rl))
        LINE
"""
WRONG_COMPARISONS = {
    "logits only": "assert np.array_equal(logits, rl)",
    "K and V only": "assert np.array_equal(k, rk) and np.array_equal(v, rv)",
    "V of the last layer": "assert np.array_equal(v[-1], rv[-1])",
    "no K": "assert np.array_equal(v, rv) and np.array_equal(logits, rl)",
    "no V": "assert np.array_equal(k, rk) and np.array_equal(logits, rl)",
    "last layer": "assert all(np.array_equal(x[-1], y[-1]) for x, y in three[:2]) and np.array_equal(logits, rl)",
    "layer 0": "assert all(np.array_equal(x[0], y[0]) for x, y in three[:2]) and np.array_equal(logits, rl)",
    "K of the last layer": "assert all(map(np.array_equal, (k[-1], v, logits), (rk[-1], rv, rl)))",
    "V of the last layer, all K": "assert all(map(np.array_equal, (k, v[-1], logits), (rk, rv[-1], rl)))",
    "last token": "assert all(np.array_equal(x[:, -1], y[:, -1]) for x, y in three[:2]) and np.array_equal(logits, rl)",
    "attached tokens": "assert all((x[:, :hit] == y[:, :hit]).all() for x, y in three[:2]) and (logits == rl).all()",
    "behind the hit": "assert all(np.array_equal(x[:, hit:], y[:, hit:]) for x, y in three[:2])",
    "sums": "assert all(x.sum() == y.sum() for x, y in three)",
    "exact sums": "assert all(x.sum(dtype=float) == y.sum(dtype=float) for x, y in three)",
    "sorted": "assert all(np.array_equal(np.sort(x, axis=None), np.sort(y, axis=None)) for x, y in three)",
    "any": "assert all((x == y).any() for x, y in three)",
    "not all differ": "assert not any((x != y).all() for x, y in three)",
    "one of three": "assert any(np.array_equal(x, y) for x, y in three)",
    "allclose": "assert all(np.allclose(x, y) for x, y in three)",
    "allclose logits": "assert np.array_equal(k, rk) and np.array_equal(v, rv) and np.allclose(logits, rl)",
    "allclose K": "assert np.allclose(k, rk) and np.array_equal(v, rv) and np.array_equal(logits, rl)",
    "allclose V": "assert np.array_equal(k, rk) and np.allclose(v, rv) and np.array_equal(logits, rl)",
    "within 1e-9": "assert all(np.abs(x - y).max() < 1e-9 for x, y in three)",
    "next token": "assert logits.argmax() == rl.argmax()",
    "shapes": "assert all(x.shape == y.shape for x, y in three)",
    "itself": "assert all(np.array_equal(x, x) for x, y in three)",
    "first result": "assert all(np.array_equal(x, y) for x, y in three); break",
    "a generator": "assert (np.array_equal(x, y) for x, y in three)",
    "a hit together": "assert all(np.array_equal(x, y) for x, y in three) and [r[1] for r in pair] == [0, 0]",
    "a hit after a preemption": "assert all(np.array_equal(x, y) for x, y in three) and again[0][1] == 24",
}
# tests that miss nothing of that group
IN_ORDER_RIGHT = {"behind the hit", "V of the last layer, all K", "exact sums", "sorted", "first result"}


@pytest.mark.parametrize("seed", [2, 0])
@pytest.mark.parametrize("name", WRONG_COMPARISONS)
def test_a_comparison_that_leaves_something_out_is_told_what(name, seed):
    fn = COMPOSITION.compile(TEST.replace("LINE", WRONG_COMPARISONS[name]))
    verdict = evaluate(COMPOSITION, COMPOSITION.group("behind_a_hit"), fn, seed)
    assert not verdict.passed
    assert name.startswith("a hit") or "what you compare does not show it: compare" in verdict.message
    assert "exactly this" not in verdict.message
    if name not in IN_ORDER_RIGHT:
        assert not evaluate(COMPOSITION, COMPOSITION.group("order"), fn, seed).passed


RIGHT_COMPARISONS = {
    "all": "assert (k == rk).all() and (v == rv).all() and (logits == rl).all()",
    "not any": "assert not any((x != y).any() for x, y in three)",
    "testing": "[np.testing.assert_array_equal(x, y) for x, y in three]",
    "bytes": "assert all(x.tobytes() == y.tobytes() for x, y in three)",
    "lists": "assert all(x.tolist() == y.tolist() for x, y in three)",
    "loops": "assert all(p == q for x, y in three for p, q in zip(x.ravel(), y.ravel()))",
    "largest difference": "assert max(np.abs(x - y).max() for x, y in three) == 0",
    "no tolerance": "assert all(np.allclose(x, y, rtol=0, atol=0) for x, y in three)",
    "as integers": "assert all((x.view('i4') == y.view('i4')).all() for x, y in three)",
    "more that is true": "assert all(map(np.array_equal, (k, v, logits), (rk, rv, rl))) and hit % 4 == 0 < len(tokens)",
    "changes what it was given": "assert all(np.array_equal(x, y) for x, y in three); k[:] = rl[:] = 0; tokens.clear()",
    "returns": "assert all(np.array_equal(x, y) for x, y in three)\n    return True",
}


@pytest.mark.parametrize("name", RIGHT_COMPARISONS)
def test_every_exact_comparison_is_right(name):
    fn = COMPOSITION.compile(TEST.replace("LINE", RIGHT_COMPARISONS[name]))
    assert [evaluate(COMPOSITION, group, fn).message for group in COMPOSITION.groups] == ["", "", ""]


def test_prompts_and_knobs_may_be_whatever_holds_whole_numbers():
    text = TEST.replace("LINE", RIGHT_COMPARISONS["all"])
    for old, new in (
        ("serve([a, b, a], 7)", "serve((p for p in (a, tuple(b), np.array(a))), np.int64(7))"),
        ("serve([a, b], 6, together=True)", "serve(prompts=iter([a, b]), chunk=6, together=1)"),
    ):
        assert old in text
        text = text.replace(old, new)
    assert [evaluate(COMPOSITION, g, COMPOSITION.compile(text)).message for g in COMPOSITION.groups] == ["", "", ""]


def test_nothing_that_a_test_is_given_names_the_engine():
    found = []

    def check_composition(serve, reference):
        left, seen = [serve, reference], set()
        while left:
            value = left.pop()
            if id(value) not in seen:
                seen.add(id(value))
                found.append(repr(value) + str(getattr(value, "__qualname__", "")) + str(getattr(value, "__doc__", "")))
                left += [c.cell_contents for c in getattr(value, "__closure__", None) or ()]
                left += [getattr(value, name, None) for name in ("__wrapped__", "__dict__", "__defaults__", "data")]

    for group in COMPOSITION.groups:
        evaluate(COMPOSITION, group, check_composition)
    names = [*RIGHT, *(name for names in FAULTS.values() for name in names)]
    assert found and not [name for name in names if re.search(rf"\b{name}\b", " ".join(found))]


def test_an_engines_key_is_another_for_each_seed():
    keys = [[call.args[0].data[1] for call in COMPOSITION.groups[0].cases(seed)] for seed in (1, 2)]
    assert not set(keys[0]) & set(keys[1]) and len(set(keys[0])) == len(keys[0])


@pytest.mark.parametrize("asked", [(("serve",),), (("serve", 1, 2),), (("serve", ((1, 2),), 0, 1, False, 0),),
                                   (("serve", ((1.5, "x"),), "7", None, (), -1),), (("other", 1),)])  # fmt: skip
def test_a_question_that_cannot_be_read_breaks_no_judge(asked):
    for group in COMPOSITION.groups:
        calls = group.cases(2)
        for value in (None, True, "yes", np.zeros(3), (1, "x")):
            verdict = judge(COMPOSITION, group, calls, [Returned(value, asked=asked) for _ in calls])
            assert not verdict.passed and "lets through" in verdict.message


# Answers that pass nothing of the other exercises

WRONG_ANSWERS = [
    ("admit", "M = {}\ndef admit(p, s, b):\n    return M.setdefault((p, b), min(s, p - 1) // b * b)"),
    ("admit", "M = {}\ndef admit(p, s, b):\n    return M.setdefault((p, s), min(s, p - 1) // b * b)"),
    ("admit", "def admit(p, s, b):\n    return min(s, p - 1) // b * b if b > 1 else s"),
    ("admit", "def admit(p, s, b):\n    return s // b * b if s // b * b < p - 1 else max(s // b * b - b, 0)"),
    ("admit", "def admit(p, s, b):\n    return max(0, min(s // b, p // b - 1)) * b"),
    ("admit", "def admit(p, s, b):\n    return min(s, p - 2) // b * b"),
    ("admit", "def admit(p, s, b):\n    return float(min(s, p - 1) // b * b)"),
    ("admit", "def admit(p, s, b):\n    return min(s, p - 1) // b * b or False"),
    ("admit", "def admit(p, s, b):\n    return min(s, p - 1) // b * b if s < 6_000 else (p - 1) // b * b"),
    ("next_chunk", "if left > 1:\n    stop = start + take\nelse:\n    stop = start\nreturn start, stop"),
    ("next_chunk", "return start, start + (1 if rest == 1 else take)"),
    ("next_chunk", "return start, start + (1 if request.decoding else take)"),
    ("next_chunk", "return start, start + (min(1, max(left, 0)) if start >= request.prompt_len else take)"),
    ("next_chunk", "return start, start + max(0, min(rest or 1, max_chunk or left, left))"),
    ("next_chunk", "return start, start + max(0, min(rest, max_chunk if max_chunk > 1 else left, left))"),
    ("next_chunk", "return start, start + max(left > 0, take)"),
    ("next_chunk", "return (start, start + take) if take else (0, 0)"),
    ("next_chunk", "request.token_ids.pop()\nreturn start, start + take"),
    ("next_chunk", "request.block_table.append(1)\nreturn start, start + take"),
    ("next_chunk", "request.last = start\nreturn start, start + take"),
    ("next_chunk", "return next_chunk.__dict__.setdefault((start, left, max_chunk), (start, start + take))"),
    ("two_by_two", "return [(LinearCost.__dict__ and 0, 0)] * 4"),
    ("two_by_two", "LinearCost.step_us = lambda self, prompt, decodes: 0\nreturn [(0, 0)] * 4"),
    ("two_by_two", "return two_by_two.__dict__.setdefault((prompt, hit), right)"),
    ("two_by_two", "object.__setattr__(m, 'fixed_us', 0)\nreturn right"),
    ("two_by_two", "return [(float(ttft), gap) for ttft, gap in right]"),
    ("two_by_two", "return right if chunk > 1 else right[:1] * 4"),
    ("two_by_two", "return right if hit < prompt - 1 else right[:1] * 4"),
    ("two_by_two", "return right if users > 1 else right[:1] * 4"),
]
HEADS = {
    "next_chunk": """\
def next_chunk(request, left, max_chunk):
    start, rest = request.num_computed, request.num_tokens - request.num_computed
    take = max(0, min(rest, max_chunk or left, left))
""",
    "two_by_two": """\
def two_by_two(prompt, hit, users, chunk, m):
    right = []
    for tail in (prompt, prompt - hit):
        alone = m.step_us(tail, 0)
        steps = [m.step_us(min(chunk, tail - done), users) for done in range(0, tail, chunk)]
        right += [(alone, alone + m.step_us(0, users)), (sum(steps), max(steps))]
""",
}


@pytest.mark.parametrize(("name", "code"), WRONG_ANSWERS)
def test_a_wrong_answer_passes_on_no_seed(name, code, monkeypatch):
    monkeypatch.setattr(LinearCost, "step_us", LinearCost.step_us)  # put back afterwards
    source = HEADS[name] + textwrap.indent(code, "    ") if name in HEADS else code
    for seed in (2, 0):
        assert not evaluate(EXERCISES[name], EXERCISES[name].groups[0], EXERCISES[name].compile(source), seed).passed


@pytest.mark.parametrize("name", HEADS)
def test_the_heads_of_these_wrong_answers_are_right(name):
    last = {"next_chunk": "    return start, start + take", "two_by_two": "    return np.array(right)"}[name]
    fn = EXERCISES[name].compile(HEADS[name] + last)
    assert evaluate(EXERCISES[name], EXERCISES[name].groups[0], fn).message == ""


# The explorer, and the numbers of the questions


def test_the_explorer_shows_the_four_ways():
    pytest.importorskip("matplotlib")
    from course_lib.widgets.both import explore_both

    explorer = explore_both()
    assert "Hit 4,992 tokens, tail 2,008 = 1,024 + 984" in explorer.sentence
    said = explorer.set(block_size=256, users=24)
    (ttft, gap), bars = two_by_two(7_000, 4_864, 24, 1_024, PRESETS["reference"])[3], explorer._artists["bars"]
    assert f"first token after {ttft / 1e3:.1f} ms, longest gap {gap / 1e3:.1f} ms" in said
    assert "caching only has the earliest first token" in said
    assert (bars[0][3].get_height(), bars[1][3].get_height()) == (ttft / 1e3, gap / 1e3)
    assert "both has the earliest first token" in explorer.set(shared=4_000)
    assert "No way keeps" in explorer.set(shared=0, chunk=4_096)
    assert "tail 8 = 8" in explorer.set(shared=7_000, block_size=8)


def test_the_numbers_in_the_questions_are_computed():
    questions = json.loads((ROOT / "solutions" / "08_both.questions.json").read_text("utf-8"))
    right = {q["id"]: next(o["text"] for o in q["options"] if o.get("right")) for q in questions}
    assert right["nb08-q1"] == f"{walkthrough.tell(walkthrough.OWN_CAP, 16).hit:,}"
    assert right["nb08-q2"] == "A quarter" and round(100 * pairs(0, 3_500) / pairs(0, 7_000)) == 25
    assert right["nb08-q3"] == str(3_000 - 3_000 // 1_024 * 1_024)
    cells = two_by_two(7_000, 5_000, 24, 1_024, PRESETS["reference"])
    assert [round(gap / 1e3) for _, gap in cells[2:]] == [44, 24] and cells[2][0] < cells[3][0]
    assert right["nb08-q5"] == f"{1_024 - 5:,} + {2_000 - 1_019}"
    assert right["nb08-q7"] == f"{4_992 + 1_000:,}"


def test_the_counts_in_the_prose_are_the_exercises():
    text = re.sub(r"\n# ?", " ", (ROOT / "solutions" / "08_both.py").read_text("utf-8"))
    behind, saved, order = (len(names) for names in FAULTS.values())
    assert f"a hit ({behind} wrong engines), what is saved ({saved}), and the order of events ({order})" in text
    assert behind + saved + order == 23 and "Twenty-three are wrong" in text
    assert len(RIGHT) == 4 and "Four engines are right" in text
