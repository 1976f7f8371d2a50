"""Exact arithmetic: no sum ever rounds, so its bits do not depend on order, machine, threads or library.

Every factor of a sum is first rounded ("snapped") to a power-of-two grid that is coarse enough for
all partial sums to be integers below 2**53, which float64 holds exactly. Rounding happens once per
element, never inside a sum. Works on NumPy arrays and torch tensors alike, on any device.

`matmul` snaps each row to a grid that depends on that row alone, so rows may be cut, batched and reordered
freely. Relative to |x| |w| the result is within about 1e-6.
"""

import math
from typing import Any, NamedTuple

from course_lib.arithmetic.arrays import cast, namespace

X_BITS, W_BITS, SUM_BITS = 20, 21, 53
MAX_INNER = 2 ** (SUM_BITS - X_BITS - W_BITS)  # 4,096 terms in a matmul
MAX_SQUARES = 2 ** (SUM_BITS - 2 * X_BITS)  # 8,192 terms in a mean of squares
WEIGHT_BITS, VALUE_BITS, MAX_VALUE = 20, 14, 63
MAX_KEYS = 2**SUM_BITS // (2**WEIGHT_BITS * MAX_VALUE * 2**VALUE_BITS)  # 8,322 keys in a weighted mean

# exp(r) on |r| <= ln(2) / 2, Taylor, highest power first: the first term left out is below 3e-13.
_EXP = tuple(1.0 / math.factorial(i) for i in range(10, -1, -1))
_LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)  # fdlibm's split: n * _LN2[0] is exact
_LOG2_E = 1.44269504088896338700e00


class Snapped(NamedTuple):
    """Values on a power-of-two grid: integers * scale. Both float64; `integers` hold whole numbers."""

    integers: Any
    scale: Any


def snap(x, bits: int, axis: int = -1) -> Snapped:
    """Round x so that along `axis` the values are integers of at most 2**bits times one power of two."""
    xp = namespace(x)
    x = cast(x, xp.float64)
    largest = xp.amax(xp.abs(x), axis=axis, keepdims=True)
    exponent = (largest.view(xp.int64) >> 52) - 1023  # floor(log2(largest)); a zero row gives -1023
    exponent = exponent + 1 - bits
    exponent = xp.where(exponent < -1000, xp.zeros_like(exponent), exponent)
    scale = _power_of_two(exponent)
    return Snapped(xp.round(x * _power_of_two(-exponent)), scale)


def snap_columns(w) -> Snapped:
    """A weight matrix [inner, columns], snapped once for use in many `matmul` calls."""
    return w if isinstance(w, Snapped) else snap(w, W_BITS, axis=-2)


def matmul(x, w, dtype=None):
    """x @ w without a rounded sum.

    x         [..., rows, inner]      rows are snapped to 20 bits each
    w         [..., inner, columns]   columns are snapped to 21 bits each; or the Snapped of it
    dtype     of the result; x's if not given
    returns   [..., rows, columns]

    Raises ValueError for more than 4,096 inner terms: 20 + 21 + 12 bits fill float64's 53.
    """
    xp = namespace(x)
    if x.shape[-1] > MAX_INNER:
        raise ValueError(
            f"matmul over {x.shape[-1]} terms, but exact sums hold up to {MAX_INNER}. Use arith='tile' for this model."
        )
    rows, columns = snap(x, X_BITS), snap_columns(w)
    product = xp.matmul(rows.integers, columns.integers) * rows.scale * columns.scale
    return _round_to(product, dtype or x.dtype)


def exp(x):
    """e ** x from multiply, add and round-to-integer alone; float64, relative error below 1e-12.

    x may be any float array, -inf included (gives 0); values below -700 count as -inf, above 700 as 700.
    """
    xp = namespace(x)
    x = cast(x, xp.float64)
    r = xp.clip(x, -700, 700)
    n = xp.round(r * _LOG2_E)
    r -= n * _LN2[0]
    r -= n * _LN2[1]
    total = r * _EXP[0]
    for coefficient in _EXP[1:-1]:  # in place: the array stays in the processor's cache
        total += coefficient
        total *= r
    total += _EXP[-1]
    n[xp.isnan(n)] = 0  # a NaN stays one through `total`
    total *= _power_of_two(cast(n, xp.int64))
    total[x < -700] = 0
    return total


