"""How real servers plan a step. Each policy is pure and takes the arguments of plan_step (see there)."""

from collections.abc import Iterable, Sequence

from course_lib.schedule.plan import plan_step
from course_lib.schedule.request import Chunk, Request


def _chunk(request: Request, take: int) -> Chunk:
    return Chunk(request.id, request.num_computed, request.num_computed + take)


def _decodes(requests: Iterable[Request], most: int) -> list[Chunk]:
    """A chunk of one for each of the first `most` decodes."""
    return [_chunk(r, 1) for r in requests if r.decoding][: max(most, 0)]


def _prompts(requests: Iterable[Request]) -> list[Request]:
    return [r for r in requests if not r.decoding and r.num_uncomputed > 0]


def plan_in_order(
    requests: Sequence[Request], *, max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int
) -> tuple[Chunk, ...]:
    """vLLM V1: no phases; every request, in order of admission, catches up with its tokens.

    No decode is skipped although none is put first: a request is admitted only when budget is left after
    every running request has had its share.
    """
    chunks: list[Chunk] = []
    left = max_num_batched_tokens
    for request in requests:
        if left <= 0 or len(chunks) >= max_num_seqs:
            break
        if request.num_uncomputed > 0:
            take = min(request.num_uncomputed, max_chunk or left, left)
            chunks.append(_chunk(request, take))
            left -= take
    return tuple(chunks)


def plan_whole_prompt(
    requests: Sequence[Request], *, max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int
) -> tuple[Chunk, ...]:
    """No chunking: a prompt runs when all of it fits beside the decodes, and blocks those behind it until then.

    `max_chunk` has no meaning here. A prompt longer than the budget never runs (starvation).
    """
    decodes = _decodes(requests, min(max_num_batched_tokens, max_num_seqs))
    prompts = _prompts(requests)[: max_num_seqs - len(decodes)]
    picked = whole_prompt_pick([r.num_uncomputed for r in prompts], max_num_batched_tokens - len(decodes))
    return (*decodes, *(_chunk(prompts[i], prompts[i].num_uncomputed) for i in picked))


def whole_prompt_pick(queue: Sequence[int], budget: int) -> list[int]:
    """Which of the waiting prompts run in this step, whole. Returns their places in the queue, counted from 0.

    First come, first served: the step takes prompts from the front while all of the next one still fits. One that
    does not fit stops all behind it too. The queue stays as it is, and each call returns a new list.

    queue    tokens of each waiting prompt, in order of arrival, each at least 1
    budget   tokens that the step has left for prompts, 0 or more
    """
    picked = []
    for place, tokens in enumerate(queue):
        if tokens > budget:
            break
        picked.append(place)
        budget -= tokens
    return picked


def plan_sarathi(
    requests: Sequence[Request], *, max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int
) -> tuple[Chunk, ...]:
    """Sarathi-Serve's stall-free schedule: decodes, then partial prefills, then new ones, in one chunk budget.

    The budget is the chunk size, so `max_chunk` has no meaning here. Our clamp: Sarathi-Serve 96f9911 does not
    check decodes against the budget, and its dynamic mode can make a chunk negative; here nothing goes below zero.
    """
    return plan_step(requests, max_num_batched_tokens=max_num_batched_tokens, max_chunk=0, max_num_seqs=max_num_seqs)


def plan_prefill_first(
    requests: Sequence[Request], *, max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int,
    block_size: int = 1, mixed: bool = False,
) -> tuple[Chunk, ...]:  # fmt: skip
    """SGLang: prompts alone while there are any, then decodes alone; at most one prompt is left half done.

    A cut ends at the end of a block, and a prompt is charged whole blocks. mixed (`--enable-mixed-chunk`):
    decodes join the prompts, and their tokens come off the prompts' budget first.
    """
    decodes = _decodes(requests, min(max_num_batched_tokens, max_num_seqs))
    left = min(max_num_batched_tokens - (len(decodes) if mixed else 0), max_chunk or max_num_batched_tokens)
    chunks: list[Chunk] = []
    most = max_num_seqs - (len(decodes) if mixed else 0)  # prompts in the step
    for request in _prompts(requests)[: max(most, 0)]:
        if request.num_uncomputed <= left:
            chunks.append(_chunk(request, request.num_uncomputed))
            left -= -(-request.num_uncomputed // block_size) * block_size
        else:
            if left >= block_size:
                chunks.append(_chunk(request, left // block_size * block_size))
            break
    if mixed:
        return (*chunks, *decodes)
    return tuple(chunks or decodes)


def plan_whole_blocks(
    requests: Sequence[Request], *, max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int,
    block_size: int = 1, equal_progress: bool = False,
) -> tuple[Chunk, ...]:  # fmt: skip
    """TensorRT-LLM: decodes first; every chunk but a prompt's last is a multiple of the KV block.

    equal_progress: prompts grow a block each in turn, instead of the first taking what it can. Our rule: a prompt
    that gets nothing stops those behind it; TensorRT-LLM, which has admitted them all before, serves them.
    """
    chunks = _decodes(requests, min(max_num_batched_tokens, max_num_seqs))
    left = max_num_batched_tokens - len(chunks)
    prompts = _prompts(requests)[: max_num_seqs - len(chunks)]
    grow = _equal_progress if equal_progress else _first_come
    takes = grow([r.num_uncomputed for r in prompts], left, max_chunk or max_num_batched_tokens, block_size)
    return (*chunks, *(_chunk(r, take) for r, take in zip(prompts, takes) if take > 0))


def _first_come(uncomputed: list[int], left: int, max_chunk: int, block_size: int) -> list[int]:
    takes = []
    for wanted in uncomputed:
        take = min(wanted, left, max_chunk)
        take = take if take == wanted else take // block_size * block_size
        takes.append(take)
        left = left - take if take else 0
    return takes


def _equal_progress(uncomputed: list[int], left: int, max_chunk: int, block_size: int) -> list[int]:
    takes, progress = [0] * len(uncomputed), True
    while progress:
        progress = False
        for i, wanted in enumerate(uncomputed):
            more = min(block_size, wanted - takes[i])
            if 0 < more <= left and takes[i] + more <= max_chunk:
                takes[i] += more
                left -= more
                progress = True
            elif takes[i] == 0:
                break
    return takes
