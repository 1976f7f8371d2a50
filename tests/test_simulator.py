"""The simulator serves as the scheduler decides, and its clock adds up: beside an oracle with no scheduler at all."""

from weakref import WeakSet

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from course_lib.cache.prefix import extend_hashes
from course_lib.cost import prompts, simulator
from course_lib.cost.linear import LinearCost
from course_lib.cost.metrics import Targets
from course_lib.cost.simulator import ServerConfig, SimRequest, simulate
from course_lib.cost.work import StepCost, StepWork, work_of
from course_lib.cost.workload import Arrival, Lengths, Poisson, scaled
from course_lib.schedule.plan import plan_step
from course_lib.schedule.profiles import PROFILES

COST = LinearCost(1000, 10, 50)


class EveryTerm(StepCost):
    """Depends on all that a cost may depend on."""

    def work_us(self, work: StepWork) -> int:
        return 1 + sum(weight * part for weight, part in zip((7, 31, 1, 3, 2), work))


@st.composite
def workloads(draw, most=12):
    gaps = st.integers(0, 6000)
    time, arrivals = 0, []
    for _ in range(draw(st.integers(0, most))):
        time += draw(gaps)
        prompt = draw(st.integers(1, 90))
        family = draw(st.sampled_from(["", "", "a", "b"]))
        shared = draw(st.integers(0, prompt)) if family else 0
        arrivals.append(Arrival(time, prompt, draw(st.integers(1, 30)), family, shared))
    return arrivals


@st.composite
def configs(draw):
    seqs, profile = draw(st.integers(1, 6)), draw(st.sampled_from(sorted(PROFILES)))
    chunking = draw(st.sampled_from([True, True, False]))
    caps = (0, 0, 16, 40) if chunking and PROFILES[profile].caps_chunks else (0,)
    return ServerConfig(
        profile=profile, num_blocks=draw(st.integers(8, 80)),
        block_size=draw(st.sampled_from([1, 4, 16])), max_num_batched_tokens=draw(st.integers(seqs, 120)),
        max_num_seqs=seqs, max_chunk=draw(st.sampled_from(caps)),
        enable_prefix_caching=draw(st.booleans()), enable_chunked_prefill=chunking,
    )  # fmt: skip


# --- the clock


def oracle(arrivals, budget, cost):
    """Decodes first, then prompts in order, no cache and room for all: request -> times of its tokens."""
    left = {i: a.prompt_tokens for i, a in enumerate(arrivals)}
    context = dict.fromkeys(left, 0)
    tokens = {i: [] for i in left}
    done, clock = set(), 0
    while len(done) < len(arrivals):
        here = [i for i, a in enumerate(arrivals) if a.time_us <= clock and i not in done]
        if not here:
            clock = min(a.time_us for i, a in enumerate(arrivals) if i not in done)
            continue
        decodes = [i for i in here if not left[i]][:budget]
        room, prefills = budget - len(decodes), []
        for i in here:
            if left[i] and room:
                take = min(left[i], room)
                prefills.append((i, context[i], context[i] + take))
                room -= take
        clock += cost.work_us(work_of([p[1:] for p in prefills], [context[i] + 1 for i in decodes]))
        for i, _, stop in prefills:
            context[i], left[i] = stop, arrivals[i].prompt_tokens - stop
        for i in decodes:
            context[i] += 1
        for i in [*decodes, *(i for i, _, _ in prefills if not left[i])]:
            tokens[i].append(clock)
            if len(tokens[i]) == arrivals[i].output_tokens:
                done.add(i)
    return tokens


@given(workloads(), st.integers(12, 100), st.sampled_from([COST, EveryTerm()]))
def test_every_wait_is_that_of_an_oracle_with_no_scheduler(arrivals, budget, cost):
    arrivals = [a._replace(prefix_id="", prefix_tokens=0) for a in arrivals]
    config = ServerConfig(num_blocks=5000, max_num_batched_tokens=budget, max_num_seqs=12, enable_prefix_caching=False)
    report = simulate(arrivals, config, cost, keep=True)
    wanted = oracle(arrivals, budget, cost)
    assert len(report.requests) == len(arrivals)
    for row in report.requests:
        times = wanted[row.id]
        assert row.ttft_us == times[0] - arrivals[row.id].time_us
        assert list(row.gaps_us) == [after - before for before, after in zip(times, times[1:])]
    assert report.itl.count == sum(len(times) - 1 for times in wanted.values())
    assert report.duration_us == max((t[-1] for t in wanted.values()), default=0) - min(
        (a.time_us for a in arrivals), default=0
    )


@given(workloads(), configs(), st.sampled_from([COST, EveryTerm()]))
def test_many_steps_at_once_give_the_result_of_step_by_step(arrivals, config, cost):
    slow = simulate(arrivals, config, cost, keep=True, fast=False)
    fast = simulate(arrivals, config, cost, keep=True)
    assert fast.as_dict() == slow.as_dict() and fast.requests == slow.requests
    assert fast.num_finished + fast.num_refused + fast.num_starved == len(arrivals)


