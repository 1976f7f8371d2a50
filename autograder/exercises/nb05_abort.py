"""Exercise 5.3, abort: the step was not computed, so everything is as it was before it was opened."""

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
)

STATES = 50


def drive(abort, numbers: list[int], admitted: int) -> np.ndarray:
    """The state after the abort."""
    state = state_of(numbers, admitted)
    requests = requests_in(state, numbers)
    abort(state)
    return packed(state, requests)


def cases(seed: int) -> list[Call]:
    """Three admitted in front of two that wait, none admitted, all admitted; then random states."""
    rng = np.random.default_rng(seed)
    old = [Row(7, 0, 5, 2, 6, 3, 1), Row(3, 0, 12, 0, 4, 6, 5), Row(5, 0, 6, 2, 7, 6, 0)]
    new = [Row(2, 0, 11, 0, 0, 6, 11), Row(9, 0, 8, 0, 0, 6, 8), Row(1, 0, 30, 0, 0, 6, 4)]
    waiting = [Row(4, 1, 6, 0, 0, 6, 0), Row(0, 1, 9, 0, 0, 6, 0)]
    calls = [
        call_of("abort of a step that admitted 2, 9 and 1", [*old, *new, *waiting], 3),
        call_of("abort of a step that admitted none", [*old, *waiting], 0),
        call_of("abort of a step that admitted all that run", new, 3),
    ]
    for number in range(STATES):
        calls.append(call_of(f"abort of random step {number}", *random_rows(rng)))
    return calls


def _trouble(call: Call, got: After) -> str | None:
    rows, admitted = call.facts["rows"], call.facts["admitted"]
    was_running = [row.id for row in rows if not row.waits]
    first = len(was_running) - admitted
    admitted_ids, waited = was_running[first:], [row.id for row in rows if row.waits]
    for row in rows:
        if got.tokens[row.id] != row.tokens or got.computed[row.id] != row.computed:
            before = f"{counted(len(row.tokens), 'token')}, {row.computed} of them computed"
            now = f"{counted(len(got.tokens[row.id]), 'token')}, {got.computed[row.id]} of them computed"
            return f"{call.label}: request {row.id} had {before}; afterwards it has {now}."
    if got.running != was_running[:first]:
        return f"{call.label}: {listed(got.running)} run afterwards, it should be {listed(was_running[:first])}."
    if got.waiting != admitted_ids + waited:
        return f"{call.label}: {listed(got.waiting)} wait afterwards, it should be {listed(admitted_ids + waited)}."
    if got.chunks or got.admitted:
        return f"{call.label}: the step is still open. Afterwards state.chunks is () and state.admitted is 0."
    return None


CLOSE = "    state.chunks, state.admitted = (), 0\n"
SPLIT = "    first = len(state.running) - state.admitted\n"
BACK = SPLIT + "    state.waiting[:0] = state.running[first:]\n    del state.running[first:]\n"


def _wrong(name: str, body: str, message: str) -> WrongAnswer:
    return WrongAnswer(name, f"def abort(state):\n{body}", message)


WRONG = (
    _wrong(
        "nothing",
        "    pass\n",
        "Nothing happens. The step is still open, and the requests that it admitted have left the queue.",
    ),
    _wrong(
        "only_closed",
        CLOSE,
        "The step is closed, but the requests that it admitted stay in state.running. They go back to the queue.",
    ),
    _wrong(
        "stays_open",
        BACK,
        "The queue is right, and the step stays open: clear state.chunks and state.admitted.",
    ),
    _wrong(
        "to_the_end",
        SPLIT + "    state.waiting += state.running[first:]\n    del state.running[first:]\n" + CLOSE,
        "The requests that the step admitted go to the end of the queue, behind others that came later. They were "
        "at the front.",
    ),
    _wrong(
        "turned_round",
        SPLIT
        + "    for request in state.running[first:]:\n        state.waiting.insert(0, request)\n"
        + "    del state.running[first:]\n"
        + CLOSE,
        "The admitted requests come back in reverse order: each is put in front of the one before. Put them back in "
        "the order in which they stood.",
    ),
    _wrong(
        "all_wait",
        "    state.waiting[:0] = state.running\n    state.running = []\n" + CLOSE,
        "All running requests go back to the queue. The ones that ran before the step stay in state.running.",
    ),
    _wrong(
        "all_with_a_chunk",
        "    planned = {chunk.request_id for chunk in state.chunks}\n"
        "    state.waiting[:0] = [r for r in state.running if r.id in planned]\n"
        "    state.running = [r for r in state.running if r.id not in planned]\n" + CLOSE,
        "Every request with a chunk in the step goes back to the queue. Only the requests that this step admitted "
        "do: the last state.admitted of state.running.",
    ),
    _wrong(
        "lost",
        SPLIT + "    del state.running[first:]\n" + CLOSE,
        "The requests that the step admitted are in no list any more: their users wait for ever. Put "
        "them into state.waiting.",
    ),
    _wrong(
        "in_both",
        SPLIT + "    state.waiting[:0] = state.running[first:]\n" + CLOSE,
        "The requests that the step admitted now wait and run at the same time. Take them out of state.running.",
    ),
    _wrong(
        "only_the_last",
        "    if state.admitted:\n        state.waiting.insert(0, state.running.pop())\n" + CLOSE,
        "Only the one admitted last goes back. The step admitted state.admitted requests.",
    ),
    _wrong(
        "all_when_none",
        "    n = state.admitted\n    state.waiting[:0] = state.running[-n:]\n    del state.running[-n:]\n" + CLOSE,
        "When the step admitted none, all requests go back: in Python, running[-0:] is the whole list. Count "
        "from the front.",
    ),
    _wrong(
        "taken_off_again",
        "    requests = {r.id: r for r in state.running}\n    for chunk in state.chunks:\n"
        "        requests[chunk.request_id].num_computed -= chunk.num_tokens\n" + BACK + CLOSE,
        "You subtract the chunk's tokens from num_computed. The plan never added them, so there is "
        "nothing to subtract.",
    ),
    _wrong(
        "from_the_start",
        BACK + CLOSE + "    for request in state.running:\n        request.num_computed = 0\n",
        "All requests start again at 0. What earlier steps have computed is still in the cache.",
    ),
    _wrong(
        "advances",
        "    requests = {r.id: r for r in state.running}\n    for chunk in state.chunks:\n"
        "        requests[chunk.request_id].num_computed = chunk.stop\n" + BACK + CLOSE,
        "The requests advance, although their chunks were not computed: they would go on behind keys and values that "
        "are not there.",
    ),
)

RIGHT = (
    """\
def abort(state):
    for _ in range(state.admitted):
        state.waiting.insert(0, state.running.pop())
    state.chunks = ()
    state.admitted = 0
""",
    """\
def abort(state):
    keep = len(state.running) - state.admitted
    state.running, back = state.running[:keep], state.running[keep:]
    state.waiting = back + state.waiting
    state.chunks, state.admitted = (), 0
    return state
""",
)

EXERCISE = Exercise(
    name="abort",
    number="5.3",
    title="The step was not computed",
    notebook="05_budget",
    mode="equal",
    groups=(Group("states", 2, cases, judge_with(_trouble, "{} steps")),),
    same=same_integers,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 05, section 4.",
    imports=IMPORTS,
    library=("course_lib.lessons.nb05_budget:abort",),
    driver=drive,
)
