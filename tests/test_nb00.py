"""Notebook 00: its library functions, what its exercises accept, and that its pictures show the library's numbers."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.check import evaluate
from autograder.exercises import EXERCISES
from course_lib.cost.linear import PRESETS, LinearCost, chunked, exclusive_baseline, mixed_baseline, step_us
from course_lib.engine import Engine
from course_lib.lessons.nb00_freeze import one_shot_timeline, worst_gap
from course_lib.schedule.policies import plan_whole_prompt, whole_prompt_pick
from course_lib.schedule.profiles import profile_named
from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler
from course_lib.weights import seeded_model

M = PRESETS["reference"]
costs = st.builds(LinearCost, st.integers(1, 10_000), st.integers(0, 100), st.integers(0, 1_000))


def message(name, fn):
    exercise = EXERCISES[name]
    return " ".join(evaluate(exercise, group, fn).message for group in exercise.groups)


# The library's functions


@given(costs, st.integers(1, 30_000), st.integers(1, 60))
def test_the_one_shot_timeline_has_the_gap_of_the_exclusive_baseline(m, prompt, users):
    rows = one_shot_timeline(prompt, users, m)
    assert worst_gap(rows) == exclusive_baseline(m, prompt, users).worst_stall_us
    assert [row[2:] for row in rows] == [(0, users), (prompt, 0), (0, users)]
    assert rows[0][0] == 0 and all(a[1] == b[0] for a, b in zip(rows, rows[1:]))
    assert rows[1][1] - rows[1][0] == step_us(prompt, 0, m) == m.step_us(prompt, 0)


def test_the_reference_numbers():
    assert (step_us(8_192, 0, M), step_us(8_192, 24, M), step_us(0, 24, M)) == (150_056, 152_648, 5_192)
    assert worst_gap(one_shot_timeline(8_192, 24, M)) == 155_248
    assert worst_gap([(0, 5_192, 0, 24), (5_192, 157_840, 8_192, 24), (157_840, 163_032, 0, 24)]) == 152_648


@given(st.lists(st.integers(1, 60), max_size=8), st.integers(0, 120), st.integers(0, 5), st.integers(1, 12))
def test_the_policy_picks_what_the_exercise_picks(queue, budget, decodes, seats):
    """Beside decodes, and never more requests than seats."""
    budget, decodes = budget + seats, min(decodes, seats)
    running = [Request(i, [1, 2], num_computed=1, prompt_len=1) for i in range(decodes)]
    waiting = [Request(100 + i, [1] * n) for i, n in enumerate(queue)]
    plan = plan_whole_prompt(running + waiting, max_num_batched_tokens=budget, max_chunk=0, max_num_seqs=seats)
    picked = [100 + i for i in whole_prompt_pick(queue, budget - decodes)][: seats - decodes]
    assert [c.request_id for c in plan] == [*range(decodes), *picked]
    assert all(c.num_tokens == queue[c.request_id - 100] for c in plan[decodes:])
    total = sum(queue[: len(picked)])
    assert total <= budget - decodes
    if len(picked) < min(len(queue), seats - decodes):
        assert total + queue[len(picked)] > budget - decodes


# What the notebook shows


@pytest.mark.parametrize("waiting", [(8_192, 2_048, 300), (700, 7, 1, 5_000)])
def test_every_order_of_whole_prompts_has_the_same_longest_gap(waiting):
    def rows(order):
        start, steps = 0, []
        for tokens, decodes in [(0, 24), *(row for prompt in order for row in ((prompt, 0), (0, 24)))]:
            steps.append((start, start + M.step_us(tokens, decodes), tokens, decodes))
            start = steps[-1][1]
        return steps

    gaps = {worst_gap(rows(order)) for order in permutations(waiting)}
    assert gaps == {exclusive_baseline(M, max(waiting), 24).worst_stall_us}


@pytest.mark.parametrize(("profile", "expected"), [("whole-prompt", []), ("course", [8_168, 832])])
def test_9000_tokens_starve_whole_and_run_in_chunks(profile, expected):
    rules = profile_named(profile)
    cache = rules.new_cache(4_000, 16, enable_prefix_caching=False)
    s = Scheduler(cache, rules, max_num_batched_tokens=8_192, max_num_seqs=64, refuse_stuck=False)
    for user in range(24):
        s.add(Request(user, [user] * 20, max_tokens=2_000))
    planned = []
    for number in range(1_000):
        if number == 10:
            s.add(Request(24, [1] * 9_000, max_tokens=1))
        step = s.schedule()
        planned += [chunk.num_tokens for i, chunk in step.chunks.items() if i == 24]
        ends = [i for i, chunk in step.chunks.items() if chunk.stop == s.requests[i].num_tokens]
        s.commit(step, dict.fromkeys(ends, 0))
    assert planned == expected


def test_the_real_engine_starves_it_too():
    model = seeded_model("tiny")
    knobs = {"num_blocks": 40, "block_size": 8, "max_num_batched_tokens": 64, "refuse_stuck": False}
    engine = Engine(model, enable_chunked_prefill=False, **knobs)
    request = engine.add_request([1] * 70, max_tokens=1)
    for _ in range(1_000):
        engine.step()
    assert request.num_computed == 0 and not request.generated
    chunks = Engine(model, **knobs)
    request = chunks.add_request([1] * 70, max_tokens=1)
    assert len(chunks.run()) == 2 and len(request.generated) == 1


# The exercises


def test_the_cost_that_an_answer_gets_is_the_librarys_and_its_step_us_is_no_answer():
    seen = []

    def own(prefill, decodes, m):
        seen.append(m)
        return m.fixed_us + m.prefill_us_per_token * prefill + m.decode_us * decodes

    assert message("step_us", own) == "" and all(isinstance(m, LinearCost) for m in seen)
    said = message("step_us", lambda prefill, decodes, m: m.step_us(prefill, decodes))
    assert "the library's own course_lib.cost.linear.step_us" in said


def test_a_timeline_may_use_the_costs_step_us_and_rows_of_any_kind():
    def lists(prompt, users, m):
        rows = []
        for tokens, decodes in [(0, users), (prompt, 0), (0, users)]:
            start = rows[-1][1] if rows else 0
            rows.append([start, start + m.step_us(tokens, decodes), tokens, decodes])
        return rows

    assert message("one_shot_timeline", lists) == ""
    assert message("one_shot_timeline", lambda *a: tuple(map(tuple, lists(*a)))) == ""
    assert message("one_shot_timeline", lambda *a: np.array(lists(*a), dtype=np.int32)) == ""
    assert "wanted whole numbers" in message("one_shot_timeline", lambda *a: np.array(lists(*a), dtype=float))


def test_messages_say_which_baseline():
    said = message("one_shot_timeline", EXERCISES["one_shot_timeline"].compile(
        EXERCISES["one_shot_timeline"].wrong_answer("mixed").source))  # fmt: skip
    assert "row 1 has stop_us = 157,840, it should be 155,248" in said and "mixed baseline" in said
    said = message("worst_gap", EXERCISES["worst_gap"].compile(
        EXERCISES["worst_gap"].wrong_answer("longest_step").source))  # fmt: skip
    assert "the exclusive baseline, is 150,056 us, it should be 155,248 us" in said


def test_a_pick_may_be_any_sequence_and_a_set_of_true_and_false_is_none():
    for kind in (list, tuple, np.array, lambda picked: np.array(picked, dtype=np.int16)):
        assert message("whole_prompt_pick", lambda q, b, kind=kind: kind(whole(q, b))) == ""
    said = message("whole_prompt_pick", lambda q, b: [i in whole(q, b) for i in range(len(q))])
    assert "wanted a list of places" in said


def whole(queue, budget):
    return [i for i in range(len(queue)) if sum(queue[: i + 1]) <= budget]


# Wrong answers that once passed, and others of their kinds

WRONG = {  # what must stay true -> (exercise, answer)
    "equal prompts have their own places": (
        "whole_prompt_pick",
        "lambda q, b: [q.index(t) for i, t in enumerate(q) if sum(q[: i + 1]) <= b]",
    ),
    "equal prompts have their own tokens": (
        "whole_prompt_pick",
        "lambda q, b: [i for i in range(len(q)) if sum(set(q[: i + 1])) <= b]",
    ),
    "of three equal prompts three run": (
        "whole_prompt_pick",
        "lambda q, b: [i for i, t in enumerate(q) if sum(q[: i + 1]) <= b and (not i or t != q[i - 1])]",
    ),
    "a budget of 0 takes nothing": (
        "whole_prompt_pick",
        "lambda q, b: [i for i in range(len(q)) if sum(q[: i + 1]) <= max(b, 1)]",
    ),
    "True is no place": (
        "whole_prompt_pick",
        "lambda q, b: np.array([i for i in range(len(q)) if sum(q[: i + 1]) <= b]) > 0",
    ),
    "the queue keeps its prompts": (
        "whole_prompt_pick",
        "lambda q, b: [whole(q, b), q.sort()][0]",
    ),
    "the fixed part comes from m": ("step_us", "lambda p, d, m: 2_600 + m.prefill_us_per_token * p + m.decode_us * d"),
    "a free decode is free": (
        "step_us",
        "lambda p, d, m: m.fixed_us + m.prefill_us_per_token * p + (m.decode_us or 108) * d",
    ),
    "two costs of a step are two": (
        "step_us",
        "lambda p, d, m, seen={}: seen.setdefault((p, d), m.fixed_us + m.prefill_us_per_token * p + m.decode_us * d)",
    ),
    "users who change change the timeline": (
        "one_shot_timeline",
        "lambda p, u, m, seen={}: seen.setdefault((p, m), timeline(p, u, m))",
    ),
    "prompts that change change the timeline": (
        "one_shot_timeline",
        "lambda p, u, m, seen={}: seen.setdefault((u, m), timeline(p, u, m))",
    ),
    "a timeline lasts": (
        "one_shot_timeline",
        "lambda p, u, m, rows=[]: (rows.clear(), rows.extend(timeline(p, u, m)), rows)[2]",
    ),
    "one user is a user": ("worst_gap", "lambda steps: gap([stop for _, stop, _, d in steps if d > 1] or [0, 0])"),
    "a step with a prompt may have decodes": ("worst_gap", "lambda steps: gap([s[1] for s in steps if not s[2]])"),
    "a long wait may come late": ("worst_gap", "lambda steps: gap([s[1] for s in steps if s[3]][:6])"),
    "the first stop is no token without decodes": (
        "worst_gap",
        "lambda steps: gap([steps[0][1], *(s[1] for s in steps[1:] if s[3])])",
    ),
    "a timeline keeps its steps": (
        "worst_gap",
        "lambda steps: (None if steps[0][3] else steps.pop(0), gap([s[1] for s in steps if s[3]]))[1]",
    ),
}


def timeline(prompt, users, m):
    edges = [0, *np.cumsum([m.step_us(0, users), m.step_us(prompt, 0), m.step_us(0, users)]).tolist()]
    return list(zip(edges, edges[1:], (0, prompt, 0), (users, 0, users)))


def gap(stops):
    return max(b - a for a, b in zip(stops, stops[1:]))


@pytest.mark.parametrize("fact", WRONG)
def test_an_answer_against_the_fact_fails_at_every_seed(fact):
    name, source = WRONG[fact]
    exercise = EXERCISES[name]
    for seed in (2, 0, 11):
        fn = eval(source, globals())
        assert not evaluate(exercise, exercise.groups[0], fn, seed).passed


@pytest.mark.parametrize("name, fn", [("one_shot_timeline", timeline), ("whole_prompt_pick", whole)])
def test_what_an_answer_returned_must_stay(name, fn):
    buffer = []

    def answer(*args):
        buffer[:] = fn(*args)
        return buffer

    assert message(name, fn) == ""
    assert "is another after the next call. Return a new list" in message(name, answer)


def test_a_queue_that_is_emptied_is_an_argument_changed():
    def pops(queue, budget):
        picked = []
        while queue and queue[0] <= budget:
            budget -= queue.pop(0)
            picked.append(len(picked))
        return picked

    assert "changed its argument queue. The caller still needs it" in message("whole_prompt_pick", pops)


def test_the_check_gives_worst_gap_a_list_as_the_notebook_does():
    seen = []
    message("worst_gap", lambda steps: seen.append(steps) or 0)
    assert all(type(steps) is list and {type(row) for row in steps} == {tuple} for steps in seen)


# The explorer


@pytest.mark.parametrize("prompt", [1_024, 8_192, 32_768])
@pytest.mark.parametrize("users", [0, 1, 24, 48])
@pytest.mark.parametrize("setting", ["chunks", "one chunk", "alone", "mixed"])
def test_the_bars_are_the_librarys_steps(prompt, users, setting):
    from course_lib.widgets.stall import ALONE, BEFORE, COST, MIXED, line_of, steps_of

    alone = setting == "alone"
    chunk = {"chunks": 1_024, "one chunk": prompt}.get(setting, 1)
    line = line_of(prompt, users, setting in ("chunks", "one chunk"), chunk, ALONE if alone else MIXED)
    wanted = {
        "chunks": chunked(M, prompt, users, 1_024),
        "alone": exclusive_baseline(M, prompt, users),
    }.get(setting, mixed_baseline(M, prompt, users))
    assert line == wanted and COST == M
    bars = steps_of(line, alone)
    before = BEFORE if users else 0
    assert [sum(bar) for bar in bars[before:]][: len(line.step_us)] == list(line.step_us)
    assert sum(prompt_us for _, prompt_us, _ in bars) == prompt * M.prefill_us_per_token
    assert all(min(bar) >= 0 for bar in bars)
    assert sum(sum(bar) for bar in bars[before:]) == (sum(line.gap_us) if users else sum(line.step_us))


def test_the_explorer_tells_the_reference_numbers():
    pytest.importorskip("matplotlib")
    from course_lib.widgets.stall import MIXED, explore_stall

    e = explore_stall()
    assert "150.1 ms" in e.sentence and "155.2 ms" in e.sentence and "exclusive baseline" in e.sentence
    assert "152.6 ms" in e.set(unchunked=MIXED) and "mixed baseline" in e.sentence
    said = e.set(chunking=True)
    assert "8 chunks of up to 1,024" in said and "189.0 ms" in said and "23.6 ms" in said and "no steps take" in said
    assert "the same as the mixed baseline" in e.set(chunk=8_192) and "152.6 ms" in e.sentence
    assert "nobody is frozen" in e.set(users=0)
    e.set(prompt=32_768, users=48, chunk=128)
    assert e.png().startswith(b"\x89PNG")
