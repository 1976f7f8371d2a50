"""Exercise 8.3, two_by_two: what chunking and caching bring, alone and together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.compare import first_index, first_trouble, wrong_shape
from autograder.drivers import nb08
from autograder.exercise import Call, Group, Outcome, Verdict
from autograder.kit import draws, exercise

SOLUTION = "course_lib.lessons.nb08_both:two_by_two"
REFERENCE = (2_600, 18, 108)  # in the arguments of a call a cost is these three numbers
ROWS = ("neither", "chunking only", "caching only", "both")
COLUMNS = ("the TTFT", "the longest gap")


def settings(seed: int) -> Iterator[tuple]:
    """The walk-through with 3 and 24 users; few tokens; no hit; a tail that fits into one chunk, and exact fits."""
    draw = draws(seed)
    cost = lambda: (draw(1_000, 9_000), draw(5, 60), draw(70, 900))  # noqa: E731  other than the reference
    yield from ((7_000, 5_000, 3, 1_024, REFERENCE), (7_000, 5_000, 24, 1_024, REFERENCE))
    for prompt, hit, chunk in (
        (1, 0, 1),
        (3, 1, 100),
        (5, 0, 1),
        (6, 5, 1),
        (8, 4, 4),
        (9, 4, 4),
        (9, 5, 4),
        (9, 0, 9),
    ):
        yield prompt, hit, 1, chunk, cost()
        yield prompt, hit, draw(2, 40), chunk, cost()
    for _ in range(2):
        chunk = draw(100, 900)
        tail = draw(2, 6) * chunk
        yield tail + draw(1_000, 5_000), draw(500, 900), draw(2, 40), chunk, cost()
        yield tail + 3 * chunk, 3 * chunk, draw(2, 40), chunk, cost()  # full chunks, with the hit and without
        yield tail + 3 * chunk + 1, 3 * chunk, draw(2, 40), chunk, cost()
        yield 4 * chunk + draw(1, 99), 4 * chunk, draw(2, 40), chunk, cost()  # the tail is less than a chunk
        yield tail + draw(1, 99), 0, 1, chunk, cost()
    yield 7_000, 5_000, 3, 1_024, REFERENCE  # the first once more: nothing may have been kept


def cases(seed: int) -> list[Call]:
    def label(prompt, hit, users, chunk, cost):
        return f"two_by_two({prompt}, {hit}, {users}, {chunk}, LinearCost{cost})"

    return [Call(args, label(*args)) for args in settings(seed)]


def wanted(prompt: int, hit: int, users: int, chunk: int, cost: tuple[int, int, int]) -> np.ndarray:
    """The four pairs from numbers alone: an answer may have changed the LinearCost that the solution would ask."""
    fixed, token, decode = cost
    rows = []
    for tail in (prompt, prompt - hit):
        rows.append((fixed + token * tail, 2 * fixed + token * tail + decode * users))
        chunks = -(-tail // chunk) * (fixed + decode * users) + token * tail
        rows.append((chunks, fixed + token * min(chunk, tail) + decode * users))
    return np.array(rows)


def trouble(call: Call, got: np.ndarray) -> str | None:
    right = wanted(*call.args)
    shape = wrong_shape(call, got, right.shape, "four pairs (TTFT, longest gap)")
    if shape:
        return shape
    if got.dtype.kind not in "iu":
        return f"{call.label} has numbers of type {got.dtype}; wanted whole microseconds."
    if np.array_equal(got, right):
        return None
    row, column = first_index(got != right)
    return (
        f"{call.label}: {COLUMNS[column]} of `{ROWS[row]}` is {got[row, column]:,} us, it should be "
        f"{right[row, column]:,} us."
    )


def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, trouble) or Verdict(True, count=f"{len(calls)} settings")


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

    step_without_tokens
      range(0, tail, chunk)  ->  range(0, tail + 1, chunk)
    Where the tail is a whole number of chunks you count a further step, which has nothing of the prompt to compute.

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

EXERCISE = exercise(
    SOLUTION,
    groups=[Group("values", cases, judge)],
    mistakes=MISTAKES,
    reread="Reread notebook 08, section 4.",
    imports="import numpy as np\nfrom course_lib.cost.linear import LinearCost",
    driver=nb08.two_by_two,
)
