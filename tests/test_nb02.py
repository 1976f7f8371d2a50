"""Notebook 02: wrong masks and wrong attention that people outside wrote lose points, honest odd ones do not."""

import textwrap

import numpy as np
import pytest

from autograder import check
from autograder.check import evaluate
from autograder.exercise import Raised, Returned
from autograder.exercises import EXERCISES
from autograder.judge import judge
from autograder.kept import solution_text

MASK, RAGGED, ATTEND = (EXERCISES[name] for name in ("chunk_attention_mask", "ragged_mask", "attend"))
SEEDS = (check.PUBLIC_SEED, 0)


def verdicts(exercise, source, seed=check.PUBLIC_SEED):
    return [evaluate(exercise, group, exercise.compile(source), seed) for group in exercise.groups]


def loses(exercise, source):
    """Whether a group fails, on each of two seeds."""
    fn = exercise.compile(source)
    return all(any(not evaluate(exercise, group, fn, seed).passed for group in exercise.groups) for seed in SEEDS)


def passes(exercise, source):
    return all(v.passed for seed in SEEDS for v in verdicts(exercise, source, seed))


def changed(source, *changes):
    """`source` with each `old -> new` in it made; every old text is there."""
    for change in changes:
        old, new = change.split(" -> ")
        assert old in source, old
        source = source.replace(old, new)
    return source


def indented(source):
    return textwrap.indent(source, "    ")


def body(source):
    return source.partition("\n")[2]


# --- 2.1

