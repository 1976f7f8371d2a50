"""RoPE against complex multiplication, against library cosines, and against decimals of 50 digits."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import LIBRARIES, array_of, needs_torch

from course_lib.arithmetic.arrays import to_numpy
from course_lib.positions import (
    MAX_ANGLE,
    Llama3Scaling,
    RopeTable,
    inverse_frequencies,
    positions,
    rope,
    rope_cos_sin,
    rotate,
)

HEAD_DIMS = st.sampled_from([2, 6, 16, 40, 64, 128])
THETAS = st.sampled_from([1.0, 100.0, 10000.0, 500000.0, 1e6])
LAST = int(MAX_ANGLE) - 1


def vectors(seed, tokens, heads=2, head_dim=16):
    return np.random.default_rng(seed).standard_normal((tokens, heads, head_dim)).astype(np.float32)


def by_complex_numbers(x, where, theta):
    """float64, and powers by NumPy: nothing of ours."""
    half = x.shape[-1] // 2
    angle = np.asarray(where, np.float64)[:, None] * np.power(theta, -np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:].astype(np.float64)) * np.exp(1j * angle)[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


# --- positions


@given(cached=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8))
def test_positions_of_chunks_in_a_row_count_on_without_a_gap(cached, sizes):
    starts = np.cumsum([0, *sizes])
    parts = [positions(cached, int(start), size) for start, size in zip(starts, sizes)]
    assert all(p.dtype == np.int64 for p in parts)
    assert np.array_equal(np.concatenate(parts), np.arange(cached, cached + sum(sizes)))


def test_chunk_three_of_a_thousand_and_twenty_four_starts_at_3072():
    assert positions(0, 3 * 1024, 1024)[[0, -1]].tolist() == [3072, 4095]
    assert positions(5000, 1024, 976)[[0, -1]].tolist() == [6024, 6999]  # behind a prefix hit of 5,000


# --- cosines and sines


@given(seed=st.integers(0, 2**32 - 1), head_dim=HEAD_DIMS, theta=THETAS)
def test_cosine_and_sine_are_the_librarys_rounded_to_float32(seed, head_dim, theta):
    where = np.random.default_rng(seed).integers(0, LAST, 200, endpoint=True)
    angle = where[:, None] * inverse_frequencies(head_dim, theta)
    for ours, true in zip(rope_cos_sin(where, head_dim, theta), (np.cos(angle), np.sin(angle))):
        assert ours.dtype == np.float32
        assert ours.shape == (200, head_dim // 2)
        assert np.abs(ours - true).max() <= 2.0**-25 * (1 + 1e-4)
        ulp = np.spacing(np.abs(true).astype(np.float32)).astype(np.float64)
        assert (np.abs(ours - true) <= ulp).all()
        # a library cosine is itself half a float64 ulp off: a tie of float32 may go the other way, once in 2**28
        assert (ours != true.astype(np.float32)).sum() <= 1


def test_every_small_position_has_the_correctly_rounded_cosine_and_sine():
    where = np.arange(20_000)
    angle = where[:, None] * inverse_frequencies(16, 10000.0)
    wrong = [
        ours != true.astype(np.float32) for ours, true in zip(rope_cos_sin(where, 16), (np.cos(angle), np.sin(angle)))
    ]
    assert np.sum(wrong) <= 1  # of 320,000


def decimal_cos_sin(angle: Decimal) -> tuple[Decimal, Decimal]:
    """Taylor series after whole turns are taken off; 50 digits."""
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    angle %= 2 * pi
    cos = sin = Decimal(0)
    term, n = Decimal(1), 0
    while abs(term) > Decimal("1e-45"):
        if n % 2 == 0:
            cos += term * (1 - n % 4)
        else:
            sin += term * (2 - n % 4)
        n += 1
        term = term * angle / n
    return cos, sin


@pytest.mark.parametrize("where", [0, 1, 2, 3, 11, 355, 1024, 4095, 103993, 2**19, LAST])
def test_far_positions_turn_by_the_true_angle_and_not_by_a_rounded_one(where):
    with localcontext() as context:
        context.prec = 50
        for pair, (cos, sin) in enumerate(zip(*(x[0] for x in rope_cos_sin(np.array([where]), 16)))):
            angle = where * Decimal(10000) ** (Decimal(-2 * pair) / 16)
            for ours, true in zip((cos, sin), decimal_cos_sin(angle)):
                # half a float32 step below 1, and the angle's own float64 rounding
                assert abs(Decimal(float(ours)) - true) <= Decimal(2.0**-25 + where * 2.0**-53)


def test_a_position_where_the_angle_reduction_ends_is_refused():
    assert rope_cos_sin(np.array([LAST]), 2)[0].shape == (1, 1)
    for beyond in (LAST + 1, -LAST - 1, 2**40):
        with pytest.raises(ValueError, match="the angle reduction holds below 1048576"):
            rope_cos_sin(np.array([3, beyond]), 2)


@pytest.mark.parametrize("head_dim", [0, 1, 15, -2])
def test_a_head_that_has_no_pairs_is_refused(head_dim):
    with pytest.raises(ValueError, match="even head_dim of at least 2"):
        rope_cos_sin(np.arange(4), head_dim)


@pytest.mark.parametrize("theta", [0.0, -10000.0, 0.5, float("nan"), float("inf")])
def test_a_base_that_gives_no_falling_frequencies_is_refused(theta):
    with pytest.raises(ValueError, match="theta=.*at least 1"):
        inverse_frequencies(8, theta)


def test_frequencies_fall_from_one_and_are_those_of_the_formula():
    for head_dim, theta in ((16, 10000.0), (128, 500000.0), (6, 1.0)):
        ours = inverse_frequencies(head_dim, theta)
        assert ours[0] == 1.0
        assert np.allclose(ours, theta ** (-2 * np.arange(head_dim // 2) / head_dim), rtol=4e-16, atol=0)


# --- rotation


@given(seed=st.integers(0, 2**32 - 1), head_dim=HEAD_DIMS, theta=THETAS, heads=st.integers(1, 4))
@settings(max_examples=50)
def test_a_pair_turns_like_a_complex_number(seed, head_dim, theta, heads):
    x = vectors(seed, 20, heads, head_dim)
    where = np.random.default_rng(seed).integers(0, 5000, 20)
    turned = rope(x, where, theta)
    assert turned.dtype == np.float32
    assert turned.shape == x.shape
    length = np.sqrt(x[..., : head_dim // 2].astype(np.float64) ** 2 + x[..., head_dim // 2 :].astype(np.float64) ** 2)
    error = np.abs(turned - by_complex_numbers(x, where, theta))
    assert (error <= 2.0**-22 * np.concatenate([length, length], axis=-1)).all()


@given(seed=st.integers(0, 2**32 - 1), where=st.integers(0, LAST))
def test_a_rotation_keeps_the_length_of_every_pair(seed, where):
    x = vectors(seed, 1)
    turned = rope(x, np.array([where]))
    before, after = (np.hypot(v[..., :8].astype(np.float64), v[..., 8:]) for v in (x, turned))
    assert np.allclose(before, after, rtol=3e-7, atol=0)


def test_position_zero_turns_nothing():
    x = vectors(0, 5)
    assert np.array_equal(rope(x, np.zeros(5, np.int64)), x)


@given(seed=st.integers(0, 2**32 - 1), q=st.integers(0, 500), k=st.integers(0, 500), shift=st.integers(1, 2000))
def test_a_score_depends_on_how_far_apart_query_and_key_are_and_on_nothing_else(seed, q, k, shift):
    def score(q_at, k_at):
        query, key = rope(vectors(seed, 1), np.array([q_at])), rope(vectors(seed + 1, 1), np.array([k_at]))
        return (query.astype(np.float64) * key).sum(axis=-1)

    assert np.allclose(score(q, k), score(q + shift, k + shift), atol=2e-5)


def test_but_not_when_only_one_of_them_moves():
    q, k = vectors(0, 1), vectors(1, 1)
    dot = lambda a, b: (rope(q, np.array([a])) * rope(k, np.array([b]))).sum(axis=-1)  # noqa: E731
    assert (np.abs(dot(7, 3) - dot(8, 3)) > 1e-3).any()


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 29), data=st.data())
@settings(max_examples=50)
def test_a_tokens_rotation_is_its_own_whatever_the_cut_and_the_order(seed, cut, data):
    x, where = vectors(seed, 30), np.random.default_rng(seed).integers(0, 9000, 30)
    whole = rope(x, where)
    assert np.array_equal(np.concatenate([rope(x[:cut], where[:cut]), rope(x[cut:], where[cut:])]), whole)
    order = data.draw(st.permutations(range(30)))
    assert np.array_equal(rope(x[order], where[order]), whole[order])


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_engines_rotation_has_the_bits_of_the_lessons(library):
    x, where = vectors(3, 40, heads=3, head_dim=32), np.arange(1000, 1040)
    cos, sin = (array_of(library, t) for t in rope_cos_sin(where, 32, 5e5))
    assert np.array_equal(to_numpy(rotate(array_of(library, x), cos, sin)), rope(x, where, 5e5))


@needs_torch
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_floats_are_rotated_in_float32_and_rounded_once(dtype):
    import torch

    dtype = getattr(torch, dtype)
    short = torch.from_numpy(vectors(4, 40)).to(dtype)
    cos, sin = (torch.from_numpy(t) for t in rope_cos_sin(np.arange(40), 16))
    turned = rotate(short, cos, sin)
    assert turned.dtype == dtype
    assert torch.equal(turned, torch.from_numpy(rope(short.float().numpy(), np.arange(40))).to(dtype))


# --- the table


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_table_gives_the_same_bits_in_whatever_order_it_grew(library):
    table = RopeTable(6, 500.0, array_of(library, np.zeros(1, np.float32)))
    for where in ([0], [255], [3, 256, 3], [], [5000, 17], [2**16], [2**16 - 1, 0], list(range(400, 300, -1))):
        where = np.array(where, dtype=np.int64)
        for ours, direct in zip(table(where), rope_cos_sin(where, 6, 500.0)):
            assert np.array_equal(to_numpy(ours), direct)


def test_the_table_reaches_the_last_position_and_refuses_the_next_and_a_negative_one():
    table = RopeTable(2, 10000.0, np.zeros(1, np.float32))
    for wrong, message in ((LAST + 1, "is beyond 1048575"), (-1, "position -1 is negative")):
        with pytest.raises(ValueError, match=message):
            table(np.array([4, wrong]))
    assert np.array_equal(table(np.array([LAST]))[0], rope_cos_sin(np.array([LAST]), 2)[0])


# --- Llama 3.1's scaling

LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original=8192)


def test_fast_pairs_keep_their_frequency_slow_ones_are_divided_and_those_between_lie_between():
    plain = inverse_frequencies(128, 500000.0)
    scaled = LLAMA3(plain)
    wavelength = 2 * np.pi / plain
    fast, slow = wavelength <= 8192 / 4, wavelength >= 8192
    assert fast.any() and slow.any() and (~fast & ~slow).sum() >= 3
    assert np.array_equal(scaled[fast], plain[fast]) and np.array_equal(scaled[slow], plain[slow] / 8)
    between = ~fast & ~slow
    assert (scaled[between] < plain[between]).all() and (scaled[between] > plain[between] / 8).all()
    assert (np.diff(scaled) < 0).all()


def test_between_them_the_frequencies_are_those_of_metas_formula():
    plain = inverse_frequencies(128, 500000.0)
    for frequency, ours in zip(plain, LLAMA3(plain)):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            true = frequency
        elif wavelength > 8192 / 1:
            true = frequency / 8
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            true = (1 - smooth) * frequency / 8 + smooth * frequency
        assert math.isclose(ours, true, rel_tol=1e-14)


def test_a_table_with_scaling_agrees_with_direct_computation_when_it_has_grown():
    table = RopeTable(16, 500000.0, np.zeros(1, np.float32), LLAMA3)
    for where in (np.arange(5), np.array([9000, 3, 70000])):
        for ours, direct in zip(table(where), rope_cos_sin(where, 16, 500000.0, LLAMA3)):
            assert np.array_equal(ours, direct)
    assert not np.array_equal(table(np.array([9000]))[0], rope_cos_sin(np.array([9000]), 16, 500000.0)[0])
