"""The engine on a real model: whatever it planned, each request has the KV and the tokens that it has alone."""

import numpy as np
import pytest

from course_lib.cache.prefix import PrefixIndex
from course_lib.engine import Engine
from course_lib.prefill import KVSnapshot, one_pass
from course_lib.schedule.plan import plan_step
from course_lib.schedule.profiles import PROFILES
from course_lib.weights import seeded_model

WAYS = [("numpy", "tile", "float32"), ("numpy", "exact", "float32"), ("torch", "tile", "float32"),
        ("torch", "tile", "bfloat16"), ("torch", "exact", "float32")]  # fmt: skip
_models: dict = {}
_cold: dict = {}


def model(backend="numpy", arith="tile", dtype="float32"):
    key = (backend, arith, dtype)
    if key not in _models:
        _models[key] = seeded_model(backend=backend, arith=arith, dtype=dtype)
    return _models[key]


def tokens(count: int, seed: int = 0) -> list[int]:
    return (np.random.PCG64(seed).random_raw(count) % np.uint64(128)).astype(int).tolist()


def cold(m, token_ids) -> KVSnapshot:
    """The one-pass prefill that everything is compared with."""
    key = (id(m), tuple(token_ids))
    if key not in _cold:
        _cold[key] = one_pass(m, token_ids)
    return _cold[key]


def assert_kv_of_one_pass(engine: Engine, request) -> None:
    """K and V of all computed tokens, in every layer, are those of a cold one-pass prefill, bit for bit."""
    want = cold(engine.model, request.token_ids[: request.num_computed])
    k, v = engine.kv(request)
    got = KVSnapshot(k, v, want.logits, want.dtype)
    assert got.equals(want), f"request {request.id} with {request.num_computed} tokens"


def assert_logits_of_one_pass(engine: Engine, request) -> None:
    """The logits that its newest token was taken from are those of a cold one-pass prefill, bit for bit."""
    want = cold(engine.model, request.token_ids[:-1])
    assert np.array_equal(engine.logits[request.id], want.values("logits")), f"request {request.id}"


def alone(m, prompt, max_tokens=4, **sampling) -> list[int]:
    engine = Engine(m, num_blocks=64, block_size=16, enable_prefix_caching=False)
    request = engine.add_request(prompt, max_tokens=max_tokens, **sampling)
    engine.run()
    return request.generated


def crowd(engine: Engine, count=5, max_tokens=4) -> list:
    """Requests of many lengths, most of which begin alike."""
    shared = tokens(30, seed=9)
    prompts = [shared[: 30 - 5 * i] + tokens(7 * i + 1, seed=i) for i in range(count)]
    return [engine.add_request(p, max_tokens=max_tokens) for p in prompts]


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("profile", ["course", "vllm-0.33.0", "sglang-prefill-first"])
def test_kv_and_logits_are_those_of_one_pass_after_every_step(way, profile):
    engine = Engine(
        model(*way), num_blocks=40, block_size=4, max_num_batched_tokens=24, max_chunk=7, max_num_seqs=4,
        profile=profile,
    )  # fmt: skip
    requests, hit = crowd(engine), 0
    while engine.unfinished:
        record = engine.step()
        hit += sum(n for _, n in record.hits)
        for request in requests:
            if request.block_table and record.step % 3 == 0:
                assert_kv_of_one_pass(engine, request)
            if request.id in engine.logits and request.id in dict(record.sampled):
                assert_logits_of_one_pass(engine, request)
    assert hit > 0, "no request hit, so nothing was tested about hits"


@pytest.mark.parametrize("profile", PROFILES)
def test_everybody_gets_the_tokens_they_get_alone(profile):
    engine = Engine(
        model(), num_blocks=30, block_size=4, max_num_batched_tokens=80, max_num_seqs=3, profile=profile,
        max_chunk=9 if PROFILES[profile].caps_chunks else 0,
    )  # fmt: skip
    requests = crowd(engine)
    engine.run()
    for request in requests:
        assert request.generated == alone(model(), request.token_ids[: request.prompt_len]), request.id
        assert request.finish_reason == "length"


