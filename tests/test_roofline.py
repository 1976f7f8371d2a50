"""The roofline: facts by formula about an 8B model, and what must hold whatever the step."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cost.devices import DEVICES, MODELS, ModelShape
from course_lib.cost.linear import PRESETS
from course_lib.cost.roofline import Roofline
from course_lib.cost.staircase import STAIRCASES
from course_lib.cost.work import StepCost, StepWork, pairs, work_of
from course_lib.model_config import ModelConfig

LLAMA, H100 = MODELS["8b"], DEVICES["h100"]
PLAIN = Roofline(device=H100, model=LLAMA)
STAIRS = Roofline(device=H100, model=LLAMA, staircase=STAIRCASES["h100"])
PEAK = Roofline(device=H100, model=LLAMA, fixed_us=0, matmul_percent=100, attention_percent=100, bandwidth_percent=100)

counts = st.integers(0, 100_000)
works = st.builds(StepWork, st.integers(0, 40_000), st.integers(0, 300), st.integers(0, 10**9), counts, counts).filter(
    lambda work: work.prefill_tokens + work.decodes > 0
)
costs = st.sampled_from([PLAIN, STAIRS, Roofline(device=DEVICES["l4"], model=LLAMA, fixed_us=0)])


def chunks(prompt: int, chunk: int) -> list[StepWork]:
    return [work_of([(start, min(start + chunk, prompt))]) for start in range(0, prompt, chunk)]


def flops(work: StepWork) -> int:
    return LLAMA.linear_flops_per_token * work.prefill_tokens + LLAMA.attention_flops_per_pair * work.prefill_pairs


# --- the model


def test_the_shapes_have_the_published_sizes():
    assert MODELS["8b"].parameters == 8_030_261_248  # model card of Meta-Llama-3-8B: 8.03B
    assert MODELS["7b"].parameters == 6_738_415_616
    assert round(LLAMA.weight_bytes / 1e9, 2) == 16.06
    assert LLAMA.kv_bytes_per_token == 131_072
    assert MODELS["7b"].kv_bytes_per_token == 4 * LLAMA.kv_bytes_per_token  # every q head has its own K and V


def test_a_shape_counts_the_weights_that_a_model_has():
    shape = ModelShape(
        vocab_size=7, hidden_size=6, num_layers=2, q_heads=4, kv_heads=2, head_dim=2, intermediate_size=5
    )
    layer = {"q": 6 * 8, "k": 6 * 4, "v": 6 * 4, "o": 8 * 6, "gate": 6 * 5, "up": 6 * 5, "down": 5 * 6, "norms": 2 * 6}
    assert shape.parameters == 2 * sum(layer.values()) + 6 + 2 * 7 * 6
    assert shape.kv_bytes_per_token == 2 * 2 * 2 * 2 * 2  # K and V, layers, kv heads, head_dim, bytes


def test_attention_does_the_flops_of_the_linear_part_at_a_context_of_30_600():
    assert round(LLAMA.linear_flops_per_token / LLAMA.attention_flops_per_pair, -2) == 30_600


@pytest.mark.parametrize(("prompt", "ratio"), [(32_768, 2.02), (8_192, 1.23)])
def test_the_last_chunk_costs_more_flops_than_the_first(prompt, ratio):
    steps = chunks(prompt, 1_024)
    assert round(flops(steps[-1]) / flops(steps[0]), 2) == ratio


def test_a_hit_saves_less_of_attention_than_of_the_tokens():
    whole, tail = work_of([(0, 7_000)]), work_of([(5_000, 7_000)])
    saved = [1 - tail.prefill_tokens / whole.prefill_tokens, 1 - tail.prefill_pairs / whole.prefill_pairs]
    saved.append(1 - flops(tail) / flops(whole))
    assert [round(100 * share, 1) for share in saved] == [71.4, 51.0, 69.3]


@pytest.mark.parametrize(
    ("name", "flops_per_clock_and_sm", "ghz"),
    # dense 16-bit matmul FLOPs of an SM (NVIDIA's white papers on Turing, Ada, Ampere and Hopper), boost clock
    [("t4", 1_024, 1.59), ("l4", 1_024, 2.04), ("a100", 2_048, 1.41), ("h100", 4_096, 1.83), ("h200", 4_096, 1.83)],
)
def test_the_rates_are_the_dense_ones_that_the_sms_can_reach(name, flops_per_clock_and_sm, ghz):
    device = DEVICES[name]
    assert device.matmul_flops == pytest.approx(device.sms * flops_per_clock_and_sm * ghz * 1e9, rel=0.01)
    assert device.source


# --- bytes


@pytest.mark.parametrize(
    ("prompt", "chunk", "gigabytes"), [(8_192, 1_024, 3.8), (32_768, 1_024, 66.6), (32_768, 256, 273)]
)
def test_chunks_read_earlier_k_and_v_again(prompt, chunk, gigabytes):
    read = LLAMA.kv_bytes_per_token * sum(work.prefill_cached for work in chunks(prompt, chunk)) / 1e9
    assert round(read, 1 if gigabytes < 100 else None) == gigabytes
    us = [PEAK.parts(work).chunk_kv_read for work in chunks(prompt, chunk)]
    assert 0 <= sum(us) - read * 1e9 / 3.35e6 < len(us)  # each is rounded up


def test_24_decodes_at_4k_read_12_9_gb_of_k_and_v():
    work = work_of([], [4_096] * 24)
    assert round(LLAMA.kv_bytes_per_token * work.decode_context / 1e9, 1) == 12.9
    assert round(PEAK.parts(work).decode_kv_read / 1e3, 1) == 3.8


def test_the_weights_are_read_once_a_step_whoever_rides_along():
    assert {PLAIN.parts(w).weights_read for w in (work_of([(0, 1)]), work_of([(0, 8_192)]), work_of([], [9] * 50))} == {
        PLAIN.parts(StepWork(decodes=1)).weights_read
    }


# --- time


def test_decodes_are_memory_bound_and_a_long_chunk_is_compute_bound():
    decodes, chunk = PLAIN.parts(work_of([], [1_024] * 24)), PLAIN.parts(work_of([(0, 1_024)]))
    assert decodes.weights_read > 5 * decodes.matmul
    assert chunk.matmul > 3 * chunk.weights_read


def test_decodes_ride_along_for_far_less_than_they_cost_alone():
    def alone_over_beside(cost: StepCost) -> float:
        beside = work_of([(0, 1_024)], [512] * 24)
        return cost.work_us(work_of([], [512] * 24)) / (cost.work_us(beside) - cost.work_us(work_of([(0, 1_024)])))

    assert round(alone_over_beside(PRESETS["reference"]), 1) == 2.0
    assert alone_over_beside(PLAIN) > 6


def test_riding_along_saves_the_weights_and_not_the_decodes_own_k_and_v():
    beside, alone = PLAIN.parts(work_of([(0, 1_024)], [4_096] * 24)), PLAIN.parts(work_of([], [4_096] * 24))
    assert beside.decode_kv_read == alone.decode_kv_read > 4_000


def test_chunks_of_a_long_prompt_take_longer_and_longer():
    steps = [PLAIN.work_us(work) for work in chunks(32_768, 1_024)]
    assert all(a < b for a, b in pairwise(steps))
    assert steps[-1] > 2 * steps[0]  # attention runs at a lower rate than the linear part, so more than its FLOPs say


def test_with_the_staircase_small_chunks_cost_more_than_the_roofline_says():
    def linear(cost: Roofline, chunk: int) -> int:
        return sum(cost.parts(work).linear for work in chunks(4_096, chunk))

    assert linear(STAIRS, 128) > 2 * linear(STAIRS, 4_096)
    assert linear(STAIRS, 520) > 1.1 * linear(STAIRS, 512)  # eight tokens over an edge
    assert linear(PLAIN, 520) < 1.02 * linear(PLAIN, 512)  # the roofline has no edges


@given(costs, works, st.integers(0, 4), st.integers(1, 5_000))
def test_a_step_never_gets_cheaper_with_more_of_anything(cost, work, component, more):
    larger = list(work)
    larger[component] += more
    assert 1 <= cost.work_us(work) <= cost.work_us(StepWork(*larger))


@given(works)
def test_each_part_is_its_formula(work):
    """Of Llama 3 8B on an H100: 6,979,321,856 weights in layers, 525,336,576 in lm_head."""
    tokens, rows = work.prefill_tokens + work.decodes, work.decodes + bool(work.prefill_tokens)
    rate, bandwidth = Fraction(989_000_000, 100), Fraction(3_350_000, 100)  # a microsecond, for each percent
    assert PLAIN.parts(work)[:3] + PLAIN.parts(work)[4:] == (
        1_000,
        ceil(2 * (6_979_321_856 + 525_336_576) / (80 * bandwidth)),
        ceil(2 * (6_979_321_856 * tokens + 525_336_576 * rows) / (70 * rate)),
        ceil(4 * 32 * 32 * 128 * work.prefill_pairs / (50 * rate)),
        ceil(131_072 * work.prefill_cached / (80 * bandwidth)),
        ceil(131_072 * work.decode_context / (80 * bandwidth)),
    )
    gemm = STAIRCASES["h100"].gemm_ns
    layer = gemm(tokens, 4_096, 6_144) + gemm(tokens, 4_096, 4_096) + gemm(tokens, 4_096, 28_672)
    layer += gemm(tokens, 14_336, 4_096)
    assert STAIRS.parts(work).linear == ceil(Fraction(32 * layer + gemm(rows, 4_096, 128_256), 1_000))


@given(costs, works)
def test_the_parts_add_up(cost, work):
    parts = cost.parts(work)
    assert min(parts) >= 0
    assert parts.linear >= 1
    assert cost.work_us(work) == (
        parts.fixed + parts.linear + max(parts.attention, parts.chunk_kv_read) + parts.decode_kv_read
    )
    if cost.staircase is None:
        assert parts.linear == max(parts.weights_read, parts.matmul)


@given(costs, st.integers(1, 64), st.integers(64, 10_000), st.integers(1, 20))
def test_a_run_of_decodes_takes_what_its_steps_take(cost, decodes, context, steps):
    assert cost.decode_run_us(decodes, context, steps) == StepCost.decode_run_us(cost, decodes, context, steps)


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=8))
def test_chunking_does_the_same_attention_and_only_rounds_up_more_often(sizes):
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    cut = [PLAIN.parts(work_of([span])).attention for span in zip([0, *stops], stops)]
    whole = PLAIN.parts(work_of([(0, stops[-1])])).attention
    assert pairs(0, stops[-1]) == sum(pairs(a, b) for a, b in zip([0, *stops], stops))
    assert whole <= sum(cut) <= whole + len(sizes)


def test_a_better_device_is_never_slower():
    work = work_of([(4_096, 5_120)], [2_048] * 16)
    times = [Roofline(device=DEVICES[name], model=LLAMA).work_us(work) for name in ("l4", "a100", "h100", "h200")]
    assert times == sorted(times, reverse=True)


def test_the_model_may_be_a_config_of_the_engine():
    sizes = {name: value for name, value in vars(LLAMA).items() if name != "itemsize"}
    assert Roofline(device=H100, model=ModelConfig(**sizes)) == PLAIN


# --- what is refused


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="16.06 GB, and a T4 has 16 GB"):
        Roofline(device=DEVICES["t4"], model=LLAMA)
    assert Roofline(device=DEVICES["t4"], model=MODELS["7b"])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"fixed_us": -1}, "fixed_us=-1"),
        ({"fixed_us": 2.5}, "whole microseconds"),
        ({"matmul_percent": 0}, "from 1 to 100"),
        ({"bandwidth_percent": 101}, "from 1 to 100"),
        ({"staircase": STAIRCASES["a100"]}, "A100-80GB says nothing of H100"),
        ({"model": replace(LLAMA, kv_heads=10**9)}, "take a smaller model"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        Roofline(**{"device": H100, "model": LLAMA} | settings)


def test_a_shape_without_layers_and_a_step_without_tokens_are_refused():
    with pytest.raises(ValueError, match="num_layers=0"):
        replace(LLAMA, num_layers=0)
    with pytest.raises(ValueError, match="not a step"):
        PLAIN.work_us(StepWork(decode_context=5))
