"""Exercise 0.1, step_us: what does one step cost?"""

from __future__ import annotations

from collections.abc import Iterator

from autograder.drivers import nb00
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, by_numbers, cost, written, wrong_number
from autograder.kit import draws, exercise, values

SOLUTION = "course_lib.cost.linear:step_us"


def steps(seed: int) -> Iterator[tuple]:
    """Prompts alone, decodes alone, both; ones; the same step at two costs; costs in which one of the parts is free."""
    draw = draws(seed)
    for m in (REFERENCE, cost(draw)):
        yield from ((8_192, 0, m), (8_192, 24, m), (0, 24, m), (32_768, 256, m))
        yield from ((1, 0, m), (0, 1, m), (1, 1, m), (40, 40, m))
    yield from ((draw(2, 4_000), 0, cost(draw)), (0, draw(2, 60), cost(draw)), (1, draw(2, 60), cost(draw)))
    for part in range(3):
        free = cost(draw)
        free[part] = 0
        yield draw(100, 9_000), draw(2, 60), free
    for _ in range(4):
        yield draw(100, 9_000), draw(2, 60), cost(draw)


MISTAKES = """
    no_fixed
      return m.fixed_us +  ->  return
    The fixed part is left out. A step costs m.fixed_us however little is in it.

    fixed_per_token
      m.fixed_us + m.prefill_us_per_token * prefill  ->  (m.fixed_us + m.prefill_us_per_token) * prefill
    The fixed part is counted once for each prompt token. It is paid once for each step: that is what makes a large step
    worth while.

    fixed_per_request
      m.fixed_us  ->  m.fixed_us * (decodes + (prefill > 0))
    The fixed part is counted once for each request. All requests of a step share it.

    two_steps
      m.fixed_us  ->  m.fixed_us * ((prefill > 0) + (decodes > 0))
    The fixed part is counted twice when a step has prompt tokens and decodes, as if they were two steps. They run in
    one.

    decode_times_prefill
      m.decode_us * decodes  ->  m.decode_us * decodes * prefill
    The decodes are multiplied by the prompt tokens. A decode adds its m.decode_us once, whatever else is in the step.

    decode_as_prefill
      * prefill + m.decode_us * decodes  ->  * (prefill + decodes)
    A decode is counted as a prompt token. It is one token too, but it costs m.decode_us: it reads its whole request's
    cache.

    free_decodes
      prefill + m.decode_us * decodes  ->  prefill
    The decodes are free here. They share the fixed part with the prompt, and each still adds m.decode_us.

    decodes_wait
      m.prefill_us_per_token * prefill +  ->  (m.prefill_us_per_token * prefill or
      * decodes  ->  * decodes)
    As soon as there are prompt tokens, the decodes cost nothing. Both kinds are in the step, so both must be paid for.

    side_by_side
      m.prefill_us_per_token * prefill +  ->  max(m.prefill_us_per_token * prefill,
      * decodes  ->  * decodes)
    Only the larger of the two parts is counted, as if prompt and decodes ran side by side. The parts add up.

    swapped
      * prefill + m.decode_us * decodes  ->  * decodes + m.decode_us * prefill
    The two counts are swapped: the prompt tokens are paid as decodes, and the decodes as prompt tokens.

    reference_only
      | return 2_600 + 18 * prefill + 108 * decodes
    The numbers of the reference preset are written into the formula. They must come from m: another cost has others.

    milliseconds
      return m.fixed_us  ->  return (m.fixed_us
      * decodes  ->  * decodes) // 1_000
    These are milliseconds. Everything is kept in whole microseconds, so that nothing is rounded.

    floats
      * prefill  ->  * prefill * 1.0
    The number is right and its type is not: this is a float. Whole numbers added and multiplied stay whole.

    prompts_alone_are_fixed
      m.fixed_us  ->  m.fixed_us * (prefill > 0)
    The fixed part is left out of steps that have decodes alone. Every step pays it, whatever is in it.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, steps, written("step_us"), wrong_number, count="steps", driver=by_numbers)],
    mistakes=MISTAKES,
    reread="Reread notebook 00, section 2.",
    imports=IMPORTS,
    driver=nb00.with_numbers,
)
