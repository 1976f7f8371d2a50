"""Right answers to the exercises of notebook 05."""

import numpy as np

from course_lib.schedule.request import Chunk


def plan_step_1(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
    left, plan = max_num_batched_tokens, []
    ready = [r for r in requests if r.num_uncomputed]
    for r in [r for r in ready if r.decoding] + [r for r in ready if not r.decoding]:
        take = min(r.num_uncomputed, left)
        if max_chunk:
            take = min(take, max_chunk)
        if take == 0 or len(plan) == max_num_seqs:
            break
        plan.append(Chunk(r.id, r.num_computed, r.num_computed + take))
        left -= take
    return tuple(plan)


def plan_step_2(requests, max_num_batched_tokens, max_chunk, max_num_seqs):
    queue = sorted((r for r in requests if r.num_uncomputed > 0), key=lambda r: not r.decoding)[:max_num_seqs]
    wants = [min(r.num_uncomputed, max_chunk or r.num_uncomputed) for r in queue]
    ends = np.minimum(np.cumsum(wants), max_num_batched_tokens).astype(int).tolist()
    takes = np.diff([0, *ends]).tolist()
    return [Chunk(r.id, r.num_computed, r.num_computed + take) for r, take in zip(queue, takes) if take]
