"""Exercise 5.3, abort: the step was not computed, so everything is as it was before it was opened."""

from functools import partial

from autograder.drivers import nb05
from autograder.exercises.nb05_states import FORM, IMPORTS, label, states, trouble
from autograder.kit import exercise, values

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

    nothing_computed
      | state.waiting[:0] = [r for r in state.running if r.num_computed == 0]
      | state.running = [r for r in state.running if r.num_computed]
      | state.chunks, state.admitted = (), 0
    You take the requests with num_computed 0 for the admitted ones. That number does not say when a request was
    admitted: take the last state.admitted of state.running.

    the_first_ones
      | state.waiting[:0] = state.running[: state.admitted]
      | del state.running[: state.admitted]
      | state.chunks, state.admitted = (), 0
    You take the first requests of state.running. The step has put the ones that it admitted at the end.

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

    marked_as_aborted
      (), 0  ->  (), 0\nfor request in state.waiting:\n    request.finish_reason = "aborted"
    You set finish_reason. The step was aborted, and not its requests: they will be planned again.

    from_the_start
      (), 0  ->  (), 0\nfor request in state.running:\n    request.num_computed = 0
    All requests start again at 0. What earlier steps have computed is still in the cache.

    advances
      first =  ->  stops = {c.request_id: c.stop for c in state.chunks}\nfirst =
      del state  ->  for r in state.running:\n    r.num_computed = stops.get(r.id, r.num_computed)\ndel state
    The requests advance, although their chunks were not computed: they would go on behind keys and values that are not
    there.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        values(
            "states", SOLUTION, states, partial(label, "abort"), trouble, count="steps", driver=nb05.abort, form=FORM
        )
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 05, section 4.",
    imports=IMPORTS,
    driver=nb05.abort,
)
