"""The engine's thread: what fails and what does not when a step raises, how it sleeps and wakes, and how it ends."""

import asyncio
import copy
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import (
    alone,
    answer_ids,
    by_formula,
    expect_error,
    formula_model,
    gated,
    httpx,
    running,
    serve_process,
    tiny_engine,
    tiny_model,
    tokens,
)

from course_lib.commands.serve import _signals
from course_lib.schedule.step_record import StepRecord
from course_lib.serve.engine_loop import EngineLoop, Ticket

# --- an engine in trouble


def poisoned(chunks) -> None:
    if any(99 in chunk.token_ids for chunk in chunks):
        raise ValueError("the logits are not all finite")


@pytest.mark.parametrize("stream", [True, False])
def test_only_the_request_that_makes_a_step_fail_fails(stream):
    prompts = [[1] * 21, [98, 99, 100], [2] * 61]
    with running(tiny_engine(formula_model(poisoned), max_num_batched_tokens=48)) as server:
        with ThreadPoolExecutor(3) as pool:
            before, bad, after = pool.map(lambda prompt: answer_ids(server, prompt, stream), prompts)
        assert bad[0] == [] and "not all finite" in bad[1]["message"] and bad[1]["type"] == "server_error"
        assert [before, after] == [(by_formula(prompts[0], 6), None), (by_formula(prompts[2], 6), None)]
        assert server.health()["status"] == "ok"


def test_when_one_of_several_prompts_fails_the_others_are_not_computed_any_further():
    with running(tiny_engine(formula_model(poisoned))) as server:
        response = server.post({"prompt": [[1], [98, 99], [2]], "max_tokens": 900})
        expect_error(response, 500, type="server_error", code="engine_error")
        assert server.until_idle()["steps"] < 900


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "sampled"])
def test_a_step_that_fails_once_changes_no_answer(options):
    model, together = copy.copy(tiny_model()), []
    forward = model.forward

    def failing(chunks, *rest):
        together.append(len(chunks) > 1)
        if together[-1] and sum(together) in (2, 3, 6):
            raise RuntimeError("a device hiccup")
        return forward(chunks, *rest)

    model.forward = failing
    prompts = [tokens(30 * n + 1, seed=n) for n in range(4)]
    with running(tiny_engine(model, max_num_batched_tokens=32)) as server:
        got = server.post({"prompt": prompts, "max_tokens": 6, "return_token_ids": True, **options}).json()
    ids = [choice["token_ids"] for choice in got["choices"]]
    assert ids == [alone(prompt, 6, **options) for prompt in prompts]
    assert got["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}, "what is found again was not found first"
    assert sum(together) > 6


def test_when_every_step_fails_every_request_gets_an_error_and_later_the_server_works_again():
    broken = threading.Event()

    def before(chunks):
        if broken.is_set():
            raise MemoryError("no memory")

    with running(tiny_engine(formula_model(before))) as server:
        broken.set()
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda n: answer_ids(server, [n], n % 2 == 0), range(6)))
        assert all(ids == [] and "MemoryError" in error["message"] for ids, error in answers)
        broken.clear()
        assert server.until_idle()["free_blocks"] == 64
        assert answer_ids(server, [1, 2], False) == (by_formula([1, 2], 6), None)


def test_when_planning_fails_requests_fail_and_the_server_goes_on(monkeypatch):
    with running(tiny_engine(formula_model())) as server:
        scheduler, schedule = server.engine.scheduler, server.engine.scheduler.schedule

        def raising():
            raise ZeroDivisionError("a planner's bug")

        monkeypatch.setattr(scheduler, "schedule", raising)
        assert "planner's bug" in answer_ids(server, [1], True)[1]["message"]
        monkeypatch.setattr(scheduler, "schedule", schedule)
        assert answer_ids(server, [1], True) == (by_formula([1], 6), None)


def test_a_dead_engine_is_told_to_open_streams_to_health_and_to_new_requests(monkeypatch):
    with gated() as (server, gate):
        with ThreadPoolExecutor(2) as pool:
            streamed, whole = (pool.submit(answer_ids, server, [n], n == 1) for n in (1, 2))
            server.until(lambda h: h["running"] + h["waiting"] == 2)
            monkeypatch.setattr(server.loop, "_publish", lambda record: 1 / 0)
            gate.open()
            for answer in (streamed, whole):
                assert answer.result()[1]["code"] == "engine_unavailable"
        response = server.http.get("/health")
        assert response.status_code == 503 and "died" in response.json()["status"]
        expect_error(server.post({"prompt": [1]}), 503, type="server_error")


# --- the loop itself


def test_the_event_loop_is_woken_at_most_once_a_step():
    with running(tiny_engine(formula_model())) as server:
        wakes, loop = [], server.loop._loop
        call = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: wakes.append(args) or call(*args)
        server.post({"prompt": [[n] * 9 for n in range(16)], "max_tokens": 10})
        del loop.call_soon_threadsafe
        assert 10 <= len(wakes) <= server.until_idle()["steps"]