def weighted_mean(weights, values, dtype=None):
    """sum(weights * values) / sum(weights) over the keys, both sums exact.

    weights   [..., rows, keys]      in [0, 1], the largest of a row near 1: exp(score - row maximum)
    values    [..., keys, columns]   |value| <= 63
    dtype     of the result; values' if not given
    returns   [..., rows, columns]

    Weights are snapped to 2**-20 and values to 2**-14, fixed grids, so a mean does not change when
    keys of weight 0 are added. Raises ValueError beyond 8,322 keys, weights outside 0 .. 1, or values above 63.
    """
    xp = namespace(values)
    if values.shape[-2] > MAX_KEYS:
        raise ValueError(f"{values.shape[-2]} keys, but exact attention holds up to {MAX_KEYS}. Use arith='tile'.")
    if bool((weights < 0).any()):
        raise ValueError(f"weights reach down to {float(weights.min()):.3g}, wanted 0 .. 1: they are exponentials.")
    if bool((weights > 1).any()):
        raise ValueError(
            f"weights reach {float(weights.max()):.3g}, wanted at most 1: subtract each row's maximum before exp."
        )
    if bool((xp.abs(values) > MAX_VALUE).any()):
        raise ValueError(
            f"values reach {float(xp.abs(values).max()):.3g}, but exact sums hold up to {MAX_VALUE}. Use arith='tile'."
        )
    weights = xp.round(cast(weights, xp.float64) * 2.0**WEIGHT_BITS)
    integers = xp.round(cast(values, xp.float64) * 2.0**VALUE_BITS)
    total = xp.sum(weights, axis=-1, keepdims=True)
    if bool((total == 0).any()):
        raise ValueError("a row of weights is zero throughout: its query sees no key. A token always sees itself.")
    return _round_to(xp.matmul(weights, integers) / total * 2.0**-VALUE_BITS, dtype or values.dtype)


def rms_norm(x, gain, eps: float):
    """x / sqrt(mean(x ** 2) + eps) * gain over the last axis, in x's dtype.

    Raises ValueError for more than 8,192 terms: two times 20 bits, and 13, fill float64's 53.
    """
    xp = namespace(x)
    if x.shape[-1] > MAX_SQUARES:
        raise ValueError(
            f"RMSNorm over {x.shape[-1]} terms, but exact sums hold up to {MAX_SQUARES}. Use arith='tile'."
        )
    squares = snap(x, X_BITS)
    total = xp.sum(squares.integers * squares.integers, axis=-1, keepdims=True)  # integers below 2**53
    mean = total * squares.scale * squares.scale * (1.0 / x.shape[-1])
    return _round_to(cast(x, xp.float64) * rsqrt(mean + eps) * cast(gain, xp.float64), x.dtype)


def rsqrt(x):
    """1 / sqrt(x) for positive float64, by Newton's iteration from a bit-level first guess.

    Library square roots are not all correctly rounded: torch on the CPU takes MKL's, which may be one
    bit off NumPy's. The guess (magic constant: Lomont 2003, float64) is within 3.5%; each step squares the error.
    """
    xp = namespace(x)
    y = (0x5FE6EB50C7B537A9 - (x.view(xp.int64) >> 1)).view(xp.float64)
    half = 0.5 * x
    for _ in range(5):
        y = y * (1.5 - half * y * y)
    return y


def silu(x):
    """x * sigmoid(x), float64, from our own exp of a non-positive number (so nothing overflows)."""
    xp = namespace(x)
    x = cast(x, xp.float64)
    e = exp(-xp.abs(x))
    return x * xp.where(x < 0, e, xp.ones_like(e)) / (1 + e)


def silu_mul(gate, up):
    """silu(gate) * up, rounded once to gate's dtype: the activation of a SwiGLU layer."""
    return _round_to(silu(gate) * cast(up, namespace(up).float64), gate.dtype)


def _power_of_two(exponent):
    """2.0 ** exponent for int64 exponents in [-1022, 1023], by writing float64's exponent bits."""
    return ((exponent + 1023) << 52).view(namespace(exponent).float64)


def _round_to(x, dtype):
    """float64 to `dtype` by way of float32, so that 16-bit types are rounded the same way everywhere."""
    xp = namespace(x)
    return x if dtype == xp.float64 else cast(cast(x, xp.float32), dtype)
