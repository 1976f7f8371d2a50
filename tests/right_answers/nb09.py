"""Right answers to the exercises of notebook 09."""

import numpy as np

from course_lib.cost.work import work_of


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
