"""What runs beside the answers of notebook 06."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autograder.drivers import called, lasting
from course_lib.lessons.nb06_tradeoff import Hardware


def itl(answer: Callable, gaps: list[int], what: str) -> Any:
    """answer(gaps), and a second call that must leave the first one's result as it is; `what` is for messages alone."""
    return lasting(answer, (gaps,), ([gap + 1 for gap in gaps],))


def roofline(answer: Callable, prefill: int, decodes: int, context: int, numbers: list[int]) -> Any:
    """answer(prefill, decodes, context, hw), with the numbers made into a Hardware."""
    return called(answer, prefill, decodes, context, Hardware(*numbers))
