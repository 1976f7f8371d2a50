"""The course's planner: decodes first, then prompts in order, never over the budget."""

from collections.abc import Sequence

from course_lib.schedule.request import Chunk, Request


def plan_step(
    requests: Sequence[Request], *, max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int
) -> tuple[Chunk, ...]:
    """What the next step computes: a token for each decode, then slices of prompts, in the order given.

    requests                a list or tuple: running ones first, then waiting ones whose prefix hit counts as computed
    max_num_batched_tokens  tokens that the step may compute in all, decodes included
    max_chunk               tokens of one request at most; 0 = no further limit
    max_num_seqs            requests that the step may serve

    Pure: it reads the requests and changes nothing. With more decodes than budget the first ones are served.
    """
    chunks: list[Chunk] = []
    left = max_num_batched_tokens
    for decoding in (True, False):
        for request in requests:
            if left <= 0 or len(chunks) >= max_num_seqs:
                return tuple(chunks)
            if request.decoding == decoding and request.num_uncomputed > 0:
                take = min(request.num_uncomputed, max_chunk or left, left)
                chunks.append(Chunk(request.id, request.num_computed, request.num_computed + take))
                left -= take
    return tuple(chunks)
