"""The staircase of tiles and waves against what was measured, and against the physics that bound it."""

from dataclasses import replace
from math import ceil
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cost.devices import DEVICES, MODELS
from course_lib.cost.staircase import STAIRCASES, Staircase

# Measured: microseconds of the four matrix products of one Llama-2-7B layer, by number of tokens. Sum of the medians in
# github.com/microsoft/vidur, data/profiling/compute/{a100,h100}/meta-llama/Llama-2-7b-hf/mlp.csv, one GPU, read
# 2026-11-30: 42 of 259 numbers of tokens, on both sides of the stairs, with those where the formula is furthest off.
MEASURED_US = {
    "a100": {
        1: 266, 8: 260, 32: 273, 64: 278, 72: 328, 88: 339, 128: 351.5, 136: 514, 160: 520, 192: 459.5, 200: 520,
        256: 502.5, 264: 645.5, 312: 649.5, 320: 650, 384: 671, 392: 872.5, 448: 922, 512: 953, 520: 1067, 544: 1055,
        640: 1187.5, 648: 1293.5, 712: 1332.5, 768: 1316.5, 776: 1588.5, 896: 1709, 1008: 2003, 1024: 1959,
        1040: 2065.5, 1184: 2305, 1280: 2211.5, 1296: 2464, 1536: 2838, 1552: 2944, 1792: 3357, 2048: 3824.25,
        2080: 4129, 2560: 4605, 3072: 5642.5, 3584: 6600.5, 4096: 7445,
    },
    "h100": {
        1: 156, 8: 152, 32: 159, 64: 162, 72: 202, 88: 204, 128: 180, 136: 241, 160: 205.5, 192: 205.5, 200: 260.5,
        256: 260, 264: 265, 312: 262.5, 320: 264, 384: 304, 392: 349, 448: 347.5, 512: 328.5, 520: 434.5, 544: 433,
        640: 431, 648: 542, 712: 545, 768: 521, 776: 563, 896: 561, 1008: 556, 1024: 565, 1040: 693.5, 1184: 700.5,
        1280: 716, 1296: 843, 1536: 909, 1552: 971.5, 1792: 1010, 2048: 1083.5, 2080: 1258, 2560: 1416.5, 3072: 1703,
        3584: 2013.5, 4096: 2213.5,
    },
}  # fmt: skip
# The same for Llama 3 8B (a100/meta-llama/Meta-Llama-3-8B/mlp.csv there). The fit never saw these.
UNSEEN_US = {
    1: 277, 32: 315, 64: 324, 72: 355, 128: 377, 136: 529.5, 192: 486, 200: 539, 256: 554, 264: 775, 320: 787.5,
    376: 780, 3712: 7388, 3840: 7461.5, 4096: 7817, 4160: 8099.5, 4352: 8535.5, 4480: 8857,
}  # fmt: skip


def layer_us(device: str, tokens: int, model: str = "7b") -> float:
    return sum(STAIRCASES[device].gemm_ns(tokens, *gemm) for gemm in MODELS[model].gemms.values()) / 1000


@pytest.mark.parametrize("device", MEASURED_US)
def test_a_layers_products_take_within_10_percent_of_what_was_measured(device):
    errors = {tokens: layer_us(device, tokens) / us - 1 for tokens, us in MEASURED_US[device].items()}
    assert {tokens: e for tokens, e in errors.items() if abs(e) > 0.10} == {}
    assert median(map(abs, errors.values())) < 0.07


def test_the_fit_to_one_model_foretells_another_that_it_never_saw():
    errors = {tokens: layer_us("a100", tokens, "8b") / us - 1 for tokens, us in UNSEEN_US.items()}
    assert {tokens: e for tokens, e in errors.items() if abs(e) > 0.10} == {}


