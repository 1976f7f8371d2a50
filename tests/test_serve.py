"""The server with real clients: the engine's own tokens, all blocks back, refusals in form, and an end without fuss."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from serving import alone, events, expect_error, formula_model, gated, openai, running, tiny_engine, tokens

from course_lib.engine import Engine
from course_lib.serve.texts import LedgerTexts
from course_lib.weights import ledger

GREEDY = {"temperature": 0}
JSON_KIND = {"content-type": "application/json"}
HEAD = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def server():
    with running(tiny_engine()) as it:
        yield it


@pytest.fixture(scope="module")
def unchunked_server():
    with running(tiny_engine(enable_chunked_prefill=False, max_num_batched_tokens=1024)) as it:
        yield it


@pytest.fixture(params=["server", "unchunked_server"])
def either_server(request):
    return request.getfixturevalue(request.param)


# --- answers


@pytest.mark.parametrize("length", [1, 16, 17, 150])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "sampled"])
def test_the_openai_client_gets_the_engines_own_tokens_streamed_or_not(either_server, length, options):
    prompt = tokens(length, seed=length)
    want = alone(prompt, 6, **options)
    text = "".join(either_server.service.texts.pieces[t] for t in want)
    ask = {"model": "tiny", "prompt": prompt, "max_tokens": 6, "extra_body": {"return_token_ids": True}, **options}
    whole = either_server.client.completions.create(**ask)
    assert (whole.choices[0].text, whole.choices[0].token_ids, whole.choices[0].finish_reason) == (text, want, "length")
    stream = list(either_server.client.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    pieces, last = [event.choices[0] for event in stream[:-1]], stream[-1]
    assert [piece.token_ids for piece in pieces] == [[t] for t in want], "one event for each token"
    assert "".join(piece.text for piece in pieces) == text and all(piece.text for piece in pieces)
    assert [piece.finish_reason for piece in pieces] == [None] * 5 + ["length"]
    assert last.choices == [] and last.usage.completion_tokens == 6 and last.usage.prompt_tokens == length
    assert whole.usage.prompt_tokens == length and whole.usage.total_tokens == length + 6


def test_cached_tokens_are_counted_in_whole_blocks_and_a_salt_hides_them(server):
    ask = {"model": "tiny", "prompt": tokens(48, seed=48), "max_tokens": 1}
    counts = [
        server.client.completions.create(**ask, extra_body=extra).usage.prompt_tokens_details.cached_tokens
        for extra in ({}, {}, {"cache_salt": "a"}, {"cache_salt": "a"})
    ]
    assert counts == [0, 32, 0, 32]


def test_a_stop_token_ends_the_answer_and_is_part_of_it(server):
    want = alone(tokens(9), 12, temperature=0.9, seed=3)
    stop = want[4]
    ask = {"prompt": tokens(9), "max_tokens": 12, "temperature": 0.9, "seed": 3, "return_token_ids": True}
    choice = server.post(ask | {"stop_token_ids": [stop]}).json()["choices"][0]
    assert choice["token_ids"] == want[: want.index(stop) + 1] and choice["finish_reason"] == "stop"


def test_several_prompts_in_one_request_are_told_apart_by_their_index(either_server):
    prompts, ids = [tokens(n, seed=n) for n in (40, 3, 70)], [[], [], []]
    ask = {"prompt": prompts, "max_tokens": 5, "stream": True, "return_token_ids": True, **GREEDY}
    *got, last = events(either_server.post(ask | {"stream_options": {"include_usage": True}}))
    for event in got:
        ids[event["choices"][0]["index"]] += event["choices"][0]["token_ids"]
    assert ids == [alone(prompt, 5) for prompt in prompts]
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (113, 15)


def test_many_clients_at_once_each_get_what_they_get_alone(either_server):
    prompts = [tokens(5 * n + 1, seed=n) for n in range(12)]

    def ask(prompt):
        fields = {"prompt": prompt, "max_tokens": 4, "stream": True, "return_token_ids": True, **GREEDY}
        return [event["choices"][0]["token_ids"][0] for event in events(either_server.post(fields))]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, prompts)) == [alone(prompt, 4) for prompt in prompts]
    assert either_server.until_idle()["free_blocks"] == 64


def test_without_a_seed_equal_prompts_get_different_answers_and_with_one_equal_ones(server):
    prompt, pieces = tokens(9), server.service.texts.pieces

    def ask(**options) -> list[str]:
        got = server.client.completions.create(model="tiny", max_tokens=12, temperature=1, **options)
        return [choice.text for choice in got.choices]

    without = [*ask(prompt=[prompt] * 3), *ask(prompt=prompt), *ask(prompt=prompt), *ask(prompt=prompt, n=3)]
    assert len(set(without)) == 8, "128 tokens, twelve times: two alike by chance are not to be expected"
    want = ["".join(pieces[token] for token in alone(prompt, 12, temperature=1, seed=seed)) for seed in (7, 8, 9)]
    assert ask(prompt=prompt, seed=7) == ask(prompt=prompt, seed=7) == want[:1]
    assert ask(prompt=[prompt] * 2, seed=7) == want[:1] * 2
    assert ask(prompt=[prompt] * 2, seed=7, n=3) == want * 2, "of n answers each has a seed of its own, as in vLLM"


def test_a_prompt_counts_once_however_many_answers_it_gets(server):
    for stream in (False, True):
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        got = server.client.completions.create(model="tiny", prompt=[[1, 2, 3], [4]], n=2, max_tokens=5, **options)
        usage = list(got)[-1].usage if stream else got.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (4, 20)


def test_the_model_is_listed_as_vllm_lists_it_and_health_has_its_numbers(server):
    (model,) = server.client.models.list()
    assert (model.id, model.root, model.max_model_len) == ("tiny", "tiny", 1024)
    report = server.until_idle()
    assert report["status"] == "ok" and report["free_blocks"] == report["num_blocks"] == 64
    assert report["uptime"] >= 0 and report["steps"] >= 0


def test_the_ledger_is_asked_in_its_own_words():
    model = ledger.ledger_model()
    ids, answers = ledger.prompts(6, 5, seed=3)
    engine = Engine(model, num_blocks=32, max_num_batched_tokens=8)
    with running(engine, texts=LedgerTexts(), model="ledger") as server:
        ask = {"model": "ledger", "max_tokens": 1, **GREEDY}
        got = server.client.completions.create(prompt=[ledger.text(row) for row in ids], **ask)
        assert [choice.text for choice in got.choices] == [f" {answer}" for answer in answers]
        with pytest.raises(openai.BadRequestError, match="no word of the ledger"):
            server.client.completions.create(prompt="c 3 ; please", **ask)


def test_a_token_is_with_the_client_before_the_next_one_is_computed():
    with gated() as (server, gate):
        with server.client.completions.create(model="tiny", prompt=[1], max_tokens=3, stream=True) as stream:
            for step in (1, 2, 3):
                gate.allow(1)
                assert next(stream).choices[0].text
                assert gate.steps <= step + 1, "the engine was ahead of what the client has"


# --- clients that go


def request_of(fields: dict) -> bytes:
    body = json.dumps(fields).encode()
    return f"{HEAD}content-length: {len(body)}\r\n\r\n".encode() + body


def leave(server, fields: dict, when) -> None:
    """Send a request, call when(socket), and hang up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(request_of(fields))
        when(client)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["prefill", "decoding"])
