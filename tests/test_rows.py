"""Row counts that a machine allows: kernels that mind are found out, and what is left keeps every row's bits."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import LIBRARIES, array_of, needs_torch
from starting import run_python

from course_lib.arithmetic import arithmetic, selftest, tile
from course_lib.arithmetic.arrays import address, to_numpy
from course_lib.arithmetic.rows import ROW_COUNTS, TILE, Allowed, Operation, RowTable, random_rows
from course_lib.model_config import ModelConfig
from course_lib.prefill import cut, one_pass, prefill
from course_lib.weights import seeded_model

NANO = ModelConfig(vocab_size=64, hidden_size=32, num_layers=2, q_heads=4, kv_heads=2, head_dim=8, intermediate_size=48)
IDS = np.random.default_rng(0).integers(0, 64, 150).tolist()
POSITIONS = st.lists(st.integers(0, 10_000), min_size=1, max_size=200)
every_library = pytest.mark.parametrize("library", LIBRARIES)


# --- the slot rule


@given(POSITIONS)
def test_a_row_lies_in_the_slot_of_its_position_and_shares_it_with_none(positions):
    rows, tiles = tile.slots_in_tiles(np.array(positions))
    slots = [position % 32 for position in positions]
    assert (rows % 32).tolist() == slots
    assert len(set(rows.tolist())) == len(positions)
    assert 0 <= rows.min() and rows.max() < 32 * tiles
    assert tiles == max(map(slots.count, slots))  # no more tiles than the fullest slot needs


def test_no_rows_need_no_tiles():
    rows, tiles = tile.slots_in_tiles(np.empty(0, dtype=np.int64))
    assert (len(rows), tiles) == (0, 0)


# --- kernels that mind: each adds what it minds to the rows, so a changed bit is seen


def minds_nothing(x, out):
    return 0


def column(x, numbers):
    """One number for each row, as an array of x's library."""
    numbers = np.asarray(numbers, dtype=np.float32)[:, None]
    return array_of("numpy" if isinstance(x, np.ndarray) else "torch", numbers)


def minds_slots(x, out):
    return column(x, np.arange(len(x)) % 32)


def minds_small_calls(x, out):
    return float(len(x) < 8)


def minds_the_row_count(x, out):
    return len(x)


def minds_one_slot_of_64(x, out):
    return column(x, (np.arange(len(x)) == 37) & (len(x) == 64))


def minds_where_rows_lie(x, out):
    return float(address(x) % 16 != 0)


def minds_where_the_result_lies(x, out):
    return float(address(out) % 16 != 0)


def repeats_nothing(x, out, calls=itertools.count()):  # noqa: B008 - counts over all calls
    return next(calls)


def operation_of(library, kernel):
    def run(x, out):
        out[...] = x + kernel(x, out)

    rows = array_of(library, np.zeros((1, 4), dtype=np.float32))
    return Operation((kernel.__name__,), run, lambda seed, offset: (run, [random_rows(rows, (TILE, 4), seed)]))


@every_library
@pytest.mark.parametrize(
    "kernel, slot_matters, counts",
    [
        (minds_nothing, False, ROW_COUNTS),
        (minds_slots, True, [n for n in ROW_COUNTS if n % 32 == 0]),
        (minds_small_calls, False, [n for n in ROW_COUNTS if n >= 8]),
        (minds_the_row_count, False, [32]),
        (minds_one_slot_of_64, False, [n for n in ROW_COUNTS if n != 64]),
        (minds_where_rows_lie, True, [32]),
        (minds_where_the_result_lies, True, [32]),
        (repeats_nothing, True, [32]),
    ],
)
def test_a_trial_finds_out_what_a_kernel_minds(library, kernel, slot_matters, counts):
    out = array_of(library, np.zeros((1, 4), dtype=np.float32))
    allowed = RowTable().allowed(operation_of(library, kernel), out, 1024)
    assert (allowed.slot_matters, allowed.counts) == (slot_matters, tuple(counts))


def by_rows(library, kernel, positions, table):
    x = array_of(library, np.zeros((len(positions), 4), dtype=np.float32))
    out = array_of(library, np.full((len(positions), 4), np.nan, dtype=np.float32))
    return to_numpy(tile.by_rows(table, operation_of(library, kernel), [x], out, np.array(positions)))


@every_library
@pytest.mark.parametrize(
    "kernel", [minds_nothing, minds_slots, minds_small_calls, minds_the_row_count, minds_one_slot_of_64]
)
@given(positions=POSITIONS)
@settings(max_examples=15)
def test_whatever_a_kernel_minds_a_row_gets_what_its_aligned_tile_gives_it(library, kernel, positions):
    got = by_rows(library, kernel, positions, RowTable())
    in_a_tile = by_rows(library, kernel, range(32), RowTable(counts=(), aligned=True))
    assert np.array_equal(got, in_a_tile[np.array(positions) % 32])


