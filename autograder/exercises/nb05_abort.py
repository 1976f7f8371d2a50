"""Exercise 5.3, abort: the step was not computed, so everything is as it was before it was opened."""

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
)
from autograder.kept import known_mistakes

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


SOLUTION = "course_lib.lessons.nb05_budget:abort"

MISTAKES = r"""
    nothing
      | pass
    Nothing happens. The step is still open, and the requests that it admitted have left the queue.

    only_closed
      state.waiting[:0] = state.running[first:]  ->
      del state.running[first:]  ->
    The step is closed, but the requests that it admitted stay in state.running. They go back to the queue.

    stays_open
      state.chunks, state.admitted = (), 0  ->
    The queue is right, and the step stays open: clear state.chunks and state.admitted.

    to_the_end
      state.waiting[:0] =  ->  state.waiting +=
    The requests that the step admitted go to the end of the queue, behind others that came later. They were at the
    front.

    turned_round
      = state.running[first:]  ->  = reversed(state.running[first:])
    The admitted requests come back in reverse order: each is put in front of the one before. Put them back in the order
    in which they stood.

    all_wait
      len(state.running) - state.admitted  ->  0
    All running requests go back to the queue. The ones that ran before the step stay in state.running.

    all_with_a_chunk
      | planned = {chunk.request_id for chunk in state.chunks}
      | state.waiting[:0] = [r for r in state.running if r.id in planned]
      | state.running = [r for r in state.running if r.id not in planned]
      | state.chunks, state.admitted = (), 0
    Every request with a chunk in the step goes back to the queue. Only the requests that this step admitted do: the
    last state.admitted of state.running.

    lost
      state.waiting[:0] = state.running[first:]  ->
    The requests that the step admitted are in no list any more: their users wait for ever. Put them into state.waiting.

    in_both
      del state.running[first:]  ->
    The requests that the step admitted now wait and run at the same time. Take them out of state.running.

    only_the_last
      - state.admitted  ->  - min(state.admitted, 1)
    Only the one admitted last goes back. The step admitted state.admitted requests.

    all_when_none
      len(state.running) - state.admitted  ->  -state.admitted
    When the step admitted none, all requests go back: in Python, running[-0:] is the whole list. Count from the front.

    taken_off_again
      first =  ->  taken = {c.request_id: c.num_tokens for c in state.chunks}\nfirst =
      del state  ->  for r in state.running:\n    r.num_computed -= taken.get(r.id, 0)\ndel state
    You subtract the chunk's tokens from num_computed. The plan never added them, so there is nothing to subtract.

    from_the_start
      (), 0  ->  (), 0\nfor request in state.running:\n    request.num_computed = 0
    All requests start again at 0. What earlier steps have computed is still in the cache.

    advances
      first =  ->  stops = {c.request_id: c.stop for c in state.chunks}\nfirst =
      del state  ->  for r in state.running:\n    r.num_computed = stops.get(r.id, r.num_computed)\ndel state
    The requests advance, although their chunks were not computed: they would go on behind keys and values that are not
    there.
"""

EXERCISE = Exercise(
    name="abort",
    groups=(Group("states", cases, judge_with(_trouble, "{} steps")),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 05, section 4.",
    imports=IMPORTS,
    solution=SOLUTION,
    driver=drive,
)
