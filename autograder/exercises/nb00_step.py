"""Exercise 0.1, step_us: what does one step cost?"""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict, WrongAnswer
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, drawn, shown, with_cost, wrong_number


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


def _wrong(name: str, body: str, message: str) -> WrongAnswer:
    return WrongAnswer(name, f"def step_us(prefill, decodes, m):\n    {body}\n", message)


WRONG = (
    _wrong(
        "no_fixed",
        "return m.prefill_us_per_token * prefill + m.decode_us * decodes",
        "The fixed part is left out. A step costs m.fixed_us however little is in it.",
    ),
    _wrong(
        "fixed_per_token",
        "return (m.fixed_us + m.prefill_us_per_token) * prefill + m.decode_us * decodes",
        "The fixed part is counted once for each prompt token. It is paid once for each step: that is what makes a "
        "large step worth while.",
    ),
    _wrong(
        "fixed_per_request",
        "return m.fixed_us * (decodes + (prefill > 0)) + m.prefill_us_per_token * prefill + m.decode_us * decodes",
        "The fixed part is counted once for each request. All requests of a step share it.",
    ),
    _wrong(
        "two_steps",
        "return m.fixed_us * ((prefill > 0) + (decodes > 0)) + m.prefill_us_per_token * prefill "
        "+ m.decode_us * decodes",
        "The fixed part is counted twice when a step has prompt tokens and decodes, as if they were two steps. They "
        "run in one.",
    ),
    _wrong(
        "decode_times_prefill",
        "return m.fixed_us + m.prefill_us_per_token * prefill + m.decode_us * decodes * prefill",
        "The decodes are multiplied by the prompt tokens. A decode adds its m.decode_us once, whatever else is "
        "in the step.",
    ),
    _wrong(
        "decode_as_prefill",
        "return m.fixed_us + m.prefill_us_per_token * (prefill + decodes)",
        "A decode is counted as a prompt token. It is one token too, but it costs m.decode_us: it reads its "
        "whole request's cache.",
    ),
    _wrong(
        "free_decodes",
        "return m.fixed_us + m.prefill_us_per_token * prefill",
        "The decodes are free here. They share the fixed part with the prompt, and each still adds m.decode_us.",
    ),
    _wrong(
        "decodes_wait",
        "return m.fixed_us + (m.prefill_us_per_token * prefill or m.decode_us * decodes)",
        "As soon as there are prompt tokens, the decodes cost nothing. Both kinds are in the step, so both must "
        "be paid for.",
    ),
    _wrong(
        "side_by_side",
        "return m.fixed_us + max(m.prefill_us_per_token * prefill, m.decode_us * decodes)",
        "Only the larger of the two parts is counted, as if prompt and decodes ran side by side. The parts add up.",
    ),
    _wrong(
        "swapped",
        "return m.fixed_us + m.prefill_us_per_token * decodes + m.decode_us * prefill",
        "The two counts are swapped: the prompt tokens are paid as decodes, and the decodes as prompt tokens.",
    ),
    _wrong(
        "reference_only",
        "return 2_600 + 18 * prefill + 108 * decodes",
        "The numbers of the reference preset are written into the formula. They must come from m: another "
        "cost has others.",
    ),
    _wrong(
        "milliseconds",
        "return (m.fixed_us + m.prefill_us_per_token * prefill + m.decode_us * decodes) // 1_000",
        "These are milliseconds. Everything is kept in whole microseconds, so that nothing is rounded.",
    ),
    _wrong(
        "floats",
        "return m.fixed_us + m.prefill_us_per_token * prefill * 1.0 + m.decode_us * decodes",
        "The number is right and its type is not: this is a float. Whole numbers added and multiplied stay whole.",
    ),
)

RIGHT = (
    "def step_us(prefill, decodes, m):\n"
    "    return sum([m.fixed_us] + [m.decode_us] * decodes + [m.prefill_us_per_token] * prefill)\n",
    "def step_us(prefill, decodes, m):\n"
    "    work = np.array([1, prefill, decodes])\n"
    "    return work @ [m.fixed_us, m.prefill_us_per_token, m.decode_us]\n",
)

EXERCISE = Exercise(
    name="step_us",
    number="0.1",
    title="What a step costs",
    notebook="00_freeze",
    mode="equal",
    groups=(Group("values", 2, value_cases, judge_values),),
    same=same_integers,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 00, section 2.",
    imports=IMPORTS,
    library=("course_lib.cost.linear:step_us",),
    driver=with_cost,
)