def test_a_row_that_lies_by_its_number_and_not_by_its_position_is_found_out_on_every_machine(monkeypatch):
    monkeypatch.setattr(tile, "slots_in_tiles", slots_by_row_number)
    got = by_rows("numpy", minds_slots, [5, 6, 7], RowTable())
    assert not np.array_equal(got, np.repeat([[5.0], [6.0], [7.0]], 4, axis=1))


def slots_by_row_number(positions):
    """The mistake: rows are packed from slot 0 on."""
    return np.arange(len(positions)), -(-len(positions) // TILE)


# --- cutting rows into calls


@given(
    rows=st.integers(0, 5000), counts=st.sets(st.sampled_from(ROW_COUNTS)), at_most=st.sampled_from([32, 128, 1024]),
    aligned=st.booleans(),
)  # fmt: skip
def test_rows_go_through_in_agreeing_calls_and_each_once(rows, counts, at_most, aligned):
    counts = {n for n in counts if n % TILE == 0 or not aligned} | {TILE}
    rows = -(-rows // TILE) * TILE if aligned else rows
    pieces = list(Allowed(aligned, tuple(sorted(counts))).pieces(rows, at_most))
    assert sum(used for _, used in pieces) == rows
    assert all(count in counts and count <= at_most and 0 < used <= count for count, used in pieces)
    assert all(count == used for count, used in pieces[:-1])  # only the end is padded
    first = np.cumsum([0] + [used for _, used in pieces])
    assert not aligned or not (first % TILE).any()  # a call begins at slot 0


@pytest.mark.parametrize(
    "rows, counts, wanted",
    [
        (8, ROW_COUNTS, [(8, 8)]),
        (7, ROW_COUNTS, [(8, 7)]),
        (17, ROW_COUNTS, [(24, 17)]),
        (40, ROW_COUNTS, [(48, 40)]),
        (96, ROW_COUNTS, [(96, 96)]),
        (1, [4, 32], [(4, 1)]),
        (33, [32], [(32, 32), (32, 1)]),
        (33, [4, 32, 64], [(32, 32), (4, 1)]),
        (0, ROW_COUNTS, []),
        (1000, ROW_COUNTS, [(1024, 1000)]),
        (2050, [32, 1024], [(1024, 1024), (1024, 1024), (32, 2)]),
    ],
)
def test_the_largest_agreeing_calls_come_first_and_padding_spares_calls(rows, counts, wanted):
    assert list(Allowed(False, tuple(counts)).pieces(rows, 1024)) == wanted


# --- whole models: other row counts, the same bits


FORCED = {
    "all that is seen": {},
    "32 in its slots": {"counts": (), "aligned": True},
    "32 anywhere": {"counts": ()},
    "32 and 64 in their slots": {"counts": (64,), "aligned": True},
    "32 and 64": {"counts": (64,)},
    "small ones": {"counts": (1, 2, 4, 8)},
}
WAYS = [("numpy", "float32"), pytest.param(("torch", "float32"), marks=needs_torch)]
WAYS += [pytest.param(("torch", "bfloat16"), marks=needs_torch)]


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_whichever_row_counts_are_used_the_bits_are_those_of_aligned_tiles(way):
    backend, dtype = way
    model = seeded_model(config=NANO, backend=backend, arith="tile", dtype=dtype)
    hashes = set()
    for forced in FORCED.values():
        model.arith = arithmetic("tile", RowTable(**forced))
        hashes.add(str(one_pass(model, IDS).sha256()))
        for size, hit in ((1, 140), (7, 50), (33, 0), (64, 31)):
            run = prefill(model, IDS, cut(len(IDS) - hit, size), hit=hit, beside=[IDS[:31], IDS[5:38]][: size > 7])
            hashes.add(str(run.sha256()))
    assert len(hashes) == 1


def test_each_arithmetic_fills_a_table_of_its_own_when_it_is_first_needed():
    one, other = seeded_model(config=NANO, arith="tile"), seeded_model(config=NANO, arith="tile")
    assert not one.arith.rows.seen
    one_pass(one, IDS[:3])
    tried = dict(one.arith.rows.seen)
    assert {key[0] for key in tried} == {"matmul", "RMSNorm", "activation", "attention"}
    assert all(32 in allowed.counts for allowed in tried.values())
    one_pass(one, IDS)
    assert one.arith.rows.seen == tried and not other.arith.rows.seen
    assert arithmetic("exact").rows is arithmetic("plain").rows is None


@needs_torch
def test_another_number_of_threads_is_tried_anew():
    import torch

    before = torch.get_num_threads()
    model = seeded_model(config=NANO, backend="torch", arith="tile")
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            one_pass(model, IDS[:3])
    finally:
        torch.set_num_threads(before)
    assert {key[-1][-1] for key in model.arith.rows.seen} == {1, 2}


def test_a_large_weight_is_not_tried_in_large_calls():
    operation = operation_of("numpy", minds_nothing)._replace(size=2**26)  # 64 rows of it are the most work
    allowed = RowTable().allowed(operation, np.zeros((1, 4), np.float32), 1024)
    assert allowed.counts == tuple(n for n in ROW_COUNTS if n <= 64)


# --- kernels that mind everything they may


@needs_torch
def test_under_a_product_that_minds_shape_and_slot_only_aligned_tiles_are_left_and_the_bits_hold(monkeypatch):
    from autograder.drivers.fickle import fickle_products

    with fickle_products():
        model = seeded_model(config=NANO, backend="torch", arith="tile")
        want = one_pass(model, IDS[:70]).sha256()
        products = [allowed for key, allowed in model.arith.rows.seen.items() if key[0] in ("matmul", "attention")]
        assert products and all(allowed == Allowed(True, (32,)) for allowed in products)
        for size, hit in ((7, 31), (33, 0)):
            assert prefill(model, IDS[:70], cut(70 - hit, size), hit=hit).sha256() == want
        monkeypatch.setattr(tile, "slots_in_tiles", slots_by_row_number)
        assert prefill(model, IDS[:70], cut(70, 33)).sha256() != want


def test_where_even_32_rows_do_not_repeat_it_is_said_and_nothing_else_is_tried(monkeypatch):
    matmul, calls = np.matmul, itertools.count()

    def wobbly(a, b, **more):
        made = matmul(a, b, **more)
        made += np.float32(1e-3) * next(calls)
        return made

    monkeypatch.setattr(np, "matmul", wobbly)
    assert any("gave other bits when repeated" in problem for problem in selftest.self_test("numpy"))
    with pytest.warns(UserWarning, match="tile arithmetic is not bit-identical here.*repeated"):
        model = seeded_model(config=NANO, arith="tile")
    one_pass(model, IDS[:5])
    assert {allowed.counts for key, allowed in model.arith.rows.seen.items() if key[0] == "matmul"} == {(32,)}


# --- the kernels of other processors, in fresh processes


PROGRAM = """
import json, sys
import numpy as np
from course_lib.arithmetic import arithmetic, selftest, tile
from course_lib.arithmetic.rows import RowTable
from course_lib.prefill import *
from course_lib.weights import seeded_model
ids = np.random.default_rng(0).integers(0, 512, 200).tolist()
out = {}
for backend, dtype in json.loads(sys.argv[1]):
    model = seeded_model('small', backend=backend, arith='tile', dtype=dtype)
    runs = [one_pass(model, ids)]
    for size, hit in ((3, 150), (17, 0), (64, 32), (100, 0)):
        runs.append(prefill(model, ids, cut(200 - hit, size), hit=hit, beside=[ids[:40], ids[9:50]]))
    table = model.arith.rows
    model.arith = arithmetic('tile', RowTable(counts=(), aligned=True))
    runs += [one_pass(model, ids), prefill(model, ids, cut(200, 33))]
    model.arith, right = arithmetic('tile', table), tile.slots_in_tiles
    tile.slots_in_tiles = lambda positions: (np.arange(len(positions)), -(-len(positions) // 32))
    mistaken = prefill(model, ids, cut(200, 33))
    tile.slots_in_tiles = right
    out[backend + ' ' + dtype] = {
        'hashes': [r.sha256()['k'] + r.sha256()['v'] + r.sha256()['logits'] for r in runs],
        'mistaken': mistaken.sha256() != runs[0].sha256(),
        'slots matter': any(a.slot_matters for a in table.seen.values()),
        'problems': selftest.self_test(backend, dtype), 'counts': table.in_words()}
print(json.dumps(out))
"""
ALL = [["numpy", "float32"], ["torch", "float32"], ["torch", "bfloat16"]]


def assert_bits_hold(env, ways, threads="1"):
    env = {**env, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)}
    done = run_python("-c", PROGRAM, json.dumps(ways), env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    for way, found in json.loads(done.stdout).items():
        assert found["problems"] == [] and "not bit-identical" not in done.stderr, (way, found)
        assert len(set(found["hashes"])) == 1, (way, found)
        assert found["mistaken"] == found["slots matter"], (way, found)  # where slots matter, the mistake is seen
    return json.loads(done.stdout)


def test_bits_hold_under_kernels_in_which_a_rows_slot_matters_and_slots_by_row_number_do_not_pass():
    """OpenBLAS's Haswell kernels: most laptops'. Elsewhere (no x86-64, another BLAS) the setting changes nothing."""
    assert_bits_hold({"OPENBLAS_CORETYPE": "Haswell"}, [["numpy", "float32"]])


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize(
    "setting",
    ["", "OPENBLAS_CORETYPE=Haswell", "OPENBLAS_CORETYPE=Zen", "OPENBLAS_CORETYPE=SkylakeX",
     "OPENBLAS_CORETYPE=Prescott", "ATEN_CPU_CAPABILITY=default", "ATEN_CPU_CAPABILITY=avx2",
     "MKL_ENABLE_INSTRUCTIONS=AVX2", "MKL_ENABLE_INSTRUCTIONS=SSE4_2", "MKL_CBWR=COMPATIBLE"],
)  # fmt: skip
def test_bits_hold_under_the_kernels_of_other_processors(setting, threads):
    name, _, value = setting.partition("=")
    assert_bits_hold({name: value} if name else {}, ALL, threads)
