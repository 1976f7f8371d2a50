"""`load` against servers as they are found: proper, odd and broken ones. All on loopback; no time is asserted."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from odd_server import DONE, OddServer, chat_event, event, text_event, usage_event, well

from course_lib.__main__ import main

ROOT = Path(__file__).parents[1]
SMALL = ("--users", "2", "--tokens", "8", "--prompt-tokens", "600", "--timeout", "20")


@pytest.fixture
def load(capsys, monkeypatch):
    """load(url, *flags) -> exit code, stdout, stderr."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(url, *flags, sizes=SMALL):
        try:
            code = main(["load", url, *sizes, *map(str, flags)])
        except SystemExit as exit:
            code = exit.code
        out, err = capsys.readouterr()
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


# --- servers that do as they should, each in its own way


async def in_small_chunks(request, peer):
    """CR LF, comments, a byte order mark, data in two lines, and chunks that cut events and characters in two."""
    await peer.head(200, "Transfer-Encoding: chunked")
    text = "\ufeff: hello\r\n\r\n" + "".join(
        f'event: message\r\nid: {i}\r\ndata: {{"choices":\r\ndata:  [{{"text": "é→🙂"}}]}}\r\n\r\n: ping\r\n\r\n'
        for i in range(4)
    )
    data = text.encode() + usage_event(9, 4) + DONE
    for at in range(0, len(data), 7):
        await peer.send(b"%x\r\n%s\r\n" % (len(data[at : at + 7]), data[at : at + 7]))
    await peer.send(b"0\r\n\r\n")


async def role_first(request, peer):
    await peer.head()
    await peer.send(chat_event(role="assistant", content=""), 0.001)
    await peer.send(event({"choices": []}) + chat_event(role="assistant"), 0.001)
    await peer.send(chat_event(reasoning_content="hm"), 0.001)
    await peer.send(chat_event(reasoning="hm"), 0.001)
    await peer.send(chat_event(content="a"), 0.001)
    await peer.send(chat_event("stop", content="b"), 0.001)
    await peer.send(chat_event("stop") + usage_event(9, 4) + DONE)


async def never_closes(request, peer):
    await peer.head()
    for i in range(4):
        await peer.send(text_event("a", "length" if i == 3 else None), 0.001)
    await peer.send(DONE, 3_600)


async def without_done(request, peer):
    await peer.head()
    for i in range(4):
        await peer.send(text_event("a", "length" if i == 3 else None), 0.001)


async def without_last_blank_line(request, peer):
    await peer.head()
    for _ in range(4):
        await peer.send(text_event("a"), 0.001)
    await peer.send(b"data: [DONE]")


async def wrong_type(request, peer):
    await peer.head(200, kind="text/plain")
    await peer.send(text_event("a") * 4 + DONE)


