"""The scheduler's own promises: a step is planned, then committed or undone, and nothing is half done."""

import json

import numpy as np
import pytest
from oracle_model import OracleModel

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex
from course_lib.engine import Engine
from course_lib.schedule.profiles import PROFILES, profile_named
from course_lib.schedule.request import Chunk, Request
from course_lib.schedule.scheduler import Scheduler


def scheduler(profile="course", blocks=100, size=4, budget=16, cap=0, seqs=8, **more):
    rules = profile_named(profile)
    cache = rules.new_cache(blocks, size)
    return Scheduler(cache, rules, max_num_batched_tokens=budget, max_chunk=cap, max_num_seqs=seqs, **more)


def run(s, steps=1, token=7):
    for _ in range(steps):
        step = s.schedule()
        ends = {i: s.requests[i].num_tokens for i in step.chunks}
        record = s.commit(step, {i: token for i, n in ends.items() if step.chunks[i].stop == n})
        s.check()
    return record


def test_computed_advances_and_blocks_are_found_at_commit_not_before():
    s = scheduler()
    first, twin = Request(0, list(range(8)), max_tokens=9), Request(1, list(range(8)), max_tokens=9)
    s.add(first)
    step = s.schedule()
    assert first.num_computed == 0 and s.cache.match(twin) == []
    s.commit(step, {0: 1})
    assert first.num_computed == 8 and len(s.cache.match(twin)) == 1


def test_a_vllm_twin_of_the_same_step_hits_and_a_course_twin_computes():
    for profile, hit in (("vllm-0.33.0", 4), ("course", 0)):
        s = scheduler(profile, budget=32)
        for number in range(2):
            s.add(Request(number, list(range(8)), max_tokens=1))
        assert dict(run(s).hits) == {0: 0, 1: hit}, profile


@pytest.mark.parametrize("profile", PROFILES)
def test_an_undone_step_leaves_every_request_where_it_was(profile):
    s = scheduler(profile, budget=32)
    running = Request(0, list(range(9)), max_tokens=9)
    s.add(running)
    run(s)
    s.add(Request(1, list(range(9)), max_tokens=2))
    s.add(Request(2, [50, 51], max_tokens=2))
    before = (running.num_computed, list(running.token_ids), s.cache.num_free, [r.id for r in s.waiting])
    step = s.schedule()
    assert step.admitted
    s.undo(step)
    s.check()
    new_blocks = len(running.block_table) - 3
    assert (running.num_computed, running.token_ids, s.cache.num_free + new_blocks) == before[:3]
    assert [r.id for r in s.waiting] == before[3]
    again = run(s)
    assert {i for i, *_ in again.chunks} == {chunk.request_id for chunk in step.chunks.values()}


def test_blocks_of_an_undone_step_are_not_found():
    s = scheduler("vllm-0.33.0")
    s.add(Request(0, list(range(9)), max_tokens=1))
    step = s.schedule()
    twin = Request(1, list(range(9)))
    assert len(s.cache.match(twin)) == 2, "published when scheduled"
    s.undo(step)
    assert s.cache.match(twin) == []


def test_a_step_is_done_once():
    s = scheduler()
    s.add(Request(0, [1, 2], max_tokens=3))
    step = s.schedule()
    with pytest.raises(RuntimeError, match="neither been committed nor undone"):
        s.schedule()
    with pytest.raises(RuntimeError, match="commit or undo it before"):
        s.abort(0)
    s.commit(step, {0: 5})
    for again in (lambda: s.commit(step, {0: 5}), lambda: s.undo(step)):
        with pytest.raises(RuntimeError, match="done already"):
            again()


@pytest.mark.parametrize("sampled", [{}, {0: 1, 1: 1}, {1: 1}])
def test_tokens_for_other_requests_than_those_that_end_are_refused_before_anything_advances(sampled):
    s = scheduler(budget=8)
    s.add(Request(0, [1, 2], max_tokens=3))
    s.add(Request(1, list(range(20)), max_tokens=3))
    step = s.schedule()
    with pytest.raises(ValueError, match=r"chunks end in those of \[0\]"):
        s.commit(step, sampled)
    assert s.requests[0].num_computed == 0
    s.commit(step, {0: 1})


