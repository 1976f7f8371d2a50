"""Exercise 3.2, rope: rotate by absolute positions."""

from __future__ import annotations

import numpy as np

from autograder.compare import CLOSE, first_far_index, first_trouble, keeps_bits, same_floats, wrong_shape
from autograder.drivers import nb03
from autograder.exercise import Call, Group, Outcome, Returned, Verdict, whole_or_chunk
from autograder.kit import draws, exercise

SOLUTION = "course_lib.positions:rope"
AXES = "the shape of x, [tokens, heads, head_dim]"


def oracle(x: np.ndarray, positions: np.ndarray, theta: float = 10000.0) -> np.ndarray:
    """Rotation of the pairs as complex numbers, in float64."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * theta ** (-np.arange(half) / half)
    turned = (x[..., :half].astype(np.float64) + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _call(x: np.ndarray, positions: np.ndarray, *theta: float, **facts) -> Call:
    first, last = positions[[0, -1]]
    run = np.array_equal(positions, np.arange(first, first + len(positions)))
    listed = ", ".join(map(str, positions[:6])) + " ..." * (len(positions) > 6)
    where = f"positions {first} to {last}" if run else f"positions {listed}"
    return Call((x, positions, *theta), f"rope(x {list(x.shape)}, {where}{''.join(f', {t:g}' for t in theta)})", facts)


def _x(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def logic_cases(seed: int) -> list[Call]:
    """A first and a later chunk, the latter twice, one token, several requests, other thetas, the least head."""
    draw = draws(seed)
    start, tokens = draw(20, 100), draw(5, 12)
    decodes = np.array([draw(40, 90), draw(100, 900), 0, 4096, draw(3, 30), 4096])
    return [
        _call(_x(seed, tokens, 4, 16), np.arange(tokens)),
        _call(_x(seed + 1, tokens, 2, 8), np.arange(start, start + tokens)),
        _call(_x(seed + 2, 1, 3, 32), np.array([draw(5, 60)]), 100.5),
        _call(_x(seed + 3, len(decodes), 2, 16), decodes),
        _call(_x(seed + 4, tokens, 3, 16), np.arange(start, start + tokens), 500_000.0),
        _call(_x(seed + 5, 7, 1, 2), np.arange(draw(1, 9), 60)[:7]),
        _call(_x(seed + 1, tokens, 2, 8), np.arange(start + 7, start + 7 + tokens)),  # the same x elsewhere
    ]


def _trouble(call: Call, got: np.ndarray) -> str | None:
    wanted = oracle(*call.args)
    shape = wrong_shape(call, got, wanted.shape, AXES)
    dtype = f"{call.label} has dtype {got.dtype}, wanted float32, as x has."
    if shape or got.dtype.kind not in "biuf":
        return shape or dtype
    at = first_far_index(got, wanted, CLOSE if call.args[1].max() > 1_000 else 1e-4)  # float32 angles are right, too
    if at is None:
        return None if got.dtype == np.float32 else dtype
    token, head, i = at
    half = wanted.shape[-1] // 2
    clean = "Token 0 is right. " if token > 0 else ""
    return (
        f"{call.label}: token {token} (position {call.args[1][token]}), head {head}, dimension {i} is {got[at]:.4g}, "
        f"it should be {wanted[at]:.4g}. {clean}This is the {'first' if i < half else 'second'} number of pair "
        f"{i % half}."
    )


def judge_logic(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} cases close to float64")


def bits_cases(seed: int) -> list[Call]:
    """60 keys in one pass, then the same in chunks of 1, ragged ones, and behind a hit. The last 5 are decodes.

    theta is not the usual one: otherwise an answer that ignores it would have right values here, and other last bits
    could be taken for that mistake.
    """
    draw = draws(seed)
    tokens, hit = 60, draw(17, 40)
    x, positions = _x(seed, tokens, 2, 32), np.arange(tokens)
    positions[-5:] = [draw(100, 900) for _ in range(5)]
    # the short ones first, so that no result of a longer one can be remembered for them
    parts = ((0, tokens), (0, 1), (31, 32), (1, 3), (hit, hit + 5), (3, 10), (10, 41), (hit, tokens))
    return [_call(x[a:b], positions[a:b], 500_000.0, rows=(a, b), whole=b - a == tokens) for a, b in parts]


def judge_bits(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    """Passed if the values are right and each chunk's rows equal those of the answer's own one pass in every bit."""
    return keeps_bits(calls, outcomes, _trouble, lambda row: f"token {row}", _ROUNDING)


_ROUNDING = (
    "A token's result must be made from that token alone. Something here is rounded differently with other rows "
    "beside it: angles counted from the first row, a matrix product, a scale taken over the whole array."
)


def same(a: Outcome, b: Outcome) -> bool:
    """Close arrays of one dtype, or the same error."""
    kinds = {getattr(o.value, "dtype", None) for o in (a, b) if isinstance(o, Returned)}
    return len(kinds) <= 1 and same_floats(a, b)


MISTAKES = r"""
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

    cos_for_sin
      cos, sin = rope_cos_sin(  ->  sin, cos = rope_cos_sin(
    Cosine and sine have changed places. rope_cos_sin returns the cosines first. A token at position 0 must come out as
    it went in: its cosine is 1 and its sine 0.

    no_head_axis
      cos, sin = cos[:, None, :], sin[:, None, :]  ->
    `cos` and `sin` are [tokens, pairs] and x is [tokens, heads, head_dim]. They need an axis for the heads:
    cos[:, None, :].

    second_half_kept
      second * cos + first * sin  ->  second
    Only the first number of each pair is turned. A turn changes both.

    reads_what_it_wrote
      | cos, sin = rope_cos_sin(positions, x.shape[-1], theta)
      | cos, sin = cos[:, None, :], sin[:, None, :]
      | out, half = x.copy(), x.shape[-1] // 2
      | out[..., :half] = out[..., :half] * cos - out[..., half:] * sin
      | out[..., half:] = out[..., half:] * cos + out[..., :half] * sin
      | return out
    The second half is made from a first half that is already turned. Both formulas need the numbers as they were: take
    the two halves from x.

    in_place
      | cos, sin = rope_cos_sin(positions, x.shape[-1], theta)
      | cos, sin = cos[:, None, :], sin[:, None, :]
      | half = x.shape[-1] // 2
      | first, second = x[..., :half].copy(), x[..., half:].copy()
      | x[..., :half] = first * cos - second * sin
      | x[..., half:] = second * cos + first * sin
      | return x
    x itself is turned. A caller that turns it again, or compares, has lost the vectors as they were. Return a new
    array.

    float64
      first, second = x[..., :half], x[..., half:]  ->  first, second = x[..., :half].astype(np.float64), x[..., half:]
    The numbers are right and they are float64: twice the bytes in the cache, and another dtype than x has. Return
    float32.

    two_turns
      | half = x.shape[-1] // 2
      | for where in (positions[:1], positions - positions[0]):
      |     cos, sin = (part[:, None, :] for part in rope_cos_sin(where, x.shape[-1], theta))
      |     first, second = x[..., :half], x[..., half:]
      |     x = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
      | return x
    Each token is turned twice: to the chunk's first position, and on from there. That is the same angle, rounded twice,
    and how it is rounded depends on where the chunk begins. Turn once, by the token's own position.
    alike: 0.9
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[Group("logic", logic_cases, judge_logic), Group("bits", bits_cases, judge_bits, apart=whole_or_chunk)],
    mistakes=MISTAKES,
    reread="Reread notebook 03, section 3.",
    imports="import numpy as np\nfrom course_lib.positions import rope_cos_sin",
    library=("course_lib.positions:rotate",),
    same=same,
    driver=nb03.rope,
)