@pytest.mark.parametrize(
    ("answer", "flags", "notes"),
    [
        (in_small_chunks, (), []),
        (role_first, ("--chat",), []),
        (never_closes, (), []),
        (without_done, (), ["3 streams ended without [DONE]."]),
        (without_last_blank_line, (), []),
        (wrong_type, (), []),
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
    assert found["requests"][0]["finish_reason"] in ("", "stop", "length")


def test_a_freeze_is_seen_at_every_user_and_laid_to_the_long_prompt(load, tmp_path):
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
            await peer.send(text_event("a"), 0.002)
        await peer.send(DONE)

    file = tmp_path / "found.json"
    with OddServer(freeze) as server:
        code, out, err = load(server.url, "--users", "3", "--tokens", "40", "--json", file, "--png", tmp_path / "f.png")
    found = json.loads(file.read_text())
    *users, prompt = found["requests"]
    assert code == 0 and prompt["state"] == "done" and prompt["usage"] == {"prompt_tokens": 600, "completion_tokens": 1}
    for user in users:
        assert user["event_us"][9] <= prompt["sent_us"] < user["event_us"][10]
        assert len(user["event_us"]) >= 26 and user["state"] in ("stopped", "done")
        assert user["gap_us"] == [b - a for a, b in zip(user["event_us"], user["event_us"][1:])]
    itl = found["itl_us"]
    assert itl["during_prefill"]["count"] >= 3
    assert itl["all"]["count"] == itl["during_prefill"]["count"] + itl["otherwise"]["count"]
    assert "while the prompt waits for its first event" in out and "measured" in out
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_users_stream_before_the_prompt_is_sent_and_go_on_after_it(as_json):
    with OddServer(well) as server:
        code, found = as_json(server.url, "--tokens", "2000", "--token-ids", "--ignore-eos", "--extra", '{"top_k": 1}')
        bodies = [request.body for request in server.requests]
    assert code == 0 and states(found) == ["stopped", "stopped", "done"]
    *users, prompt = found["requests"]
    for user in users:
        assert sum(us <= prompt["sent_us"] for us in user["event_us"]) >= 16
        assert sum(us >= prompt["event_us"][-1] for us in user["event_us"]) >= 16
    assert [len(body["prompt"]) for body in bodies] == [16, 16, 600] and bodies[2]["max_tokens"] == 4
    assert all(body["ignore_eos"] and body["stream"] and body["top_k"] == 1 for body in bodies)
    assert all(3 <= id < 128 for body in bodies for id in body["prompt"])
    assert prompt["usage"]["prompt_tokens"] == 600 and found["model"] == bodies[0]["model"] == "odd"


def test_the_same_seed_sends_the_same_prompts(load):
    sent = []
    for seed in ("1", "1", "2"):
        with OddServer(well) as server:
            assert load(server.url, "--seed", seed)[0] == 0
            sent.append(sorted(request.raw for request in server.requests))
    assert sent[0] == sent[1] != sent[2]


def test_a_trace_is_sent_as_it_says(as_json, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,prefix_id\n0.02,700,3,a\n0,20,5,\n0.02,30,2,a\n")
    with OddServer(well) as server:
        code, found = as_json(server.url, "--csv", trace, "--token-ids", sizes=())
        bodies = {body["max_tokens"]: body["prompt"] for body in (request.body for request in server.requests)}
    assert code == 0 and states(found) == ["done"] * 3
    assert [r["name"] for r in found["requests"]] == ["row 0", "row 1", "row 2"]
    assert [(r["prompt_tokens_asked"], len(r["event_us"])) for r in found["requests"]] == [(20, 5), (700, 3), (30, 2)]
    assert all(r["sent_us"] >= r["arrival_us"] for r in found["requests"])
    assert [len(bodies[n]) for n in (5, 3, 2)] == [20, 700, 30]
    assert bodies[3][:30] == bodies[2] != bodies[5][:30]
    assert found["scenario"]["csv"] == str(trace)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/completions"])
def test_the_address_may_be_given_in_every_usual_form(load, path):
    with OddServer(well) as server:
        assert load(server.url + path)[0] == 0
    assert set(server.paths) == {"/v1/models", "/v1/completions"}


# --- answers that fail


async def http_error(request, peer, status=500, body='{"error": {"message": "out of\\u001b[2J memory"}}'):
    await peer.head(status, kind="application/json")
    await peer.send(body.encode())


async def cut_in_an_error(request, peer):
    await peer.head(503, "Content-Length: 500")
    await peer.send(b'{"error": ')


async def redirect(request, peer):
    await peer.head(307, "Location: https://elsewhere/v1/completions?key=secret")


async def one_piece(request, peer):
    await peer.head(kind="application/json")
    await peer.send(json.dumps({"choices": [{"text": "all of it"}]}).encode())


async def error_in_one_piece(request, peer):
    await peer.head(kind="application/json")
    await peer.send(b'{"error": {"message": "no such model"}}')


async def a_page(request, peer):
    await peer.head(kind="text/html")
    await peer.send(b"<html>\n<h1>Welcome</h1>\n\n</html>")


async def nothing(request, peer):
    await peer.head()


async def hangs_up(request, peer):
    pass


async def resets(request, peer):
    await peer.reset()


async def no_http(request, peer):
    await peer.send(b"SSH-2.0-odd\r\n")


async def silence(request, peer):
    await asyncio.sleep(3_600)


async def only_keep_alives(request, peer):
    await peer.head()
    while True:
        await peer.send(b": still here\n\n", 0.01)


async def only_done(request, peer):
    await peer.head()
    await peer.send(text_event("", "stop") + DONE)


async def error_at_once(request, peer):
    await peer.head()
    await peer.send(event({"error": {"message": "CUDA error", "code": 500}}) + DONE)


async def no_json(request, peer):
    await peer.head()
    await peer.send(b"data: {'choices'}\n\n")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http_error, "HTTP 500: out of [2J memory"),
        (partial(http_error, status=404, body='{"detail": "Not Found"}'), "HTTP 404: Not Found"),
        (partial(http_error, status=400, body="x" * 10_000), "HTTP 400: xxx"),
        (partial(http_error, status=401, body=""), "HTTP 401: (no message)"),
        (cut_in_an_error, "HTTP 503, then the stream was cut"),
        (redirect, "HTTP 307: redirected to https://elsewhere/v1/completions: give that address"),
        (one_piece, "answered in one piece (application/json)"),
        (error_in_one_piece, "HTTP 200, but an error: no such model"),
        (a_page, "not a stream of events (text/html): <html> <h1>Welcome"),
        (nothing, "not a stream of events (text/event-stream): nothing in it"),
        (hangs_up, "the server closed the connection without an answer"),
        (resets, "the server closed the connection without an answer"),
        (no_http, "not an HTTP answer: 'SSH-2.0-odd'"),
        (only_done, "the answer is empty (finish reason: stop)"),
        (error_at_once, "the server says in the stream: CUDA error"),
        (no_json, "an event is not a JSON object: {'choices'}"),
    ],
)
def test_if_nothing_can_be_measured_one_line_says_why(refused, answer, why):
    with OddServer(answer) as server:
        message = refused(server.url)
    assert f"3 of 3 requests failed: {why}" in message and "secret" not in message


