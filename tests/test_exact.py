"""Exact arithmetic against Python's integers, which never round, and held to every cut, order and library."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import LIBRARIES, array_of, needs_torch

from course_lib.arithmetic import exact
from course_lib.arithmetic.arrays import to_numpy

SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from([1.0, 1e-30, 1e30, 1e-38, 3e-43, 1000.0])  # 3e-43: float32 subnormals
few = settings(max_examples=20)
every_library = pytest.mark.parametrize("library", LIBRARIES)


def normal(seed, *shape, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def spread(seed, *shape):
    """float32 of all magnitudes, zeros and subnormals among them."""
    rng = np.random.default_rng(seed)
    x = np.ldexp(rng.standard_normal(shape), rng.integers(-60, 60, shape)).astype(np.float32)
    x[rng.random(shape) < 0.1] = 0
    x[rng.random(shape) < 0.05] = 1e-44
    return x


def same_bits(a, b):
    a, b = to_numpy(a), to_numpy(b)
    assert a.dtype == b.dtype
    return np.array_equal(a + a.dtype.type(0), b + b.dtype.type(0), equal_nan=True)


def probabilities(seed, rows, keys):
    w = np.exp(np.random.default_rng(seed).standard_normal((rows, keys)) * 3)
    return w / w.max(axis=-1, keepdims=True)


def call(library, function, *arrays, **options):
    return to_numpy(function(*(array_of(library, a) for a in arrays), **options))


# --- oracles in whole numbers


def grid(values, bits):
    """The power of two on which the largest of `values` is a whole number of `bits` bits."""
    largest = max(abs(Fraction(float(v))) for v in values)
    if not largest:
        return Fraction(1)
    exponent = math.floor(math.log2(largest))
    while Fraction(2) ** exponent > largest:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= largest:
        exponent += 1
    return Fraction(2) ** (exponent + 1 - bits)


def snapped(values, bits):
    step = grid(values, bits)
    return [round(Fraction(float(v)) / step) * step for v in values]  # round() of a Fraction: half to even


def matmul_in_whole_numbers(x, w):
    rows, columns = [snapped(r, 20) for r in x], [snapped(c, 21) for c in w.T]
    out = [[float(sum(a * b for a, b in zip(r, c))) for c in columns] for r in rows]  # below 2**53 steps: no rounding
    return np.array(out).astype(np.float32)


def mean_in_whole_numbers(weights, values):
    w = [[round(Fraction(float(a)) * 2**20) for a in row] for row in weights]
    v = [[round(Fraction(float(a)) * 2**14) for a in row] for row in values]
    out = [[float(Fraction(sum(a * b for a, b in zip(row, c)), sum(row))) / 2**14 for c in zip(*v)] for row in w]
    return np.array(out)


# --- matmul


@every_library
@given(seed=SEEDS, rows=st.integers(1, 4), inner=st.integers(1, 12), columns=st.integers(1, 4))
@few
def test_a_product_is_the_sum_in_whole_numbers_rounded_once(library, seed, rows, inner, columns):
    x, w = spread(seed, rows, inner), spread(seed + 1, inner, columns)
    with np.errstate(over="ignore"):
        assert same_bits(call(library, exact.matmul, x, w), matmul_in_whole_numbers(x, w))


@every_library
@given(seed=SEEDS, rows=st.integers(2, 40), cut=st.integers(1, 39), scale=SCALES, data=st.data())
@few
def test_a_row_of_a_product_has_its_own_bits_in_any_cut_and_any_company(library, seed, rows, cut, scale, data):
    x, w = normal(seed, rows, 33), normal(seed + 1, 33, 17)
    x[:: data.draw(st.integers(1, 5))] *= np.float32(scale)  # neighbours of other magnitudes
    whole = call(library, exact.matmul, x, w)
    cut = min(cut, rows - 1)
    parts = [call(library, exact.matmul, part, w) for part in (x[:cut], x[cut:])]
    assert same_bits(np.concatenate(parts), whole)
    order = data.draw(st.permutations(range(rows)))
    assert same_bits(call(library, exact.matmul, x[order], w), whole[order])
    columns = data.draw(st.permutations(range(17)))
    assert same_bits(call(library, exact.matmul, x, w[:, columns]), whole[:, columns])


@every_library
@given(seed=SEEDS, inner=st.integers(2, 300), scale=SCALES)
@few
def test_the_order_of_summation_cannot_be_seen_in_a_product(library, seed, inner, scale):
    x, w = normal(seed, 5, inner, scale=scale), normal(seed + 1, inner, 7)
    order = np.random.default_rng(seed).permutation(inner)
    assert same_bits(call(library, exact.matmul, x[:, order], w[order]), call(library, exact.matmul, x, w))
    # zeros beside the terms change the sum's length and the kernel's blocking, and nothing else
    wide_x, wide_w = np.pad(x, ((0, 0), (3, 14))), np.pad(w, ((3, 14), (0, 0)))
    assert same_bits(call(library, exact.matmul, wide_x, wide_w), call(library, exact.matmul, x, w))


def test_an_ordinary_product_does_not_pass_that_test():
    x, w = normal(0, 64, 300), normal(1, 300, 64)
    order = np.random.default_rng(0).permutation(300)
    assert not same_bits(x[:, order] @ w[order], x @ w)


@needs_torch
@given(seed=SEEDS, scale=SCALES)
@few
def test_numpy_and_torch_have_one_product(seed, scale):
    x, w = normal(seed, 9, 70, scale=scale), spread(seed + 1, 70, 11)
    with np.errstate(over="ignore"):
        assert same_bits(call("numpy", exact.matmul, x, w), call("torch", exact.matmul, x, w))


@every_library
def test_a_product_over_4096_terms_is_exact_at_its_very_bound_and_4097_are_refused(library):
    x = np.full((2, 4096), 2 - 2.0**-22, np.float32)  # snaps to 2**20 steps, the largest integer there is
    w = np.full((4096, 2), 2 - 2.0**-22, np.float32)
    x[1, ::2] *= -1
    x[1, 0], w[5, 1] = 1.25, 0.7500001
    assert same_bits(call(library, exact.matmul, x, w), matmul_in_whole_numbers(x, w))
    with pytest.raises(ValueError, match="4097 terms, but exact sums hold up to 4096"):
        call(library, exact.matmul, np.ones((1, 4097), np.float32), np.ones((4097, 1), np.float32))


@every_library
@pytest.mark.parametrize("inner", [1, 64, 1024, 4096])
def test_a_product_is_within_about_a_millionth_of_the_lengths_of_its_factors(library, inner):
    x, w = normal(inner, 16, inner), normal(inner + 1, inner, 16)
    error = np.abs(call(library, exact.matmul, x, w) - x.astype(np.float64) @ w)
    lengths = np.linalg.norm(x.astype(np.float64), axis=1)[:, None] * np.linalg.norm(w.astype(np.float64), axis=0)
    assert (error <= 1.5e-6 * lengths).all()  # half a step each: 2**-20 of x, 2**-21 of w at the worst


@every_library
def test_nothing_times_anything_is_nothing_and_tiny_and_huge_factors_keep_their_precision(library):
    w = normal(1, 40, 3)
    assert not call(library, exact.matmul, np.zeros((2, 40), np.float32), w).any()
    assert not call(library, exact.matmul, normal(2, 2, 40), np.zeros((40, 3), np.float32)).any()
    for small, large in ((1e-30, 1e30), (1e-36, 1e36), (3e-43, 1e38)):
        x, v = normal(3, 2, 40, scale=small), normal(4, 40, 3, scale=large / 10)
        assert np.allclose(call(library, exact.matmul, x, v), x.astype(np.float64) @ v, rtol=0, atol=1e-6 * 40)


@every_library
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_a_number_spoils_itself_alone(library, wrong):
    x, w = normal(0, 6, 20), normal(1, 20, 5)
    right = call(library, exact.matmul, x, w)
    x[2, 3] = wrong
    with np.errstate(invalid="ignore"):
        spoilt = call(library, exact.matmul, x, w)
    assert not np.isfinite(spoilt[2]).any()
    assert same_bits(np.delete(spoilt, 2, axis=0), np.delete(right, 2, axis=0))


@every_library
def test_heads_are_multiplied_each_by_itself_and_a_snapped_weight_is_the_weight(library):
    x, w = normal(0, 3, 5, 16), normal(1, 3, 16, 4)
    together = call(library, exact.matmul, x, w)
    assert same_bits(together, np.stack([call(library, exact.matmul, a, b) for a, b in zip(x, w)]))
    prepared = exact.snap_columns(array_of(library, w[0]))
    assert exact.snap_columns(prepared) is prepared
    assert same_bits(exact.matmul(array_of(library, x[0]), prepared), together[0])


@needs_torch
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_floats_are_multiplied_exactly_and_rounded_by_way_of_float32(dtype):
    import torch

    dtype = getattr(torch, dtype)
    x, w = (torch.from_numpy(a).to(dtype) for a in (normal(0, 6, 50), normal(1, 50, 4)))
    short = exact.matmul(x, w)
    assert short.dtype == dtype
    wide = torch.from_numpy(call("numpy", exact.matmul, x.float().numpy(), w.float().numpy()))
    assert torch.equal(short, wide.to(dtype))
    assert torch.equal(exact.matmul(x, w, torch.float32), wide)


# --- exp


def test_exp_is_the_exponential_to_a_part_in_a_million_million():
    x = np.concatenate([np.linspace(-700, 0, 20_001), -np.logspace(-300, 2.8, 2_000), [0.0, -math.log(2) / 2]])
    true = np.exp(x)
    assert (np.abs(exact.exp(x) - true) <= 1e-12 * true).all()
    assert exact.exp(np.array([0.0]))[0] == 1.0


@every_library
def test_exp_counts_below_minus_700_as_nothing_above_700_as_700_and_keeps_nan(library):
    x = np.array([-np.inf, -1e300, -700.0001, np.nan, 700.0, 701.0, np.inf])
    y = call(library, exact.exp, x)
    assert y[:3].tolist() == [0, 0, 0]
    assert np.isnan(y[3])
    assert y[4] == y[5] == y[6] and abs(y[4] / math.exp(700) - 1) < 1e-12
    assert call(library, exact.exp, np.array([-700.0]))[0] > 0


@every_library
@given(seed=SEEDS)
@few
def test_exp_falls_with_its_argument_and_knows_no_neighbour(library, seed):
    x = np.sort(np.random.default_rng(seed).uniform(-40, 0, 67)).astype(np.float32)
    y = call(library, exact.exp, x)
    assert (np.diff(y) >= -1e-12 * y[1:]).all()
    assert same_bits(np.concatenate([call(library, exact.exp, x[i : i + 1]) for i in range(len(x))]), y)


# --- weighted mean


@every_library
@given(seed=SEEDS, rows=st.integers(1, 4), keys=st.integers(1, 12))
@few
def test_a_mean_is_the_quotient_of_two_sums_in_whole_numbers(library, seed, rows, keys):
    weights, values = probabilities(seed, rows, keys), normal(seed + 1, keys, 3, scale=9)
    true = mean_in_whole_numbers(weights, values)
    assert same_bits(call(library, exact.weighted_mean, weights, values), true.astype(np.float32))
    # before the rounding to float32: a quotient, not a product with a rounded reciprocal
    assert same_bits(call(library, exact.weighted_mean, weights, values.astype(np.float64)), true)


@every_library
@given(seed=SEEDS, keys=st.integers(1, 80), hidden=st.integers(1, 40), data=st.data())
@few
def test_keys_of_weight_zero_change_nothing_wherever_they_stand(library, seed, keys, hidden, data):
    weights, values = probabilities(seed, 6, keys), normal(seed + 1, keys, 5)
    mean = call(library, exact.weighted_mean, weights, values)
    order = np.array(data.draw(st.permutations(range(keys + hidden))))
    more_weights = np.concatenate([weights, np.zeros((6, hidden))], axis=1)[:, order]
    more_values = np.concatenate([values, np.full((hidden, 5), 63, np.float32)])[order]
    assert same_bits(call(library, exact.weighted_mean, more_weights, more_values), mean)


@every_library
@given(seed=SEEDS, rows=st.integers(2, 40), cut=st.integers(1, 39), data=st.data())
@few
def test_a_row_of_means_has_its_own_bits_in_any_cut_and_any_order(library, seed, rows, cut, data):
    weights, values = probabilities(seed, rows, 45), normal(seed + 1, 45, 7)
    whole = call(library, exact.weighted_mean, weights, values)
    cut = min(cut, rows - 1)
    parts = [call(library, exact.weighted_mean, part, values) for part in (weights[:cut], weights[cut:])]
    assert same_bits(np.concatenate(parts), whole)
    order = data.draw(st.permutations(range(rows)))
    assert same_bits(call(library, exact.weighted_mean, weights[order], values), whole[order])


@needs_torch
@given(seed=SEEDS)
@few
def test_numpy_and_torch_have_one_mean(seed):
    weights, values = probabilities(seed, 9, 130), normal(seed + 1, 130, 8, scale=12)
    assert same_bits(*(call(name, exact.weighted_mean, weights, values) for name in ("numpy", "torch")))


@every_library
def test_a_mean_over_8322_keys_is_exact_at_its_very_bound_and_8323_are_refused(library):
    weights, values = np.ones((2, 8322)), np.full((8322, 2), 63, np.float32)
    weights[1, ::3] = 0.3
    values[::2, 1] = -63
    values[7] = 62.99997
    true = mean_in_whole_numbers(weights, values).astype(np.float32)
    assert same_bits(call(library, exact.weighted_mean, weights, values), true)
    with pytest.raises(ValueError, match="8323 keys, but exact attention holds up to 8322"):
        call(library, exact.weighted_mean, np.ones((1, 8323)), np.zeros((8323, 1), np.float32))


WRONG_MEANS = {
    "a weight above 1": (np.array([[0.5, np.nextafter(1, 2)]]), [1, 1], "subtract each row's maximum before exp"),
    "a weight below 0": (np.array([[1, -0.25]]), [1, 1], "weights reach down to -0.25"),
    "a value above 63": (np.ones((1, 2)), [63, np.nextafter(np.float32(63), 64)], "exact sums hold up to 63"),
    "a value below -63": (np.ones((1, 2)), [-64, 0], "exact sums hold up to 63"),
    "an infinite value": (np.ones((1, 2)), [np.inf, 0], "exact sums hold up to 63"),
    "a row without weight": (np.array([[1, 1], [0, 0]]), [1, 1], "its query sees no key"),
    "a row of weights that vanish": (np.full((1, 2), 2.0**-22), [1, 1], "is zero throughout"),
}


@every_library
@pytest.mark.parametrize("wrong", WRONG_MEANS)
def test_what_the_bounds_of_a_mean_do_not_cover_is_refused(library, wrong):
    weights, values, message = WRONG_MEANS[wrong]
    with pytest.raises(ValueError, match=message):
        call(library, exact.weighted_mean, weights.astype(np.float64), np.array(values, np.float32)[:, None])


@every_library
@pytest.mark.parametrize("keys", [1, 16, 1000, 8000])
def test_a_mean_is_close_to_float64s(library, keys):
    weights, values = probabilities(keys, 8, keys), normal(keys + 1, keys, 6)
    true = (weights / weights.sum(axis=-1, keepdims=True)) @ values.astype(np.float64)
    # half a step of the values' grid, half a step of the weights' for each key, and the result's own rounding
    bound = 2.0**-15 + keys * 2.0**-21 * 2 * np.abs(values).max() / weights.sum(axis=-1, keepdims=True) + 1e-6
    assert (np.abs(call(library, exact.weighted_mean, weights, values) - true) <= bound).all()


# --- RMSNorm


@every_library
@given(seed=SEEDS, rows=st.integers(2, 20), width=st.integers(2, 200), scale=SCALES)
@few
def test_a_rows_norm_is_its_own_and_knows_no_order(library, seed, rows, width, scale):
    x, gain = normal(seed, rows, width, scale=scale), normal(seed + 1, width)
    whole = call(library, exact.rms_norm, x, gain, eps=1e-5)
    singly = np.concatenate([call(library, exact.rms_norm, x[i : i + 1], gain, eps=1e-5) for i in range(rows)])
    assert same_bits(singly, whole)
    order = np.random.default_rng(seed).permutation(width)
    assert same_bits(call(library, exact.rms_norm, x[:, order], gain[order], eps=1e-5), whole[:, order])


@every_library
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 1e-3, 3e-43])
@pytest.mark.parametrize("width", [1, 96, 8192])
def test_a_norm_is_close_to_float64s(library, scale, width):
    x, gain = normal(width, 4, width, scale=scale), normal(width + 1, width)
    wide = x.astype(np.float64)
    true = wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + 1e-6) * gain
    assert np.allclose(call(library, exact.rms_norm, x, gain, eps=1e-6), true, rtol=2e-6, atol=2e-45)


@every_library
def test_a_row_of_zeros_stays_zero(library):
    x = np.zeros((2, 8), np.float32)
    assert not call(library, exact.rms_norm, x, np.ones(8, np.float32), eps=1e-5).any()
    assert not call(library, exact.rms_norm, x, np.ones(8, np.float32), eps=0.0).any()


@every_library
def test_a_norm_over_8192_is_exact_at_its_very_bound_and_8193_are_refused(library):
    x = np.full((1, 8192), 2 - 2.0**-22, np.float32)
    ones = np.ones(8192, np.float32)
    assert np.allclose(call(library, exact.rms_norm, x, ones, eps=0.0), 1, rtol=1e-6)
    with pytest.raises(ValueError, match="RMSNorm over 8193 terms, but exact sums hold up to 8192"):
        call(library, exact.rms_norm, np.ones((1, 8193), np.float32), np.ones(8193, np.float32), eps=1e-5)


@needs_torch
@given(seed=SEEDS, scale=SCALES)
@few
def test_numpy_and_torch_have_one_norm(seed, scale):
    x, gain = normal(seed, 7, 96, scale=scale), normal(seed + 1, 96)
    assert same_bits(*(call(name, exact.rms_norm, x, gain, eps=1e-5) for name in ("numpy", "torch")))


@every_library
def test_rsqrt_is_right_to_the_last_bits_over_all_magnitudes(library):
    x = np.concatenate([np.logspace(-300, 300, 5_001), np.linspace(0.5, 4, 5_001)])
    assert np.allclose(call(library, exact.rsqrt, x), 1 / np.sqrt(x), rtol=5e-16, atol=0)


# --- SiLU


@every_library
def test_silu_is_close_to_float64s_from_far_left_to_far_right(library):
    x = np.concatenate([np.linspace(-60, 60, 4_001), [-1e30, -800, -700, -1e-30, 0, 1e-30, 700, 1e30]]).astype(
        np.float32
    )
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        true = wide / (1 + np.exp(-wide))
    assert np.allclose(call(library, exact.silu, x), true, rtol=1e-11, atol=1e-290)
    assert call(library, exact.silu, np.zeros(1, np.float32))[0] == 0


@every_library
@given(seed=SEEDS, length=st.integers(1, 70), scale=st.sampled_from([1.0, 20.0, 1e-30, 1e30]))
@few
def test_an_activation_does_not_depend_on_where_it_stands(library, seed, length, scale):
    gate, up = normal(seed, length, scale=scale), normal(seed + 1, length)
    whole = call(library, exact.silu_mul, gate, up)
    singly = [call(library, exact.silu_mul, gate[i : i + 1], up[i : i + 1]) for i in range(length)]
    assert same_bits(np.concatenate(singly), whole)
    assert np.allclose(whole, exact.silu(gate) * up.astype(np.float64), rtol=1e-7, atol=1e-45)


@needs_torch
@given(seed=SEEDS, scale=st.sampled_from([1.0, 20.0, 1e-30, 1e30]))
@few
def test_numpy_and_torch_have_one_exp_one_rsqrt_and_one_activation(seed, scale):
    x, up = normal(seed, 200, scale=scale), normal(seed + 1, 200)
    assert same_bits(*(call(name, exact.silu_mul, x, up) for name in ("numpy", "torch")))
    assert same_bits(*(call(name, exact.silu, x) for name in ("numpy", "torch")))  # float64: the last bits count
    assert same_bits(*(call(name, exact.exp, -np.abs(x)) for name in ("numpy", "torch")))
    assert same_bits(*(call(name, exact.rsqrt, np.abs(x).astype(np.float64) + 1e-40) for name in ("numpy", "torch")))
