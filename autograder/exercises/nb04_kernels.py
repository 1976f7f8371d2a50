"""How the two kernels of notebook 04 are judged: close to float64, and the same bits in chunks as in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autograder.compare import first_far_index, first_trouble, keeps_bits, wrong_shape
from autograder.exercise import Call, Outcome, Raised, Verdict

WITHIN = {"float32": 1e-5, "bfloat16": 1e-2}  # of the largest wanted value; rounding once to bfloat16 costs up to 4e-3
TOKENS = 132  # more than two blocks of 64
ALIKE = 0.999  # the fickle product leaves other bits for each way to cut rows, and the same for the same way


def cuts(rng: np.random.Generator, dtype: str) -> list[tuple[int, int]]:
    """Chunks of TOKENS positions: of 1, of 7, of 64, of 100, ragged ones; fewer in bfloat16, to save time."""
    one, seven, hit = int(rng.integers(1, 40)), 7 * int(rng.integers(2, 17)), int(rng.integers(17, 60))
    few = [(one, one + 1), (seven, seven + 7), (TOKENS - 100, TOKENS), (hit, hit + 23)]
    if dtype == "bfloat16":
        return few
    end = int(rng.integers(70, 100))
    return [(0, 1), (TOKENS - 1, TOKENS), *few, (64, 128), (65, end), (end, end + 17)]


def logic(oracle: Callable[[Call], np.ndarray], axes: str) -> Callable[[Call, np.ndarray], str | None]:
    """What is wrong with one returned array: shape, values, or numbers that its dtype does not hold."""

    def wrong_with(call: Call, got: np.ndarray) -> str | None:
        wanted, dtype = oracle(call), call.facts["dtype"]
        shape = wrong_shape(call, got, wanted.shape, axes)
        if shape or got.dtype.kind not in "biuf":
            return shape or f"{call.label} has dtype {got.dtype}, wanted {dtype}."
        at = first_far_index(got, wanted, WITHIN[dtype])
        if at is not None:
            row = f"row {at[0]} (position {call.facts['start'] + at[0]}), column {at[1]}"
            return f"{call.label}: {row} is {got[at]:.6g}, it should be {wanted[at]:.6g}{_nan(got[at])}."
        if dtype == "bfloat16" and (got.astype(np.float32).view(np.uint32) & 0xFFFF).any():
            return f"{call.label} was given bfloat16 and returned numbers that bfloat16 does not hold."
        if dtype == "float32" and got.dtype == np.float64:
            return f"{call.label} was given float32 and returned float64."
        return None

    return wrong_with


def _nan(value: float) -> str:
    return " (NaN comes from inf - inf or 0 / 0: a row in which no key is left, or exp of a large number)" * bool(
        math.isnan(value)
    )


def judge_logic(wrong_with: Callable) -> Callable[[list[Call], list[Outcome]], Verdict]:
    def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
        return first_trouble(calls, outcomes, wrong_with) or Verdict(True, count=f"{len(calls)} cases close to float64")

    return judge


def judge_bits(wrong_with: Callable, whose: str, which: str) -> Callable[[list[Call], list[Outcome]], Verdict]:
    """In each dtype, the answer's chunks against its one pass. `whose` names a row, such as "the query at position"."""

    def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
        chunks = 0
        for dtype in WITHIN:
            mine = [i for i, call in enumerate(calls) if call.facts["dtype"] == dtype]
            verdict = keeps_bits(
                [calls[i] for i in mine],
                [outcomes[i] for i in mine],
                wrong_with,
                lambda row, dtype=dtype: f"in {dtype}, {whose} {row}",
                which,
            )
            if not verdict.passed:
                return verdict
            chunks += len(mine) - 1
        return Verdict(True, count=f"{chunks} chunks equal one pass in every bit, float32 and bfloat16")

    return judge


def same(a: Outcome, b: Outcome) -> bool:
    """Arrays of one shape, as close as two roundings to bfloat16; or errors of one type."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return isinstance(a, Raised) and isinstance(b, Raised) and a.type == b.type
    x, y = a.value, b.value
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return type(x) is type(y) and x == y
    return x.shape == y.shape and x.dtype.kind == y.dtype.kind == "f" and first_far_index(x, y, 1e-2) is None


def midpoints(weights: Sequence[float], values: np.ndarray, steps: Sequence[int]) -> np.ndarray:
    """values [inner, columns] changed in three rows, so that each weighted sum lies halfway between float32 neighbours.

    Then float64 sums that are rounded to float32 at the end show in which order they were added. `steps` are three
    rows with ever smaller weights: each puts right what the one before it could not resolve.
    """
    values = values.copy()
    values[list(steps[1:])] = 0
    weights = np.asarray(weights, np.float64)
    for column in values.T:

        def total(column=column):
            return math.fsum(weights * column.astype(np.float64))

        below = np.float32(total())
        middle = (float(below) + float(np.nextafter(below, np.float32(np.inf)))) / 2
        for row in steps:
            column[row] += np.float32((middle - total()) / weights[row])
    return values