@pytest.mark.parametrize(
    ("arguments", "request_", "says"),
    [
        ({}, Request(0, []), "0 tokens"),
        ({}, Request(0, [1], max_tokens=0), "max_tokens=0"),
        ({"blocks": 2}, Request(0, [0] * 5, max_tokens=5), "need 3 blocks of 4, and the pool has 2"),
        ({"profile": "whole-prompt", "budget": 8}, Request(0, [0] * 9, max_tokens=1), "max_num_batched_tokens is 8"),
        ({"enable_chunked_prefill": False, "budget": 8}, Request(0, [0] * 9, max_tokens=1), "without chunking"),
        ({"profile": "tensorrt-llm", "cap": 3}, Request(0, [0] * 9), "holds no whole block of 4"),
        ({"profile": "sglang-prefill-first", "cap": 3}, Request(0, [0] * 9), "holds no whole block of 4"),
    ],
)
def test_what_can_never_finish_is_refused_with_the_reason(arguments, request_, says):
    s = scheduler(**arguments)
    with pytest.raises(ValueError, match="can never finish") as error:
        s.add(request_)
    assert says in str(error.value)
    assert not s.requests and not s.waiting
    relaxed = scheduler(**arguments, refuse_stuck=False)
    relaxed.add(request_)
    assert len(relaxed.waiting) == 1


