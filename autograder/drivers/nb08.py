"""What runs beside the answers of notebook 08."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

from autograder.drivers import called
from course_lib.cost.linear import LinearCost
from course_lib.schedule.request import Request


def next_chunk(
    answer: Callable, tokens: int, prompt: int, computed: int, cached: int, left: int, max_chunk: int
) -> tuple[int, int, tuple[tuple[str, str], ...]]:
    """(start, stop) of a request with these numbers, and what of the request is another afterwards: (name, value)."""
    request = Request(0, list(range(tokens)), prompt_len=prompt, num_computed=computed, num_cached=cached)
    before = {name: copy.copy(value) for name, value in vars(request).items()}
    given = answer(request, left, max_chunk)
    changed = [(name, f"{x!r:.60}") for name, x in vars(request).items() if x != before.get(name)]
    try:
        start, stop = (operator.index(x) for x in given)
    except (TypeError, ValueError):
        raise TypeError(f"next_chunk gave {given!r:.60}, wanted a pair of whole numbers (start, stop)") from None
    return start, stop, tuple(changed)


def two_by_two(answer: Callable, prompt: int, hit: int, users: int, chunk: int, cost: tuple[int, int, int]) -> Any:
    """What the answer gives for the LinearCost of these three numbers."""
    return called(answer, prompt, hit, users, chunk, LinearCost(*cost))
