"""Exercise 0.2, one_shot_timeline: the steps of a whole prompt among streaming users."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_index, first_trouble, same_integers, wrong_shape
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, drawn, shown, with_cost
from autograder.kept import known_mistakes

COLUMNS = ("start_us", "stop_us", "prompt_tokens", "decodes")


def _wanted(prompt: int, users: int, cost: list[int]) -> np.ndarray:
    fixed, per_token, per_decode = cost
    decodes, alone = fixed + users * per_decode, fixed + prompt * per_token
    edges = [0, decodes, decodes + alone, 2 * decodes + alone]
    return np.array([[edges[0], edges[1], 0, users], [edges[1], edges[2], prompt, 0], [edges[2], edges[3], 0, users]])


def value_cases(seed: int) -> list[Call]:
    """The reference setting and other costs; one user, one token; prompts shorter than a decode step takes."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    calls = [(8_192, 24, REFERENCE), (draw(2_000, 9_000), 1, drawn(rng)), (1, draw(2, 40), drawn(rng))]
    calls += [(7, draw(2, 40), drawn(rng)), *((draw(100, 30_000), draw(2, 60), drawn(rng)) for _ in range(4))]
    return [Call(args, shown("one_shot_timeline", *args)) for args in calls]


def _trouble(call: Call, got: np.ndarray) -> str | None:
    wanted = _wanted(*call.args)
    shape = wrong_shape(call, got, wanted.shape, f"three rows ({', '.join(COLUMNS)})")
    if shape:
        return shape
    if got.dtype.kind not in "iu":
        return f"{call.label} has numbers of type {got.dtype}; wanted whole numbers."
    if np.array_equal(got, wanted):
        return None
    row, column = first_index(got != wanted)
    return (
        f"{call.label}: row {row} has {COLUMNS[column]} = {got[row, column]:,}, it should be {wanted[row, column]:,}."
    )


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} timelines")


SOLUTION = "course_lib.lessons.nb00_freeze:one_shot_timeline"

MISTAKES = """
    mixed
      (prompt, 0)  ->  (prompt, users)
    Your prompt shares its step with the decodes: that is the mixed baseline. In the exclusive one the prompt runs
    alone, and the decodes wait.

    no_step_before
      [(0, users), (prompt  ->  [(prompt
    The step before the prompt is missing. The users' last tokens before the freeze come at its end, and there the gap
    begins.

    no_step_after
      (prompt, 0), (0, users)  ->  (prompt, 0)
    The step after the prompt is missing. The users' next tokens come at the end of that step, and not at the end of the
    prompt's.

    starts_at_0
      start = stop  ->
    Every step starts at 0. A step starts when the one before it stops.

    side_by_side
      start = stop  ->  start = rows[0][1]
    The last step starts when the first one stops, as if prompt and decodes ran side by side. Steps run one after
    another.

    durations
      (start, stop,  ->  (start, stop - start,
    The second number of your rows is how long the step takes. It should be when the step stops.

    fixed_once
      m.step_us(prompt_tokens, decodes)  ->  m.step_us(prompt_tokens, decodes) - (m.fixed_us if rows else 0)
    Only the first step has a fixed part. Each of the three steps pays it.

    columns_swapped
      stop, prompt_tokens, decodes  ->  stop, decodes, prompt_tokens
    The last two numbers of your rows are swapped: prompt tokens first, then decodes.

    a_step_for_each_user
      [(0, users), (prompt  ->  [(0, 1)] * users + [(prompt
      0), (0, users)]  ->  0)] + [(0, 1)] * users + [(0, 1)] * (users == 1)
    Each user gets a separate step. One step decodes a token for every user at once.

    first_token_is_a_decode
      (prompt, 0)  ->  (prompt, 1)
    The prompt's step has a decode in it. A prompt's first answer token comes out of its last prompt token: no decode is
    needed for it.

    newcomer_decodes
      (prompt, 0), (0, users)  ->  (prompt, 0), (0, users + 1)
    The last step has one decode too many: the new request is counted. It wants one token, and got it at the end of its
    prompt's step.
"""

EXERCISE = Exercise(
    name="one_shot_timeline",
    groups=(Group("values", value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 00, section 3.",
    imports=IMPORTS,
    solution=SOLUTION,
    driver=with_cost,
)
