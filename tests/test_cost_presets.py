"""The presets by name, and what the second one, with attention, says where the first does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cli import UserError
from course_lib.cost.attention import AttentionCost
from course_lib.cost.devices import DEVICES, MODELS
from course_lib.cost.linear import LinearCost
from course_lib.cost.presets import ABOUT, PRESETS, preset_named
from course_lib.cost.work import StepWork, work_of

ATTENTION = PRESETS["reference-attention"]
USERS, CHUNK = 24, 1_024


def chunk_steps(prompt: int) -> list[int]:
    """Durations of the steps of a prompt in chunks, each with one decode of every user."""
    spans = [(start, start + CHUNK) for start in range(0, prompt, CHUNK)]
    return [ATTENTION.work_us(work_of([span], [1_000] * USERS)) for span in spans]


def test_with_attention_the_reference_prompt_takes_what_the_course_says():
    assert round(ATTENTION.work_us(work_of([(0, 8_192)])) / 1e3, 1) == 150.3
    assert round(sum(chunk_steps(8_192)) / 1e3, 1) == 189.2


def test_with_attention_a_32k_prompt_takes_nearly_a_second_and_its_chunks_grow():
    steps = chunk_steps(32_768)
    assert round(ATTENTION.work_us(work_of([(0, 32_768)])) / 1e6, 2) == 0.89
    assert [round(us / 1e3, 1) for us in (min(steps), max(steps))] == [20.9, 45.0]
    assert steps == sorted(steps)


def test_with_attention_chunking_gains_19_9_times_against_the_mixed_baseline():
    mixed = ATTENTION.work_us(work_of([(0, 32_768)], [1_000] * USERS))
    assert round(mixed / max(chunk_steps(32_768)), 1) == 19.9


@given(st.integers(0, 500), st.integers(0, 50), st.integers(0, 10**6))
def test_without_pairs_the_cost_is_the_linear_one(tokens, decodes, pairs):
    cost, linear = AttentionCost(10, 3, 5, 0), LinearCost(10, 3, 5)
    if tokens + decodes:
        assert cost.work_us(StepWork(tokens, decodes, pairs)) == linear.work_us(StepWork(tokens, decodes, pairs))
        fine = AttentionCost(10, 3, 5, 740).work_us(StepWork(tokens, decodes, pairs))
        assert 0 <= 740 * pairs - 10**6 * (fine - cost.work_us(StepWork(tokens, decodes, pairs))) < 10**6


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: AttentionCost(pair_ps=0.74), "whole picoseconds"),
        (lambda: AttentionCost(decode_us=-1), "whole microseconds"),
        (lambda: AttentionCost(0, 15, 0), "no time at all"),
        (lambda: ATTENTION.work_us(StepWork(prefill_pairs=3)), "not a step"),
    ],
)
def test_costs_that_mean_nothing_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_every_preset_has_a_line_about_it_and_prices_a_mixed_step():
    assert ABOUT.keys() == PRESETS.keys()
    work = work_of([(1_024, 2_048)], [512] * 8)
    for name, cost in PRESETS.items():
        assert preset_named(name) is cost
        assert "\n" not in ABOUT[name]
        assert type(cost.work_us(work)) is int
        assert cost.work_us(work) > cost.work_us(work_of([], [512] * 8))


def test_every_model_is_offered_on_every_device_that_can_hold_it():
    fits = {f"{m}-{d}" for m in MODELS for d in DEVICES if MODELS[m].weight_bytes < DEVICES[d].memory_bytes}
    assert {name for name in PRESETS if name.removesuffix("-staircase") in fits} == PRESETS.keys() - {
        "reference",
        "reference-attention",
    }
    assert {
        "8b-h100",
        "8b-h200",
        "8b-a100",
        "8b-l4",
        "7b-t4",
        "8b-a100-staircase",
        "8b-h100-staircase",
    } <= PRESETS.keys()
    assert "8b-t4" not in PRESETS


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nope", "no preset 'nope'; there are reference, reference-attention, 8b-l4, "),
        ("8b-t4", r"Llama 3 8B needs 16.06 GB for its weights; a T4 has 16 GB\); there are"),
        ("8b-l4-staircase", "no preset '8b-l4-staircase'; there are"),
        ("", "no preset ''"),
    ],
)
def test_another_name_is_refused_with_the_names_there_are(name, says):
    with pytest.raises(UserError, match=says):
        preset_named(name)
