"""What the scheduler refuses, with the reason: knobs, plans and requests that cannot work."""

from collections.abc import Mapping, Sequence

from course_lib.schedule.request import Chunk, Request


def expect_budget(max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int) -> None:
    """ValueError for knobs that no schedule can honour."""
    if not 1 <= max_num_seqs <= max_num_batched_tokens:
        raise ValueError(
            f"max_num_seqs={max_num_seqs} and max_num_batched_tokens={max_num_batched_tokens}: every running request "
            "may decode one token in a step, so 1 <= max_num_seqs <= max_num_batched_tokens is needed."
        )
    if max_chunk < 0:
        raise ValueError(f"max_chunk={max_chunk}; give the most tokens of one request in a step, or 0 for no cap.")


def expect_plan(
    plan: Sequence[Chunk], requests: Mapping[int, Request], max_num_batched_tokens: int, max_num_seqs: int
) -> None:
    """ValueError for a plan that the engine cannot run: it names the chunk and the rule that it breaks."""
    if not isinstance(plan, (tuple, list)) or not all(isinstance(chunk, Chunk) for chunk in plan):
        raise ValueError(f"plan_step returned {plan!r:.80}, expected a tuple of Chunk(request_id, start, stop).")
    planned: set[int] = set()
    total = 0
    for chunk in plan:
        request = requests.get(chunk.request_id)
        if request is None:
            raise ValueError(f"plan_step returned {chunk}, but was not given a request {chunk.request_id}.")
        if chunk.request_id in planned:
            raise ValueError(f"plan_step returned two chunks of request {chunk.request_id}; one chunk a step each.")
        if chunk.start != request.num_computed:
            raise ValueError(
                f"plan_step returned {chunk}, but request {request.id} has {request.num_computed} tokens computed: "
                "its chunk starts there, in absolute positions."
            )
        if not chunk.start < chunk.stop <= len(request.token_ids):
            raise ValueError(
                f"plan_step returned {chunk}; request {request.id} has {request.num_tokens} tokens, so a chunk is "
                f"at least one token and stops at {request.num_tokens} at the latest."
            )
        planned.add(chunk.request_id)
        total += chunk.stop - chunk.start
    if total > max_num_batched_tokens or len(planned) > max_num_seqs:
        raise ValueError(
            f"plan_step returned {total} tokens for {len(planned)} requests; the step may hold "
            f"max_num_batched_tokens={max_num_batched_tokens} tokens, decodes included, of max_num_seqs={max_num_seqs}."
        )


def why_never(request: Request, scheduler) -> str:
    """Why `request` could never finish under the scheduler's knobs and pool; "" when it can.

    Only what is certain: not a request that merely waits long.
    """
    if request.num_tokens < 1 or request.max_tokens < 1:
        return f"{request.num_tokens} tokens and max_tokens={request.max_tokens}; both must be at least 1."
    cache, budget = scheduler.cache, scheduler.max_num_batched_tokens
    longest = request.prompt_len + request.max_tokens - 1  # the last token that it generates is never fed back
    blocks = cache.blocks_for(longest)
    if blocks > cache.num_blocks:
        return (
            f"its {longest} tokens need {blocks} blocks of {cache.block_size}, and the pool has {cache.num_blocks}. "
            "Ask for fewer tokens, or give the pool more blocks."
        )
    if not scheduler.chunks_prompts and longest > budget:
        return (
            f"without chunking, its {longest} tokens must fit into one step (the answer counts: after a preemption "
            f"it is recomputed), and max_num_batched_tokens is {budget}."
        )
    most = min(budget, scheduler.max_chunk or budget)
    if scheduler.cuts_whole_blocks and most < cache.block_size and longest > most:
        return f"a chunk of at most {most} tokens holds no whole block of {cache.block_size}, and is cut down to 0."
    return ""
