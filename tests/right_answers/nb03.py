"""Right answers to the exercises of notebook 03."""

import numpy as np

from course_lib.positions import rope_cos_sin


def positions_1(cached, computed, take):
    return [cached + computed + i for i in range(take)]


def positions_2(cached, computed, take):
    return np.cumsum(np.ones(take, dtype=np.int32)) - 1 + (cached + computed)


def positions_3(cached, computed, take):
    return np.arange(2 * (cached + computed + take), dtype=np.uint16)[::2][-take:] // 2


def rope_1(x, positions, theta=10000.0):
    half = x.shape[-1] // 2
    cos, sin = rope_cos_sin(positions, x.shape[-1], theta)
    turned = (x[..., :half] + 1j * x[..., half:]) * (cos + 1j * sin)[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def rope_2(x, positions, theta=10000.0):
    cos, sin = rope_cos_sin(positions, x.shape[-1], theta)
    turn = np.array([[cos, -sin], [sin, cos]])  # [2, 2, tokens, half]
    pairs = x.reshape(*x.shape[:2], 2, -1)
    return np.einsum("abti,thbi->thai", turn, pairs).reshape(x.shape)


def rope_3(x, positions, theta=10000.0):
    out, half = np.empty_like(x), x.shape[-1] // 2
    for t, position in enumerate(positions):
        for i in range(half):
            angle = float(position) * theta ** (-2 * i / (2 * half))
            c, s = np.cos(angle), np.sin(angle)
            out[t, :, i] = x[t, :, i] * c - x[t, :, i + half] * s
            out[t, :, i + half] = x[t, :, i + half] * c + x[t, :, i] * s
    return out


def rope_4(x, positions, theta=10000.0):
    inv_freq = 1.0 / theta ** (np.arange(0, x.shape[-1], 2, dtype=np.float32) / x.shape[-1])
    angle = np.outer(positions.astype(np.float32), inv_freq.astype(np.float32))
    angle = np.concatenate([angle, angle], axis=-1)[:, None, :]
    half = x.shape[-1] // 2
    rotated = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * np.cos(angle) + rotated * np.sin(angle)


def check_positions_1(prefill_fn, reference):
    ids = [(7 * i * i + 3 * i) % 128 for i in range(40)]
    k0, v0, logits0 = reference(ids)
    for sizes, hit in [([5, 20, 15], 0), ([3, 19], 18)]:
        k, v, logits = prefill_fn(ids, sizes, hit)
        assert np.array_equal(k, k0) and np.array_equal(v, v0) and np.array_equal(logits, logits0)


def check_positions_2(prefill_fn, reference):
    ids = [(7 * i * i + 3 * i) % 128 for i in range(40)]
    wanted = reference(ids)
    for hit, sizes in ((0, [1] * 7 + [33]), (17, [2, 21]), (16, [24])):
        for got, want in zip(prefill_fn(ids, sizes, hit), wanted):
            np.testing.assert_array_equal(got, want)


def check_positions_3(prefill_fn, reference):
    ids = [(7 * i * i + 3 * i) % 128 for i in range(40)]
    rng = np.random.default_rng(0)
    k0, v0, logits0 = reference(ids)
    for hit in (0, int(rng.integers(1, 20)), int(rng.integers(1, 20))):
        first = int(rng.integers(1, 9))
        k, v, logits = prefill_fn(ids, [first, 40 - hit - first], hit=hit)
        if k.tobytes() != k0.tobytes():
            raise AssertionError(f"K differs at {np.argwhere(k != k0)[0]} for a hit of {hit}")
        for layer in range(len(v)):
            assert (v[layer] == v0[layer]).all(), f"V of layer {layer} differs"
        assert (logits == logits0).all()


def check_positions_4(prefill_fn, reference):
    def digest(arrays):
        return [hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest() for x in arrays]

    import hashlib

    prompt = list(range(3, 51, 2))
    right = digest(reference(prompt))
    for hit, sizes in ((0, [4, 9, 11]), (9, [2, 13])):
        if digest(prefill_fn(token_ids=prompt, sizes=tuple(sizes), hit=hit)) != right:
            raise AssertionError


def check_positions_5(prefill_fn, reference):
    ids = [5, 9, 2, 7, 11, 1, 8, 3, 100, 64, 31, 127, 0, 12, 77, 41, 19, 23, 90, 5]
    wanted = {"k": 0, "v": 1, "logits": 2}
    right = reference(ids)
    problems = []
    for hit in (0, 1, 8):
        rest = len(ids) - hit
        got = prefill_fn(ids, [2, rest - 5, 3], hit)
        problems += [f"{name} after {hit}" for name, i in wanted.items() if not np.all(got[i] == right[i])]
        problems += [f"{name} in {hit}" for name, i in wanted.items() if np.abs(got[i] - right[i]).max() != 0]
    assert problems == [], problems
