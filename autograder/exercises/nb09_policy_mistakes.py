"""Known mistakes of exercise 9.4: policies that break a rule, starve a request or waste the target."""

MISTAKES = r"""
    over_budget
      max_num_batched_tokens - len(chunks), 48_000 - 2_600 - 108 * len(chunks)  ->  max_num_batched_tokens, 10**9
    Prompts get the whole budget although decodes have taken theirs. The budget is for the step as a whole: subtract the
    decodes first.

    unchecked_decodes
      chunks = chunks[: min(max_num_batched_tokens, max_num_seqs)]  ->
    The decodes are planned without a look at the budget and max_num_seqs. With more decodes than the budget allows only
    the first ones may run.

    mutates_requests
      left, left_us = left - take  ->  r.num_computed += take\nleft, left_us = left - take
    It advances num_computed while it plans. A plan is only a plan: if the step fails, those tokens have no keys and
    values. The scheduler advances a request when its step commits.

    forgets_max_num_seqs
      take > 0 and len(chunks) < max_num_seqs  ->  take > 0
    It serves more requests than max_num_seqs. Every request with a chunk counts, decodes included.

    length_as_stop
      r.num_computed + take  ->  take
    A chunk's third number is where it stops, in positions of the request: num_computed + length. Here it is the length,
    which is right only for a request that begins.

    past_the_end
      min(r.num_uncomputed, max_chunk  ->  min(max_chunk
    A chunk goes on behind the last token of its prompt. Take at most num_uncomputed.

    ignores_max_chunk
      max_chunk or left, left, int  ->  left, int
    max_chunk is never looked at. It limits the tokens of one request in a step; 0 means no limit.

    starves_decodes
      if r.decoding]  ->  if all(r.decoding for r in requests)]
    Decodes run only when no prompt waits. While prompts keep coming, the users who stream get nothing: that is the
    freeze of notebook 00, without end.

    shortest_first_without_bound
      (r is oldest, r.num_uncomputed)  ->  r.num_uncomputed
      left_us / 4  ->  0
    The shortest prompt always goes first. While short ones keep coming, a long one never runs. Keep a share of each
    step for the oldest.

    longest_first
      (r is oldest, r.num_uncomputed)  ->  -r.num_uncomputed
      left_us / 4  ->  0
    The longest prompt goes first, and all others wait for it. Most requests are short: they miss the target for the
    first token because of a few.

    first_come_first_served
      (r is oldest, r.num_uncomputed)  ->  r.arrival
      left_us / 4  ->  0
    Prompts run in the order in which they came, each step as long as the target allows. So each long prompt delays all
    that came after it, and most of these are short. Which order delays few? And how does the long one still come to an
    end?

    no_time_limit
      48_000 - 2_600 - 108 * len(chunks)  ->  10**9
    A step is filled up to the budget of 8,192 tokens, whatever it takes: that is 150 ms and more. The target for the
    gap is 50 ms, so a step must stop long before the budget is used up.

    whole_prompts
      left, int(us / token_us))  ->  left)
      take > 0  ->  take == r.num_uncomputed
    No prompt is cut: it runs when all of it fits into the step. Long ones freeze the users, and one that is longer than
    the budget never runs.

    chunks_of_64
      max_num_batched_tokens - len(chunks), 48_000  ->  min(max_num_batched_tokens - len(chunks), 64), 48_000
    A step holds 64 prompt tokens at most. Each step costs its fixed part whatever is in it, so the prompts take many
    times as long, and the queue grows.

    one_prompt_at_a_time
      (r is oldest, r.num_uncomputed)  ->  r.arrival
      int(us / token_us)  ->  256
      left, left_us = left - take, left_us - take * token_us  ->  break
    One prompt has a chunk in a step, and the others wait although there is time for them too. A step with a short
    prompt is then nearly empty.

    ignores_decodes_time
      48_000 - 2_600 - 108 * len(chunks)  ->  50_000
      15 + 0.00074 * r.num_tokens  ->  15
    The step's fixed part, its decodes and the attention are forgotten: only prompt tokens count. So the steps of long
    prompts take more than 50 ms.
"""
