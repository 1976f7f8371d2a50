"""The load generator's parts that need no network: parsing what comes in any pieces, and what event times say."""

import json
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from course_lib.cli import UserError
from course_lib.load.address import endpoint_at
from course_lib.load.arrivals_csv import TraceRow
from course_lib.load.client import Record, StreamReceiver
from course_lib.load.http import ResponseParser
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
from course_lib.load.sse import MAX_EVENT, SseEvent, EventParser, Piece, RequestFailed, error_message, plain, read_piece


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at these places (taken modulo its length)."""
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)]


cuts = st.lists(st.integers(0, 10**6), max_size=12) | st.just(list(range(1_000)))  # the last: byte by byte

# --- server-sent events

# not CR and LF in one stream: CR and then an empty line that ends with LF would be one CR LF
line_ends = st.sampled_from([["\n", "\r\n"], ["\r", "\r\n"]])
letters = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=8)
data_lines = st.lists(letters, min_size=1, max_size=3)


@st.composite
def streams_of_events(draw):
    """(bytes of a stream, the events in it), with comments, unknown fields, several line ends, and a last piece."""
    out, events = [draw(st.sampled_from(["", "\ufeff"]))], []
    line_end = st.sampled_from(draw(line_ends))
    for lines in draw(st.lists(data_lines, max_size=5)):
        name = draw(st.sampled_from(["", "error", "ping"]))
        fields = [
            f"data:{draw(st.sampled_from([' ', '']))}{line}" if line[:1] != " " else f"data: {line}" for line in lines
        ]
        fields += [f"event: {name}"] * bool(name)
        fields += draw(st.lists(st.sampled_from([": keep-alive", ":", "id: 7", "retry: 10", "nonsense"]), max_size=2))
        out += [field + draw(line_end) for field in fields]
        out.append(draw(line_end))
        events.append(SseEvent(name, "\n".join(lines)))
    out.append(draw(st.sampled_from(["", "data: never ended", ": bye\n\n\n"])))
    return "".join(out).encode(), events


@given(streams_of_events(), cuts)
def test_any_cut_of_a_stream_gives_the_same_events(stream, cuts):
    data, events = stream
    parser = EventParser()
    assert [event for piece in pieces(data, cuts) for event in parser.feed(piece)] == events


@given(st.binary(max_size=60) | st.text("dat:e \r\nvx\ufeff", max_size=60).map(str.encode), cuts)
def test_bytes_that_are_no_stream_at_all_are_cut_without_a_difference_too(data, cuts):
    whole, cut = EventParser(), EventParser()
    events = whole.feed(data)
    assert [event for piece in pieces(data, cuts) for event in cut.feed(piece)] == events
    assert cut.rest() == whole.rest()


def test_an_event_that_no_blank_line_ended_is_not_one_and_can_be_looked_at():
    parser = EventParser()
    assert parser.feed(b"data: a\n\ndata: [DO") == [SseEvent("", "a")]
    assert parser.feed(b"NE]") == [] and parser.rest() == "data: [DONE]"


def test_an_event_without_end_is_refused_and_keep_alives_without_end_are_not():
    parser = EventParser()
    with pytest.raises(RequestFailed, match="longer than"):
        for _ in range(MAX_EVENT // 1_000 + 1):
            parser.feed(b"x" * 1_000)
    parser = EventParser()
    for _ in range(MAX_EVENT // 1_000 + 1):
        assert parser.feed(b": still here\n\n" * 80) == []
    with pytest.raises(RequestFailed, match="longer than"):
        for _ in range(MAX_EVENT // 1_000 + 1):
            parser.feed(b"data: " + b"x" * 1_000 + b"\n")


@pytest.mark.parametrize(
    ("chunk", "piece"),
    [
        ({"choices": [{"text": " hi", "finish_reason": None}], "usage": None}, Piece(True)),
        ({"choices": [{"text": "", "finish_reason": "stop"}]}, Piece(False, "stop")),
        ({"choices": [{"delta": {"role": "assistant"}}]}, Piece()),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, Piece()),
        ({"choices": [{"delta": {"content": None}}]}, Piece()),
        ({"choices": [{"delta": {"content": "a"}}]}, Piece(True)),
        ({"choices": [{"delta": {"reasoning_content": "a"}}]}, Piece(True)),
        ({"choices": [{"delta": {"reasoning": "a"}}]}, Piece(True)),
        ({"choices": [{"delta": None}, {"text": "b"}]}, Piece(True)),
        ({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}, Piece(usage=(7, 3))),
        ({"choices": [], "usage": {"prompt_tokens": 7}}, Piece(usage=(7, 0))),
        ({"choices": [], "usage": {"prompt_tokens": "7", "completion_tokens": 3}}, Piece()),
        ({"choices": [], "usage": {"prompt_tokens": True, "completion_tokens": -1}}, Piece()),
        ({"choices": None}, Piece()),
        ({"choices": [5, "x", None]}, Piece()),
        ({}, Piece()),
    ],
)
def test_what_an_event_says(chunk, piece):
    assert read_piece(SseEvent("", json.dumps(chunk))) == piece


def test_the_end_is_an_event_of_its_own():
    assert read_piece(SseEvent("", "[DONE]")) == read_piece(SseEvent("", " [DONE] ")) == Piece(done=True)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (SseEvent("", "{'no': json}"), "not a JSON object"),
        (SseEvent("", "5"), "not a JSON object"),
        (SseEvent("", "[" * 100_000), "not a JSON object"),
        (SseEvent("", '{"error": {"message": "out of memory"}}'), "says in the stream: out of memory"),
        (SseEvent("error", "Internal\nerror"), "says in the stream: Internal error"),
        (SseEvent("error", '{"detail": "gone"}'), "says in the stream: gone"),
    ],
)
def test_an_event_that_is_an_error_or_no_event_ends_the_request(event, why):
    with pytest.raises(RequestFailed, match=why) as failed:
        read_piece(event)
    assert len(str(failed.value)) < 300


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error": {"message": "too long", "code": 400}}', "too long"),
        ('{"error": "busy"}', "busy"),
        ('{"object": "error", "message": "no such model"}', "no such model"),
        ('{"detail": [{"loc": ["body"], "msg": "field required"}]}', '[{"loc": ["body"], "msg": "field required"}]'),
        ("<html>502 Bad Gateway</html>\n", "<html>502 Bad Gateway</html>"),
        ("", "(no message)"),
        ("null", "null"),
    ],
)
def test_an_error_is_said_in_the_servers_own_words(body, message):
    assert error_message(body) == message


@given(st.text(), st.integers(4, 50))
def test_what_a_server_says_cannot_move_the_cursor_or_fill_the_screen(words, most):
    line = plain(words, most)
    assert len(line) <= most and line.isprintable()


# --- HTTP

BODY = "data: één\n\ndata: [DONE]\n\n".encode()


def chunked(body: bytes, sizes: list[int]) -> bytes:
    out, at = [], 0
    for size in [*sizes, len(body)]:
        if at < len(body):
            part = body[at : at + size]
            out.append(b"%x;odd=1\r\n%s\r\n" % (len(part), part))
            at += size
    return b"".join(out) + b"0\r\nX-Trailer: 1\r\n\r\n"


heads = st.sampled_from([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n", b"HTTP/1.1 200\r\nA: b\r\n"])


@given(heads, st.lists(st.integers(1, 9), max_size=6), cuts)
def test_any_cut_of_an_answer_in_chunks_gives_the_same_body(head, sizes, cuts):
    data = head + b"Transfer-Encoding: Chunked\r\n\r\n" + chunked(BODY, sizes)
    parser = ResponseParser()
    assert b"".join(map(parser.feed, pieces(data, cuts))) == BODY
    assert parser.done and parser.status == 200


@given(st.booleans(), cuts)
def test_a_body_with_a_length_ends_there_and_one_without_at_the_connections_end(has_length, cuts):
    length = b"Content-Length: %d\r\n" % len(BODY) if has_length else b""
    parser = ResponseParser()
    data = b"HTTP/1.1 200 OK\nX: y\n" + length.replace(b"\r", b"") + b"\n" + BODY  # bare LF: seen in the wild
    assert b"".join(map(parser.feed, pieces(data, cuts))) == BODY
    assert parser.done == has_length
    parser.end()
    assert parser.done and parser.headers["x"] == "y"


def test_an_answer_without_a_body_is_done_with_its_head():
    for head in (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"):
        parser = ResponseParser()
        assert parser.feed(head) == b"" and parser.done


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(0, 200))
def test_an_answer_that_ends_early_is_never_taken_for_whole(sizes, kept):
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(BODY, sizes)
    assume(kept < len(data))
    parser = ResponseParser()
    parser.feed(data[:kept])
    with pytest.raises(RequestFailed, match="cut|without an answer"):
        parser.end()


@pytest.mark.parametrize(
    "data",
    [
        b"\x15\x03\x01\x00\x02",  # a TLS alert
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X" * 70_000,
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000,
    ],
)
def test_what_is_not_http_is_refused_in_one_short_line(data):
    with pytest.raises(RequestFailed) as failed:
        ResponseParser().feed(data)
    assert len(str(failed.value)) < 120 and str(failed.value).isprintable()


@given(st.binary(max_size=80), cuts)
def test_no_bytes_break_the_parser_in_another_way(data, cuts):
    parser = ResponseParser()
    try:
        for piece in pieces(b"HTTP/1.1 200 OK\r\n" + data, cuts):
            parser.feed(piece)
        parser.end()
    except RequestFailed:
        pass


# --- one answer


def test_only_pieces_of_the_answer_count_against_the_timeout():
    answer = StreamReceiver(Record(Job("j", "user", 1, 9)), 5)
    answer.connected(6)
    answer.head(200, {})
    heard = []
    for data, at_ns in (
        (b'data: {"choices": [{"text": "a"}]}\n\n', 70),
        (b": still here\n\n", 80),
        (b'data: {"choices": [{"text": ""}]}\n\n', 90),
        (b'data: {"choices": [{"text": "b"}]}\n\n', 95),
    ):
        assert answer.body(data, at_ns) is False
        heard.append(answer.heard_ns)
    assert heard == [70, 70, 70, 95]


# --- addresses


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    "url", ["http://h:81", "http://h:81/", "http://h:81/v1", "http://h:81/v1/", "http://h:81/v1{}/completions"]
)
def test_every_form_of_the_address_names_the_same_server(url, chat):
    server = endpoint_at(url.format("/chat" if chat else ""), chat=chat)
    assert (server.host, server.port, server.tls) == ("h", 81, None)
    assert server.path == ("/v1/chat/completions" if chat else "/v1/completions")
    assert server.models_path == "/v1/models"


def test_a_longer_path_and_a_query_are_kept_and_the_query_is_not_shown():
    server = endpoint_at("https://h/api/v1?key=secret", chat=False)
    assert (server.port, server.path) == (443, "/api/v1/completions?key=secret")
    assert server.shown == "https://h/api/v1/completions" and server.models_path == "/api/v1/models?key=secret"
    assert endpoint_at("https://h/v2/x/completions", chat=False).models_path == "/v2/x/models"


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:8000", "127.0.0.1", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://me:pw@h",
        "http://h/a b", "http://h/\r\nX: y", "http://hé", "http://[::1", "http://h/v1/chat/completions",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UserError) as refused:
        endpoint_at(url, chat=False)
    assert "pw" not in str(refused.value)


def test_a_request_is_one_that_any_http_server_reads():
    request = endpoint_at("http://[::1]:8000", chat=False, api_key="k1").request("POST", "/p", b"{}")
    head, body = request.split(b"\r\n\r\n")
    assert body == b"{}" and head.startswith(b"POST /p HTTP/1.1\r\nHost: [::1]:8000\r\n")
    assert b"\r\nAuthorization: Bearer k1" in head and b"\r\nContent-Length: 2" in head
    assert b"\r\nHost: h\r\n" in endpoint_at("http://h", chat=False).request("GET", "/")
    with pytest.raises(UserError, match="API key"):
        endpoint_at("http://h", chat=False, api_key="k\r\nX: y")


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


@given(st.lists(st.integers(0, 50), max_size=30))
def test_percentiles_are_the_smallest_value_that_enough_others_do_not_exceed(values):
    found = spread(values)
    assert found["count"] == len(values)
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
        enough = [v for v in values if 100 * sum(other <= v for other in values) >= percent * len(values)]
        assert found[name] == (min(enough) if values else None)


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
    ],
)
def test_an_answer_that_somebody_held_back_is_known_by_its_times(events, held):
    assert came_at_once(stream("s", events)) == held


# --- the report


def made_run(*, prompt_state="done"):
    """Two users, a token each 10 ms; after token 9 they wait 500 ms, while the long prompt is computed."""
    records = [Record(job) for job in freeze_jobs(2, 40, 8_192)]
    ms = 1_000_000
    for i, user in enumerate(records[:2]):
        user.sent_ns, user.connected_ns, user.status = [5 * ms], [6 * ms], [200]
        user.event_ns = [(20 + 10 * k + (490 if k > 9 else 0)) * ms + i for k in range(20)]
        user.state, user.end_ns = "stopped", user.event_ns[-1] + 3 * ms
    prompt = records[2]
    prompt.sent_ns, prompt.connected_ns, prompt.status = [115 * ms], [116 * ms], [200]
    prompt.event_ns, prompt.end_ns = ([595 * ms, 596 * ms], 597 * ms) if prompt_state == "done" else ([], 500 * ms)
    prompt.state, prompt.usage = prompt_state, (8_190, 2) if prompt_state == "done" else None
    prompt.error = "HTTP 500: no" if prompt_state == "failed" else ""
    return Run(records, began_ns=0, ended_ns=800 * ms, late_ns=2 * ms)


ABOUT = {"url": "http://h/v1/completions", "model": "m", "scenario": {"prompts": "words"}}


def test_the_summary_tells_the_freeze_from_the_rest_and_names_its_cause():
    found = summary(made_run(), ABOUT)
    assert found["label"] == "measured"
    assert found["ttft_us"] == {"count": 2, "p50": 15_000, "p90": 15_000, "p99": 15_000, "max": 15_000}
    assert found["itl_us"]["during_prefill"] == {
        "count": 2,
        "p50": 500_000,
        "p90": 500_000,
        "p99": 500_000,
        "max": 500_000,
    }
    assert found["itl_us"]["otherwise"] == {"count": 36, "p50": 10_000, "p90": 10_000, "p99": 10_000, "max": 10_000}
    first, *others = found["worst_stalls"]
    assert first == {
        "name": "user 0", "streams_waiting": 2, "start_us": 110_000, "us": 500_000, "whole": True,
        "during_prefill": True, "waiting_for_first_event": ["prompt"],
    }  # fmt: skip
    assert [stall["us"] for stall in others] == [10_000, 10_000]
    prompt = found["requests"][2]
    assert (prompt["ttft_us"], prompt["connect_us"], prompt["gap_us"]) == (480_000, 1_000, [1_000])
    assert found["events_per_s"] == 42 * 1_000_000 // (700_000 - 5_000)
    assert found["http_status"] == {"200": 3} and found["states"] == {"stopped": 2, "done": 1}
    assert found["tokens_per_event"] == 1.0 and found["failures"] == {} and found["notes"] == []
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_text_shows_the_numbers_and_the_freeze_in_every_users_row():
    run = made_run()
    shown = text(summary(run, ABOUT), run.streams(), ascii_only=True)
    assert "TTFT of the prompt, 8,190 tokens: 480.0 ms (17,062 prompt tokens/s)" in shown
    assert "user 0 waited 500.0 ms from 0.110 s on (2 streams at once), while prompt waited for a first event" in shown
    table = [line.split()[-5:] for line in shown.splitlines() if "waits for its first event" in line and "." in line]
    assert ["2", "500.0", "500.0", "500.0", "500.0"] in table
    assert shown.isascii() and all(len(line) < 200 for line in shown.splitlines())
    rows = {line[:9].strip(): line for line in shown.splitlines() if line.endswith("|")}
    assert "=" * (BINS // 2) in rows["prompt"]
    for name in ("user 0", "user 1"):
        assert "_" * (BINS // 2) in rows[name]


def test_a_prompt_that_failed_ends_its_wait_when_it_failed_and_its_reason_is_counted():
    run = made_run(prompt_state="failed")
    found = summary(run, ABOUT)
    assert found["failures"] == {"HTTP 500: no": 1}
    assert found["itl_us"]["during_prefill"]["count"] == 2
    assert found["requests"][2]["ttft_us"] is None
    assert "FAILED 1 x: HTTP 500: no" in text(found, run.streams(), ascii_only=False)


def test_a_wait_that_was_cut_off_is_the_worst_stall_and_no_percentile():
    run = made_run(prompt_state="interrupted")
    run.interrupted = True
    for user in run.records[:2]:
        user.event_ns, user.end_ns, user.state = user.event_ns[:10], 900_000_000, "interrupted"
    found = summary(run, ABOUT)
    assert (found["worst_stalls"][0]["us"], found["worst_stalls"][0]["whole"]) == (790_000, False)
    assert found["itl_us"]["all"]["max"] == 10_000
    shown = text(found, run.streams(), ascii_only=False)
    assert "waited at least 790.0 ms" in shown and "INTERRUPTED" in shown


def test_what_makes_the_numbers_doubtful_is_noted():
    run = made_run()
    run.late_ns = 200_000_000
    for user in run.records[:2]:
        user.end_ns, user.state, user.usage = 300_000_000, "done", (16, 60)
        user.event_ns = user.event_ns[:10]
        user.note = "ended without [DONE]"
    run.records[2].usage = (16_000, 2)
    run.records[2].sent_ns = [100_000_000, 115_000_000]
    run.trouble.append("odd")
    notes = "\n".join(summary(run, ABOUT)["notes"])
    for part in (
        "2 of them had ended before its first event", "counts 16,000 tokens in the prompt; 8,192 were meant",
        "up to 200.0 ms late", "one event carries 5.55 tokens", "1 requests were sent again", "2 streams ended without",
        "event loop: odd",
    ):  # fmt: skip
        assert part in notes
    refused = made_run(prompt_state="failed")
    refused.records[2].status = [400]
    assert "sent as 8,192 words and refused" in "\n".join(summary(refused, ABOUT)["notes"])
    ids = ABOUT | {"scenario": {"prompts": "token ids"}}
    assert "words" not in "\n".join(summary(refused, ids)["notes"])
    late = made_run()
    late.records[1].event_ns = []
    assert "1 of 2 users were streaming when the prompt was sent" in "\n".join(summary(late, ABOUT)["notes"])


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
