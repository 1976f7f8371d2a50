"""Exercise 9.2, fit_linear: from measured steps to the cost of a step, a prompt token and a decode."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_floats
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.kept import known_mistakes

CLOSE = 1e-6
NAMES = ("fixed us of a step", "us per prompt token", "us per decode")


def _call(rng: np.random.Generator, error: float) -> Call:
    """Steps with prompt tokens alone, with decodes alone and with both, in no order."""
    tokens = np.concatenate([[0, 0, 0, 0], rng.integers(16, 600, 10)])
    decodes = np.concatenate([rng.integers(1, 40, 4), [0] * 4, rng.integers(1, 40, 6)])
    cost = np.array([rng.integers(800, 6_000), rng.integers(8, 40), rng.integers(60, 300)]) + rng.random(3).round(2)
    us = cost[0] + cost[1] * tokens + cost[2] * decodes
    us = us * (1 + error * rng.standard_normal(len(us)))
    order = rng.permutation(len(us))
    samples = np.column_stack([tokens, decodes, us])[order]
    return Call((samples,), f"fit_linear of {len(us)} steps", {"cost": cost if not error else None})


def exact_cases(seed: int) -> list[Call]:
    rng = np.random.default_rng(seed)
    return [_call(rng, 0.0) for _ in range(4)]


def noisy_cases(seed: int) -> list[Call]:
    rng = np.random.default_rng(seed)
    return [_call(rng, 0.05) for _ in range(4)]


def _wanted(call: Call) -> np.ndarray:
    if call.facts["cost"] is not None:
        return call.facts["cost"]
    (samples,) = call.args
    design = np.c_[np.ones(len(samples)), samples[:, :2]]
    return np.linalg.solve(design.T @ design, design.T @ samples[:, 2])


def _trouble(call: Call, got: np.ndarray) -> str | None:
    if got.shape != (3,):
        return f"{call.label} has shape {list(got.shape)}, wanted [3]: {', '.join(NAMES)}."
    wanted = _wanted(call)
    for name, mine, right in zip(NAMES, got.tolist(), wanted.tolist()):
        if not abs(mine - right) <= CLOSE * abs(right):
            exact = "without noise" if call.facts["cost"] is not None else "with noise"
            return f"{call.label} {exact} gives {mine:,.4f} for the {name}, wanted {right:,.4f}."
    return None


def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} fits")


SOLUTION = "course_lib.lessons.nb09_device:fit_linear"

MISTAKES = r"""
    no_fixed_part
      np.ones(len(samples)), samples[:, 0]  ->  samples[:, 0]
      return np  ->  return np.r_[0.0, np
      rcond=None)[0]  ->  rcond=None)[0]]
    There is no fixed part: an empty step would take no time. Give the table a column of ones for it.

    fixed_part_last
      np.ones(len(samples)), samples[:, 0], samples[:, 1]  ->  samples[:, 0], samples[:, 1], np.ones(len(samples))
    The three numbers are in another order: the fixed part comes first, then a prompt token, then a decode.

    swapped
      samples[:, 0], samples[:, 1]  ->  samples[:, 1], samples[:, 0]
    The cost of a prompt token and the cost of a decode are swapped. Column 0 of the samples counts prompt tokens.

    a_decode_is_a_token
      samples[:, 0], samples[:, 1]  ->  samples[:, 0] + samples[:, 1]
      rcond=None)[0]  ->  rcond=None)[0][[0, 1, 1]]
    A decode is counted as one more prompt token. It is computed like one, but it also reads the keys and values of
    everything before it: it needs its own column.

    parts_alone
      | tokens, decodes, us = samples.T
      | alone, only = decodes == 0, tokens == 0
      | per_token, fixed = np.polyfit(tokens[alone], us[alone], 1)
      | per_decode, _ = np.polyfit(decodes[only], us[only], 1)
      | return np.array([fixed, per_token, per_decode])
    Steps with prompt tokens and decodes are left out. Without noise that is right; with noise every measured step
    should count, in one fit.

    three_steps
      columns = np  ->  samples = samples[[*samples[:, :2].argmax(axis=0), samples[:, 2].argmin()]]\ncolumns = np
    Three steps give three numbers, and all the others are ignored. Without noise that is right; with noise these three
    carry their own errors into the answer.

    relative_errors
      samples[:, 1]])  ->  samples[:, 1]]) / samples[:, 2:]
      columns, samples[:, 2]  ->  columns, np.ones(len(samples))
    This makes the relative errors small, each step's error divided by its time. That is a good choice, and fit_cost
    makes it; here the squared errors in us are asked for.

    whole_numbers
      rcond=None)[0]  ->  rcond=None)[0].round()
    The result is rounded to whole microseconds. With 18 us per prompt token half a microsecond is 3 %: do not round.

    ridge
      np.linalg.lstsq(columns  ->  np.linalg.solve(columns.T @ columns + np.eye(3)
      samples[:, 2], rcond=None)[0]  ->  columns.T @ samples[:, 2])
    Something is added to the diagonal, which pulls the costs towards 0 (ridge regression). Exact samples must give the
    exact cost back.

    mean_per_token
      | tokens, decodes, us = samples.T
      | fixed = us.min()
      | per_token = ((us - fixed)[tokens > 0] / tokens[tokens > 0]).mean()
      | per_decode = ((us - fixed)[decodes > 0] / decodes[decodes > 0]).mean()
      | return np.array([fixed, per_token, per_decode])
    Each cost is a mean of times divided by counts, so a mixed step's time counts as its tokens' and as its decodes'
    too. Fit all three together.

    residuals
      rcond=None)[0]  ->  rcond=None)[1]
    lstsq returns a tuple: the solution first, then the residuals. This is the second.
"""


def same(a: Outcome, b: Outcome) -> bool:
    """As same_floats, number by number: the fixed part is so large that a wrong slope beside it looks close."""
    if not same_floats(a, b):
        return False
    x, y = getattr(a, "value", None), getattr(b, "value", None)
    return not isinstance(x, np.ndarray) or bool(np.allclose(x, y, rtol=1e-7, atol=1e-9, equal_nan=True))


EXERCISE = Exercise(
    name="fit_linear",
    groups=(Group("exact", exact_cases, judge), Group("noisy", noisy_cases, judge)),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 09, section 2.",
    solution=SOLUTION,
)