@pytest.mark.parametrize("way", WAYS[:4], ids="-".join)
def test_after_a_preemption_and_a_rehit_kv_and_logits_are_those_of_one_pass(way):
    """A pool too small for two: one is preempted, finds part of itself in the cache, and goes on in other chunks."""
    engine = Engine(model(*way), num_blocks=9, block_size=4, max_num_batched_tokens=16, max_chunk=5, max_num_seqs=2)
    first = engine.add_request(tokens(14, 1), max_tokens=10)
    second = engine.add_request(tokens(13, 2), max_tokens=10)
    rehit = 0
    while engine.unfinished:
        record = engine.step()
        rehit += sum(n for i, n in record.hits if i == second.id)
        for request in (first, second):
            if request.block_table:
                assert_kv_of_one_pass(engine, request)
            if request.id in dict(record.sampled):
                assert_logits_of_one_pass(engine, request)
    assert second.num_preemptions > 0 and rehit > 0
    for request, seed, length in ((first, 1, 14), (second, 2, 13)):
        assert request.generated == alone(model(*way), tokens(length, seed), 10)


@pytest.mark.xdist_group("two-by-two")  # one process, one cold prefill of 7,000 tokens
@pytest.mark.parametrize("cells", ["neither", "chunking", "caching", "both"])
def test_the_two_by_two_at_7000_5000_1024_leaves_one_kv(cells):
    """R22: users B, C and D stream while A's 7,000 tokens arrive, 5,000 of them shared with an earlier request."""
    m = model("torch")
    prompt, caching = tokens(7000, 3), cells in ("caching", "both")
    cut = {"max_chunk": 1024, "profile": "course"}
    whole = {"profile": "sglang-prefill-first", "max_chunk": 0}
    engine = Engine(
        m, num_blocks=16_000 // 8, block_size=8, max_num_batched_tokens=7003, max_num_seqs=8,
        enable_prefix_caching=caching, **(cut if cells in ("chunking", "both") else whole),
    )  # fmt: skip
    users = [engine.add_request(tokens(20, 10 + i), max_tokens=60) for i in range(3)]
    for user in users:
        assert next(engine.stream(user)) == user.generated[0]
    if caching:
        engine.add_request(prompt[:5000] + tokens(5, 4), max_tokens=1)
        while len(engine.scheduler.running) > 3 or engine.scheduler.waiting:
            engine.step()
    request = engine.add_request(prompt, max_tokens=2)
    records = [engine.step()]
    while not request.generated:
        records.append(engine.step())
    own = [(start, stop) for record in records for i, start, stop in record.chunks if i == request.id]
    assert own == {
        "neither": [(0, 7000)],
        "chunking": [(1024 * i, min(1024 * (i + 1), 7000)) for i in range(7)],
        "caching": [(5000, 7000)],
        "both": [(5000, 6024), (6024, 7000)],
    }[cells]
    assert_kv_of_one_pass(engine, request)
    assert_logits_of_one_pass(engine, request)
    assert_kv_of_one_pass(engine, users[1])


# --- a step that raises


class Broken(Exception):
    pass