@pytest.mark.parametrize("answer", [silence, only_keep_alives])
def test_a_server_that_never_answers_is_not_waited_for_for_ever(refused, answer):
    with OddServer(answer) as server:
        assert "nothing came for 0.2 s (--timeout)" in refused(server.url, "--timeout", "0.2")


async def cut_in_the_middle(peer):
    await peer.send(b"data: {")


async def cut_between_events(peer):
    pass


async def error_in_the_middle(peer):
    await peer.send(b'event: error\ndata: {"message": "preempted"}\n\n')


async def garbage_in_the_middle(peer):
    await peer.send(b"data: \xff\xfe\n\n")


async def goes_silent(peer):
    await asyncio.sleep(3_600)


async def never_stops(peer):
    while True:
        await peer.send(text_event("a") * 500)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (cut_in_the_middle, "the stream ended before the answer did, in the middle of an event"),
        (cut_between_events, "the stream ended before the answer did, without a finish reason or [DONE]"),
        (error_in_the_middle, "the server says in the stream: preempted"),
        (garbage_in_the_middle, "an event is not a JSON object"),
        (goes_silent, "nothing came for 2 s"),
        (never_stops, "events, past max_tokens"),
    ],
)
def test_a_stream_that_breaks_counts_until_there_and_fails_alone(as_json, end, why):
    """The first user's stream breaks after three events; the others' do not."""

    async def answer(request, peer):
        if request.number:
            return await well(request, peer)
        await peer.head()
        for _ in range(3):
            await peer.send(text_event("a"), 0.001)
        return await end(peer)

    with OddServer(answer) as server:
        code, found = as_json(server.url, "--timeout", "2", "--tokens", "12")
    broken = [request for request in found["requests"] if request["state"] == "failed"]
    assert code == 1 and len(broken) == 1 and why in broken[0]["error"] and len(broken[0]["event_us"]) >= 3
    assert found["failures"] == {broken[0]["error"]: 1} and len(states(found)) == 3
    assert found["requests"][2]["state"] == "done"  # the prompt is sent although a user has failed


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_is_lost_in_the_middle_is_told_from_an_end(as_json, reset):
    async def answer(request, peer):
        if request.number:
            return await well(request, peer)
        await peer.head(200, *(() if reset else ("Transfer-Encoding: chunked",)))
        data = text_event("a", "length")
        await peer.send(data if reset else b"%x\r\n%s\r\n1" % (len(data), data), 0.01)
        return await (peer.reset() if reset else asyncio.sleep(0))

    with OddServer(answer) as server:
        code, found = as_json(server.url)
    assert code == 1 and list(found["failures"].values()) == [1]
    assert list(found["failures"])[0].startswith("the stream was cut: ")


