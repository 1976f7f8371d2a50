"""Kept answers to exercise 5.1: planners, wrong ones and right ones."""

from __future__ import annotations

from autograder.exercise import WrongAnswer

HEAD = "def plan_step(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):\n"


def _plan(
    *,
    decodes: str = "[r for r in requests if r.decoding]",
    prompts: str = "[r for r in requests if not r.decoding]",
    queue: str = "decodes + prompts",
    full: str = "left <= 0 or len(chunks) >= max_num_seqs",
    skip: str = "        if r.num_uncomputed == 0:\n            continue\n",
    take: str = "min(r.num_uncomputed, max_chunk or left, left)",
    chunk: str = "Chunk(r.id, r.num_computed, r.num_computed + take)",
    spend: str = "left -= take",
    first: str = "",
) -> str:
    """A planner like ours, with the given expressions where the mistakes are made."""
    return f"""\
{HEAD}    left, chunks = max_num_batched_tokens, []
    decodes = {decodes}
    prompts = {prompts}
{first}    for r in {queue}:
        if {full}:
            break
{skip}        take = {take}
        chunks.append({chunk})
        {spend}
    return tuple(chunks)
"""


def _two_loops(decode_guard: str, prompt_loop: str) -> str:
    """The naive shape: a loop over the decodes, then one over the prompts."""
    return f"""\
{HEAD}    left, chunks = max_num_batched_tokens, []
    for r in requests:
        if r.decoding and len(chunks) < max_num_seqs{decode_guard}:
            chunks.append(Chunk(r.id, r.num_computed, r.num_computed + 1))
            left -= 1
    for r in requests:
        if not r.decoding and len(chunks) < max_num_seqs:
{prompt_loop}            chunks.append(Chunk(r.id, r.num_computed, r.num_computed + take))
            left -= take
    return tuple(chunks)
"""


