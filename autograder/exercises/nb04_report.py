"""Exercise 4.1, bit_report: how far apart two tensors are, in bits."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers, wrong_shape
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.fickle import on_tensors, tensor_arg, values
from autograder.kept import known_mistakes

FIELDS = ("the number of elements that differ", "the largest distance", "the first index", "the number of lone NaNs")


def oracle(a: np.ndarray, b: np.ndarray) -> list[int]:
    """Element by element, in Python's whole numbers."""
    differ, ulps, first, nans = 0, 0, -1, 0
    bits = 16 if a.dtype == np.uint16 else 32
    words = [x.reshape(-1).view(f"u{bits // 8}").tolist() for x in (a, b)]

    def place(word: int) -> int:
        sign = 1 << (bits - 1)
        return word if word < sign else sign - word

    for i, (x, y, n, m) in enumerate(zip(*words, *(np.isnan(values(t)).reshape(-1) for t in (a, b)), strict=True)):
        if (n and m) or (not (n or m) and place(x) == place(y)):
            continue
        differ, first = differ + 1, i if first < 0 else first
        if n or m:
            nans += 1
        else:
            ulps = max(ulps, abs(place(x) - place(y)))
    return [differ, ulps, first, nans]


def _step(x: np.ndarray, index: tuple, by: int) -> None:
    """Move one element (not zero) by some ulps, away from 0."""
    x.view(np.uint16 if x.dtype == np.uint16 else np.uint32)[index] += by


def cases(seed: int) -> list[Call]:
    """Equal tensors, single ulps, both zeros, NaN on one side and on both, across 0, across the whole range."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    calls = []

    def pair(dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        a = tensor_arg(rng.standard_normal(shape).astype(np.float32) + np.float32(3), dtype)
        return a, a.copy()

    def add(a: np.ndarray, b: np.ndarray, what: str) -> None:
        dtype = "bfloat16" if a.dtype == np.uint16 else "float32"
        calls.append(Call((a, b), f"bit_report of two {dtype} tensors {list(a.shape)} {what}"))

    def put(x: np.ndarray, index: tuple, value: float) -> None:
        x[index] = tensor_arg(np.array([value], np.float32), "bfloat16" if x.dtype == np.uint16 else "float32")[0]

    for dtype in ("float32", "bfloat16"):
        a, b = pair(dtype, (draw(3, 6), 7))
        _step(b, (1, draw(0, 7)), 1)
        _step(b, (2, draw(0, 7)), draw(2, 9))
        add(a, b, "that differ in two elements")

        a, b = pair(dtype, (5, draw(3, 8)))
        add(a, b, "that are equal")

        a, b = pair(dtype, (4, 6))
        for i in range(3):
            put(a, (0, i), 0.0)
            put(b, (0, i), -0.0)
        _step(b, (3, draw(1, 6)), draw(3, 30))
        add(a, b, "with +0 on one side and -0 on the other")

        a, b = pair(dtype, (4, 6))
        put(a, (1, 2), np.nan)
        put(b, (1, 2), np.nan)
        _step(b, (2, draw(0, 6)), draw(3, 30))
        add(a, b, "with NaN at the same place in both")

        a, b = pair(dtype, (4, 6))
        put(a, (1, draw(0, 6)), np.nan)
        put(b, (2, draw(0, 6)), np.nan)
        _step(b, (3, draw(0, 6)), draw(3, 30))
        add(a, b, "with NaN on one side only")

        a, b = pair(dtype, (draw(8, 14),))
        put(a, (2,), 1e-38)
        put(b, (2,), -1e-38)
        _step(b, (5,), draw(3, 30))
        add(a, b, "with numbers on both sides of 0")

    a, b = pair("float32", (draw(5, 9),))
    put(a, (1,), 3e38)
    put(b, (1,), -3e38)
    add(a, b, "at the two ends of the range")
    a, b = pair("float32", (draw(5, 9),))
    put(a, (0,), float(rng.uniform(1e-9, 2e-9)))
    put(b, (0,), 2 * float(a[0]))
    add(a, b, "that differ in a very small number")
    return calls


def _values(call: Call, got: np.ndarray) -> str | None:
    wanted = oracle(*call.args)
    shape = wrong_shape(call, got, (4,), "four whole numbers: differing, largest distance, first index, lone NaNs")
    if shape or got.dtype.kind not in "biu":
        return shape or f"{call.label} returned {got.tolist()}, wanted four whole numbers."
    for name, mine, right in zip(FIELDS, got.tolist(), wanted, strict=True):
        if mine != right:
            return f"{call.label}: {name} is {mine}, it should be {right}."
    return None


def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _values) or Verdict(True, count=f"{len(calls)} cases")


SOLUTION = "course_lib.lessons.nb04_bits:bit_report"

MISTAKES = """
    zeros_differ
      differs =  ->  kind = {2: torch.int16, 4: torch.int32}[a.element_size()]\\ndiffers =
      (a != b)  ->  (a.view(kind) != b.view(kind))
    The raw bits are compared, and so +0 and -0 differ. They are the same number: compare a != b.

    nan_differs_from_nan
      (a != b) & ~(a.isnan() & b.isnan())  ->  a != b
      differs & ~one_nan  ->  differs & ~a.isnan() & ~b.isnan()
    NaN != NaN is True, and so two NaNs at the same place count as a difference here. They are equal results.

    nan_ignored
      ~(a.isnan() & b.isnan())  ->  ~a.isnan() & ~b.isnan()
    Every place with a NaN is left out. A number on one side and NaN on the other is the worst difference there is.

    raw_bits
      differs =  ->  kind = {2: torch.int16, 4: torch.int32}[a.element_size()]\\ndiffers =
      (a != b)  ->  (a.view(kind) != b.view(kind))
      torch.where(bits < 0, lowest - bits, bits)  ->  bits
    The raw bits are used as they are, twice: +0 and -0 differ, and numbers on the two sides of 0 get a wrong distance.
    Compare a != b, and turn the bits of negative numbers round.

    sign_bit_left
      torch.where(bits < 0, lowest - bits, bits)  ->  bits
    The distance is taken between the raw bits as they are. Those of negative numbers count downwards, and from the
    other end: turn them round first.

    as_float32
      bits = x  ->  x = x.float()\\nbits = x
    Both tensors are made float32 before the bits are taken. Between two bfloat16 neighbours there are 65,536 steps of
    float32.

    as_float64
      bits = x  ->  x = x.double()\\nbits = x
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

EXERCISE = Exercise(
    name="bit_report",
    groups=(Group("values", cases, judge),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 04, section 2.",
    imports="import numpy as np\nimport torch",
    solution=SOLUTION,
    driver=on_tensors,
)
