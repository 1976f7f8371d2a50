"""What runs beside the answers of notebook 00; that of functions of a cost serves notebook 06 too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autograder.drivers import called, lasting
from course_lib.cost.linear import LinearCost


def with_cost(answer: Callable, *args: Any) -> Any:
    """answer(..., m), with the last argument, three numbers, made into a LinearCost."""
    *first, cost = args
    return lasting(answer, (*first, LinearCost(*cost)), (*first, LinearCost(*(number + 1 for number in cost))))


class Numbers(LinearCost):
    """A cost whose step_us, which is what the exercise asks for, cannot be called."""

    def step_us(self, prefill: int, decodes: int) -> int:
        what = "m.step_us is the library's own course_lib.cost.linear.step_us"
        raise AttributeError(f"{what}: write the rule yourself, with m's three numbers")


def with_numbers(answer: Callable, *args: Any) -> Any:
    """As with_cost, for an answer that is to be the cost's step_us."""
    *first, cost = args
    return lasting(answer, (*first, Numbers(*cost)), (*first, Numbers(*(number + 1 for number in cost))))


def worst_gap(answer: Callable, steps: list[tuple[int, int, int, int]], what: str) -> Any:
    """answer(steps); `what` is for messages alone."""
    return called(answer, steps)


def whole_prompt_pick(answer: Callable, queue: list[int], budget: int) -> Any:
    """answer(queue, budget), and a second pick that must leave the first as it is."""
    return lasting(answer, (queue, budget), ([1] * (len(queue) + 1), len(queue) + 1))