@example(  # two arrive at once, and one may run: the first is not the only one, so max_chunk holds for it
    [Arrival(0, 17, 1), Arrival(0, 1, 1)],
    ServerConfig(
        profile="vllm-0.33.0", num_blocks=8, block_size=4, max_num_batched_tokens=17, max_chunk=16, max_num_seqs=1,
        enable_prefix_caching=False,
    ),
)  # fmt: skip
@given(workloads(), configs())
def test_being_watched_changes_nothing_and_the_records_tell_the_same_story(arrivals, config):
    seen = []
    watched = simulate(arrivals, config, COST, keep=True, watch=lambda begin, record: seen.append((begin, record)))
    plain = simulate(arrivals, config, COST, keep=True)
    assert watched.as_dict() == plain.as_dict() and watched.requests == plain.requests
    ends = [begin + record.duration_us for begin, record in seen]
    assert all(end <= begin for end, (begin, _) in zip(ends, seen[1:])), "steps overlap"
    for row in plain.requests:
        times = [end for end, (_, record) in zip(ends, seen) if row.id in dict(record.sampled)]
        assert times[0] - row.arrival_us == row.ttft_us
        assert tuple(b - a for a, b in zip(times, times[1:])) == row.gaps_us


@given(workloads(), configs(), st.integers(1, 3))
def test_replicas_serve_as_alone_what_comes_to_them(arrivals, config, replicas):
    together = simulate(arrivals, config, COST, replicas=replicas, keep=True)
    alone = [simulate(arrivals[i::replicas], config, COST, keep=True) for i in range(replicas)]
    key = lambda r: (r.arrival_us, r.ttft_us, r.gaps_us, r.prompt_tokens, r.cached_tokens)  # noqa: E731
    assert sorted(map(key, together.requests)) == sorted(key(r) for report in alone for r in report.requests)


def test_a_request_that_comes_during_a_step_is_in_the_next_one_and_one_that_comes_as_it_begins_is_in_it():
    one = Arrival(0, 10, 3)
    for time, ttft in ((1100, 1150), (1101, 1049 + 1150), (0, 1200)):  # the first step takes 1100, a decode 1050
        report = simulate([one, Arrival(time, 10, 1)], ServerConfig(), COST, keep=True)
        assert {r.id: r.ttft_us for r in report.requests}[1] == ttft


# --- what is shared is hit, exactly


def real_names(id, arrival, full, block_size):
    hashes = []
    extend_hashes(hashes, prompts._token_ids(id, arrival, 0)[: full * block_size], block_size)
    return hashes


@given(workloads(), configs())
@settings(max_examples=60)
def test_names_for_blocks_hit_exactly_where_hashes_of_real_token_ids_do(arrivals, config):
    with pytest.MonkeyPatch.context() as patch:
        named = simulate(arrivals, config, COST, keep=True)
        patch.setattr(prompts, "_names", real_names)
        hashed = simulate(arrivals, config, COST, keep=True)
    assert named.requests == hashed.requests and named.as_dict() == hashed.as_dict()


def test_a_second_request_of_a_family_finds_the_whole_blocks_of_what_they_share():
    first, second = Arrival(0, 40, 1, "doc", 36), Arrival(10**6, 50, 1, "doc", 37)
    stranger = Arrival(2 * 10**6, 50, 1, "other", 40)
    for profile in ("course", "sglang-prefill-first", "vllm-0.33.0"):
        report = simulate([first, second, stranger], ServerConfig(profile=profile, block_size=4), COST, keep=True)
        assert [r.cached_tokens for r in report.requests] == [0, 36, 0], profile
        assert report.hit_rate == 36 / 140
    off = simulate([first, second], ServerConfig(enable_prefix_caching=False), COST)
    assert off.cached_tokens == 0


def test_the_whole_prompt_cached_still_computes_its_last_block():
    same = [Arrival(i * 10**6, 64, 1, "x", 64) for i in range(2)]
    report = simulate(same, ServerConfig(block_size=16), COST, keep=True)
    assert report.requests[1].cached_tokens == 48


# --- what cannot run


def test_what_can_never_run_is_refused_and_the_rest_is_served():
    config = ServerConfig(enable_chunked_prefill=False, max_num_batched_tokens=100, max_num_seqs=4)
    report = simulate([Arrival(0, 101, 1), Arrival(0, 100, 1)], config, COST)
    assert (report.num_refused, report.num_finished, report.attainment) == (1, 1, 0.5)
    assert "must fit into one step" in report.why_refused


