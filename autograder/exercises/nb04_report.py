"""Exercise 4.1, bit_report: how far apart two tensors are, in bits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from autograder.compare import wrong_shape
from autograder.drivers import nb04
from autograder.exercise import Call
from autograder.exercises.nb04_kernels import DTYPES, tensor_arg
from autograder.kit import draws, exercise, shown, values

SOLUTION = "course_lib.lessons.nb04_bits:bit_report"
FIELDS = ("the number of elements that differ", "the largest distance", "the first index", "the number of lone NaNs")
NANS = {"nan": 0x7FC0 << 16, "other nan": (0x7FC0 << 16) + (1 << 16), "-nan": 0xFFC0 << 16}  # bits of float32


def cases(seed: int) -> Iterator[Call]:
    """In both dtypes single ulps up and down, both zeros, NaN and infinity on one side and on both, across 0."""
    rng, draw = np.random.default_rng(seed), draws(seed)
    inf, top = math.inf, {"float32": 3.4028234e38, "bfloat16": 3.3895314e38}

    def case(what: str, shape: tuple[int, ...], dtype: str, *places: tuple) -> Call:
        """Two equal tensors except at some places, in order: pairs of numbers, or of a number and steps from it."""

        def word(value) -> int:
            if isinstance(value, str):
                return NANS[value] >> (0 if dtype == "float32" else 16)
            return int(tensor_arg(np.array([value]), dtype).view(kind)[0])

        kind = {"float32": np.uint32, "bfloat16": np.uint16}[dtype]
        signs = rng.choice([-1, 1], shape)
        a = tensor_arg(signs * (3 + rng.random(shape)), dtype).view(kind)
        b = a.copy()
        at = np.sort(rng.choice(a.size, len(places), replace=False))
        for i, (mine, other) in zip(at, places):
            a.flat[i] = word(mine)
            b.flat[i] = a.flat[i] + other if isinstance(other, int) else word(other)
        real = np.float32 if dtype == "float32" else np.uint16
        return Call((a.view(real), b.view(real)), f"bit_report of two {dtype} tensors {list(shape)} {what}")

    for dtype in DTYPES:
        step = draw(3, 30)
        equal = [(x, x) for x in ("nan", inf, 1.0, -inf, 0.0, -1.0)]
        yield case("that differ in two elements", (draw(3, 6), 7), dtype, (3.5, 1), (5.0, step))
        yield case("that differ in three elements", (2, draw(3, 6), 3), dtype, (-9.0, 1), (-3.5, step), (2.0, 1))
        yield case("that are equal", (5, draw(3, 8)), dtype, *equal)
        yield case("with +0 on one side and -0 on the other", (4, 6), dtype, (0.0, -0.0), (-0.0, 0.0), (3.0, step))
        yield case("with NaN at the same place in both", (4, 6), dtype, ("nan", "nan"), (-3.0, step))
        nans = [("nan", "other nan"), ("-nan", "nan")]
        yield case("with NaNs of several bit patterns at the same places", (4, 6), dtype, *nans, (3.0, step))
        yield case("with NaN on one side only", (4, 6), dtype, ("nan", 3.0), (-3.0, "nan"), (3.0, step))
        yield case("that differ in NaNs alone", (draw(5, 9),), dtype, (1.0, "-nan"), ("nan", 2.0), ("other nan", 0.0))
        yield case("with NaN beside infinity", (4, 6), dtype, ("nan", inf), (inf, inf), (-inf, "nan"), (-3.0, step))
        yield case("with infinity beside the largest number", (draw(8, 14),), dtype, (inf, inf), (inf, top[dtype]))
        yield case("with infinity beside other numbers", (4, 6), dtype, (1.0, -1.0), (-inf, inf), (inf, 1.0))
        yield case("with numbers on both sides of 0", (draw(8, 14),), dtype, (1e-38, -1e-38), (3.0, step))
        yield case("with the smallest numbers beside 0", (draw(8, 14),), dtype, (0.0, 1), (-0.0, 1), (0.0, 0.0))
        yield case("of one element", (1,), dtype, (-2.0, step))
    yield case("at the two ends of the range", (draw(5, 9),), "float32", (3e38, -2.9999998e38))
    small = float(rng.uniform(1e-9, 2e-9))
    last = case("that differ in a very small number", (draw(5, 9),), "float32", (small, 2 * small))
    yield last
    yield Call((last.args[0], last.args[0]), "bit_report of the tensor before, and itself")


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    shape = wrong_shape(call, got, (4,), "four whole numbers: differing, largest distance, first index, lone NaNs")
    if shape or got.dtype.kind not in "biu":
        return shape or f"{call.label} returned {shown(got)}, wanted four whole numbers."
    for name, mine, right in zip(FIELDS, got.tolist(), wanted.tolist(), strict=True):
        if mine != right:
            return f"{call.label}: {name} is {mine}, it should be {right}."
    return None


MISTAKES = r"""
    zeros_differ
      differs =  ->  kind = {2: torch.int16, 4: torch.int32}[a.element_size()]\ndiffers =
      (a != b)  ->  (a.view(kind) != b.view(kind))
    The raw bits are compared, and so +0 and -0 differ. They are the same number: compare a != b.

    nan_differs_from_nan
      (a != b) & ~(a.isnan() & b.isnan())  ->  a != b
      differs & ~one_nan  ->  differs & ~a.isnan() & ~b.isnan()
    NaN != NaN is True, and so two NaNs at the same place count as a difference here. They are equal results.

    places_compared
      differs = (a != b) & ~(a.isnan() & b.isnan())  ->
      distances =  ->  differs = place(a) != place(b)\ndistances =
    The places are compared, and so two NaNs differ when their bits do. NaN has many bit patterns, and all are equal
    here: take out the places where both are NaN.

    infinity_is_nan
      one_nan = a.isnan() != b.isnan()  ->  one_nan = a.isfinite() != b.isfinite()
      ~(a.isnan() & b.isnan())  ->  (a.isfinite() | b.isfinite())
    Infinity is treated as NaN. It is a number with a place: one step above the largest finite one.

    either_nan
      a.isnan() != b.isnan()  ->  a.isnan() | b.isnan()
    NaN on both sides is counted as well. The last number counts the places where one side alone is NaN.

    nan_has_a_distance
      [differs & ~one_nan]  ->  [differs]
    A NaN on one side gets a distance: its bits are read as a number far out. Leave those places out of the largest
    distance.

    nan_ignored
      ~(a.isnan() & b.isnan())  ->  ~a.isnan() & ~b.isnan()
    Every place with a NaN is left out. A number on one side and NaN on the other is the worst difference there is.

    raw_bits
      differs =  ->  kind = {2: torch.int16, 4: torch.int32}[a.element_size()]\ndiffers =
      (a != b)  ->  (a.view(kind) != b.view(kind))
      torch.where(bits < 0, lowest - bits, bits)  ->  bits
    The raw bits are used as they are, twice: +0 and -0 differ, and numbers on the two sides of 0 get a wrong distance.
    Compare a != b, and turn the bits of negative numbers round.

    sign_bit_left
      torch.where(bits < 0, lowest - bits, bits)  ->  bits
    The distance is taken between the raw bits as they are. Those of negative numbers count downwards, and from the
    other end: turn them round first.

    sign_bit_of_float32
      -(2 ** (8 * x.element_size() - 1))  ->  -(2**31)
    Negative numbers are turned round at -2^31 in both dtypes. In bfloat16 the sign bit alone is -(2**15).

    no_abs
      (place(a) - place(b)).abs()  ->  (place(b) - place(a))
    The distance has a sign, and where a is the larger number it counts as less than none. Take abs().

    as_float32
      bits = x  ->  x = x.float()\nbits = x
    Both tensors are made float32 before the bits are taken. Between two bfloat16 neighbours there are 65,536 steps of
    float32.

    as_float64
      bits = x  ->  x = x.double()\nbits = x
      torch.int32 if x.element_size() == 4 else torch.int16  ->  torch.int64
    Both tensors are made float64 before the bits are taken. Between two float32 neighbours there are 2**29 steps of
    float64.

    as_bfloat16
      a.flatten(), b.flatten()  ->  a.flatten().bfloat16(), b.flatten().bfloat16()
    Both tensors are made bfloat16 first. Two float32 neighbours then mostly become the same number, and the difference
    is gone before it is counted.

    overflow
      (place(a) - place(b)).abs()  ->  (place(a).int() - place(b).int()).abs()
    The distance is computed in 32 bits and overflows: from the lowest to the highest float32 there are more than 2**31
    steps. Make the bits int64 first, with .long().

    in_units_of_eps
      (place(a) - place(b)).abs()  ->  ((a - b).abs() / torch.finfo(a.dtype).eps).round()
    The difference is divided by the spacing of numbers near 1. The spacing grows with the number: use the bits.

    in_units_of_eps_float64
      (place(a) - place(b)).abs()  ->  ((a.double() - b.double()).abs() / torch.finfo(a.dtype).eps)
    The difference is taken in float64, and divided by the spacing of numbers near 1. The spacing grows with the number:
    use the bits.

    isclose
      (a != b)  ->  ~torch.isclose(a, b, equal_nan=True)
    This is torch.isclose with its default tolerances. It lets through any difference below 1e-8, and dozens of float32
    steps between larger numbers. The question is whether bits are equal: compare a != b.

    tolerance
      (a != b)  ->  ~torch.isclose(a, b, rtol=1e-2, equal_nan=True)
    Small differences are let through, as torch.allclose does. The question is whether bits are equal.

    first_is_0
      else -1  ->  else 0
    Where nothing differs the first index is 0 here, which says that element 0 differs. Return -1.

    place_of_largest
      first[0]  ->  torch.where(differs & ~one_nan, (place(a) - place(b)).abs(), -1).argmax()
    The index is that of the largest distance. Wanted is the first element that differs: where to begin to look.

    last
      first[0]  ->  first[-1]
    The index is that of the last element that differs. Wanted is the first: where to begin to look.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, cases, trouble=trouble, driver=nb04.bit_report)],
    mistakes=MISTAKES,
    reread="Reread notebook 04, section 2.",
    imports="import numpy as np\nimport torch",
    driver=nb04.bit_report,
)
