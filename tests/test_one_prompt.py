"""The reference setting through the real scheduler: the published read-outs to the microsecond, formulas as oracle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.cost import linear
from course_lib.cost.linear import PRESETS, LinearCost
from course_lib.cost.one_prompt import Setting, chunk_steps_us, knee, run, sweep_point
from course_lib.cost.work import StepCost, StepWork

REFERENCE = PRESETS["reference"]


class WithAttention(StepCost):
    def work_us(self, work: StepWork) -> int:
        parts = (15_000 * work.prefill_tokens, 740 * work.prefill_pairs // 1000, 108_000 * work.decodes)
        return 2_600 + (sum(parts) + 3 * work.decode_context + 5 * work.prefill_cached) // 1000


def test_the_simulator_reproduces_the_reference_setting_to_the_microsecond():
    timeline, _ = run(Setting(), REFERENCE)
    assert timeline.worst_stall_us == 23_624
    assert timeline.ttft_us == 188_992
    assert timeline.steps_over_target(50_000) == 0
    assert timeline.decode_tok_per_s == 1_451
    mixed, exclusive = (run(Setting(mode=mode), REFERENCE)[0] for mode in ("mixed", "exclusive"))
    assert (mixed.worst_stall_us, exclusive.worst_stall_us) == (152_648, 155_248)
    assert exclusive.ttft_us == 150_056
    long = [run(Setting(prompt=32_768, mode=mode), REFERENCE)[0] for mode in ("chunked", "mixed", "exclusive")]
    assert [round(line.worst_stall_us / 23_624, 2) for line in long] == [1.0, 25.19, 25.3]


settings_of_one_prompt = st.builds(
    lambda prompt, hit, **rest: Setting(prompt=prompt, hit=hit * (prompt - 1) // 100, **rest),
    prompt=st.integers(1, 700), hit=st.sampled_from([0, 0, 30, 64, 100]), users=st.integers(0, 5),
    chunk=st.integers(20, 800), context=st.integers(2, 70), mode=st.sampled_from(["chunked", "mixed", "exclusive"]),
)  # fmt: skip


@given(settings_of_one_prompt, st.integers(1, 99), st.integers(0, 99), st.integers(0, 99))
def test_the_scheduler_on_a_clock_gives_the_timeline_of_the_formula(setting, fixed, prefill, decode):
    cost = LinearCost(fixed, prefill, decode)
    formula = {
        "chunked": lambda: linear.chunked(cost, setting.prompt, setting.users, setting.chunk, setting.hit),
        "mixed": lambda: linear.mixed_baseline(cost, setting.prompt, setting.users, setting.hit),
        "exclusive": lambda: linear.exclusive_baseline(cost, setting.prompt, setting.users, setting.hit),
    }
    assert run(setting, cost)[0] == formula[setting.mode]()


@given(settings_of_one_prompt)
def test_chunks_and_contexts_are_where_the_formula_has_them(setting):
    if setting.mode == "chunked":
        timeline, steps = run(setting, WithAttention())
        assert list(timeline.step_us) == list(chunk_steps_us(setting, WithAttention()))
        mine = [c for _, record in steps for c in record.chunks if c[0] == setting.users + 1]
        assert [(start, stop) for _, start, stop in mine] == [
            (at, min(at + setting.chunk, setting.prompt)) for at in range(setting.hit, setting.prompt, setting.chunk)
        ]


def test_the_two_by_two_of_cache_and_chunks():
    cell = lambda hit, mode: run(Setting(prompt=7000, users=3, hit=hit, mode=mode), REFERENCE)[0].ttft_us  # noqa: E731
    assert [cell(0, "exclusive"), cell(0, "chunked"), cell(5000, "exclusive"), cell(5000, "chunked")] == [
        128_600, 146_468, 38_600, 41_848,
    ]  # fmt: skip


# --- the knee


def test_the_knee_of_the_reference_setting_is_2489():
    assert knee(Setting(), REFERENCE, 50_000) == 2_489
    assert knee(Setting(prompt=100), REFERENCE, 50_000) == 2_489, "a property of the step, not of this prompt"


@given(st.integers(1, 400), st.integers(0, 30), st.integers(1, 60), st.integers(1, 20), st.integers(0, 9))
def test_the_knee_of_a_linear_cost_is_the_closed_form(prompt, users, target, prefill, decode):
    cost = LinearCost(3, prefill, decode)
    assert knee(Setting(prompt=prompt, users=users), cost, target) == linear.knee_chunk(cost, target, users)


@given(st.integers(2, 120), st.integers(0, 4), st.integers(3_000, 5_000), st.sampled_from([0, 16, 64]))
@settings(max_examples=15)
def test_with_attention_the_knee_is_the_largest_chunk_that_meets_the_target(prompt, users, target, hit):
    setting = Setting(prompt=prompt + hit, users=users, hit=hit)
    worst = lambda chunk: max(  # noqa: E731
        run(Setting(prompt=prompt + hit, users=users, hit=hit, chunk=chunk), WithAttention())[0].step_us
    )
    found = knee(setting, WithAttention(), target)
    meets = [chunk for chunk in range(1, prompt + 1) if worst(chunk) <= target]
    assert min(found, prompt) == max(meets, default=0)


def test_a_knee_is_refused_where_prompt_tokens_cost_nothing():
    with pytest.raises(ValueError, match="no chunk is too large"):
        knee(Setting(), LinearCost(10, 0, 1), 50)


def test_a_sweep_point_is_that_of_the_formula():
    chunks = [128, 1000, 2560, 8192]
    points = [sweep_point(Setting(chunk=chunk), REFERENCE) for chunk in chunks]
    assert points == linear.sweep(REFERENCE, 8192, 24, chunks)
    assert sweep_point(Setting(users=0), REFERENCE)["p99_itl_us"] == 0


@pytest.mark.parametrize(
    "wrong", [{"hit": 8192}, {"hit": -1}, {"prompt": 0}, {"chunk": 0}, {"users": -1}, {"context": 1}, {"mode": "both"}]
)
def test_an_impossible_setting_is_refused(wrong):
    with pytest.raises(ValueError):
        Setting(**wrong)