@pytest.mark.parametrize("profile", ["course", "vllm-0.33.0", "sglang-prefill-first"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_after_a_forward_that_raises_the_next_step_works_and_the_kv_is_right(profile, layer, monkeypatch):
    """It raises in the middle of a layer, when keys and values of the layers below are written already."""
    engine = Engine(
        model(), num_blocks=40, block_size=4, max_num_batched_tokens=24, max_chunk=9, max_num_seqs=4, profile=profile
    )
    requests = crowd(engine)
    write = engine.pool.write
    state = {"armed": False, "raised": 0}

    def sometimes(number, *arguments):
        if state["armed"] and number == layer:
            state["armed"] = False
            raise Broken
        write(number, *arguments)

    monkeypatch.setattr(engine.pool, "write", sometimes)
    steps = 0
    while engine.unfinished:
        state["armed"] = steps % 2 == 1
        steps += 1
        before = [(r.id, r.num_tokens) for r in requests]
        try:
            engine.step()
        except Broken:
            state["raised"] += 1
            assert [(r.id, r.num_tokens) for r in requests] == before
        engine.scheduler.check()
        for request in requests:
            if request.block_table and request.num_computed:
                assert_kv_of_one_pass(engine, request)
    assert state["raised"] > 3
    for request in requests:
        assert request.generated == alone(model(), request.token_ids[: request.prompt_len])


def test_a_sampler_that_meets_nan_fails_the_step_and_nobody_advances(monkeypatch):
    engine = Engine(model(), num_blocks=10, block_size=4)
    request = engine.add_request(tokens(5), max_tokens=2)
    forward = engine.model.forward
    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "forward", lambda *a: forward(*a) * np.nan)
        with pytest.raises(ValueError, match="not all finite"):
            engine.step()
    assert request.num_computed == 0 and request.generated == []
    engine.run()
    assert request.generated == alone(model(), tokens(5), 2)


# --- a learner's pieces


def test_a_learners_plan_step_really_runs():
    seen = []

    def mine(requests, **knobs):
        seen.append(knobs)
        return plan_step(requests, **{**knobs, "max_chunk": 3})

    engine = Engine(model(), num_blocks=20, block_size=4, plan_step=mine, max_chunk=8)
    request = engine.add_request(tokens(10), max_tokens=2)
    chunks = [chunk for record in engine.run() for chunk in record.chunks]
    assert chunks == [(0, 0, 3), (0, 3, 6), (0, 6, 9), (0, 9, 10), (0, 10, 11)]
    assert seen[0] == {"max_num_batched_tokens": 2048, "max_chunk": 8, "max_num_seqs": 256}
    assert request.generated == alone(model(), tokens(10), 2)


def test_a_learners_wrong_mask_and_positions_really_run_and_leave_another_kv():
    wrong = {
        "mask": lambda n, cached: np.arange(cached + n)[None, :] <= np.arange(n)[:, None],
        "positions": lambda cached, computed, take: np.arange(take),
    }
    for name, function in wrong.items():
        engine = Engine(model(), num_blocks=20, block_size=4, max_chunk=4, **{name: function})
        request = engine.add_request(tokens(10), max_tokens=2)
        while not request.generated:
            engine.step()
        with pytest.raises(AssertionError):
            assert_kv_of_one_pass(engine, request)


def test_a_learners_prefix_cache_really_runs():
    class Mine(PrefixIndex):
        found = 0

        def match(self, hashes):
            blocks = super().match(hashes)
            self.found += len(blocks)
            return blocks

    mine = Mine()
    engine = Engine(model(), num_blocks=20, block_size=4, prefix_cache=mine)
    for _ in range(2):
        request = engine.add_request(tokens(13), max_tokens=2)
        engine.run()
    assert mine.found >= 3 and len(mine) >= 3
    assert request.num_cached == 12 and request.generated == alone(model(), tokens(13), 2)


# --- sampling


def test_seeded_sampling_is_the_same_in_any_chunks_in_any_company_and_after_preemption():
    want = alone(model(), tokens(9), 8, temperature=1.5, seed=4)
    assert want != alone(model(), tokens(9), 8) and want != alone(model(), tokens(9), 8, temperature=1.5, seed=5)
    for chunk in (1, 2, 4, 0):
        engine = Engine(model(), num_blocks=6, block_size=4, max_chunk=chunk, max_num_batched_tokens=8, max_num_seqs=3)
        other = engine.add_request(tokens(7, 5), max_tokens=8, temperature=1.0)
        request = engine.add_request(tokens(9), max_tokens=8, temperature=1.5, seed=4)
        engine.run()
        assert request.generated == want
        assert request.num_preemptions + other.num_preemptions > 0


def test_middle_chunks_do_not_even_compute_logits(monkeypatch):
    engine = Engine(model(), num_blocks=20, block_size=4, max_chunk=4)
    engine.add_request(tokens(10), max_tokens=1)
    wanted = []
    forward = engine.model.forward

    def noted(chunks, *more):
        wanted.append([chunk.wants_logits for chunk in chunks])
        return forward(chunks, *more)

    monkeypatch.setattr(engine.model, "forward", noted)
    engine.run()
    assert wanted == [[False], [False], [True]]


# --- the calls


def test_streams_interleave_and_step_the_engine_only_when_they_must():
    engine = Engine(model(), num_blocks=40, block_size=4)
    a, b = engine.add_request(tokens(5, 1), max_tokens=3), engine.add_request(tokens(6, 2), max_tokens=5)
    stream_a, stream_b = engine.stream(a), engine.stream(b)
    got = [next(stream_a), next(stream_b), next(stream_a)]
    assert got == [a.generated[0], b.generated[0], a.generated[1]] and len(b.generated) == 2
    assert list(stream_b) == b.generated[1:] and list(stream_a) == a.generated[2:]
    assert [a.generated, b.generated] == [alone(model(), tokens(5, 1), 3), alone(model(), tokens(6, 2), 5)]


def test_abort_ends_a_stream_and_gives_the_blocks_back():
    engine = Engine(model(), num_blocks=10, block_size=4)
    request = engine.add_request(tokens(20), max_tokens=9)
    stream = engine.stream(request)
    next(stream)
    engine.abort(request)
    engine.abort(request)
    assert list(stream) == [] and request.finish_reason == "aborted"
    assert engine.scheduler.cache.num_free == 10 and not engine.unfinished


def test_a_stop_token_ends_generation():
    want = alone(model(), tokens(9, 1), 9)
    stop = next(i for i in range(2, 9) if want[i] not in want[:i])
    engine = Engine(model(), num_blocks=10, block_size=4)
    request = engine.add_request(tokens(9, 1), max_tokens=9, stop_token_ids=[want[stop]])
    engine.run()
    assert request.generated == want[: stop + 1] and request.finish_reason == "stop"


def test_a_request_of_another_engine_is_neither_aborted_nor_read():
    one, other = (Engine(model(), num_blocks=10, block_size=4) for _ in range(2))
    theirs, ours = one.add_request(tokens(5)), other.add_request(tokens(6))
    for call in (other.abort, other.kv):
        with pytest.raises(ValueError, match="does not run or wait in this engine"):
            call(theirs)
    assert not ours.finish_reason and not theirs.finish_reason


def test_stop_tokens_may_come_as_any_integers():
    torch = pytest.importorskip("torch")
    first = alone(model(), tokens(9), 1)
    for stop in (np.array(first), torch.tensor(first)):
        engine = Engine(model(), num_blocks=10, block_size=4)
        request = engine.add_request(tokens(9), max_tokens=9, stop_token_ids=stop)
        engine.run()
        assert request.generated == first


def test_a_planner_that_plans_nothing_is_reported_not_waited_for():
    engine = Engine(model(), num_blocks=10, block_size=4, plan_step=lambda requests, **_: ())
    engine.add_request(tokens(3))
    with pytest.raises(RuntimeError, match=r"planned nothing, although requests \[0\]"):
        engine.run()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"token_ids": [128]}, "token id 128 is not in the vocabulary 0 .. 127"),
        ({"token_ids": [-1]}, "token id -1"),
        ({"token_ids": []}, "0 tokens"),
        ({"token_ids": [1] * 200}, "can never finish"),
        ({"token_ids": [1], "temperature": -1.0}, "temperature=-1.0"),
        ({"token_ids": [1], "temperature": float("nan")}, "temperature=nan"),
        ({"token_ids": [1.5]}, "a token id is 1.5, expected a whole number"),
        ({"token_ids": "12"}, "a token id is '1', expected a whole number"),
        ({"token_ids": [1], "max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"token_ids": [1], "max_tokens": None}, "max_tokens is None"),
        ({"token_ids": [1], "stop_token_ids": ["5"]}, "a stop token is '5'"),
        ({"token_ids": [1], "salt": b"t1"}, "salt is b't1', expected a text"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_changes_nothing(arguments, says):
    engine = Engine(model(), num_blocks=10, block_size=4)
    with pytest.raises(ValueError) as error:
        engine.add_request(**arguments)
    assert says in str(error.value) and not engine.unfinished
    assert engine.add_request([1]).id == 0


def test_a_prompt_longer_than_the_arithmetic_covers_is_refused_at_once_not_in_every_step():
    exact = model(arith="exact")
    engine = Engine(exact, num_blocks=2100, block_size=4)
    with pytest.raises(ValueError, match="in exact arithmetic, attends over 8322 tokens at most"):
        engine.add_request([1] * 8322, max_tokens=2)
    assert engine.add_request([1] * 8322, max_tokens=1).id == 0


def test_without_chunking_a_long_prompt_starves_and_with_it_runs():
    """R3, running: the same prompt, the same budget."""
    knobs = {"num_blocks": 20, "block_size": 4, "max_num_batched_tokens": 8, "refuse_stuck": False}
    engine = Engine(model(), enable_chunked_prefill=False, **knobs)
    engine.add_request(tokens(20), max_tokens=1)
    assert [engine.step().chunks for _ in range(5)] == [()] * 5
    with pytest.raises(RuntimeError, match="planned nothing"):
        engine.run()
    chunked = Engine(model(), **knobs)
    request = chunked.add_request(tokens(20), max_tokens=1)
    assert len(chunked.run()) == 3 and request.generated == alone(model(), tokens(20), 1)


def test_a_prefix_cache_that_matches_more_than_there_is_is_refused():
    class Greedy(PrefixIndex):
        def match(self, hashes):
            return [1] * (len(hashes) + 1)

    engine = Engine(model(), num_blocks=20, block_size=4, prefix_cache=Greedy())
    engine.add_request(tokens(9))
    with pytest.raises(ValueError, match="matched 3 blocks for 2 hashes"):
        engine.step()
    engine.scheduler.check()


def test_kv_of_a_finished_request_is_refused():
    engine = Engine(model(), num_blocks=10, block_size=4)
    request = engine.add_request(tokens(3), max_tokens=1)
    engine.run()
    with pytest.raises(ValueError, match="its blocks are free"):
        engine.kv(request)


def test_the_null_block_is_never_written():
    engine = Engine(model(), num_blocks=10, block_size=4)
    crowd(engine, count=3)
    engine.run()
    assert np.isnan(engine.pool.k[:, :4]).all()


def test_a_step_with_nothing_to_do_is_idle():
    engine = Engine(model(), num_blocks=10, block_size=4)
    record = engine.step()
    assert record.chunks == () and record.free_blocks == 10 and engine.run() == []


def test_a_record_tells_what_happened():
    engine = Engine(model(), num_blocks=10, block_size=4, max_chunk=4)
    request = engine.add_request(tokens(6), max_tokens=1)
    first, last = engine.run()
    assert first.chunks == ((0, 0, 4),) and first.hits == ((0, 0),) and first.sampled == () and first.num_running == 1
    assert last.chunks == ((0, 4, 6),) and last.sampled == ((0, request.generated[0]),) and last.finished == (0,)
    assert (last.num_tokens, last.num_running, last.free_blocks, last.step) == (2, 0, 10, 1)
    assert last.duration_us > 0 and last.as_dict()["chunks"] == ((0, 4, 6),)


def test_hits_are_exact_on_the_real_model_too():
    """The KV that a hit attaches is read, not recomputed: spoil it, and the reader shows it."""
    engine = Engine(model(), num_blocks=20, block_size=4)
    engine.add_request(tokens(13), max_tokens=1)
    engine.run()
    engine.pool.k[:, 4:8] = 0
    request = engine.add_request(tokens(13), max_tokens=2)
    engine.step()
    assert request.num_cached == 12
    with pytest.raises(AssertionError):
        assert_kv_of_one_pass(engine, request)


def test_one_forward_serves_a_ragged_batch():
    m = model()
    engine = Engine(m, num_blocks=40, block_size=4, max_num_batched_tokens=64, max_num_seqs=4, max_chunk=8)
    engine.add_request(tokens(20, 1), max_tokens=4)
    engine.step()
    engine.add_request(tokens(3, 2), max_tokens=4)
    engine.add_request(tokens(11, 3), max_tokens=4)
    record = engine.step()
    assert [stop - start for _, start, stop in record.chunks] == [8, 3, 8]


# --- another model, another cache


def test_another_model_never_hits_what_the_old_one_computed():
    engine = Engine(seeded_model(), num_blocks=40, block_size=4)
    engine.add_request(tokens(20), max_tokens=2)
    engine.run()
    engine.model = other = seeded_model("small")
    request = engine.add_request(tokens(20), max_tokens=2)
    engine.run()
    assert request.num_cached == 0 and request.generated == alone(other, tokens(20), 2)
    again = engine.add_request(tokens(20), max_tokens=2)
    engine.run()
    assert again.num_cached == 16 and again.generated == request.generated, "its own KV it may hit"


def test_a_model_is_not_exchanged_under_a_request():
    engine = Engine(model(), num_blocks=40, block_size=4, max_num_batched_tokens=8)
    request = engine.add_request(tokens(20), max_tokens=2)
    for _ in range(2):  # it waits; it runs
        with pytest.raises(RuntimeError, match="1 requests are not finished"):
            engine.model = model("numpy", "exact")
        assert engine.model is model()
        engine.step()
    engine.run()
    assert request.generated == alone(model(), tokens(20), 2)


def test_a_reset_is_refused_while_a_request_holds_blocks_and_then_nothing_is_hit():
    engine = Engine(model(), num_blocks=40, block_size=4)
    first = engine.add_request(tokens(20), max_tokens=3)
    engine.step()
    assert engine.reset_prefix_cache() is False and first.num_computed == 20
    engine.run()
    assert engine.reset_prefix_cache() is True
    second = engine.add_request(tokens(20), max_tokens=3)
    engine.run()
    assert second.num_cached == 0 and second.generated == first.generated
