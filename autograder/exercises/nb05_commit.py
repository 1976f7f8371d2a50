"""Exercise 5.2, commit: the step was computed, so each request with a chunk in it advances."""

from __future__ import annotations

import numpy as np

from autograder.compare import counted, same_integers
from autograder.exercise import Call, Exercise, Group, WrongAnswer
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


def _commit(
    *,
    advance: str = "        request.num_computed = chunk.stop\n",
    when: str = "chunk.stop == request.num_tokens",
    give: str = "request.token_ids.append(sampled[request.id])",
    more: str = "",
    done: str = "request.why_done()",
    leave: str | None = None,
    close: str = "    state.chunks, state.admitted = (), 0\n",
    returned: str = "finished",
) -> str:
    leave = leave or "    state.running = [r for r in state.running if r.id not in finished]\n"
    return f"""\
def commit(state, sampled):
    requests = {{request.id: request for request in state.running}}
    for chunk in state.chunks:
        request = requests[chunk.request_id]
{advance}        if {when}:
            {give}
{more}    finished = [request.id for request in state.running if {done}]
{leave}{close}    return {returned}
"""


WRONG = (
    WrongAnswer(
        "a_token_for_every_chunk",
        _commit(when="True"),
        "Every chunk gives its request a token. The logits in the middle of a prompt predict a token that the prompt "
        "already has: only a chunk that ends at the newest token gives one.",
    ),
    WrongAnswer(
        "only_prompts",
        _commit(when="chunk.stop == request.prompt_len"),
        "A token comes only when the prompt ends. A decode, and a request that is recomputed to its newest token, get "
        "theirs as well: compare with all tokens, num_tokens.",
    ),
    WrongAnswer(
        "past_the_prompt",
        _commit(when="chunk.stop >= request.prompt_len"),
        "A token comes as soon as the prompt is done. A request that is recomputed has answer tokens behind its "
        "prompt, and a chunk that ends before the newest of them gives no token.",
    ),
    WrongAnswer(
        "only_decodes",
        _commit(when="chunk.stop - chunk.start == 1 and chunk.stop == request.num_tokens"),
        "Only chunks of one token give a token. The chunk that ends a prompt gives the answer's first one.",
    ),
    WrongAnswer(
        "computed_with_the_new_token",
        _commit(more="            request.num_computed = request.num_tokens\n"),
        "The new token is counted as computed. It has only been chosen; its key and value are computed in "
        "the next step.",
    ),
    WrongAnswer(
        "advances_by_one",
        _commit(advance="        request.num_computed += 1\n"),
        "num_computed grows by one whatever the chunk. A chunk computes its tokens up to its stop.",
    ),
    WrongAnswer(
        "prompts_do_not_advance",
        _commit(
            advance="",
            when="chunk.stop == request.num_tokens and not setattr(request, 'num_computed', chunk.stop)",
        ),
        "A chunk in the middle of a prompt does not advance its request, so the same tokens would be "
        "computed for ever.",
    ),
    WrongAnswer(
        "token_exchanged",
        _commit(give="request.token_ids[-1] = sampled[request.id]"),
        "The sampled token takes the place of the newest one. It comes behind it.",
    ),
    WrongAnswer(
        "token_of_another",
        _commit(give="request.token_ids.append(sampled[state.running[0].id] if state.running[0].id in sampled else 0)"),
        "A request gets the token of another one. sampled has each one's own, by request id.",
    ),
    WrongAnswer(
        "prompt_counts",
        _commit(done="request.num_tokens >= request.max_tokens"),
        "The prompt is counted as if it had been generated. max_tokens counts the answer alone, as why_done() does.",
    ),
    WrongAnswer(
        "one_too_many",
        _commit(done="request.num_tokens - request.prompt_len > request.max_tokens"),
        "A request is finished one token too late: max_tokens is the most that it generates.",
    ),
    WrongAnswer(
        "nobody_leaves",
        _commit(leave="    pass\n"),
        "A finished request stays in state.running. It counts towards max_num_seqs for ever, and blocks "
        "the waiting requests.",
    ),
    WrongAnswer(
        "removed_in_the_loop",
        _commit(
            leave="    for request in state.running:\n        if request.id in finished:\n"
            "            state.running.remove(request)\n"
        ),
        "You remove from the list over which you loop, so the request behind a removed one is passed over. Make a "
        "new list of the requests that stay.",
    ),
    WrongAnswer(
        "leaves_with_the_prompt",
        _commit(done="request.num_computed >= request.prompt_len"),
        "A request leaves as soon as its prompt is computed, before it has its answer. why_done() says which "
        "requests are finished.",
    ),
    WrongAnswer(
        "step_stays_open",
        _commit(close=""),
        "The step stays open: clear state.chunks and state.admitted, or the next step cannot begin.",
    ),
    WrongAnswer(
        "returns_those_that_run",
        _commit(returned="[request.id for request in state.running]"),
        "You return the requests that still run. Return the ids of the finished ones.",
    ),
)

RIGHT = (
    """\
def commit(state, sampled):
    stops = {chunk.request_id: chunk.stop for chunk in state.chunks}
    still, finished = [], []
    for request in state.running:
        if request.id in stops:
            request.num_computed = stops[request.id]
            if request.num_uncomputed == 0:
                request.token_ids += [sampled[request.id]]
        if request.why_done():
            finished.append(request.id)
        else:
            still.append(request)
    state.running, state.chunks, state.admitted = still, (), 0
    return finished
""",
    """\
def commit(state, sampled):
    finished = []
    for chunk in state.chunks:
        (request,) = [r for r in state.running if r.id == chunk.request_id]
        ends = chunk.stop == len(request.token_ids)
        request.num_computed += chunk.num_tokens
        if ends:
            request.token_ids.append(sampled[chunk.request_id])
    for request in list(state.running):
        if len(request.generated) >= request.max_tokens:
            finished.append(request.id)
            state.running.remove(request)
    state.chunks = ()
    state.admitted = 0
    return tuple(finished)
""",
)

EXERCISE = Exercise(
    name="commit",
    number="5.2",
    title="The step was computed",
    notebook="05_budget",
    mode="equal",
    groups=(Group("states", 4, cases, judge_with(_trouble, "{} steps")),),
    same=same_integers,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 05, section 4.",
    imports=IMPORTS,
    library=("course_lib.lessons.nb05_budget:commit",),
    driver=drive,
)
