"""Exercise 0.2, one_shot_timeline: the steps of a whole prompt among streaming users."""

from __future__ import annotations

from collections.abc import Iterator

from autograder.drivers import nb00
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, by_numbers, cost, written, wrong_rows
from autograder.kit import draws, exercise, values

SOLUTION = "course_lib.lessons.nb00_freeze:one_shot_timeline"
COLUMNS = ("start_us", "stop_us", "prompt_tokens", "decodes")


def prompts(seed: int) -> Iterator[tuple]:
    """One user, one token, many; prompts shorter than a decode step takes; costs in which one of the parts is free."""
    draw = draws(seed)
    for m in (REFERENCE, cost(draw)):
        yield from ((8_192, 24, m), (8_192, 25, m), (8_193, 24, m), (32_768, 256, m), (1, 1, m), (40, 40, m))
    yield from ((draw(2_000, 9_000), 1, cost(draw)), (1, draw(2, 40), cost(draw)), (7, draw(2, 40), cost(draw)))
    for part in range(3):
        free = cost(draw)
        free[part] = 0
        yield draw(100, 9_000), draw(2, 60), free
    for _ in range(3):
        yield draw(100, 30_000), draw(2, 60), cost(draw)


trouble = wrong_rows("three rows", COLUMNS, lambda call, row: f"row {row} has")


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

    moved_on_too_early
      rows.append((start,  ->  rows.append((stop,
    Your steps start when they stop: `start` already was the next step's start when the row was made. Append the row
    first.

    start_not_added
      stop = start + m  ->  stop = m
    A step stops when it has taken its time here, as if it had started at 0. Add its start.

    stops_added_up
      start = stop  ->  start += stop
    The next step starts too late: `stop` is a time already, and you add it to the start before. The next start is this
    stop.

    floats
      return rows  ->  return [tuple(map(float, row)) for row in rows]
    The numbers are right and their type is not: these are floats. Whole microseconds added up stay whole.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        values("values", SOLUTION, prompts, written("one_shot_timeline"), trouble, count="timelines", driver=by_numbers)
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 00, section 3.",
    imports=IMPORTS,
    driver=nb00.with_cost,
)
