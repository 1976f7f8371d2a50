"""Right answers to the exercises of notebook 08."""

import numpy as np


def admit_1(prompt, shared, block_size):
    hit = 0
    while hit + block_size <= shared and hit + block_size < prompt:
        hit += block_size
    return hit


def admit_2(prompt, shared, block_size):
    blocks = shared // block_size
    if blocks * block_size == prompt:
        blocks -= 1
    return blocks * block_size


def next_chunk_1(request, left, max_chunk):
    start = stop = request.num_computed
    if left > 0:
        stop = min(request.num_tokens, start + left)
        if max_chunk > 0:
            stop = min(stop, start + max_chunk)
    return start, stop


def next_chunk_2(request, left, max_chunk):
    limits = [request.num_uncomputed, left, *([max_chunk] if max_chunk else [])]
    take = int(np.clip(min(limits), 0, None))
    return [request.num_computed, request.num_computed + take]


def two_by_two_1(prompt, hit, users, chunk, m):
    def alone(tail):
        ttft = m.fixed_us + tail * m.prefill_us_per_token
        return ttft, ttft + m.fixed_us + users * m.decode_us

    def cut(tail):
        full, rest = divmod(tail, chunk)
        steps = [m.step_us(chunk, users)] * full
        if rest:
            steps.append(m.step_us(rest, users))
        return sum(steps), steps[0]

    return [alone(prompt), cut(prompt), alone(prompt - hit), cut(prompt - hit)]


def two_by_two_2(prompt, hit, users, chunk, m):
    tails = np.array([prompt, prompt, prompt - hit, prompt - hit])
    cut = np.array([False, True, False, True])
    steps = np.where(cut, -(-tails // chunk), 1)
    decodes = m.fixed_us + users * m.decode_us
    ttft = m.prefill_us_per_token * tails + steps * np.where(cut, decodes, m.fixed_us)
    gap = m.prefill_us_per_token * np.where(cut, np.minimum(tails, chunk), tails) + decodes
    return np.stack([ttft, gap + np.where(cut, 0, m.fixed_us)], axis=1)


def check_composition_1(serve, reference):
    a = [(7 * i * i + 3 * i) % 128 for i in range(24)]
    b = a[:18] + [5, 4, 3, 2, 1]
    for prompts, chunk, options, hits in [
        ([a, b, a], 7, {}, [0, 16, 20]),
        ([a, b], 6, {"together": True}, None),
        ([a], 6, {"answer": 3, "preempt": 5}, None),
    ]:
        results = serve(prompts, chunk, **options)
        for tokens, _, k, v, logits in results:
            k0, v0, logits0 = reference(tokens)
            assert np.array_equal(k, k0) and np.array_equal(v, v0) and np.array_equal(logits, logits0)
        assert hits is None or [hit for _, hit, *_ in results] == hits


def check_composition_2(serve, reference):
    a, b = list(range(20)), list(range(14)) + [99] * 5
    runs = [serve([a, b, a], 5), serve([a, b], 9, 1, True), serve([a], 6, answer=4, preempt=6)]
    for tokens, _, k, v, logits in [one for run in runs for one in run]:
        ((same, _, *cold),) = serve([tokens], 100)
        assert same == tokens
        for got, want in zip((k, v, logits), cold):
            np.testing.assert_array_equal(got, want)
    assert runs[0][1][1] == 12 and runs[0][2][1] == 16


def check_composition_3(serve, reference):
    rng = np.random.default_rng(3)
    base = rng.integers(0, 128, 20).tolist()

    def bits(results):
        for tokens, _, k, v, logits in results:
            for got, want in zip((k, v, logits), reference(tokens)):
                if got.tobytes() != want.tobytes():
                    raise AssertionError(f"other bits for {len(tokens)} tokens")

    for cut in (9, 14, 20):
        other = base[:cut] + rng.integers(0, 128, 6).tolist() if cut < 20 else base
        other[cut : cut + 1] = [(base[cut] + 1) % 128] if cut < 20 else []
        results = serve([base, other], 5)
        bits(results)
        if results[1][1] != min(cut, len(other) - 1) // 4 * 4:
            raise AssertionError(f"a hit of {results[1][1]} for {cut} shared tokens")
    bits(serve([base, base], 5, together=True))
    bits(serve([base], 5, answer=5, preempt=6))
