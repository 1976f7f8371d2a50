"""Prefill and decode on servers of their own: decodes never wait for a prompt, and nothing is lost on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_simulator import COST, EveryTerm, configs, workloads

from course_lib.cost.disaggregated import Transfer, simulate_disaggregated
from course_lib.cost.simulator import ServerConfig, simulate
from course_lib.cost.work import StepWork
from course_lib.cost.workload import Arrival

ROOMY = ServerConfig(num_blocks=5000, max_num_batched_tokens=100, max_num_seqs=40, enable_prefix_caching=False)


def test_a_lone_request_waits_for_prefill_then_transfer_then_decodes():
    report = simulate_disaggregated(
        [Arrival(5, 250, 3)], ROOMY, COST, transfer=Transfer(fixed_us=70, ns_per_token=2000), keep=True
    )
    (row,) = report.requests
    assert row.ttft_us == 3 * 1000 + 250 * 10
    assert row.gaps_us == (70 + 500 + 1050, 1050)
    assert report.duration_us == row.ttft_us + sum(row.gaps_us)


def test_a_request_of_one_token_never_travels():
    report = simulate_disaggregated([Arrival(0, 10, 1)], ROOMY, COST, transfer=Transfer(10**9), keep=True)
    assert report.requests[0].gaps_us == () and report.duration_us == 1100 and report.num_finished == 1


def test_prompts_of_one_server_share_its_link():
    two = [Arrival(0, 50, 2), Arrival(0, 50, 2)]
    wait = Transfer(fixed_us=10_000, ns_per_token=0)
    gaps = lambda **servers: sorted(  # noqa: E731
        r.gaps_us[0] for r in simulate_disaggregated(two, ROOMY, COST, transfer=wait, keep=True, **servers).requests
    )
    assert gaps() == [11_050, 21_050] and gaps(prefill_servers=2) == [11_100, 11_100]


@given(workloads(), configs(), st.integers(1, 2), st.integers(1, 2))
def test_no_request_is_lost_and_each_gets_all_tokens(arrivals, config, prefill_servers, decode_servers):
    report = simulate_disaggregated(
        arrivals, config, EveryTerm(), prefill_servers=prefill_servers, decode_servers=decode_servers, keep=True
    )
    assert report.num_finished + report.num_refused + report.num_starved == len(arrivals)
    for row in report.requests:
        assert len(row.gaps_us) == arrivals[row.id].output_tokens - 1
        assert row.ttft_us > 0 and all(gap > 0 for gap in row.gaps_us)


@given(workloads())
def test_decodes_never_wait_for_prompts(arrivals):
    report = simulate_disaggregated(arrivals, ROOMY, COST, transfer=Transfer(0, 0), keep=True)
    longest = COST.work_us(StepWork(decodes=len(arrivals) + 1))
    for row in report.requests:
        assert all(gap <= longest for gap in row.gaps_us[1:])  # the first one may wait for a step that has begun
        assert all(gap <= 2 * longest for gap in row.gaps_us[:1])


@given(workloads())
def test_first_tokens_come_as_from_a_server_that_only_prefills(arrivals):
    split = simulate_disaggregated(arrivals, ROOMY, COST, keep=True)
    prefill_only = simulate([a._replace(output_tokens=1) for a in arrivals], ROOMY, COST, keep=True)
    assert {r.id: r.ttft_us for r in split.requests} == {r.id: r.ttft_us for r in prefill_only.requests}


def test_what_can_never_run_is_refused_on_either_side_and_what_starves_is_counted():
    small = ServerConfig(num_blocks=4, block_size=16, max_num_batched_tokens=64, max_num_seqs=4)
    report = simulate_disaggregated([Arrival(0, 65, 1), Arrival(0, 60, 9), Arrival(0, 60, 5)], small, COST)
    assert (report.num_refused, report.num_finished) == (2, 1), "too long a prompt; too long an answer"
    stuck = ServerConfig(
        enable_chunked_prefill=False, max_num_batched_tokens=50, max_num_seqs=4, refuse_stuck=False
    )
    assert simulate_disaggregated([Arrival(0, 51, 1), Arrival(0, 5, 1)], stuck, COST).num_starved == 2


def test_impossible_servers_and_transfers_are_refused():
    with pytest.raises(ValueError, match="at least 1 of each"):
        simulate_disaggregated([], ROOMY, COST, decode_servers=0)
    with pytest.raises(ValueError, match="0 or more"):
        Transfer(-1)
