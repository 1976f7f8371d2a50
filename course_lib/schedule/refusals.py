"""What the scheduler refuses, with the reason: knobs, prefix caches, plans and requests that cannot work."""

from collections.abc import Callable, Mapping, Sequence
from operator import index

from course_lib.schedule.request import Chunk, Request


def expect_knobs(max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int, profile) -> None:
    """ValueError for knobs that no schedule can honour, and for a max_chunk that the profile's policy does not read."""
    if not 1 <= max_num_seqs <= max_num_batched_tokens:
        raise ValueError(
            f"max_num_seqs={max_num_seqs} and max_num_batched_tokens={max_num_batched_tokens}: every running request "
            "may decode one token in a step, so 1 <= max_num_seqs <= max_num_batched_tokens is needed."
        )
    if max_chunk < 0:
        raise ValueError(f"max_chunk={max_chunk}; give the most tokens of one request in a step, or 0 for no cap.")
    if max_chunk and not profile.caps_chunks:
        raise ValueError(
            f"max_chunk={max_chunk} would do nothing: the policy of profile {profile.name}"
            f"{'' if profile.chunks_prompts else ', without chunking,'} does not read it. Leave it at 0."
        )


def expect_prefix_cache(prefix_cache, no_cache_in: str, enabled: bool) -> None:
    """ValueError for a prefix cache that would never be asked, or lacks a method."""
    if no_cache_in or not enabled:
        why = f"the profile {no_cache_in} has no prefix cache" if no_cache_in else "enable_prefix_caching is False"
        raise ValueError(f"a prefix_cache was given, but {why}: it would never be asked. Leave one of them out.")
    missing = [name for name in ("match", "publish", "forget", "__contains__") if not hasattr(prefix_cache, name)]
    if missing or isinstance(prefix_cache, type):
        what = f"has no {', '.join(missing)}" if missing else "is a class; give an object of it"
        raise ValueError(f"prefix_cache {what}. See cache.prefix.PrefixIndex for what is called.")


def expect_plan(plan, requests: Mapping[int, Request], max_num_batched_tokens: int, max_num_seqs: int) -> list[Chunk]:
    """The plan in plain integers. ValueError for one that the engine cannot run: it names the chunk and the rule."""
    try:
        chunks = [Chunk(index(c.request_id), index(c.start), index(c.stop)) for c in plan]
    except (TypeError, AttributeError):
        what = f"{plan!r:.80}, expected a tuple of Chunk(request_id, start, stop) in whole numbers"
        raise ValueError(f"plan_step returned {what}.") from None
    planned: set[int] = set()
    total = 0
    for chunk in chunks:
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
    return chunks


def checked_plan(
    plan_step: Callable, requests: Sequence[Request], *, max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int
) -> list[Chunk]:
    """What the policy `plan_step` plans, in plain integers. ValueError as expect_plan, or if it changed a request."""
    computed = [r.num_computed for r in requests]
    try:
        plan = plan_step(
            requests, max_num_batched_tokens=max_num_batched_tokens, max_chunk=max_chunk, max_num_seqs=max_num_seqs
        )
        return expect_plan(plan, {r.id: r for r in requests}, max_num_batched_tokens, max_num_seqs)
    finally:
        changed = [r.id for r, before in zip(requests, computed) if r.num_computed != before]
        for request, before in zip(requests, computed):
            request.num_computed = before
        if changed:
            raise ValueError(f"plan_step changed num_computed of {changed}: it plans, and commit advances.")


def longest(request: Request) -> int:
    """Tokens that the request may come to hold KV of: the last one that it generates is never fed back."""
    return request.prompt_len + request.max_tokens - 1


def why_never(request: Request, scheduler) -> str:
    """Why `request` could never finish under the scheduler's knobs and pool; "" when it can.

    Only what is certain: not a request that merely waits long.
    """
    if request.num_tokens < 1 or request.max_tokens < 1:
        return f"{request.num_tokens} tokens and max_tokens={request.max_tokens}; both must be at least 1."
    cache, budget, tokens = scheduler.cache, scheduler.max_num_batched_tokens, longest(request)
    blocks = cache.blocks_for(tokens)
    if blocks > cache.num_blocks:
        return (
            f"its {tokens} tokens need {blocks} blocks of {cache.block_size}, and the pool has {cache.num_blocks}. "
            "Ask for fewer tokens, or give the pool more blocks."
        )
    if not scheduler.profile.chunks_prompts and tokens > budget:
        return (
            f"without chunking, its {tokens} tokens must fit into one step (the answer counts: after a preemption "
            f"it is recomputed), and max_num_batched_tokens is {budget}."
        )
    most = min(budget, scheduler.max_chunk or budget)
    if scheduler.profile.whole_blocks and most < cache.block_size and tokens > most:
        return f"a chunk of at most {most} tokens holds no whole block of {cache.block_size}, and is cut down to 0."
    return ""


def room_for(request: Request, scheduler) -> int:
    """Tokens that must fit into free blocks for the request to be admitted (Profile.admission_needs).

    0 where its first chunk is enough: that is allocated in any case.
    """
    if scheduler.profile.admission_needs == "first chunk":
        return 0
    if scheduler.profile.admission_needs == "whole prompt":
        return request.num_tokens  # what it generated before a preemption included
    blocks_for = scheduler.cache.blocks_for
    promised = sum(blocks_for(longest(r)) - len(r.block_table) for r in scheduler.running)
    return (blocks_for(longest(request)) + promised) * scheduler.cache.block_size
