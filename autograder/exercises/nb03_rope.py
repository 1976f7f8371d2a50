"""Exercise 3.2, rope: rotate by absolute positions."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_far_index, first_trouble, keeps_bits, same_floats, wrong_shape
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.kept import known_mistakes

AXES = "the shape of x, [tokens, heads, head_dim]"


def oracle(x: np.ndarray, positions: np.ndarray, theta: float = 10000.0) -> np.ndarray:
    """Rotation of the pairs as complex numbers, in float64."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * theta ** (-np.arange(half) / half)
    turned = (x[..., :half].astype(np.float64) + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _call(x: np.ndarray, positions: np.ndarray, *theta: float, **facts) -> Call:
    where = (
        f"positions {positions[0]} to {positions[-1]}"
        if np.array_equal(positions, np.arange(positions[0], positions[0] + len(positions)))
        else "positions " + ", ".join(map(str, positions[:6])) + (" ..." if len(positions) > 6 else "")
    )
    return Call((x, positions, *theta), f"rope(x {list(x.shape)}, {where}{''.join(f', {t:g}' for t in theta)})", facts)


def _x(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def logic_cases(seed: int) -> list[Call]:
    """A first and a later chunk, one token, rows of several requests at once, another theta, the smallest head."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    start, tokens = draw(20, 100), draw(5, 12)
    decodes = np.array([draw(40, 90), draw(100, 900), draw(3, 30), 4096, draw(3, 30)])
    return [
        _call(_x(rng, tokens, 4, 16), np.arange(tokens)),
        _call(_x(rng, tokens, 2, 8), np.arange(start, start + tokens)),
        _call(_x(rng, 1, 3, 32), np.array([draw(5, 60)])),
        _call(_x(rng, len(decodes), 2, 16), decodes),
        _call(_x(rng, tokens, 3, 16), np.arange(start, start + tokens), 500_000.0),
        _call(_x(rng, 7, 1, 2), np.arange(draw(1, 9), 60)[:7]),
    ]


def _logic(call: Call, got: np.ndarray) -> str | None:
    wanted = oracle(*call.args)
    shape = wrong_shape(call, got, wanted.shape, AXES)
    if shape or got.dtype.kind not in "biuf":
        return shape or f"{call.label} has dtype {got.dtype}, wanted float32."
    at = first_far_index(got, wanted)
    if at is None:
        return None
    token, head, i = at
    half = wanted.shape[-1] // 2
    clean = "Token 0 is right. " if token > 0 else ""
    return (
        f"{call.label}: token {token} (position {call.args[1][token]}), head {head}, dimension {i} is {got[at]:.4g}, "
        f"it should be {wanted[at]:.4g}. {clean}This is the {'first' if i < half else 'second'} number of pair "
        f"{i % half}."
    )


def judge_logic(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _logic) or Verdict(True, count=f"{len(calls)} cases close to float64")


def bits_cases(seed: int) -> list[Call]:
    """60 keys in one pass, then the same in chunks of 1, ragged ones, and behind a hit. The last 5 are decodes."""
    rng = np.random.default_rng(seed)
    tokens, hit = 60, int(rng.integers(17, 40))
    x, positions = _x(rng, tokens, 2, 32), np.arange(tokens)
    positions[-5:] = rng.integers(100, 900, 5)
    parts = ((0, tokens), (0, 1), (31, 32), (1, 3), (3, 10), (10, 41), (hit, hit + 5), (hit, tokens))
    return [_call(x[a:b], positions[a:b], rows=(a, b)) for a, b in parts]


def judge_bits(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    """Passed if the values are right and each chunk's rows equal those of the answer's own one pass in every bit."""
    return keeps_bits(calls, outcomes, _logic, lambda row: f"token {row}", _ROUNDING)


_ROUNDING = (
    "A token's result must be made from that token alone. Something here is rounded differently with other rows "
    "beside it: angles counted from the first row, a matrix product, a scale taken over the whole array."
)


SOLUTION = "course_lib.positions:rope"

MISTAKES = """
    relative
      rope_cos_sin(positions,  ->  rope_cos_sin(np.arange(len(x)),
    The given positions are not used: the rows of this chunk are counted from 0.

    consecutive
      rope_cos_sin(positions,  ->  rope_cos_sin(positions[0] + np.arange(len(x)),
    Only the first position is used and the others are counted on from it. The rows of a batch can belong to several
    requests, each at its own position.

    chunk_relative
      rope_cos_sin(positions,  ->  rope_cos_sin(positions - positions[0],
    The first position is subtracted from all of them: a chunk-relative rotation, in which every chunk begins at 0.

    one_based
      rope_cos_sin(positions,  ->  rope_cos_sin(positions + 1,
    Every token is turned by one position too many. Position 0 is not turned at all.

    interleaved
      x[..., :half], x[..., half:]  ->  x[..., 0::2], x[..., 1::2]
      np.concatenate(  ->  np.stack(
      axis=-1)  ->  axis=-1).reshape(x.shape)
    The pairs are neighbours, (0, 1), (2, 3), ... Another family of models does that. Here pair i is dimension i and
    dimension i + head_dim // 2 (rotate-half).

    other_way
      cos - second  ->  cos + second
      cos + first  ->  cos - first
    The pairs turn the other way: the sign of sin is swapped.

    not_crossed
      + first * sin  ->  + second * sin
    The second half adds second * sin where first * sin belongs: a rotation mixes the two.

    halves_swapped
      [first * cos - second * sin  ->  [second * cos + first * sin
      second * cos + first * sin]  ->  first * cos - second * sin]
    The two halves of the result have changed places.

    ignores_theta
      x.shape[-1], theta  ->  x.shape[-1]
    The argument theta is not used: this is right for 10000 only.

    half_the_exponent
      x.shape[-1], theta  ->  x.shape[-1], theta**0.5
    The frequencies fall half as fast as they should: pair i turns by theta ** (-2 * i / head_dim), and here the 2 is
    missing.

    one_speed
      x.shape[-1], theta  ->  x.shape[-1], 1
    All pairs turn at the same speed. Pair 0 is the fastest, and each next one is slower.

    added
      [first * cos - second * sin, second * cos + first * sin]  ->  [first + cos, second + sin]
    Cosines and sines are added to the vector, as older sinusoidal embeddings do. RoPE rotates: it multiplies.
"""

EXERCISE = Exercise(
    name="rope",
    groups=(Group("logic", logic_cases, judge_logic), Group("bits", bits_cases, judge_bits)),
    same=same_floats,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 03, section 3.",
    imports="import numpy as np\nfrom course_lib.positions import rope_cos_sin",
    solution=SOLUTION,
    library=("course_lib.positions:rotate",),
)
