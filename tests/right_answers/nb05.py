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


def commit_1(state, sampled):
    stops = {chunk.request_id: chunk.stop for chunk in state.chunks}
    still, finished = [], []
    for request in state.running:
        if request.id in stops:
            request.num_computed = stops[request.id]
            if request.num_uncomputed == 0:
                request.token_ids += [sampled[request.id]]
        if request.why_done():
            finished.append(request.id)
        else:
            still.append(request)
    state.running, state.chunks, state.admitted = still, (), 0
    return finished


def commit_2(state, sampled):
    finished = []
    for chunk in state.chunks:
        (request,) = [r for r in state.running if r.id == chunk.request_id]
        ends = chunk.stop == len(request.token_ids)
        request.num_computed += chunk.num_tokens
        if ends:
            request.token_ids.append(sampled[chunk.request_id])
    for request in list(state.running):
        if len(request.generated) >= request.max_tokens:
            finished.append(request.id)
            state.running.remove(request)
    state.chunks = ()
    state.admitted = 0
    return tuple(finished)


def abort_1(state):
    for _ in range(state.admitted):
        state.waiting.insert(0, state.running.pop())
    state.chunks = ()
    state.admitted = 0


def abort_2(state):
    keep = len(state.running) - state.admitted
    state.running, back = state.running[:keep], state.running[keep:]
    state.waiting = back + state.waiting
    state.chunks, state.admitted = (), 0
    return state


def pack_ragged_1(chunks, tokens):
    rows = [(c.request_id, p) for c in chunks for p in range(c.start, c.stop)]
    cu_q = np.cumsum([0] + [c.stop - c.start for c in chunks])
    cu_k = np.cumsum([0] + [c.stop for c in chunks])
    return np.array([tokens[i][p] for i, p in rows]), np.array([p for _, p in rows]), cu_q, cu_k


def pack_ragged_2(chunks, tokens):
    ids, positions, cu_q, cu_k = [], [], [], []
    q = k = 0
    for chunk in chunks:
        cu_q.append(q)
        cu_k.append(k)
        for position in range(chunk.start, chunk.stop):
            ids.append(tokens[chunk.request_id][position])
            positions.append(position)
            q += 1
        k += chunk.stop
    return [ids, positions, cu_q + [q], cu_k + [k]]
