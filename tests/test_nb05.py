"""Notebook 05: a step that fails changes nothing, a batch changes no bit, the checks see what they should."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from right_answers import right_answers

from autograder import check
from autograder.check import evaluate
from autograder.exercises import EXERCISES, nb05_plan
from course_lib.lessons.nb01_divisible import KVCache, run_chunk
from course_lib.lessons.nb05_budget import (
    State,
    abort,
    begin,
    commit,
    forward_ragged,
    generate_alone,
    pack_ragged,
    preempt,
    trim,
)
from course_lib.model import Model
from course_lib.prefill import one_pass
from course_lib.schedule.plan import plan_step
from course_lib.schedule.request import Chunk, Request
from course_lib.weights import seeded_model
from course_lib.widgets.budget import STEPS, explore_budget, history, plan_unchecked

TINY = seeded_model("tiny", arith="exact")
PLAN = EXERCISES["plan_step"]


def prompt(length, salt=0):
    return [(7 * i * i + 3 * i + 11 * salt) % 128 for i in range(length)]


def new_cache():
    return KVCache(TINY.config.num_layers, TINY.config.kv_heads, TINY.config.head_dim)


def seen(state):
    """All of a state that a step could change."""
    requests = sorted([*state.waiting, *state.running], key=lambda r: r.id)
    queues = [r.id for r in state.waiting], [r.id for r in state.running], state.chunks, state.admitted
    return (*queues, [(r.id, tuple(r.token_ids), r.num_computed) for r in requests])


# Plan, compute, commit


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.data())
def test_failed_steps_and_preemptions_change_no_token_and_no_order(lengths, data):
    """Against a server to which nothing happens: fake logits choose a token from the request's own tokens."""
    max_num_seqs, answer = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    budget, cap = data.draw(st.integers(max_num_seqs, 9)), data.draw(st.integers(0, 4))
    fate = st.sampled_from(["goes well", "goes well", "fails", "preempts"])
    state = State(waiting=[Request(i, prompt(n, i), max_tokens=answer) for i, n in enumerate(lengths)])
    requests, troubles = list(state.waiting), 0
    for _ in range(400):
        if not state.waiting and not state.running:
            break
        happens = data.draw(fate) if troubles < 6 else "goes well"
        troubles += happens != "goes well"
        if happens == "preempts" and state.running:
            victim = preempt(state)
            assert state.waiting[0] is victim and victim.num_uncomputed == len(victim.token_ids)
        before = seen(state)
        knobs = {"max_num_batched_tokens": budget, "max_chunk": cap, "max_num_seqs": max_num_seqs}
        plan = plan_step((*state.running, *state.waiting), **knobs)
        assert seen(state) == before, "a plan changes nothing"
        begin(state, plan)
        if happens == "fails":
            abort(state)
            assert seen(state) == before, "an aborted step leaves the state as it was"
            continue
        counts = {r.id: len(r.token_ids) for r in requests}
        ends = {c.request_id for c in plan if c.stop == counts[c.request_id]}
        commit(state, {c.request_id: sum(requests[c.request_id].token_ids[: c.stop]) % 128 for c in plan})
        assert {r.id for r in requests if len(r.token_ids) > counts[r.id]} == ends
        assert all(r.num_computed < len(r.token_ids) for r in state.running)
    for i, r in enumerate(requests):
        wanted = prompt(lengths[i], i)
        for _ in range(answer):
            wanted.append(sum(wanted) % 128)
        assert r.token_ids == wanted


def test_a_step_that_cannot_be_opened_changes_nothing():
    first, second = Request(0, prompt(4)), Request(1, prompt(4))
    state = State(waiting=[first, second])
    for plan, says in (((), "nothing in the plan"), ((Chunk(1, 0, 4),), "overtake")):
        before = seen(state)
        with pytest.raises(ValueError, match=says):
            begin(state, plan)
        assert seen(state) == before
    begin(state, (Chunk(0, 0, 2),))
    with pytest.raises(ValueError, match="still open"):
        begin(state, (Chunk(1, 0, 4),))


# One forward for all requests


