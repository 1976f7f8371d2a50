"""Exercise 5.2, commit: the step was computed, so each request with a chunk in it advances."""

from __future__ import annotations

import numpy as np

from autograder.compare import counted, same_integers
from autograder.exercise import Call, Exercise, Group
from autograder.exercises.nb05_states import (
    IMPORTS,
    After,
    Row,
    call_of,
    judge_with,
    listed,
    packed,
    random_rows,
    requests_in,
    state_of,
    token_for,
)
from autograder.kept import known_mistakes

STATES = 50


def drive(commit, numbers: list[int], admitted: int) -> np.ndarray:
    """The state after the commit, and what it returned."""
    state = state_of(numbers, admitted)
    requests = requests_in(state, numbers)
    returned = commit(state, {chunk.request_id: token_for(chunk.request_id) for chunk in state.chunks})
    if not isinstance(returned, (list, tuple, np.ndarray)):
        what = "None" if returned is None else f"something of type {type(returned).__name__}"
        raise TypeError(f"it returned {what}, wanted the list of the ids that are finished")
    return packed(state, requests, list(returned))


def cases(seed: int) -> list[Call]:
    """Two finish side by side; a prompt half done, one that ends, one recomputed past its prompt. Then random ones."""
    rng = np.random.default_rng(seed)
    rows = [
        Row(7, 0, 5, 2, 6, 3, 1),
        Row(3, 0, 6, 4, 9, 5, 1),
        Row(9, 0, 8, 1, 8, 6, 1),
        Row(1, 0, 12, 0, 4, 6, 5),
        Row(4, 0, 9, 3, 0, 6, 10),
        Row(2, 0, 11, 0, 0, 6, 11),
        Row(5, 1, 6, 0, 0, 6, 0),
    ]
    calls = [call_of("commit of a step with six chunks", rows, 1)]
    for number in range(STATES):
        calls.append(call_of(f"commit of random step {number}", *random_rows(rng)))
    return calls


def _trouble(call: Call, got: After) -> str | None:
    rows, done = call.facts["rows"], []
    for row in rows:
        stop, end = row.computed + row.take, row.prompt + row.answer
        where = f"{call.label}: request {row.id} has {counted(end, 'token')}"
        where += f" and the chunk [{row.computed}, {stop})" if row.take else " and no chunk"
        ends = bool(row.take) and stop == end
        gets = [token_for(row.id)] if ends else []
        wanted, tokens = row.tokens + gets, got.tokens[row.id]
        if len(tokens) != len(wanted):
            return f"{where}. It gets {counted(len(tokens) - end, 'new token')}, it should get {len(gets)}."
        if tokens != wanted:
            return f"{where}. Wanted are the tokens that it had{' and the sampled one behind them' if ends else ''}."
        if got.computed[row.id] != stop:
            return f"{where}. Afterwards num_computed is {got.computed[row.id]}, it should be {stop}."
        done += [row.id] if row.answer + len(gets) >= row.max_tokens and not row.waits else []
    running = [row.id for row in rows if not row.waits and row.id not in done]
    if got.running != running:
        return f"{call.label}: afterwards {listed(got.running)} run, it should be {listed(running)}."
    if got.returned != done:
        return f"{call.label}: it returned {listed(got.returned)}, finished are {listed(done)}."
    if got.waiting != [row.id for row in rows if row.waits]:
        return f"{call.label}: afterwards {listed(got.waiting)} wait. Commit leaves the queue alone."
    if got.chunks or got.admitted:
        return f"{call.label}: the step is still open. Afterwards state.chunks is () and state.admitted is 0."
    return None


SOLUTION = "course_lib.lessons.nb05_budget:commit"

MISTAKES = r"""
    a_token_for_every_chunk
      chunk.stop == request.num_tokens  ->  True
    Every chunk gives its request a token. The logits in the middle of a prompt predict a token that the prompt already
    has: only a chunk that ends at the newest token gives one.

    only_prompts
      chunk.stop == request.num_tokens  ->  chunk.stop == request.prompt_len
    A token comes only when the prompt ends. A decode, and a request that is recomputed to its newest token, get theirs
    as well: compare with all tokens, num_tokens.

    past_the_prompt
      chunk.stop == request.num_tokens  ->  chunk.stop >= request.prompt_len
    A token comes as soon as the prompt is done. A request that is recomputed has answer tokens behind its prompt, and a
    chunk that ends before the newest of them gives no token.

    only_decodes
      chunk.stop == request.num_tokens  ->  chunk.num_tokens == 1 and chunk.stop == request.num_tokens
    Only chunks of one token give a token. The chunk that ends a prompt gives the answer's first one.

    computed_with_the_new_token
      (sampled[request.id])  ->  (sampled[request.id])\nrequest.num_computed = request.num_tokens
    The new token is counted as computed. It has only been chosen; its key and value are computed in the next step.

    advances_by_one
      request.num_computed = chunk.stop  ->  request.num_computed += 1
    num_computed grows by one whatever the chunk. A chunk computes its tokens up to its stop.

    prompts_do_not_advance
      request.num_computed = chunk.stop  ->
      (sampled[request.id])  ->  (sampled[request.id])\nrequest.num_computed = chunk.stop
    A chunk in the middle of a prompt does not advance its request, so the same tokens would be computed for ever.

    token_exchanged
      request.token_ids.append(sampled[request.id])  ->  request.token_ids[-1] = sampled[request.id]
    The sampled token takes the place of the newest one. It comes behind it.

    token_of_another
      sampled[request.id]  ->  sampled.get(state.running[0].id, 0)
    A request gets the token of another one. sampled has each one's own, by request id.

    prompt_counts
      if request.why_done()  ->  if request.num_tokens >= request.max_tokens
      not request.why_done()  ->  request.id not in finished
    The prompt is counted as if it had been generated. max_tokens counts the answer alone, as why_done() does.

    one_too_many
      if request.why_done()  ->  if request.num_tokens - request.prompt_len > request.max_tokens
      not request.why_done()  ->  request.id not in finished
    A request is finished one token too late: max_tokens is the most that it generates.

    nobody_leaves
      state.running = [request for request in state.running if not request.why_done()]  ->
    A finished request stays in state.running. It counts towards max_num_seqs for ever, and blocks the waiting requests.

    removed_in_the_loop
      state.running = [request for request in  ->  for request in
      running if not request.why_done()]  ->  running:\n    if request.why_done(): state.running.remove(request)
    You remove from the list over which you loop, so the request behind a removed one is passed over. Make a new list of
    the requests that stay.

    leaves_with_the_prompt
      if request.why_done()  ->  if request.num_computed >= request.prompt_len
      not request.why_done()  ->  request.id not in finished
    A request leaves as soon as its prompt is computed, before it has its answer. why_done() says which requests are
    finished.

    step_stays_open
      state.chunks, state.admitted = (), 0  ->
    The step stays open: clear state.chunks and state.admitted, or the next step cannot begin.

    returns_those_that_run
      return finished  ->  return [request.id for request in state.running]
    You return the requests that still run. Return the ids of the finished ones.
"""

EXERCISE = Exercise(
    name="commit",
    groups=(Group("states", cases, judge_with(_trouble, "{} steps")),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 05, section 4.",
    imports=IMPORTS,
    solution=SOLUTION,
    driver=drive,
)
