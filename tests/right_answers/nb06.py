"""Right answers to the exercises of notebook 06."""

import numpy as np


def itl_1(gaps):
    def least(percent):
        for value in sorted(set(gaps)):
            if 100 * sum(gap <= value for gap in gaps) >= percent * len(gaps):
                return value

    return least(50), least(99), max(gaps)


def itl_2(gaps):
    return *np.percentile(gaps, [50, 99], method="inverted_cdf"), np.max(gaps)


def itl_3(gaps):
    import math

    ordered = sorted(gaps)
    return [ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99, 1.0)]


def itl_4(gaps):
    down = -np.sort(-np.array(gaps))
    return down[len(down) // 2], down[len(down) // 100], down[0]


def sweep_1(chunks, prompt, users, m):
    rows = []
    for chunk in chunks:
        left, steps = prompt, []
        while left > 0:
            steps.append(m.fixed_us + m.prefill_us_per_token * min(chunk, left) + m.decode_us * users)
            left -= chunk
        rows.append([chunk, len(steps), sum(steps), max(steps), 1_000_000 * prompt // sum(steps)])
    return rows


def sweep_2(chunks, prompt, users, m):
    chunks = np.array(chunks)
    steps = -(-prompt // chunks)
    ttft = steps * (m.fixed_us + users * m.decode_us) + prompt * m.prefill_us_per_token
    worst = m.fixed_us + users * m.decode_us + np.minimum(chunks, prompt) * m.prefill_us_per_token
    return np.stack([chunks, steps, ttft, worst, 1_000_000 * prompt // ttft], axis=1)


def sweep_3(chunks, prompt, users, m):
    def row(chunk):
        full, rest = divmod(prompt, chunk)
        steps = [m.step_us(chunk, users)] * full
        if rest:
            steps += [m.step_us(rest, users)]
        return chunk, len(steps), sum(steps), max(steps), int(prompt * 1e6 / sum(steps))

    return tuple(map(row, chunks))


def pick_chunk_1(target_us, users, m):
    chunk = 0
    while m.fixed_us + m.decode_us * users + m.prefill_us_per_token * (chunk + 1) <= target_us:
        chunk += 1
    return chunk


def pick_chunk_2(target_us, users, m):
    fits, too_large = 0, target_us + 1
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if m.step_us(middle, users) <= target_us:
            fits = middle
        else:
            too_large = middle
    return fits


def pick_chunk_3(target_us, users, m):
    decodes = m.step_us(0, users)
    if decodes > target_us:
        return 0
    return int((target_us - decodes) / m.prefill_us_per_token)


def roofline_1(prefill, decodes, context, hw):
    products = max(hw.weight_bytes // hw.bytes_per_us, (prefill + decodes) * hw.flops_per_token // hw.flops_per_us)
    return products + decodes * context * hw.kv_bytes_per_token // hw.bytes_per_us


def roofline_2(prefill, decodes, context, hw):
    times = np.array([hw.weight_bytes / hw.bytes_per_us, hw.flops_per_token / hw.flops_per_us * (prefill + decodes)])
    contexts = sum(hw.kv_bytes_per_token * context for _ in range(decodes))
    return times.max() + contexts / hw.bytes_per_us