@pytest.mark.parametrize(
    ("device", "measured", "tolerance"),
    [
        ("a100", {64: 2.39, 128: 1.51, 256: 1.08, 512: 1.02, 1024: 1.05}, 0.07),
        ("h100", {64: 4.68, 128: 2.60, 256: 1.88, 512: 1.19, 1024: 1.02}, 0.08),
    ],
)
def test_4096_tokens_in_chunks_cost_what_was_measured_relative_to_one_pass(device, measured, tolerance):
    for chunk, ratio in measured.items():
        modelled = 4096 / chunk * layer_us(device, chunk) / layer_us(device, 4096)
        assert modelled == pytest.approx(ratio, rel=tolerance), chunk


@pytest.mark.parametrize(("device", "chunk"), [("a100", 64), ("h100", 64), ("h100", 128)])
def test_small_chunks_cost_twice_and_more(device, chunk):
    assert 4096 / chunk * layer_us(device, chunk) > 2 * layer_us(device, 4096)


@pytest.mark.parametrize(
    ("device", "edge"), [("a100", 128), ("a100", 256), ("a100", 384), ("h100", 128), ("h100", 512), ("h100", 1024)]
)
def test_a_few_tokens_over_an_edge_cost_a_stair(device, edge):
    over = edge + (8 if edge < 1024 else 16)
    step = layer_us(device, over) - layer_us(device, edge)
    assert step > 0.15 * layer_us(device, edge)
    assert step > 4 * (layer_us(device, edge) - layer_us(device, edge - 8))  # 8 tokens before it cost next to nothing


@pytest.mark.parametrize("device", STAIRCASES)
def test_below_64_tokens_time_is_flat(device):
    assert layer_us(device, 64) < 1.1 * layer_us(device, 1)


@given(
    st.sampled_from(sorted(STAIRCASES)),
    st.integers(1, 5_000),
    st.integers(1, 64),
    st.sampled_from([*MODELS["7b"].gemms.values()]),
)
def test_time_never_falls_with_tokens_and_never_beats_the_data_sheet(device, tokens, more, gemm):
    stairs, (inner, columns) = STAIRCASES[device], gemm
    ns = stairs.gemm_ns(tokens, inner, columns)
    assert ns <= stairs.gemm_ns(tokens + more, inner, columns)
    assert ns + 1 > 2 * tokens * inner * columns * 10**9 / stairs.device.matmul_flops
    assert ns + 1 > 2 * inner * columns * 10**9 / stairs.device.memory_bytes_per_s


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 8), st.integers(1, 8))
def test_full_waves_are_those_of_sms_that_take_one_tile_at_a_time(tokens, columns, sms, tile_rows, tile_columns):
    device = replace(DEVICES["a100"], sms=sms, matmul_flops=sms * 10**6, memory_bytes_per_s=10**18)
    stairs = Staircase(device, ((tile_rows, tile_columns, 100),), tail_percent=100, bandwidth_percent=100, launch_ns=0)
    queue = [0] * (ceil(tokens / tile_rows) * ceil(columns / tile_columns))
    waves = 0
    while queue:
        del queue[:sms]
        waves += 1
    # an SM makes a FLOP in 1,000 ns; the inner dimension is 3
    assert stairs.gemm_ns(tokens, 3, columns) == waves * 2 * 3 * tile_rows * tile_columns * 1_000


def test_the_last_wave_costs_its_tail_and_then_its_share():
    device = replace(DEVICES["a100"], sms=10, matmul_flops=10 * 10**6, memory_bytes_per_s=10**18)
    stairs = Staircase(device, ((1, 1, 100),), tail_percent=40, bandwidth_percent=100, launch_ns=7)
    times = [stairs.gemm_ns(tokens, 1, 1) - 7 for tokens in (1, 5, 10, 11, 20)]
    assert times == [920, 1400, 2000, 2920, 4000]  # 2,000 ns a wave: 40%, and 6% for each tile in it


def test_a_product_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="0 tokens"):
        STAIRCASES["a100"].gemm_ns(0, 8, 8)
