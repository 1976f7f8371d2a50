"""What the exercises of notebooks 00 and 06 share: costs among the arguments, and what is wrong with whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from autograder.compare import first_index, wrong_shape
from autograder.exercise import Call

IMPORTS = "import numpy as np\nfrom collections.abc import Sequence\nfrom course_lib.cost.linear import LinearCost"
REFERENCE = [2_600, 18, 108]  # in the arguments of a call a cost is these three numbers


class Cost(NamedTuple):
    """A LinearCost for the oracle, of which an answer holds no part that it could change."""

    fixed_us: int
    prefill_us_per_token: int
    decode_us: int

    def step_us(self, prefill_tokens: int, decodes: int) -> int:
        return self.fixed_us + self.prefill_us_per_token * prefill_tokens + self.decode_us * decodes


def by_numbers(solution: Callable, *args: Any) -> Any:
    """solution(..., m), with the last argument made into a Cost: the oracle's driver."""
    *first, numbers = args
    return solution(*first, Cost(*numbers))


def cost(draw: Callable[[int, int], int]) -> list[int]:
    """A cost other than the reference, its three numbers from separate ranges, so that swapping two of them shows."""
    return [draw(1_000, 9_000), draw(5, 60), draw(70, 900)]


def drawn(rng: np.random.Generator) -> list[int]:
    return cost(lambda low, high: int(rng.integers(low, high)))


def written(name: str, kind: str = "LinearCost") -> Callable[..., str]:
    """How a message writes a call of `name` whose last argument stands for a LinearCost, or something else."""

    def label(*args) -> str:
        *first, numbers = args
        return f"{name}({', '.join(map(str, first))}, {kind}({', '.join(map(str, numbers))}))"

    return label


def wrong_number(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    """A sentence unless `got` is the whole number `wanted`."""
    if got.shape != ():
        return f"{call.label} has shape {list(got.shape)}, wanted one number."
    if got.dtype.kind not in "iu":
        return f"{call.label} is {got}, of type {got.dtype}; wanted {wanted:,}, a whole number of microseconds."
    return None if got == wanted else f"{call.label} is {got:,} us, it should be {wanted:,} us."


def wrong_rows(what: str, columns: tuple[str, ...], row_name: Callable[[Call, int], str]) -> Callable[..., str | None]:
    """A judge of tables of whole numbers: trouble(call, got, wanted), for `kit.values`.

    what       what a table should be, in words
    row_name   how a message calls a row: "row 1 has", "the row of chunk 128 has"
    """

    def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
        shape = wrong_shape(call, got, wanted.shape, f"{what} ({', '.join(columns)})")
        if shape:
            return shape
        if got.dtype.kind not in "iuf" or np.array_equal(got, wanted):
            whole = got.dtype.kind in "iu"
            return None if whole else f"{call.label} has numbers of type {got.dtype}; wanted whole numbers."
        row, column = at = first_index(got != wanted)
        found = f"{row_name(call, row)} {columns[column]} = {got[at]:,}"
        return f"{call.label}: {found}, it should be {wanted[at]:,}."

    return trouble
