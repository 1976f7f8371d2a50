"""Exercise 8.2, next_chunk: what the next step computes of a request, behind whatever is cached."""

from __future__ import annotations

import operator

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.kept import known_mistakes
from course_lib.schedule.request import Request

IMPORTS = "import numpy as np\nfrom course_lib.schedule.request import Request"


def drive(answer, tokens: int, prompt: int, computed: int, cached: int, left: int, max_chunk: int):
    """[start, stop] of a request with these numbers, and num_computed and num_cached as the answer leaves them."""
    request = Request(0, list(range(tokens)), prompt_len=prompt, num_computed=computed, num_cached=cached)
    given = answer(request, left, max_chunk)
    try:
        start, stop = (operator.index(x) for x in given)
    except TypeError:
        raise TypeError(f"next_chunk gave {given!r:.60}, wanted a pair of whole numbers (start, stop)") from None
    return [start, stop, request.num_computed, request.num_cached]


def value_cases(seed: int) -> list[Call]:
    """Behind a hit; later chunks; decodes; after a preemption; a cap, none, a budget that is spent or overdrawn."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    calls = [
        (7_000, 7_000, 4_992, 4_992, 1_024, 1_024),
        (7_000, 7_000, 6_016, 4_992, 1_024, 1_024),
        (7_000, 7_000, 4_992, 4_992, 1_021, 0),
    ]
    for _ in range(2):
        hit, cap = 16 * draw(3, 40), draw(40, 70)
        prompt = hit + 3 * cap + draw(5, 30)
        done = hit + cap + draw(1, 9)
        calls += [
            (prompt, prompt, hit, hit, cap + draw(1, 9), cap),
            (prompt, prompt, done, hit, cap - draw(1, 9), cap),  # the budget is what limits
            (prompt, prompt, prompt - draw(2, 9), hit, cap, cap),  # the prompt's end is
            (prompt, prompt, prompt - 1, hit, cap, cap),
            (prompt, prompt, hit, hit, cap, 0),
            (prompt, prompt, prompt - draw(2, 9), hit, 10 * cap, 0),
            (prompt, prompt, 0, 0, cap + 3, cap),
            (prompt + 7, prompt, prompt + 6, hit, cap, cap),  # a decode
            (prompt + 7, prompt, prompt - draw(1, 4), prompt - 16, cap, cap),  # preempted in the middle of its answer
            (prompt, prompt, done, hit, 0, cap),
            (prompt, prompt, done, hit, -draw(1, 9), cap),
            (prompt, prompt, done, hit, -draw(1, 9), 0),
            (prompt, prompt, done, hit, 0, 0),
        ]
    return [Call(args, _label(*args)) for args in calls]


def _label(tokens: int, prompt: int, computed: int, cached: int, left: int, max_chunk: int) -> str:
    own = f"num_tokens={tokens}, prompt_len={prompt}, num_computed={computed}, num_cached={cached}"
    return f"next_chunk of a request with {own}, left={left}, max_chunk={max_chunk},"


def _trouble(call: Call, got: np.ndarray) -> str | None:
    tokens, _, computed, cached, left, cap = call.args
    stop = computed
    while stop < tokens and stop - computed < left and not (cap and stop - computed == cap):
        stop += 1
    if got[2:].tolist() != [computed, cached]:
        return f"{call.label} changes the request: num_computed is {got[2]} afterwards, num_cached {got[3]}."
    if got[:2].tolist() == [computed, stop]:
        return None
    return f"{call.label} is ({got[0]}, {got[1]}), it should be ({computed}, {stop})."


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} chunks")


SOLUTION = "course_lib.lessons.nb08_both:next_chunk"

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

EXERCISE = Exercise(
    name="next_chunk",
    number="8.2",
    notebook="08_both",
    mode="equal",
    groups=(Group("values", 3, value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 08, section 3.",
    imports=IMPORTS,
    library=(SOLUTION,),
    driver=drive,
)