def test_a_request_whose_client_hangs_up_while_it_runs_is_gone_at_the_end_of_the_step(stream, state):
    with gated(max_num_batched_tokens=16) as (server, gate):
        steps = {"prefill": 3, "decoding": 12}[state]  # of 7 for its prompt

        def when(client):
            gate.allow(steps)
            report = server.until(lambda h: h["steps"] == steps and h["running"] == 1)
            assert report["free_blocks"] < 64

        leave(server, {"prompt": tokens(100), "max_tokens": 500, "stream": stream}, when)
        server.until(lambda h: server.loop._commands.qsize() == 1)
        gate.allow(1)
        report = server.until_idle()
        assert (report["free_blocks"], report["steps"]) == (64, steps + 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_whose_client_hangs_up_while_it_waits_leaves_the_queue(stream):
    with gated(max_num_seqs=1) as (server, gate):
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(server.post, {"prompt": [5], "max_tokens": 40})
            server.until(lambda h: h["waiting"] == 1)
            gate.allow(1)
            server.until(lambda h: h["running"] == 1)
            leave(server, {"prompt": [1], "stream": stream}, lambda client: server.until(lambda h: h["waiting"] == 1))
            server.until(lambda h: server.loop._commands.qsize() == 2)  # it came, and it went
            gate.allow(1)
            server.until(lambda h: h["steps"] == 2 and server.loop._commands.empty())
            assert [len(q) for q in (server.engine.scheduler.running, server.engine.scheduler.waiting)] == [1, 0]
            gate.open()
            assert ahead.result().status_code == 200
        assert server.until_idle()["free_blocks"] == 64


def test_of_several_prompts_all_are_aborted_when_their_client_hangs_up():
    with gated(max_num_seqs=2) as (server, gate):
        ask = {"prompt": [[1], [2], [3]], "max_tokens": 300}
        leave(server, ask, lambda client: server.until(lambda h: h["waiting"] == 3))
        time.sleep(1)  # in which a server on a busy machine hears of it
        gate.open()
        report = server.until_idle()
        # Left alone, two at a time, they would take 600; how soon the server hears of the hang-up, the machine decides.
        assert report["free_blocks"] == 64 and report["steps"] < 550


# --- refusals


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "wanted"),
    [
        ("GET", "/", {}, 404, {}),
        ("GET", "/v1/models/", {}, 404, {}),
        ("POST", "/v1/chat/completions", {"json": {}}, 404, {}),
        ("GET", "/v1/completions", {}, 405, {}),
        ("POST", "/health", {}, 405, {}),
        ("POST", "/v1/completions", {"content": b"prompt=x"}, 415, {}),
        ("POST", "/v1/completions", {"json": {"prompt": [1], "echo": True}}, 400, {"param": "echo"}),
    ],
)
def test_what_cannot_be_answered_is_refused_in_form(server, method, path, sent, status, wanted):
    expect_error(server.http.request(method, path, **sent), status, **wanted)


