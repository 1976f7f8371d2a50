"""Exercise 9.2, fit_linear: from measured steps to the cost of a step, a prompt token and a decode."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_floats
from autograder.exercise import Call, Group, Outcome, Verdict
from autograder.kit import exercise

SOLUTION = "course_lib.lessons.nb09_device:fit_linear"
CLOSE = 1e-6
NAMES = ("fixed us of a step", "us per prompt token", "us per decode")


def _steps(rng: np.random.Generator, more: int) -> np.ndarray:
    """[steps, 2]: steps with prompt tokens alone, with decodes alone and with both, in no order."""
    tokens = np.concatenate([[0, 0, 0, 0], rng.integers(16, 600, 4 + more)])
    decodes = np.concatenate([rng.integers(1, 40, 4), [0] * 4, rng.integers(1, 40, more)])
    return rng.permutation(np.column_stack([tokens, decodes]))


def _call(counts: np.ndarray, us: np.ndarray, noise: str) -> Call:
    return Call((np.column_stack([counts, us]).astype(float),), f"fit_linear of {len(us)} steps {noise}")


def _cost(rng: np.random.Generator) -> np.ndarray:
    return np.array([rng.integers(800, 6_000), rng.integers(8, 40), rng.integers(60, 300)]) + rng.random(3).round(2)


def exact_cases(seed: int) -> list[Call]:
    """Few steps and many; in another order; some steps twice."""
    rng = np.random.default_rng(seed)
    four, twice = np.array([[0, 10], [0, 20], [100, 0], [200, 0]]), _steps(rng, 2)
    tables = [four, four[::-1], _steps(rng, 6), _steps(rng, 0), _steps(rng, 150), np.concatenate([twice, twice[:3]])]
    calls = []
    for counts, fixed in zip(tables, (1, 1, 1, 1, 1, 1e-3), strict=True):  # a small fixed part asks for float64
        cost = _cost(rng) * [fixed, 1, 1]
        calls.append(_call(counts, cost[0] + counts @ cost[1:], "without noise"))
    return calls


def noisy_cases(seed: int) -> list[Call]:
    """Noise of some percent; and times whose best fit has a fixed part below 0."""
    rng = np.random.default_rng(seed)
    calls = []
    for more in (0, 6, 6, 90):
        counts, cost = _steps(rng, more), _cost(rng)
        us = (cost[0] + counts @ cost[1:]) * (1 + 0.05 * rng.standard_normal(len(counts)))
        calls.append(_call(counts, us, "with noise"))
    counts = _steps(rng, 6)
    us = counts @ _cost(rng)[1:] + (counts**2) @ [0.2, 30]
    return [*calls, _call(counts, us, "with a curve")]


def _trouble(call: Call, got: np.ndarray) -> str | None:
    if got.shape != (3,) or got.dtype.kind not in "iuf":
        what = f"has shape {list(got.shape)}" if got.dtype.kind in "iuf" else f"has dtype {got.dtype}"
        return f"{call.label} {what}, wanted [3] numbers: {', '.join(NAMES)}."
    (samples,) = call.args
    design = np.column_stack([np.ones(len(samples)), samples[:, :2]])
    right = np.linalg.solve(design.T @ design, design.T @ samples[:, 2])
    for name, mine, wanted in zip(NAMES, got.tolist(), right.tolist()):
        if not abs(mine - wanted) <= CLOSE * abs(wanted):
            return f"{call.label} gives {mine:,.4f} for the {name}, wanted {wanted:,.4f}."
    return None


def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} fits")


def same(a: Outcome, b: Outcome) -> bool:
    """As same_floats, number by number: the fixed part is so large that a wrong slope beside it looks close."""
    if not same_floats(a, b):
        return False
    x, y = getattr(a, "value", None), getattr(b, "value", None)
    return not isinstance(x, np.ndarray) or bool(np.allclose(x, y, rtol=1e-7, atol=1e-9, equal_nan=True))


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

    nothing_below_zero
      return np.linalg.lstsq  ->  return np.maximum(0, np.linalg.lstsq
      rcond=None)[0]  ->  rcond=None)[0])
    A cost below 0 is raised to 0, and the other two are no longer the best for it. Return what least squares gives:
    where times bend, the best line may well begin below 0.

    residuals
      rcond=None)[0]  ->  rcond=None)[1]
    lstsq returns a tuple: the solution first, then the residuals. This is the second.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[Group("exact", exact_cases, judge), Group("noisy", noisy_cases, judge)],
    mistakes=MISTAKES,
    same=same,
    reread="Reread notebook 09, section 2.",
)
