"""Exercise 6.4, roofline: a step's time from bytes and arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autograder.compare import first_trouble, same_floats
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict, WrongAnswer
from course_lib.lessons.nb06_tradeoff import Hardware

NEAR_US = 2.0  # so that an answer that rounds each part to whole microseconds is right as well
# Hardware.of("h100", "8b"), as the arguments of a call hold it
H100_8B = [15_009_316_864, 13_958_643_712, 131_072, 2_680_000, 692_300_000]


def with_hardware(answer: Callable, prefill: int, decodes: int, context: int, numbers: list[int]):
    """Driver: answer(prefill, decodes, context, hw), with the numbers made into a Hardware."""
    return answer(prefill, decodes, context, Hardware(*numbers))


def _wanted(prefill: int, decodes: int, context: int, numbers: list[int]) -> float:
    weights, flops, kv, bytes_per_us, flops_per_us = numbers
    whole = max(weights * flops_per_us, flops * (prefill + decodes) * bytes_per_us)  # a fraction's numerator
    return (whole + kv * decodes * context * flops_per_us) / (bytes_per_us * flops_per_us)


def value_cases(seed: int) -> list[Call]:
    """One GPU and others; decodes alone, chunks with and without them; steps on both sides of the ridge."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731

    def drawn() -> list[int]:
        return [
            draw(2_000, 30_000) * 10**6, draw(2_000, 30_000) * 10**6, draw(40_000, 600_000),
            draw(300_000, 4_000_000), draw(40_000_000, 800_000_000),
        ]  # fmt: skip

    other = drawn()
    ridge = other[0] * other[4] // (other[1] * other[3])  # tokens at which reading and arithmetic take equally long
    calls = [
        (0, 24, 1_024, H100_8B),
        (1_024, 24, 1_024, H100_8B),
        (draw(64, 160), 0, 0, H100_8B),
        (0, draw(300, 500), draw(20, 60), H100_8B),
        (draw(2_000, 9_000), 0, draw(500, 900), drawn()),
        (0, draw(2, 60), draw(3_000, 9_000), drawn()),
        (max(ridge - draw(20, 30), 1), draw(40, 60), draw(500, 4_000), other),
        (ridge + draw(100, 900), draw(2, 30), draw(500, 4_000), other),
        (draw(500, 4_000), draw(2, 30), draw(500, 4_000), drawn()),
    ]
    return [
        Call(args, "roofline({}, {}, {}, Hardware({}))".format(*args[:3], ", ".join(map(str, args[3]))))
        for args in calls
    ]


def _trouble(call: Call, got: np.ndarray) -> str | None:
    if got.shape != () or got.dtype.kind not in "iuf":
        return f"{call.label} is {got.tolist()!r:.60}; wanted one number of microseconds."
    wanted = _wanted(*call.args)
    if abs(float(got) - wanted) <= NEAR_US:
        return None
    return f"{call.label} is {float(got):,.1f} us, it should be {wanted:,.1f} us."


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} steps")


def _wrong(name: str, message: str, *, read="hw.weight_bytes / hw.bytes_per_us", tokens="prefill + decodes",
           multiply="hw.flops_per_token * tokens / hw.flops_per_us",
           kv="hw.kv_bytes_per_token * decodes * context / hw.bytes_per_us",
           give="max(read, multiply) + kv") -> WrongAnswer:  # fmt: skip
    source = f"""\
def roofline(prefill, decodes, context, hw):
    tokens = {tokens}
    read = {read}
    multiply = {multiply}
    kv = {kv}
    return {give}
"""
    return WrongAnswer(name, source, message)


