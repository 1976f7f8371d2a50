"""Exercise 0.4, whole_prompt_pick: which waiting prompts run in this step, whole?"""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.kept import known_mistakes


def _call(queue: list[int], budget: int) -> Call:
    return Call((queue, budget), f"whole_prompt_pick({queue}, {budget})")


def value_cases(seed: int) -> list[Call]:
    """Prompts that fit exactly, miss by one, and can never run; blocked heads and middles; one, none, ragged."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    a, b, c = draw(50, 90), draw(100, 190), draw(200, 390)
    calls = [
        ([9_000, draw(50, 300), draw(50, 300)], 8_192),  # no prompt fits, now or later
        ([a, b, c], a + b + c),  # all, and nothing is left
        ([a, b, c, 7], a + b + c - 1),  # the third misses by one, and the fourth would fit
        ([b, 9_000, 7, a], 8_192),  # blocked in the middle
        ([c, a, b, c], c + a + draw(1, 40)),
        ([a], a),
        ([a + 1], a),
        ([], draw(2, 100)),
        ([1, 7, 1, 3], draw(3, 8)),
    ]
    for _ in range(4):
        queue = [draw(1, 400) for _ in range(draw(3, 8))]
        calls.append((queue, max(sum(queue[: draw(1, len(queue))]) + draw(0, 30), 2)))
    return [_call(*args) for args in calls]


def _wanted(queue: list[int], budget: int) -> list[int]:
    fits = np.cumsum(queue) <= budget
    return list(range(int(fits.sum())))  # tokens are at least 1, so what fits is a beginning of the queue


def _trouble(call: Call, got: np.ndarray) -> str | None:
    wanted = _wanted(*call.args)
    if got.ndim != 1 or (got.size and got.dtype.kind not in "iu"):
        return f"{call.label} is {got.tolist()}, wanted a list of places in the queue, whole numbers."
    return None if got.tolist() == wanted else f"{call.label} is {got.tolist()}, it should be {wanted}."


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} queues")


SOLUTION = "course_lib.schedule.policies:whole_prompt_pick"

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
"""

EXERCISE = Exercise(
    name="whole_prompt_pick",
    groups=(Group("values", value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 00, section 5.",
    imports="import numpy as np\nfrom collections.abc import Sequence",
    solution=SOLUTION,
)
