"""What comes from a server, in any cut of its bytes, and the address that a person gives. No network."""

import json
from concurrent.futures import Future
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

pytest.importorskip("httptools")
from course_lib.cli import UserError
from course_lib.load.address import endpoint_at
from course_lib.load.http import Connection
from course_lib.load.sse import (
    MAX_EVENT,
    EventParser,
    Piece,
    RequestFailed,
    SseEvent,
    error_message,
    is_error,
    plain,
    read_piece,
)


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


def test_the_line_in_which_llama_cpp_tells_an_error_is_an_event_of_that_name():
    data = b'data: a\n\nerror: {"code": 500}\n\nerror\n\n'
    assert EventParser().feed(data) == [SseEvent("", "a"), SseEvent("error", '{"code": 500}'), SseEvent("error", "")]


@pytest.mark.parametrize(
    "said",
    [
        {}, [], None, 5, {"choices": [], "message": "m"}, {"usage": {}, "code": 0, "detail": "d"}, {"error": None},
        {"object": "text_completion"}, {"object": "chat.completion.chunk", "choices": []}, {"code": 0}, {"message": ""},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_error_is_taken_for_none(said):
    assert not is_error(said)


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
        ({"choices": [], "usage": {"prompt_tokens": 10**9, "completion_tokens": 10**9}}, Piece(usage=(10**9, 10**9))),
        ({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 10**9 + 1}}, Piece()),
        ({"choices": [], "usage": {"prompt_tokens": 10**400, "completion_tokens": 3}}, Piece()),
        (
            {"usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}, "choices": []},
            Piece(usage=(7, 0), cached=5),
        ),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": "5"}}, "choices": []}, Piece()),
        ({"usage": {"prompt_tokens_details": 5}, "choices": []}, Piece()),
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
        (SseEvent("", '{"object": "error", "message": "gone"}'), "says in the stream: gone"),
        (SseEvent("", '{"code": 500, "message": "gone"}'), "says in the stream: gone"),
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

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = "data: één\n\ndata: [DONE]\n\n".encode()


class Received:
    """What a connection hands on."""

    heard_ns = 0

    def __init__(self) -> None:
        self.status, self.headers, self.data = 0, {}, b""

    def head(self, status, headers):
        self.status, self.headers = status, headers

    def body(self, data, at_ns):
        self.data += data
        return False


def receive(parts, *, closed: bool = False) -> tuple[Received, Connection]:
    """Feed a connection these bytes; `closed` at the end. Raises what ended it."""
    received = Received()
    connection = Connection(received, Future())
    for part in parts:
        connection.data_received(part)
    if closed:
        connection.connection_lost(None)
    if connection.over.done() and connection.over.result():
        raise connection.over.result()
    return received, connection


def chunked(body: bytes, sizes: list[int]) -> bytes:
    out, at = [], 0
    for size in [*sizes, len(body)]:
        if at < len(body):
            part = body[at : at + size]
            out.append(b"%x;odd=1\r\n%s\r\n" % (len(part), part))
            at += size
    return b"".join(out) + b"0\r\nX-Trailer: 1\r\n\r\n"


SECOND = b"HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\nx"
heads = st.sampled_from([b"HTTP/1.1 100 Continue\r\nA: c\r\n\r\nHTTP/1.1 200 OK\r\n", b"HTTP/1.1 200\r\nA: b\r\n"])


@given(heads, st.lists(st.integers(1, 9), max_size=6), st.sampled_from([b"", b"x", SECOND]), cuts)
def test_any_cut_of_an_answer_in_chunks_gives_the_same_body_and_nothing_after_it(head, sizes, after, cuts):
    data = head + b"Transfer-Encoding: Chunked\r\n\r\n" + chunked(BODY, sizes) + after
    received, connection = receive(pieces(data, cuts))
    assert (received.status, received.data) == (200, BODY) and connection.over.done()
    assert "x-trailer" not in received.headers and received.headers.get("a", "b") == "b"


@given(st.booleans(), cuts)
def test_a_body_with_a_length_ends_there_and_one_without_at_the_connections_end(has_length, cuts):
    length = b"Content-Length: %d\n" % len(BODY) if has_length else b""
    data = b"HTTP/1.1 200 OK\nX: y\n" + length + b"\n" + BODY  # bare LF: seen in the wild
    received, connection = receive(pieces(data, cuts))
    assert received.data == BODY and received.headers["x"] == "y"
    assert connection.over.done() == has_length
    assert receive(pieces(data, cuts), closed=True)[1].over.done()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"])
def test_an_answer_without_a_body_is_complete_with_its_head(head):
    assert receive([head])[1].over.done()


@given(st.lists(st.integers(1, 9), max_size=6) | st.none(), st.integers(0, 200))
def test_an_answer_that_ends_early_is_never_taken_for_whole(sizes, kept):
    with_length = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
    data = with_length if sizes is None else CHUNKED + chunked(BODY, sizes)
    assume(kept < len(data))
    with pytest.raises(RequestFailed, match="cut|without an answer"):
        receive([data[:kept]], closed=True)


@pytest.mark.parametrize(
    "data",
    [
        b"\x15\x03\x01\x00\x02", b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n", CHUNKED + b"zz\r\n", CHUNKED + b"2\r\nabcd\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["a TLS alert", "SSH", "no status", "length", "chunk size", "chunk too long", "another protocol"],
)  # fmt: skip
def test_what_is_not_http_is_refused_in_one_short_line(data):
    with pytest.raises(RequestFailed) as failed:
        receive([data])
    assert len(str(failed.value)) < 120 and str(failed.value).isprintable()


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nA: ", CHUNKED + b"1;", CHUNKED + b"0\r\nX: "])
def test_a_head_a_chunks_size_and_trailers_without_end_are_refused_before_they_fill_the_memory(begin):
    with pytest.raises(RequestFailed, match="65,536 bytes"):
        receive([begin, *[b"x" * 1_000] * 70])


@given(st.binary(max_size=80), cuts)
def test_no_bytes_break_a_connection_in_another_way(data, cuts):
    try:
        receive(pieces(b"HTTP/1.1 200 OK\r\n" + data, cuts), closed=True)
    except RequestFailed:
        pass


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
