"""Exercise 0.3, worst_gap: how long does a streaming user wait for the next token?"""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict, WrongAnswer
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, drawn, wrong_number
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


def _wrong(name: str, body: str, message: str) -> WrongAnswer:
    tokens = "    starts = [start for start, _, _, decodes in steps if decodes]\n"
    tokens += "    stops = [stop for _, stop, _, decodes in steps if decodes]\n"
    return WrongAnswer(name, f"def worst_gap(steps):\n{tokens}    {body}\n", message)


WRONG = (
    _wrong(
        "every_stop",
        "every = [stop for _, stop, _, _ in steps]\n"
        "    return max((b - a for a, b in zip(every, every[1:])), default=0)",
        "A step without decodes brings the users no token, and its stop is counted here.",
    ),
    _wrong(
        "between_starts",
        "return max(b - a for a, b in zip(starts, starts[1:]))",
        "This is the time between the starts of two steps. A token is there when its step stops, so measure from "
        "stop to stop.",
    ),
    _wrong(
        "longest_step",
        "return max(stop - start for start, stop, _, _ in steps)",
        "This is the longest step. A gap is the time between two tokens: after a prompt alone, the step that brings "
        "the next token counts too.",
    ),
    _wrong(
        "step_after_added",
        "return max(after[1] - step[0] for step, after in zip(steps, steps[1:]))",
        "This is always the time of a step and the next one together. That is right after a prompt that ran "
        "alone. When the decodes are in the prompt's own step, their tokens come at its end, and the users wait "
        "for no further step.",
    ),
    _wrong(
        "between_the_steps",
        "return max(b - a for a, b in zip(stops, starts[1:]))",
        "This ends where the next step with decodes starts. Its tokens are there when it stops.",
    ),
    _wrong(
        "own_steps_only",
        "return max(b - a for a, b in zip(starts, stops))",
        "This is the longest step that has decodes. While a prompt runs alone the user waits as well.",
    ),
    _wrong(
        "before_the_first",
        "return max(b - a for a, b in zip([0, *stops], stops))",
        "The time before the first token is counted. A gap lies between two tokens.",
    ),
    _wrong(
        "after_the_last",
        "return max(b - a for a, b in zip(stops, [*stops[1:], steps[-1][1]]))",
        "The time behind the last token is counted. A gap lies between two tokens.",
    ),
    _wrong(
        "first_gap",
        "return stops[1] - stops[0]",
        "This is the first gap. A timeline can have more, and the longest is wanted.",
    ),
    _wrong(
        "mean_gap",
        "return (stops[-1] - stops[0]) // (len(stops) - 1)",
        "This is the mean of the gaps. A single long freeze hardly moves a mean: take the largest.",
    ),
    _wrong(
        "whole_span",
        "return stops[-1] - stops[0]",
        "This is the time from the first token to the last, over all gaps together. Take the longest of them.",
    ),
    _wrong(
        "divided_by_users",
        "return max((b[1] - a[1]) // b[3] for a, b in zip(*(lambda s: (s, s[1:]))([r for r in steps if r[3]])))",
        "The wait is divided by the number of users. They all wait at the same time, and each waits all of it.",
    ),
)

RIGHT = (
    """\
def worst_gap(steps):
    waited = worst = 0
    seen = False
    for start, stop, prompt_tokens, decodes in steps:
        waited += stop - start
        if decodes:
            worst = max(worst, waited) if seen else 0
            waited, seen = 0, True
    return worst
""",
    """\
def worst_gap(steps):
    table = np.array(steps)
    return np.diff(table[table[:, 3] > 0][:, 1]).max()
""",
)

EXERCISE = Exercise(
    name="worst_gap",
    number="0.3",
    title="The longest wait for a token",
    notebook="00_freeze",
    mode="equal",
    groups=(Group("values", 3, value_cases, judge_values),),
    same=same_integers,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 00, section 3.",
    imports=IMPORTS,
    library=("course_lib.lessons.nb00_freeze:worst_gap",),
)
