"""Every known fault leaves its own KV, shows where it should, and is told by name."""

import dataclasses
import functools

import numpy as np
import pytest

from course_lib.diagnosis.faults import FAULTS, Scenario, replay, right
from course_lib.diagnosis.kv_diff import explain, first_divergence
from course_lib.prefill import cut, prefill
from course_lib.weights import seeded_model

HIT, SIZES = 70, [30, 17, 1, 32]  # ragged, and no multiple of a block or a tile
IDS = np.random.default_rng(1).integers(0, 128, HIT + sum(SIZES)).tolist()
ENDS = {99, 116, 117, 149}
WAYS = [
    ("numpy", "exact", "float32"),
    ("numpy", "tile", "float32"),
    ("torch", "tile", "float32"),
    ("torch", "tile", "bfloat16"),
    ("torch", "exact", "bfloat16"),
]
ALL = set(range(150))
TAIL = set(range(HIT, 150))

# numerics.md's table: name -> (layer, tensor, first position), what may differ in layer 0 K, in layer 0 V,
# and a word of the explanation. None: not at the first layer at all.
PATTERNS = {
    "chunk-relative positions": ((0, "K", 70), TAIL, set(), "positions given to RoPE"),
    "positions reset at the prefix": ((0, "K", 70), TAIL, set(), "positions given to RoPE"),
    "positions off by one": ((0, "K", 70), TAIL, set(), "positions given to RoPE"),
    "positions from 1": ((0, "K", 70), TAIL, set(), "positions given to RoPE"),
    "chunk index times chunk size": ((0, "K", 117), TAIL, set(), "positions given to RoPE"),
    "chunk-relative key positions": ((0, "K", 70), TAIL, set(), "positions given to RoPE"),
    "chunk-relative query positions": ((1, "K", 70), set(), set(), "attention"),
    "write slot off by one": ((0, "K", 70), TAIL, TAIL, "wrong slots"),
    "last write dropped": ((0, "K", 99), ENDS, ENDS, "last write of a chunk is dropped"),
    "shared block mutated": ((0, "K", 35), {35}, {35}, "shared block"),
    "stale block": ((0, "K", 16), set(range(16, 32)), set(range(16, 32)), "reused for other tokens"),
    "block hash without its parent": ((1, "K", 16), set(), set(), "another beginning"),
    "mask hides the last cached key": ((1, "K", 70), set(), set(), "attention"),
    "mask one ahead": ((1, "K", 70), set(), set(), "attention"),
    "no causality in the chunk": ((1, "K", 70), set(), set(), "attention"),
    "mask without the cached offset": ((1, "K", 70), set(), set(), "attention"),
    "cached keys missing": ((1, "K", 70), set(), set(), "attention"),
    "visible blocks swapped": ((0, "K", 0), set(range(32)), set(range(32)), "wrong order"),
}


@functools.cache
def scenario_in(way):
    backend, arith, dtype = way
    return Scenario(seeded_model(backend=backend, arith=arith, dtype=dtype), IDS, SIZES, HIT, 16)


@functools.cache
def run_with(way, name):
    """The scenario with one fault: its KV serves every test."""
    return scenario_in(way).run(FAULTS[name])


SELDOM = [("torch", "tile", "float32"), ("torch", "exact", "bfloat16")]  # slow: the other three ways cover their parts


@pytest.fixture(params=[pytest.param(w, id="-".join(w), marks=[pytest.mark.slow] * (w in SELDOM)) for w in WAYS])
def way(request):
    return request.param


@pytest.fixture
def scenario(way):
    return scenario_in(way)


def test_without_a_fault_the_scenario_leaves_the_right_bits(scenario):
    assert scenario.run().equals(right(scenario))
    assert first_divergence(right(scenario), scenario.run()) is None


def test_the_table_of_patterns_names_every_fault():
    assert set(PATTERNS) | {"another kernel"} == set(FAULTS)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_fault_shows_where_its_pattern_says(way, scenario, name):
    place, k_may_differ, v_may_differ, word = PATTERNS[name]
    run = run_with(way, name)
    d = first_divergence(right(scenario), run)
    assert (d.layer, d.tensor, d.position) == place
    assert set(np.flatnonzero(d.where[0, 0]).tolist()) <= k_may_differ
    assert set(np.flatnonzero(d.where[0, 1]).tolist()) <= v_may_differ
    assert d.ulps > 0 and d.largest >= d.relative
    assert word in explain(d, run.dtype, SIZES, HIT, 16)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("way", [WAYS[0], *(pytest.param(w, marks=pytest.mark.slow) for w in WAYS[1:])], ids="-".join)
