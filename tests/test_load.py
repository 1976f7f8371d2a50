"""`load` against servers as they are found: proper, odd and broken ones. All on loopback; no time is asserted."""

import asyncio
import errno
import gzip
import json
import signal
import socket
import subprocess
import sys

import pytest
from starting import ROOT

pytest.importorskip("httptools")
from odd_server import DONE, OddServer, chat_event, event, proper, says, says_json, text_event, usage_event

SMALL = ("--users", "2", "--tokens", "8", "--prompt-tokens", "600", "--timeout", "20")


@pytest.fixture
def load(command, monkeypatch):
    """load(url, *flags) -> exit code, stdout, stderr."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(url, *flags, sizes=SMALL):
        code, out, err = command("load", url, *sizes, *flags)
        assert "Traceback" not in out + err
        return code, out, err

    return run


@pytest.fixture
def refused(load):
    """refused(url, *flags) -> the one line on stderr of a load that measured nothing."""

    def run(url, *flags, sizes=SMALL):
        code, out, err = load(url, *flags, sizes=sizes)
        assert (code, out) == (2, "") and len(err.splitlines()) == 1 and len(err) < 700, (out, err)
        return err

    return run


@pytest.fixture
def as_json(load):
    """as_json(url, *flags) -> exit code and the object printed."""

    def run(url, *flags, sizes=SMALL):
        code, out, err = load(url, *flags, "--json", "-", sizes=sizes)
        assert err == ""
        return code, json.loads(out)

    return run


def states(found):
    return [request["state"] for request in found["requests"]]


async def silence(request, peer):
    await asyncio.sleep(3_600)


# --- servers that do as they should, each in its own way

FOUR = (text_event("a"), text_event("a"), text_event("a"), text_event("a", "length"))


def cut_in_chunks(data: bytes) -> list[bytes]:
    """`data` in HTTP chunks of seven bytes, which cut events and characters in two."""
    parts = [data[at : at + 7] for at in range(0, len(data), 7)]
    return [*(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


# CR LF, comments, a byte order mark, and data in two lines
ORNATE = "\ufeff: hello\r\n\r\n" + "".join(
    'event: message\r\nid: 1\r\ndata: {"choices":\r\ndata:  [{"text": "é→🙂", "finish_reason": '
    + f"{reason}}}]}}\r\n\r\n: ping\r\n\r\n"
    for reason in ("null", "null", "null", '"length"')
)
CHAT = (
    chat_event(role="assistant", content=""),
    event({"choices": []}) + chat_event(role="assistant"),
    chat_event(reasoning_content="hm"),
    chat_event(reasoning="hm"),
    chat_event(content="a"),
    chat_event("stop", content="b"),
    chat_event("stop") + usage_event(9, 4) + DONE,
)


async def never_closes(request, peer):
    await says(*FOUR, DONE)(request, peer)
    await silence(request, peer)


@pytest.mark.parametrize(
    ("answer", "flags", "notes"),
    [
        pytest.param(
            says(*cut_in_chunks(ORNATE.encode() + DONE), head=("Transfer-Encoding: chunked",)), (), [], id="chunks"
        ),
        pytest.param(says(*CHAT), ("--chat",), [], id="chat, with reasoning"),
        pytest.param(never_closes, (), [], id="the connection stays open"),
        pytest.param(says(*FOUR), (), ["3 streams ended without [DONE]."], id="no [DONE]"),
        pytest.param(says(*FOUR, b"data: [DONE]"), (), [], id="no last blank line"),
        pytest.param(says(b"".join(FOUR), DONE, kind="text/plain"), (), [], id="another content type"),
    ],
)
def test_every_form_of_a_proper_answer_is_four_events(as_json, answer, flags, notes):
    with OddServer(answer) as server:
        code, found = as_json(server.url, *flags)
    assert code == 0 and states(found) == ["done"] * 3, found["failures"]
    assert [len(request["event_us"]) for request in found["requests"]] == [4, 4, 4]
    assert [note for note in found["notes"] if "DONE" in note] == notes
    for request in found["requests"]:
        assert request["event_us"] == sorted(request["event_us"]) and request["ttft_us"] >= 0
        assert 0 <= request["first_sent_us"] <= request["sent_us"] <= request["event_us"][0] <= request["end_us"]


def test_a_freeze_is_seen_at_every_user_and_attributed_to_the_long_prompt(load, tmp_path):
    """The server keeps users waiting from token 10 on, which is when the prompt comes, until it has answered it."""
    thaw = asyncio.Event()  # used in the server's loop only

    async def freeze(request, peer):
        await peer.head()
        if request.is_long:
            await peer.send(text_event("p", "length"), 0.05)
            thaw.set()
            await peer.send(usage_event(600, 1) + DONE)
            return
        for i in range(40):
            if i == 10:
                await thaw.wait()
            await peer.send(text_event("a", "length" if i == 39 else None), 0.002)
        await peer.send(DONE)

    file = tmp_path / "found.json"
    with OddServer(freeze) as server:
        code, out, err = load(server.url, "--users", "3", "--tokens", "40", "--json", file)
    found = json.loads(file.read_text())
    *users, prompt = found["requests"]
    assert code == 0 and prompt["state"] == "done" and prompt["usage"] == {"prompt_tokens": 600, "completion_tokens": 1}
    for user in users:
        assert user["event_us"][9] <= prompt["sent_us"] < user["event_us"][10]
        assert len(user["event_us"]) >= 26 and user["state"] in ("stopped", "done")
    itl = found["itl_us"]
    assert itl["during_prefill"]["count"] >= 3
    assert itl["all"]["count"] == itl["during_prefill"]["count"] + itl["otherwise"]["count"]
    assert "while the prompt waits for its first event" in out and "measured" in out


def test_users_stream_before_the_prompt_is_sent_and_go_on_after_it(as_json):
    with OddServer() as server:
        code, found = as_json(server.url, "--tokens", "2000")
    assert code == 0 and states(found) == ["stopped", "stopped", "done"]
    *users, prompt = found["requests"]
    for user in users:
        assert sum(us <= prompt["sent_us"] for us in user["event_us"]) >= 16
        assert sum(us >= prompt["event_us"][-1] for us in user["event_us"]) >= 16


def test_what_is_sent_is_what_the_flags_ask_for(as_json):
    with OddServer() as server:
        _, found = as_json(server.url, "--token-ids", "--ignore-eos", "--extra", '{"top_k": 1}')
        bodies = [request.body for request in server.requests]
    assert [len(body["prompt"]) for body in bodies] == [16, 16, 600]
    assert [body["max_tokens"] for body in bodies] == [8, 8, 4]
    assert all(body["ignore_eos"] and body["stream"] and body["top_k"] == 1 for body in bodies)
    assert all(3 <= id < 128 for body in bodies for id in body["prompt"])
    assert found["requests"][2]["usage"]["prompt_tokens"] == 600 and found["model"] == bodies[0]["model"] == "odd"


def test_the_same_seed_sends_the_same_prompts(load):
    sent = []
    for seed in ("1", "1", "2"):
        with OddServer(says(*FOUR, DONE)) as server:
            assert load(server.url, "--seed", seed)[0] == 0
            sent.append(sorted(request.raw for request in server.requests))
    assert sent[0] == sent[1] != sent[2]


def test_a_trace_is_sent_as_it_says(as_json, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,prefix_id\n0.02,700,3,a\n0,20,5,\n0.02,30,2,a\n")
    with OddServer() as server:
        code, found = as_json(server.url, "--csv", trace, "--token-ids", sizes=())
        prompts = {request.body["max_tokens"]: request.body["prompt"] for request in server.requests}
    assert code == 0 and states(found) == ["done"] * 3
    assert [r["name"] for r in found["requests"]] == ["row 0", "row 1", "row 2"]
    assert [(r["prompt_tokens_asked"], len(r["event_us"])) for r in found["requests"]] == [(20, 5), (700, 3), (30, 2)]
    assert all(r["sent_us"] >= r["arrival_us"] for r in found["requests"])
    assert [len(prompts[n]) for n in (5, 3, 2)] == [20, 700, 30] and prompts[3][:30] == prompts[2]
    assert found["scenario"]["csv"] == str(trace)


@pytest.mark.parametrize("counts", [(600, 10**400), (10**400, 4), (600, -1), (600, 10**9 + 1)])
def test_token_counts_that_cannot_be_are_taken_for_none(as_json, counts):
    with OddServer(says(*FOUR, usage_event(*counts), DONE)) as server:
        code, found = as_json(server.url)
    assert code == 0 and found["tokens_per_event"] is None
    assert [request["usage"] for request in found["requests"]] == [None] * 3


def test_a_picture_is_a_png(load, tmp_path):
    pytest.importorskip("matplotlib")
    with OddServer(says(*FOUR, DONE)) as server:
        load(server.url, "--png", tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


# --- answers that fail


async def hangs_up(request, peer):
    pass


async def resets(request, peer):
    await peer.reset()


async def keeps_alive_only(request, peer):
    await peer.head()
    while True:
        await peer.send(b": still here\n\n" + text_event(""), 0.01)


MOVED = "Location: https://elsewhere/v1/completions?key=secret"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says_json({"error": {"message": "out of\x1b[2J memory"}}, 500), "HTTP 500: out of [2J memory"),
        (says(b"x" * 10_000, status=400), "HTTP 400: xxx"),
        (says(b'{"error": ', status=503, head=("Content-Length: 500",)), "HTTP 503, then the stream was cut"),
        (says(status=307, head=(MOVED,)), "HTTP 307: redirected to https://elsewhere/v1/completions: give that"),
        (says_json({"choices": [{"text": "all of it"}]}), "answered in one piece (application/json)"),
        (says_json({"error": {"message": "no such model"}}), "HTTP 200, but an error: no such model"),
        (says_json({"object": "error", "message": "no blocks"}), "HTTP 200, but an error: no blocks"),
        (says_json({"code": 500, "message": "no worker"}), "HTTP 200, but an error: no worker"),
        (says(gzip.compress(DONE), head=("Content-Encoding: gzip",)), "the answer is compressed (gzip), although"),
        (says(b"\x00", status=502, head=("Content-Encoding: br",)), "HTTP 502: the answer is compressed (br)"),
        (says(b"<html>\n<h1>Hi</h1>", kind="text/html"), "not a stream of events (text/html): <html> <h1>Hi</h1>"),
        (says(), "not a stream of events (text/event-stream): nothing in it"),
        (says(text_event("", "stop") + DONE), "the answer is empty (finish reason: stop)"),
        (hangs_up, "the server closed the connection without an answer"),
        (resets, "the server closed the connection without an answer"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_if_nothing_can_be_measured_one_line_says_why(refused, answer, why):
    with OddServer(answer) as server:
        message = refused(server.url)
    assert f"3 of 3 requests failed: {why}" in message and "secret" not in message


@pytest.mark.parametrize("answer", [silence, keeps_alive_only])
def test_a_server_that_never_answers_is_not_waited_for_for_ever(refused, answer):
    with OddServer(answer) as server:
        assert "nothing came for 0.2 s (--timeout)" in refused(server.url, "--timeout", "0.2")


def test_a_stream_that_goes_silent_is_not_waited_for_either(as_json):
    async def goes_silent(request, peer):
        await says(*FOUR[:3])(request, peer)
        await silence(request, peer)

    with OddServer(goes_silent) as server:
        code, found = as_json(server.url, "--timeout", "0.5")
    assert code == 1 and found["failures"] == {"no answer: nothing came for 0.5 s (--timeout)": 3}


async def never_stops(peer):
    while True:
        await peer.send(text_event("a") * 500)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (b"data: {", "the stream ended before the answer did, in the middle of an event"),
        (b"", "the stream ended before the answer did, without a finish reason or [DONE]"),
        (b'event: error\ndata: {"message": "preempted"}\n\n', "the server says in the stream: preempted"),
        (b"data: \xff\xfe\n\n", "an event is not a JSON object"),
        (never_stops, "events, past max_tokens"),
        (DONE, "the stream says [DONE] without a finish reason, after 3 events of 12 tokens"),
        (b"data: [DONE]", "the stream says [DONE] without a finish reason"),
        (text_event("a", "abort") + DONE, "finish reason 'abort', after 4 events of 12 tokens"),
        (text_event("", "error") + DONE, "finish reason 'error', after 3 events of 12 tokens"),
        (text_event("", "cancelled"), "finish reason 'cancelled', after 3 events"),
        (event({"object": "error", "message": "out of blocks", "code": 500}) + DONE, "in the stream: out of blocks"),
        (event({"code": 500, "message": "worker died"}) + DONE, "in the stream: worker died"),
        (event({"type": "error", "message": "overloaded"}) + DONE, "in the stream: overloaded"),
        (event({"detail": "Internal Server Error"}) + DONE, "in the stream: Internal Server Error"),
        (event({"choices": [], "error": {"message": "no"}}) + text_event("a", "stop") + DONE, "in the stream: no"),
        (b'error: {"code": 500, "message": "slot lost", "type": "server_error"}\n\n', "in the stream: slot lost"),
        (b"error: no slot\n\n" + DONE, "in the stream: no slot"),
    ],
)
def test_a_stream_that_breaks_counts_until_there_and_fails_alone(as_json, end, why):
    """The first user's stream breaks after three events; the others' do not."""

    async def answer(request, peer):
        if request.number:
            return await proper(request, peer)
        await says(*FOUR[:3])(request, peer)
        await (peer.send(end) if isinstance(end, bytes) else end(peer))

    with OddServer(answer) as server:
        code, found = as_json(server.url, "--tokens", "12")
    broken = [request for request in found["requests"] if request["state"] == "failed"]
    assert code == 1 and len(broken) == 1 and why in broken[0]["error"] and len(broken[0]["event_us"]) >= 3
    assert found["failures"] == {broken[0]["error"]: 1} and len(states(found)) == 3
    assert found["requests"][2]["state"] == "done"  # the prompt is sent although a user has failed


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_is_lost_in_the_middle_is_told_from_an_end(as_json, reset):
    async def answer(request, peer):
        if request.number:
            return await proper(request, peer)
        data = text_event("a", "length")
        if reset:
            await says(data)(request, peer)
            return await peer.reset()
        return await says(b"%x\r\n%s\r\n1" % (len(data), data), head=("Transfer-Encoding: chunked",))(request, peer)

    with OddServer(answer) as server:
        code, found = as_json(server.url)
    assert code == 1 and list(found["failures"].values()) == [1]
    assert list(found["failures"])[0].startswith("the stream was cut: ")


def test_failures_are_grouped_and_the_rest_is_reported(load):
    async def answer(request, peer):
        fails = says_json({"error": "no"}, 500 if request.is_long else 400)
        await (fails if request.number else proper)(request, peer)

    with OddServer(answer) as server:
        code, out, err = load(server.url, "--users", "4")
    assert code == 1 and err == ""
    assert "FAILED 3 x: HTTP 400: no" in out and "FAILED 1 x: HTTP 500" in out and "1 done" in out


# --- busy servers


def busy(times, *head, status=429):
    """The first `times` requests are refused."""

    async def answer(request, peer):
        refuses = says_json({"error": "busy"}, status, head)
        await (refuses if request.number < times else proper)(request, peer)

    return answer


@pytest.mark.parametrize(
    ("status", "when"), [(429, "0"), (429, "0.01"), (429, "Wed, 21 Oct 2015 07:28:00 GMT"), (503, "0")]
)
def test_a_busy_server_is_asked_again_when_it_says_and_both_ttfts_are_told(as_json, status, when):
    with OddServer(busy(2, f"Retry-After: {when}", status=status)) as server:
        code, found = as_json(server.url)
    assert code == 0 and found["http_status"] == {"200": 3, str(status): 2}
    again = [request for request in found["requests"] if len(request["http_status"]) > 1]
    assert again and f"{len(again)} requests were sent again" in "\n".join(found["notes"])
    for request in again:
        waited = request["sent_us"] - request["first_sent_us"]
        assert waited > 0 and request["ttft_from_first_try_us"] == request["ttft_us"] + waited


@pytest.mark.parametrize(
    ("status", "head", "why", "tries"),
    [
        (429, ("Retry-After: 0",), "HTTP 429: busy", 4),
        (429, ("Retry-After: 9999",), "HTTP 429: busy for another 9999 s", 1),
        (503, (), "HTTP 503: busy", 1),  # without Retry-After it does not promise to come back
    ],
)
def test_a_server_that_stays_busy_is_not_asked_for_ever(refused, status, head, why, tries):
    with OddServer(busy(10**6, *head, status=status)) as server:
        assert why in refused(server.url)
        assert len(server.requests) == 3 * tries


# --- no connection, no model


@pytest.mark.parametrize("flags", [(), ("--model", "m")], ids=["asks for models first", "model given"])
def test_where_no_server_listens_the_connection_is_refused(refused, flags):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert "connection refused: no server listens at 127.0.0.1" in refused(url, *flags)


@pytest.mark.parametrize("flags", [(), ("--model", "m")], ids=["asks for models first", "model given"])
def test_a_server_that_speaks_no_tls_is_said_to(refused, flags):
    with OddServer(greeting=b"HTTP/1.1 400 Bad\r\n\r\n") as server:
        assert "TLS: " in refused(server.url.replace("http:", "https:"), *flags)


def test_a_server_that_speaks_no_http_is_said_to(refused):
    with OddServer(greeting=b"SSH-2.0-odd\r\n") as server:
        assert "not an HTTP answer: 'SSH-2.0-odd'" in refused(server.url, "--model", "m")


def test_a_host_that_is_not_known_is_named(refused, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "no host 'nowhere.invalid' is known" in refused("http://nowhere.invalid")


def test_a_list_of_models_that_is_compressed_is_named_too(refused):
    async def zipped(request, peer):
        await says(gzip.compress(b"{}"), head=("Content-Encoding: gzip",))(request, peer)

    with OddServer(models_answer=zipped) as server:
        assert "the answer is compressed (gzip)" in refused(server.url)


@pytest.mark.parametrize("models", [b"[]", b'{"data": []}', b'{"data": [{"id": 5}]}', b"<html>"])
def test_a_server_that_names_no_model_is_asked_for_one_by_name(refused, models):
    with OddServer(models=models) as server:
        assert "/v1/models should list the server's models: the answer lists no model" in refused(server.url)


def test_a_wrong_path_is_said_to_be_one(refused):
    with OddServer(says(b"not here", status=404)) as server:
        message = refused(server.url + "/wrong")
        assert "/wrong/v1/models should list the server's models: HTTP 404: not here. Check the address" in message
        assert "HTTP 404: not here" in refused(server.url + "/wrong", "--model", "m")


# --- the key


@pytest.mark.parametrize("by_flag", [True, False], ids=["--api-key", "OPENAI_API_KEY"])
def test_the_key_is_sent_and_never_shown_or_saved(load, monkeypatch, tmp_path, by_flag):
    key, file = "sk-do-not-show-this", tmp_path / "f.json"

    async def tells(request, peer):
        said = request.headers.get("authorization", "none")
        answers = [
            says_json({"error": {"message": f"{'x' * 180}{said} is bad"}}, 401),  # would be cut within the key
            says(text_event("a"), event({"error": {"message": said}})),
        ]
        await (answers[request.number] if request.number < 2 else proper)(request, peer)

    if not by_flag:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with OddServer(tells, models=[f"model-{key}"]) as server:
        code, out, err = load(server.url, "--json", file, *(("--api-key", key) if by_flag else ()))
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {key}"}
    assert code == 1 and "[key]" in out
    for shown in (out, err, file.read_text()):
        assert "sk-do" not in shown


# --- Ctrl-C


def test_ctrl_c_keeps_what_has_come(tmp_path):
    """SIGINT once the long prompt has reached the server, which never answers it."""
    started = {}

    async def answer(request, peer):
        if not request.is_long:
            return await proper(request, peer)
        started["load"].send_signal(signal.SIGINT)
        return await silence(request, peer)

    file = tmp_path / "f.json"
    with OddServer(answer) as server:
        command = [sys.executable, "-m", "course_lib", "load", server.url, *SMALL, "--tokens", "20000", "--json", file]
        started["load"] = subprocess.Popen(
            list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, err = started["load"].communicate(timeout=120)
    assert (started["load"].returncode, err) == (130, "")
    found = json.loads(file.read_text())
    assert found["interrupted"] and states(found) == ["interrupted"] * 3
    assert "INTERRUPTED" in out and len(found["requests"][0]["event_us"]) >= 16
    assert found["worst_stalls"] and found["requests"][2]["ttft_us"] is None


def test_ctrl_c_before_anything_has_come_is_one_line(load, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("course_lib.commands.load.run_load", interrupted)
    code, out, err = load("http://127.0.0.1:1", "--model", "m")
    assert (code, out) == (130, "") and err == "course_lib load: interrupted before anything was measured.\n"


@pytest.mark.parametrize("flag", ["--json", "--png"])
def test_a_disk_that_is_full_costs_neither_the_answer_nor_the_file_that_was_there(load, monkeypatch, tmp_path, flag):
    if flag == "--png":
        pytest.importorskip("matplotlib")
    (tmp_path / "old").write_bytes(b"old")

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", source)

    monkeypatch.setattr("os.replace", full)
    with OddServer(says(*FOUR, DONE)) as server:
        code, out, err = load(server.url, flag, tmp_path / "old")
    assert code == 2 and out.startswith("measured at ")
    assert err == f"course_lib load: cannot write {tmp_path / 'old'}: No space left on device.\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "old"] and (tmp_path / "old").read_bytes() == b"old"


# --- what is refused before anything is sent


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--users", "0"), "at least 1"),
        (("--timeout", "0"), "seconds above 0"),
        (("--timeout", "nan"), "seconds above 0"),
        (("--timeout", "x"), "seconds above 0"),
        (("--chat", "--token-ids"), "Leave out --chat"),
        (("--vocab", "9"), "add --token-ids"),
        (("--vocab", "3", "--token-ids"), "leaves no ids"),
        (("--extra", "{"), "--extra is not JSON"),
        (("--extra", "[1]"), "wanted a JSON object"),
        (("--extra", '{"stream": false}'), "leave `stream` alone"),
        (("--json", "/nowhere/f.json"), "cannot write /nowhere/f.json"),
        (("--png", "."), "it is a folder"),
        (("--json", "f/"), "cannot write f/: such a name is that of a folder"),
        (("--png", "f.png/"), "cannot write f.png/: such a name is that of a folder"),
        (("--png", "-"), "a picture is not printed"),
        (("--json", "f", "--png", "./f"), "one would replace the other"),
        (("--api-key", "a b"), "API key"),
        (("--csv", "t.csv"), "leave out --users"),
    ],
)
def test_flags_that_make_no_sense_are_refused(refused, flags, why):
    assert why in refused("http://127.0.0.1:1", *flags)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_a_picture_does_not_replace_the_json_through_a_link_either(refused, tmp_path):
    (tmp_path / "f.png").symlink_to("f.json")
    assert "Name two files" in refused("http://127.0.0.1:1", "--json", tmp_path / "f.json", "--png", tmp_path / "f.png")
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]


def test_a_bad_row_of_a_trace_is_refused_with_its_file_and_line(refused, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n0,ten,1\n")
    message = refused("http://127.0.0.1:1", "--csv", trace, sizes=())
    assert f"{trace}, line 3: prompt_tokens is 'ten'" in message


def test_a_trace_that_is_not_there_is_refused(refused, tmp_path):
    assert "No such file" in refused("http://127.0.0.1:1", "--csv", tmp_path / "none.csv", sizes=())


@pytest.mark.parametrize(
    ("package", "flags", "install"),
    [("httptools", (), 'pip install -e ".[serve]"'), ("matplotlib", ("--png", "f.png"), 'pip install -e ".[lab]"')],
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_has_it(refused, monkeypatch, package, flags, install):
    monkeypatch.setitem(sys.modules, package, None)
    message = refused("http://127.0.0.1:1", *flags)
    assert package in message and install in message