WRONG = (
    WrongAnswer(
        "unchecked_decodes",
        _two_loops(
            "",
            "            take = min(r.num_uncomputed, max_chunk or max(left, 0), left)\n"
            "            if take <= 0:\n                continue\n",
        ),
        "Subtracting does not enforce a budget. The decodes go on when nothing is left, and what is left becomes "
        "negative. Ask before each one, decodes too.",
    ),
    WrongAnswer(
        "negative_take",
        _two_loops(
            "",
            "            if left == 0:\n                break\n"
            "            if r.num_uncomputed == 0:\n                continue\n"
            "            take = min(r.num_uncomputed, max_chunk or left, left)\n",
        ),
        "The decodes take what is left below zero, and your test for 'nothing left' is == 0: a negative number passes, "
        "and a prompt gets a chunk of negative length. Ask for <= 0, before each decode too.",
    ),
    WrongAnswer(
        "break_on_done",
        _plan(skip="        if r.num_uncomputed == 0:\n            break\n"),
        "A request with nothing left to compute ends your loop, so those behind it get nothing. Pass over it: "
        "continue. The step is full only when the budget is used up or max_num_seqs requests have a chunk.",
    ),
    WrongAnswer(
        "chunk_for_the_finished",
        _plan(skip=""),
        "A request with nothing left to compute gets an empty chunk. Pass over it.",
    ),
    WrongAnswer(
        "prompt_only",
        _plan(
            take="1 if r.decoding else min(r.prompt_len - r.num_computed, max_chunk or left, left)",
            skip="        if not r.decoding and r.num_computed >= r.prompt_len:\n            continue\n",
        ),
        "You count what is left of the prompt. After a preemption the answer's tokens must be computed again as well: "
        "what is left is len(token_ids) - num_computed.",
    ),
    WrongAnswer(
        "advances",
        _plan(spend="left -= take\n        r.num_computed += take"),
        "Your planner advances num_computed. Nothing has been computed yet, and the step may still fail: a plan reads, "
        "and commit advances.",
    ),
    WrongAnswer(
        "prompts_first",
        _plan(queue="prompts + decodes"),
        "The prompts come first and use up the budget, so streaming users wait. Decodes first, then prompts.",
    ),
    WrongAnswer(
        "order_of_the_list",
        _plan(queue="requests"),
        "You take the requests as they stand in the list. Decodes come first, wherever they stand; then the "
        "rest, in order.",
    ),
    WrongAnswer(
        "last_prompt_token_as_decode",
        _plan(
            decodes="[r for r in requests if r.num_uncomputed == 1]",
            prompts="[r for r in requests if r.num_uncomputed != 1]",
        ),
        "You treat every request with one token left as a decode. The last token of a prompt is no decode: no user "
        "is streaming there yet. Ask request.decoding.",
    ),
    WrongAnswer(
        "decodes_are_free",
        _plan(spend="left -= 0 if r.decoding else take"),
        "Your decodes cost nothing. A decode is a token of the step like any other, and comes off the budget.",
    ),
    WrongAnswer(
        "budget_for_each",
        _plan(spend="pass"),
        "Each request is compared with the whole budget, because nothing is subtracted. They share the step.",
    ),
    WrongAnswer(
        "no_cap",
        _plan(take="min(r.num_uncomputed, left)"),
        "max_chunk is not used. It is the most that one request may have in a step, whatever the budget.",
    ),
    WrongAnswer(
        "zero_is_a_cap",
        _plan(
            take="min(r.num_uncomputed, max_chunk, left)",
            skip="        if not min(r.num_uncomputed, max_chunk):\n            continue\n",
        ),
        "max_chunk = 0 means that there is no cap. You cap at 0, so no request gets a chunk.",
    ),
    WrongAnswer(
        "cap_for_the_step",
        _plan(first="    left = min(left, max_chunk or left)\n"),
        "You take max_chunk for the budget of the whole step. It caps each request by itself; several may "
        "have that much.",
    ),
    WrongAnswer(
        "no_max_num_seqs",
        _plan(full="left <= 0"),
        "max_num_seqs is not used. It is the most requests that a step may serve.",
    ),
    WrongAnswer(
        "seats_for_prompts",
        _plan(full="left <= 0 or sum(c.stop - c.start > 1 for c in chunks) >= max_num_seqs"),
        "Only chunks of more than one token are counted. Every request in the step counts towards "
        "max_num_seqs, decodes too.",
    ),
    WrongAnswer(
        "one_prompt",
        _plan(queue="decodes + [r for r in prompts if r.num_uncomputed][:1]"),
        "Only one prompt gets a chunk. While budget is left and max_num_seqs is not reached, the next one "
        "gets one too.",
    ),
    WrongAnswer(
        "whole_or_nothing",
        _plan(
            skip="        if r.num_uncomputed == 0 or r.num_uncomputed > min(max_chunk or left, left):\n"
            "            continue\n"
        ),
        "A prompt runs only if all of it fits. Cut it: the step takes as much as there is room for.",
    ),
    WrongAnswer(
        "from_zero",
        _plan(chunk="Chunk(r.id, 0, take)"),
        "Every chunk starts at 0. A chunk starts where its request stands: at num_computed.",
    ),
    WrongAnswer(
        "stop_is_the_last",
        _plan(chunk="Chunk(r.id, r.num_computed, r.num_computed + take - 1)"),
        "The stop is one too small. A chunk is [start, stop): stop is the position behind its last token.",
    ),
    WrongAnswer(
        "one_short",
        _plan(full="left <= 1 or len(chunks) >= max_num_seqs"),
        "The last token of the budget is never used. The budget may be used up exactly.",
    ),
)

RIGHT = (
    f"""\
{HEAD}    left, plan = max_num_batched_tokens, []
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
""",
    """\
def plan_step(requests, max_num_batched_tokens, max_chunk, max_num_seqs):
    queue = sorted((r for r in requests if r.num_uncomputed > 0), key=lambda r: not r.decoding)[:max_num_seqs]
    wants = [min(r.num_uncomputed, max_chunk or r.num_uncomputed) for r in queue]
    ends = np.minimum(np.cumsum(wants), max_num_batched_tokens).astype(int).tolist()
    takes = np.diff([0, *ends]).tolist()
    return [Chunk(r.id, r.num_computed, r.num_computed + take) for r, take in zip(queue, takes) if take]
""",
)