WRONG = (
    _wrong(
        "added",
        "Reading the weights and the arithmetic are added up. They run at the same time: the slower one counts.",
        give="read + multiply + kv",
    ),
    _wrong(
        "faster_counts",
        "The faster of reading and arithmetic counts here. The step is done when both are.",
        give="min(read, multiply) + kv",
    ),
    _wrong(
        "bandwidth_only",
        "The arithmetic is left out. With many tokens in the step it takes longer than reading the weights.",
        give="read + kv",
    ),
    _wrong(
        "arithmetic_only",
        "Reading the weights is left out. With few tokens in the step that is what takes the time.",
        give="multiply + kv",
    ),
    _wrong(
        "no_context",
        "Reading the decodes' contexts costs nothing here. Decodes share the weights with the prompt, and each reads "
        "its own K and V.",
        give="max(read, multiply)",
    ),
    _wrong(
        "one_context",
        "One context is read for all decodes. Each decode reads its own.",
        kv="hw.kv_bytes_per_token * (decodes > 0) * context / hw.bytes_per_us",
    ),
    _wrong(
        "decodes_not_multiplied",
        "The arithmetic counts the prompt's tokens alone. A decode is a token too, and is multiplied with all weights.",
        tokens="prefill",
    ),
    _wrong(
        "prompt_not_multiplied",
        "The arithmetic counts the decodes alone. The prompt's tokens are most of it.",
        tokens="decodes",
    ),
    _wrong(
        "context_multiplied",
        "The arithmetic counts the tokens of the decodes' contexts. Those were computed long ago; only their K and V"
        " are read.",
        tokens="prefill + decodes * context",
    ),
    _wrong(
        "weights_for_each_token",
        "The weights are read again for each token. All tokens of a step share one reading: that is what "
        "riding along means.",
        read="hw.weight_bytes * tokens / hw.bytes_per_us",
    ),
    _wrong(
        "weights_for_each_decode",
        "The decodes read the weights a second time, as if they had a separate step. In one step all tokens "
        "share one reading.",
        give="max(read, multiply) + kv + read * (prefill > 0 and decodes > 0)",
    ),
    _wrong(
        "context_overlaps",
        "The contexts are read while the arithmetic runs. In this model attention comes after the matrix products, "
        "and its time is added.",
        give="max(read + kv, multiply)",
    ),
    _wrong(
        "slowest_of_three",
        "Only the slowest of the three parts counts. The contexts are read after the matrix products: add their time.",
        give="max(read, multiply, kv)",
    ),
    _wrong(
        "prompt_reads_the_context",
        "The prompt's tokens read the decodes' contexts too. Only a decode reads its own request's K and V.",
        kv="hw.kv_bytes_per_token * tokens * context / hw.bytes_per_us",
    ),
    _wrong(
        "rates_swapped",
        "The two rates are swapped: bytes are divided by flops_per_us, and arithmetic by bytes_per_us.",
        read="hw.weight_bytes / hw.flops_per_us",
        multiply="hw.flops_per_token * tokens / hw.bytes_per_us",
    ),
    _wrong(
        "milliseconds",
        "These are milliseconds. The rates are per microsecond, so the quotients are microseconds already.",
        give="(max(read, multiply) + kv) / 1_000",
    ),
)

RIGHT = (
    """\
def roofline(prefill, decodes, context, hw):
    products = max(hw.weight_bytes // hw.bytes_per_us, (prefill + decodes) * hw.flops_per_token // hw.flops_per_us)
    return products + decodes * context * hw.kv_bytes_per_token // hw.bytes_per_us
""",
    """\
def roofline(prefill, decodes, context, hw):
    times = np.array([hw.weight_bytes / hw.bytes_per_us, hw.flops_per_token / hw.flops_per_us * (prefill + decodes)])
    contexts = sum(hw.kv_bytes_per_token * context for _ in range(decodes))
    return times.max() + contexts / hw.bytes_per_us
""",
)

EXERCISE = Exercise(
    name="roofline",
    number="6.4",
    title="A step from bytes and arithmetic",
    notebook="06_tradeoff",
    mode="kernel",
    groups=(Group("values", 3, value_cases, judge_values),),
    same=same_floats,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 06, section 5.",
    imports="import numpy as np\nfrom course_lib.lessons.nb06_tradeoff import Hardware",
    library=("course_lib.lessons.nb06_tradeoff:roofline",),
    driver=with_hardware,
)
