"""Exercise 0.1, step_us: what does one step cost?"""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, drawn, shown, with_cost, wrong_number
from autograder.kept import known_mistakes


def value_cases(seed: int) -> list[Call]:
    """The reference setting and other costs; prompts alone, decodes alone, both; ones and ragged sizes."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    calls = [(8_192, 0, REFERENCE), (8_192, 24, REFERENCE), (0, 24, REFERENCE), (1, 0, drawn(rng)), (0, 1, drawn(rng))]
    calls += [(draw(2, 4_000), 0, drawn(rng)), (0, draw(2, 60), drawn(rng)), (1, draw(2, 60), drawn(rng))]
    calls += [(draw(100, 9_000), draw(2, 60), drawn(rng)) for _ in range(4)]
    return [Call(args, shown("step_us", *args)) for args in calls]


def _trouble(call: Call, got: np.ndarray) -> str | None:
    prefill, decodes, (fixed, per_token, per_decode) = call.args
    return wrong_number(call, got, fixed + prefill * per_token + decodes * per_decode)


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} steps")


SOLUTION = "course_lib.cost.linear:step_us"

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
"""

EXERCISE = Exercise(
    name="step_us",
    groups=(Group("values", value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 00, section 2.",
    imports=IMPORTS,
    solution=SOLUTION,
    driver=with_cost,
)
