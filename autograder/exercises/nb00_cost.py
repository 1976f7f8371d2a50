"""What the exercises of notebook 00 share: a cost among the arguments, and the judgement of whole microseconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autograder.exercise import Call
from course_lib.cost.linear import LinearCost

IMPORTS = "import numpy as np\nfrom collections.abc import Sequence\nfrom course_lib.cost.linear import LinearCost"
REFERENCE = [2_600, 18, 108]  # in the arguments of a call a cost is these three numbers


def with_cost(answer: Callable, first: int, second: int, cost: list[int]):
    """Driver: answer(first, second, m), with the numbers made into a LinearCost."""
    return answer(first, second, LinearCost(*cost))


def shown(name: str, first: int, second: int, cost: list[int]) -> str:
    return f"{name}({first}, {second}, LinearCost({', '.join(map(str, cost))}))"


def drawn(rng: np.random.Generator) -> list[int]:
    """A cost other than the reference, its three numbers from separate ranges, so that swapping two of them shows."""
    return [int(rng.integers(1_000, 9_000)), int(rng.integers(5, 60)), int(rng.integers(70, 900))]


def wrong_number(call: Call, got: np.ndarray, wanted: int) -> str | None:
    """A sentence unless `got` is the whole number `wanted`."""
    if got.shape != ():
        return f"{call.label} has shape {list(got.shape)}, wanted one number."
    if got.dtype.kind not in "iu":
        return f"{call.label} is {got}, of type {got.dtype}; wanted {wanted:,}, a whole number of microseconds."
    return None if got == wanted else f"{call.label} is {got:,} us, it should be {wanted:,} us."