class Counting:
    """A queue that counts how often it is asked."""

    def __init__(self, inner):
        self.inner, self.asked = inner, 0

    def get(self, block=True):
        self.asked += 1
        return self.inner.get(block)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_an_idle_engine_sleeps_on_its_queue():
    with running(tiny_engine(formula_model())) as server:
        server.loop._commands = commands = Counting(server.loop._commands)
        server.post({"prompt": [1], "max_tokens": 2})
        server.until_idle()
        threading.Event().wait(0.05)
        asked = commands.asked
        threading.Event().wait(0.1)
        assert commands.asked == asked >= 2


def test_the_trace_has_every_step_and_a_full_disk_stops_no_answer(tmp_path):
    path = tmp_path / "steps.jsonl"
    engine = tiny_engine(formula_model(), max_num_batched_tokens=8, max_num_seqs=8)
    with running(engine, trace=path.open("w")) as server:
        server.post({"prompt": [1] * 20, "max_tokens": 3, "temperature": 0})
    records = [StepRecord(**json.loads(line)) for line in path.read_text().splitlines()]
    assert [r.chunks for r in records[:3]] == [[[0, 0, 8]], [[0, 8, 16]], [[0, 16, 20]]]
    assert [t for r in records for _, t in r.sampled] == by_formula([1] * 20, 3)
    assert all(r.duration_us >= 0 for r in records) and records[-1].finished == [0]

    class Full:
        def write(self, text):
            raise OSError(28, "No space left on device")

    with running(tiny_engine(formula_model()), trace=Full()) as server:
        assert answer_ids(server, [3], False) == (by_formula([3], 6), None)


# --- the end


