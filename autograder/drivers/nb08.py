"""What runs beside the answers of notebook 08."""

from __future__ import annotations

import operator
from collections.abc import Callable

from course_lib.schedule.request import Request


def next_chunk(
    answer: Callable, tokens: int, prompt: int, computed: int, cached: int, left: int, max_chunk: int
) -> tuple[int, int, int, int]:
    """(start, stop) of a request with these numbers, and num_computed and num_cached as the answer leaves them."""
    request = Request(0, list(range(tokens)), prompt_len=prompt, num_computed=computed, num_cached=cached)
    given = answer(request, left, max_chunk)
    try:
        start, stop = (operator.index(x) for x in given)
    except (TypeError, ValueError):
        raise TypeError(f"next_chunk gave {given!r:.60}, wanted a pair of whole numbers (start, stop)") from None
    return start, stop, request.num_computed, request.num_cached
