"""Exercise 5.2, commit: the step was computed, so each request with a chunk in it advances."""

from functools import partial

from autograder.drivers import nb05
from autograder.exercises.nb05_states import FORM, IMPORTS, label, states, trouble
from autograder.kit import exercise, values

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

    all_of_it_computed
      request.num_computed = chunk.stop  ->  request.num_computed = request.num_tokens
    After any chunk all tokens of its request count as computed. Keys and values are there up to the chunk's stop.

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

    only_max_tokens
      if request.why_done()  ->  if len(request.generated) >= request.max_tokens
      not request.why_done()  ->  request.id not in finished
    Your requests end at max_tokens alone. A stop token ends one as well: why_done() knows both.

    stopped_by_a_discarded_token
      if request.why_done()  ->  if request.why_done() or sampled.get(request.id) in request.stop_token_ids
      not request.why_done()  ->  request.id not in finished
    A sampled token that was discarded ends its request. Only a token that the request really got can be its stop token:
    why_done() looks at token_ids.

    only_decodes_finish
      requests = {request.id  ->  sizes = {c.request_id: c.num_tokens for c in state.chunks}\nrequests = {request.id
      if request.why_done()  ->  if request.why_done() and sizes.get(request.id) == 1
      not request.why_done()  ->  request.id not in finished
    Only decodes finish. A longer chunk that ends at the newest token gives a token too, and with max_tokens=1, or when
    it is a stop token, or after a preemption, that may be the last. Ask why_done() of every running request.

    order_of_the_plan
      request.id for request in state.running if request.why_done()  ->  i for i in sampled if requests[i].why_done()
    The finished ids stand in the order of the chunks. They are wanted in the order of `running`.

    the_idle_leave
      in state.running if not  ->  in state.running if request.id in sampled and not
    A request without a chunk in this step leaves state.running. It still runs: only the finished ones leave.

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

EXERCISE = exercise(
    SOLUTION,
    groups=[
        values(
            "states",
            SOLUTION,
            states,
            partial(label, "commit"),
            trouble,
            count="steps",
            driver=nb05.commit,
            form=(*FORM, [int]),
        )
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 05, section 4.",
    imports=IMPORTS,
    driver=nb05.commit,
)