def test_replaying_the_known_faults_names_the_one_that_was_made(way, name):
    twins = {"positions off by one", "positions from 1"}  # the same thing where a hit comes first
    assert set(replay(scenario_in(way), run_with(way, name))) == (twins if name in twins else {name})


def test_a_right_cache_matches_no_fault(scenario):
    assert replay(scenario, right(scenario)) == []


def test_another_kernel_is_named_as_rounding_and_not_as_a_mistake(scenario):
    run = scenario.run(FAULTS["another kernel"])
    d = first_divergence(right(scenario), run)
    assert "rounding level" in explain(d, run.dtype, SIZES, HIT, 16)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_logic_fault_passes_for_rounding(way, scenario, name):
    run = run_with(way, name)
    assert "rounding" not in explain(first_divergence(right(scenario), run), run.dtype, SIZES, HIT, 16)


@pytest.mark.parametrize("arith", ["exact", "tile"])
class TestWithoutAHit:
    def scenario(self, arith, sizes):
        return Scenario(seeded_model(arith=arith), IDS[: sum(sizes)], sizes)

    def test_counting_from_one_and_being_one_off_are_told_apart(self, arith):
        s = self.scenario(arith, [20, 7, 33])
        for name in ("positions from 1", "positions off by one"):
            assert replay(s, s.run(FAULTS[name])) == [name]

    def test_equal_chunks_hide_chunk_index_times_chunk_size(self, arith):
        equal, ragged = self.scenario(arith, [20, 20, 20]), self.scenario(arith, [20, 7, 33])
        fault = FAULTS["chunk index times chunk size"]
        assert equal.run(fault).equals(right(equal))
        assert not ragged.run(fault).equals(right(ragged))

    def test_counting_from_one_is_self_consistent_and_only_the_reference_tells(self, arith):
        s = self.scenario(arith, [20, 7, 33])
        one_chunk = dataclasses.replace(s, sizes=[60])
        fault = FAULTS["positions from 1"]
        assert s.run(fault).equals(one_chunk.run(fault))
        assert not s.run(fault).equals(right(s))

    def test_faults_that_need_a_hit_say_that_they_cannot_occur(self, arith):
        s = self.scenario(arith, [20, 7])
        for name in ("shared block mutated", "stale block", "block hash without its parent", "visible blocks swapped"):
            with pytest.raises(ValueError, match="cannot occur"):
                s.run(FAULTS[name])


def test_one_layer_hides_every_wrong_mask_in_the_kv_and_shows_it_in_the_logits():
    config = dataclasses.replace(seeded_model().config, num_layers=1)
    s = Scenario(seeded_model(config=config, arith="exact"), IDS, SIZES, HIT)
    for name in ("no causality in the chunk", "mask without the cached offset", "cached keys missing"):
        run, reference = s.run(FAULTS[name]), right(s)
        assert run.sha256()["k"] == reference.sha256()["k"] and run.sha256()["v"] == reference.sha256()["v"]
    d = first_divergence(reference, run)  # cached keys missing: the last row sees other keys
    assert (d.layer, d.tensor) == (None, "logits")
    assert "last layer" in explain(d, run.dtype, SIZES, HIT, 16)


def test_the_next_token_can_stay_the_same_under_a_fault():
    """Output text proves nothing: some fault changes the cache and not the argmax."""
    s = Scenario(seeded_model(arith="exact"), IDS, SIZES, HIT)
    token = int(np.argmax(right(s).logits))
    faulty = [
        s.run(FAULTS[name]) for name in ("mask hides the last cached key", "mask one ahead", "shared block mutated")
    ]
    assert any(int(np.argmax(run.logits)) == token for run in faulty)


def test_runs_of_other_prompts_or_dtypes_are_refused():
    a = seeded_model(arith="exact")
    with pytest.raises(ValueError, match="cannot be compared"):
        first_divergence(prefill(a, IDS[:5], [5]), prefill(a, IDS[:6], cut(6, 2)))
