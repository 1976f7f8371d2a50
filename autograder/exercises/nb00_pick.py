"""Exercise 0.4, whole_prompt_pick: which waiting prompts run in this step, whole?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.drivers import nb00
from autograder.exercise import Call
from autograder.kit import draws, exercise, shown, values

SOLUTION = "course_lib.schedule.policies:whole_prompt_pick"


def queues(seed: int) -> Iterator[tuple[list[int], int]]:
    """Prompts that fit exactly, miss by one, and can never run; equal ones; blocked heads and middles; budgets of 0."""
    draw = draws(seed)
    a, b, c = draw(50, 90), draw(100, 190), draw(200, 390)
    yield [9_000, draw(50, 300), draw(50, 300)], 8_192  # no prompt fits, now or later
    yield [a, b, c], a + b + c  # all, and nothing is left
    yield [a, b, c, 7], a + b + c - 1  # the third misses by one, and the fourth would fit
    yield [a, b, 1, 1], a + b  # nothing is left for the third
    yield [b, 9_000, 7, a], 8_192  # blocked in the middle
    yield [c, a, b, c], c + a + draw(1, 40)
    yield [c, b, a, 7], c + b  # descending
    for budget in (16, 15, 14, 10, 5, 4):
        yield [5, 5, 5], budget
    yield [a, b, a, b, a], 2 * a + 2 * b  # equal prompts, not next to each other
    yield [b, c, b, c], b + c + b
    for queue in ([a], [a + 1], [a, a]):
        yield queue, a
    for queue in ([], [1], [1, 1], [2, 1]):
        yield from ((queue, 0), (queue, 1))
    yield [], draw(2, 100)
    yield [1, 7, 1, 3], draw(3, 8)
    yield [1] * 30, 25
    for _ in range(4):
        queue = [draw(1, 400) for _ in range(draw(3, 8))]
        yield queue, max(sum(queue[: draw(1, len(queue))]) + draw(0, 30), 2)


def label(queue: list[int], budget: int) -> str:
    return f"whole_prompt_pick({queue}, {budget})"


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    if got.ndim != 1 or (got.size and got.dtype.kind not in "iu"):
        return f"{call.label} is {shown(got, 200)}, wanted a list of places in the queue, whole numbers."
    if got.tolist() == wanted.tolist():
        return None
    return f"{call.label} is {shown(got, 200)}, it should be {wanted.tolist()}."


MISTAKES = """
    around_the_head
      break  ->  continue
    You pick around a prompt that does not fit. The queue is first come, first served: a prompt that does not fit blocks
    the ones behind it. (Picking around lets short prompts pass, and the long one still never runs.)

    number_of_requests
      | return list(range(min(budget, len(queue))))
    The budget is counted in requests. It is a number of tokens.

    budget_for_each
      budget -= tokens  ->
    Each prompt is compared with the whole budget. What one prompt takes is gone for the next: they share the step.

    budget_for_each_around_the_head
      break  ->  continue
      budget -= tokens  ->
    Each prompt is compared with the whole budget, and one that does not fit is passed over. The prompts share the
    step's budget, and first come, first served.

    strictly_less
      tokens > budget  ->  tokens >= budget
    A prompt that exactly uses up the budget is left out. It fits: nothing need be left over.

    over_the_budget
      tokens > budget  ->  budget <= 0
    The last prompt you pick goes over the budget. While anything is left you take one more; but all of the prompt must
    fit, for a part of it cannot run here.

    head_always
      tokens > budget  ->  picked and tokens > budget
    The first prompt always runs, even when it is longer than the budget. Then the step holds more tokens than it has
    room for.

    shortest_first
      enumerate(queue)  ->  sorted(enumerate(queue), key=lambda item: item[1])
    You take the shortest prompts first. That is another order than first come, first served.

    shortest_first_sorted
      enumerate(queue)  ->  sorted(enumerate(queue), key=lambda item: item[1])
      return picked  ->  return sorted(picked)
    You take the shortest prompts, whatever their place, and then sort the places. First come, first served takes them
    from the front.

    head_only
      budget -= tokens  ->  break
    Only the first prompt is picked. As long as all of the next one fits as well, it runs in the same step.

    lengths
      append(place)  ->  append(tokens)
    These are the lengths of the prompts. Return their places in the queue, counted from 0.

    from_one
      append(place)  ->  append(place + 1)
    Every place is one too large: this counts from 1. The prompt at the front has place 0.

    place_of_the_length
      append(place)  ->  append(queue.index(tokens))
    queue.index(tokens) is the place of the first prompt of that length. Two prompts may be equally long: count the
    places with enumerate.

    equal_prompts_once
      append(place)  ->  append(place) if tokens not in queue[:place] else None
    Of prompts of the same length only the first is picked. Each is another request, with its own place.

    own_tokens_not_counted
      tokens > budget  ->  budget < 0
    A prompt is compared with what the ones before it left, and its own tokens are not counted: the last one you pick
    goes over the budget, and one more is picked when nothing is left.

    all_or_none
      | return list(range(len(queue))) if sum(queue) <= budget else []
    Either all prompts run here, or none. Those at the front that fit run; the others wait.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, queues, label, trouble, count="queues", driver=nb00.whole_prompt_pick)],
    mistakes=MISTAKES,
    reread="Reread notebook 00, section 5.",
    imports="import numpy as np\nfrom collections.abc import Sequence",
    driver=nb00.whole_prompt_pick,
)