TRI = "np.tri(chunk_len, cached_len + chunk_len, cached_len, dtype=bool)"
MASK_OF = f"def chunk_attention_mask(chunk_len, cached_len):\n    return {TRI}\n"
WRONG_MASKS = {
    "positions_in_int8": changed(
        solution_text(MASK.solution), "[:, None] -> [:, None].astype(np.int8)", "[None, :] -> [None, :].astype(np.int8)"
    ),
    "a_window_of_256_keys": changed(MASK_OF, "bool) -> bool) & ~np.tri(chunk_len, cached_len + chunk_len, -256)"),
    "remembered_by_cached_len": "memo = {}\n" + changed(MASK_OF, TRI + " -> memo.setdefault(cached_len, " + TRI + ")"),
    "remembered_by_the_number_of_keys": "memo = {}\n"
    + changed(MASK_OF, TRI + " -> memo.setdefault(chunk_len + cached_len, " + TRI + ")"),
    "one_buffer_for_all_masks": "buffer = np.zeros((400, 400), bool)\n"
    + changed(MASK_OF, "return -> out = buffer[:chunk_len, :cached_len + chunk_len]\n    out[:] =")
    + "    return out\n",
    "all_seen_when_the_cache_is_long": changed(MASK_OF, "bool) -> bool) | (cached_len > 128)"),
    "all_seen_when_the_chunk_is_long": changed(MASK_OF, "bool) -> bool) | (chunk_len > 64)"),
    "nothing_seen_by_a_decode": changed(MASK_OF, "bool) -> bool) & (chunk_len > 1)"),
    "all_seen_when_nothing_is_cached": changed(MASK_OF, "bool) -> bool) | (cached_len == 0)"),
    "whole_blocks_of_16": "def chunk_attention_mask(chunk_len, cached_len):\n"
    "    key = np.arange(cached_len + chunk_len)\n    return key // 16 <= key[cached_len:, None] // 16\n",
    "twos": changed(MASK_OF, "return -> return 2 *"),
    "text": changed(MASK_OF, "bool) -> bool).astype(str)"),
    "flat": changed(MASK_OF, "bool) -> bool).ravel()"),
    "generator": changed(MASK_OF, TRI + " -> (row for row in " + TRI + ")"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_MASKS)
def test_a_wrong_mask_from_outside_loses_points_on_every_seed(name):
    assert loses(MASK, WRONG_MASKS[name])


def test_a_mask_that_a_later_call_changes_is_told_so():
    values, _ = verdicts(MASK, WRONG_MASKS["one_buffer_for_all_masks"])
    assert "what an earlier call returned is another after this one" in values.message


@pytest.mark.parametrize(
    ("exercise", "name", "source"),
    [
        (MASK, "total_for_cached", "    return np.tri(chunk_len, cached_len, cached_len - chunk_len, dtype=bool)\n"),
        (MASK, "greater_equal", "    return np.triu(np.ones((chunk_len, cached_len + chunk_len), bool), cached_len)\n"),
        (RAGGED, "row_stays", "    row += q_len\n"),
        (RAGGED, "column_stays", "    column += kv_len\n"),
    ],
)
def test_common_slips_have_a_name_however_they_are_written(exercise, name, source):
    if exercise is MASK:
        source = "def chunk_attention_mask(chunk_len, cached_len):\n" + source
    else:
        source = solution_text(exercise.solution).replace("    " + source, "")
    assert {v.mistake for v in verdicts(exercise, source)} == {name}


# --- 2.2

RAGGED_OF = """\
def ragged_mask(q_lens, kv_lens):
    mask = np.zeros((sum(q_lens), sum(kv_lens)), dtype=bool)
    row = column = 0
    for q, kv in zip(q_lens, kv_lens):
        mask[row : row + q, column : column + kv] = np.tri(q, kv, kv - q, dtype=bool)
        row += q
        column += kv
    return mask
"""
LOOP = "for q, kv in zip(q_lens, kv_lens):"
WRONG_RAGGED = {
    "q_len_found_by_kv_len": changed(RAGGED_OF, LOOP + " -> for kv in kv_lens:\n        q = q_lens[kv_lens.index(kv)]"),
    "kv_len_found_by_q_len": changed(RAGGED_OF, LOOP + " -> for q in q_lens:\n        kv = kv_lens[q_lens.index(q)]"),
    "equal_requests_once": changed(RAGGED_OF, "zip(q_lens, kv_lens): -> dict.fromkeys(zip(q_lens, kv_lens)):"),
    "decodes_are_left_out": changed(RAGGED_OF, "        mask[ ->         if q > 1: mask["),
    "five_requests_at_most": changed(RAGGED_OF, "zip(q_lens, kv_lens): -> zip(q_lens[:5], kv_lens):"),
    "in_order_of_length": changed(RAGGED_OF, "zip(q_lens, kv_lens): -> sorted(zip(q_lens, kv_lens)):"),
    "256_keys_at_most": changed(RAGGED_OF, "np.tri( -> (np.arange(kv) < 256) & np.tri("),
    "the_cache_of_the_last": changed(RAGGED_OF, "kv - q -> kv_lens[-1] - q_lens[-1]"),
    "the_columns_before_are_seen": changed(
        RAGGED_OF, "        mask[ ->         mask[row : row + q, :column] = True\n        mask["
    ),
    "lists_are_used_up": changed(RAGGED_OF, LOOP + " -> while q_lens:\n        q, kv = q_lens.pop(0), kv_lens.pop(0)"),
    "lists_are_sorted": changed(RAGGED_OF, "    row = column = 0 ->     q_lens.sort()\n    row = column = 0"),
    "floats": changed(RAGGED_OF, "kv_lens)), dtype=bool) -> kv_lens)))"),
    **{
        f"remembered_by_{key}": "memo = {}\n" + changed(RAGGED_OF, f"return -> return memo.setdefault({key}, mask) #")
        for key in ("tuple(q_lens)", "tuple(kv_lens)", "(sum(q_lens), sum(kv_lens))")
    },
    "one_buffer_for_all_masks": "buffer = np.zeros((400, 800), bool)\n"
    + changed(RAGGED_OF, "np.zeros((sum(q_lens), sum(kv_lens)), dtype=bool) -> buffer[: sum(q_lens), : sum(kv_lens)]\n"
    "    mask[:] = False"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_RAGGED)
def test_a_wrong_ragged_mask_from_outside_loses_points_on_every_seed(name):
    assert loses(RAGGED, WRONG_RAGGED[name])


def test_chunk_attention_mask_called_with_the_number_of_keys_is_named():
    source = changed(RAGGED_OF, "np.tri(q, kv, kv - q, dtype=bool) -> np.tri(q, q + kv, kv, dtype=bool)")
    assert [v.mistake for v in verdicts(RAGGED, source)] == ["keys_for_cached"]


# --- 2.3

EXACT = """\
def attend(q, k, v, mask):
    s = exact.matmul(q, k.T) / np.float32(np.sqrt(q.shape[-1]))
    s = np.where(mask, s, -np.inf)
    w = exact.exp(s - s.max(axis=-1, keepdims=True))
    out = exact.weighted_mean(w, v)
    return out
"""
PLAIN = changed(
    EXACT, "exact.matmul(q, k.T) -> q @ k.T", "exact.exp -> np.exp",
    "exact.weighted_mean(w, v) -> w @ v / w.sum(axis=-1, keepdims=True)",
)  # fmt: skip
ROWS = changed(
    PLAIN, "return out -> for i in range(len(q)):\n        out[i] = memo.setdefault(KEY, out[i].copy())\n    return out"
)
BY_QUERY = changed(ROWS, "KEY -> q[i].tobytes()")
BY_ALL_IT_SEES = changed(ROWS, "KEY -> (q[i].tobytes(), k[mask[i]].tobytes(), v[mask[i]].tobytes())")
IN_A_CLASS = """\
class Kernel:
    def __init__(self):
        self.memo = {}

    def __call__(self, q, k, v, mask):
        memo = self.memo
""" + indented(body(BY_ALL_IT_SEES)) + "\nattend = Kernel()\n"  # fmt: skip
REMEMBERS_ROWS = {
    "by_the_query": "memo = {}\n" + BY_QUERY,
    "by_all_that_the_query_sees": "memo = {}\n" + BY_ALL_IT_SEES,
    "in_a_default": changed(BY_ALL_IT_SEES, "mask): -> mask, memo={}):"),
    "on_the_function": changed(BY_ALL_IT_SEES, "memo. -> attend.__dict__."),
    "in_a_closure": "def make():\n    memo = {}\n"
    + indented(BY_ALL_IT_SEES)
    + "    return attend\n\nattend = make()\n",
    "in_an_object": IN_A_CLASS,
    "in_a_class": changed(IN_A_CLASS, "    def __init__(self):\n        self.memo ->     memo"),
    "in_an_object_of_a_library": "import types\n\nstate = types.SimpleNamespace(memo={})\n"
    + changed(BY_ALL_IT_SEES, "memo. -> state.memo."),
    "in_a_cached_function": "import functools\n\n@functools.lru_cache(None)\ndef store():\n    return {}\n\n"
    + changed(BY_ALL_IT_SEES, "memo. -> store()."),
}  # fmt: skip
WRONG_ATTENTION = {
    "float16_result": changed(EXACT, "return out -> return out.astype(np.float16).astype(np.float32)"),
    "float16_weights": changed(EXACT, "    out = ->     w = w.astype(np.float16)\n    out ="),
    "float64_result": changed(EXACT, "return out -> return out.astype(float)"),
    "maximum_begun_at_zero": changed(EXACT, "keepdims=True) -> keepdims=True, initial=0)"),
    "maximum_of_all_rows": changed(EXACT, "s.max(axis=-1, keepdims=True) -> s.max()"),
    "scores_cut_off_at_80": changed(EXACT, "    w = ->     s = np.clip(s, -1e4, 80)\n    w ="),
    "hidden_scores_are_minus_100": changed(EXACT, "-np.inf -> -100"),
    "scaled_by_the_number_of_keys": changed(EXACT, "q.shape[-1] -> k.shape[0]"),
    "scaled_by_4": changed(EXACT, "np.sqrt(q.shape[-1]) -> 4"),
    "queries_scaled_in_place": changed(EXACT, "    s = exact ->     q *= 1\n    q /= 2\n    s = exact"),
    "powers_of_two": changed(EXACT, "exact.exp( -> np.exp2("),
    **{
        f"remembered_by_{key}": "memo = {}\n" + changed(EXACT, f"return out -> return memo.setdefault({key}, out)")
        for key in (
            "q.shape", "(q.tobytes(), k.tobytes(), v.tobytes())", "(q.tobytes(), k.tobytes(), mask.tobytes())",
            "(q.tobytes(), v.tobytes(), mask.tobytes())", "(k.tobytes(), v.tobytes(), mask.tobytes())",
        )
    },
    "exact_for_chunks_alone": "def attend(q, k, v, mask):\n    if len(q) < 96:\n"
    + indented(body(EXACT))
    + body(PLAIN),
    "exact_but_for_decodes": "def attend(q, k, v, mask):\n    if len(q) > 1:\n"
    + indented(body(EXACT))
    + body(PLAIN),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_ATTENTION)
def test_a_wrong_attention_from_outside_loses_points_on_every_seed(name):
    assert loses(ATTEND, WRONG_ATTENTION[name])


@pytest.mark.parametrize("name", REMEMBERS_ROWS)
def test_a_kernel_whose_sums_depend_on_the_cut_gains_nothing_by_remembering_rows(name):
    for seed in SEEDS:
        bits = evaluate(ATTEND, ATTEND.group("bits"), ATTEND.compile(REMEMBERS_ROWS[name]), seed)
        assert not bits.passed and bits.mistake == "plain"


def test_what_is_right_but_of_another_dtype_or_too_coarse_is_told_as_such():
    for source in (WRONG_ATTENTION["float64_result"], changed(PLAIN, "np.float32(np.sqrt -> (np.sqrt")):
        assert {v.mistake for v in verdicts(ATTEND, source)} == {"float64_result"}
    assert {v.mistake for v in verdicts(ATTEND, WRONG_ATTENTION["float16_result"])} == {""}
    assert {v.mistake for v in verdicts(ATTEND, WRONG_ATTENTION["maximum_begun_at_zero"])} == {"maximum_from_zero"}


def test_an_error_of_the_same_type_is_not_taken_for_a_known_one():
    source = changed(EXACT, "    s = exact ->     if len(k) > 8: raise ValueError('too many keys')\n    s = exact")
    for verdict in verdicts(ATTEND, source):
        assert "too many keys" in verdict.message and verdict.mistake == ""


HONEST_ATTENTION = {
    "keys_that_a_query_sees_one_query_at_a_time": """\
def attend(q, k, v, mask):
    rows = []
    for query, sees in zip(q, mask):
        scores = k[sees] @ query / np.float32(np.sqrt(len(query)))
        weights = np.exp(scores - scores.max())
        rows.append(weights @ v[sees] / weights.sum())
    return np.stack(rows)
""",
    "hidden_scores_are_a_large_negative_number": changed(EXACT, "-np.inf -> -1e9"),
    "in_fortran_order": changed(EXACT, "return out -> return np.asfortranarray(out)"),
    "scores_in_float64": changed(EXACT, "np.float32(np.sqrt(q.shape[-1])) -> np.sqrt(q.shape[-1])"),
}


@pytest.mark.parametrize("name", HONEST_ATTENTION)
def test_an_honest_attention_of_unusual_form_passes(name):
    assert passes(ATTEND, HONEST_ATTENTION[name])


@pytest.mark.parametrize("scalar", ["int", "np.int64", "np.int32"])
def test_masks_may_be_made_of_any_rows_and_numbers(scalar):
    rows = f"[[{scalar}(x) for x in row] for row in {TRI}]"
    assert passes(MASK, f"def chunk_attention_mask(chunk_len, cached_len):\n    return {rows}\n")


# --- judges believe nothing


@pytest.mark.parametrize("name", ["KVCache", "prefill", "chunk_attention_mask", "ragged_mask", "attend"])
def test_no_malformed_outcome_passes_or_breaks_a_judge(name):
    exercise = EXERCISES[name]
    odd = [
        None, True, -1, 1e300, float("nan"), "x", b"x", (), ((),), ((), ()), ((), True), ((), (True,)),
        (((1, 2),), (True,)), (((np.zeros(3),) * 2,) * 400, (True,) * 400),
        (((), None, ()),), ((((), None, ()),), True), ((((1,), 2.0, ((1, 2),)),) * 2, True),
        np.zeros((0, 0)), np.full((3, 8), np.nan), np.zeros((3, 8), complex), np.full((2, 2), 2**64 - 1, np.uint64),
    ]  # fmt: skip
    for group in exercise.groups:
        calls = group.cases(check.PUBLIC_SEED)
        for value in odd:
            assert not judge(exercise, group, calls, [Returned(value)] * len(calls)).passed
        for outcomes in ([], [Returned(0)], [Raised("E", "x")] * len(calls), [Returned(0)] * (len(calls) + 1)):
            assert not judge(exercise, group, calls, outcomes).passed