def test_a_ragged_batch_leaves_each_requests_bits_as_they_are_alone():
    tokens = {0: prompt(9, 0), 1: prompt(14, 1), 2: prompt(6, 2)}
    caches = {i: new_cache() for i in tokens}
    steps = [
        (Chunk(0, 0, 8), Chunk(1, 0, 3)),
        (Chunk(1, 3, 4), Chunk(0, 8, 9), Chunk(2, 0, 5)),
        (Chunk(2, 5, 6), Chunk(1, 4, 14)),
    ]
    last = {}
    for plan in steps:
        logits = forward_ragged(TINY, pack_ragged(plan, tokens), [caches[c.request_id] for c in plan])
        last |= {c.request_id: row for c, row in zip(plan, logits)}
    for i, ids in tokens.items():
        whole = one_pass(TINY, ids)
        assert np.array_equal(last[i], whole.logits)
        for layer in range(TINY.config.num_layers):
            k, v = caches[i].view(layer)
            assert np.array_equal(k, whole.k[layer]) and np.array_equal(v, whole.v[layer])


def test_the_engine_and_both_lessons_run_one_and_the_same_layer(monkeypatch):
    ids, layer = prompt(9), Model.layer

    def three_ways():
        ragged = forward_ragged(TINY, pack_ragged((Chunk(0, 0, 9),), {0: ids}), [new_cache()])
        return one_pass(TINY, ids).logits, run_chunk(TINY, ids, new_cache()), ragged[0]

    right = three_ways()
    monkeypatch.setattr(Model, "layer", lambda model, w, x, *rest: layer(model, w, x, *rest) + x)
    changed = three_ways()
    for engine, one_chunk, ragged in (right, changed):
        assert np.array_equal(engine, one_chunk) and np.array_equal(engine, ragged)
    assert not np.isclose(right[0], changed[0]).any()


def test_a_ragged_batch_works_in_exact_arithmetic_only():
    batch = pack_ragged((Chunk(0, 0, 3),), {0: prompt(3)})
    with pytest.raises(ValueError, match="forward_ragged works in exact arithmetic, not tile"):
        forward_ragged(TINY.with_arithmetic("tile"), batch, [new_cache()])


def test_a_forward_that_fails_in_the_middle_is_forgotten_by_trim():
    tokens, cache = {0: prompt(10)}, new_cache()
    forward_ragged(TINY, pack_ragged((Chunk(0, 0, 4),), tokens), [cache])
    batch = pack_ragged((Chunk(0, 4, 10),), tokens)
    with pytest.raises(MemoryError, match="layer 1"):
        forward_ragged(TINY, batch, [cache], out_of_memory_in=1)
    assert [len(cache.view(layer)[0]) for layer in range(3)] == [10, 4, 4]
    trim(cache, 4)
    logits = forward_ragged(TINY, batch, [cache])
    assert np.array_equal(logits[0], one_pass(TINY, tokens[0]).logits)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda i, p, q, k: (i, p, q[:-1], k), "3 numbers that begin with 0"),
        (lambda i, p, q, k: (i, p, [1, *q[1:]], k), "begin with 0"),
        (lambda i, p, q, k: (i[:-1], p, q, k), "cu_q says"),
        (lambda i, p, q, k: (i, p, [0, 0, q[-1]], k), "cu_q says"),
        (lambda i, p, q, k: ([128, *i[1:]], p, q, k), "0 .. 127"),
        (lambda i, p, q, k: (i, [-1, *p[1:]], q, k), "0 or more"),
        (lambda i, p, q, k: (i, p, q, [0, 1, k[-1]]), "at least its own"),
        (lambda i, p, q, k: (i, p, q, [0, k[1], k[-1] + 1]), "there are"),
    ],
)
def test_lists_that_do_not_fit_together_are_refused_before_anything_is_appended(change, says):
    caches = [new_cache(), new_cache()]
    batch = pack_ragged((Chunk(0, 0, 3), Chunk(1, 0, 2)), {0: prompt(3), 1: prompt(5)})
    with pytest.raises(ValueError, match=says):
        forward_ragged(TINY, change(*batch), caches)
    assert all(len(cache.view(layer)[0]) == 0 for cache in caches for layer in range(3))


def test_alone_means_the_likeliest_token_after_one_pass_over_all_before_it():
    ids = prompt(7)
    for token in generate_alone(TINY, ids, 3):
        assert token == int(one_pass(TINY, ids).logits.argmax())
        ids.append(token)


# The checks


