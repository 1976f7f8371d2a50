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


def plan_step_3(requests, **knobs):
    from collections import namedtuple

    Piece = namedtuple("Piece", "request_id start stop")
    todo = {True: [], False: []}
    for r in requests:
        todo[r.decoding] += [r] if r.num_uncomputed else []
    pieces, budget = [], knobs["max_num_batched_tokens"]
    while budget > 0 and len(pieces) < knobs["max_num_seqs"] and (todo[True] or todo[False]):
        r = (todo[True] or todo[False]).pop(0)
        stop = r.num_computed + np.int64(min(r.num_uncomputed, budget))
        if knobs["max_chunk"]:
            stop = min(stop, r.num_computed + knobs["max_chunk"])
        pieces.append(Piece(r.id, start=r.num_computed, stop=stop))
        budget -= stop - r.num_computed
    return pieces


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
        if request.why_done() != "":
            finished.append(request.id)
            state.running.remove(request)
    state.chunks = ()
    state.admitted = 0
    return tuple(finished)


def commit_3(state, sampled):
    from collections import deque

    for request in state.running:
        for chunk in filter(lambda c: c.request_id == request.id, state.chunks):
            request.num_computed = np.int64(chunk.stop)
            newest = {len(request.token_ids): sampled[request.id]}.get(chunk.stop)
            request.token_ids.extend([] if newest is None else [newest])
            request.finish_reason = request.why_done()
    finished = deque(request.id for request in state.running if request.why_done())
    state.running[:] = [request for request in state.running if request.id not in finished]
    state.chunks, state.admitted = [], np.int64(0)
    return finished


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


def abort_3(state):
    from course_lib.lessons.nb05_budget import preempt

    while state.admitted:
        preempt(state)
        state.admitted -= 1
    state.chunks = ()


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


def pack_ragged_3(chunks, tokens):
    from collections import deque
    from itertools import accumulate

    ids = deque(token for c in chunks for token in tokens[c.request_id][c.start : c.stop])
    positions = np.concatenate([np.arange(c.start, c.stop) for c in chunks])
    cu_q = [0, *accumulate(c.num_tokens for c in chunks)]
    return ids, positions, cu_q, tuple(accumulate((c.stop for c in chunks), initial=0))