def test_a_wrong_method_is_told_the_right_one(server):
    assert server.http.get("/v1/completions").headers["allow"] == "POST"


def test_a_refusal_is_the_openai_clients_own_exception(server):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        server.client.completions.create(model="gpt-4", prompt="x")


def test_a_body_may_be_exactly_as_long_as_the_limit_and_not_a_byte_longer(server):
    fields = {"prompt": [1], "max_tokens": 1, "user": ""}
    fields["user"] = "x" * (2**16 - len(json.dumps(fields)))
    body = json.dumps(fields).encode()
    assert server.post(content=body, headers=JSON_KIND).status_code == 200
    expect_error(server.post(content=body + b" ", headers=JSON_KIND), 413, code="request_too_large")


def test_a_body_of_no_told_length_is_refused_once_it_is_too_long(server):
    expect_error(server.post(content=(b" " * 2**16 for _ in range(16)), headers=JSON_KIND), 413)


def test_a_body_that_is_told_to_be_too_long_is_refused_before_it_is_read(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 99999999999\r\n\r\n"
        )
        assert client.recv(100).startswith(b"HTTP/1.1 413 "), "answered although not a byte of it was sent"


def test_too_many_requests_are_told_when_to_come_back_and_room_is_given_back():
    with gated(limits={"max_requests": 3}) as (server, gate):
        with ThreadPoolExecutor(3) as pool:
            first = [pool.submit(server.post, {"prompt": [n], "max_tokens": 2}) for n in (1, 2)]
            server.until(lambda h: h["running"] + h["waiting"] == 2)
            response = server.post({"prompt": [[1], [2]]})
            expect_error(response, 429, type="rate_limit_error", code="rate_limit_exceeded")
            assert int(response.headers["retry-after"]) >= 1
            third = pool.submit(server.post, {"prompt": [3], "max_tokens": 2})
            server.until(lambda h: h["running"] + h["waiting"] == 3)
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
                client.sendall(request_of({"prompt": [4]})[:-1])
                assert client.recv(100).startswith(b"HTTP/1.1 429 "), "no body is read for nothing"
            with pytest.raises(openai.RateLimitError):
                server.client.completions.create(model="tiny", prompt=[4])
            gate.open()
            assert [answer.result().status_code for answer in (*first, third)] == [200] * 3
        expect_error(server.post({"prompt": [[1]] * 4}), 400, param="prompt")  # never, so not "later"
        assert server.post({"prompt": [[1], [2], [3]], "max_tokens": 1}).status_code == 200


def test_clients_that_do_not_finish_their_requests_are_dropped_and_delay_no_other():
    head = HEAD.encode() + b"content-length: 50\r\n\r\n"
    with running(tiny_engine(formula_model()), client_timeout=0.3) as server:
        slow = []
        for sent in (b"", head[:15], head[:60], head + b"{"):
            clients = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(10)]
            for client in clients:
                client.sendall(sent)
            slow += clients
        assert server.post({"prompt": [1], "max_tokens": 2}).status_code == 200
        for client in slow:
            with client, suppress(ConnectionResetError):
                assert client.recv(100) == b""


def test_a_second_request_on_a_connection_has_no_more_time_than_the_first():
    with running(tiny_engine(formula_model()), client_timeout=0.3) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            while b"}" not in client.recv(1000):
                pass
            client.sendall(b"GET /heal")
            assert client.recv(1000) == b""


def test_a_client_that_waits_long_for_its_answer_is_not_dropped():
    with gated(limits={"client_timeout": 0.1}) as (server, gate):
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.post, {"prompt": [1], "max_tokens": 3})
            server.until(lambda h: h["waiting"] == 1)
            server.until(lambda h: h["uptime"] > 0.5)
            gate.open()
            assert answer.result().status_code == 200


def test_a_client_that_does_not_read_is_dropped_and_its_memory_with_it():
    wordy = "x" * 10_000  # in every event, so that what the system keeps for a client is soon full
    with running(tiny_engine(formula_model()), client_timeout=0.3, model=wordy) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(request_of({"prompt": [[1]] * 4, "max_tokens": 200, "stream": True}))
            server.until(lambda h: h["steps"] > 0)
            server.until(lambda h: not server.loop.open)
            server.until(lambda h: not server._uvicorn.server_state.tasks)
