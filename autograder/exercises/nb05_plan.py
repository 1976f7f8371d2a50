"""Exercise 5.1, plan_step: decodes first, then prompts in order, never over the budget."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.compare import counted
from autograder.drivers import nb05
from autograder.drivers.nb05 import Row
from autograder.exercise import Call
from autograder.kit import exercise, values
from autograder.plain import short

SOLUTION = "course_lib.schedule.plan:plan_step"
KINDS = 16  # of requests


def request_in(kind: int, number: int, rng: np.random.Generator) -> tuple[int, ...]:
    """A request in one of the situations that a planner tells apart."""
    prompt, answer, c = (int(rng.integers(*bounds)) for bounds in ((5, 12), (3, 6), (1, 4)))
    end = prompt + answer
    sizes = [
        (prompt,),
        (prompt, answer, end - 1, c),  # decoding
        (prompt, 0, c),
        (prompt, answer, prompt + 1, c),  # preempted, and recomputed past its prompt
        (prompt, 0, prompt),  # finished
        (prompt, answer, end - 1, end - 1),  # preempted, all but the newest token cached: it is not decoding
        (prompt, 1, prompt),  # decoding
        (prompt, 0, c, c),  # behind a prefix hit
        (prompt, answer),  # preempted
        (prompt, 0, prompt - 1),
        (prompt, answer, end),  # finished
        (prompt, answer, c, c),
        (prompt, answer, prompt, c),
        (prompt, 0, prompt - 1, prompt - 1),
        (1,),
        (prompt, answer, end - 2, prompt),
    ]
    return (number, *sizes[kind])


def states(seed: int, knobs: bool) -> Iterator[tuple]:
    """(requests, budget, max_chunk, max_num_seqs); without knobs there is no cap, and the budget alone limits."""
    rng = np.random.default_rng(seed)

    def some(*kinds: int) -> list[tuple]:
        return [request_in(kind, number, rng) for kind, number in zip(kinds, rng.permutation(40).tolist())]

    decodes, prompts = [(i, 5, 1, 5) for i in range(12)], [(i, 40) for i in range(12, 16)]
    crowd = [(i, 5, 1, 5) for i in range(100, 140)] + [(i, 2_500) for i in range(3)]
    mixed = tuple(some(*range(KINDS)))
    if knobs:
        yield from ((decodes[:1] + prompts, budget, 10, 64) for budget in (41, 25))  # all four; two and a half
        yield [(3, 9, 0, 9), (1, 20, 0, 4), (2, 8, 1, 8)], 16, 0, 1
        yield decodes[:1] + prompts, 64, 0, 3  # max_num_seqs leaves room for two prompts
        yield decodes[:6], 64, 1, 4
        yield [], 8, 4, 2
        yield from ((some(kind), 40, cap, 8) for kind in range(KINDS) for cap in (0, 2))
        limits = [(budget, cap, seqs) for budget in (0, 1, 9, 100) for cap in (0, 1, 7) for seqs in (1, 2, 3, 13, 14)]
    else:
        yield decodes + prompts[:1], 8, 0, 64  # more decodes than budget
        yield decodes[:8] + prompts[:1], 8, 0, 64
        yield [(3, 9, 0, 9), (1, 20, 0, 4), (2, 8, 1, 8)], 16, 0, 64  # a finished one in front
        yield [(0, 9, 5), (2, 9, 5, 11, 2), (1, 8, 1, 8)], 16, 0, 64  # recomputed, answer included
        yield [(0, 40), (1, 8, 1, 8), (2, 8, 0, 7), (3, 40)], 32, 0, 64
        yield [], 8, 0, 64
        yield from ((some(kind), budget, 0, 64) for kind in range(KINDS) for budget in (40, 1))
        needed = sum(Row(*row).tokens - Row(*row).computed for row in mixed)
        limits = [(budget, 0, 64) for budget in (*range(12), *range(12, needed, 5), needed, needed + 1)]
    yield from ((mixed, *three) for three in limits)
    yield crowd, 4_096, 2_048 if knobs else 0, 42 if knobs else 64
    for _ in range(25):
        rows = some(*rng.integers(0, KINDS, rng.integers(2, 10)))
        cap, seqs = (rng.integers(0, 4) * rng.integers(1, 6), rng.integers(1, len(rows) + 2)) if knobs else (0, 64)
        yield rows, int(rng.integers(1, 60)), int(cap), int(seqs)


def label(rows: list | tuple, budget: int, cap: int, max_num_seqs: int) -> str:
    def written(r: Row) -> str:
        if r.computed == r.tokens:
            return f"{r.id}: all {r.tokens} computed"
        if r.prompt <= r.computed == r.tokens - 1 and r.computed > r.cached:
            return f"{r.id}: decoding"
        found = "cached" if 0 < r.cached == r.computed else "computed"
        return f"{r.id}: prompt of {r.prompt}{f' and {r.answer} of answer' * bool(r.answer)}, {r.computed} {found}"

    listed = short("; ".join(written(Row(*row)) for row in rows), 500)
    return f"plan_step([{listed}], budget {budget}, max_chunk {cap}, max_num_seqs {max_num_seqs})"


def trouble(call: Call, got: tuple, wanted: tuple) -> str | None:
    """The first rule that the plan breaks, and the plan that was wanted if it breaks none by itself."""
    (chunks, changed), (requests, budget, cap, max_num_seqs) = got, call.args
    rows = {row[0]: Row(*row) for row in requests}
    if changed:
        return f"{call.label} has changed {changed[0][1]} of request {changed[0][0]}. A plan only reads the requests."
    for i, start, stop in chunks:
        r, has = rows.get(i), f"{call.label} has Chunk({i}, {start}, {stop})"
        if r is None:
            return f"{has}, of request {i}, which it was not given."
        if start != r.computed:
            return f"{has}; request {i} has {counted(r.computed, 'token')} computed, so it starts there."
        if r.computed == r.tokens:
            return f"{has}; request {i} has no token left to compute."
        if not start < stop <= r.tokens:
            return f"{has}; request {i} has {counted(r.tokens, 'token')}, and a chunk at least one."
        if cap and stop - start > cap:
            return f"{has}: more tokens than max_chunk={cap}."
    total = sum(stop - start for _, start, stop in chunks)
    if len({i for i, *_ in chunks}) < len(chunks):
        return f"{call.label} has two chunks of one request."
    if total > budget:
        return f"{call.label} plans {counted(total, 'token')}; the budget is {budget}."
    if len(chunks) > max_num_seqs:
        return f"{call.label} serves {counted(len(chunks), 'request')}; max_num_seqs is {max_num_seqs}."
    plans = (short(", ".join(f"{i}: [{a}, {b})" for i, a, b in plan), 400) for plan in (chunks, wanted[0]))
    return None if got == wanted else "{} is ({}), it should be ({}).".format(call.label, *plans)


MISTAKES = r"""
    unchecked_decodes
      left <= 0  ->  (left <= 0 and not decoding)
      take = min(  ->  take = 1 if decoding else min(
    Subtracting does not enforce a budget. The decodes go on when nothing is left, and what is left becomes negative.
    Ask before each one, decodes too.

    negative_take
      left <= 0  ->  (left == 0 and not decoding)
      take = min(  ->  take = 1 if decoding else min(
    The decodes take what is left below zero, and your test for 'nothing left' is == 0: a negative number passes, and a
    prompt gets a chunk of negative length. Ask for <= 0, before each decode too.

    break_on_done
      left <= 0  ->  left <= 0 or (not decoding and request.num_uncomputed == 0)
    A request with nothing left to compute ends your loop, so those behind it get nothing. Pass over it: continue. The
    step is full only when the budget is used up or max_num_seqs requests have a chunk.

    chunk_for_the_finished
      decoding and request.num_uncomputed > 0  ->  decoding
    A request with nothing left to compute gets an empty chunk. Pass over it.

    prompt_only
      request.num_uncomputed > 0  ->  (decoding or request.num_computed < request.prompt_len)
      min(request.num_uncomputed  ->  1 if decoding else min(request.prompt_len - request.num_computed
    You count what is left of the prompt. After a preemption the answer's tokens must be computed again as well: what is
    left is len(token_ids) - num_computed.

    advances
      left -= take  ->  left -= take\nrequest.num_computed += take
    Your planner advances num_computed. Nothing has been computed yet, and the step may still fail: a plan reads, and
    commit advances.

    prompts_first
      (True, False)  ->  (False, True)
    The prompts come first and use up the budget, so streaming users wait. Decodes first, then prompts.

    order_of_the_list
      (True, False)  ->  (None,)
      request.decoding == decoding and request.num_uncomputed > 0  ->  request.num_uncomputed > 0
    You take the requests as they stand in the list. Decodes come first, wherever they stand; then the rest, in order.

    last_prompt_token_as_decode
      request.decoding == decoding  ->  (request.num_uncomputed == 1) == decoding
    You treat every request with one token left as a decode. The last token of a prompt is no decode: no user is
    streaming there yet. Ask request.decoding.

    past_the_prompt
      request.decoding == decoding  ->  (request.num_computed >= request.prompt_len) == decoding
    You take every request that is past its prompt for a decode. After a preemption the answer's tokens are computed
    again as well, and it decodes only when the newest of them alone is left. Ask request.decoding.

    decodes_are_free
      left -= take  ->  left -= 0 if decoding else take
    Your decodes cost nothing. A decode is a token of the step like any other, and comes off the budget.

    budget_for_each
      left -= take  ->
    Each request is compared with the whole budget, because nothing is subtracted. They share the step.

    at_zero
      left <= 0  ->  left < 0
    When the budget is used up exactly, the next request gets an empty chunk. Ask for <= 0.

    no_cap
      max_chunk or left, left  ->  left
    max_chunk is not used. It is the most that one request may have in a step, whatever the budget.

    zero_is_a_cap
      max_chunk or left, left  ->  max_chunk, left
      request.num_uncomputed > 0  ->  min(request.num_uncomputed, max_chunk) > 0
    max_chunk = 0 means that there is no cap. You cap at 0, so no request gets a chunk.

    cap_for_the_step
      left = max_num_batched_tokens  ->  left = min(max_num_batched_tokens, max_chunk or max_num_batched_tokens)
    You take max_chunk for the budget of the whole step. It caps each request by itself; several may have that much.

    no_max_num_seqs
      left <= 0 or len(chunks) >= max_num_seqs  ->  left <= 0
    max_num_seqs is not used. It is the most requests that a step may serve.

    prompts_alone_count
      len(chunks) >=  ->  sum(c.stop - c.start > 1 for c in chunks) >=
    Only chunks of more than one token are counted. Every request in the step counts towards max_num_seqs, decodes too.

    first_of_the_list
      in requests:  ->  in requests[:max_num_seqs]:
    You cut the list at max_num_seqs. Finished requests count then, and a decode further back gets nothing. Count the
    chunks of the plan.

    one_prompt
      left -= take  ->  left -= take\nif not decoding:\n    break
    Only one prompt gets a chunk. While budget is left and max_num_seqs is not reached, the next one gets one too.

    whole_or_nothing
      request.num_uncomputed > 0  ->  0 < request.num_uncomputed <= min(max_chunk or left, left)
    A prompt runs only if all of it fits. Cut it: the step takes as much as there is room for.

    from_zero
      request.num_computed, request.num_computed + take  ->  0, take
    Every chunk starts at 0. A chunk starts where its request stands: at num_computed.

    stop_is_the_last
      request.num_computed + take  ->  request.num_computed + take - 1
    The stop is one too small. A chunk is [start, stop): stop is the position behind its last token.

    one_short
      left <= 0  ->  left <= 1
    The last token of the budget is never used. The budget may be used up exactly.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        values(
            name, SOLUTION, lambda seed, knobs=name == "knobs": states(seed, knobs), label, trouble, count="states",
            driver=nb05.plan_step, form=([(int, int, int)], [(int, str)]),
        )
        for name in ("budget", "knobs")
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 05, section 3.",
    imports="import numpy as np\nfrom collections.abc import Sequence\n"
    "from course_lib.schedule.request import Chunk, Request",
    library=("course_lib.schedule.policies:plan_in_order",),
    driver=nb05.plan_step,
)  # fmt: skip