@pytest.mark.parametrize("tokens", [8, 9])
def test_a_request_that_just_fits_the_pool_finishes_alone_and_one_token_more_is_refused(tokens):
    s = scheduler(blocks=3)  # 12 slots; the last token that is generated needs none
    request = Request(0, [0] * tokens, max_tokens=5)
    if tokens == 9:
        with pytest.raises(ValueError, match="13 tokens need 4 blocks"):
            s.add(request)
        return
    s.add(request)
    while s.requests:
        run(s)
    assert request.finish_reason == "length" and len(request.generated) == 5


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"seqs": 0}, "max_num_seqs=0"),
        ({"seqs": 17}, "1 <= max_num_seqs <= max_num_batched_tokens"),
        ({"cap": -1}, "max_chunk=-1"),
    ],
)
def test_knobs_that_no_schedule_can_honour_are_refused(knobs, says):
    with pytest.raises(ValueError, match=says):
        scheduler(**knobs)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (lambda rs, **_: (Chunk(9, 0, 1),), "was not given a request 9"),
        (lambda rs, **_: (Chunk(0, 0, 1), Chunk(0, 0, 1)), "two chunks of request 0"),
        (lambda rs, **_: (Chunk(0, 1, 2),), "has 0 tokens computed: its chunk starts there"),
        (lambda rs, **_: (Chunk(0, 0, 0),), "at least one token"),
        (lambda rs, **_: (Chunk(0, 0, 99),), "stops at 40 at the latest"),
        (lambda rs, **_: (Chunk(0, 0, 17),), "max_num_batched_tokens=16"),
        (lambda rs, **_: None, "returned None, expected a tuple of Chunk"),
        (lambda rs, **_: 5, "returned 5, expected a tuple of Chunk"),
        (lambda rs, **_: [(0, 0, 1)], "expected a tuple of Chunk"),
        (lambda rs, **_: (Chunk(0, 0, 2.0),), "in whole numbers"),
        (lambda rs, **_: setattr(rs[0], "num_computed", 3) or (Chunk(0, 0, 3),), r"changed num_computed of \[0\]"),
        (lambda rs, **_: 1 / 0, "division"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_and_the_next_step_works(plan, says):
    s = scheduler(plan_step=plan)
    s.add(Request(0, [0] * 40, max_tokens=1))
    with pytest.raises((ValueError, ZeroDivisionError), match=says):
        s.schedule()
    s.check()
    s.plan_step = profile_named("course").policy
    assert run(s).chunks == ((0, 0, 16),)


def test_a_plan_may_be_any_sequence_of_chunks_in_any_whole_numbers():
    for plan in (
        lambda rs, **_: (Chunk(r.id, 0, 3) for r in rs),
        lambda rs, **_: [Chunk(np.int64(r.id), np.int32(0), np.int64(3)) for r in rs],
    ):
        s = scheduler(plan_step=plan)
        s.add(Request(0, [0] * 40, max_tokens=1))
        record = run(s)
        assert record.chunks == ((0, 0, 3),) and all(type(x) is int for x in record.chunks[0])
        json.dumps(record.as_dict())


def test_a_cache_that_never_settles_is_reported():
    class Restless(CacheManager):
        """Says at each question that it has changed, and finds one block every other time."""

        asked = 0

        @property
        def version(self):
            self.asked += 1
            return self.asked

        def match(self, request):
            return [1] * (self.asked // 2 % 2)

    s = Scheduler(Restless(9, 4), profile_named("course"), max_num_batched_tokens=16, max_num_seqs=2)
    s.add(Request(0, [0] * 9, max_tokens=1))
    with pytest.raises(RuntimeError, match="keeps changing its answer"):
        s.schedule()
    s.check()


@pytest.mark.parametrize("profile", ["whole-prompt", "tensorrt-llm", "tensorrt-llm-equal-progress", "sglang-mixed"])
def test_the_hit_counts_before_the_fit_is_judged(profile):
    """Nine tokens do not fit beside a decode in a budget of 9, but the one that is not cached does."""
    s = scheduler(profile, budget=9)
    s.add(Request(0, list(range(9)), max_tokens=1))
    run(s)
    s.add(Request(1, [50], max_tokens=9))
    run(s)
    s.add(Request(2, list(range(9)), max_tokens=1))
    record = run(s)
    assert dict(record.hits) == {2: 8} and set(record.chunks) == {(1, 1, 2), (2, 8, 9)}


def test_hits_of_a_step_that_was_undone_are_not_counted():
    s = scheduler()
    s.add(Request(0, list(range(9)), max_tokens=1))
    for _ in range(3):
        s.undo(s.schedule())
    assert s.cache.stats.num_lookups == 0
    run(s)
    assert (s.cache.stats.num_lookups, s.cache.stats.tokens_wanted) == (1, 9)


@pytest.mark.parametrize("profile", ["course", "vllm-0.33.0", "sglang-mixed"])
def test_disjoint_prompts_have_a_hit_rate_of_0_however_often_they_are_preempted(profile):
    s = scheduler(profile, blocks=20, size=4, budget=64)
    requests = [Request(i, [100 * i + j for j in range(11)], max_tokens=20) for i in range(8)]
    for request in requests:
        s.add(request)
    while s.requests:
        run(s)
    assert sum(r.num_preemptions for r in requests) > 0
    assert (s.cache.stats.num_lookups, s.cache.stats.hit_rate) == (8, 0.0)


@pytest.mark.parametrize("caching, free_order", [(True, [2, 3, 1]), (False, [2, 1, 3])])
def test_the_vllm_profile_frees_in_vllms_order_with_caching_and_without(caching, free_order):
    """Executed on vLLM 0.33.0: block 4, 3 blocks, 5 tokens."""
    rules = profile_named("vllm-0.33.0")
    s = Scheduler(rules.new_cache(3, 4, enable_prefix_caching=caching), rules, max_num_batched_tokens=8, max_num_seqs=1)
    s.add(Request(0, [1, 2, 3, 4, 5], max_tokens=1))
    run(s)
    assert s.cache.allocator.free_order == free_order


def test_the_prefix_cache_is_reset_only_while_nothing_holds_blocks():
    for profile in PROFILES:
        s = scheduler(profile)
        one, twin = (Request(i, list(range(9)), max_tokens=2) for i in range(2))
        s.add(one)
        run(s)
        before = s.cache.num_free, s.cache.stats.num_lookups
        assert not s.reset_prefix_cache() and (s.cache.num_free, s.cache.stats.num_lookups) == before
        run(s)
        s.add(twin)
        step = s.schedule()
        assert not s.reset_prefix_cache(), "a step is being computed"
        s.undo(step)
        assert s.reset_prefix_cache(), "a request that waits holds nothing"
        s.check()
        assert s.cache.match(twin) == [] and s.cache.stats.num_lookups == 0 and s.cache.num_free == 100


def test_a_reset_keeps_the_free_order_as_vllms_does():
    s = scheduler("vllm-0.33.0", blocks=5)
    s.add(Request(0, list(range(9)), max_tokens=1))
    run(s)
    before = s.cache.allocator.free_order
    assert s.reset_prefix_cache() and s.cache.allocator.free_order == before != [1, 2, 3, 4, 5]


def test_without_caching_nothing_is_looked_up():
    rules = profile_named("course")
    cache = rules.new_cache(9, 4, enable_prefix_caching=False)
    s = Scheduler(cache, rules, max_num_batched_tokens=16, max_num_seqs=2)
    s.add(Request(0, [0] * 9, max_tokens=1))
    run(s)
    assert cache.stats.num_lookups == 0


def look_ups(s) -> list[int]:
    """From now on: the request of each call of match."""
    asked, match = [], s.cache.match
    s.cache.match = lambda request: asked.append(request.id) or match(request)
    return asked


def test_a_step_looks_up_about_as_many_as_it_admits():
    """Of a long queue: a decode that fills the budget must not cost a look-up of every waiting request."""
    s = scheduler(budget=8, seqs=8, blocks=1000)
    asked = look_ups(s)
    for number in range(500):
        s.add(Request(number, [number] * 6, max_tokens=2))
    run(s)
    assert set(asked) <= {0, 1, 2, 3}


@pytest.mark.parametrize("profile", PROFILES)
def test_an_admission_takes_one_look_up_when_the_cache_has_not_changed_since(profile):
    s = scheduler(profile, blocks=1000, budget=64, seqs=8)
    asked, admitted = look_ups(s), []
    for number in range(20):  # three tokens fill no block, so nothing is published in between
        s.add(Request(number, [number] * 3, max_tokens=1))
    while s.requests:
        del asked[:]
        admitted += (hits := [i for i, _ in run(s).hits])
        assert len(hits) > 1 and len(set(asked)) == len(asked) and set(hits) <= set(asked)
    assert admitted == list(range(20))


def test_a_policy_that_sees_the_whole_queue_costs_one_look_up_of_each_waiting_request():
    s = scheduler(plan_step=profile_named("course").policy, blocks=1000, budget=64, seqs=4)
    asked = look_ups(s)
    for number in range(20):
        s.add(Request(number, [number] * 9, max_tokens=1))
    assert len(run(s).hits) == 4 and sorted(asked) == list(range(20))


def test_a_request_is_looked_up_again_when_the_cache_has_changed_since():
    """vLLM publishes as it plans: the second of two twins shown at once finds what the first has published."""
    s = scheduler("vllm-0.33.0", budget=64, blocks=1000)
    asked = look_ups(s)
    for number, token in enumerate((0, 1, 1)):  # shown: 0 alone, then 1 and 2
        s.add(Request(number, [token] * 9, max_tokens=1))
    assert dict(run(s).hits) == {0: 0, 1: 0, 2: 8} and asked == [0, 1, 2, 2]


def test_an_undone_step_restores_the_queue_that_a_policy_picked_from():
    def last_first(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
        return [Chunk(r.id, r.num_computed, r.num_computed + 1) for r in requests[::-1]][:max_num_seqs]

    s = scheduler(plan_step=last_first, seqs=2)
    for number in range(4):
        s.add(Request(number, [number] * 5, max_tokens=1))
    step = s.schedule()
    assert [r.id for r in step.admitted] == [3, 2]
    s.undo(step)
    assert [r.id for r in s.waiting] == [0, 1, 2, 3]


def test_a_request_admitted_too_early_goes_back_to_its_place_in_the_queue():
    def plan(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
        first = requests[0]
        if len(requests) != 2:  # beside 3 and 4, or alone, request 0 gets two tokens
            return [Chunk(r.id, r.num_computed, r.num_computed + 2) for r in requests if r.id in (0, 3, 4)]
        return [Chunk(first.id, first.num_computed, first.num_tokens)]  # 4 did not fit: now request 0 gets all

    s = scheduler(plan_step=plan, blocks=4, size=2)
    s.add(Request(0, [0] * 7, max_tokens=2))
    run(s)
    for number in (1, 2, 3, 4):
        s.add(Request(number, [number] * 3, max_tokens=1))
    step = s.schedule()
    assert (step.admitted, step.preempted) == ([], []) and set(step.chunks) == {0}
    assert [r.id for r in s.waiting] == [1, 2, 3, 4] and s.requests[3].num_preemptions == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"profile": "sarathi", "prefix_cache": PrefixIndex()}, "the profile sarathi has no prefix cache"),
        ({"enable_prefix_caching": False, "prefix_cache": PrefixIndex()}, "enable_prefix_caching is False"),
        ({"prefix_cache": PrefixIndex}, "is a class; give an object of it"),
        ({"prefix_cache": object()}, "has no match, publish, forget, __contains__"),
        ({"enable_chunked_prefill": False, "plan_step": lambda *_: ()}, "leave one out"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 8}, "max_num_seqs=64"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        Engine(OracleModel(5), num_blocks=9, **arguments)


def test_a_policy_from_outside_may_serve_the_queue_in_another_order():
    """Shortest prompt first: it sees all that wait, more than max_num_seqs."""

    def shortest(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
        left, chunks = max_num_batched_tokens, []
        for r in sorted(requests, key=lambda r: r.num_uncomputed):
            if r.num_uncomputed <= left and len(chunks) < max_num_seqs:
                chunks.append(Chunk(r.id, r.num_computed, r.num_tokens))
                left -= r.num_uncomputed
        return chunks

    s = scheduler(plan_step=shortest, seqs=2)
    for number, length in enumerate((9, 5, 3, 2)):
        s.add(Request(number, [number] * length, max_tokens=1))
    assert [i for i, *_ in run(s).chunks] == [3, 2]
    assert [i for i, *_ in run(s).chunks] == [1, 0]


def test_an_admission_sees_what_an_earlier_reservation_of_the_same_step_evicted():
    s = scheduler(blocks=7, size=2)
    for number, first in enumerate((0, 10)):
        s.add(Request(number, list(range(first, first + 4)), max_tokens=1))
        run(s)
    s.add(Request(2, list(range(20, 26)), max_tokens=4))
    run(s)
    assert s.cache.allocator.free_order == [2, 1, 4, 3]
    late = Request(3, [0, 1, 2, 3, 9], max_tokens=1)
    s.add(late)
    assert s.cache.match(late) == [1, 2], "both blocks are there before the step"
    record = run(s)
    assert record.chunks == ((2, 6, 7), (3, 2, 5)), "request 2 grew into block 2, so only block 1 is left to hit"
    assert dict(record.hits) == {3: 2}


def test_a_preempted_request_waits_in_front_and_comes_back_with_its_answer():
    s = scheduler(blocks=4, size=2, budget=16)
    a, b = Request(0, [1, 2, 3, 4], max_tokens=4), Request(1, [5, 6, 7, 8], max_tokens=4)
    s.add(a)
    s.add(b)
    run(s)
    s.add(Request(2, [9], max_tokens=1))
    record = run(s)
    assert record.preempted == (1,) and [r.id for r in s.waiting] == [1, 2]
    assert b.token_ids == [5, 6, 7, 8, 7] and b.num_computed == 0 and b.block_table == []
    order = []
    while s.requests:
        order += [i for i, _ in run(s).hits]
    assert order == [1, 2] and len(b.generated) == 4 and b.num_preemptions == 1


def test_stop_tokens_end_a_request_and_those_of_its_prompt_do_not():
    s = scheduler()
    request = Request(0, [7, 7], max_tokens=9, stop_token_ids=frozenset((7,)))
    s.add(request)
    run(s, token=3)
    assert not request.finish_reason
    assert run(s, token=7).finished == (0,) and request.finish_reason == "stop" and request.generated == [3, 7]


def test_abort_frees_blocks_wherever_the_request_is():
    s = scheduler(budget=8, seqs=1)
    s.add(Request(0, [0] * 20, max_tokens=2))
    s.add(Request(1, [0] * 3, max_tokens=2))
    run(s)
    assert s.abort(1).finish_reason == "aborted" and not s.waiting
    assert s.abort(0).finish_reason == "aborted" and s.cache.num_free == 100
    with pytest.raises(KeyError):
        s.abort(0)
    assert run(s).chunks == ()


def test_the_same_id_twice_is_refused():
    s = scheduler()
    s.add(Request(0, [1]))
    with pytest.raises(ValueError, match="request 0 is here already"):
        s.add(Request(0, [1]))
