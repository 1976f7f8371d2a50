# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 05 The budget of a step
#
# A prompt may be cut into chunks. In each step the *scheduler* decides which requests get a chunk, and how long it is.
# In this notebook you take apart a scheduler that looks right and is not. Then you write one that is: it plans a step,
# and after the step it records what was really computed. At the end chunks and decodes of many requests run in one
# batch, and each user gets the same tokens as alone.
#
# About 75 minutes. NumPy is enough; the pictures use matplotlib. Positions count from 0.
#
# The words that the notebook builds on: a language model reads and writes *tokens*, numbers that stand for pieces of text. A
# *request* is one user's prompt and the answer to it. A server works in *steps*: one step is one run of the model over
# some tokens of some requests. To compute a prompt's tokens is called *prefill*, and a *chunk* is a run of tokens of one
# request that are computed in one step. A token leaves its *key* and *value* in the *KV cache* of its request; later tokens
# look back at them. The last layer gives the *logits*, a score for each possible next token. A *decode* is a chunk of
# one token: the newest token of the answer, chosen by the step before, goes through the model and its logits choose the
# next. A request is *running* once a step has *admitted* it; until then it is *waiting*. The *budget*
# (`max_num_batched_tokens`) is the largest number of tokens that a step may compute, decodes included.

# %% id="setup"
import copy

import matplotlib.pyplot as plt
import numpy as np

from autograder import check
from autograder.exercises import EXERCISES
from course_lib.cost.linear import PRESETS
from course_lib.engine import Engine
from course_lib.lessons.nb01_divisible import KVCache
from course_lib.lessons.nb05_budget import State, begin, forward_ragged, generate_alone, preempt, trim
from course_lib.prefill import one_pass
from course_lib.schedule import plan as library
from course_lib.schedule.profiles import profile_named
from course_lib.schedule.request import Chunk, Request
from course_lib.schedule.scheduler import Scheduler
from course_lib.weights import seeded_model


def decoding(number):
    """A request whose prompt of 8 tokens is computed, with one token of its answer."""
    return Request(number, [0] * 9, prompt_len=8, num_computed=8)


def waiting(number, tokens, computed=0):
    """A request with a prompt of that many tokens, of which the first `computed` are computed."""
    return Request(number, [0] * tokens, num_computed=computed)


# %% [markdown] id="naive-text"
# ## 1. A scheduler in about ten lines
#
# Here is a typical first version. `num_computed` is the number of a request's tokens whose
# keys and values are in the cache. `decoding` is True for a request that streams: all its tokens but the newest are
# computed. Decodes come first, since a user watches each of them; then prompts, with what is left of the budget.

# %% id="naive"
def naive_step(requests, budget):
    """The requests of the next step: pairs (request id, tokens)."""
    scheduled = [(r.id, 1) for r in requests if r.decoding]
    budget -= len(scheduled)
    for r in requests:
        if not r.decoding:
            take = min(r.prompt_len - r.num_computed, budget)
            if take <= 0:
                break
            r.num_computed += take
            scheduled.append((r.id, take))
            budget -= take
    return scheduled


print(naive_step([decoding(0), decoding(1), waiting(2, 20)], budget=8))

# %% [markdown] id="guess-text"
# Two decodes and 6 tokens of the prompt: 8 in all, as it should be. Now 12 users decode and a prompt of 20 tokens
# waits. The budget is 8.

