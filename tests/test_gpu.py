"""The same claims on CUDA, in one file, so that a borrowed device can run them in one call: pytest -m gpu."""

import numpy as np
import pytest

from course_lib.arithmetic.selftest import self_test
from course_lib.diagnosis.faults import FAULTS, Scenario, replay, right
from course_lib.engine import Engine
from course_lib.prefill import cut, one_pass, prefill, ragged
from course_lib.weights import ledger, seeded_model
from course_lib.weights.golden import DTYPES, golden_hashes, model_and_prompt

pytestmark = pytest.mark.gpu
IDS = np.random.default_rng(0).integers(0, 128, 1003).tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_assumptions_of_tile_arithmetic_hold_on_this_device(dtype):
    assert self_test("torch", dtype, "cuda") == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("arith", ["exact", "tile"])
def test_chunks_hits_and_neighbours_leave_the_bits_of_one_pass_on_cuda(arith, dtype):
    model = seeded_model(backend="torch", arith=arith, dtype=dtype, device="cuda")
    reference = one_pass(model, IDS).sha256()
    for sizes, hit in ((cut(1003, 7), 0), (cut(507, 17), 496), (ragged(1003), 0), (cut(503, 100), 500), ([1000, 3], 0)):
        beside = [IDS[i : i + len(sizes) + 40] for i in range(3)]
        assert prefill(model, IDS, sizes, hit=hit, beside=beside).sha256() == reference, (sizes[:3], hit)


def test_exact_on_cuda_has_the_bits_of_exact_on_the_cpu():
    runs = [one_pass(seeded_model(backend="torch", arith="exact", device=d), IDS) for d in ("cpu", "cuda")]
    assert runs[0].sha256() == runs[1].sha256()


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_of_the_ledger_model_on_cuda_leave_the_golden_bits(dtype):
    golden = golden_hashes("ledger", dtype)
    model, ids = model_and_prompt("ledger", backend="torch", dtype=dtype, device="cuda")
    for size in (7, 64):
        assert {"model": model.sha256, **prefill(model, ids, cut(len(ids), size)).sha256()} == golden, size


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_ledger_model_on_cuda_is_right_with_absolute_positions_alone(dtype):
    model = ledger.ledger_model(backend="torch", dtype=dtype, device="cuda")
    ids, answers = ledger.prompts(50, 64, seed=1)
    assert ledger.evaluate(model, ids, answers, 64)[0] >= 0.98
    accuracy, confidence = ledger.evaluate(model, ids, answers, 64, ledger.chunk_relative)
    assert accuracy < 0.7 and confidence > 0.85


@pytest.mark.parametrize("arith", ["exact", "tile"])
@pytest.mark.parametrize("profile", ["course", "vllm-0.33.0", "sglang-prefill-first"])
def test_the_engine_on_cuda_leaves_the_bits_of_one_pass_after_hits_and_preemptions(arith, profile):
    model = seeded_model(backend="torch", arith=arith, device="cuda")
    engine = Engine(
        model, num_blocks=26, block_size=4, max_num_batched_tokens=24, max_chunk=7, max_num_seqs=4, profile=profile
    )
    requests = [engine.add_request(IDS[: 40 - 5 * i] + IDS[100 : 101 + 3 * i], max_tokens=12) for i in range(6)]
    while engine.unfinished:
        engine.step()
        for request in requests:
            if request.block_table:
                want = one_pass(model, request.token_ids[: request.num_computed])
                k, v = engine.kv(request)
                assert np.array_equal(k, want.k) and np.array_equal(v, want.v)
    assert engine.scheduler.cache.stats.num_hits and any(r.num_preemptions for r in requests)


def test_a_fault_on_cuda_is_told_by_name():
    model = seeded_model(backend="torch", arith="tile", device="cuda")
    s = Scenario(model, IDS[:150], [30, 17, 1, 32], 70)
    assert replay(s, s.run(FAULTS["chunk-relative positions"])) == ["chunk-relative positions"]
    assert replay(s, right(s)) == []