def test_failures_are_grouped_and_the_rest_is_reported(load):
    async def answer(request, peer):
        await (http_error(request, peer, 500 if request.is_long else 400) if request.number else well(request, peer))

    with OddServer(answer) as server:
        code, out, err = load(server.url, "--users", "4", "--extra", '{"x": 1}')
    assert code == 1 and err == ""
    assert "FAILED 3 x: HTTP 400: out of [2J memory" in out and "FAILED 1 x: HTTP 500" in out and "1 done" in out
    assert "1 of 4 users were streaming" in out or "0 of 4 users were streaming" in out


# --- busy servers


def busy(times, *lines, status=429):
    """The first `times` requests are turned away."""

    async def answer(request, peer):
        if request.number < times:
            await peer.head(status, *lines)
            await peer.send(b'{"error": "busy"}')
        else:
            await well(request, peer)

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
        assert request["first_sent_us"] < request["sent_us"]
        waited = request["sent_us"] - request["first_sent_us"]
        assert request["ttft_from_first_try_us"] == request["ttft_us"] + waited


def test_a_server_that_stays_busy_is_asked_four_times_and_not_later_than_the_timeout(refused):
    with OddServer(busy(10**6, "Retry-After: 0")) as server:
        assert "HTTP 429: busy" in refused(server.url, "--users", "1")
        assert len(server.requests) == 4 * 2
    with OddServer(busy(10**6, "Retry-After: 9999")) as server:
        assert "HTTP 429: busy for another 9999 s" in refused(server.url)
        assert len(server.requests) == 3
    with OddServer(busy(10**6, status=503)) as server:
        assert "HTTP 503: busy" in refused(server.url)
        assert len(server.requests) == 3  # without Retry-After it is no promise


# --- what only looks like a stream


def test_an_answer_that_comes_all_at_once_is_told_to_mean_nothing(as_json):
    async def buffered(request, peer):
        await asyncio.sleep(0.05)
        await peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text_event("a", "length") * 8 + DONE
        )

    with OddServer(buffered) as server:
        code, found = as_json(server.url)
    assert code == 0 and "3 of 3 answers came all at once" in found["notes"][0]


def test_events_that_come_in_pairs_are_noted_and_no_pair_is_taken_for_a_held_back_answer(as_json):
    async def pairs(request, peer):
        await peer.head()
        for _ in range(6):
            await peer.send(text_event("a") * 2, 0.03)
        await peer.send(DONE)

    with OddServer(pairs) as server:
        _, found = as_json(server.url)
    assert any("events came together with the one before them" in note for note in found["notes"])
    assert not any("all at once" in note for note in found["notes"])


# --- no connection


