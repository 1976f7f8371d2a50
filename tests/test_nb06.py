"""Notebook 06: its functions against the larger ones, its numbers, and an explorer that shows the simulator's."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.check import evaluate
from autograder.exercises import EXERCISES, nb06_roofline
from autograder.kept import solution_text
from course_lib.cost import linear
from course_lib.cost.attention import AttentionCost
from course_lib.cost.devices import DEVICES, MODELS
from course_lib.cost.linear import PRESETS, LinearCost
from course_lib.cost.one_prompt import Setting, run
from course_lib.cost.roofline import Roofline
from course_lib.cost.work import StepWork
from course_lib.lessons import nb06_tradeoff as lesson
from course_lib.lessons.nb06_tradeoff import Hardware
from course_lib.widgets.simulator import ALONE, ATTENTION, BEFORE, LINEAR, MIXED, MOST, read_outs, view

M = PRESETS["reference"]
H100 = Hardware.of(DEVICES["h100"], MODELS["8b"])
costs = st.builds(LinearCost, st.integers(1, 10_000), st.integers(1, 100), st.integers(0, 1_000))


def message(name, fn):
    exercise = EXERCISES[name]
    return " ".join(evaluate(exercise, group, fn).message for group in exercise.groups)


# The library's functions


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=300))
def test_itl_is_the_nearest_rank_that_the_simulator_uses(gaps):
    assert lesson.itl(gaps) == (linear.percentile(gaps, 50), linear.percentile(gaps, 99), max(gaps))


@given(costs, st.lists(st.integers(1, 4_000), max_size=4), st.integers(1, 3_000), st.integers(1, 60))
def test_the_sweep_is_the_librarys_with_the_steps_counted(m, chunks, prompt, users):
    rows = lesson.sweep(chunks, prompt, users, m)
    theirs = linear.sweep(m, prompt, users, chunks)
    keys = ("chunk", "ttft_us", "worst_itl_us", "prefill_tok_per_s")
    trailing = m.step_us(0, users)
    assert [(row[0], *row[2:]) for row in rows] == [tuple(point[key] for key in keys) for point in theirs]
    assert all(row[3] >= trailing and row[1] == -(-prompt // row[0]) for row in rows)


@given(costs, st.integers(1, 200_000), st.integers(1, 60))
def test_the_picked_chunk_keeps_the_target_and_one_more_token_does_not(m, target, users):
    chunk = lesson.pick_chunk(target, users, m)
    assert chunk == linear.knee_chunk(m, target, users)
    assert chunk == 0 or m.step_us(chunk, users) <= target
    assert m.step_us(chunk + 1, users) > target


def test_the_reference_numbers():
    assert lesson.pick_chunk(50_000, 24, M) == 2_489
    rows = lesson.sweep([1_024, 2_048, 2_560, 8_192], 8_192, 24, M)
    assert [row[:4] for row in rows] == [
        (1_024, 8, 188_992, 23_624), (2_048, 4, 168_224, 42_056), (2_560, 4, 168_224, 51_272),
        (8_192, 1, 152_648, 152_648),
    ]  # fmt: skip
    assert lesson.itl([5_192] * 99 + [155_248]) == (5_192, 5_192, 155_248)


@given(st.integers(0, 4_000), st.integers(0, 64), st.integers(1, 4_096), st.sampled_from(["a100", "h100", "l4"]))
def test_the_short_roofline_is_the_long_one_without_what_the_notebook_leaves_out(prefill, decodes, context, name):
    """Left out: the fixed part, the prompt's attention, and the arithmetic of lm_head, which few tokens need."""
    decodes += prefill + decodes == 0
    whole = Roofline(device=DEVICES[name], model=MODELS["8b"])
    parts = whole.parts(StepWork(prefill, decodes, 0, 0, decodes * context))
    ours = lesson.roofline(prefill, decodes, context, Hardware.of(DEVICES[name], MODELS["8b"]))
    head = whole._compute_us(2 * MODELS["8b"].head_weights * (decodes + 1), whole.matmul_percent)
    assert -3 <= parts.linear + parts.decode_kv_read - ours <= head + 3


def test_the_hardware_that_travels_with_the_check_is_the_one_of_the_notebook():
    assert nb06_roofline.H100_8B == list(astuple(H100))