def test_a_prompt_that_starves_is_counted_and_so_are_those_behind_it():
    config = ServerConfig(
        enable_chunked_prefill=False, max_num_batched_tokens=100, max_num_seqs=4, refuse_stuck=False
    )
    arrivals = [Arrival(0, 10, 20), Arrival(5, 101, 1), Arrival(9, 10, 1), Arrival(10**7, 5, 1)]
    report = simulate(arrivals, config, COST)
    assert (report.num_finished, report.num_starved) == (1, 3)
    assert simulate(arrivals, ServerConfig(max_num_batched_tokens=100, max_num_seqs=4), COST).num_starved == 0


def test_a_policy_of_ones_own_really_plans():
    lifo = lambda requests, **knobs: plan_step(requests[::-1], **knobs)  # noqa: E731
    config = ServerConfig(plan_step=lifo, max_num_seqs=1)
    arrivals = [Arrival(0, 10, 2), Arrival(1, 10, 1), Arrival(2, 10, 1)]
    report = simulate(arrivals, config, COST, keep=True)
    assert [r.id for r in report.requests] == [0, 2, 1]


def test_a_policy_that_plans_nothing_starves_every_request_and_the_run_ends():
    report = simulate([Arrival(0, 5, 1)], ServerConfig(plan_step=lambda requests, **knobs: ()), COST)
    assert report.num_starved == 1


@pytest.mark.parametrize(
    "arrivals, message",
    [
        ([Arrival(5, 1, 1), Arrival(4, 1, 1)], "before the one ahead of it"),
        ([Arrival(0, 0, 1)], "at least 1 token"),
        ([Arrival(0, 1, 0)], "at least 1 token"),
        ([Arrival(0, 5, 1, "a", 6)], "cannot be longer"),
    ],
)
def test_an_impossible_arrival_is_refused(arrivals, message):
    with pytest.raises(ValueError, match=message):
        simulate(arrivals, ServerConfig(), COST)


def test_no_arrivals_no_time():
    report = simulate([], ServerConfig(), COST)
    assert report.duration_us == 0 and report.goodput == 0 and report.as_dict()["ttft_us"]["count"] == 0


# --- workloads


def test_poisson_arrivals_are_the_same_again_and_come_at_their_rate():
    output = Lengths.parse("lognormal:100,1.0,900")
    workload = Poisson(rate=200, count=4000, prompt=Lengths(10, 30), output=output, seed=3)
    arrivals = list(workload)
    assert arrivals == list(workload) and arrivals != list(Poisson(**{**vars(workload), "seed": 4}))
    assert abs(arrivals[-1].time_us / 4000 - 5000) < 3 * 5000 / 4000**0.5
    assert {a.prompt_tokens for a in arrivals} == set(range(10, 31))
    outputs = sorted(a.output_tokens for a in arrivals)
    assert 1 <= outputs[0] and outputs[-1] == 900 and 90 < outputs[2000] < 110
    assert 0.12 < sum(o > 271 for o in outputs) / 4000 < 0.2, "a sigma above the median: 271 = 100 e, 15.9 %"


def test_families_share_their_prefix_and_the_drawn_length_comes_on_top():
    arrivals = list(
        Poisson(rate=1, count=300, prompt=Lengths(5, 9), output=Lengths(1, 1), families=3, prefix_tokens=50)
    )
    assert {a.prefix_id for a in arrivals} == {"0", "1", "2"}
    assert all(a.prefix_tokens == 50 and 55 <= a.prompt_tokens <= 59 for a in arrivals)


def test_a_workload_at_twice_the_speed_has_half_the_times():
    assert [a.time_us for a in scaled([Arrival(10, 1, 1), Arrival(31, 1, 1)], 2)] == [5, 15]


@pytest.mark.parametrize(
    "text", ["", "0", "9-3", "-5", "lognormal:5", "lognormal:9,1,3", "lognormal:5,-1,9", "1e3", "x"]
)
def test_a_text_that_is_no_length_is_refused(text):
    with pytest.raises(ValueError, match="no length"):
        Lengths.parse(text)


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"rate": float("inf")}, {"count": -1}, {"families": 3}])
def test_an_impossible_poisson_workload_is_refused(wrong):
    with pytest.raises(ValueError):
        Poisson(**{"rate": 1, "count": 1, "prompt": Lengths(1, 1), "output": Lengths(1, 1), **wrong})


# --- memory


def test_a_long_queue_holds_no_prompts(monkeypatch):
    """Overload, at twice the speed of the server: only as many as the policy can see have tokens."""
    alive, most = WeakSet(), 0

    class Counted(SimRequest):
        def __post_init__(self):
            super().__post_init__()
            alive.add(self)

    monkeypatch.setattr(simulator, "SimRequest", Counted)

    def arrivals():
        nonlocal most
        for i in range(2000):
            most = max(most, len(alive))
            yield Arrival(300 * i, 50, 3)

    report = simulate(arrivals(), ServerConfig(max_num_seqs=8), COST, targets=Targets(10**12, 10**12))
    assert report.num_good == 2000 and 8 <= most <= 3 * 8
