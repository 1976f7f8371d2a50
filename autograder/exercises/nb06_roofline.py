"""Exercise 6.4, roofline: a step's time from bytes and arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from autograder.compare import same_floats
from autograder.drivers import nb06
from autograder.exercise import Call
from autograder.exercises.nb00_cost import written
from autograder.kit import draws, exercise, shown, values

SOLUTION = "course_lib.lessons.nb06_tradeoff:roofline"
NEAR_US = 2.0  # so that an answer that rounds each part to whole microseconds is right as well
FIELDS = ("weight_bytes", "flops_per_token", "kv_bytes_per_token", "bytes_per_us", "flops_per_us")
# Hardware.of("h100", "8b"), as the arguments of a call hold it: these numbers
H100_8B = [15_009_316_864, 13_958_643_712, 131_072, 2_680_000, 692_300_000]


def steps(seed: int) -> Iterator[tuple]:
    """Two GPUs with the same steps, and others; decodes alone, chunks alone, both; on both sides of the ridge; ones."""
    draw = draws(seed)

    def gpu() -> list[int]:
        sizes = draw(2_000, 30_000) * 10**6, draw(2_000, 30_000) * 10**6, draw(40_000, 600_000)
        return [*sizes, draw(300_000, 4_000_000), draw(40_000_000, 800_000_000)]

    other = gpu()
    for hw in (H100_8B, other):
        weights, flops, _, bytes_per_us, flops_per_us = hw
        ridge = weights * flops_per_us // (flops * bytes_per_us)  # reading and arithmetic take equally long
        for alone in ((1, 0, 0), (8_192, 0, 0), (0, 24, 1_024), (0, 1, 8_000), (0, 400, 37), (0, 256, 4_096)):
            yield *alone, hw
        for both in ((1_024, 24, 1_024), (1_024, 25, 1_024), (1_024, 24, 1_100), (1, 1, 8_000), (32_768, 256, 4_096)):
            yield *both, hw
        yield max(ridge - draw(20, 30), 1), draw(40, 60), draw(500, 4_000), hw
        yield ridge + draw(100, 900), draw(2, 30), draw(500, 4_000), hw
    yield draw(64, 160), 0, 0, H100_8B
    yield 0, draw(300, 500), draw(20, 60), H100_8B
    yield draw(2_000, 9_000), 0, draw(500, 900), gpu()
    yield 0, draw(2, 60), draw(3_000, 9_000), gpu()
    yield draw(500, 4_000), draw(2, 30), draw(500, 4_000), gpu()


def by_numbers(solution: Callable, *args: Any) -> Any:
    """The oracle's driver: nothing of what it computes with is in an answer's hands."""
    *first, numbers = args
    return solution(*first, SimpleNamespace(**dict(zip(FIELDS, numbers))))


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    if got.shape != () or got.dtype.kind not in "iuf":
        return f"{call.label} is {shown(got, 60)}; wanted one number of microseconds."
    if abs(float(got) - wanted) <= NEAR_US:
        return None
    return f"{call.label} is {float(got):,.1f} us, it should be {wanted:,.1f} us."


MISTAKES = """
    added
      max(read, multiply)  ->  read + multiply
    Reading the weights and the arithmetic are added up. They run at the same time: the slower one counts.

    faster_counts
      max(read, multiply)  ->  min(read, multiply)
    The faster of reading and arithmetic counts here. The step is done when both are.

    bandwidth_only
      max(read, multiply)  ->  read
    The arithmetic is left out. With many tokens in the step it takes longer than reading the weights.

    arithmetic_only
      max(read, multiply)  ->  multiply
    Reading the weights is left out. With few tokens in the step that is what takes the time.

    no_context
      max(read, multiply) + kv_read  ->  max(read, multiply)
    Reading the decodes' contexts costs nothing here. Decodes share the weights with the prompt, and each reads its own
    K and V.

    one_context
      decodes * context  ->  (decodes > 0) * context
    One context is read for all decodes. Each decode reads its own.

    decodes_not_multiplied
      (prefill + decodes)  ->  prefill
    The arithmetic counts the prompt's tokens alone. A decode is a token too, and is multiplied with all weights.

    prompt_not_multiplied
      (prefill + decodes)  ->  decodes
    The arithmetic counts the decodes alone. The prompt's tokens are most of it.

    context_multiplied
      (prefill + decodes)  ->  (prefill + decodes * context)
    The arithmetic counts the tokens of the decodes' contexts. Those were computed long ago; only their K and V are
    read.

    weights_for_each_token
      hw.weight_bytes  ->  hw.weight_bytes * (prefill + decodes)
    The weights are read again for each token. All tokens of a step share one reading: that is what riding along means.

    weights_for_each_decode
      max(read, multiply) + kv_read  ->  max(read, multiply) + kv_read + read * (prefill > 0 and decodes > 0)
    The decodes read the weights a second time, as if they had a separate step. In one step all tokens share one
    reading.

    context_overlaps
      max(read, multiply) + kv_read  ->  max(read + kv_read, multiply)
    The contexts are read while the arithmetic runs. In this model attention comes after the matrix products, and its
    time is added.

    slowest_of_three
      max(read, multiply) + kv_read  ->  max(read, multiply, kv_read)
    Only the slowest of the three parts counts. The contexts are read after the matrix products: add their time.

    prompt_reads_the_context
      decodes * context  ->  (prefill + decodes) * context
    The prompt's tokens read the decodes' contexts too. Only a decode reads its own request's K and V.

    rates_swapped
      (prefill + decodes) / hw.flops_per_us  ->  (prefill + decodes) / hw.bytes_per_us
      hw.weight_bytes / hw.bytes_per_us  ->  hw.weight_bytes / hw.flops_per_us
    The two rates are swapped: bytes are divided by flops_per_us, and arithmetic by bytes_per_us.

    milliseconds
      max(read, multiply) + kv_read  ->  (max(read, multiply) + kv_read) / 1_000
    These are milliseconds. The rates are per microsecond, so the quotients are microseconds already.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        values("values", SOLUTION, steps, written("roofline", "Hardware"), trouble, count="steps", driver=by_numbers)
    ],
    mistakes=MISTAKES,
    same=same_floats,
    reread="Reread notebook 06, section 5.",
    imports="import numpy as np\nfrom course_lib.lessons.nb06_tradeoff import Hardware",
    driver=nb06.roofline,
)
