"""What every policy promises, on any state; and what each is known for."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.schedule import policies
from course_lib.schedule.plan import plan_step
from course_lib.schedule.profiles import PROFILES, profile_named
from course_lib.schedule.request import Chunk, Request

RADIX = Path(__file__).parent / "data" / "radix.json"


def request(number: int, tokens: int, computed: int = 0, prompt: int | None = None, cached: int = 0) -> Request:
    return Request(
        number, [0] * tokens, prompt_len=tokens if prompt is None else prompt, num_computed=computed, num_cached=cached
    )


def decode(number: int, length: int = 5) -> Request:
    return request(number, length + 1, computed=length, prompt=length)


@st.composite
def states(draw):
    """Requests in any state: decoding, prompt half done, waiting with a hit, recomputing, done."""
    requests = []
    for number in range(draw(st.integers(0, 8))):
        prompt, generated = draw(st.integers(1, 20)), draw(st.integers(0, 3))
        tokens = prompt + generated
        cached = draw(st.integers(0, tokens - 1))
        computed = draw(st.sampled_from((cached, tokens - 1, tokens)))
        requests.append(request(number, tokens, max(computed, cached), prompt, cached))
    return requests


def plan(policy, requests, budget, cap=0, seqs=100):
    return policy(requests, max_num_batched_tokens=budget, max_chunk=cap, max_num_seqs=seqs)


@pytest.mark.parametrize("name", PROFILES)
@given(states(), st.integers(0, 24), st.integers(0, 7), st.integers(0, 9), st.integers(1, 4))
def test_no_policy_breaks_the_rules_that_all_share(name, requests, budget, cap, seqs, block_size):
    """Never over the budget or max_num_seqs, one chunk each, where it stands, at least a token, nothing changed."""
    policy = PROFILES[name].plan_step_for(block_size)
    before = copy.deepcopy([vars(r) for r in requests])
    chunks = plan(policy, requests, budget, cap, seqs)
    assert [vars(r) for r in requests] == before, "a policy only reads"
    assert isinstance(chunks, tuple) and all(isinstance(c, Chunk) for c in chunks)
    assert sum(c.num_tokens for c in chunks) <= budget
    assert len(chunks) == len({c.request_id for c in chunks}) <= seqs
    for c in chunks:
        assert requests[c.request_id].num_computed == c.start < c.stop <= requests[c.request_id].num_tokens
        if cap and name not in ("whole-prompt", "sarathi"):
            assert c.num_tokens <= cap
    assert chunks == plan(policy, requests, budget, cap, seqs), "the same question has the same answer"


@pytest.mark.parametrize("name", ["course", "whole-prompt", "sarathi", "tensorrt-llm"])
@given(states(), st.integers(0, 24), st.integers(0, 7))
def test_decodes_come_first_and_the_first_of_them_are_served(name, requests, budget, cap):
    chunks = plan(PROFILES[name].plan_step_for(2), requests, budget, cap)
    ready = [r.id for r in requests if r.decoding][:budget]
    assert [c.request_id for c in chunks][: len(ready)] == ready


@given(states(), st.integers(0, 40), st.integers(0, 7))
def test_the_course_plan_leaves_no_budget_unused_while_there_is_work(requests, budget, cap):
    chunks = plan(plan_step, requests, budget, cap)
    could = sum(min(r.num_uncomputed, cap or r.num_uncomputed) for r in requests)
    assert sum(c.num_tokens for c in chunks) == min(budget, could)


@given(states(), st.integers(0, 40), st.integers(0, 7), st.integers(0, 9))
def test_the_course_plan_is_the_two_line_rule(requests, budget, cap, seqs):
    """Against the obvious loop over a sorted list."""
    want, left = [], budget
    for r in sorted(requests, key=lambda r: not r.decoding):
        take = min(r.num_tokens - r.num_computed, cap if cap else left, left)
        if take > 0 and len(want) < seqs:
            want.append(Chunk(r.id, r.num_computed, r.num_computed + take))
            left -= take
    assert plan(plan_step, requests, budget, cap, seqs) == tuple(want)


@pytest.mark.parametrize("budget", [11, 12, 13])
def test_budget_equal_to_the_number_of_decodes_leaves_nothing_for_a_prompt(budget):
    requests = [*(decode(i) for i in range(12)), request(12, 50)]
    chunks = plan(plan_step, requests, budget)
    assert len(chunks) == budget and sum(c.num_tokens for c in chunks) == budget
    assert (12 in [c.request_id for c in chunks]) == (budget > 12)


def test_a_finished_request_at_the_head_does_not_block_those_behind():
    assert plan(plan_step, [request(0, 5, computed=5), request(1, 5)], 3) == (Chunk(1, 0, 3),)


def test_a_preempted_request_recomputes_prompt_and_answer():
    preempted = request(0, tokens=9, computed=0, prompt=5)
    assert plan(plan_step, [preempted], 100) == (Chunk(0, 0, 9),)


def test_a_waiting_request_whose_hit_leaves_one_token_is_not_a_decode():
    waiting = request(0, tokens=9, computed=8, prompt=5, cached=8)
    assert not waiting.decoding
    assert plan(plan_step, [waiting, decode(1)], 1) == (Chunk(1, 5, 6),)


def test_a_prompt_longer_than_the_budget_starves_without_chunking_and_runs_with_it():
    """R3."""
    long = [request(0, 20)]
    assert plan(policies.plan_whole_prompt, long, 8) == ()
    steps = 0
    while long[0].num_uncomputed:
        (chunk,) = plan(plan_step, long, 8)
        long[0].num_computed, steps = chunk.stop, steps + 1
    assert steps == 3


def test_without_chunking_a_prompt_that_does_not_fit_blocks_those_behind():
    assert plan(policies.plan_whole_prompt, [decode(0), request(1, 8), request(2, 1)], 8) == (Chunk(0, 5, 6),)


def test_the_walk_through_shares_its_budget_with_three_decodes():
    """7,000 tokens, 5,000 of them cached: a cap of 1,024, and a budget that has room for the decodes or has not."""
    users = [decode(i) for i in range(3)]

    def chunks(budget, cap):
        prompt, sizes = request(3, 7000, computed=5000, cached=5000), []
        while prompt.num_uncomputed:
            chunk = plan(plan_step, [*users, prompt], budget, cap)[-1]
            prompt.num_computed = chunk.stop
            sizes.append(chunk.num_tokens)
        return sizes

    assert chunks(budget=1027, cap=1024) == [1024, 976]
    assert chunks(budget=1024, cap=1024) == [1021, 979]


def test_vllm_keeps_the_order_of_admission():
    requests = [request(0, 20, computed=4), decode(1)]
    assert plan(policies.plan_in_order, requests, 8, cap=5) == (Chunk(0, 4, 9), Chunk(1, 5, 6))
    assert plan(plan_step, requests, 8, cap=5) == (Chunk(1, 5, 6), Chunk(0, 4, 9))


def test_prefill_first_lets_decodes_wait_while_there_is_a_prompt():
    requests = [decode(0), decode(1), request(2, 10)]
    assert plan(policies.plan_prefill_first, requests, 6) == (Chunk(2, 0, 6),)
    assert plan(policies.plan_prefill_first, requests[:2], 6) == (Chunk(0, 5, 6), Chunk(1, 5, 6))


def test_prefill_first_leaves_one_prompt_half_done_at_most():
    requests = [request(0, 10), request(1, 10), request(2, 10)]
    assert plan(policies.plan_prefill_first, requests, 15) == (Chunk(0, 0, 10), Chunk(1, 0, 5))


def _radix_cases():
    cases = json.loads(RADIX.read_text(encoding="utf-8"))["cases"]
    return [case for case in cases if case["id"].split("_")[0] in ("S09", "S10", "S11", "S12")]


@pytest.mark.parametrize("case", _radix_cases(), ids=lambda case: case["id"])
def test_sglangs_own_chunks(case):
    """Rows of SGLang 0.5.23's prefill adder: [request, start, end, verdict, left]; start and end are compared."""
    given, rows = case["input"], case["expected"]["value"]
    if "total" in given:
        prompts = [request(0, given["total"], computed=given["prefix"], cached=given["prefix"])]
    else:
        prompts = [request(i, given[name]) for i, name in enumerate("AB") if name in given]
    decodes = [decode(10 + i) for i in range(given.get("mixed_decodes", 0))]
    got = []
    while len(got) < len(rows):
        chunks = policies.plan_prefill_first(
            [*prompts, *decodes], max_num_batched_tokens=given["chunked_prefill_size"], max_chunk=0, max_num_seqs=100,
            block_size=given["page_size"], mixed=bool(decodes),
        )  # fmt: skip
        chunks = [c for c in chunks if c.request_id < 10]
        if not chunks:
            break
        for c in chunks:
            got.append(["AB"[c.request_id], c.start, c.stop])
            prompts[c.request_id].num_computed = c.stop
    assert got == [row[:3] for row in rows if row[1] < row[2]]