# %% id="naive-picture"
def draw_step(scheduled, title):
    """One box for each token of the step, against a budget of 8."""
    fig, ax = plt.subplots(figsize=(9, 1.7), layout="constrained")
    for place in range(16):
        known = place < len(scheduled)
        look = {"facecolor": "#f2c07a", "hatch": "..."} if known else {"facecolor": "white", "linestyle": ":"}
        ax.add_patch(plt.Rectangle((place, 0), 1, 1, edgecolor="0.4", **look))
        if known or not scheduled:
            ax.text(place + 0.5, 0.5, scheduled[place] if known else "?", ha="center", va="center", fontsize=8,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    ax.axvline(8, color="black", linestyle="--", linewidth=2.5)
    ax.text(8, 1.1, "budget", ha="center")
    ax.set(xlim=(-0.1, 16.1), ylim=(-0.1, 1.5), title=title, yticks=[], xlabel="tokens of the step")
    plt.show()


draw_step([], "what is in the step?")

# %% [markdown] id="guess-ask"
# **Guess before you go on.** How many tokens does `naive_step` schedule? And what gets nothing, now and in every later
# step while the 12 decode? Write a number, and "users", "prompt" or "nothing". It is not graded; a recorded guess makes
# the answer easier to remember.

# %% id="guess"
tokens_scheduled = None
starves = None

# %% id="guess-reveal"
crowd = [*(decoding(i) for i in range(12)), waiting(12, 20)]
got = naive_step(crowd, budget=8)
total = sum(take for _, take in got)
thoughts = {
    8: "You took the subtraction for a limit. The budget is made smaller, and no line checks whether it has run out.",
    13: "You gave the prompt one token in any case. What is left for it is 8 - 12 = -4.",
    20: "You gave the prompt what the budget would allow if decodes were free: 12 + 8.",
    32: "You added the whole prompt: 12 + 20.",
}
print(f"you said {tokens_scheduled}, and it is {total}")
if tokens_scheduled != total:
    print(thoughts.get(tokens_scheduled, "Do the first two lines by hand: how long is the list, and what is the budget then?"))
print(f"you said {starves!r}, and it is 'prompt'")
if starves == "users":
    print("The decodes are not checked, so all 12 are in the step. What is left for the prompt is -4.")
elif starves == "nothing":
    print("take is min(20, -4), which is below 1, in this step and in each that looks like it.")
draw_step([f"user {i}" for i, _ in got], "12 decodes in a step of 8, and no prompt")
assert total == 12 and all(i < 12 for i, _ in got)

# %% [markdown] id="guess-why"
# *I was off because ... (double-click to write here)*

# %% [markdown] id="four-text"
# ## 2. Four ways to fail
#
# **First: the budget goes below zero.** `budget -= ...` counts and does not enforce. Tokens over the budget cost time,
# and on a GPU memory that was not reserved. (A test for `budget == 0` would not help: -4 is not 0.)
#
# **Second: prefill starves.** While the number of decodes is at least the budget, the prompt gets nothing. It is not
# slow: it does not run at all.

# %% id="four-starves"
for budget in (8, 12, 13):
    crowd = [*(decoding(i) for i in range(12)), waiting(12, 20)]
    steps = next((n for n in range(1_000) if naive_step(crowd, budget)[-1][0] == 12), None)
    print(f"budget {budget:2}: the prompt's first chunk comes in step {'none of 1,000' if steps is None else steps}")
    assert (steps is None) == (budget <= 12)

# %% [markdown] id="four-head-text"
# **Third: a finished request blocks the queue.** Request 5 is finished, all its tokens are computed, and it is still in
# the list. A prompt of 20 tokens waits after it; there are no decodes, and the budget is 100.
#
# **Guess:** how many tokens are scheduled?

# %% id="four-head-guess"
behind_a_finished_one = None

# %% id="four-head"
got = naive_step([waiting(5, 9, computed=9), waiting(6, 20)], budget=100)
print(f"you said {behind_a_finished_one}, and it is {sum(take for _, take in got)}")
if behind_a_finished_one == 20:
    print("So it should be. But take is 0 for request 5, and the line that checks the budget stops for that too.")
assert got == []

# %% [markdown] id="four-head-after"
# `take <= 0` has two reasons. If the *budget* is used up, no later request can have anything either: `break` is right.
# If *this request* has nothing left to compute, later ones may still have: `continue`.
#
# (The third case is a trap: a request whose whole prompt was found in the *prefix cache*, from which requests reuse
# keys and values of equal beginnings. If all of it counts as computed, `continue` passes over it in every step, and it
# never gets its first token: no step computes its last prompt token, so there are no logits. So a hit has at most
# `prompt_len - 1` tokens, and at least one is left to compute. Notebook 08 comes back to it.)
#
# **Fourth: it records what has not happened.** `r.num_computed += take` stands in the planner. Now suppose that the
# step fails, say for lack of memory, and the server goes on with the next.

# %% id="four-fails"
r = waiting(7, 40)
in_cache = 0
for number in range(4):
    start = r.num_computed
    ((_, take),) = naive_step([r], budget=10)
    failed = number == 1
    in_cache += 0 if failed else take
    print(f"step {number}: tokens {start} to {start + take - 1}{', FAILS' if failed else ''}; num_computed {r.num_computed}, in the cache {in_cache}")
assert r.num_computed == 40 and in_cache == 30 and naive_step([r], budget=10) == []

# %% [markdown] id="four-after"
# No error is raised, but the prompt counts as computed while tokens 10 to 19 have no keys and no values. The next plan
# starts after them. Later tokens that attend to positions 10 to 19 read whatever is in the memory there.
#
# `r.prompt_len - r.num_computed` has a similar mistake. When memory runs short, the scheduler *preempts* a request: it
# takes its keys and values away, puts it back into the waiting queue, and computes it again later. The request keeps
# its tokens, those of the answer too.

# %% id="four-preempted"
r = Request(8, [0] * 25, prompt_len=20, num_computed=0)  # preempted: 20 of prompt, 5 of answer, nothing in the cache
print("prompt_len - num_computed      ", r.prompt_len - r.num_computed)
print("len(token_ids) - num_computed  ", len(r.token_ids) - r.num_computed)
naive_step([r], budget=100)
print("after that step                ", r.num_computed, "computed; decoding:", r.decoding, "; next:", naive_step([r], 100))
assert r.num_computed == 20 and not r.decoding and naive_step([r], 100) == []

# %% [markdown] id="four-repair"
# 20 tokens are recomputed, the 5 of the answer never: the request neither decodes nor prefills any more, and at the
# head of the list it blocks the others as well. Count all tokens instead: **`len(token_ids) - num_computed`** is what
# is left to compute (`num_uncomputed`). It is the rest of the prompt during prefill, prompt and answer after a
# preemption, and 1 for a decode. One formula covers all of them.
#
# | failure | repair |
# | --- | --- |
# | the budget goes below zero | check before each chunk, decodes too |
# | prefill starves | a budget that is larger than the number of decodes (section 3) |
# | a finished request blocks the queue | pass over it; only a used-up budget ends the loop |
# | a plan is recorded as a fact | three parts: plan, compute, commit (section 4) |

# %% [markdown] id="plan-text"
# ## 3. Plan a step
#
# A plan is a tuple of `Chunk(request_id, start, stop)`: the tokens at positions start to stop - 1 of that request.
# Three *knobs* limit it:
#
# - `max_num_batched_tokens`, the budget: tokens in the step, of all requests together, decodes included;
# - `max_chunk`, the cap: tokens of *one* request in the step; 0 means that there is no cap;
# - `max_num_seqs`: requests in the step. No more than that are running at once.
#
# The rule: decodes first; then the others in the order of the list; each gets the smallest of what it needs, the cap
# and what is left of the budget. A worked example, budget 16, no cap: two decodes, a prompt half computed, and a new
# one.

# %% id="plan-example"
requests = [waiting(4, 20, computed=11), decoding(0), decoding(1), waiting(6, 20)]

# Step 1: the decodes, wherever they stand in the list. Each takes one token of the budget.
plan, left = [], 16
for r in requests[1:3]:
    plan.append(Chunk(r.id, r.num_computed, r.num_computed + 1))
    left -= 1
print("left after the decodes", left)

# Step 2: the first of the others. It wants 20 - 11 = 9 tokens, and 14 are left: it gets 9.
take = min(20 - 11, left)
plan.append(Chunk(4, 11, 11 + take))
left -= take

# Step 3: the next one wants 20, and 5 are left: it gets 5.
take = min(20 - 0, left)
plan.append(Chunk(6, 0, take))
left -= take

# Step 4: nothing is left, so the step is full.
for chunk in plan:
    print(chunk)
assert left == 0 and tuple(plan) == library.plan_step(requests, max_num_batched_tokens=16, max_chunk=0, max_num_seqs=8)

# %% [markdown] id="knobs-text"
# ### Two knobs, not one
#
# "A prompt of 2,000 tokens in chunks of 1,024 is cut 1,024 + 976." That is true only if 1,024 is the *cap*. In some servers
# the chunk size *is* the budget of the step (Sarathi-Serve at 96f9911, for example), and then the decodes are
# subtracted from it.
#
# Fill in the first chunk of the 2,000 tokens in three servers, in place of None. It is not graded.

# %% id="knobs-faded"
first_chunk = {
    "budget 1,024, no cap, 3 users decode": None,
    "budget 1,024, no cap, 24 users decode": None,
    "budget 1,027, cap 1,024, 3 users decode": None,
}

# %% id="knobs-reveal"
servers = [(1_024, 0, 3), (1_024, 0, 24), (1_027, 1_024, 3)]
truth = []
for (name, yours), (budget, cap, users) in zip(first_chunk.items(), servers):
    r, sizes = waiting(users, 2_000), []
    while r.num_uncomputed:
        batch = [*(decoding(i) for i in range(users)), r]
        knobs = {"max_num_batched_tokens": budget, "max_chunk": cap, "max_num_seqs": 64}
        chunk = library.plan_step(batch, **knobs)[-1]
        sizes.append(chunk.num_tokens)
        r.num_computed = chunk.stop
    truth.append(sizes)
    print(f"{name:40} you wrote {yours}: {' + '.join(f'{n:,}' for n in sizes)}")
    if yours == 1_024 and sizes[0] != 1_024:
        print(f"    The {users} decodes are in the same budget. Each takes a token of it.")
assert truth == [[1_021, 979], [1_000, 1_000], [1_024, 976]]

# %% [markdown] id="plan-exercise"
# You may think that subtracting every chunk from the budget is enough. The planner keeps it only if it checks *before*
# it adds a chunk.
#
# ### Exercise 5.1: what does the next step compute?
#
# 15 minutes, difficulty 3 of 5, about ten lines. A request `r` has `r.id`, `r.num_computed`, `r.num_uncomputed` and
# `r.decoding`. The checks run your planner on requests drawn from a seed: decoding, half computed, preempted, finished,
# in any order.

# %% [markdown] id="plan-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Do the four steps of the example in a loop: over the decodes first, then over the others, with one variable for what is
# left.
#
# </details>
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# Two questions look alike. "Is budget left, and is the plan below `max_num_seqs`?" ends the step. "Has this request
# anything to compute?" only passes over it. And `min(..., max_chunk, ...)` with `max_chunk = 0` gives 0:
# `max_chunk or left` is the cap if there is one.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `for decoding in (True, False):` and in it `for request in requests:`. Return when `left <= 0` or the plan has
# `max_num_seqs` chunks. If `request.decoding == decoding` and something is uncomputed:
# `take = min(request.num_uncomputed, max_chunk or left, left)`.
#
# </details>

# %% id="plan-solution" exercise="5.1" solution="plan_step" minutes=15 difficulty=3
from collections.abc import Sequence

from course_lib.schedule.request import Chunk, Request

# include course_lib.schedule.plan:plan_step

# %% [markdown] id="plan-check-text"
# In the first check there is no cap and `max_num_seqs` never limits. In the second both do.

# %% id="plan-check-budget" check="plan_step" group="budget" points=4
check.plan_step(plan_step, group="budget")

# %% id="plan-check-knobs" check="plan_step" group="knobs" points=2
check.plan_step(plan_step, group="knobs")

# %% [markdown] id="starve-text"
# You can now say what any step computes. Try the failures of section 2 on your planner: the finished request in front,
# the preempted one, and 12 users at a budget of 8.

# %% id="starve"
def plan_of(requests, budget, cap=0, max_num_seqs=64):
    return plan_step(requests, max_num_batched_tokens=budget, max_chunk=cap, max_num_seqs=max_num_seqs)


crowd = [*(decoding(i) for i in range(12)), waiting(12, 20)]
behind = [waiting(5, 9, computed=9), waiting(6, 20)]
again = [Request(8, [0] * 25, prompt_len=20)]
print("behind a finished one:", plan_of(behind, 100))
print("preempted:            ", plan_of(again, 100))
served = [chunk.request_id for chunk in plan_of(crowd, 8)]
print("12 users, budget 8:    served", served, "- not served", sorted(set(range(13)) - set(served)))
print("12 users, budget 13:  ", plan_of(crowd, 13)[-1])
assert served == list(range(8)) and plan_of(crowd, 13)[-1] == Chunk(12, 0, 1)
assert plan_of(behind, 100) == (Chunk(6, 0, 20),) and plan_of(again, 100) == (Chunk(8, 0, 25),)

strict = {"max_num_batched_tokens": 8, "max_num_seqs": 12}
try:
    Scheduler(profile_named("course").new_cache(100, 16), profile_named("course"), **strict)
except ValueError as error:
    print("the course's scheduler refuses these knobs:", error)

# %% [markdown] id="starve-after"
# The budget holds, and now four users and the prompt starve: 8 tokens are not enough for 13 requests. The remedy is in
# the knobs. If `max_num_seqs` is at most `max_num_batched_tokens`, every decode fits. And a running prompt counts in
# `max_num_seqs` itself, so there are fewer decodes than `max_num_seqs`, and at least one token is left for it.
#
# So "with chunks, a prompt of any length can be scheduled" is true on two conditions: **the budget is larger than the
# number of decodes**, and **the memory for keys and values can hold the whole prompt** and its answer. The course's
# scheduler refuses a request that the memory can never hold.

# %% [markdown] id="bound-text"
# ### What bounds a user's wait?
#
# One user decodes, and four prompts of 6,000 tokens wait. The cap is 1,024, the budget 4,096. The time from one token of a
# user to the next is the *gap* (inter-token latency, ITL). It is as long as the step.
#
# **Guess:** how many tokens are in the next step?

# %% id="bound-guess"
tokens_in_the_step = None

# %% id="bound-reveal"
m = PRESETS["reference"]  # modelled, in whole microseconds: 2,600 a step, 18 a prompt token, 108 a decode
prompts = [waiting(i, 6_000) for i in range(1, 5)]
gaps = {}
for how_many in (1, 4):
    chunks = plan_of([decoding(0), *prompts[:how_many]], 4_096, cap=1_024)
    sizes = [chunk.num_tokens for chunk in chunks]
    gaps[how_many] = (sum(sizes), m.step_us(sum(sizes) - 1, 1))
    print(f"{how_many} waiting: {' + '.join(map(str, sizes))} = {sum(sizes):,} tokens, {gaps[how_many][1] / 1e3:.1f} ms (modelled, preset reference)")
print(f"you said {tokens_in_the_step}, and with four it is {gaps[4][0]:,}")
if tokens_in_the_step in (1_024, 1_025):
    print("The cap is for each request. Four of them may compute that much in the same step, up to the budget.")
elif tokens_in_the_step == 4_097:
    print("The decode is in the budget too: the last prompt gets one token less.")
assert gaps == {1: (1_025, 21_140), 4: (4_096, 76_418)} and round(76_418 / 21_140, 1) == 3.6

# %% [markdown] id="bound-after"
# **The budget bounds the gap, and the cap does not.** With one prompt the cap limits the step; with four, the step is
# 3.6 times as long (modelled). The cap has another purpose: it keeps one long prompt from using up the budget alone, so
# that later prompts begin in the same step.
#
# *I was off because ... (double-click to write here)*

# %% [markdown] id="commit-text"
# ## 4. Plan, compute, commit
#
# A step has three parts. It is *planned*, and nothing changes. It is *computed*, and that may fail. If it did not fail,
# it is *committed*: `num_computed` advances, and requests get their tokens. If it failed, it is *aborted*, and
# everything is as before.
#
# (vLLM 0.33.0 advances its number at the end of its `schedule()`. The number then says what *will* be in the cache once
# the step has run: a plan, not a fact. A prefix cache that relied on it would share keys and values that may not
# exist.)
#
# Put the lines of one step in order. Five of these seven belong to it. Write their letters, for instance
# `order = "ABCDE"`, and run the cell.
#
# - A: `logits = forward(plan)`
# - B: `plan = plan_step(running + waiting, ...)`
# - C: `except MemoryError: abort(state)`, or else `commit(state, sampled)`
# - D: `for c in plan: requests[c.request_id].num_computed = c.stop`
# - E: `begin(state, plan)`, which admits the waiting requests that have a chunk
# - F: `commit(state, {})`, to have the right numbers while the model runs
# - G: `sampled = {each chunk's request: the token its last logits choose}`

# %% id="parsons"
order = ""

if order == "BEAGC":
    print("That is a step.")
elif not order:
    print("Write the letters.")
elif "D" in order:
    print("D advances before anything is committed. If the step fails, the numbers are wrong, as in section 2.")
elif "F" in order:
    print("F commits what the model has not computed yet.")
elif sorted(order) != list("ABCEG"):
    print("Five lines, each once.")
elif order.index("A") < order.index("E"):
    print("If A fails, C aborts the open step: the step must be open before A.")
else:
    print("Those five, in another order: what does a line need that another makes?")

# %% [markdown] id="first-text"
# ### Which request gets a token?
#
# A prompt of 20 tokens runs in chunks of 12 and 8, in steps 0 and 1. The model gives the logits of each chunk's last
# token. Then the request decodes.
#
# **Guess:** how many tokens of the answer exist when step 0 stops, when step 1 stops, and when step 2 stops?

# %% id="first-guess"
answer_after = [None, None, None]

# %% id="first-reveal"
model = seeded_model("tiny", arith="exact")  # 3 layers, weights from a seed, no sum rounded: the same bits everywhere
C = model.config
ids = [(7 * i * i + 3 * i) % 128 for i in range(20)]
cache, tokens, exist = KVCache(C.num_layers, C.kv_heads, C.head_dim), list(ids), []
for start, stop in ((0, 12), (12, 20), (20, 21)):
    batch = (tokens[start:stop], list(range(start, stop)), [0, stop - start], [0, stop])  # section 5 explains the four
    chosen = int(forward_ragged(model, batch, [cache])[0].argmax())
    known = f"the prompt has {tokens[stop]} there" if stop < len(tokens) else "it is new"
    print(f"chunk [{start:2}, {stop:2}): its last logits choose {chosen:3} for position {stop}; {known}")
    tokens += [chosen] if stop == len(tokens) else []
    exist.append(len(tokens) - 20)
print(f"you said {answer_after}, and it is {exist}")
if answer_after == [1, 2, 3]:
    print("You took a token from every chunk. Position 12 is inside the prompt: its token is known, and the sampled one is discarded.")
elif answer_after == [0, 0, 1]:
    print("The chunk that ends the prompt already chooses the answer's first token. It needs no decode.")
elif answer_after == [12, 20, 21]:
    print("Those are tokens computed. The answer's tokens come after the prompt.")
assert exist == [0, 1, 2] and tokens[20:] == generate_alone(model, ids, 2)

# %% [markdown] id="first-after"
# Only a chunk that ends at its request's **newest token** gives a token, exactly one. So the user gets the first token
# when the step with the *last* chunk stops. The time from the request's arrival until then is the *time to first
# token*, TTFT. The next step is a decode and gives the *second* token. A decode always ends at the newest token, so it
# always gives one.
#
# After a preemption the same rule holds: prompt and answer are computed again in chunks, and the one that ends at the
# newest token gives *one* new token. The tokens of the answer that exist are not chosen again.
#
# (Sampling after every chunk does more harm than a wrong token. A sampler with a random state has then drawn too often,
# and all later tokens change.)

# %% [markdown] id="commit-example-text"
# ### One step of a small server
#
# A worked example. `State` has the waiting requests, the running requests and the open step. The example stops before
# the commit, which is your exercise.

# %% id="commit-example"
# The state of a small server: request 0 decodes, request 1 is in the middle of its prompt, request 2 waits.
r0 = Request(0, [5, 6, 7, 50], prompt_len=3, num_computed=3, max_tokens=2)
r1 = Request(1, [10, 11, 12, 13, 14, 15], num_computed=2, max_tokens=4)
r2 = Request(2, [20, 21, 22], max_tokens=4)
state = State(waiting=[r2], running=[r0, r1])

# Step 1: plan. Nothing changes.
plan = library.plan_step((*state.running, *state.waiting), max_num_batched_tokens=6, max_chunk=2, max_num_seqs=4)
print("plan    ", [(c.request_id, c.start, c.stop) for c in plan])

# Step 2: open the step. Request 2 is admitted; no request has advanced yet.
begin(state, plan)
print("running ", [r.id for r in state.running], " admitted:", state.admitted, " num_computed", [r.num_computed for r in (r0, r1, r2)])

# Step 3: compute. Each chunk's last logits choose a token: say 90 for request 0, 91 for request 1, 92 for request 2.
sampled = {0: 90, 1: 91, 2: 92}

# Step 4: which of them count? The token of each request whose chunk ends at its newest token.
for c, r in zip(plan, (r0, r1, r2)):
    print(f"request {r.id}: chunk [{c.start}, {c.stop}) of {r.num_tokens} tokens {'gives ' + str(sampled[r.id]) if c.stop == r.num_tokens else 'gives nothing'}")
assert [c.stop == r.num_tokens for c, r in zip(plan, (r0, r1, r2))] == [True, False, False]

# %% [markdown] id="commit-exercise"
# You may think that the sampled token is computed, since the model has just produced it. It is only *chosen*. Its key
# and value are computed in the next step. So `num_computed` is the chunk's stop, one less than the number of tokens
# then.
#
# ### Exercise 5.2: the step was computed
#
# 10 minutes, difficulty 3 of 5, about nine lines. `state.running` is a list of requests, `state.chunks` the plan of the open
# step. A request has `token_ids`, `num_tokens` (their number), `num_computed`, and `why_done()`, which gives "" until the
# request is finished.

# %% [markdown] id="commit-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Two loops: over the chunks, to advance and to append tokens; then over the running requests, to find the finished
# ones.
#
# </details>
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# Check whether the chunk ends at the newest token *before* you append the sampled one; afterwards there is a newer one.
# At the end close the step: `state.chunks` is `()` and `state.admitted` is 0 again.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `requests = {r.id: r for r in state.running}`; for each chunk `request.num_computed = chunk.stop`, and if
# `chunk.stop == request.num_tokens` append `sampled[request.id]`. Then collect the ids with `why_done()`, and make
# `state.running` a new list of the others.
#
# </details>

# %% id="commit-solution" exercise="5.2" solution="commit" minutes=10 difficulty=3
from collections.abc import Mapping

from course_lib.lessons.nb05_budget import State

# include course_lib.lessons.nb05_budget:commit

# %% id="commit-check" check="commit" group="states" points=4
check.commit(commit, group="states")

# %% id="commit-visible"
finished = commit(state, sampled)
for r in (r0, r1, r2):
    print(f"request {r.id}: tokens {r.token_ids}, {r.num_computed} computed")
print("finished", finished, " running", [r.id for r in state.running], " open", bool(state.chunks))

# %% [markdown] id="abort-exercise"
# Request 0 has its second token and is finished. And if the step had failed?
#
# ### Exercise 5.3: the step was not computed
#
# 5 minutes, difficulty 2 of 5, about four lines. Restore everything as it was before `begin`. No request has advanced,
# but some may have been admitted.

# %% [markdown] id="abort-hints"
# <details><summary>Hint 1: a direction</summary>
#
# `begin` did two things: it moved requests from the front of `waiting` to the end of `running`, and it opened the step.
#
# </details>
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# The admitted requests go to the *front* of the queue, in their old order. And when none was admitted, `running[-0:]`
# is the whole list.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `first = len(state.running) - state.admitted`; the requests from `first` on go to the front,
# `state.waiting[:0] = ...`, and are deleted from `running`. Then close the step.
#
# </details>

# %% id="abort-solution" exercise="5.3" solution="abort" minutes=5 difficulty=2
from course_lib.lessons.nb05_budget import State

# include course_lib.lessons.nb05_budget:abort

# %% id="abort-check" check="abort" group="states" points=2
check.abort(abort, group="states")

# %% id="abort-visible"
r1, r2 = waiting(1, 20, computed=4), waiting(2, 9)
state = State(waiting=[r2], running=[r1])
before = copy.deepcopy(state)
plan = plan_of((*state.running, *state.waiting), 20)
begin(state, plan)
abort(state)
print("after the abort: waiting", [r.id for r in state.waiting], "running", [r.id for r in state.running])
replanned = plan_of((*state.running, *state.waiting), 20)
print("planned again, it is the same plan:", replanned == plan)

# %% [markdown] id="abort-after"
# A failed step now costs only its time: the next plan is the same again. Planning is *pure*: it changes nothing.

# %% [markdown] id="ragged-text"
# ## 5. One forward for all requests
#
# The chunks of a plan have different lengths, and they run in one forward: a *ragged* batch. All new tokens are stacked into
# one list of *rows*. Four lists say all that the model needs:
#
# - `ids`: the token of each row;
# - `positions`: its position in its request;
# - `cu_q`: where each chunk's rows begin, and where the last one's end;
# - `cu_k`: the same for the keys. A chunk's queries look at the keys of its request: those before the chunk, which are
#   in the cache, and those of the chunk.
#
# (`cu` is short for cumulative. Attention functions for ragged batches take the last two under such names: `cu_seqlens_q` and
# `cu_seqlens_k` in flash-attn 2, `cu_seq_q` and `cu_seq_k` in torch 2.12.) A worked example with two chunks:

# %% id="ragged-example"
tokens = {0: [40, 41, 42, 43, 44, 45], 1: [60, 61, 62, 63, 64, 65, 66, 67, 68]}
example = (Chunk(0, 5, 6), Chunk(1, 2, 5))  # a decode, and three tokens in the middle of a prompt

# Step 1: the rows: each chunk's tokens, one chunk after the other.
ids = tokens[0][5:6] + tokens[1][2:5]

# Step 2: the position of each in its request.
positions = [5] + [2, 3, 4]

# Step 3: how many rows has each chunk? Add them up from 0.
cu_q = [0, 1, 1 + 3]

# Step 4: how many keys does each chunk look at? All up to its stop: 6, and 5.
cu_k = [0, 6, 6 + 5]
print(ids, positions, cu_q, cu_k, sep="\n")

# %% id="ragged-picture"
def draw_batch(chunks):
    """Rows above, keys below; hatched: of this step."""
    fig, ax = plt.subplots(figsize=(11, 2.8), layout="constrained")
    row = key = 0
    colours = ["#f2c07a", "#bcd9ee", "#c9e3cf", "#e6d3ea"]
    for number, chunk in enumerate(chunks):
        look = {"edgecolor": "0.4", "facecolor": colours[number % 4]}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        for i in range(chunk.num_tokens):
            ax.add_patch(plt.Rectangle((row + i, 2), 1, 0.8, hatch="///", **look))
            ax.text(row + i + 0.5, 2.4, chunk.start + i, ha="center", va="center", bbox=box)
        for i in range(chunk.stop):
            ax.add_patch(plt.Rectangle((key + i, 0), 1, 0.8, hatch="" if i < chunk.start else "///", **look))
            ax.text(key + i + 0.5, 0.4, i, ha="center", va="center", bbox=box)
        for at, base in ((row, 2), (key, 0)):
            ax.plot([at, at], [base - 0.15, base + 0.95], color="black", linewidth=3)
            ax.text(at, base + 1.0, at, ha="center")
        ax.text(key + chunk.stop / 2, -0.45, f"request {chunk.request_id}", ha="center")
        row, key = row + chunk.num_tokens, key + chunk.stop
    for at, base in ((row, 2), (key, 0)):
        ax.plot([at, at], [base - 0.15, base + 0.95], color="black", linewidth=3)
        ax.text(at, base + 1.0, at, ha="center")
    ax.set(xlim=(-0.2, key + 0.2), ylim=(-0.6, 3.4), xticks=[])
    ax.set_yticks([2.4, 0.4], ["rows, cu_q above", "keys, cu_k above"])
    for side in ("top", "right", "bottom", "left"):
        ax.spines[side].set_visible(False)
    plt.show()


draw_batch(example)
print("numbers in the boxes: positions in the request; hatched: tokens of this step; thick lines: where a chunk begins")

# %% [markdown] id="ragged-faded-text"
# **Guess:** now three chunks: `Chunk(1, 3, 4)`, `Chunk(2, 5, 8)` and `Chunk(0, 0, 2)`. Request 2 has a prompt of 8 tokens, so the
# second chunk ends it. Fill in the blanks.

# %% id="ragged-faded"
three_cu_q = [0, 1, None, 6]
three_cu_k = [0, None, None, 14]

# %% id="ragged-reveal"
three = (Chunk(1, 3, 4), Chunk(2, 5, 8), Chunk(0, 0, 2))
right_q, right_k = np.cumsum([0, *(c.num_tokens for c in three)]).tolist(), np.cumsum([0, *(c.stop for c in three)]).tolist()
print("you wrote", three_cu_q, three_cu_k)
print("they are ", right_q, right_k)
if three_cu_k[1] == 1:
    print("The decode has one row, but it looks at the keys of all 4 tokens of its request.")
elif three_cu_k[1] == 3:
    print("A token sees itself: 3 keys in the cache, and the key of the new token.")
elif three_cu_k[1:3] == [4, 8]:
    print("8 is the number of keys of the second chunk alone. Add what is before it: 4 + 8.")
draw_batch(three)
assert right_q == [0, 1, 4, 6] and right_k == [0, 4, 12, 14]

# %% [markdown] id="ragged-exercise"
# ### Exercise 5.4: all chunks of a step as one batch
#
# 8 minutes, difficulty 2 of 5, about seven lines. For any plan, in its order.

# %% [markdown] id="ragged-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Start with two empty lists and two lists that hold 0, and let each chunk add its part to all four.
#
# </details>
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# A chunk has `stop - start` rows, and it looks at `stop` keys: those of its request's tokens up to `stop`, not of all
# its tokens.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `ids += tokens[chunk.request_id][chunk.start : chunk.stop]`, `positions += range(chunk.start, chunk.stop)`, then append
# `len(ids)` to `cu_q` and `cu_k[-1] + chunk.stop` to `cu_k`.
#
# </details>

# %% id="ragged-solution" exercise="5.4" solution="pack_ragged" minutes=8 difficulty=2
from collections.abc import Mapping, Sequence

from course_lib.schedule.request import Chunk

# include course_lib.lessons.nb05_budget:pack_ragged

# %% id="ragged-check" check="pack_ragged" group="values" points=3
check.pack_ragged(pack_ragged, group="values")

# %% [markdown] id="serve-text"
# ### All of it together
#
# Here is a server made of your four functions. Five requests are served with a budget of 16, a cap of 6 and
# `max_num_seqs` 4. Step 3 runs out of memory in the middle of the model; before step 7 the request admitted last is
# preempted. The course supplies `forward_ragged`, which runs the batch through the model, and `trim`, which removes
# keys and values that a failed step has left in a cache. (Stuck with one of the four? Put
# `from course_lib.schedule.plan import plan_step`, or
# `from course_lib.lessons.nb05_budget import commit, abort, pack_ragged`, into a new cell, go on, and come back later.)
#
# **Before you run it:** will the five answers be the same as when each request has the model to itself? The chunks are
# cut anywhere, the other requests of the batch change, one step fails and one request is computed twice.

# %% id="serve-guess"
same_answers = None  # True or False

# %% id="serve"
PROMPTS = [[(7 * i * i + 3 * i + 11 * n) % 128 for i in range(length)] for n, length in enumerate((23, 9, 14, 5, 17))]
ANSWER = 5
alone = [generate_alone(model, prompt, ANSWER) for prompt in PROMPTS]


def serve(plan_step=plan_step, commit=commit, abort=abort, pack_ragged=pack_ragged, fail_at=(3,), preempt_at=(7,), say=False):
    """Steps until all are finished: the requests, each one's cache at its last step, and the order in which they finished."""
    requests = [Request(i, list(prompt), max_tokens=ANSWER) for i, prompt in enumerate(PROMPTS)]
    caches = {r.id: KVCache(C.num_layers, C.kv_heads, C.head_dim) for r in requests}
    state, order = State(waiting=list(requests)), []
    for number in range(40):
        if not state.waiting and not state.running:
            return requests, caches, order
        if number in preempt_at and state.running:
            victim = preempt(state)
            trim(caches[victim.id], 0)
            if say:
                print(f"         request {victim.id} is preempted: {victim.num_uncomputed} tokens to compute")
        plan = plan_step((*state.running, *state.waiting), max_num_batched_tokens=16, max_chunk=6, max_num_seqs=4)
        begin(state, plan)
        try:
            batch = pack_ragged(plan, {r.id: r.token_ids for r in requests})
            fails = 1 if number in fail_at else None
            logits = forward_ragged(model, batch, [caches[c.request_id] for c in plan], out_of_memory_in=fails)
        except MemoryError as error:
            abort(state)
            for r in requests:
                trim(caches[r.id], r.num_computed)
            happened = f"  {error}: aborted"
        else:
            gone = commit(state, {c.request_id: int(row.argmax()) for c, row in zip(plan, logits)})
            order += gone
            happened = f"  finished: {gone}" if gone else ""
        if say:
            parts = ", ".join(f"{c.request_id}: {c.start}-{c.stop - 1}" for c in plan)
            print(f"step {number:2}  {sum(c.num_tokens for c in plan):2} tokens  {parts}{happened}")
    raise RuntimeError("not finished after 40 steps")


requests, caches, _ = serve(say=True)
answers = [r.generated for r in requests]
print("\nyou said", same_answers, "and it is", answers == alone)
assert answers == alone

# %% [markdown] id="serve-after"
# The tokens are equal. And the keys and values? Compare each request's cache with one pass over its prompt and answer
# (without the last token, which was chosen but never computed).

# %% id="serve-bits"
equal = []
for r in requests:
    whole = one_pass(model, r.token_ids[:-1])
    pairs = [(*caches[r.id].view(layer), whole.k[layer], whole.v[layer]) for layer in range(C.num_layers)]
    equal.append(all(np.array_equal(k, wk) and np.array_equal(v, wv) for k, v, wk, wv in pairs))
print("K and V of all layers equal to one pass, bit for bit:", equal)
assert equal == [True] * 5

# %% [markdown] id="engine-text"
# All bits are those of one pass, because each row looks only at the keys of its request, has its position there, and no
# sum in this model depends on other rows. (In ordinary float32 the last bits would depend on the batch: notebook 04.)
#
# The course's engine is the same loop with a prefix cache, a waiting queue, and memory in *blocks*: here 9 blocks of 4
# tokens, so keys and values for 36 tokens in all. It runs your planner in place of its default:

# %% id="engine"
def run_engine(plan):
    """The five requests in the real engine, with this planner. Memory is so short that a request is preempted."""
    engine = Engine(model, num_blocks=9, block_size=4, max_num_batched_tokens=6, max_chunk=4, plan_step=plan,
                    enable_prefix_caching=False)
    requests = [engine.add_request(prompt, max_tokens=ANSWER) for prompt in PROMPTS]
    records = engine.run()
    return [r.generated for r in requests], records


generated, records = run_engine(plan_step)
print(f"{len(records)} steps, at most {max(sum(stop - start for _, start, stop in r.chunks) for r in records)} tokens in one")
print("preempted:", [i for r in records for i in r.preempted], " the same tokens as alone:", generated == alone)
assert generated == alone and any(r.preempted for r in records)

# %% [markdown] id="break-text"
# ## 6. Break it
#
# The course has collected wrong planners that people really write. First each plans four steps: the *crowd* (12 users
# and a prompt, budget 8), the prompt *behind* a finished request, the preempted one to be computed *again*, and the
# *four* prompts under a cap of 1,024 and a budget of 4,096. The table has the tokens that it plans. Then it serves the
# five requests in the real engine, which checks every plan before it computes anything.
#
# **Before you run it:** some run in the engine without an error. Can one of them change a token of an answer?

# %% id="break-plans"
def wrong(exercise, name):
    """One of the course's collected wrong answers, as a function."""
    return EXERCISES[exercise].compile(EXERCISES[exercise].wrong_answer(name).source)


four = [decoding(0), *prompts]
states = [(crowd, 8, 0), (behind, 100, 0), (again, 100, 0), (four, 4_096, 1_024)]


def tokens_planned(plan, requests, budget, cap):
    """Tokens of a plan, and its shortest chunk where that is no chunk at all."""
    takes = [c.stop - c.start for c in plan(copy.deepcopy(requests), max_num_batched_tokens=budget, max_chunk=cap, max_num_seqs=64)]
    return f"{sum(take for take in takes if take > 0):,}" + (f" and {min(takes)}" if takes and min(takes) < 1 else "")


def in_the_engine(plan):
    try:
        generated, records = run_engine(plan)
    except (ValueError, RuntimeError) as error:
        return "stopped: " + str(error)[:60]
    first = [next(r.step for r in records if i in dict(r.sampled)) for i in range(5)]
    return f"{'tokens as alone' if generated == alone else 'OTHER TOKENS'}, the first in steps {first}"


table = {"right": plan_step} | {w.name: wrong("plan_step", w.name) for w in EXERCISES["plan_step"].wrong_answers}
print(f"{'':27} {'crowd':>9} {'behind':>9} {'again':>9} {'four':>9}   engine")
engine_said = {}
for name, plan in table.items():
    planned = [tokens_planned(plan, *state) for state in states]
    engine_said[name] = in_the_engine(plan)
    print(f"{name:27} " + " ".join(f"{text:>9}" for text in planned) + f"   {engine_said[name]}")
assert not any("OTHER" in said for said in engine_said.values())
assert [n for n, said in engine_said.items() if "planned nothing" in said] == ["prompt_only", "whole_or_nothing"]

# %% [markdown] id="break-plans-after"
# 1. The planners that run give the same tokens as alone: a planner decides *when* a token is computed, and in exact
#    arithmetic never *which*. What can a wrong plan change, then?
# 2. `unchecked_decodes` plans 12 tokens for the crowd, and does no harm in the engine, where `max_num_seqs` and the
#    budget are 6. What protects it?
# 3. `negative_take` has 12 decodes and one chunk of -4 tokens, so its sum is 8. What must a test look at besides the sum?
# 4. `no_cap` gives request 0 its first token two steps sooner. Which requests pay for it at once?
#
# Now the wrong commits, aborts and batches, in your server. They go wrong *after* the plan, where nothing is checked.
# This time steps 0, 3 and 7 fail; step 0 has admitted three requests while two wait.

# %% id="break-rest"
as_right = serve(fail_at=(0, 3, 7))[2]
outcome = {}
for exercise in ("commit", "abort", "pack_ragged"):
    print(exercise)
    for answer in EXERCISES[exercise].wrong_answers:
        try:
            requests, _, order = serve(**{exercise: wrong(exercise, answer.name)}, fail_at=(0, 3, 7))
        except Exception as error:  # whatever it breaks
            said = f"{type(error).__name__}: {str(error)[:70]}"
        else:
            bad = [r.id for r, right in zip(requests, alone) if r.generated != right]
            said = f"no error, OTHER TOKENS for {bad}" if bad else "no error, tokens as alone"
            said += "" if order == as_right else f", finished in the order {str(order)[:24]}"
        outcome[exercise, answer.name] = said
        print(f"  {answer.name:28} {said}")
print(f"{sum('no error, OTHER' in said for said in outcome.values())} of {len(outcome)} give other tokens without an error")
assert outcome["commit", "a_token_for_every_chunk"].startswith("no error, OTHER TOKENS")
assert outcome["pack_ragged", "positions_from_one"] == "no error, tokens as alone"

# %% [markdown] id="break-ask"
# 1. `lost` and `keys_of_the_chunk` end without an error. What do their users see?
# 2. `past_the_prompt` goes wrong for one request only. What happened to that request in this run?
#    (`serve(fail_at=(0, 3, 7), say=True)` in a new cell shows it.)
# 3. `positions_from_one` gives the tokens as alone. Are its keys those of one pass? (Notebook 03 has the reason.)
# 4. Which of these does a test find that checks only whether all requests *finish*?

# %% [markdown] id="explore-text"
# ## 7. Step through it
#
# Each bar is a step, and the dashed line is the budget. Move `step` to walk through them. Before you move another control, say
# what will happen.
#
# 1. Users 12, budget 8, scheduler "unchecked decodes": what starves? And with `plan_step`?
# 2. Raise the budget from 12 to 13. How long do the prompts take now?
# 3. Four prompts, budget 48: which cap makes all of them begin in step 0? What happens to the highest bar?
# 4. In which step does a prompt get its first token, and how high are the decodes in the next step?

# %% id="explore"
from course_lib.widgets.budget import explore_budget

explore_budget()

# %% [markdown] id="questions-text"
# ## 8. Questions
#
# Six about this notebook, and two about earlier ones. Answer from memory first.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("05_budget")

# %% [markdown] id="end"
# ## What you can do now
#
# - Plan a step that always keeps its budget, and say which requests starve under which knobs.
# - Say whether budget or cap bounds a user's gap, and how a prompt is cut under both.
# - Separate plan, compute and commit, so that a failed step costs nothing but time.
# - Say which chunk gives a token, and what a preempted request must compute again.
# - Run chunks and decodes of many users in one batch, and show that no bit changes.
#
# How large should the budget be? A smaller one makes shorter gaps and later first tokens: notebook 06.
