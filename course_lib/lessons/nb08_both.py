"""What notebook 08 builds: a hit in whole blocks, the next chunk behind it, what each of the two brings, and a test."""

import numpy as np

from course_lib.cost.linear import LinearCost
from course_lib.schedule.request import Request


def admit(prompt: int, shared: int, block_size: int) -> int:
    """How many tokens of a prompt are attached from the cache when its request is admitted.

    Only whole blocks are attached, and at least one token of the prompt is left to compute.

    prompt       tokens in the prompt, at least 1
    shared       how many of them, from the start, an earlier request has computed: 0 .. prompt
    block_size   tokens in a block
    """
    return min(shared, prompt - 1) // block_size * block_size


def next_chunk(request: Request, left: int, max_chunk: int) -> tuple[int, int]:
    """The request's tokens [start, stop) that the next step computes, in absolute positions.

    Reads the request and changes nothing. Nothing left to compute, or no budget: (start, start).

    request     request.num_tokens: its tokens, generated ones included; request.num_computed: those whose K and V
                are in the cache, the hit included
    left        tokens that the step may still take; below 0 if decodes have overdrawn it
    max_chunk   tokens of one request in a step at most; 0 = no cap of its own
    """
    start = request.num_computed
    take = min(request.num_tokens - start, max_chunk or left, left)
    return start, start + max(take, 0)


def two_by_two(prompt: int, hit: int, users: int, chunk: int, m: LinearCost) -> list[tuple[int, int]]:
    """(TTFT, longest gap), in us, of a prompt among streaming users, served in four ways.

    returns   four pairs: neither chunking nor caching, chunking only, caching only, both

    TTFT: from the start of the prompt's first step to the end of its last. Gap: from a user's token at the end of the
    step before the prompt's first, on. Without chunking the prompt has a step of its own (exclusive baseline). It wants
    one token of answer, so it does not decode afterwards.

    prompt   tokens in the prompt
    hit      of these, tokens attached from the cache, where there is caching: less than prompt
    users    streaming users, at least 1: each decodes a token in every step that decodes at all
    chunk    tokens of the prompt in a step at most, where there is chunking
    m        what a step costs: m.step_us(prompt_tokens, decodes)
    """
    cells = []
    for tail in (prompt, prompt - hit):
        alone = m.step_us(tail, 0)
        cells.append((alone, alone + m.step_us(0, users)))
        steps = [m.step_us(min(chunk, tail - done), users) for done in range(0, tail, chunk)]
        cells.append((sum(steps), max(steps)))
    return cells


def check_composition(serve, reference):
    """Raise AssertionError if the engine behind `serve` does not chunk and cache as it should.

    serve(prompts, chunk, answer=1, together=False, preempt=0)   to be tested, blocks of 4 tokens; returns a list of
                            (tokens, hit, k, v, logits), one for each prompt
    reference(token_ids)    one right, cold pass; returns k, v, logits

    What a wrong engine returns has the shapes and dtypes of reference(tokens) as well; only values differ, or `hit`.
    """
    a = [(7 * i * i + 3 * i) % 128 for i in range(24)]
    b = a[:18] + [5, 4, 3, 2, 1]
    one_by_one = serve([a, b, a], 7)
    results = one_by_one + serve([a, b], 6, together=True) + serve([a], 6, answer=3, preempt=5)
    for tokens, hit, *left in results:
        for name, got, want in zip(("k", "v", "logits"), left, reference(tokens)):
            assert np.array_equal(got, want), f"{name} differs for {len(tokens)} tokens after a hit of {hit}"
    hits = [hit for _, hit, *_ in one_by_one]
    assert hits == [0, 16, 20], f"hits of {hits}"
