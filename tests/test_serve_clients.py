"""Who is answered and how it ends: Host headers, too many connections, half-closed clients, signals, a closed pipe."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import (
    by_formula,
    expect_error,
    formula_model,
    gated,
    httpx,
    openai,
    running,
    serve_process,
    tiny_engine,
)
from starting import ROOT

from course_lib.serve import listen
from course_lib.serve.guard import KnownHosts, host_name
from course_lib.serve.listen import SPARE, connections_that_fit, say_once_a_minute

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets limits of another process")


@pytest.fixture(scope="module")
def server():
    with running(tiny_engine(formula_model()), hosts=["course.example", "[2001:db8::7]"]) as it:
        yield it


# --- names


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "localhost:8000", "LOCALHOST", "localhost.", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000",
        "[0:0:0:0:0:0:0:1]", "course.example", "Course.Example:99", "[2001:DB8::7]:80",
    ],
)  # fmt: skip
def test_a_server_answers_to_its_own_names_with_any_port(server, host):
    assert server.http.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "xlocalhost",
        "10.0.0.5", "[::2]", "0.0.0.0", "localhost:80:80", "127.0.0.1:x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/completions", "/none"])
def test_under_any_other_name_nothing_is_answered_and_the_sentence_says_what_to_do(server, host, path):
    steps = server.health()["steps"]
    response = server.http.post(path, json={"prompt": [1]}, headers={"host": host})
    error = expect_error(response, 403, code="host_not_allowed")
    assert host in error["message"] and "--allow-host" in error["message"] and "localhost" in error["message"]
    assert server.health()["steps"] == steps


def refusal_of(names, host: str, server=("127.0.0.1", 80)):
    scope = {"headers": [(b"host", host.encode())] if host else [], "server": server}
    return KnownHosts(None, names)._refusal(scope)


def test_any_name_can_be_allowed_and_the_address_that_was_connected_to_is():
    assert refusal_of(["*"], "evil.example") is None
    assert refusal_of([], "10.0.0.5:80", server=("10.0.0.5", 80)) is None
    assert refusal_of([], "10.0.0.6:80", server=("10.0.0.5", 80)) is not None
    assert refusal_of([], "") is None, "HTTP/1.0 may come without"
    assert "evil.example" in refusal_of([], "evil.example").message
    assert len(refusal_of([], "x" * 10_000).message) < 400


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("A.b:80", "a.b"), ("a.b.", "a.b"), ("[::1]:80", "::1"), ("::1", "::1"), ("[0::1]", "::1"),
        ("1.2.3.4:5", "1.2.3.4"), ("", ""), (":80", ""), ("a:b", "a:b"),
    ],
)  # fmt: skip
def test_a_host_has_one_form(host, name):
    assert host_name(host) == name


# --- many clients


def idle(server, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(count)]


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def until(condition) -> None:
    for _ in range(3_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("that never came")


def test_beyond_the_cap_all_is_refused_but_health_however_many_connections_are_idle():
    ask = {"prompt": [1], "max_tokens": 2}
    with running(tiny_engine(formula_model()), max_connections=3) as server:
        with contextlib.ExitStack() as stack:
            first = [stack.enter_context(client) for client in idle(server, 3)]
            for extra in (0, 5, 3 * SPARE):
                more = [stack.enter_context(client) for client in idle(server, extra)]
                with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
                    assert http.get("/health").json()["status"] == "ok"
                    for _ in range(2):
                        response = http.post("/v1/completions", json=ask)
                        error = expect_error(response, 503, type="server_error", code="too_many_connections")
                        assert "3 connections are open" in error["message"] and "later" in error["message"]
                        assert int(response.headers["retry-after"]) >= 1 and response.headers["connection"] == "close"
                    with pytest.raises(openai.InternalServerError):
                        server.client.completions.create(model="tiny", prompt=[1])
            until(lambda: sum(map(is_open, more)) <= SPARE)
            assert all(map(is_open, first)), "a connection below the cap is not closed for one above it"
            for client in first:
                client.close()
            # what is beyond the cap does not count, although it is still open
            until(lambda: httpx.post(f"{server.url}/v1/completions", json=ask, timeout=60).status_code == 200)
        until(lambda: server.post(ask).status_code == 200)


def test_the_cap_leaves_files_for_the_rest_and_raises_its_own_limit_first(monkeypatch):
    resource = pytest.importorskip("resource")
    limits = {}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["is"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update({"set": new}))
    room = listen.OTHER_FILES
    for soft, hard, wanted, fits, raised in (
        (1024, 4096, 512, 512, None),
        (256, 4096, 512, 512, (512 + room, 4096)),
        (256, resource.RLIM_INFINITY, 512, 512, (512 + room, resource.RLIM_INFINITY)),
        (256, 256, 512, 256 - room, (256, 256)),
        (room // 2, room // 2, 512, 1, (room // 2, room // 2)),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10**6, 10**6, None),
    ):
        limits.clear()
        limits["is"] = soft, hard
        assert connections_that_fit(wanted) == fits and limits.get("set") == raised


@linux_only
def test_with_few_files_health_still_answers_and_the_cap_is_said():
    import resource

    code = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160)); "
    code += "sys.argv[1:] = ['serve', '--port', '0']; runpy.run_module('course_lib', run_name='__main__')"
    with started(code) as (process, address):
        assert "64 connections at most (open files)" in process.stdout.readline()
        with contextlib.ExitStack() as stack:
            port = int(address.rpartition(":")[2])
            for _ in range(300):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            assert httpx.get(f"{address}/health", timeout=60, trust_env=False).json()["status"] == "ok"
    assert (process.returncode, process.stderr.read()) == (0, "")
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 160, "only the server's limit was set"


@linux_only
def test_when_no_file_can_be_opened_the_log_says_so_in_one_line():
    import resource

    process, address = serve_process()
    try:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (5, 5))
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60)
                )
            line = process.stderr.readline()
            time.sleep(2.5)  # in which asyncio tries twice more
    finally:
        process.terminate()
        process.wait(60)
    assert "no more connections can be accepted" in line and "--max-connections" in line
    assert process.stderr.read() == ""


def test_other_errors_of_the_event_loop_are_told_as_ever():
    told = []
    loop = asyncio.new_event_loop()
    loop.default_exception_handler = told.append
    handle = say_once_a_minute()
    for error in (ValueError("a bug"), ConnectionResetError(104, "reset"), None):
        handle(loop, {"message": "m", "exception": error} if error else {"message": "m"})
    loop.close()
    assert len(told) == 3


# --- clients that close one side


def bytes_of(fields: dict, version: str) -> bytes:
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_closes_its_sending_side_gets_its_answer_and_then_the_end(stream, version):
    ask = {"prompt": [5], "max_tokens": 30, "stream": stream, "temperature": 0, "return_token_ids": True}
    with gated() as (server, gate):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(bytes_of(ask, version))
            client.shutdown(socket.SHUT_WR)
            server.until(lambda h: h["waiting"] + h["running"] == 1)
            gate.allow(1)
            server.until(lambda h: h["steps"] == 1)
            time.sleep(3 * listen.LOST)
            gate.open()
            answer = read_all(client).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        found = (
            [json.loads(part.partition(b"\n")[0]) for part in answer.split(b"data: ")[1:-1]]
            if stream
            else [json.loads(answer.partition(b"\r\n\r\n")[2])]
        )
        ids = [token for one in found for token in one["choices"][0]["token_ids"]]
        assert ids == by_formula([5], 30)


def test_what_was_sent_before_the_sending_side_was_closed_is_all_answered(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(2 * bytes_of({"prompt": [5], "max_tokens": 3}, "1.1"))
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).count(b"HTTP/1.1 200 OK") == 2


def test_half_a_request_is_no_request(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(bytes_of({"prompt": [5]}, "1.1")[:-1])
        client.shutdown(socket.SHUT_WR)
        assert b" 200 " not in read_all(client)


# --- the end


@contextlib.contextmanager
def started(code: str):
    """A Python with `code`, which is to serve; its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )  # fmt: skip
    try:
        first = process.stdout.readline()
        assert first.startswith("serving http://127.0.0.1:"), first + process.stderr.read()
        yield process, first.split()[1]
    finally:
        process.terminate()
        process.wait(60)