@pytest.mark.parametrize("equal_progress", [False, True])
@given(states(), st.integers(0, 40), st.integers(0, 9), st.integers(1, 5))
def test_tensorrt_cuts_at_whole_blocks_except_at_the_end(equal_progress, requests, budget, cap, block_size):
    chunks = policies.plan_whole_blocks(
        requests, max_num_batched_tokens=budget, max_chunk=cap, max_num_seqs=100, block_size=block_size,
        equal_progress=equal_progress,
    )  # fmt: skip
    for c in chunks:
        assert c.stop == requests[c.request_id].num_tokens or c.num_tokens % block_size == 0


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_tensorrt_chunks_of_the_seed_tail(block_size):
    """4,992 .. 7,000 beside three decodes in 1,024 tokens; the rows for 32, 64 and 128 are also in the case file."""
    want = {16: [1008, 1000], 32: [992, 1016], 64: [960, 960, 88], 128: [896, 896, 216]}[block_size]
    prompt, sizes = request(3, 7000, computed=4992, cached=4992), []
    while prompt.num_uncomputed:
        requests = [*(decode(i) for i in range(3)), prompt]
        chunk = plan(profile_named("tensorrt-llm").plan_step_for(block_size), requests, 1024)[-1]
        prompt.num_computed = chunk.stop
        sizes.append(chunk.num_tokens)
    assert sizes == want


def test_an_unknown_profile_is_refused_by_name():
    with pytest.raises(ValueError, match="no profile 'vllm'; there are course, vllm-0.33.0"):
        profile_named("vllm")
