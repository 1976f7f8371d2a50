"""Exercise 4.1, bit_report: how far apart two tensors are, in bits."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers, wrong_shape
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict, WrongAnswer
from autograder.exercises.fickle import on_tensors, tensor_arg, values

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


_RIGHT = """\
def bit_report(a, b):
    a, b = a.flatten(), b.flatten()
    one_nan = a.isnan() != b.isnan()
    differs = (a != b) & ~(a.isnan() & b.isnan())

    def place(x):
        bits = x.view(torch.int32 if x.element_size() == 4 else torch.int16).long()
        return torch.where(bits < 0, -(2 ** (8 * x.element_size() - 1)) - bits, bits)

    distances = (place(a) - place(b)).abs()[differs & ~one_nan]
    first = differs.nonzero()
    ulps = int(distances.max()) if len(distances) else 0
    return int(differs.sum()), ulps, int(first[0]) if len(first) else -1, int(one_nan.sum())
"""


def _wrong(name: str, message: str, *changes: tuple[str, str]) -> WrongAnswer:
    """The right answer with some of its text changed."""
    source = _RIGHT
    for old, new in changes:
        assert old in source, (name, old)
        source = source.replace(old, new)
    return WrongAnswer(name, source, message)


WRONG = (
    _wrong(
        "zeros_differ",
        "The raw bits are compared, and so +0 and -0 differ. They are the same number: compare a != b.",
        (
            "differs = (a != b) &",
            "differs = (a.view(torch.int32 if a.element_size() == 4 else torch.int16) != "
            "b.view(torch.int32 if b.element_size() == 4 else torch.int16)) &",
        ),
    ),
    _wrong(
        "nan_differs_from_nan",
        "NaN != NaN is True, and so two NaNs at the same place count as a difference here. They are equal results.",
        (" & ~(a.isnan() & b.isnan())", ""),
        ("differs & ~one_nan", "differs & ~a.isnan() & ~b.isnan()"),
    ),
    _wrong(
        "nan_ignored",
        "Every place with a NaN is left out. A number on one side and NaN on the other is the worst "
        "difference there is.",
        ("& ~(a.isnan() & b.isnan())", "& ~a.isnan() & ~b.isnan()"),
    ),
    _wrong(
        "raw_bits",
        "The raw bits are used as they are, twice: +0 and -0 differ, and numbers on the two sides of 0 get a wrong "
        "distance. Compare a != b, and turn the bits of negative numbers round.",
        (
            "differs = (a != b) &",
            "differs = (a.view(torch.int32 if a.element_size() == 4 else torch.int16) != "
            "b.view(torch.int32 if b.element_size() == 4 else torch.int16)) &",
        ),
        ("return torch.where(bits < 0, -(2 ** (8 * x.element_size() - 1)) - bits, bits)", "return bits"),
    ),
    _wrong(
        "sign_bit_left",
        "The distance is taken between the raw bits as they are. Those of negative numbers count downwards, and "
        "from the other end: turn them round first.",
        ("return torch.where(bits < 0, -(2 ** (8 * x.element_size() - 1)) - bits, bits)", "return bits"),
    ),
    _wrong(
        "as_float32",
        "Both tensors are made float32 before the bits are taken. Between two bfloat16 neighbours there are "
        "65,536 steps of float32.",
        ("def place(x):", "def place(x):\n        x = x.float()"),
    ),
    _wrong(
        "as_float64",
        "Both tensors are made float64 before the bits are taken. Between two float32 neighbours there are 2**29 "
        "steps of float64.",
        ("def place(x):", "def place(x):\n        x = x.double()"),
        ("torch.int32 if x.element_size() == 4 else torch.int16", "torch.int64"),
    ),
    _wrong(
        "as_bfloat16",
        "Both tensors are made bfloat16 first. Two float32 neighbours then mostly become the same number, and the "
        "difference is gone before it is counted.",
        ("a, b = a.flatten(), b.flatten()", "a, b = a.flatten().bfloat16(), b.flatten().bfloat16()"),
    ),
    _wrong(
        "overflow",
        "The distance is computed in 32 bits and overflows: from the lowest to the highest float32 there are more "
        "than 2**31 steps. Make the bits int64 first, with .long().",
        ("(place(a) - place(b)).abs()", "(place(a).int() - place(b).int()).abs()"),
    ),
    _wrong(
        "in_units_of_eps",
        "The difference is divided by the spacing of numbers near 1. The spacing grows with the number: use the bits.",
        ("distances = (place(a) - place(b)).abs()[", "distances = ((a - b).abs() / torch.finfo(a.dtype).eps).round()["),
    ),
    _wrong(
        "in_units_of_eps_float64",
        "The difference is taken in float64, and divided by the spacing of numbers near 1. "
        "The spacing grows with the number: use the bits.",
        (
            "distances = (place(a) - place(b)).abs()[",
            "distances = ((a.double() - b.double()).abs() / torch.finfo(a.dtype).eps)[",
        ),
    ),
    _wrong(
        "isclose",
        "This is torch.isclose with its default tolerances. It lets through any difference below 1e-8, and dozens of "
        "float32 steps between larger numbers. The question is whether bits are equal: compare a != b.",
        ("differs = (a != b) &", "differs = ~torch.isclose(a, b, equal_nan=True) &"),
    ),
    _wrong(
        "tolerance",
        "Small differences are let through, as torch.allclose does. The question is whether bits are equal.",
        ("differs = (a != b) &", "differs = ~torch.isclose(a, b, rtol=1e-2, equal_nan=True) &"),
    ),
    _wrong(
        "first_is_0",
        "Where nothing differs the first index is 0 here, which says that element 0 differs. Return -1.",
        ("len(first) else -1", "len(first) else 0"),
    ),
    _wrong(
        "place_of_largest",
        "The index is that of the largest distance. Wanted is the first element that differs: where to begin to look.",
        ("int(first[0])", "int((torch.where(differs & ~one_nan, (place(a) - place(b)).abs(), -1)).argmax())"),
    ),
    _wrong(
        "last",
        "The index is that of the last element that differs. Wanted is the first: where to begin to look.",
        ("int(first[0])", "int(first[-1])"),
    ),
)

RIGHT = (
    """\