LONG_STEP = """
import time
import course_lib.commands.serve as serve
from serving import formula_model

def before(chunks):
    if any(len(chunk.token_ids) > 9 for chunk in chunks):
        time.sleep(300)

serve.seeded_model = lambda *args, **kwargs: formula_model(before)
raise SystemExit(serve.main(["--port", "0"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
def test_sigterm_ends_the_server_within_ten_seconds_and_streams_with_an_error_also_in_a_long_step():
    with started(LONG_STEP) as (process, address), ThreadPoolExecutor(2) as pool:
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as http:
            ask = {"prompt": [1], "max_tokens": 30_000, "stream": True}
            with http.stream("POST", "/v1/completions", json=ask) as response:
                lines = response.iter_lines()
                assert "choices" in json.loads(next(lines)[6:])
                long = pool.submit(httpx.post, f"{address}/v1/completions", json={"prompt": [1] * 20}, timeout=60)
                while sum(map(http.get("/health").json().get, ("running", "waiting"))) < 2:
                    time.sleep(0.01)
                before = time.monotonic()
                process.terminate()
                last = [line for line in lines if line][-2:]
            assert process.wait(60) == 0
            took = time.monotonic() - before
        assert "shutting down" in json.loads(last[0][6:])["error"]["message"] and last[1] == "data: [DONE]"
        expect_error(long.result(), 503, code="engine_unavailable")
    assert took < 10 and process.stderr.read() == ""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such pipes")
def test_a_reader_that_goes_after_the_first_line_does_not_end_the_server():
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "course_lib", "serve", "--port", "0"], cwd=ROOT, stdout=write, stderr=subprocess.PIPE,
        text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    os.close(write)
    try:
        first = os.read(read, 20)  # the line has more: what is written after this finds no reader
        os.close(read)
        assert first == b"serving http://127.0"
        assert process.poll() is None
    finally:
        process.terminate()
        assert (process.wait(60), process.stderr.read()) == (0, "")


def test_the_greeting_is_one_write_and_a_closed_pipe_is_no_error(monkeypatch):
    from course_lib.commands import serve

    args = serve.parser().parse_args([])
    model = formula_model()
    engine = serve._engine(args, model)
    written, closed = [], []

    class Pipe:
        def write(self, text):
            written.append(text)

        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Pipe())
    monkeypatch.setattr(serve, "close_stdout", lambda: closed.append(True))
    serve._greet(args, "http://127.0.0.1:1", "tiny", engine, serve._limits(args, engine), 512)
    assert len(written) == 1 and written[0].startswith("serving http://127.0.0.1:1\n") and closed == [True]
