"""Decode-only steps taken at once leave what step by step leaves: requests, tables, free order, cache, statistics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.schedule.fast_forward import decode_many, decode_only_steps
from course_lib.schedule.plan import plan_step
from course_lib.schedule.profiles import PROFILES
from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler

TOKEN = 7
KNOBS = {"num_blocks": 40, "block_size": 16, "max_num_seqs": 4, "budget": 64, "caching": True}


def one_step(scheduler):
    step = scheduler.schedule()
    return scheduler.commit(step, dict.fromkeys(scheduler.ends(step), TOKEN))


def state(scheduler):
    """All that can be asked of a scheduler."""
    cache = scheduler.cache
    row = lambda r: (  # noqa: E731
        r.id, list(r.token_ids), r.num_computed, r.num_cached, list(r.block_table), r.finish_reason, r.num_preemptions
    )  # fmt: skip
    kept = {}
    if hasattr(cache, "allocator"):
        kept = {"free": cache.allocator.free_order, "refs": cache.allocator.refs}
        if cache.prefix is not None:
            kept["found"] = {block: cache.prefix._hashes[block] for block in cache.prefix._hashes}
    else:
        kept = {"free": list(cache._free), "evictable": cache.tree.evictable, "protected": cache.tree.protected}
    running, waiting = [row(r) for r in scheduler.running], [row(r) for r in scheduler.waiting]
    return running, waiting, kept, vars(cache.stats), scheduler._num_steps


@st.composite
def situations(draw):
    """(profile, knobs, requests): small pools, prompts that share beginnings, answers of many lengths."""
    profile = draw(st.sampled_from(sorted(PROFILES)))
    max_num_seqs = draw(st.integers(1, 5))
    knobs = {
        "num_blocks": draw(st.integers(8, 60)), "block_size": draw(st.sampled_from([1, 2, 4, 16])),
        "max_num_seqs": max_num_seqs, "budget": draw(st.integers(max_num_seqs, 64)), "caching": draw(st.booleans()),
    }  # fmt: skip
    prompts = st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(1, 25))
    return profile, knobs, draw(st.lists(prompts, min_size=1, max_size=7))


def scheduler_of(profile, knobs, requests):
    rules = PROFILES[profile]
    cache = rules.new_cache(knobs["num_blocks"], knobs["block_size"], enable_prefix_caching=knobs["caching"])
    scheduler = Scheduler(
        cache, rules, max_num_batched_tokens=knobs["budget"], max_num_seqs=knobs["max_num_seqs"], refuse_stuck=True
    )
    for number, (family, prompt, answer) in enumerate(requests):
        try:
            scheduler.add(Request(number, [family * 1000 + i for i in range(prompt)], max_tokens=answer))
        except ValueError:
            pass  # can never run: not what is asked here
    return scheduler


@given(situations(), st.data())
def test_many_decodes_at_once_leave_the_state_of_step_by_step(situation, data):
    slow, fast = scheduler_of(*situation), scheduler_of(*situation)
    for _ in range(60):
        if not fast.requests:
            break
        if certain := decode_only_steps(fast):
            steps = data.draw(st.integers(1, certain))
            finished = decode_many(fast, steps, TOKEN)
            records = [one_step(slow) for _ in range(steps)]
            assert all(len(r.chunks) == len(records[0].chunks) for r in records)
            assert [i for r in records for i in r.finished] == [r.id for r in finished]
            assert [r.finish_reason for r in finished] == ["length"] * len(finished)
        else:
            one_step(slow)
            one_step(fast)
        assert state(slow) == state(fast)
        fast.check()


def test_the_stretch_ends_with_the_first_step_that_finishes_a_request():
    scheduler = scheduler_of("course", KNOBS, [(0, 5, 9)])
    one_step(scheduler)  # the prompt, and the first token
    assert decode_only_steps(scheduler) == 8
    (finished,) = decode_many(scheduler, 8, TOKEN)
    assert finished.generated == [TOKEN] * 9 and not scheduler.requests and scheduler.cache.num_free == 40


@pytest.mark.parametrize(
    "why, change",
    [
        ("no request runs", lambda s: s.abort(0)),
        ("a prompt waits that may be admitted", lambda s: s.add(Request(9, [1, 2, 3]))),
        ("a stop token may end it", lambda s: setattr(s.running[0], "stop_token_ids", frozenset({3}))),
        ("a policy from outside decides", lambda s: setattr(s, "profile", s.profile.with_policy(plan_step))),
        ("blocks may run out", lambda s: s.cache.allocate(Request(8, []), s.cache.num_free * s.cache.block_size)),
    ],
)
def test_nothing_is_certain_when(why, change):
    scheduler = scheduler_of("course", KNOBS, [(0, 5, 9)])
    assert decode_only_steps(scheduler) == 0, "its prompt is not done"
    one_step(scheduler)
    assert decode_only_steps(scheduler) == 8
    change(scheduler)
    assert decode_only_steps(scheduler) == 0, why


# --- a request that was computed elsewhere


def test_an_attached_request_decodes_at_once_and_is_like_one_that_was_computed_here():
    knobs = {**KNOBS, "block_size": 4, "max_num_seqs": 2}
    here, there = scheduler_of("course", knobs, [(0, 9, 6)]), scheduler_of("course", knobs, [])
    one_step(here)
    request = Request(0, [*range(9), TOKEN], max_tokens=6, prompt_len=9)
    assert there.attach(request, 9)
    there._num_steps = 1
    assert request.decoding
    one_step(here), one_step(there)
    here_state, there_state = state(here), state(there)
    assert here_state[0] == there_state[0] and here_state[2] == there_state[2]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(2, 30)), min_size=1, max_size=4),
    st.sampled_from([1, 4, 16]), st.booleans(), st.sampled_from(["course", "vllm-0.33.0", "sglang-mixed"]), st.data(),
)  # fmt: skip
def test_attached_requests_that_hold_a_block_to_spare_decode_at_once_as_step_by_step(
    requests, block_size, caching, profile, data
):
    knobs = {**KNOBS, "num_blocks": 300, "block_size": block_size, "caching": caching}
    slow, fast = scheduler_of(profile, knobs, []), scheduler_of(profile, knobs, [])
    for number, (prompt, answer) in enumerate(requests):
        for scheduler in (slow, fast):
            request = Request(number, [*range(prompt), TOKEN], max_tokens=answer, prompt_len=prompt)
            assert scheduler.attach(request, prompt)
        certain = decode_only_steps(fast)  # and some decode before the next is attached
        steps = data.draw(st.integers(1, certain))
        decode_many(fast, steps, TOKEN)
        for _ in range(steps):
            one_step(slow)
        assert state(slow) == state(fast)
        fast.check()


@given(situations())
def test_a_step_without_a_record_leaves_what_a_step_with_one_leaves(situation):
    recorded, plain = scheduler_of(*situation), scheduler_of(*situation)
    for _ in range(60):
        record, step = one_step(recorded), plain.schedule()
        done = plain.advance(step, dict.fromkeys(plain.ends(step), TOKEN))
        assert state(recorded) == state(plain) and record.finished == tuple(r.id for r in done)


def test_attach_takes_nothing_when_max_num_seqs_run_or_there_is_no_room():
    scheduler = scheduler_of("course", {**KNOBS, "num_blocks": 4, "block_size": 4, "max_num_seqs": 1}, [])
    assert scheduler.attach(Request(0, [1] * 9, prompt_len=8, max_tokens=3), 8)
    before = state(scheduler)
    assert not scheduler.attach(Request(1, [2] * 3, prompt_len=2, max_tokens=2), 2), "max_num_seqs run"
    assert state(scheduler) == before and list(scheduler.requests) == [0]
    scheduler.max_num_seqs = 2
    assert not scheduler.attach(Request(1, [2] * 6, prompt_len=5, max_tokens=2), 5), "no room"
    assert state(scheduler) == before and list(scheduler.requests) == [0]
    for computed in (0, 9):
        with pytest.raises(ValueError, match="num_computed"):
            scheduler.attach(Request(2, [1] * 9, prompt_len=8), computed)
