"""Kept answers to exercise 9.4: policies that break a rule, starve a request or waste the target, and right ones."""

from __future__ import annotations

from autograder.exercise import WrongAnswer


def _policy(
    *, decodes: str = "[: min(max_num_batched_tokens, max_num_seqs)]",
    left: str = "max_num_batched_tokens - len(chunks)", us: str = "47_000 - 2_600 - 108 * len(chunks)",
    order: str = "(r is oldest, r.num_uncomputed)", kept: str = "us / 4",
    take: str = "min(r.num_uncomputed, max_chunk or left, left, int(share / (15 + 0.00074 * r.num_tokens)))",
    room: str = "len(chunks) < max_num_seqs", stop: str = "r.num_computed + take", then: str = "", first: str = "",
) -> str:  # fmt: skip
    """Decodes first, then the shortest prompts, with a share kept for the oldest; each part may be another."""
    return f"""\
def my_policy(requests, max_num_batched_tokens, max_chunk, max_num_seqs):
    {first or "pass"}
    chunks = [Chunk(r.id, r.num_computed, r.num_computed + 1) for r in requests if r.decoding]{decodes}
    prompts = [r for r in requests if not r.decoding and r.num_uncomputed > 0]
    left, us = {left}, {us}
    oldest = min(prompts, key=lambda r: r.arrival, default=None)
    kept = {kept}
    for r in sorted(prompts, key=lambda r: {order}):
        share = us if r is oldest else us - kept
        take = {take}
        if take > 0 and {room}:
            chunks.append(Chunk(r.id, r.num_computed, {stop}))
            left -= take
            us -= take * (15 + 0.00074 * r.num_tokens)
            {then or "pass"}
    return tuple(chunks)
"""


WRONG = (
    WrongAnswer(
        "over_budget",
        _policy(left="max_num_batched_tokens", us="10**9"),
        "Prompts get the whole budget although decodes have taken theirs. The budget is for the step as a whole: "
        "subtract the decodes first.",
    ),
    WrongAnswer(
        "unchecked_decodes",
        _policy(decodes=""),
        "The decodes are planned without a look at the budget and max_num_seqs. With more decodes than the budget "
        "allows only the first ones may run.",
    ),
    WrongAnswer(
        "mutates_requests",
        _policy(then="r.num_computed += take"),
        "It advances num_computed while it plans. A plan is only a plan: if the step fails, those tokens have no "
        "keys and values. The scheduler advances a request when its step commits.",
    ),
    WrongAnswer(
        "forgets_max_num_seqs",
        _policy(room="True"),
        "It serves more requests than max_num_seqs. Every request with a chunk counts, decodes included.",
    ),
    WrongAnswer(
        "length_as_stop",
        _policy(stop="take"),
        "A chunk's third number is where it stops, in positions of the request: num_computed + length. Here it is the "
        "length, which is right only for a request that begins.",
    ),
    WrongAnswer(
        "past_the_end",
        _policy(take="min(max_chunk or left, left, int(share / (15 + 0.00074 * r.num_tokens)))"),
        "A chunk goes on behind the last token of its prompt. Take at most num_uncomputed.",
    ),
    WrongAnswer(
        "ignores_max_chunk",
        _policy(take="min(r.num_uncomputed, left, int(share / (15 + 0.00074 * r.num_tokens)))"),
        "max_chunk is never looked at. It limits the tokens of one request in a step; 0 means no limit.",
    ),
    WrongAnswer(
        "starves_decodes",
        _policy(
            decodes="[: 0 if any(not r.decoding for r in requests) else min(max_num_batched_tokens, max_num_seqs)]",
        ),
        "Decodes run only when no prompt waits. While prompts keep coming, the users who stream get nothing: that is "
        "the freeze of notebook 00, without end.",
    ),
    WrongAnswer(
        "shortest_first_without_bound",
        _policy(order="r.num_uncomputed", kept="0", first="oldest = None"),
        "The shortest prompt always goes first. While short ones keep coming, a long one never runs. Keep a share of "
        "each step for the oldest.",
    ),
    WrongAnswer(
        "longest_first",
        _policy(order="-r.num_uncomputed", kept="0"),
        "The longest prompt goes first, and all others wait for it. Most requests are short: they miss the target "
        "for the first token because of a few.",
    ),
    WrongAnswer(
        "no_time_limit",
        _policy(us="10**9"),
        "A step is filled up to the budget of 8,192 tokens, whatever it takes: that is 150 ms and more. The target "
        "for the gap is 50 ms, so a step must stop long before the budget is used up.",
    ),
    WrongAnswer(
        "whole_prompts",
        _policy(take="r.num_uncomputed if r.num_uncomputed <= min(max_chunk or left, left) else 0", us="10**9"),
        "No prompt is cut: it runs when all of it fits into the step. Long ones freeze the users, and one that is "
        "longer than the budget never runs.",
    ),
    WrongAnswer(
        "chunks_of_64",
        _policy(
            take="min(r.num_uncomputed, max_chunk or left, left, 64, 64 - sum(c.stop - c.start for c in chunks if "
            "c.stop - c.start > 1))"
        ),
        "A step holds 64 prompt tokens at most. Each step costs its fixed part whatever is in it, so the prompts "
        "take many times as long, and the queue grows.",
    ),
    WrongAnswer(
        "one_prompt_at_a_time",
        _policy(order="r.arrival", kept="0", take="min(r.num_uncomputed, max_chunk or left, left, 256)", then="break"),
        "One prompt has a chunk in a step, and the others wait although there is time for them too. A step with a "
        "short prompt is then nearly empty.",
    ),
    WrongAnswer(
        "ignores_decodes_time",
        _policy(
            us="50_000 - 15 * 24",
            kept="0",
            order="r.arrival",
            take="min(r.num_uncomputed, max_chunk or left, left, int(share / 15))",
        ),
        "The step's fixed part, its decodes and the attention are forgotten: only prompt tokens count. So the steps of "
        "long prompts take more than 50 ms.",
    ),
)

RIGHT = (
    """\
def my_policy(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs):
    plan, tokens, clock = [], max_num_batched_tokens, 2_600.0

    def give(r, us):
        nonlocal tokens, clock
        if len(plan) == max_num_seqs or any(c.request_id == r.id for c in plan):
            return
        each = 108 if r.decoding else 15 + 0.00074 * r.num_tokens
        take = 1 if r.decoding else int(us // each)
        take = min(take, tokens, r.num_uncomputed, max_chunk or r.num_uncomputed)
        if take > 0:
            plan.append(Chunk(r.id, r.num_computed, r.num_computed + take))
            tokens, clock = tokens - take, clock + take * each

    for r in requests:
        if r.decoding:
            give(r, 1)
    prompts = [r for r in requests if not r.decoding]
    if prompts:
        free = 48_000 - clock
        others = 15 * sum(r.num_uncomputed for r in prompts)
        give(min(prompts, key=lambda r: r.arrival), max(free / 4, free - others))
    for r in sorted(prompts, key=lambda r: r.num_uncomputed):
        give(r, 48_000 - clock)
    return tuple(plan)
""",
    _policy(us="46_000 - 2_600 - 108 * len(chunks)", kept="us / 3"),
    # short ones before long ones, each group in order of arrival, and an aged one before all
    _policy(order="(r is not oldest or r.num_uncomputed > 600, r.num_uncomputed > 600, r.arrival)", kept="us / 5"),
)