def test_no_server_no_host_and_no_tls_are_each_one_line(refused, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert "connection refused: no server listens at 127.0.0.1" in refused(url)
        assert "3 of 3 requests failed: connection refused" in refused(url, "--model", "m")

    class NoTLS(OddServer):
        async def _one(self, reader, peer):
            await peer.head(400)

    with NoTLS(well) as server:
        assert "TLS: " in refused(server.url.replace("http:", "https:"))
        assert "TLS: " in refused(server.url.replace("http:", "https:"), "--model", "m")

    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "no host 'nowhere.invalid' is known" in refused("http://nowhere.invalid")


@pytest.mark.parametrize("models", [b"", b"[]", b'{"data": []}', b'{"data": [{"id": 5}]}', b"<html>"])
def test_a_server_that_names_no_model_is_asked_for_one_by_name(refused, load, models):
    class Nameless(OddServer):
        async def _one(self, reader, peer):
            await reader.readuntil(b"\r\n\r\n")
            await peer.head(kind="application/json")
            await peer.send(models)

    with Nameless(well) as server:
        assert "/v1/models should list the server's models: the answer lists no model" in refused(server.url)


def test_a_wrong_path_is_said_to_be_one(refused):
    async def lost(request, peer):
        await http_error(request, peer, 404, "not here")

    with OddServer(lost) as server:
        message = refused(server.url + "/wrong")
        assert "/wrong/v1/models should list the server's models: HTTP 404: not here. Check the address" in message
        assert "HTTP 404: not here" in refused(server.url + "/wrong", "--model", "m")


# --- the key


def test_the_key_is_sent_and_never_shown_or_saved(load, monkeypatch, tmp_path):
    key = "sk-do-not-show-this"

    async def tells(request, peer):
        said = request.headers.get("authorization", "none")
        if request.number == 0:
            return await http_error(request, peer, 401, json.dumps({"error": {"message": f"{'x' * 180}{said} is bad"}}))
        if request.number == 1:
            await peer.head()
            return await peer.send(text_event("a") + event({"error": {"message": said}}))
        return await well(request, peer)

    file = tmp_path / "f.json"
    for flags, environment in ((("--api-key", key), None), ((), key)):
        if environment:
            monkeypatch.setenv("OPENAI_API_KEY", environment)
        with OddServer(tells, models=[f"model-{key}"]) as server:
            code, out, err = load(server.url, "--json", file, *flags)
            assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {key}"}
        assert code == 1 and "[key]" in out
        for shown in (out, err, file.read_text()):
            assert "sk-do" not in shown
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)


# --- Ctrl-C


def test_ctrl_c_keeps_what_has_come(tmp_path):
    """SIGINT once the long prompt has reached the server, which never answers it."""
    running = {}

    async def answer(request, peer):
        if not request.is_long:
            return await well(request, peer)
        running["load"].send_signal(signal.SIGINT)
        return await asyncio.sleep(3_600)

    file = tmp_path / "f.json"
    with OddServer(answer) as server:
        command = [sys.executable, "-m", "course_lib", "load", server.url, *SMALL, "--tokens", "20000", "--json", file]
        running["load"] = subprocess.Popen(
            list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, err = running["load"].communicate(timeout=120)
    assert (running["load"].returncode, err) == (130, "")
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


# --- flags


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
        (("--api-key", "a b"), "API key"),
        (("--csv", "t.csv"), "leave out --users"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(refused, flags, why):
    with OddServer(well) as server:
        assert why in refused(server.url, *flags)
    assert server.paths == []


def test_a_trace_with_a_bad_row_is_refused_before_anything_is_sent(refused, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n0,ten,1\n")
    with OddServer(well) as server:
        message = refused(server.url, "--csv", trace, sizes=())
        assert f"{trace}, line 3: prompt_tokens is 'ten'" in message
        assert "No such file" in refused(server.url, "--csv", tmp_path / "none.csv", sizes=())
    assert server.paths == []


def test_without_matplotlib_a_picture_is_refused_before_anything_is_sent(refused, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with OddServer(well) as server:
        assert 'pip install -e ".[lab]"' in refused(server.url, "--png", tmp_path / "f.png")
    assert server.paths == []