@pytest.mark.parametrize("group", ["budget", "knobs"])
def test_the_states_of_a_check_hold_every_situation_and_the_wanted_plan_is_the_librarys(group):
    calls = PLAN.group(group).cases(check.PUBLIC_SEED)
    rows = [row for call in calls for row in call.facts["rows"]]
    assert any(r.decoding for r in rows) and any(r.computed == r.tokens for r in rows)
    assert any(r.tokens > r.prompt > r.computed for r in rows), "a request to recompute"
    assert any(r.computed == r.prompt - 1 and r.tokens == r.prompt for r in rows), "a last prompt token"
    assert any(0 < r.cached == r.computed for r in rows), "a prefix hit"
    full = 0
    for call in calls:
        numbers, budget, cap, seats = call.args
        requests = nb05_plan.requests_of(numbers)
        before = copy.deepcopy([vars(r) for r in requests])
        plan = plan_step(requests, max_num_batched_tokens=budget, max_chunk=cap, max_num_seqs=seats)
        assert [vars(r) for r in requests] == before
        assert [r.decoding for r in requests] == [row.decoding for row in call.facts["rows"]]
        assert [[c.request_id, c.start, c.stop] for c in plan] == nb05_plan.wanted(
            call.facts["rows"], budget, cap, seats
        )
        full += sum(c.num_tokens for c in plan) == budget
    assert 10 < full < len(calls)


def test_a_plan_step_may_take_its_knobs_without_their_names_and_return_a_list():
    def mine(requests, budget, cap, seats):
        knobs = {"max_num_batched_tokens": budget, "max_chunk": cap, "max_num_seqs": seats}
        return list(PLAN.compile(right_answers(PLAN)[0])(requests, **knobs))

    assert all(evaluate(PLAN, group, mine).passed for group in PLAN.groups)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("None", "it returned None, wanted a tuple of Chunks"),
        ("[(0, 1, 2)]", "is no Chunk"),
        ("(Chunk(99, 0, 1),)", "request 99, which it was not given"),
        ("(Chunk(requests[0].id, 0.5, 1),)", "whole numbers"),
    ],
)
def test_what_is_no_plan_is_described(returned, says):
    head = "def plan_step(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):\n    return "
    verdict = evaluate(PLAN, PLAN.group("budget"), PLAN.compile(head + returned))
    assert not verdict.passed and says in verdict.message and not verdict.mistake


def test_a_negative_chunk_is_told_apart_from_a_budget_that_is_not_checked():
    negative = evaluate(PLAN, PLAN.group("budget"), PLAN.compile(PLAN.wrong_answer("negative_take").source))
    assert "a chunk at least one" in negative.what and "negative" in negative.message
    unchecked = evaluate(PLAN, PLAN.group("budget"), PLAN.compile(PLAN.wrong_answer("unchecked_decodes").source))
    assert "plans 12 tokens; the budget is 8" in unchecked.what


def test_ignoring_the_cap_or_the_seats_costs_the_knobs_alone():
    for name in ("no_cap", "cap_for_the_step", "no_max_num_seqs"):
        budget, knobs = (evaluate(PLAN, g, PLAN.compile(PLAN.wrong_answer(name).source)) for g in PLAN.groups)
        assert budget.passed and knobs.mistake == name


@pytest.mark.parametrize("exercise", ["commit", "abort"])
def test_a_broken_state_is_an_outcome_and_not_a_crash(exercise):
    e = EXERCISES[exercise]
    arguments = "state, sampled" if exercise == "commit" else "state"
    for body in ("state.running = [1]; return []", "del state.waiting; return []", "state.running = None; return []"):
        verdict = evaluate(e, e.groups[0], e.compile(f"def {exercise}({arguments}):\n    {body}\n"))
        assert not verdict.passed and verdict.what


# The explorer


def test_the_explorer_tells_who_gets_nothing_and_when_a_first_token_is_there():
    explorer = explore_budget()
    said = explorer.set(users=12, budget=8, rule="unchecked decodes")
    assert "12 tokens of a budget of 8, 4 too many" in said and "prompt" not in said
    assert "4 of 12 users get no token" in explorer.set(rule="plan_step")
    assert "first token of the answer is there for prompt 0" in explorer.set(users=0, prompts=1, budget=10, step=3)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 24), st.integers(0, 4), st.integers(4, 64), st.integers(0, 32))
def test_the_explorers_steps_keep_the_budget_and_the_unchecked_ones_keep_all_decodes(users, prompts, budget, cap):
    for chunks in history("plan_step", users, prompts, budget, cap):
        assert sum(c.num_tokens for c in chunks.values()) <= budget
    naive = history("unchecked decodes", users, prompts, budget, cap)
    assert len(naive) == STEPS and all(set(range(users)) <= chunks.keys() for chunks in naive)


def test_the_explorers_unchecked_planner_is_the_lessons_mistake():
    crowd = [Request(i, [0] * 9, prompt_len=8, num_computed=8) for i in range(12)] + [Request(12, [0] * 20)]
    knobs = {"max_num_batched_tokens": 8, "max_chunk": 0, "max_num_seqs": 64}
    assert [c.request_id for c in plan_unchecked(crowd, **knobs)] == list(range(12))