def bit_report(a, b):
    import struct
    wide = a.dtype == torch.float32
    def place(x):
        word = struct.unpack("<i", struct.pack("<f", x))[0] >> (0 if wide else 16)
        sign = 2**31 if wide else 2**15
        return word if word >= 0 else -(word + sign)
    differ, ulps, first, nans = 0, 0, None, 0
    for i, (x, y) in enumerate(zip(a.flatten().tolist(), b.flatten().tolist())):
        if x == y or (x != x and y != y):
            continue
        differ += 1
        if first is None:
            first = i
        if x != x or y != y:
            nans += 1
        else:
            ulps = max(ulps, abs(place(x) - place(y)))
    return [differ, ulps, -1 if first is None else first, nans]
""",
    """\
def bit_report(a, b):
    a, b = a.reshape(-1), b.reshape(-1)
    x, y = a.double(), b.double()  # exact, for comparing
    differs = ~((x == y) | (torch.isnan(x) & torch.isnan(y)))
    kind = {torch.float32: (torch.int32, 2**31 - 1), torch.bfloat16: (torch.int16, 2**15 - 1)}[a.dtype]
    def signed(t):
        bits = t.view(kind[0]).to(torch.int64)
        size = bits & kind[1]
        return torch.where(bits < 0, -size, size)
    gaps = torch.where(torch.isnan(x) | torch.isnan(y) | ~differs, 0, (signed(a) - signed(b)).abs())
    where = torch.nonzero(differs).flatten().tolist()
    return torch.tensor([len(where), int(gaps.max()), (where + [-1])[0], int((torch.isnan(x) ^ torch.isnan(y)).sum())])
""",
)

EXERCISE = Exercise(
    name="bit_report",
    number="4.1",
    title="Compare bits",
    notebook="04_bits",
    mode="equal",
    groups=(Group("values", 3, cases, judge),),
    same=same_integers,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 04, section 2.",
    imports="import numpy as np\nimport torch",
    library=("course_lib.lessons.nb04_bits:bit_report",),
    driver=on_tensors,
)
