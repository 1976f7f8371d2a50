"""Known mistakes of exercise 5.1, plan_step, as changes of its solution."""

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

    decodes_are_free
      left -= take  ->  left -= 0 if decoding else take
    Your decodes cost nothing. A decode is a token of the step like any other, and comes off the budget.

    budget_for_each
      left -= take  ->
    Each request is compared with the whole budget, because nothing is subtracted. They share the step.

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

    seats_for_prompts
      len(chunks) >=  ->  sum(c.stop - c.start > 1 for c in chunks) >=
    Only chunks of more than one token are counted. Every request in the step counts towards max_num_seqs, decodes too.

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
