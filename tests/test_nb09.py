"""Notebook 09: what it measures is what it says, its knobs meet the target, and a policy is judged by what it did."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.answers import InProcess
from autograder.build import ROOT
from autograder.check import evaluate
from autograder.exercise import Raised
from autograder.exercises import EXERCISES
from autograder.exercises.nb09_policy import MOST_STEPS, OF_BEST, fair_cases
from autograder.exercises.nb09_time import Device
from course_lib.cli import UserError
from course_lib.cost.attention import AttentionCost
from course_lib.cost.fit import fit_cost
from course_lib.cost.linear import LinearCost, knee_chunk
from course_lib.cost.presets import PRESETS
from course_lib.cost.work import work_of
from course_lib.lessons import nb09_capstone as capstone
from course_lib.lessons.nb09_device import (
    GRID,
    device_model,
    fit_linear,
    measure_steps,
    recommend,
    serve_and_load,
    time_step,
)
from course_lib.schedule.plan import plan_step
from course_lib.schedule.request import Chunk

POLICY = EXERCISES["my_policy"]


# Timing: never of this machine


@given(
    steps=st.lists(st.integers(100, 10_000), min_size=1, max_size=9).filter(lambda s: len(s) % 2),
    first=st.integers(0, 10**6), launch=st.integers(1, 50), asynchronous=st.booleans(), busy=st.integers(0, 10**5),
)  # fmt: skip
def test_the_first_step_and_what_ran_before_are_not_in_the_time_of_a_step(steps, first, launch, asynchronous, busy):
    device = Device(steps, first, launch, asynchronous, busy if asynchronous else 0)
    found = time_step(device.run, device.synchronize, device.clock, len(steps))
    assert found == sorted(steps)[len(steps) // 2] + launch + 3
    assert device.count == len(steps) + 1


def test_measure_steps_runs_each_row_of_the_grid_and_names_its_work():
    ran = []

    def instead_of_a_clock(run, synchronize, clock, repeats):
        synchronize()
        ran.append(run())
        assert clock() <= clock() and repeats == 3
        return float(len(ran))

    samples = list(measure_steps(GRID, repeats=3, time_step=instead_of_a_clock))
    assert [us for _, us in samples] == list(range(1, len(GRID) + 1))
    for (tokens, start, decodes, context), (work, _), logits in zip(GRID, samples, ran, strict=True):
        assert work == work_of([(start, start + tokens)] if tokens else [], [context] * decodes)
        assert logits.shape == (decodes + (tokens > 0), 128) and np.isfinite(logits).all()


def test_the_grid_can_tell_every_term_of_a_cost_apart():
    cost = AttentionCost()
    samples = [(work, cost.work_us(work)) for work in (work_of([(s, s + t)] * (t > 0), [c] * d) for t, s, d, c in GRID)]
    assert not fit_cost(samples).report.left_out


def test_without_a_gpu_the_device_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    _, synchronize, words = device_model()
    assert synchronize() is None and words == "no CUDA device: the NumPy engine on this CPU"


# From times to knobs


@given(st.integers(500, 9_000), st.integers(1, 60), st.integers(1, 400), st.integers(0, 10**6))
def test_clean_samples_give_back_the_cost_in_the_lesson_and_in_the_library(fixed, token, decode, seed):
    rng = np.random.default_rng(seed)
    counts = [(0, 3), (40, 0), (90, 7), *rng.integers(1, 500, (6, 2)).tolist()]
    cost = LinearCost(fixed, token, decode)
    table = np.array([(t, d, cost.step_us(t, d)) for t, d in counts], dtype=float)
    assert fit_linear(table) == pytest.approx([fixed, token, decode], rel=1e-6)
    works = [(work_of([(0, t)] * (t > 0), [8] * d), int(us)) for t, d, us in table.astype(int).tolist()]
    fitted = fit_cost(works, terms=("fixed", "prefill_tokens", "decodes")).cost
    assert (fitted.fixed, fitted.prefill_tokens, fitted.decodes) == (fixed, token, decode)


@settings(max_examples=60)
@given(
    target=st.integers(1_000, 200_000), users=st.integers(0, 60), longest=st.integers(1, 40_000),
    cost=st.builds(AttentionCost, st.integers(1, 6_000), st.integers(1, 40), st.integers(0, 300), st.integers(0, 999)),
)  # fmt: skip
def test_the_recommended_chunk_meets_the_target_and_one_token_more_does_not(target, users, longest, cost):
    chunk, budget = recommend(target, users, longest, cost)

    def last_us(size):
        return cost.work_us(work_of([(longest - size, longest)], [longest] * users))

    assert budget == (chunk + users if chunk else 0)
    assert not chunk or last_us(chunk) <= target
    assert chunk == longest or last_us(chunk + 1) > target


def test_without_attention_it_is_the_knee_of_the_linear_model():
    cost = PRESETS["reference"]
    assert recommend(50_000, 24, 8_192, cost) == (knee_chunk(cost, 50_000, 24), 2_489 + 24)


@pytest.mark.parametrize("device", ["reference-attention", "8b-h100", "8b-a100"])
def test_no_step_that_the_explorer_draws_is_over_the_target(device):
    pytest.importorskip("matplotlib")
    from course_lib.widgets.device import explore_knobs, steps_of

    explorer = explore_knobs()
    for target, users, longest in ((50, 24, 8_192), (100, 8, 16_384), (10, 64, 32_768)):
        (chunk, _), steps = steps_of(device, target, users, longest)
        said = explorer.set(device=device, target=target, users=users, longest=longest)
        assert all(us <= 1_000 * target for us in steps) and len(steps) == (-(-longest // chunk) if chunk else 0)
        assert (f"max_chunk={chunk:,}," in said) if chunk else said.startswith("No chunk meets")


# The capstone


def test_a_workload_is_the_same_again_and_one_prompt_in_six_is_long():
    for seed in range(5):
        arrivals = list(capstone.mixed_workload(seed))
        assert arrivals == list(capstone.mixed_workload(seed)) != list(capstone.mixed_workload(seed + 1))
        assert [sum(a.prompt_tokens > 500 for a in arrivals[i : i + 6]) for i in range(0, 48, 6)] == [1] * 8
    assert [a.prompt_tokens for a in capstone.crowd(1)].count(8_000) == 1


def test_the_courses_policy_is_as_good_as_the_best_shipped_one_on_seeds_that_no_check_uses():
    for seed in (10**9, 10**9 + 1):
        best = max(capstone.shipped_good(seed).values())
        assert capstone.run(capstone.mixed_workload(seed), capstone.my_policy).num_good >= OF_BEST * best


def test_a_policy_that_never_comes_to_an_end_is_stopped():
    def my_policy(requests, max_num_batched_tokens, max_chunk, max_num_seqs):
        first = next(r for r in requests if r.num_uncomputed)
        return (Chunk(first.id, first.num_computed, first.num_computed + 1),)

    (outcome,) = InProcess(my_policy, POLICY.driver).run(fair_cases(1)[-1:])
    assert isinstance(outcome, Raised) and f"{MOST_STEPS} steps, and" in outcome.message


def test_a_policy_may_take_its_knobs_by_name_as_plan_step_does():
    verdicts = {group.name: evaluate(POLICY, group, plan_step) for group in POLICY.groups}
    assert verdicts["valid"].passed and verdicts["fair"].passed
    assert verdicts["reaches"].mistake == "" and "over the target of 50" in verdicts["reaches"].message


def test_a_broken_rule_is_named_in_every_group():
    def my_policy(requests, max_num_batched_tokens, max_chunk, max_num_seqs):
        return [Chunk(r.id, 0, r.num_tokens) for r in requests]

    for group in POLICY.groups:
        message = evaluate(POLICY, group, my_policy).message
        assert "broke a rule: my_policy returned Chunk" in message and "its chunk starts there" in message


@pytest.mark.parametrize(
    ("plan", "says"),
    [("None", "returned None, wanted a tuple of Chunk"), ("()", "plans nothing, although there is")],
)
def test_no_plan_at_all_is_told_apart_from_an_empty_one(plan, says):
    fn = POLICY.compile(
        f"def my_policy(requests, max_num_batched_tokens, max_chunk, max_num_seqs):\n    return {plan}\n"
    )
    assert says in evaluate(POLICY, POLICY.group("valid"), fn).message


# A real server, and the questions


def test_a_server_that_does_not_start_is_one_sentence():
    with pytest.raises(UserError, match="the server did not start: .*no-such-flag"):
        serve_and_load("--no-such-flag")


@pytest.mark.slow
def test_our_own_server_is_started_measured_and_stopped():
    for package in ("starlette", "uvicorn", "httpx"):
        pytest.importorskip(package)
    found = serve_and_load("--max-num-batched-tokens", "128", users=2, prompt_tokens=400)
    assert found["label"] == "measured" and {r["role"] for r in found["requests"]} == {"user", "prompt"}


def test_the_numbers_in_the_questions_are_computed():
    questions = json.loads((ROOT / "solutions" / "09_production.questions.json").read_text("utf-8"))
    right = {q["id"]: next(o["text"] for o in q["options"] if o.get("right")) for q in questions}
    assert right["nb09-q6"] == f"{4 * 1_024:,}" and 4 * 1_024 + 24 == 4_120
    pairs = {sum(work_of([(s, s + c)]).prefill_pairs for s in range(0, 8_192, c)) for c in (64, 1_024)}
    assert len(pairs) == 1 and right["nb09-q2"] == "The number of query-key pairs"
