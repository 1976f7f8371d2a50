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
