"""A server of ours in a thread, for tests: real sockets on the loopback, an Engine that a test may spoil."""

import copy
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from starting import ROOT

from course_lib.engine import Engine
from course_lib.serve.app import Service, make_app
from course_lib.serve.engine_loop import EngineLoop
from course_lib.serve.listen import bind, make_server, url
from course_lib.serve.protocol import Limits
from course_lib.serve.texts import ByteTexts
from course_lib.weights import seeded_model

# A test file that imports this one is skipped where they are not installed.
httpx, openai, *_ = map(pytest.importorskip, ("httpx", "openai", "starlette", "uvicorn"))


class RunningServer:
    """What a test needs of a running server."""

    def __init__(self, address: str, service: Service, uvicorn_server, thread: threading.Thread):
        self.url, self.service, self._uvicorn, self.thread = address, service, uvicorn_server, thread
        self.loop, self.engine = service.engine_loop, service.engine_loop.engine
        self.port = int(address.rpartition(":")[2])
        self.stopping = threading.Event()  # set once the engine has been told to stop
        self.http = httpx.Client(base_url=address, timeout=60, trust_env=False)
        self.client = openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0, timeout=60)

    def health(self) -> dict:
        return self.http.get("/health").json()

    def post(self, fields=None, **kwargs) -> httpx.Response:
        return self.http.post("/v1/completions", **({"json": fields} if fields is not None else {}), **kwargs)

    def until(self, condition) -> dict:
        """The first health report that meets `condition`."""
        for _ in range(3000):
            if condition(report := self.health()):
                return report
            threading.Event().wait(0.01)
        raise AssertionError(f"that never came: {report}")

    def until_idle(self) -> dict:
        return self.until(lambda h: h["running"] == h["waiting"] == 0)

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive(), "the server does not end"


@contextmanager
def running(
    engine: Engine, *, texts=None, model: str = "tiny", client_timeout: float = 30, trace=None, hosts=(),
    max_connections: int = 200, **limits
):  # fmt: skip
    """A RunningServer around `engine`; at the end it is stopped, and all its blocks are free."""
    longest = min(engine.model.max_model_len, engine.pool.block_size * (engine.pool.num_blocks - 1))
    given = {"max_body": 2**16, "max_model_len": longest, "max_tokens": longest, "max_requests": 64} | limits
    texts = texts or ByteTexts(engine.model.config.vocab_size)
    service = Service(EngineLoop(engine, trace), texts, Limits(**given), model, hosts=hosts)
    listening, ready = bind("127.0.0.1", 0), threading.Event()

    def stop():
        service.engine_loop.stop()
        running_server.stopping.set()

    server = make_server(
        make_app(service), client_timeout=client_timeout, max_connections=max_connections, on_ready=ready.set,
        on_stop=stop,
    )  # fmt: skip
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert ready.wait(60), "the server does not start"
    running_server = RunningServer(url(listening), service, server, thread)
    try:
        yield running_server
    finally:
        running_server.stop()
        running_server.http.close()
        running_server.client.close()
        engine.scheduler.check()
        assert engine.scheduler.cache.num_free == engine.scheduler.cache.num_blocks, "not all blocks are free"


@functools.cache
def tiny_model():
    return seeded_model()


def next_by_formula(token_ids: Sequence[int]) -> int:
    """What `formula_model` says after these tokens."""
    return (7 * token_ids[-1] + len(token_ids)) % 128


def by_formula(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The greedy answer of `formula_model`, without any engine."""
    ids = list(prompt)
    for _ in range(max_tokens):
        ids.append(next_by_formula(ids))
    return ids[len(prompt) :]


def formula_model(before: Callable[[Sequence], None] = lambda chunks: None):
    """A model of no arithmetic: for tests of what is around it. `before(chunks)` may wait, or raise."""
    model = copy.copy(tiny_model())

    def forward(chunks, pool, wiring=None):
        before(chunks)
        ends = [(c.token_ids[-1], c.start + len(c.token_ids)) for c in chunks if c.wants_logits]
        logits = np.zeros((len(ends), 128), dtype=np.float32)
        for row, (last, length) in zip(logits, ends):
            row[(7 * last + length) % 128] = 1
        return logits

    model.forward = forward
    return model


class Gate:
    """Holds the engine before each forward until the test allows it."""

    def __init__(self):
        self._go, self._open = threading.Semaphore(0), False
        self.steps = 0  # forwards that were begun

    def __call__(self, chunks) -> None:
        self.steps += 1
        if not self._open:
            assert self._go.acquire(timeout=20), "the test did not open the gate"

    def allow(self, steps: int) -> None:
        self._go.release(steps)

    def open(self) -> None:
        self._open = True
        self._go.release()


def tiny_engine(model=None, **knobs) -> Engine:
    defaults = {"num_blocks": 64, "block_size": 16, "max_num_batched_tokens": 64, "max_num_seqs": 16}
    return Engine(model or tiny_model(), **defaults | knobs)


def events(response: httpx.Response) -> list[dict]:
    """The JSON of each event of a stream that ended with [DONE]."""
    lines = [line for line in response.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def answer_ids(server, prompt, stream: bool, max_tokens=6):
    """The token ids of an answer, and the error if there is one."""
    fields = {"prompt": prompt, "max_tokens": max_tokens, "return_token_ids": True, "stream": stream, "temperature": 0}
    response = server.post(fields)
    if not stream:
        body = response.json()
        return body["choices"][0]["token_ids"] if "choices" in body else [], body.get("error")
    got = events(response)
    return [t for e in got if "choices" in e for t in e["choices"][0]["token_ids"]], got[-1].get("error")


def tokens(count: int, seed: int = 0) -> list[int]:
    return (np.random.PCG64(seed).random_raw(count) % np.uint64(128)).astype(int).tolist()


def alone(prompt, max_tokens, **options) -> list[int]:
    """The tokens that a fresh Engine generates: no server, no chunking, no prefix cache, nothing else running."""
    engine = Engine(
        tiny_model(), num_blocks=64, max_num_batched_tokens=1024, enable_prefix_caching=False,
        enable_chunked_prefill=False,
    )  # fmt: skip
    request = engine.add_request(prompt, max_tokens=max_tokens, **options)
    engine.run()
    return request.generated


def expect_error(response: httpx.Response, status: int, **wanted) -> dict:
    error = response.json()["error"]
    assert response.status_code == status and set(error) == {"message", "type", "param", "code"}, response.text
    assert error["message"] and {key: error[key] for key in wanted} == wanted
    return error


@contextmanager
def gated(limits=None, **knobs):
    """A server of the formula model behind a Gate, and the gate, which is open at the end."""
    gate = Gate()
    with running(tiny_engine(formula_model(gate), **knobs), **(limits or {})) as server:
        try:
            yield server, gate
        finally:
            gate.open()


def serve_process(*argv):
    """`python -m course_lib serve` in a process, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "course_lib", "serve", "--port", "0", *argv], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    first = process.stdout.readline()
    assert first.startswith("serving http://127.0.0.1:"), first + process.stderr.read()
    return process, first.split()[1]
