"""Exercise 0.3, worst_gap: how long does a streaming user wait for the next token?"""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, drawn, wrong_number
from autograder.kept import known_mistakes
from course_lib.cost.linear import LinearCost


def _rows(work: list[tuple[int, int]], cost: list[int]) -> np.ndarray:
    m, rows, start = LinearCost(*cost), [], 0
    for tokens, decodes in work:
        stop = start + m.step_us(tokens, decodes)
        rows.append((start, stop, tokens, decodes))
        start = stop
    return np.array(rows)


def value_cases(seed: int) -> list[Call]:
    """Prompts alone and prompts with decodes, one or two in a row; users who come and go; long waits at both ends."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    cases = [
        ([(0, 24), (8_192, 0), (0, 24)], REFERENCE, "the exclusive baseline"),
        ([(0, 24), (8_192, 24), (0, 24)], REFERENCE, "the mixed baseline"),
    ]
    for _ in range(2):
        few, many = draw(1, 9), draw(20, 60)
        ragged = [(0, few), (draw(900, 4_000), 0), (0, many), (draw(100, 500), many), (0, few)]
        cases.append((ragged, drawn(rng), "a prompt alone, then one with decodes, while users come and go"))
        row = [(0, many), (draw(900, 2_000), 0), (draw(900, 2_000), 0), (0, few), (0, few), (7, few)]
        cases.append((row, drawn(rng), "two prompts alone, one behind the other"))
        ends = [(draw(9_000, 20_000), 0), (0, many), (draw(400, 700), many), (0, few), (draw(9_000, 20_000), 0)]
        cases.append((ends, drawn(rng), "a long prompt alone before the first token, another behind the last"))
        mixed = [(1, few), (draw(90, 200), few), (draw(3_000, 9_000), few), (0, many)]
        cases.append((mixed, drawn(rng), "prompts with decodes, growing"))
    return [Call((_rows(work, cost),), f"worst_gap(steps), {what},") for work, cost, what in cases]


def _wanted(steps: np.ndarray) -> int:
    return int(np.diff(steps[steps[:, 3] > 0, 1]).max())


def _trouble(call: Call, got: np.ndarray) -> str | None:
    (steps,) = call.args
    what = wrong_number(call, got, _wanted(steps))
    if what is None:
        return None
    rows = ", ".join("(" + ", ".join(map(str, row)) + ")" for row in steps.tolist())
    return f"{what} steps = [{rows}]."


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} timelines")


SOLUTION = "course_lib.lessons.nb00_freeze:worst_gap"

MISTAKES = """
    every_stop
      in steps if decodes  ->  in steps
    A step without decodes brings the users no token, and its stop is counted here.

    between_starts
      stop for _, stop, _, decodes  ->  start for start, _, _, decodes
    This is the time between the starts of two steps. A token is there when its step stops, so measure from stop to
    stop.

    longest_step
      | return max(stop - start for start, stop, _, _ in steps)
    This is the longest step. A gap is the time between two tokens: after a prompt alone, the step that brings the next
    token counts too.

    step_after_added
      | return max(after[1] - step[0] for step, after in zip(steps, steps[1:]))
    This is always the time of a step and the next one together. That is right after a prompt that ran alone. When the
    decodes are in the prompt's own step, their tokens come at its end, and the users wait for no further step.

    between_the_steps
      tokens[1:]  ->  [start for start, _, _, decodes in steps if decodes][1:]
    This ends where the next step with decodes starts. Its tokens are there when it stops.

    own_steps_only
      | return max(stop - start for start, stop, _, decodes in steps if decodes)
    This is the longest step that has decodes. While a prompt runs alone the user waits as well.

    before_the_first
      zip(tokens, tokens[1:])  ->  zip([0, *tokens], tokens)
    The time before the first token is counted. A gap lies between two tokens.

    after_the_last
      tokens[1:]  ->  [*tokens[1:], steps[-1][1]]
    The time behind the last token is counted. A gap lies between two tokens.

    first_gap
      tokens[1:]  ->  tokens[1:2]
    This is the first gap. A timeline can have more, and the longest is wanted.

    mean_gap
      | tokens = [stop for _, stop, _, decodes in steps if decodes]
      | return (tokens[-1] - tokens[0]) // (len(tokens) - 1)
    This is the mean of the gaps. A single long freeze hardly moves a mean: take the largest.

    whole_span
      max(after - before for before, after in zip(tokens, tokens[1:]))  ->  tokens[-1] - tokens[0]
    This is the time from the first token to the last, over all gaps together. Take the longest of them.

    divided_by_users
      [stop for _, stop, _, decodes in steps if decodes]  ->  [row for row in steps if row[3]]
      after - before for  ->  (after[1] - before[1]) // after[3] for
    The wait is divided by the number of users. They all wait at the same time, and each waits all of it.
"""

EXERCISE = Exercise(
    name="worst_gap",
    groups=(Group("values", value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 00, section 3.",
    imports=IMPORTS,
    solution=SOLUTION,
)
