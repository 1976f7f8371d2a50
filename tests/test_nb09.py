"""Notebook 09: what it measures is what it says, its knobs meet the target, and a policy is judged by what it did."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.answers import InProcess
from autograder.build import ROOT
from autograder.check import evaluate
from autograder.drivers.nb09 import Device
from autograder.exercise import Returned
from autograder.exercises import EXERCISES
from autograder.exercises.nb09_policy import HOPELESS, MOST_STEPS, WORKLOADS
from autograder.kept import known_mistakes
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
HEAD = "def my_policy(requests, max_num_batched_tokens, max_chunk, max_num_seqs):\n"
SEEDS = (2, 0)


def passed(exercise, source, seed=2, groups=None):
    """The names of the groups that an answer passes."""
    answer = EXERCISES[exercise].compile(source)
    return [
        g.name
        for g in EXERCISES[exercise].groups
        if (groups is None or g.name in groups) and evaluate(EXERCISES[exercise], g, answer, seed).passed
    ]


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


# Wrong and right answers that came from outside, as changes of the solution

WRONG = {
    "time_step": r"""
        complex_number
          sorted(times)[repeats // 2]  ->  complex(sorted(times)[repeats // 2])
        A time is one real number.

        list_of_one
          sorted(times)[repeats // 2]  ->  sorted(times)[repeats // 2 : repeats // 2 + 1]
        A list is no number.

        rounded
          sorted(times)[repeats // 2]  ->  round(sorted(times)[repeats // 2])
        A clock may count seconds.

        one_repeat_too_few
          range(repeats)  ->  range(repeats - 1 or 1)
          sorted(times)[repeats // 2]  ->  sorted(times)[len(times) // 2]
        Every repeat counts.

        one_repeat_too_many
          range(repeats)  ->  range(repeats + 1)
        The median is another one then.

        upper_quartile
          sorted(times)[repeats // 2]  ->  sorted(times)[3 * repeats // 4]
        That is not the median.

        read_from_the_device
          | device = run.__closure__[0].cell_contents
          | us = sorted(device.steps)[repeats // 2] + device.launch_us + 3
          | return us * (clock() / device.clock())
        Nothing was measured.
    """,
    "fit_linear": r"""
        sorted_in_place
          columns = np  ->  samples.sort(axis=0)\ncolumns = np
        Each column is sorted by itself, and the caller's samples with it.

        shuffled_in_place
          columns = np  ->  samples[:] = samples[::-1]\ncolumns = np
        The result is right, and the caller's samples are another.

        ones_in_place
          | us = samples[:, 2].copy()
          | samples[:, 2] = 1
          | return np.linalg.lstsq(samples, us, rcond=None)[0][[2, 0, 1]]
        The caller's times are gone.

        complex_numbers
          rcond=None)[0]  ->  rcond=None)[0].astype(complex)
        Costs are real.

        in_float32
          samples[:, 1]])  ->  samples[:, 1]]).astype(np.float32)
          columns, samples[:, 2]  ->  columns, samples[:, 2].astype(np.float32)
        A small fixed part is lost beside long steps.

        one_column
          rcond=None)[0]  ->  rcond=None)[0][:, None]
        Three numbers are asked for, [3].

        without_the_last
          columns = np  ->  samples = samples[:-1]\ncolumns = np
        Every step counts.
    """,
    "recommend": r"""
        context_one_longer
          [longest] * users  ->  [longest + 1] * users
        The docstring says which context to take.

        never_a_chunk_of_1
          return (fits  ->  fits *= fits > 1\nreturn (fits
        One token is a chunk.

        floats
          return (fits, fits + users) if fits else (0, 0)  ->  return float(fits), float(fits + users) if fits else 0.0
        Tokens are counted in whole numbers.

        one_prompt_in_two
          (longest - chunk, longest)  ->  (longest // 2, longest // 2 + chunk)
        The last chunk sees the most keys.

        one_us_more
          <= target_us  ->  <= target_us + 1
        The target is the most.

        one_step_of_the_search_too_few
          too_large - fits > 1  ->  too_large - fits > 2
        The largest chunk is asked for.
    """,
}
WRONG_ANSWERS = [
    (exercise, w) for exercise, text in WRONG.items() for w in known_mistakes(EXERCISES[exercise].solution, text)
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("exercise", "wrong"), WRONG_ANSWERS, ids=lambda given: getattr(given, "name", given))
def test_a_wrong_answer_from_outside_loses_points(exercise, wrong, seed):
    assert len(passed(exercise, wrong.source, seed)) < len(EXERCISES[exercise].groups)


ODD = {
    "time_step": r"""
        percentile
          sorted(times)[repeats // 2]  ->  np.float64(np.percentile(times, 50))
        A NumPy number.

        further_warm_up
          times = []  ->  run(), run(), synchronize(), synchronize()\ntimes = np.zeros(0)
          times.append(clock() - begin)  ->  times = np.append(times, clock() - begin)
        More steps than are needed, and an array.
    """,
    "fit_linear": r"""
        normal_equations
          np.linalg.lstsq(columns  ->  np.linalg.solve(columns.T @ columns
          samples[:, 2], rcond=None)[0]  ->  columns.T @ samples[:, 2]).tolist()
        A list.

        by_qr
          return np.linalg.lstsq(columns  ->  q, r = np.linalg.qr(columns)\nreturn np.linalg.solve(r
          samples[:, 2], rcond=None)[0]  ->  q.T @ samples[:, 2])
        Another way.
    """,
    "recommend": r"""
        one_after_another
          | def fits(chunk):
          |     return cost.work_us(work_of([(longest - chunk, longest)], [longest] * users)) <= target_us
          | best = max((chunk for chunk in range(1, longest + 1) if fits(chunk)), default=0)
          | return [np.int32(best), np.int64(best + users) if best else 0]
        Slow, and NumPy numbers in a list.
    """,
}  # fmt: skip


@pytest.mark.parametrize("exercise", ODD)
def test_an_odd_right_answer_keeps_its_points(exercise):
    for answer in known_mistakes(EXERCISES[exercise].solution, ODD[exercise]):
        for seed in SEEDS:
            assert passed(exercise, answer.source, seed) == [g.name for g in EXERCISES[exercise].groups], answer.name


# The capstone


def test_a_workload_is_the_same_again_and_one_prompt_in_six_is_long():
    for seed in range(5):
        arrivals = list(capstone.mixed_workload(seed))
        assert arrivals == list(capstone.mixed_workload(seed)) != list(capstone.mixed_workload(seed + 1))
        assert [sum(a.prompt_tokens > 500 for a in arrivals[i : i + 6]) for i in range(0, 48, 6)] == [1] * 8
        assert arrivals[-1].time_us == pytest.approx(48e6 / 50, abs=1)
    assert sum(a.prompt_tokens > 7_000 for a in capstone.crowd(1)) == 1


@pytest.mark.slow
def test_the_marks_lie_between_what_is_shipped_and_what_an_idea_reaches():
    seeds = range(1_000, 1_048)
    shares = {}
    for profile, _ in capstone.SHARES:
        if profile not in ("plan_step", "whole-prompt"):
            swept = {b: capstone.share(seeds, profile=profile, budget=b) for b in capstone.SWEPT}
            best = max(swept, key=swept.get)
            shares[profile, best] = round(swept[best])
    whole, full = capstone.WHOLE_PROMPT_BUDGET, capstone.BUDGET
    shares["whole-prompt", whole] = round(capstone.share(seeds, profile="whole-prompt", budget=whole))
    shares["plan_step", full] = round(capstone.share(seeds, policy=plan_step))
    assert shares == capstone.SHARES
    assert max(shares.values()) < capstone.MARKS["reaches"]
    in_order = capstone.share(seeds, policy=POLICY.compile(EARNS["first come, first served"][0]))
    assert capstone.MARKS["beats"] + 10 < in_order < capstone.MARKS["reaches"] - 10
    assert capstone.share(seeds, policy=capstone.my_policy) > capstone.MARKS["reaches"] + 2


PLAN_STEP = "from course_lib.schedule.plan import plan_step\n" + HEAD
AS_GIVEN = "requests, max_num_batched_tokens=max_num_batched_tokens, max_chunk=max_chunk, max_num_seqs=max_num_seqs"
OWN_BUDGET = PLAN_STEP + "    return plan_step(requests, max_num_batched_tokens=min({budget}, max_num_batched_tokens), "
OWN_BUDGET += "max_chunk=max_chunk, max_num_seqs=max_num_seqs)\n"
IN_ORDER = PLAN_STEP + "    requests = sorted(requests, key=lambda r: (not r.decoding, r.num_computed == 0))\n"
IN_ORDER += OWN_BUDGET.removeprefix(PLAN_STEP)
EARNS = {
    "plan_step as it is": (OWN_BUDGET.format(budget=10**9), ["valid", "fair"]),
    "plan_step at 1,900": (OWN_BUDGET.format(budget=1_900), ["valid", "fair", "beats"]),
    "in order at 1,536, as Sarathi-Serve": (IN_ORDER.format(budget=1_536), ["valid", "fair", "beats"]),
    "first come, first served": (
        POLICY.wrong_answer("first_come_first_served").source,
        ["valid", "fair", "beats"],
    ),
    "shortest first without bound": (
        POLICY.wrong_answer("shortest_first_without_bound").source,
        ["valid", "beats", "reaches"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 0, 2**60 + 5, 77])
@pytest.mark.parametrize("name", EARNS)
def test_a_budget_an_order_or_a_limit_alone_earns_the_same_on_every_seed_and_never_all(name, seed):
    source, groups = EARNS[name]
    assert passed("my_policy", source, seed) == groups


def test_a_policy_that_misses_a_mark_is_told_its_share_and_which_target_it_misses():
    reaches = POLICY.group("reaches")
    message = evaluate(POLICY, reaches, POLICY.compile(OWN_BUDGET.format(budget=1_900))).message
    assert f"on {WORKLOADS['reaches']} mixed workloads: 7" in message
    assert "89% are wanted (513 requests, and it is" in message
    assert "within the target of 50; what fails is the time to the first token" in message


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("starves_decodes", "no step took longer than that. So steps left out the decodes"),
        ("ignores_decodes_time", "steps took longer than that. Give a step less work."),
        ("one_prompt_at_a_time", "what fails is the time to the first token: "),
    ],
)
def test_which_target_a_policy_misses_is_told_with_what_it_did(wrong, says):
    message = evaluate(POLICY, POLICY.group("beats"), POLICY.compile(POLICY.wrong_answer(wrong).source)).message
    assert says in message and f"on the first {HOPELESS[0]} of {WORKLOADS['beats']} mixed workloads" in message


def test_a_simulation_that_an_answer_patches_is_not_the_one_that_judges():
    fake = """\
    import course_lib.lessons.nb09_capstone as capstone
    capstone.run = lambda workload, *args, run=capstone.run, **kwargs: run(
        workload, profile="tensorrt-llm-equal-progress", budget=1_792
    )
"""
    run = capstone.run
    try:
        assert passed("my_policy", PLAN_STEP + fake + f"    return plan_step({AS_GIVEN})\n", groups=["beats"]) == []
    finally:
        capstone.run = run


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    my_policy.n = getattr(my_policy, 'n', 0) + 1\n    return plan_step({})[: 1 + my_policy.n % 3]\n",
         "remembers nothing"),
        ("    my_policy.n = getattr(my_policy, 'n', 0) + 1\n    return plan_step({})[: 1 + my_policy.n % 2]\n",
         "remembers nothing"),
        ("    requests[0].block_table.append(1)\n    return plan_step({})\n", "changed 1 of its requests."),
        ("    import random\n    return random.sample(plan_step({}), 1)\n", "remembers nothing"),
        ("    plan = plan_step({})\n    for r in requests:\n        r.token_ids.append(0)\n    return plan\n",
         "of its requests. A policy reads them"),
        ("    requests[0].num_computed += 1\n    return plan_step({})\n", "changed 1 of its requests."),
        ("    plan_step({})\n    return None\n", "returned None, wanted a tuple of Chunk"),
        ("    return ()\n", "plans nothing, although there is"),
        ("    return [(c.request_id, c.start, c.stop) for c in plan_step({})]\n", "wanted a tuple of Chunk"),
        ("    return [Chunk(c.request_id, c.start, c.stop * 1.0) for c in plan_step({})]\n", "in whole numbers"),
        ("    return [Chunk(c.request_id, c.start, 10**30) for c in plan_step({})]\n", "in whole numbers"),
        ("    return [Chunk(c.request_id, c.start, 10**15) for c in plan_step({})]\n", "broke a rule"),
        ("    return plan_step({}) * 2\n", "two chunks of request"),
        ("    return plan_step({})[:-1]\n", "plans nothing, although there is"),
        ("    return [c for c in plan_step({}) if c.num_tokens > 1]\n", "plans nothing, although there is"),
        ("    return [c for c in plan_step({}) if c.num_tokens == 1]\n", "plans nothing, although there is"),
        ("    cap = max_chunk or 512\n    return plan_step(requests, max_num_batched_tokens=max_num_batched_tokens, "
         "max_chunk=max(cap, 2), max_num_seqs=max_num_seqs)\n", "max_chunk is 1"),
    ],
)  # fmt: skip
def test_a_plan_that_is_none_or_breaks_a_rule_loses_valid_and_is_told(body, says):
    fn = POLICY.compile(PLAN_STEP + body.replace("{}", AS_GIVEN))
    for seed in SEEDS:
        assert says in evaluate(POLICY, POLICY.group("valid"), fn, seed).message


@pytest.mark.parametrize(
    "body",
    [
        "    yield from plan_step({})\n",
        "    return list(plan_step({}))\n",
        "    return [Chunk(np.int64(c.request_id), np.int32(c.start), c.stop) for c in plan_step({})]\n",
        "    import types\n    return [types.SimpleNamespace(**vars(c)) for c in plan_step({})]\n",
        "    return {c.request_id: c for c in plan_step({})}.values()\n",
    ],
)
def test_a_plan_may_be_anything_that_holds_chunks(body):
    source = PLAN_STEP + body.replace("{}", AS_GIVEN)
    assert passed("my_policy", source, groups=("valid", "fair")) == ["valid", "fair"]


def test_a_policy_that_never_comes_to_an_end_is_stopped():
    def my_policy(requests, max_num_batched_tokens, max_chunk, max_num_seqs):
        first = next(r for r in requests if r.num_uncomputed)
        return (Chunk(first.id, first.num_computed, first.num_computed + 1),)

    for name in ("fair", "beats"):
        assert f"{MOST_STEPS} steps, and" in evaluate(POLICY, POLICY.group(name), my_policy).message


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


def test_a_run_on_answers_that_travelled_has_the_same_verdict():
    fair, answer = POLICY.group("fair"), InProcess(capstone.my_policy, POLICY.driver)
    asked = []

    def ask(call):
        asked.append(call.args[0].tobytes())
        (outcome,) = answer.run([pickle.loads(pickle.dumps(call))])
        return pickle.loads(pickle.dumps(outcome))

    first, again, other = ((fair.talk(seed, ask).passed, asked.copy(), asked.clear())[:2] for seed in (5, 5, 6))
    assert first == again and first[0] and first[1] != other[1]


def test_what_cannot_be_read_is_refused_in_words():
    for value in ((0, np.zeros(3)), (0, np.zeros((2, 3))), (0, np.zeros((1, 3), bool)), (0, np.full((9, 3), -1))):
        for group in POLICY.groups:
            if group.talk:
                assert not group.talk(2, lambda call, value=value: Returned(value)).passed
            else:
                calls = group.cases(2)
                assert not group.judge(calls, [Returned(value)] * len(calls)).passed


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
