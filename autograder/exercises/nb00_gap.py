"""Exercise 0.3, worst_gap: how long does a streaming user wait for the next token?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.drivers import nb00
from autograder.exercise import Call
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, Cost, cost, wrong_number
from autograder.kit import draws, exercise, values

SOLUTION = "course_lib.lessons.nb00_freeze:worst_gap"


def rows(work: list[tuple[int, int]], numbers: list[int], start: int = 0) -> list[tuple[int, int, int, int]]:
    """The timeline of steps with these (prompt tokens, decodes)."""
    m, made = Cost(*numbers), []
    for tokens, decodes in work:
        stop = start + m.step_us(tokens, decodes)
        made.append((start, stop, tokens, decodes))
        start = stop
    return made


def timelines(seed: int) -> Iterator[tuple]:
    """Prompts alone and with decodes, several in a row; users who come and go; one user; long waits at both ends."""
    draw = draws(seed)
    for users in (24, 1):
        yield rows([(0, users), (8_192, 0), (0, users)], REFERENCE), "the exclusive baseline"
        yield rows([(0, users), (8_192, users), (0, users)], REFERENCE), "the mixed baseline"
        yield rows([(0, users), (0, users)], REFERENCE), "two steps of decodes"
    yield rows([(0, 24), (0, 24), (0, 24), (0, 24)], REFERENCE, 10**9), "gaps of one length"
    yield rows([(0, 9)] * 9 + [(700, 0), (900, 9), (0, 9)], REFERENCE), "a prompt alone after nine steps of decodes"
    yield rows([(9_000, 7), (8_000, 1)], REFERENCE), "two prompts with decodes"
    for _ in range(2):
        few, many = draw(2, 9), draw(20, 60)
        ragged = [(0, few), (draw(900, 4_000), 0), (0, many), (draw(100, 500), many), (0, few)]
        yield rows(ragged, cost(draw)), "a prompt alone, then one with decodes, while users come and go"
        row = [(0, many), (draw(900, 2_000), 0), (draw(900, 2_000), 0), (0, few), (0, few), (7, few)]
        yield rows(row, cost(draw), draw(10**6, 10**9)), "two prompts alone, one behind the other"
        row = [(0, 1), (0, many), *((draw(400, 900), 0) for _ in range(4)), (0, 1), (draw(400, 900), 0), (0, many)]
        yield rows(row, cost(draw)), "four prompts alone, and a user alone before and after them"
        long = [(draw(9_000, 20_000), 0), (draw(9_000, 20_000), 0)]
        ends = [*long, (0, many), (draw(400, 700), many), (0, few), *long]
        yield rows(ends, cost(draw), draw(1, 10**6)), "long prompts alone before the first token and after the last"
        mixed = [(1, few), (draw(90, 200), few), (draw(3_000, 9_000), few), (0, many)]
        yield rows(mixed, cost(draw)), "prompts with decodes, growing"
        mixed = [(draw(9_000, 20_000), 1), (draw(3_000, 9_000), few), (draw(90, 200), many), (0, 1)]
        yield rows(mixed, cost(draw)), "prompts with decodes, shrinking"


def label(steps: list, what: str) -> str:
    return f"worst_gap(steps), {what},"


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    what = wrong_number(call, got, wanted)
    return what and f"{what} steps = {call.args[0]}."


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

    first_stop_counted
      tokens = [stop for  ->  tokens = [steps[0][1]] + [stop for
    The stop of the first step is counted as a token, whether or not that step has decodes. Where it has none, the users
    had no token yet.

    decodes_alone
      for _, stop, _, decodes in steps if decodes  ->  for _, stop, tokens, _ in steps if not tokens
    A step with prompt tokens brings the users no token here. It does when it has decodes too: look at the decodes, and
    not at the prompt.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, timelines, label, trouble, count="timelines", driver=nb00.worst_gap)],
    mistakes=MISTAKES,
    reread="Reread notebook 00, section 3.",
    imports=IMPORTS,
    driver=nb00.worst_gap,
)
