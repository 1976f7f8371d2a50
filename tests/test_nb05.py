"""Notebook 05: a step that fails changes nothing, a batch changes no bit, the checks see what they should."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from right_answers import right_answers

from autograder import check
from autograder.answers import InProcess
from autograder.check import evaluate
from autograder.drivers import nb05
from autograder.exercise import Returned
from autograder.exercises import EXERCISES
from autograder.judge import judge
from autograder.kept import known_mistakes
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
SEEDS = (check.PUBLIC_SEED, 0)


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
def test_the_states_of_a_plan_hold_every_situation_at_every_seed(group):
    for seed in SEEDS:
        calls = PLAN.group(group).cases(seed)
        requests = [nb05.request_of(row) for call in calls for row in call.args[0]]
        assert any(r.decoding and r.num_cached for r in requests) and any(not r.num_uncomputed for r in requests)
        assert any(not r.decoding and r.num_uncomputed == 1 and r.num_computed >= r.prompt_len for r in requests)
        assert any(r.num_uncomputed > 1 and r.num_computed >= r.prompt_len for r in requests), "past its prompt"
        assert any(r.num_tokens == r.prompt_len == r.num_computed + 1 > 1 for r in requests), "a last prompt token"
        assert any(0 < r.num_cached == r.num_computed for r in requests), "a prefix hit"
        assert {0, 1} <= {budget for _, budget, _, _ in (call.args for call in calls)}
        assert {list, tuple} == {type(call.args[0]) for call in calls} and any(not call.args[0] for call in calls)
        spent = []
        for rows, budget, cap, max_num_seqs in (call.args for call in calls):
            chunks, changed = nb05.plan_step(plan_step, rows, budget, cap, max_num_seqs)
            assert not changed
            spent.append(sum(stop - start for _, start, stop in chunks) == budget)
        assert 10 < sum(spent) < len(calls)


def test_the_steps_of_a_check_hold_every_way_to_finish_at_every_seed():
    for seed in SEEDS:
        ways, turned = set(), False
        for waiting, running, chunks, admitted in (call.args for call in EXERCISES["commit"].groups[0].cases(seed)):
            rows = {row[0]: nb05.request_of(row) for row in running}
            *_, finished = nb05.commit(commit, waiting, running, chunks, admitted)
            turned |= [i for i, *_ in chunks if i in finished] != list(finished)
            for i, start, stop in chunks:
                r, new = rows[i], i in list(rows)[len(rows) - admitted :]
                if i in finished:
                    ways.add((stop - start == 1, start < r.prompt_len, r.num_tokens > r.prompt_len, new))
        assert turned and {way[:3] for way in ways if way[3]} == {(0, 1, 0), (0, 1, 1), (1, 1, 0)}
        assert {way[:3] for way in ways if not way[3]} == {(1, 0, 1), (0, 0, 1), (0, 1, 0), (1, 1, 0), (0, 1, 1)}


# Answers that no check knows by name, and that must earn nothing: written as known mistakes are (autograder/kept.py).

UNNAMED = {
    "plan_step": r"""
        past_the_prompt_by_one
          request.decoding == decoding  ->  (request.num_computed >= request.prompt_len) == decoding
          take = min(  ->  take = 1 if decoding else min(
        A decode of one token for a request that was preempted.

        all_but_the_newest
          request.decoding ==  ->  (request.num_computed == request.num_tokens - 1 >= request.prompt_len) ==
        One whose tokens were found in the cache is no decode yet.

        by_id
          in requests:  ->  in sorted(requests, key=lambda request: request.id):
        Order of the list.

        begun_first
          in requests:  ->  in sorted(requests, key=lambda request: request.num_computed == 0):
        Order of the list.

        behind_the_hit
          Chunk(request.id, request.num_computed  ->  Chunk(request.id, request.num_cached or request.num_computed
        Where it stands.

        one_in_any_case
          left = max_num_batched_tokens  ->  left = max(max_num_batched_tokens, 1)
        A budget of 0.

        a_prompt_in_any_case
          left <= 0 or  ->  left <= (decoding and not all(r.decoding for r in requests)) or
        The last of the budget belongs to a decode.

        shared
          | def plan_step(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs, plan=[]):
          |     left, _ = max_num_batched_tokens, plan.clear()
          |     for r in sorted(requests, key=lambda r: not r.decoding):
          |         take = min(r.num_uncomputed, max_chunk or left, left)
          |         if take and len(plan) < max_num_seqs:
          |             plan.append(Chunk(r.id, r.num_computed, r.num_computed + take))
          |             left -= take
          |     return plan
        One list for all plans.

        marked
          left -= take  ->  left -= take\nrequest.planned = take
        It only reads.

        in_place
          for decoding in  ->  getattr(requests, "sort", lambda key: 0)(key=lambda r: not r.decoding)\nfor decoding in
        It only reads.

        in_floats
          left = max_num_batched_tokens  ->  left = float(max_num_batched_tokens)
        Whole numbers.

        none
          left = max_num_batched_tokens  ->  left = max_num_batched_tokens\nif not requests:\n    return None
        An empty list.
        """,
    "commit": r"""
        first_token_never_last
          if request.why_done()  ->  if request.why_done() and request.num_tokens > request.prompt_len + 1
          not request.why_done()  ->  request.id not in finished
        max_tokens=1.

        the_admitted_go_on
          if request.why_done()  ->  if request.why_done() and request in state.running[: -state.admitted or None]
          not request.why_done()  ->  request.id not in finished
        One step may be all that a request needs.

        newest_or_the_one_before
          chunk.stop == request.num_tokens  ->  request.num_tokens in (chunk.stop, chunk.stop + 1)
        Not the newest.

        not_when_admitted
          chunk.stop == request.num_tokens  ->  chunk.stop == request.num_tokens and chunk.start
        A whole prompt in one chunk.

        in_order_of_id
          return finished  ->  return sorted(finished)
        Order of running.

        a_set
          return finished  ->  return set(finished)
        Order of running.

        a_tuple
          return finished  ->  state.running = tuple(state.running)\nreturn finished
        The next step adds to a list.

        an_iterator
          return finished  ->  state.running = iter(state.running)\nreturn finished
        It is empty when it has been read once.

        copies
          return finished  ->  import copy\nstate.running = copy.deepcopy(state.running)\nreturn finished
        The caller holds the requests themselves.

        popped
          sampled[request.id]  ->  sampled.pop(request.id)
        The caller's own.

        in_floats
          request.num_computed = chunk.stop  ->  request.num_computed = chunk.stop / 1
        Whole numbers.

        prompt_grows
          = chunk.stop  ->  = request.prompt_len = chunk.stop
        Other fields stay.

        shared
          state.chunks,  ->  commit.kept = getattr(commit, "kept", [])\nstate.chunks,
          return finished  ->  commit.kept[:] = finished\nreturn commit.kept
        One list for all steps.

        shared_running
          state.chunks,  ->  commit.kept = getattr(commit, "kept", [])\nstate.chunks,
          return finished  ->  commit.kept[:] = state.running\nstate.running = commit.kept\nreturn finished
        One list for all states.

        stop_token_dropped
          request.token_ids.append(  ->  sampled[request.id] in request.stop_token_ids or request.token_ids.append(
        It is a token of the answer.
        """,
    "abort": r"""
        order_of_the_chunks
          | first, ids = len(state.running) - state.admitted, [c.request_id for c in state.chunks]
          | state.waiting[:0] = sorted(state.running[first:], key=lambda r: ids.index(r.id))
          | del state.running[first:]
          | state.chunks, state.admitted = (), 0
        Order of running.

        one_chunk_is_a_decode
          - state.admitted  ->  - sum(c.start == 0 and c.num_tokens > 1 for c in state.chunks)
        A prompt of one token.

        counted
          (), 0  ->  (), 0\nfor r in state.waiting:\n    r.num_preemptions += 1
        No request was preempted.

        answers_cut
          (), 0  ->  (), 0\nfor r in state.waiting:\n    del r.token_ids[r.prompt_len :]
        Tokens stay.

        a_deque
          (), 0  ->  (), 0\nstate.waiting = __import__("collections").deque(state.waiting)
        begin slices a list.

        copies
          = state.running[first:]  ->  = __import__("copy").deepcopy(state.running[first:])
        The caller holds the requests themselves.

        another_state
          state.chunks, state.admitted = (), 0  ->  state = type(state)(state.waiting, state.running)
        The caller's own.

        no_number
          state.chunks, state.admitted = (), 0  ->  state.chunks, state.admitted = (), None
        A count.
        """,
    "pack_ragged": r"""
        one_number
          | return np.array([0.0])
        Four lists.

        zeros
          | return [0], [0], [0], [0]
        As long as the batch.

        empty
          | return [], [], [], []
        As long as the batch.

        five
          return ids, positions, cu_q, cu_k  ->  return ids, positions, cu_q, cu_k, len(ids)
        Four lists.

        in_floats
          return ids, positions, cu_q, cu_k  ->  return ids, positions, np.array(cu_q, np.float32), cu_k
        Whole numbers.

        in_16_bits
          return ids, positions, cu_q, cu_k  ->  return ids, positions, cu_q, np.array(cu_k).astype(np.int16)
        A batch may have more keys.

        in_a_row
          return ids, positions, cu_q, cu_k  ->  return ids, [positions], cu_q, cu_k
        A list.

        once
          return ids, positions, cu_q, cu_k  ->  return ids, iter(positions), cu_q, cu_k
        A list.

        shared
          cu_k = [], [], [0], [0]  ->  cu_k = vars(pack_ragged).setdefault("ids", []), [], [0], [0]\nids.clear()
        Four lists for all batches.

        the_requests_own_list
          return ids  ->  return next((own for own in tokens.values() if own == ids), ids)
        It grows.

        taken_out
          tokens[chunk.request_id]  ->  tokens.pop(chunk.request_id)
        The caller's own.

        newest_position
          range(chunk.start, chunk.stop)  ->  range(len(tokens[chunk.request_id]))[-chunk.num_tokens :]
        Not the newest ones.
        """,
}
UNNAMED_CASES = [
    pytest.param(name, wrong, id=f"{name}-{wrong.name}")
    for name, text in UNNAMED.items()
    for wrong in known_mistakes(EXERCISES[name].solution, text)
]


@pytest.mark.parametrize("name, wrong", UNNAMED_CASES)
def test_a_wrong_answer_that_no_check_knows_passes_at_no_seed(name, wrong):
    exercise = EXERCISES[name]
    answer = InProcess(exercise.compile(wrong.source), exercise.driver)
    for seed in SEEDS:
        groups = [(group, group.cases(seed)) for group in exercise.groups]
        assert not all(group.judge(calls, answer.run(calls)).passed for group, calls in groups)


@pytest.mark.parametrize("name", UNNAMED)
def test_a_judge_believes_no_lengths(name):
    exercise = EXERCISES[name]
    for group in exercise.groups:
        calls = group.cases(check.PUBLIC_SEED)
        right = InProcess(exercise.compile(right_answers(exercise)[0]), exercise.driver).run(calls)
        changes = (lambda x: (), lambda x: x[1:], lambda x: x[:-1], lambda x: x + x, lambda x: tuple(-i - 1 for i in x))
        for change in changes:
            wrong = [Returned(changed(outcome.value, change)) for outcome in right]
            assert not judge(exercise, group, calls, wrong).passed


def changed(value, change):
    """Plain data with each tuple of numbers in it changed."""
    if isinstance(value, tuple) and all(type(part) is int for part in value):
        return change(value)
    return tuple(changed(part, change) for part in value) if isinstance(value, tuple) else value


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
        ("(Chunk(requests[0].id, 0.5, 1),)", "wanted a whole number"),
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


def test_ignoring_the_cap_or_max_num_seqs_costs_the_knobs_alone():
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
