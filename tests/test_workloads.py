"""Random requests, aborts and failing steps over a KV that cannot lie: every step of every profile is judged.

What is judged, and how, is in workload.py; the faults that it refuses are in museum.py.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from workload import VOCAB, Knobs, Workload, random_knobs, random_work

from course_lib.schedule.profiles import PROFILES

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

    @rule(when=st.sampled_from(("before", "after")))
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
