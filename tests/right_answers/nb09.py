"""Right answers to the exercises of notebook 09."""

import numpy as np

from course_lib.cost.work import work_of
from course_lib.schedule.request import Chunk


def time_step_1(run, synchronize, clock, repeats):
    marks = []
    for _ in range(repeats + 1):
        before = clock()
        run(), synchronize()
        marks.append((before, clock()))
    return np.median([after - before for before, after in marks[1:]])


def time_step_2(run, synchronize, clock, repeats):
    from statistics import median

    for _ in range(2):
        run()
    synchronize()
    stops = [clock()]
    for _ in range(repeats):
        run()
        synchronize()
        stops.append(clock())
    return median(b - a for a, b in zip(stops, stops[1:]))


def fit_linear_1(samples):
    x = samples.copy()
    us, x[:, 2] = x[:, 2].copy(), 1
    per_token, per_decode, fixed = np.linalg.pinv(x) @ us
    return fixed, per_token, per_decode


def fit_linear_2(samples):
    mean = samples.mean(axis=0)
    tokens, decodes, us = (samples - mean).T
    tt, td, dd = tokens @ tokens, tokens @ decodes, decodes @ decodes
    det = tt * dd - td * td
    per_token = (dd * (tokens @ us) - td * (decodes @ us)) / det
    per_decode = (tt * (decodes @ us) - td * (tokens @ us)) / det
    return [mean[2] - per_token * mean[0] - per_decode * mean[1], per_token, per_decode]


def recommend_1(target_us, users, longest, cost):
    low, high = 0, longest + 1
    while high - low > 1:
        chunk = (low + high) // 2
        us = cost.work_us(work_of([(longest - chunk, longest)], [longest] * users))
        low, high = (chunk, high) if us <= target_us else (low, chunk)
    return (low, low + users) if low else (0, 0)


def recommend_2(target_us, users, longest, cost):
    def fits(chunk):
        return cost.work_us(work_of([(longest - chunk, longest)], [longest for _ in range(users)])) <= target_us

    chunk = 0
    for power in reversed(range(20)):
        if chunk + 2**power <= longest and fits(chunk + 2**power):
            chunk += 2**power
    return np.array([chunk, chunk + users if chunk else 0])


def my_policy_1(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
    plan, tokens, clock = [], max_num_batched_tokens, 2_600.0

    def give(r, us):
        nonlocal tokens, clock
        if len(plan) == max_num_seqs or any(c.request_id == r.id for c in plan):
            return
        each = 108 if r.decoding else 15 + 0.00074 * r.num_tokens
        take = 1 if r.decoding else int(us // each)
        take = min(take, tokens, r.num_uncomputed, max_chunk or r.num_uncomputed)
        if take > 0:
            plan.append(Chunk(r.id, r.num_computed, r.num_computed + take))
            tokens, clock = tokens - take, clock + take * each

    for r in requests:
        if r.decoding:
            give(r, 1)
    prompts = [r for r in requests if not r.decoding]
    if prompts:
        free = 48_000 - clock
        others = 15 * sum(r.num_uncomputed for r in prompts)
        give(min(prompts, key=lambda r: r.arrival), max(free / 4, free - others))
    for r in sorted(prompts, key=lambda r: r.num_uncomputed):
        give(r, 48_000 - clock)
    return tuple(plan)


def my_policy_2(requests, max_num_batched_tokens, max_chunk, max_num_seqs):
    """As the course's, with a shorter step and a third of it for the oldest prompt."""
    chunks = [Chunk(r.id, r.num_computed, r.num_computed + 1) for r in requests if r.decoding]
    del chunks[min(max_num_batched_tokens, max_num_seqs) :]
    prompts = [r for r in requests if not r.decoding and r.num_uncomputed > 0]
    left, us = max_num_batched_tokens - len(chunks), 46_000 - 2_600 - 108 * len(chunks)
    oldest = min(prompts, key=lambda r: r.arrival, default=None)
    kept = us / 3
    for r in sorted(prompts, key=lambda r: (r is oldest, r.num_uncomputed)):
        share = us if r is oldest else us - kept
        take = min(r.num_uncomputed, max_chunk or left, left, int(share / (15 + 0.00074 * r.num_tokens)))
        if take > 0 and len(chunks) < max_num_seqs:
            chunks.append(Chunk(r.id, r.num_computed, r.num_computed + take))
            left -= take
            us -= take * (15 + 0.00074 * r.num_tokens)
    return tuple(chunks)


def my_policy_3(requests, max_num_batched_tokens, max_chunk, max_num_seqs):
    """Short prompts before long ones, each group in order of arrival; the oldest first if it is short, else last."""
    chunks = [Chunk(r.id, r.num_computed, r.num_computed + 1) for r in requests if r.decoding]
    del chunks[min(max_num_batched_tokens, max_num_seqs) :]
    prompts = [r for r in requests if not r.decoding and r.num_uncomputed > 0]
    left, us = max_num_batched_tokens - len(chunks), 47_000 - 2_600 - 108 * len(chunks)
    oldest = min(prompts, key=lambda r: r.arrival, default=None)
    kept = us / 5

    def place(r):
        long = r.num_uncomputed > 600
        return r is not oldest or long, long, r.arrival

    for r in sorted(prompts, key=place):
        share = us if r is oldest else us - kept
        take = min(r.num_uncomputed, max_chunk or left, left, int(share / (15 + 0.00074 * r.num_tokens)))
        if take > 0 and len(chunks) < max_num_seqs:
            chunks.append(Chunk(r.id, r.num_computed, r.num_computed + take))
            left -= take
            us -= take * (15 + 0.00074 * r.num_tokens)
    return tuple(chunks)
