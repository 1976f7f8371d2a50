"""Right answers to the exercises of notebook 00."""

import numpy as np


def step_us_1(prefill, decodes, m):
    return sum([m.fixed_us] + [m.decode_us] * decodes + [m.prefill_us_per_token] * prefill)


def step_us_2(prefill, decodes, m):
    work = np.array([1, prefill, decodes])
    return work @ [m.fixed_us, m.prefill_us_per_token, m.decode_us]


def one_shot_timeline_1(prompt, users, m):
    decode = m.fixed_us + users * m.decode_us
    alone = m.fixed_us + prompt * m.prefill_us_per_token
    return [
        (0, decode, 0, users),
        (decode, decode + alone, prompt, 0),
        (decode + alone, decode + alone + decode, 0, users),
    ]


def one_shot_timeline_2(prompt, users, m):
    tokens, decodes = np.array([0, prompt, 0]), np.array([users, 0, users])
    stops = np.cumsum([m.step_us(int(t), int(d)) for t, d in zip(tokens, decodes)])
    return np.stack([np.concatenate([[0], stops[:-1]]), stops, tokens, decodes], axis=1)


def one_shot_timeline_3(prompt, users, m):
    from collections import namedtuple

    Row = namedtuple("Row", "start_us stop_us prompt_tokens decodes")
    first = Row(0, m.step_us(0, users), 0, users)
    second = Row(first.stop_us, first.stop_us + m.step_us(prompt, 0), prompt, 0)
    return [first, second, first._replace(start_us=second.stop_us, stop_us=second.stop_us + first.stop_us)]


def worst_gap_1(steps):
    waited = worst = 0
    seen = False
    for start, stop, _, decodes in steps:
        waited += stop - start
        if decodes:
            worst = max(worst, waited) if seen else 0
            waited, seen = 0, True
    return worst


def worst_gap_2(steps):
    table = np.array(steps)
    return np.diff(table[table[:, 3] > 0][:, 1]).max()


def worst_gap_3(steps):
    worst, before = 0, None
    for row in steps:
        if row[3] > 0:
            worst = max(worst, row[1] - before) if before is not None else 0
            before = row[1]
    return worst


def whole_prompt_pick_1(queue, budget):
    used, place = 0, 0
    while place < len(queue) and used + queue[place] <= budget:
        used += queue[place]
        place += 1
    return list(range(place))


def whole_prompt_pick_2(queue, budget):
    return np.flatnonzero(np.cumsum(queue) <= budget)


def whole_prompt_pick_3(queue, budget):
    picked = ()
    for place, tokens in enumerate(queue):
        if tokens <= budget:
            picked += (place,)
        budget -= tokens  # once below 0 it stays there
    return picked
