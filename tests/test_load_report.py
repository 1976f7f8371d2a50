"""What is sent, and what the times of events say: prompts, gaps, stalls, the report. No network."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cli import UserError
from course_lib.load.arrivals_csv import TraceRow
from course_lib.load.client import Record
from course_lib.load.measure import (
    Stream,
    Wait,
    came_at_once,
    freezes,
    overlaps,
    prefills,
    spread,
    union,
    waiting_during,
    waits,
)
from course_lib.load.picture import BINS, timeline
from course_lib.load.prompts import MOST_TOKENS, Job, bodies, freeze_jobs, trace_jobs
from course_lib.load.report import summary, text
from course_lib.load.run import Run

# --- prompts


def ids_of(jobs, seed=0, vocab=128):
    made = bodies(jobs, model="m", chat=False, vocab=vocab, seed=seed, extra={})
    return [json.loads(body)["prompt"] for body in made]


def test_prompts_are_the_same_for_the_same_seed_and_share_no_first_block():
    jobs = freeze_jobs(8, 10, 500)
    prompts = ids_of(jobs)
    assert prompts == ids_of(jobs) != ids_of(jobs, seed=1)
    assert [len(prompt) for prompt in prompts] == [16] * 8 + [500]
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 9
    assert {id for prompt in prompts for id in prompt} == set(range(3, 128))


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from(["", "a", "b"])), min_size=1, max_size=8))
def test_prompts_begin_alike_exactly_if_they_have_the_same_prefix_id(rows):
    prompts = ids_of(trace_jobs([TraceRow(0, tokens, 1, prefix) for tokens, prefix in rows]), vocab=10**6)
    for i, (tokens, prefix) in enumerate(rows):
        for j, (others, other_prefix) in enumerate(rows[:i]):
            shared = min(tokens, others)
            alike = prompts[i][:shared] == prompts[j][:shared]
            assert alike == (prefix == other_prefix != "")


def test_bodies_are_what_each_kind_of_request_wants():
    job = Job("j", "user", 5, 7)
    (plain_text,) = bodies([job], model="m", chat=False, vocab=None, seed=0, extra={"stream_options": None, "top_k": 1})
    body = json.loads(plain_text)
    assert len(body.pop("prompt").split()) == 5
    assert body == {"model": "m", "max_tokens": 7, "temperature": 0, "stream": True, "top_k": 1}
    (chat,) = bodies([job], model="m", chat=True, vocab=None, seed=0, extra={})
    (message,) = json.loads(chat)["messages"]
    assert message["role"] == "user" and len(message["content"].split()) == 5 and "prompt" not in json.loads(chat)
    assert json.loads(chat)["stream_options"] == {"include_usage": True}


def test_more_prompt_than_memory_is_refused_before_any_is_made():
    with pytest.raises(UserError, match="20,000,001 tokens"):
        bodies([Job("j", "user", MOST_TOKENS + 1, 1)], model="m", chat=False, vocab=9, seed=0, extra={})


# --- what times say

moments = st.integers(0, 60)
spans = st.tuples(moments, moments).map(lambda span: (min(span), max(span)))


def stream(name="s", events=(), *, sent=0, end=None, state="done", role="user", prompt=16, first=None):
    end = end if end is not None else (events[-1] if events else sent)
    return Stream(name, role, prompt, sent if first is None else first, sent, tuple(events), end, state)


@st.composite
def some_streams(draw):
    made = []
    for i in range(draw(st.integers(1, 4))):
        times = sorted(draw(st.lists(moments, max_size=8)))
        sent = draw(st.integers(0, times[0] if times else 60))
        end = draw(st.integers(times[-1] if times else sent, 70))
        state = draw(st.sampled_from(["done", "failed", "stopped", "interrupted"]))
        made.append(stream(f"s{i}", times, sent=sent, end=end, state=state, prompt=draw(st.integers(1, 99))))
    return made


@given(st.lists(spans, max_size=6), spans)
def test_a_wait_overlaps_spans_exactly_if_a_moment_lies_in_both(many, wait):
    # a moment here: an interval of one microsecond
    inside = {at for start, end in many for at in range(start, end)}
    merged = union(many)
    assert {at for start, end in merged for at in range(start, end)} == inside
    assert all(a[1] < b[0] for a, b in pairwise(merged))
    assert overlaps(Wait("w", *wait), merged) == bool(inside & set(range(*wait)))


@given(st.lists(st.integers(0, 10**9), max_size=30))
def test_percentiles_are_interpolated_as_numpy_does_by_default(values):
    found = spread(values)
    assert found["count"] == len(values)
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
        if not values:
            assert found[name] is None
        else:
            assert abs(found[name] - np.percentile(values, percent)) <= 0.5 + 1e-6


@given(some_streams())
def test_gaps_and_open_waits_are_all_the_time_between_the_first_event_and_the_end(streams):
    for s in streams:
        own = waits(s)
        assert [wait.us for wait in own if wait.whole] == s.gap_us == [b - a for a, b in pairwise(s.event_us)]
        if s.event_us:
            until = s.event_us[-1] if s.state == "done" else s.end_us
            assert sum(wait.us for wait in own) == until - s.event_us[0]
            assert sum(not wait.whole for wait in own) == (s.state != "done")
        else:
            assert own == []


@given(some_streams())
def test_no_request_waits_for_itself_and_all_that_wait_are_named_the_longest_prompt_first(streams):
    for s in streams:
        for wait in waits(s):
            named = waiting_during(wait, streams)
            brute = {
                other.name for other in streams
                if other is not s and set(range(*other.prefill)) & set(range(wait.start_us, wait.end_us))
            }  # fmt: skip
            assert {other.name for other in named} == brute
            assert [o.prompt_tokens for o in named] == sorted((o.prompt_tokens for o in named), reverse=True)
        assert not any(overlaps(wait, union([s.prefill])) for wait in waits(s))


@given(some_streams(), st.integers(1, 4))
def test_freezes_begin_with_the_longest_wait_and_never_share_time(streams, most):
    found = freezes(streams, most)
    every = [wait for s in streams for wait in waits(s)]
    longest = max((wait.us for wait in every), default=0)
    assert len(found) <= most and (found[0][0].us == longest if found else longest == 0)
    times = [set(range(wait.start_us, wait.end_us)) for wait, _ in found]
    assert sum(map(len, times)) == len(set().union(*times))
    for (wait, together), time in zip(found, times):
        silent = {w.name for w in every if 2 * len(time & set(range(w.start_us, w.end_us))) >= len(time)}
        assert together == len(silent) and wait.name in silent
    if len(found) < most:  # then nothing is left
        assert not any(wait.us and not set(range(wait.start_us, wait.end_us)) & set().union(*times) for wait in every)


def test_the_time_per_output_token_is_the_time_after_the_first_over_the_other_tokens_as_the_server_counts_them():
    assert stream("s", [100, 140, 220]).tpot_us == 60
    assert replace(stream("s", [100, 140, 220]), tokens=7).tpot_us == 20, "three tokens an event"
    assert replace(stream("s", [100]), tokens=7).tpot_us is None and stream("s", []).tpot_us is None


def test_only_the_long_prompts_wait_is_watched_if_there_is_one():
    user, prompt = stream("u", [10, 20], sent=0), stream("p", [90], sent=50, role="prompt")
    assert prefills([user, prompt]) == [(50, 90)]
    assert prefills([user, stream("v", [30], sent=5)]) == [(0, 30)]
    # turned away at 10 and sent again at 60: from then on it may be computed
    assert prefills([stream("p", [90], first=10, sent=60, role="prompt")]) == [(60, 90)]


@pytest.mark.parametrize(
    ("events", "held"),
    [
        ((100_000, 100_000, 100_000), True),
        ((100_000, 100_500, 101_000), True),
        ((100_000, 100_000), False),  # two may well come together
        ((100_000, 101_000, 102_000), False),  # a millisecond apart: a quick server
        ((10_000, 10_500, 11_000), False),  # the first came as quickly: a quick server and a short prompt
        ((), False),
        (sum(((200_000 + 30_000 * i,) * 8 for i in range(2)), ()), True),  # in two pieces
        (sum(((50_000 + 30_000 * i,) * 8 for i in range(4)), ()), False),  # in pieces all along: its gaps say so
        (tuple(range(100_000, 110_000, 1_500)), False),
    ],
)
def test_an_answer_that_somebody_held_back_is_known_by_its_times(events, held):
    assert came_at_once(stream("s", events)) == held


# --- the report


MS = 1_000_000  # ns


def measured_run(*, prompt_state="done") -> Run:
    """Two users, a token each 10 ms; after token 9 they wait 500 ms, while the long prompt is computed."""
    records = [Record(job) for job in freeze_jobs(2, 40, 8_192)]
    for i, user in enumerate(records[:2]):
        user.sent_ns, user.connected_ns, user.status = [5 * MS], [6 * MS], [200]
        user.event_ns = [(20 + 10 * k + (490 if k > 9 else 0)) * MS + i for k in range(20)]
        user.state, user.end_ns = "stopped", user.event_ns[-1] + 3 * MS
    prompt = records[2]
    prompt.sent_ns, prompt.connected_ns, prompt.status = [115 * MS], [116 * MS], [200]
    prompt.event_ns, prompt.end_ns = ([595 * MS, 596 * MS], 597 * MS) if prompt_state == "done" else ([], 500 * MS)
    prompt.state, prompt.usage = prompt_state, (8_190, 2) if prompt_state == "done" else None
    prompt.error = "HTTP 500: no" if prompt_state == "failed" else ""
    return Run(records, began_ns=0, ended_ns=800 * MS, late_ns=2 * MS)


def summary_of(run: Run, prompts: str = "words") -> dict:
    return summary(run, {"url": "http://h/v1/completions", "model": "m", "scenario": {"prompts": prompts}})


def all_equal(count: int, us: int) -> dict:
    return {"count": count, "p50": us, "p90": us, "p99": us, "max": us}


def test_the_summary_tells_the_freeze_from_the_rest():
    found = summary_of(measured_run())
    assert found["ttft_us"] == all_equal(2, 15_000)
    assert found["tpot_us"] == all_equal(2, round((19 * 10_000 + 490_000) / 19))
    assert found["itl_us"]["during_prefill"] == all_equal(2, 500_000)
    assert found["itl_us"]["otherwise"] == all_equal(36, 10_000)


def test_the_worst_stall_names_its_cause_and_how_many_streams_it_stopped():
    first, *others = summary_of(measured_run())["worst_stalls"]
    assert first == {
        "name": "user 0", "streams_waiting": 2, "start_us": 110_000, "us": 500_000, "whole": True,
        "during_prefill": True, "waiting_for_first_event": ["prompt"],
    }  # fmt: skip
    assert [stall["us"] for stall in others] == [10_000, 10_000]


def test_the_summary_counts_and_can_be_written_as_json():
    found = summary_of(measured_run())
    prompt = found["requests"][2]
    assert (prompt["ttft_us"], prompt["connect_us"], prompt["gap_us"]) == (480_000, 1_000, [1_000])
    assert found["events_per_s"] == 42 * 1_000_000 // (700_000 - 5_000)
    assert found["http_status"] == {"200": 3} and found["states"] == {"stopped": 2, "done": 1}
    assert found["tokens_per_event"] == 1.0 and found["failures"] == {} and found["notes"] == []
    assert found["label"] == "measured" and json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_text_shows_the_numbers_and_the_freeze_in_every_users_row():
    run = measured_run()
    shown = text(summary_of(run), run.streams(), ascii_only=True)
    assert "(P50, P90, P99: interpolated linearly between neighbours" in shown
    assert "TTFT of the prompt, 8,190 tokens: 480.0 ms (17,062 prompt tokens/s)" in shown
    assert "user 0 waited 500.0 ms from 0.110 s on (2 streams at once), while prompt waited for a first event" in shown
    table = [line.split()[-5:] for line in shown.splitlines() if "waits for its first event" in line and "." in line]
    assert ["2", "500.0", "500.0", "500.0", "500.0"] in table
    assert shown.isascii() and all(len(line) < 200 for line in shown.splitlines())
    rows = {line[:9].strip(): line for line in shown.splitlines() if line.endswith("|")}
    assert "=" * (BINS // 2) in rows["prompt"]
    assert all("_" * (BINS // 2) in rows[name] for name in ("user 0", "user 1"))


def test_a_prompt_that_failed_ends_its_wait_when_it_failed_and_its_reason_is_counted():
    run = measured_run(prompt_state="failed")
    found = summary_of(run)
    assert found["failures"] == {"HTTP 500: no": 1}
    assert found["itl_us"]["during_prefill"]["count"] == 2
    assert found["requests"][2]["ttft_us"] is None
    assert "FAILED 1 x: HTTP 500: no" in text(found, run.streams(), ascii_only=False)


def test_a_wait_that_was_cut_off_is_the_worst_stall_and_no_percentile():
    run = measured_run(prompt_state="interrupted")
    run.interrupted = True
    for user in run.records[:2]:
        user.event_ns, user.end_ns, user.state = user.event_ns[:10], 900 * MS, "interrupted"
    found = summary_of(run)
    assert (found["worst_stalls"][0]["us"], found["worst_stalls"][0]["whole"]) == (790_000, False)
    assert found["itl_us"]["all"]["max"] == 10_000
    shown = text(found, run.streams(), ascii_only=False)
    assert "waited at least 790.0 ms" in shown and "INTERRUPTED" in shown


def users_end_early(run: Run) -> None:
    for user in run.records[:2]:
        user.event_ns, user.end_ns, user.state = user.event_ns[:10], 300 * MS, "done"


def events_come_in_pairs(run: Run) -> None:
    for user in run.records[:2]:
        user.event_ns = sorted(2 * user.event_ns)


def answers_come_at_once(run: Run) -> None:
    for user in run.records[:2]:
        user.event_ns = 4 * user.event_ns[-1:]


def users_get_many_tokens_an_event(run: Run) -> None:
    users_end_early(run)
    for user in run.records[:2]:
        user.usage = (16, 60)


def answers_are_cut_short(run: Run) -> None:
    users_end_early(run)
    for user in run.records[:2]:
        user.usage, user.finish = (16, 10), "length"


@pytest.mark.parametrize(
    ("spoil", "note"),
    [
        (events_come_in_pairs, "40 of 79 events came together with the one before them"),
        (answers_come_at_once, "2 of 3 answers came all at once"),
        (users_end_early, "2 of them had ended before its first event"),
        (users_get_many_tokens_an_event, "one event carries 5.55 tokens"),
        (lambda run: setattr(run, "late_ns", 200 * MS), "up to 200.0 ms late"),
        (lambda run: run.trouble.append("odd"), "event loop: odd"),
        (lambda run: setattr(run.records[0], "note", "ended without [DONE]"), "1 streams ended without [DONE]"),
        (lambda run: setattr(run.records[1], "event_ns", []), "1 of 2 users were streaming when the prompt was sent"),
        (answers_are_cut_short, "2 answers ended with `length` before their max_tokens"),
        (lambda run: setattr(run.records[2], "usage", (16_000, 2)), "counts 16,000 tokens in the prompt; 8,192 were"),
        (lambda run: setattr(run.records[2], "cached", 8_176), "had 8,176 tokens of the prompt in its prefix cache"),
        (lambda run: setattr(run.records[2], "sent_ns", [100 * MS, 115 * MS]), "1 requests were sent again"),
        (lambda run: setattr(run.records[2], "status", [400]), "sent as 8,192 words and refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_makes_the_numbers_doubtful_is_noted(spoil, note):
    run = measured_run()
    spoil(run)
    assert note in "\n".join(summary_of(run)["notes"])


def test_token_ids_that_were_refused_are_not_called_words():
    run = measured_run(prompt_state="failed")
    run.records[2].status = [400]
    assert "words" not in "\n".join(summary_of(run, "token ids")["notes"])


@given(some_streams(), st.booleans())
def test_a_timeline_has_all_events_and_never_breaks(streams, ascii_only):
    lines = timeline(streams, ascii_only=ascii_only)
    shown = [s for s in streams if s.event_us]
    assert len(lines) == (1 + len(shown) if shown else 0)
    for s, line in zip(shown, lines[1:]):
        cells = line.split("|")[1]
        assert len(cells) == BINS and line.isascii() >= ascii_only
        # up to 71 us wide, so that a column is one microsecond and the first sent is column 0
        drawn = {i for i, cell in enumerate(cells) if cell not in " =_·"}
        left = min(other.first_sent_us for other in shown)
        assert drawn == {us - left for us in s.event_us}
