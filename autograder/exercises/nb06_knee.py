"""Exercise 6.3, pick_chunk: the largest chunk that keeps a target."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.compare import counted
from autograder.drivers import nb00
from autograder.exercise import Call
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, Cost, by_numbers, cost, written
from autograder.kit import draws, exercise, shown, values

SOLUTION = "course_lib.lessons.nb06_tradeoff:pick_chunk"


def targets(seed: int) -> Iterator[tuple]:
    """Targets that a step meets exactly or misses by 1 us, that leave room for 0 or 1 tokens, that are too small."""
    draw = draws(seed)
    for m in (REFERENCE, cost(draw)):
        yield from ((50_000, 24, m), (50_000, 1, m), (50_000, 40, m), (600_000, 24, m), (1, 1, m))
    for chunk in (draw(100, 3_000), draw(100, 3_000), 1, 0):
        fixed, token, decode = m = cost(draw)
        users = draw(2, 60)
        for over in (-1, 0, 1, token // 2, token - 1):
            yield fixed + decode * users + token * chunk + over, users, m
    fixed, token, decode = m = cost(draw)
    yield fixed + 7 * decode - draw(1, 60), 7, m
    yield fixed + 7 * decode - draw(500, 900), 7, m
    yield draw(200, 1_000), draw(1, 40), m
    for m in ([fixed, 1, decode], [fixed, token, 0], [0, token, decode], cost(draw), cost(draw)):
        yield draw(60_000, 90_000), draw(1, 60), m


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    target, users, numbers = call.args
    if got.shape != () or got.dtype.kind not in "iu":
        return f"{call.label} is {shown(got, 60)}; wanted one whole number of tokens."
    if got == wanted:
        return None
    why = "no chunk is shorter than 0 tokens"
    if got >= 0:
        took = Cost(*numbers).step_us(int(got), users)
        relation = "is longer than" if took > target else "meets"
        chunk = counted(int(got), "token")
        why = f"a step with a chunk of {chunk} takes {took:,} us, which {relation} the target of {target:,} us"
    return f"{call.label} is {int(got):,}, it should be {wanted:,}: {why}."


MISTAKES = """
    no_decodes
      m.fixed_us - m.decode_us * users  ->  m.fixed_us
    The users' decodes are left out. They are in the step, and their time is gone before the prompt gets any.

    no_fixed
      target_us - m.fixed_us  ->  target_us
    The fixed part is left out. A step pays it before its first token.

    one_decode
      m.decode_us * users  ->  m.decode_us
    One decode is taken off. Every user has one in the step.

    decodes_as_prompt_tokens
      m.decode_us * users  ->  m.prefill_us_per_token * users
    The decodes are paid as prompt tokens. A decode costs m.decode_us.

    two_steps
      m.fixed_us - m.decode_us * users  ->  2 * (m.fixed_us + m.decode_us * users)
    A whole step of decodes is taken off as well, as if the gap spanned two steps. The decodes are in the prompt's own
    step, so a gap is one step.

    rounded_up
      left // m.prefill_us_per_token  ->  -(-left // m.prefill_us_per_token)
    It is rounded up. The step is then longer than the target: the largest chunk that still meets it is rounded down.

    rounded
      left // m.prefill_us_per_token  ->  (2 * left + m.prefill_us_per_token) // (2 * m.prefill_us_per_token)
    It is rounded to the nearest number of tokens. Half of the time that is one too many: round down.

    strictly_below
      left //  ->  (left - 1) //
    A step that takes exactly the target meets it: at most the target is wanted.

    below_zero
      max(left // m.prefill_us_per_token, 0)  ->  left // m.prefill_us_per_token
    When the decodes alone take longer than the target, no chunk meets it. Say 0; a chunk has no negative length.

    at_least_one
      m.prefill_us_per_token, 0)  ->  m.prefill_us_per_token, 1)
    When the decodes alone take longer than the target, this says 1. A chunk of 1 token does not meet it either: say 0.

    budget
      left // m.prefill_us_per_token  ->  left // m.prefill_us_per_token - users
    The users are taken off once more, as tokens. That would turn a budget into a chunk; the time of their decodes is
    gone already.

    with_the_decodes
      max(left // m.prefill_us_per_token, 0)  ->  max(left // m.prefill_us_per_token, 0) + users
    The users are added, as tokens. That is the budget of the step: the chunk is the prompt's part of it.

    whole_tiles
      left // m.prefill_us_per_token  ->  left // m.prefill_us_per_token // 128 * 128
    It is rounded down to a multiple of 128. That can be a good chunk on a GPU, but the largest one is asked for.

    per_user
      left // m.prefill_us_per_token  ->  left // m.prefill_us_per_token // max(users, 1)
    The time is divided among the users. They wait side by side, and each of them waits for the whole step.

    reference_only
      target_us - m.fixed_us - m.decode_us * users  ->  target_us - 2_600 - 108 * users
      left // m.prefill_us_per_token  ->  left // 18
    The numbers of the reference preset are written into the formula. They must come from m.

    floats
      left // m.prefill_us_per_token, 0  ->  left / m.prefill_us_per_token, 0.0
    A chunk is a whole number of tokens: divide with // instead of /.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, targets, written("pick_chunk"), trouble, count="targets", driver=by_numbers)],
    mistakes=MISTAKES,
    reread="Reread notebook 06, section 4.",
    imports=IMPORTS,
    library=("course_lib.cost.linear:knee_chunk", "course_lib.cost.one_prompt:knee"),
    driver=nb00.with_cost,
)
