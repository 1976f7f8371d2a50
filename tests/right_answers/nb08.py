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
