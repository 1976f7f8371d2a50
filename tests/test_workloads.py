"""Random requests, aborts and failing steps over a KV that cannot lie: every step of every profile is judged.

What is judged, and how, is in workload.py; the faults that it refuses are in museum.py.
"""

import os
import sys
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from workload import VOCAB, Knobs, Workload, random_knobs, random_work

from course_lib.schedule.profiles import PROFILES
from course_lib.schedule.request import Chunk

SHARDS = 10


def knobs() -> st.SearchStrategy[Knobs]:
    return st.integers(1, 12).flatmap(
        lambda budget: st.builds(
            Knobs, profile=st.sampled_from(sorted(PROFILES)), block_size=st.integers(1, 4),
            num_blocks=st.integers(2, 12), budget=st.just(budget), max_chunk=st.integers(0, 5),
            max_num_seqs=st.integers(1, min(budget, 5)), caching=st.booleans(),
        )
    )  # fmt: skip


tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


class EngineMachine(RuleBasedStateMachine):
    """What a crowd of users can do to an engine. Each rule judges what it caused."""

    @initialize(knobs=knobs(), family=tokens)
    def start(self, knobs, family):
        self.work, self.family = Workload(knobs), family

    @rule(
        shared=st.integers(0, 12), own=tokens, max_tokens=st.integers(1, 6), temperature=st.sampled_from((0.0, 1.0)),
        salt=st.sampled_from(("", "a")), read_cache=st.booleans(),
    )  # fmt: skip
    def add(self, shared, own, max_tokens, temperature, salt, read_cache):
        prompt = self.family[:shared] + own
        self.work.add(prompt, max_tokens, temperature=temperature, salt=salt, read_cache=read_cache or len(own) > 1)

    @rule(count=st.integers(1, 4))
    def step(self, count):
        for _ in range(count):
            self.work.step()

    @rule(when=st.sampled_from(("before", "after", "match", "publish", "forget")))
    def fail(self, when):
        self.work.fail(when)

    @precondition(lambda self: self.work.known)
    @rule(data=st.data())
    def abort(self, data):
        self.work.abort(data.draw(st.sampled_from(sorted(self.work.known))))

    @invariant()
    def adds_up(self):
        if hasattr(self, "work"):
            self.work.engine.scheduler.check()

    def teardown(self):
        if hasattr(self, "work"):
            self.work.drain()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=500, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("profile", PROFILES)
def test_random_work_of_a_profile_finds_nothing(profile):
    for seed in range(60):
        rng = Random(seed)
        random_work(rng, Workload(random_knobs(rng, (profile,))), rng.randint(5, 40))


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_20_000_random_workloads_find_nothing(shard):
    for seed in range(shard, 20_000, SHARDS):
        rng = Random(seed)
        random_work(rng, Workload(random_knobs(rng)), rng.randint(5, 40))


def test_the_workloads_reach_hits_preemptions_and_failures():
    """A generator that never meets the hard states would find nothing for the wrong reason."""
    hits = preempted = twins = 0
    for seed in range(100):
        rng = Random(seed)
        work = Workload(random_knobs(rng, ("vllm-0.33.0",)))
        step = work.engine.step

        def counted(step=step):
            nonlocal preempted, twins
            record = step()
            preempted += len(record.preempted)
            twins += len([1 for _, hit in record.hits if hit]) > 1
            return record

        work.engine.step = counted
        random_work(rng, work, 40)
        hits += work.engine.scheduler.cache.stats.num_hits
    assert hits > 100 and preempted > 50 and twins > 10, (hits, preempted, twins)


# --- policies from outside


def fair(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
    """A token each in turn: asked again after a hit, it takes back what it gave before."""
    wanted = [r for r in requests[:max_num_seqs] if r.num_uncomputed]
    takes, left = dict.fromkeys(wanted, 0), max_num_batched_tokens
    while left and any(takes[r] < r.num_uncomputed for r in wanted):
        for r in wanted:
            if left and takes[r] < r.num_uncomputed:
                takes[r] += 1
                left -= 1
    return [Chunk(r.id, r.num_computed, r.num_computed + take) for r, take in takes.items() if take]


def _in_order_of(key):
    def plan(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
        chunks, left = [], max_num_batched_tokens
        for r in sorted(requests, key=key):
            take = min(r.num_uncomputed, left)
            if take and len(chunks) < max_num_seqs:
                chunks.append(Chunk(r.id, r.num_computed, r.num_computed + take))
                left -= take
        return chunks

    return plan


POLICIES = {
    "fair": fair,
    "shortest first": _in_order_of(lambda r: (r.num_uncomputed, r.id)),
    "newest first": _in_order_of(lambda r: -r.id),
    "shuffled": _in_order_of(lambda r: hash((r.id, r.num_computed, r.num_tokens))),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_any_pure_policy_keeps_the_kv_and_the_books_right(policy):
    for seed in range(80):
        rng = Random(seed)
        knobs = random_knobs(rng, ("course", "vllm-0.33.0", "sglang-prefill-first"))
        random_work(rng, Workload(knobs, plan_step=POLICIES[policy]), rng.randint(5, 40))


# --- Ctrl-C


def _interrupt_at(number: int):
    """A trace function that raises KeyboardInterrupt at the number-th line of scheduler or cache, once."""
    seen = 0

    def trace(frame, event, argument):
        nonlocal seen
        name = frame.f_code.co_filename
        if f"course_lib{os.sep}schedule" not in name and f"course_lib{os.sep}cache" not in name:
            return None
        if event == "line":
            seen += 1
            if seen == number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.parametrize("profile", ["course", "vllm-0.33.0", "sglang-prefill-first"])
def test_a_ctrl_c_anywhere_in_scheduler_or_cache_costs_work_and_nothing_else(profile):
    """One interrupt at every line of a run with hits, a twin and a preemption; then every request finishes right."""
    before = sys.gettrace()
    number, interrupted = 1, True
    while interrupted:
        work = Workload(Knobs(profile=profile, block_size=2, num_blocks=7, budget=8, max_chunk=3, max_num_seqs=3))
        del work.engine.scheduler.recover  # here it may have to start all over
        for prompt, length in (([0, 1, 2, 0, 1], 4), ([0, 1, 2, 0, 1], 3), ([0, 1, 2, 2], 5)):
            work.add(prompt, length)
        known, interrupted = dict(work.known), False
        while work.engine.unfinished:
            if not interrupted:
                sys.settrace(_interrupt_at(number))
            try:
                work.engine.step()
            except KeyboardInterrupt:
                interrupted = True
                number += 1
            finally:
                sys.settrace(before)
            work.engine.scheduler.check()
        for i, k in known.items():
            assert k.request.generated == k.expected, f"request {i} after an interrupt at line {number - 1}"
        assert work.engine.scheduler.cache.num_free == 7, f"blocks are lost by an interrupt at line {number - 1}"
    assert number > 500
