"""The reference setting: 24 streaming users, a prompt of 8,192 tokens, chunks of 1,024, a target of 50 ms."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cost.linear import (
    PRESETS,
    LinearCost,
    chunked,
    exclusive_baseline,
    knee_chunk,
    mixed_baseline,
    percentile,
    sweep,
)

REFERENCE = PRESETS["reference"]
USERS, PROMPT, CHUNK, TARGET_US = 24, 8_192, 1_024, 50_000

costs = st.builds(LinearCost, st.integers(1, 10_000), st.integers(0, 100), st.integers(0, 1_000))
prompts, users, chunks = st.integers(1, 3_000), st.integers(0, 40), st.integers(1, 4_000)


def test_the_reference_setting_gives_every_published_read_out():
    line = chunked(REFERENCE, PROMPT, USERS, CHUNK)
    assert REFERENCE.step_us(PROMPT, 0) == 150_056
    assert line.worst_stall_us == 23_624
    assert line.ttft_us == 188_992
    assert line.steps_over_target(TARGET_US) == 0
    assert line.decode_tok_per_s == 1_451
    assert len(line.step_us) == 8
    assert len(line.gap_us) == 13  # 8 mixed steps, then 5 of decodes alone


def test_the_two_baselines_stall_the_users_for_the_whole_prompt():
    mixed, exclusive = mixed_baseline(REFERENCE, PROMPT, USERS), exclusive_baseline(REFERENCE, PROMPT, USERS)
    assert (mixed.worst_stall_us, exclusive.worst_stall_us) == (152_648, 155_248)
    assert (mixed.ttft_us, exclusive.ttft_us) == (152_648, 150_056)
    assert mixed.steps_over_target(TARGET_US) == exclusive.steps_over_target(TARGET_US) == 1


@pytest.mark.parametrize(("baseline", "ratio"), [(mixed_baseline, 25.19), (exclusive_baseline, 25.30)])
def test_at_32k_chunking_is_25_times_better_in_the_worst_gap(baseline, ratio):
    worst = baseline(REFERENCE, 32_768, USERS).worst_stall_us
    assert round(worst / chunked(REFERENCE, 32_768, USERS, CHUNK).worst_stall_us, 2) == ratio


def test_a_32k_prompt_in_one_pass_takes_0_59_seconds_and_in_chunks_32_equal_steps():
    assert REFERENCE.step_us(32_768, 0) == 592_424
    assert chunked(REFERENCE, 32_768, USERS, CHUNK).step_us == (23_624,) * 32


def test_decodes_cost_half_beside_a_prefill_of_what_they_cost_alone():
    beside = REFERENCE.step_us(CHUNK, USERS) - REFERENCE.step_us(CHUNK, 0)
    assert (beside, REFERENCE.step_us(0, USERS)) == (2_592, 5_192)


def test_the_throughput_gained_depends_on_the_baseline():
    """The same work in each: the prompt, and 13 tokens for each user."""
    alone = REFERENCE.step_us(0, USERS)
    lines = [f(REFERENCE, PROMPT, USERS) for f in (mixed_baseline, exclusive_baseline)]
    mixed, exclusive = (sum(line.gap_us) + (13 - len(line.gap_us)) * alone for line in lines)
    both = sum(chunked(REFERENCE, PROMPT, USERS, CHUNK).gap_us)
    assert (both, mixed, exclusive) == (214_952, 214_952, 217_552)
    assert round((exclusive / both - 1) * 100, 1) == 1.2


def test_the_knee_is_the_largest_chunk_that_meets_the_target():
    assert knee_chunk(REFERENCE, TARGET_US, USERS) == 2_489
    assert REFERENCE.step_us(2_489, USERS) <= TARGET_US < REFERENCE.step_us(2_490, USERS)


def test_an_uneven_split_has_the_steps_and_ttft_of_an_even_one_and_a_worse_stall():
    even, uneven = (chunked(REFERENCE, PROMPT, USERS, chunk) for chunk in (2_048, 2_560))
    assert len(even.step_us) == len(uneven.step_us) == 4
    assert even.ttft_us == uneven.ttft_us == 168_224
    assert (even.worst_stall_us, uneven.worst_stall_us) == (42_056, 51_272)


@pytest.mark.parametrize(
    ("users", "neither", "chunk_only", "cache_only", "both"),
    [(3, 128_600, 146_468, 38_600, 41_848), (24, 128_600, 162_344, 38_600, 46_384)],
)
def test_caching_and_chunking_together_and_alone(users, neither, chunk_only, cache_only, both):
    assert exclusive_baseline(REFERENCE, 7_000, users).ttft_us == neither
    assert chunked(REFERENCE, 7_000, users, CHUNK).ttft_us == chunk_only
    assert exclusive_baseline(REFERENCE, 7_000, users, hit=5_000).ttft_us == cache_only
    assert chunked(REFERENCE, 7_000, users, CHUNK, hit=5_000).ttft_us == both


def test_the_gaps_of_the_four_cases():
    assert chunked(REFERENCE, 7_000, 3, CHUNK, hit=5_000).worst_stall_us == 21_356
    assert exclusive_baseline(REFERENCE, 7_000, USERS).worst_stall_us == 133_792
    assert exclusive_baseline(REFERENCE, 7_000, USERS, hit=5_000).worst_stall_us == 43_792
    fits, too_long = (exclusive_baseline(REFERENCE, tail, USERS).worst_stall_us for tail in (2_344, 2_345))
    assert fits <= TARGET_US < too_long


def test_one_stall_among_many_gaps_moves_the_maximum_and_not_p99():
    gaps = (*exclusive_baseline(REFERENCE, PROMPT, USERS).gap_us, *[REFERENCE.step_us(0, USERS)] * 95)
    assert len(gaps) == 100
    assert (percentile(gaps, 99), max(gaps)) == (5_192, 155_248)


def test_the_sweep_trades_ttft_against_the_gap():
    sizes = [128, 256, 512, 1_024, 2_048, 4_096, 8_192]
    points = sweep(REFERENCE, PROMPT, USERS, sizes)
    assert [p["chunk"] for p in points] == sizes
    assert points[3] == {
        "chunk": 1_024,
        "ttft_us": 188_992,
        "worst_itl_us": 23_624,
        "p99_itl_us": 23_624,
        "prefill_tok_per_s": 43_345,
    }
    for small, large in pairwise(points):
        assert small["ttft_us"] > large["ttft_us"]
        assert small["worst_itl_us"] < large["worst_itl_us"]
        assert small["prefill_tok_per_s"] < large["prefill_tok_per_s"]


@given(costs, prompts, users, st.data())
def test_chunk_equal_to_the_prompt_is_exactly_the_mixed_baseline(cost, prompt, users, data):
    hit = data.draw(st.integers(0, prompt - 1))
    assert chunked(cost, prompt, users, prompt, hit) == mixed_baseline(cost, prompt, users, hit)
    assert mixed_baseline(cost, prompt, users, hit).step_us == (cost.step_us(prompt - hit, users),)


@given(costs, prompts, users, chunks)
def test_chunking_adds_exactly_the_fixed_cost_and_the_decodes_of_each_further_step(cost, prompt, users, chunk):
    line = chunked(cost, prompt, users, chunk)
    extra = line.ttft_us - mixed_baseline(cost, prompt, users).ttft_us
    assert extra == (len(line.step_us) - 1) * (cost.fixed_us + cost.decode_us * users)


@given(costs, st.integers(0, 5_000), st.integers(1, 40))
def test_a_step_never_gets_cheaper_with_more_work(cost, tokens, decodes):
    assert cost.step_us(tokens, decodes) <= cost.step_us(tokens + 1, decodes)
    assert cost.step_us(tokens, decodes) <= cost.step_us(tokens, decodes + 1)


@given(costs, prompts, users, st.lists(chunks, min_size=2, max_size=2))
def test_a_larger_chunk_never_lowers_the_worst_stall_and_never_raises_ttft(cost, prompt, users, pair):
    small, large = (chunked(cost, prompt, users, chunk) for chunk in sorted(pair))
    assert small.worst_stall_us <= large.worst_stall_us
    assert small.ttft_us >= large.ttft_us


@given(st.builds(LinearCost, st.integers(1, 10_000), st.integers(1, 100), st.integers(0, 1_000)),
       st.integers(0, 200_000), users)
def test_the_knee_fits_and_one_more_token_does_not(cost, target_us, users):
    knee = knee_chunk(cost, target_us, users)
    assert cost.step_us(knee + 1, users) > target_us
    assert knee == 0 or cost.step_us(knee, users) <= target_us


@given(st.lists(st.integers(0, 1_000), min_size=1), st.integers(0, 100))
def test_a_percentile_is_one_of_the_values_and_covers_its_share(values, percent):
    at = percentile(values, percent)
    assert at in values
    assert 100 * sum(v <= at for v in values) >= percent * len(values)
    below = [v for v in values if v < at]
    assert 100 * len(below) < percent * len(values) or not below


def test_with_no_users_nobody_waits():
    for line in (chunked(REFERENCE, PROMPT, 0, CHUNK), exclusive_baseline(REFERENCE, PROMPT, 0)):
        assert (line.worst_stall_us, line.decode_tok_per_s) == (0, 0)
    assert sweep(REFERENCE, PROMPT, 0, [CHUNK])[0]["p99_itl_us"] == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: chunked(REFERENCE, PROMPT, USERS, 0), "chunk=0"),
        (lambda: chunked(REFERENCE, PROMPT, USERS, -5), "chunk=-5"),
        (lambda: chunked(REFERENCE, PROMPT, USERS, CHUNK, hit=PROMPT), "at least the last token"),
        (lambda: mixed_baseline(REFERENCE, 0, USERS), "prompt of 0 tokens"),
        (lambda: exclusive_baseline(REFERENCE, PROMPT, -1), "users=-1"),
        (lambda: REFERENCE.step_us(0, 0), "not a step"),
        (lambda: LinearCost(fixed_us=2.5), "whole microseconds"),
        (lambda: LinearCost(decode_us=-1), "whole microseconds"),
        (lambda: LinearCost(0, 18, 0), "no time at all"),
        (lambda: knee_chunk(LinearCost(10, 0, 1), 50, 1), "cost nothing"),
        (lambda: percentile([], 50), "at least one value"),
    ],
)
def test_settings_that_mean_nothing_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