def test_below_the_ridge_a_smaller_chunk_is_no_faster():
    assert lesson.roofline(1, 0, 0, H100) == lesson.roofline(277, 0, 0, H100) < lesson.roofline(279, 0, 0, H100)


# The exercises


def test_percentiles_by_numpys_nearest_rank_pass_and_by_its_default_do_not():
    nearest = lambda gaps: (*np.percentile(gaps, [50, 99], method="inverted_cdf"), max(gaps))  # noqa: E731
    assert message("itl", nearest) == ""
    said = message("itl", lambda gaps: (*np.percentile(gaps, [50, 99]), max(gaps)))
    assert "np.percentile" in said and "should be" in said


def test_a_sweep_may_use_the_costs_step_us_and_not_the_librarys_timeline():
    def with_timeline(chunks, prompt, users, m):
        lines = [(chunk, linear.chunked(m, prompt, users, chunk)) for chunk in chunks]
        return [(c, len(a.step_us), a.ttft_us, a.worst_stall_us, prompt * 1_000_000 // a.ttft_us) for c, a in lines]

    assert "course_lib.cost.linear.chunked" in message("sweep", with_timeline)
    assert message("sweep", lambda *args: [list(row) for row in _by_hand(*args)]) == ""


def _by_hand(chunks, prompt, users, m):
    for chunk in chunks:
        steps = [m.step_us(min(chunk, prompt - at), users) for at in range(0, prompt, chunk)]
        yield chunk, len(steps), sum(steps), max(steps), prompt * 1_000_000 // sum(steps)


def test_a_chunk_that_breaks_the_target_is_told_by_how_long_its_step_is():
    said = message("pick_chunk", lambda target, users, m: 3_000)
    assert (
        "3,000, it should be 2,489" in said and "takes 59,192 us, which is longer than the target of 50,000 us" in said
    )


@pytest.mark.parametrize("rounded", [round, int, float, lambda us: -(-us // 1)])
def test_a_roofline_may_be_rounded_to_whole_microseconds(rounded):
    def roofline(prefill, decodes, context, hw):
        read = rounded(hw.weight_bytes / hw.bytes_per_us)
        multiply = rounded(hw.flops_per_token * (prefill + decodes) / hw.flops_per_us)
        return max(read, multiply) + rounded(hw.kv_bytes_per_token * decodes * context / hw.bytes_per_us)

    assert message("roofline", roofline) == ""


# Wrong answers that once passed, and others of their kinds

WRONG = {  # what must stay true -> (exercise, answer)
    "waits in whole microseconds stay whole": ("itl", "lambda gaps: tuple(map(float, itl(gaps)))"),
    "every one of the three is whole": ("itl", "lambda gaps: (*itl(gaps)[:2], float(max(gaps)))"),
    "the gaps keep their order": ("itl", "lambda gaps: (gaps.sort(), itl(gaps))[1]"),
    "the gaps are all kept": ("itl", "lambda gaps: (itl(gaps), gaps.pop())[0]"),
    "P99 of 99 gaps is the longest": (
        "itl",
        "lambda gaps: (itl(gaps)[0], sorted(gaps)[-2] if len(gaps) == 99 else itl(gaps)[1], max(gaps))",
    ),
    "P50 of an even number is the lower": ("itl", "lambda gaps: (sorted(gaps)[len(gaps) // 2], *itl(gaps)[1:])"),
    "gaps are sorted as numbers": ("itl", "lambda gaps: (*itl(gaps)[:2], max(gaps, key=str))"),
    "earlier gaps are forgotten": ("itl", "lambda gaps, seen=[]: (seen.extend(gaps), itl(seen))[1]"),
    "rows of floats are none": ("sweep", "lambda *a: np.array(list(_by_hand(*a)), dtype=float)"),
    "the chunk sizes keep their order": ("sweep", "lambda c, *a: (list(_by_hand(c, *a)), c.sort())[0]"),
    "equal chunk sizes have a row each": ("sweep", "lambda c, *a: list(_by_hand(dict.fromkeys(c), *a))"),
    "a chunk longer than the prompt keeps its name": (
        "sweep",
        "lambda c, p, *a: [(min(row[0], p), *row[1:]) for row in _by_hand(c, p, *a)]",
    ),
    "users who change change the rows": (
        "sweep",
        "lambda c, p, u, m, seen={}: seen.setdefault((*c, p, m), list(_by_hand(c, p, u, m)))",
    ),
    "rows last": ("sweep", "lambda *a, rows=[]: (rows.clear(), rows.extend(_by_hand(*a)), rows)[2]"),
    "a target below the decodes leaves no chunk": (
        "pick_chunk",
        "lambda t, u, m: int(left(t, u, m) / m.prefill_us_per_token)",
    ),
    "time for less than a token is time for none": (
        "pick_chunk",
        "lambda t, u, m: max(left(t, u, m) // m.prefill_us_per_token, int(left(t, u, m) >= 0))",
    ),
    "a chunk may be longer than the prompts of the course": (
        "pick_chunk",
        "lambda t, u, m: min(max(left(t, u, m) // m.prefill_us_per_token, 0), 8_192)",
    ),
    "the cost of a decode comes from m": (
        "pick_chunk",
        "lambda t, u, m: max((t - m.fixed_us - 108 * u) // m.prefill_us_per_token, 0)",
    ),
    "a decode reads its context and not one token more": (
        "roofline",
        "lambda p, d, c, hw: lesson.roofline(p, d, c, hw) + hw.kv_bytes_per_token * d / hw.bytes_per_us",
    ),
    "two GPUs are two": ("roofline", "lambda *a, seen={}: seen.setdefault(a[:3], lesson.roofline(*a))"),
    "contexts that change change the step": (
        "roofline",
        "lambda p, d, c, hw, seen={}: seen.setdefault((p, d, hw), lesson.roofline(p, d, c, hw))",
    ),
    "one decode reads its context": (
        "roofline",
        "lambda p, d, c, hw: lesson.roofline(p, d, c if d > 1 else 0, hw)",
    ),
    "a complex number is no time": ("roofline", "lambda *a: complex(lesson.roofline(*a))"),
    "the GPU keeps its numbers": (
        "roofline",
        "lambda *a: (lesson.roofline(*a), object.__setattr__(a[3], 'weight_bytes', 1))[0]",
    ),
}


def itl(gaps):
    return *np.percentile(gaps, [50, 99], method="inverted_cdf"), max(gaps)


def left(target, users, m):
    return target - m.fixed_us - m.decode_us * users


@pytest.mark.parametrize("fact", WRONG)
def test_an_answer_against_the_fact_fails_at_every_seed(fact, monkeypatch):
    monkeypatch.setattr("autograder.check.used", lambda *_: "")  # those above may call the solution for brevity
    name, source = WRONG[fact]
    exercise = EXERCISES[name]
    for seed in (2, 0, 11):
        fn = eval(source, globals())
        assert not evaluate(exercise, exercise.groups[0], fn, seed).passed


@pytest.mark.parametrize(
    "name, patch",
    [
        ("sweep", "step_us = lambda *_: 1"),
        ("sweep", "fixed_us = property(lambda m: 0)"),
        ("pick_chunk", "decode_us = property(lambda m: 0)"),
    ],
)
def test_a_cost_that_an_answer_changes_for_all_is_not_the_judges(name, patch, monkeypatch):
    attribute, _, value = patch.partition(" = ")
    monkeypatch.setattr(LinearCost, attribute, getattr(LinearCost, attribute))  # restored afterwards
    right = EXERCISES[name].compile(solution_text(EXERCISES[name].solution))

    def patches(*args):
        setattr(LinearCost, attribute, eval(value))
        return right(*args)

    assert "it should be" in message(name, patches)


def test_numbers_that_are_right_and_not_whole_are_told_so():
    said = message("itl", lambda gaps: tuple(map(float, itl(gaps))))
    assert "has numbers of type float64; wanted whole microseconds" in said and "these are floats" in said


@pytest.mark.parametrize("seed", range(8))
def test_no_target_comes_without_users_since_the_costs_step_must_have_work(seed):
    """An answer that asks m.step_us(0, users) first is right; with users=0 that raises."""
    (group,) = EXERCISES["pick_chunk"].groups

    def pick_chunk(target_us, users, m):
        return max((target_us - m.step_us(0, users)) // m.prefill_us_per_token, 0)

    assert evaluate(EXERCISES["pick_chunk"], group, pick_chunk, seed).passed


# The explorer


settings_of_the_explorer = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, 3_000),
        "users": st.integers(0, 5),
        "chunk": st.integers(1, 4_000),
        "hit": st.integers(0, 3_500),
        "how": st.sampled_from(["chunked", "mixed", "exclusive"]),
        "attention": st.booleans(),
    }
)


@settings(max_examples=40, deadline=None)
@given(settings_of_the_explorer)
def test_the_formula_of_the_explorer_is_the_schedulers_timeline(given):
    prompt, users, how, attention = (given[key] for key in ("prompt", "users", "how", "attention"))
    chunk = max(given["chunk"], prompt // 40)  # the scheduler takes its time over many steps
    hit = min(given["hit"], prompt - 1)
    shown = view(
        prompt, users, how == "chunked", chunk, ALONE if how == "exclusive" else MIXED, given["hit"], attention
    )
    setting = Setting(prompt=prompt, users=users, chunk=chunk, mode=how, hit=hit, context=16)
    timeline, steps = run(setting, ATTENTION if attention else LINEAR)
    assert shown.line == timeline and shown.tail == setting.tail
    drawn = shown.steps[BEFORE if users else 0 :]
    assert [sum(parts) for parts in drawn] == [record.duration_us for _, record in steps]
    assert all(min(parts) >= 0 for parts in shown.steps)


def test_the_explorers_costs_are_the_presets():
    from course_lib.cost.presets import preset_named

    assert (LINEAR, ATTENTION) == (preset_named("reference"), preset_named("reference-attention"))
    assert isinstance(ATTENTION, AttentionCost)


def test_the_explorer_tells_what_each_setting_shows():
    pytest.importorskip("matplotlib")
    from course_lib.widgets.simulator import explore_simulator

    e = explore_simulator()
    title = lambda: e._artists["top"].get_title()  # noqa: E731
    assert title() == read_outs(view(8_192, 24, True, 1_024, MIXED), 50)
    assert all(part in title() for part in ("23.6 ms", "189.0 ms", "0 of 8", "1,451 tok/s"))
    assert "8 chunks" in e.sentence and "within the target" in e.sentence and "36.3 ms of TTFT" in e.sentence
    assert "this is the mixed baseline" in e.set(chunk=8_192) and "152.6 ms" in title()
    whole = title()
    assert "the mixed baseline" in e.set(chunking=False) and title() == whole
    assert "alone" in e.set(unchunked=ALONE) and "155.2 ms" in title()
    assert "chunks of at most 2,489 would keep it" in e.set(chunking=True, chunk=4_096)
    assert "the fixed part of the steps is 34%" in e.set(chunk=128)
    assert "7,168 of 8,192 tokens are cached, which leaves 1,024: one chunk" in e.set(hit=7_168, chunk=1_024)
    assert "which leaves 1:" in e.set(hit=MOST) and "nothing to cut" in e.sentence
    assert "2.15 times as long" in e.set(hit=0, prompt=32_768, attention=True) and "45.0 ms" in title()
    assert "no chunk can keep it" in e.set(attention=False, users=64, target_ms=5)
    assert e.set(users=0).startswith("Nobody is streaming")
    e.set(prompt=MOST, chunk=128, users=64)
    assert e.png().startswith(b"\x89PNG")
    x, y = e._artists["tokens"].get_data()
    assert len(x) == len(y) == 64 * (MOST // 128 + BEFORE + linear.TRAILING_STEPS)


def test_every_sentence_is_one_that_explains_and_says_that_it_is_modelled():
    pytest.importorskip("matplotlib")
    from course_lib.widgets.simulator import _sentence

    for users in (0, 1, 24):
        for chunking, chunk, unchunked in (
            (True, 512, MIXED),
            (True, 9_000, MIXED),
            (False, 1, MIXED),
            (False, 1, ALONE),
        ):
            for hit in (0, 7_000):
                shown = view(8_192, users, chunking, chunk, unchunked, hit)
                said = _sentence(shown, 8_192, chunking, 50, False)
                assert said.endswith(". Modelled.") and (said[0].isupper() or said[0].isdigit())
