"""Rotary position embedding (RoPE), rotate-half form, with the same bits on every machine.

Library `cos`, `sin` and `pow` differ in the last bit between processors and releases. Multiply, add
and round-to-integer do not (IEEE 754), so the angles are turned into cos and sin by those alone.
"""

import math
from decimal import Context, Decimal
from typing import NamedTuple

import numpy as np

from course_lib.arithmetic.arrays import cast, like, namespace

# pi/2 in three parts, as in fdlibm's __ieee754_rem_pio2: n times the first or second is exact for n < 2**20.
_HALF_PI = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
_TWO_OVER_PI = 6.36619772367581382433e-01
# Taylor coefficients, highest power first: on |r| <= pi/4 the first term left out is below 2**-53.
_SIN = (
    1 / 355687428096000,
    -1 / 1307674368000,
    1 / 6227020800,
    -1 / 39916800,
    1 / 362880,
    -1 / 5040,
    1 / 120,
    -1 / 6,
    1.0,
)
_COS = (1 / 20922789888000, -1 / 87178291200, 1 / 479001600, -1 / 3628800, 1 / 40320, -1 / 720, 1 / 24, -1 / 2, 1.0)
MAX_ANGLE = float(2**20)


class Llama3Scaling(NamedTuple):
    """How Llama 3.1 and 3.2 slow their frequencies down, so that longer prompts keep to angles seen in training.

    A pair that turns at least `high_freq_factor` times within the `original` first positions keeps its frequency; one
    that turns at most `low_freq_factor` times is slowed down by `factor`; between them the two are mixed in a line.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int  # original_max_position_embeddings

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        """Frequencies in radians for each position, float64 of any shape; a new array of the same shape."""
        turns = self.original / (2 * math.pi / frequencies)
        kept = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


def positions(cached: int, computed: int, take: int) -> np.ndarray:
    """Absolute positions of the next `take` tokens of a request.

    cached     tokens attached from the prefix cache
    computed   tokens computed since then, by earlier chunks
    returns    [take] int64, 0-based, counted from the start of the request; a new array on each call
    """
    return np.arange(cached + computed, cached + computed + take)


def rope(x: np.ndarray, positions: np.ndarray, theta: float = 10000.0) -> np.ndarray:
    """Rotate every head's vector by angles that grow with the token's position.

    x           [tokens, heads, head_dim]   float32, head_dim even
    positions   [tokens]                    int64, absolute
    theta       base of the frequencies
    returns     [tokens, heads, head_dim]   float32, a new array: x stays as it is

    Pair i is (x[..., i], x[..., i + head_dim // 2]). It turns by
    positions * theta ** (-2 * i / head_dim); rope_cos_sin gives the cosines and sines.
    """
    cos, sin = rope_cos_sin(positions, x.shape[-1], theta)  # [tokens, head_dim // 2] each
    cos, sin = cos[:, None, :], sin[:, None, :]  # the same for every head
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rotate(x, cos, sin):
    """`rope` for NumPy and torch, with the cosines and sines looked up beforehand.

    x          [tokens, heads, head_dim]    any float dtype; the arithmetic is float32
    cos, sin   [tokens, head_dim // 2]      float32
    returns    x's shape and dtype
    """
    xp = namespace(x)
    cos, sin = cos[:, None, :], sin[:, None, :]
    half = x.shape[-1] // 2
    first, second = cast(x[..., :half], xp.float32), cast(x[..., half:], xp.float32)
    turned = xp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return cast(turned, x.dtype)


def rope_cos_sin(
    positions: np.ndarray, head_dim: int, theta: float = 10000.0, scaling: Llama3Scaling | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of every pair's angle at every position.

    positions   [tokens]                  int64
    scaling     of the frequencies; None: as they are
    returns     cos, sin: [tokens, head_dim // 2]  float32, each within one rounding of the true value
    """
    positions = np.asarray(positions, dtype=np.float64)
    if positions.size and not np.abs(positions).max() < MAX_ANGLE:
        raise ValueError(
            f"positions reach {np.abs(positions).max():.0f}; the angle reduction holds below {MAX_ANGLE:.0f}."
        )
    frequencies = inverse_frequencies(head_dim, theta)
    frequencies = frequencies if scaling is None else scaling(frequencies)
    return _cos_sin(positions[:, None] * frequencies[None, :])


def inverse_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """theta ** (-2 i / head_dim) for i = 0 .. head_dim // 2 - 1: [head_dim // 2] float64, correctly rounded."""
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim={head_dim}; RoPE turns pairs, so it needs an even head_dim of at least 2.")
    if not 1 <= theta < math.inf:  # below 1, frequencies grow, and with them the angles beyond MAX_ANGLE
        raise ValueError(f"theta={theta}; the base of RoPE's frequencies must be a finite number of at least 1.")
    context = Context(prec=40)  # decimal is exact to its precision and the same on every machine
    powers = (
        context.power(Decimal(theta), context.divide(Decimal(-2 * i), Decimal(head_dim))) for i in range(head_dim // 2)
    )
    return np.array([float(p) for p in powers])


def _cos_sin(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of float64 angles, as float32, from multiply, add and round-to-integer alone."""
    n = np.rint(angle * _TWO_OVER_PI)  # nearest multiple of a quarter turn
    r = angle - n * _HALF_PI[0]
    r = r - n * _HALF_PI[1]
    r = r - n * _HALF_PI[2]
    square = r * r
    s = r * _polynomial(square, _SIN)
    c = _polynomial(square, _COS)
    quarter = n.astype(np.int64) & 3
    swap = (quarter & 1).astype(bool)
    cos, sin = np.where(swap, s, c), np.where(swap, c, s)
    cos = np.where((quarter == 1) | (quarter == 2), -cos, cos)
    sin = np.where(quarter >= 2, -sin, sin)
    return cos.astype(np.float32), sin.astype(np.float32)


def _polynomial(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


class RopeTable:
    """Cosines and sines by position, computed on the CPU once and kept beside the model's weights."""

    def __init__(self, head_dim: int, theta: float, beside, scaling: Llama3Scaling | None = None):
        self._frequencies, self._beside = (head_dim, theta, scaling), beside
        self._cos, self._sin = (like(beside, x) for x in rope_cos_sin(np.arange(256), *self._frequencies))

    def __call__(self, positions: np.ndarray):
        """cos, sin [tokens, head_dim // 2] float32 of the model's library and device; the table grows as needed."""
        if positions.size and positions.min() < 0:
            raise ValueError(f"position {positions.min()} is negative. Positions are absolute and start at 0.")
        longest = int(positions.max(initial=0)) + 1
        if longest > len(self._cos):
            if longest > MAX_ANGLE:
                raise ValueError(
                    f"position {longest - 1} is beyond {MAX_ANGLE - 1:.0f}, where the angle reduction ends."
                )
            longest = 1 << (longest - 1).bit_length()
            cos_sin = rope_cos_sin(np.arange(longest), *self._frequencies)
            self._cos, self._sin = (like(self._beside, x) for x in cos_sin)
        index = like(self._beside, positions)
        return self._cos[index], self._sin[index]