def test_a_server_that_stops_ends_open_streams_with_an_error_event():
    with gated(max_num_seqs=1) as (server, gate):
        with ThreadPoolExecutor(4) as pool:
            streamed, waiting, whole = (pool.submit(answer_ids, server, [n], n < 3, 300) for n in (1, 2, 3))
            server.until(lambda h: h["running"] + h["waiting"] == 3)
            gate.allow(1)
            server.until(lambda h: h["running"] == 1)
            stopped = pool.submit(server.stop)
            assert server.stopping.wait(60)
            gate.open()
            stopped.result()
            for answer in (streamed, waiting, whole):
                ids, error = answer.result()
                assert len(ids) < 300 and error["code"] == "engine_unavailable" and "shutting down" in error["message"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_the_command_serves_without_chunking_and_ends_on_ctrl_c(tmp_path):
    trace = tmp_path / "steps.jsonl"
    process, address = serve_process("--no-chunking", "--trace", str(trace))
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as http:
        answer = http.post("/v1/completions", json={"prompt": [1] * 600, "max_tokens": 1})
        assert answer.json()["usage"]["prompt_tokens"] == 600
        assert json.loads(trace.read_text().splitlines()[0])["chunks"] == [[0, 0, 600]], "a prompt in one step"
        ask = {"prompt": [1], "max_tokens": 30_000, "stream": True}
        with http.stream("POST", "/v1/completions", json=ask) as response:
            lines = response.iter_lines()
            assert "choices" in json.loads(next(lines)[6:])
            process.send_signal(signal.SIGINT)
            last = [line for line in lines if line][-2:]
        assert "shutting down" in json.loads(last[0][6:])["error"]["message"] and last[1] == "data: [DONE]"
    out, err = process.stdout.read(), process.stderr.read()  # not communicate: it forgets what readline has buffered
    assert (process.wait(60), err) == (0, "")
    assert "a prompt in one step" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_either_signal_tells_the_server_to_end_and_is_itself_again_after_it(number):
    server, outer = SimpleNamespace(should_exit=False), lambda *_: None
    before = signal.signal(number, outer)
    try:
        with _signals(server):
            signal.raise_signal(number)
        assert server.should_exit and signal.getsignal(number) is outer
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    "argv, why",
    [
        (("--host", "203.0.113.1"), "cannot listen on 203.0.113.1 port 8000"),
        (("--port", "65536"), "65536 is no port"),
        (("--max-model-len", "40000"), "could never finish"),
        (("--max-model-len", "1"), "2 tokens at least"),
        (("--max-model-len", "9000", "--arith", "exact"), "attends over 8322 tokens"),
        (("--no-chunking", "--max-num-batched-tokens", "100", "--max-model-len", "200"), "could never finish"),
        (("--profile", "sglang-mixed", "--max-chunk", "8"), "no whole block"),
        (("--max-num-seqs", "600"), "--max-num-seqs 600"),
        (("--backend", "numpy", "--dtype", "float16"), "float32 on the CPU only"),
        (("--model", "no/such/folder"), "no/such/folder"),
        (("--ledger", "--seeded", "small"), "not allowed with"),
        (("--trace", "no/such/folder/file"), "no/such/folder/file"),
        (("--max-requests", "0"), "too small"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_served_is_refused_in_one_line(refused, argv, why):
    assert why in refused("serve", *argv)


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_packages_the_command_says_what_to_install(refused, monkeypatch, missing):
    for name in [n for n in sys.modules if n.partition(".")[0] == missing] + [missing]:
        monkeypatch.setitem(sys.modules, name, None)
    assert 'pip install -e ".[serve]"' in refused("serve", "--port", "0")


# --- anything at all


class AtOnce:
    """An event loop's one method that the engine's thread calls."""

    def call_soon_threadsafe(self, function, *args):
        function(*args)


class Scene:
    """An EngineLoop without its thread, whose model stumbles over token 99, and at times over several requests."""

    def __init__(self, fails: Sequence[bool] = (), **knobs):
        self.fails = list(fails)  # of steps of several requests, the last first
        self.leaves: Ticket | None = None  # its client hangs up while the next step is computed
        self.loop = EngineLoop(tiny_engine(formula_model(self.before), **knobs))
        self.loop._loop, self.loop.why_dead = AtOnce(), ""

    def before(self, chunks):
        if self.leaves:
            self.loop.abort(self.leaves)
        if any(99 in chunk.token_ids for chunk in chunks):
            raise ValueError("poison")
        if len(chunks) > 1 and self.fails and self.fails.pop():
            raise RuntimeError("a hiccup")


def ticket(prompt: list[int], max_tokens: int) -> Ticket:
    return Ticket(0, prompt, {"max_tokens": max_tokens}, asyncio.Queue())


def test_a_request_that_comes_while_others_are_tried_alone_waits_until_that_is_over():
    scene = Scene([True, True])
    loop, tickets = scene.loop, [ticket([n], 3) for n in range(3)]
    loop.submit(tickets[:2])
    loop._turn()  # a hiccup
    loop.submit(tickets[2:])
    while loop.open:
        loop._turn()
    assert scene.fails == [] and [t.generated for t in tickets] == [by_formula([n], 3) for n in range(3)]


def test_a_request_whose_client_hangs_up_in_the_last_step_ends_once():
    scene = Scene()
    scene.leaves = last = ticket([1], 1)
    scene.loop.submit([last])
    scene.loop._turn()
    scene.loop._turn()
    assert last.events.get_nowait().finish_reason == "length" and last.events.empty()


def test_an_engine_that_does_not_run_takes_nothing():
    loop = EngineLoop(tiny_engine(formula_model()))
    for why in ("not been started", "shutting down"):
        with pytest.raises(RuntimeError, match=why):
            loop.submit([ticket([1], 1)])
        assert not loop.open
        loop.start(AtOnce())
        loop.stop()
        loop.join()


@settings(max_examples=40)
@given(st.data())
def test_whatever_clients_and_steps_do_every_ticket_ends_once_with_the_tokens_it_gets_alone(data):
    scene = Scene(
        data.draw(st.lists(st.booleans(), max_size=8)), num_blocks=12, block_size=4, max_num_batched_tokens=8,
        max_num_seqs=data.draw(st.integers(1, 6)), enable_prefix_caching=data.draw(st.booleans()),
    )  # fmt: skip
    loop, tickets = scene.loop, []
    actions = data.draw(st.lists(st.sampled_from(["add", "add poison", "abort", "leave", "step", "step"]), max_size=30))
    for action in actions:
        if action.startswith("add"):
            prompt = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=20))
            prompt = [*prompt, 99] if action == "add poison" else prompt
            tickets.append(ticket(prompt, data.draw(st.integers(1, 8))))
            loop.submit(tickets[-1:])
        elif action == "abort" and tickets:
            loop.abort(data.draw(st.sampled_from(tickets)))
        elif action == "leave" and tickets:
            scene.leaves = data.draw(st.sampled_from(tickets))
        elif loop._busy or not loop._commands.empty():  # else it would sleep
            loop._turn()
    while loop.open or not loop._commands.empty():
        loop._turn()
    assert not loop._busy
    loop.engine.scheduler.check()
    assert loop.engine.scheduler.cache.num_free == 12
    for one in tickets:
        got = [one.events.get_nowait() for _ in range(one.events.qsize())]
        ids = [event.token for event in got if event.token is not None]
        want = by_formula(one.prompt, one.options["max_tokens"])
        reasons = [event.finish_reason for event in got if event.finish_reason]
        assert len(reasons) == 1 and got[-1].finish_reason, "every ticket ends, once, and says so last"
        assert ids == want[: len(ids)] == one.generated
        if 99 in [*one.prompt, *want[:-1]]:
            assert reasons[0] in ("error", "aborted")
        else:
            assert reasons == (["length"] if ids == want else ["aborted"])
