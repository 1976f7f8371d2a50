"""Exercise 8.2, next_chunk: what the next step computes of a request, behind whatever is cached."""

from __future__ import annotations

from collections.abc import Iterator

from autograder.drivers import nb08
from autograder.exercise import Call
from autograder.kit import draws, exercise, values

SOLUTION = "course_lib.lessons.nb08_both:next_chunk"
FORM = (int, int, [(str, str)])  # start, stop, and what has changed in the request


def requests(seed: int) -> Iterator[tuple[int, ...]]:
    """Behind a hit; later chunks; decodes; preempted; caps down to 1, none; a budget of 1, spent, overdrawn."""
    draw = draws(seed)
    yield 7_000, 7_000, 4_992, 4_992, 1_024, 1_024
    yield 7_000, 7_000, 6_016, 4_992, 1_024, 1_024
    yield 7_000, 7_000, 4_992, 4_992, 1_021, 0
    for left in (0, 1, 2, -1):
        for most in (0, 1, 2):
            yield 1, 1, 0, 0, left, most  # a prompt of one token
            yield 17, 17, 16, 16, left, most  # cached up to its last token
            yield 18, 18, 16, 16, left, most
            yield 17, 17, 17, 16, left, most  # nothing is left
    for _ in range(2):
        hit, cap = 16 * draw(3, 40), draw(40, 70)
        prompt = hit + 3 * cap + draw(5, 30)
        done = hit + cap + draw(1, 9)
        yield prompt, prompt, hit, hit, cap + draw(1, 9), cap
        yield prompt, prompt, done, hit, cap - draw(1, 9), cap  # the budget is what limits
        yield prompt, prompt, prompt - draw(2, 9), hit, cap, cap  # the prompt's end is
        for rest in (1, cap - 1, cap, cap + 1):
            yield prompt, prompt, prompt - rest, hit, cap, cap
            yield prompt, prompt, prompt - rest, hit, cap, 0
        yield prompt, prompt, hit, hit, cap, 0
        yield prompt, prompt, prompt - draw(2, 9), hit, 10 * cap, 0
        yield prompt, prompt, 0, 0, cap + 3, cap
        yield prompt + 7, prompt, prompt + 6, hit, cap, cap  # a decode
        yield prompt + 7, prompt, prompt - draw(1, 4), prompt - 16, cap, cap  # preempted in the middle of its answer
        yield prompt + 40, prompt, prompt + 16, prompt + 16, cap, cap  # the hit reaches into its answer
        yield prompt + 40, prompt, prompt + 20, prompt + 16, cap, 9
        for left in (0, 1, -draw(2, 9)):
            for most in (cap, 0, 1):
                yield prompt, prompt, done, hit, left, most
        yield prompt, prompt, done, hit, cap, 1
        for left in (0, 1, -1):
            for most in range(3):
                yield prompt + 7, prompt, prompt + 6, hit, left, most  # a decode at the edge of the budget
    yield 7_000, 7_000, 4_992, 4_992, 1_024, 1_024  # the first once more: another request with the same numbers


def label(tokens: int, prompt: int, computed: int, cached: int, left: int, max_chunk: int) -> str:
    own = f"num_tokens={tokens}, prompt_len={prompt}, num_computed={computed}, num_cached={cached}"
    return f"next_chunk of a request with {own}, left={left}, max_chunk={max_chunk},"


def trouble(call: Call, got: tuple, wanted: tuple) -> str | None:
    if got[2]:
        return f"{call.label} changes the request: {', '.join(f'{n} is {value} afterwards' for n, value in got[2])}."
    return None if got == wanted else f"{call.label} is {got[:2]}, it should be {wanted[:2]}."


MISTAKES = r"""
    chunk_relative
      return start, start + max(take, 0)  ->  return 0, max(take, 0)
    Your chunks are counted from where the request stands, not from its first token. The engine needs absolute
    positions: start is request.num_computed.

    behind_the_hit
      return start,  ->  start -= request.num_cached\nreturn start,
    Your chunks are counted from the end of the hit. Positions begin at the prompt's first token, cached or not.

    hit_not_counted
      request.num_tokens - start  ->  request.num_tokens - start + request.num_cached
    The chunk begins right, and what is left is counted as if nothing had been attached: it runs past the last token.

    prompt_len
      request.num_tokens  ->  request.prompt_len
    What is left is counted to the end of the prompt. After a preemption the tokens of the answer must be computed
    again, and a decode's token stands behind the prompt: request.num_tokens counts them all.

    no_cap
      max_chunk or left, left  ->  left
    max_chunk is ignored. One request may take no more than that in a step, however much budget is left.

    cap_of_zero
      max_chunk or left  ->  max_chunk
    max_chunk=0 means that there is no cap. Here it means that nothing may be taken.

    no_budget
      max_chunk or left, left  ->  max_chunk or request.num_tokens
    `left` is ignored: the step holds more tokens than its budget. Other requests have taken their part before.

    negative
      max(take, 0)  ->  take
    The budget is overdrawn, and so your chunk has a negative length. Nothing is left then: take 0.

    at_least_one
      max(take, 0)  ->  max(take, 1)
    At least one token is taken, even when no budget is left. That is how a budget gets overdrawn.

    decode_needs_no_budget
      take = min(  ->  take = 1 if request.num_tokens - start == 1 else min(
    A last token, or a decode, is taken even when no budget is left. It is a token like any other.

    budget_of_one
      max(take, 0)  ->  (max(take, 0) if left > 1 else 0)
    With a budget of 1 nothing is taken. One token of a prompt is a chunk too.

    cap_of_one
      max_chunk or left  ->  (max_chunk if max_chunk > 1 else left)
    max_chunk=1 is ignored. Only 0 means that there is no cap.

    length
      start + max(take, 0)  ->  max(take, 0)
    The second number is the chunk's length. It should be its stop, which is start plus the length.

    last_token_included
      start + max(take, 0)  ->  start + max(take, 0) - 1
    The second number is the chunk's last token. It should be its stop, one behind the last.

    advances
      return start,  ->  request.num_computed += max(take, 0)\nreturn start,
    Your function advances num_computed. It is asked what to compute; the tokens are computed only when the step has
    run, and a step may fail.

    on_the_grid
      start = request.num_computed  ->  start = request.num_computed // (max_chunk or 1) * (max_chunk or 1)
    Your chunk begins at a multiple of max_chunk. A hit may end anywhere, and the chunk begins right behind it.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        values("values", SOLUTION, requests, label, trouble, count="chunks", driver=nb08.next_chunk, form=FORM),
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 08, section 3.",
    imports="import numpy as np\nfrom course_lib.schedule.request import Request",
    driver=nb08.next_chunk,
)
