"""Exercise 0.2, one_shot_timeline: the steps of a whole prompt among streaming users."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_index, first_trouble, same_integers, wrong_shape
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict, WrongAnswer
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, drawn, shown, with_cost

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


def _wrong(name: str, message: str, *, steps="[(0, users), (prompt, 0), (0, users)]", took="m.step_us(tokens, decodes)",
           begin="start", row="(start, stop, tokens, decodes)") -> WrongAnswer:  # fmt: skip
    """A loop like the library's, with the given expressions where the mistakes are made."""
    source = f"""\
def one_shot_timeline(prompt, users, m):
    rows, stop = [], 0
    for tokens, decodes in {steps}:
        start = stop
        start = {begin}
        stop = start + {took}
        rows.append({row})
    return rows
"""
    return WrongAnswer(name, source, message)


WRONG = (
    _wrong(
        "mixed",
        "Your prompt shares its step with the decodes: that is the mixed baseline. In the exclusive one the prompt "
        "runs alone, and the decodes wait.",
        steps="[(0, users), (prompt, users), (0, users)]",
    ),
    _wrong(
        "no_step_before",
        "The step before the prompt is missing. The users' last tokens before the freeze come at its end, and there "
        "the gap begins.",
        steps="[(prompt, 0), (0, users)]",
    ),
    _wrong(
        "no_step_after",
        "The step after the prompt is missing. The users' next tokens come at the end of that step, and not at the end "
        "of the prompt's.",
        steps="[(0, users), (prompt, 0)]",
    ),
    _wrong(
        "starts_at_0",
        "Every step starts at 0. A step starts when the one before it stops.",
        begin="0",
    ),
    _wrong(
        "side_by_side",
        "The last step starts when the first one stops, as if prompt and decodes ran side by side. Steps run "
        "one after another.",
        begin="rows[0][1] if len(rows) == 2 else start",
    ),
    _wrong(
        "durations",
        "The second number of your rows is how long the step takes. It should be when the step stops.",
        row="(start, stop - start, tokens, decodes)",
    ),
    _wrong(
        "fixed_once",
        "Only the first step has a fixed part. Each of the three steps pays it.",
        took="m.step_us(tokens, decodes) - (m.fixed_us if rows else 0)",
    ),
    _wrong(
        "columns_swapped",
        "The last two numbers of your rows are swapped: prompt tokens first, then decodes.",
        row="(start, stop, decodes, tokens)",
    ),
    _wrong(
        "a_step_for_each_user",
        "Each user gets a separate step. One step decodes a token for every user at once.",
        steps="[(0, 1)] * users + [(prompt, 0)] + [(0, 1)] * users + [(0, 1)] * (users == 1)",
    ),
    _wrong(
        "first_token_is_a_decode",
        "The prompt's step has a decode in it. A prompt's first answer token comes out of its last prompt token: no "
        "decode is needed for it.",
        steps="[(0, users), (prompt, 1), (0, users)]",
    ),
    _wrong(
        "newcomer_decodes",
        "The last step has one decode too many: the new request is counted. It wants one token, and got it at the "
        "end of its prompt's step.",
        steps="[(0, users), (prompt, 0), (0, users + 1)]",
    ),
)

RIGHT = (
    """\
def one_shot_timeline(prompt, users, m):
    decode = m.fixed_us + users * m.decode_us
    alone = m.fixed_us + prompt * m.prefill_us_per_token
    return [
        (0, decode, 0, users),
        (decode, decode + alone, prompt, 0),
        (decode + alone, decode + alone + decode, 0, users),
    ]
""",
    """\
def one_shot_timeline(prompt, users, m):
    tokens, decodes = np.array([0, prompt, 0]), np.array([users, 0, users])
    stops = np.cumsum([m.step_us(int(t), int(d)) for t, d in zip(tokens, decodes)])
    return np.stack([np.concatenate([[0], stops[:-1]]), stops, tokens, decodes], axis=1)
""",
)

EXERCISE = Exercise(
    name="one_shot_timeline",
    number="0.2",
    title="The timeline of a whole prompt",
    notebook="00_freeze",
    mode="equal",
    groups=(Group("values", 3, value_cases, judge_values),),
    same=same_integers,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 00, section 3.",
    imports=IMPORTS,
    library=("course_lib.lessons.nb00_freeze:one_shot_timeline",),
    driver=with_cost,
)
