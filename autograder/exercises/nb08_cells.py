"""Exercise 8.3, two_by_two: what chunking and caching bring, alone and together."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_index, first_trouble, same_integers, wrong_shape
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, drawn
from autograder.kept import known_mistakes
from course_lib.cost.linear import LinearCost

ROWS = ("neither", "chunking only", "caching only", "both")
COLUMNS = ("the TTFT", "the longest gap")


def drive(answer, prompt: int, hit: int, users: int, chunk: int, cost: list[int]):
    """answer(..., m), with the numbers made into a LinearCost."""
    return answer(prompt, hit, users, chunk, LinearCost(*cost))


def _wanted(prompt: int, hit: int, users: int, chunk: int, cost: list[int]) -> np.ndarray:
    fixed, token, decode = cost
    rows = []
    for cached, cut in ((0, False), (0, True), (hit, False), (hit, True)):
        tail = prompt - cached
        if cut:
            steps = -(-tail // chunk)
            longest = fixed + token * min(chunk, tail) + decode * users
            rows.append((steps * (fixed + decode * users) + token * tail, longest))
        else:
            rows.append((fixed + token * tail, 2 * fixed + token * tail + decode * users))
    return np.array(rows)


def value_cases(seed: int) -> list[Call]:
    """The walk-through with 3 and 24 users, other costs; no hit; a tail that fits into one chunk, and exact fits."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    calls = [(7_000, 5_000, 3, 1_024, REFERENCE), (7_000, 5_000, 24, 1_024, REFERENCE)]
    for _ in range(2):
        chunk = draw(100, 900)
        tail = draw(2, 6) * chunk
        calls += [
            (tail + draw(1_000, 5_000), draw(500, 900), draw(2, 40), chunk, drawn(rng)),
            (tail + 3 * chunk, 3 * chunk, draw(2, 40), chunk, drawn(rng)),  # full chunks, with the hit and without
            (4 * chunk + draw(1, 99), 4 * chunk, draw(2, 40), chunk, drawn(rng)),  # the tail is less than a chunk
            (tail + draw(1, 99), 0, 1, chunk, drawn(rng)),
        ]
    return [Call(args, _label(*args)) for args in calls]


def _label(prompt: int, hit: int, users: int, chunk: int, cost: list[int]) -> str:
    return f"two_by_two({prompt}, {hit}, {users}, {chunk}, LinearCost({', '.join(map(str, cost))}))"


def _trouble(call: Call, got: np.ndarray) -> str | None:
    wanted = _wanted(*call.args)
    shape = wrong_shape(call, got, wanted.shape, "four pairs (TTFT, longest gap)")
    if shape:
        return shape
    if got.dtype.kind not in "iu":
        return f"{call.label} has numbers of type {got.dtype}; wanted whole microseconds."
    if np.array_equal(got, wanted):
        return None
    row, column = first_index(got != wanted)
    return (
        f"{call.label}: {COLUMNS[column]} of `{ROWS[row]}` is {got[row, column]:,} us, it should be "
        f"{wanted[row, column]:,} us."
    )


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} settings")


SOLUTION = "course_lib.lessons.nb08_both:two_by_two"

MISTAKES = r"""
    mixed
      m.step_us(tail, 0)  ->  m.step_us(tail, users)
      alone + m.step_us(0, users)  ->  alone
    Without chunking your prompt shares its step with the decodes: that is the mixed baseline. Here the prompt runs
    alone in its step and the decodes wait, the exclusive baseline.

    gap_ends_with_the_prompt
      alone + m.step_us(0, users)  ->  alone
    Without chunking your gap ends with the prompt's step. The users' next token comes at the end of the step behind it.

    decodes_do_not_ride
      tail - done), users)  ->  tail - done), 0)
    The decodes are missing in the chunked steps. Each of these steps decodes a token for every user, and that takes
    time.

    fixed_once
      sum(steps)  ->  sum(steps) - (len(steps) - 1) * m.fixed_us
    The fixed part is paid once for all chunks. Each chunk runs in a separate step, and each step pays it.

    whole_chunks_only
      min(chunk, tail - done)  ->  chunk
    Every step computes a full chunk. The last one computes only what is left of the tail.

    rest_forgotten
      sum(steps)  ->  sum(steps[: max(tail // chunk, 1)])
    The last chunk is missing where it is not a full one. It ends the prompt, and the first token comes from it.

    order_swapped
      return cells  ->  return [cells[i] for i in (0, 2, 1, 3)]
    Your second and third pair are swapped: chunking only comes before caching only.

    hit_is_the_tail
      (prompt, prompt - hit)  ->  (prompt, hit)
    You compute the tokens of the hit. They are in the cache: what is computed is prompt - hit.

    chunk_grid
      steps = [  ->  tail = prompt - (prompt - tail) // chunk * chunk\nsteps = [
    Of the hit you skip only whole chunks. A chunk may begin anywhere: what is cached is skipped to the last token of
    the hit.

    last_gap
      max(steps)  ->  steps[-1]
    This is the gap that the last chunk makes. The longest comes from the fullest step.

    gap_is_the_mean
      max(steps)  ->  sum(steps) // len(steps)
    This is the mean of the gaps. Wanted is the longest.

    decode_step_added
      max(steps)  ->  max(steps) + m.step_us(0, users)
    You add a decode step to the chunked gaps as well. There the users get a token in each of the prompt's own steps, so
    no further step is waited for.

    pair_swapped
      return cells  ->  return [(gap, ttft) for ttft, gap in cells]
    Your pairs are the wrong way round: first the TTFT, then the longest gap.
"""

EXERCISE = Exercise(
    name="two_by_two",
    groups=(Group("values", value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 08, section 4.",
    imports=IMPORTS,
    solution=SOLUTION,
    driver=drive,
)
