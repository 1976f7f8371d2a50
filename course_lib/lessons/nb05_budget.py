"""What notebook 05 builds: a step that is planned, computed and then committed or aborted, and a ragged batch.

At lesson scale: no blocks and no prefix cache. The scheduler that does all of it is schedule/scheduler.py, and the
forward over a paged pool is in model.py; the layer is the same, and so are the bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from course_lib.attention.exact import attend_exact
from course_lib.lessons.nb01_divisible import KVCache, expect_exact, run_chunk
from course_lib.model import Model
from course_lib.schedule.request import Chunk, Request


@dataclass
class State:
    """The waiting and the running requests, and the step that is open.

    waiting    in order of arrival
    running    in order of admission
    chunks     what the open step computes; () between two steps
    admitted   how many requests the open step has admitted: the last ones of `running`
    """

    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    chunks: tuple[Chunk, ...] = ()
    admitted: int = 0


def begin(state: State, plan: Sequence[Chunk]) -> None:
    """Open a step: each waiting request with a chunk in the plan is admitted. No request advances.

    ValueError, and nothing changed, when a step is open already, when the plan is empty, or when it lets a request
    overtake another in the queue.
    """
    if state.chunks or not plan:
        raise ValueError("the step before is still open." if state.chunks else "there is nothing in the plan.")
    planned = {chunk.request_id for chunk in plan}
    admitted = sum(request.id in planned for request in state.waiting)
    if any(request.id not in planned for request in state.waiting[:admitted]):
        raise ValueError("the plan lets a request overtake another in the queue.")
    state.running += state.waiting[:admitted]
    del state.waiting[:admitted]
    state.chunks, state.admitted = tuple(plan), admitted


def commit(state: State, sampled: Mapping[int, int]) -> list[int]:
    """The open step was computed: each request with a chunk in it advances, and the step is closed.

    sampled   request id -> the token that the logits of its chunk's last token choose, for every chunk of the step
    returns   ids of the requests that are finished now, in the order of `running`; they are in it no longer

    A request has computed its tokens up to the stop of its chunk. If that is the end of its tokens, it gets the sampled
    token as its newest; all other sampled tokens are thrown away. request.why_done() is not "" for a finished one.
    `sampled` and all else of a request stay as they are, and `running` stays a list of these requests.
    """
    requests = {request.id: request for request in state.running}
    for chunk in state.chunks:
        request = requests[chunk.request_id]
        request.num_computed = chunk.stop
        if chunk.stop == request.num_tokens:
            request.token_ids.append(sampled[request.id])
    finished = [request.id for request in state.running if request.why_done()]
    state.running = [request for request in state.running if not request.why_done()]
    state.chunks, state.admitted = (), 0
    return finished


def abort(state: State) -> None:
    """The open step was not computed: everything is again as it was before the step was opened.

    The requests that it admitted stand at the front of `waiting` again, in their order. No request has advanced, and
    none does. `waiting` and `running` stay lists of these requests.
    """
    first = len(state.running) - state.admitted
    state.waiting[:0] = state.running[first:]
    del state.running[first:]
    state.chunks, state.admitted = (), 0


def preempt(state: State) -> Request:
    """Between two steps: the request that was admitted last gives up its keys and values, and waits at the front.

    Its tokens stay, those of the answer included; all of them must be computed again.
    """
    request = state.running.pop()
    request.num_computed = 0
    state.waiting.insert(0, request)
    return request


def pack_ragged(
    chunks: Sequence[Chunk], tokens: Mapping[int, Sequence[int]]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """All chunks of a step as one ragged batch.

    chunks    of the step, in batch order
    tokens    request id -> all its tokens so far
    returns   (ids, positions, cu_q, cu_k), four new lists of whole numbers
              ids         the token ids of all chunks, one chunk behind another: a row for each
              positions   where each of them stands in its own request
              cu_q        chunk i has the rows cu_q[i] to cu_q[i + 1] - 1; one number more than chunks, the first is 0
              cu_k        the same for keys: chunk i has the keys cu_k[i] to cu_k[i + 1] - 1, one for each token of
                          its request up to the end of the chunk
    """
    ids, positions, cu_q, cu_k = [], [], [0], [0]
    for chunk in chunks:
        ids += tokens[chunk.request_id][chunk.start : chunk.stop]
        positions += range(chunk.start, chunk.stop)
        cu_q.append(len(ids))
        cu_k.append(cu_k[-1] + chunk.stop)
    return ids, positions, cu_q, cu_k


def forward_ragged(
    model: Model, batch: tuple, caches: Sequence[KVCache], *, out_of_memory_in: int | None = None
) -> np.ndarray:
    """One forward over all chunks of a step; their keys and values are appended to their requests' caches.

    model     in exact arithmetic
    batch     (ids, positions, cu_q, cu_k) as pack_ragged makes it
    caches    the cache of each chunk's request, in batch order, with the tokens before the chunk
    returns   logits [chunks, vocab_size] of each chunk's last token
    out_of_memory_in   raise MemoryError in this layer, to show what a step leaves that fails in the middle

    The keys of all requests stand one behind another, and cu_k alone says where each request's begin: with a wrong one
    a request reads keys of another user. ValueError, before anything changes, when the four lists do not fit together.
    """
    expect_exact(model, "forward_ragged")
    ids, positions, cu_q, cu_k = (np.asarray(part, dtype=np.int64) for part in batch)
    _expect_batch(ids, positions, cu_q, cu_k, caches, model.config.vocab_size)
    spans = list(zip(cu_q, cu_q[1:], cu_k, cu_k[1:]))

    def attend(layer: int, q, k, v):
        if layer == out_of_memory_in:
            raise MemoryError(f"out of memory in layer {layer}")
        for cache, (row, row_end, _, _) in zip(caches, spans):
            cache.append(layer, k[row:row_end], v[row:row_end])
        keys, values = (np.concatenate(parts) for parts in zip(*(cache.view(layer) for cache in caches)))
        outputs = [
            attend_exact(q[row:row_end], keys[key:key_end], values[key:key_end], key_end - key - (row_end - row))
            for row, row_end, key, key_end in spans
        ]
        return np.concatenate(outputs)

    return model.run_layers(model.embedding[ids], positions, attend, cu_q[1:] - 1)


def _expect_batch(ids, positions, cu_q, cu_k, caches: Sequence[KVCache], vocab_size: int) -> None:
    """ValueError for four lists with which nothing can be computed. Lists that fit and are wrong get through."""
    rows, keys = np.diff(cu_q), np.diff(cu_k)
    if not len(caches) == len(rows) == len(keys) or cu_q[0] or cu_k[0]:
        raise ValueError(f"{len(caches)} chunks need cu_q and cu_k of {len(caches) + 1} numbers that begin with 0.")
    if not len(ids) == len(positions) == cu_q[-1] or rows.min() < 1:
        raise ValueError(f"{len(ids)} ids, {len(positions)} positions, and cu_q says {cu_q.tolist()}.")
    if ids.min() < 0 or ids.max() >= vocab_size or positions.min() < 0:
        raise ValueError(f"ids are 0 .. {vocab_size - 1}, and positions 0 or more.")
    there = sum(len(cache.view(0)[0]) for cache in caches) + len(ids)
    if (keys < rows).any() or cu_k[-1] > there:
        raise ValueError(f"cu_k says {cu_k.tolist()}; there are {there} keys, and each row has at least its own.")


def trim(cache: KVCache, num_computed: int) -> None:
    """Forget the keys and values behind the first `num_computed` tokens: what a step that failed has left."""
    cache.k = [k[:num_computed] for k in cache.k]
    cache.v = [v[:num_computed] for v in cache.v]


def generate_alone(model: Model, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The answer to a prompt that has the model to itself: one pass, then a decode at a time, always the likeliest."""
    cache = KVCache(model.config.num_layers, model.config.kv_heads, model.config.head_dim)
    answer = [int(np.argmax(run_chunk(model, prompt, cache)))]
    while len(answer) < max_tokens:
        answer.append(int(np.argmax(run_chunk(model, answer[-1:], cache))))
    return answer
