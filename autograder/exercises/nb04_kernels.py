"""How the two kernels of notebook 04 are judged: close to float64, and the same bits in chunks as in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autograder.compare import first_far_index, first_index, first_trouble, keeps_bits, same_integers, wrong_shape
from autograder.exercise import Call, Group, Outcome, Raised, Returned, Verdict, whole_or_chunk
from autograder.plain import Other, short

DTYPES = ("float32", "bfloat16")
TOKENS = 132  # more than two blocks of 64
FORM = (str, object, object, bool)  # of what the drivers of the kernels return
ALIKE = 0.999  # the fickle product leaves other bits for each way to cut rows, and the same for the same way
UNSEEN = (
    "Your values are right, but no matrix product of torch's was seen: yours are computed in NumPy, and with their "
    "terms in another order they have other last bits. No library promises in which order a product adds."
)
WITH_TORCH = "Multiply with torch, as in x @ w. The check then makes the order depend on the shape of each product."


def tensor_arg(x: np.ndarray, dtype: str) -> np.ndarray:
    """x (float32) as plain data for a tensor of `dtype`: itself, or for bfloat16 its bits, rounded half to even."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    if dtype == "float32":
        return x
    word = x.view(np.uint32)
    return ((word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def values(arg: np.ndarray) -> np.ndarray:
    """The numbers of a `tensor_arg` as float32."""
    return (arg.astype(np.uint32) << 16).view(np.float32) if arg.dtype == np.uint16 else arg


def kernel_call(
    name: str, arrays: Mapping[str, np.ndarray], start: int, dtype: str, size: Sequence[int] = (), **facts: Any
) -> Call:
    """A call with these arrays as tensors of `dtype`; size: (tile,) or (block,), or nothing.

    facts["series"] says with which calls it is compared: those of one dtype and size.
    """
    args = (*(tensor_arg(x, dtype) for x in arrays.values()), start, *size)
    shapes = [f"{key} {list(x.shape)}" for key, x in arrays.items()]
    last = [f"{'tile' if 'w' in arrays else 'block'}={number}" for number in size]
    facts |= {"dtype": dtype, "start": start, "series": " with ".join([dtype, *last])}
    return Call(args, f"{name}({', '.join([*shapes, f'start={start}', *last])}) in {dtype}", facts)


def cuts(rng: np.random.Generator, dtype: str, size: Sequence[int]) -> list[tuple[int, int]]:
    """One pass over TOKENS positions, and chunks of 1, of 7, of 64, of 100, ragged ones; not all in each series."""
    if size:
        return [(0, TOKENS), (TOKENS - 1, TOKENS), (size[0] + 7, size[0] + 10), (30, 30 + int(rng.integers(31, 45)))]
    one, seven, hit = int(rng.integers(1, 40)), 7 * int(rng.integers(2, 17)), int(rng.integers(17, 60))
    few = [(0, 1), (TOKENS - 1, TOKENS), (one, one + 1), (seven, seven + 7), (TOKENS - 100, TOKENS), (hit, hit + 23)]
    end = int(rng.integers(70, 100))
    return [(0, TOKENS), *few, *([(64, 128), (65, end), (end, end + 17)] if dtype == "float32" else [])]


def kernel_groups(
    logic_cases: Callable[[int], list[Call]],
    bits_cases: Callable[[int], list[Call]],
    *,
    oracle: Callable[[Call], np.ndarray],
    limit: Callable[[np.ndarray, str], Any],
    axes: str,
    whose: str,
    which: str,
) -> tuple[Group, Group]:
    """The groups logic and bits of a kernel.

    oracle   the right numbers in float64
    limit    limit(wanted, dtype): how far from them a result may be
    axes     what the axes of a result are
    whose    names a row, such as "the query at position"
    which    what makes bits depend on the cut
    """

    def wrong_with(call: Call, got: tuple) -> str | None:
        (dtype, value, *_), wanted = got, oracle(call)
        if not dtype or not isinstance(value, np.ndarray):
            return no_tensor(call, value)
        shape = wrong_shape(call, value, wanted.shape, axes)
        if shape or value.dtype.kind not in "biuf":
            return shape or f"{call.label} has dtype {dtype}."
        with np.errstate(invalid="ignore"):
            far = ~(np.abs(value.astype(np.float64) - wanted) <= limit(wanted, call.facts["dtype"]))
        if far.any():
            at = first_index(far)
            row = f"row {at[0]} (position {call.facts['start'] + at[0]}), column {at[1]}"
            nan = " (NaN comes from inf - inf or 0 / 0: a row in which no key is left, or exp of a large number)"
            wrong = f"{value[at]:.6g}, it should be {wanted[at]:.6g}{nan * math.isnan(value[at])}"
            return f"{call.label}: {row} is {wrong}."
        held = dtype == call.facts["dtype"] and np.array_equal(values(tensor_arg(value, dtype)), value)
        return None if held else f"{call.label} was given {call.facts['dtype']} and returned {dtype}."

    def logic(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
        trouble = first_trouble(calls, outcomes, wrong_with, FORM)
        return trouble or Verdict(True, count=f"{len(calls)} cases close to float64")

    def bits(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
        trouble = first_trouble(calls, outcomes, wrong_with, FORM)
        if trouble:
            return trouble
        for _, result, turned, fickle in (o.value for o in outcomes):
            if not fickle and not (isinstance(turned, np.ndarray) and np.array_equal(turned, result)):
                return Verdict(False, what=UNSEEN, which=WITH_TORCH)
        series = list(dict.fromkeys(call.facts["series"] for call in calls))
        for one in series:
            mine = [(c, Returned(o.value[1])) for c, o in zip(calls, outcomes) if c.facts["series"] == one]
            verdict = keeps_bits(*zip(*mine), lambda *_: None, lambda row, one=one: f"in {one}, {whose} {row}", which)
            if not verdict.passed:
                return verdict
        chunks = len(calls) - len(series)
        return Verdict(True, count=f"{chunks} chunks equal one pass in every bit, float32 and bfloat16")

    return Group("logic", logic_cases, logic, FORM), Group("bits", bits_cases, bits, FORM, apart=whole_or_chunk)


def no_tensor(call: Call, value: Any) -> str:
    """What came instead of a tensor, in a sentence."""
    kinds = {type(None): "None (does it end in a return line?)", np.ndarray: "a NumPy array", tuple: "a list or tuple"}
    kind = value.kind if isinstance(value, Other) else kinds.get(type(value), short(value, 80))
    return f"{call.label} returned {kind}, and not a torch tensor."


def same(a: Outcome, b: Outcome) -> bool:
    """Results of one dtype and shape, as close as two roundings to bfloat16; or the same error."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return same_integers(a, b)
    (mine, x, *_), (theirs, y, *_) = a.value, b.value
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return same_integers(Returned(x), Returned(y))
    if mine != theirs or x.shape != y.shape or not x.dtype.kind == y.dtype.kind == "f":
        return False
    return first_far_index(x, y, 1e-2) is None


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
