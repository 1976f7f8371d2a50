# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 00 The freeze
#
# **24 users are streaming, and one more user pastes a long document. Why do all 24 streams freeze?** In this notebook
# you compute how long such a freeze lasts, and see why no order of the requests prevents it, and why a long enough
# prompt never runs at all. Then you see what cutting the prompt changes, and what it costs.
#
# About an hour. NumPy is enough; the pictures use matplotlib. Places and positions count from 0.
#
# The words that the notebook builds on: a language model reads and writes *tokens*, numbers that stand for pieces of text. A
# *request* is one user's text, the *prompt*, and the answer to it. A server works in *steps*: one step is one run of the
# model over some tokens of some requests. To compute a prompt's tokens is called *prefill*; that can be thousands of
# tokens in one step. The step that computes the prompt's last token also gives the first token of the answer. Each later
# token needs one more step, a *decode* of that request. For each token the model keeps two lists of numbers in memory,
# its *key* and *value*; each later token looks back at them: it *attends* to all earlier tokens. A user who gets the
# answer token by token is *streaming*, and gets a new token at the end of each step with a decode of that request.
#
# All times here are *modelled*: they come from a formula, in whole microseconds, and are the same on every machine. Nothing
# in this notebook is measured.

# %% id="setup"
from itertools import permutations

import matplotlib.pyplot as plt
import numpy as np

from autograder import check
from autograder.exercises import EXERCISES
from course_lib.cost.linear import PRESETS, LinearCost, chunked, exclusive_baseline, mixed_baseline, percentile
from course_lib.lessons import nb00_freeze as lesson
from course_lib.schedule.profiles import profile_named
from course_lib.schedule.request import Chunk, Request
from course_lib.schedule.scheduler import Scheduler

m = PRESETS["reference"]  # the model of time that this notebook uses
PROMPT, USERS, CHUNK = 8_192, 24, 1_024

# %% [markdown] id="versions-text"
# Which versions run here? If something fails, add these lines to your question; `python -m course_lib doctor` says
# more.

# %% id="versions"
from course_lib.learner.doctor import machine, packages

for line in (*machine(), *packages()):
    print(f"{line.name:12} {line.found}")

# %% [markdown] id="freeze-text"
# ## 1. 24 streams and one long prompt
#
# 24 users are streaming. Each row of dots is one of them, and each dot is a token. Then another user sends a prompt of
# 8,192 tokens. In the upper picture the server runs the whole prompt in one step, and the 24 users wait. In the lower
# one it cuts the same prompt into *chunks* of 1,024 tokens, and each step has one chunk and a decode for each of
# the 24. Time goes to the right. A blue hatched box is a step that computes prompt tokens, and its width is its duration;
#     an orange dot is a token that a user gets, at the end of a step.

# %% id="freeze-picture"
def draw_schedules(numbers):
    """The prompt as a whole above, in chunks below; without numbers the time axis says nothing."""
    whole = [(0, USERS)] * 4 + [(PROMPT, 0)] + [(0, USERS)] * 13  # (prompt tokens, decodes) of each step
    cut = [(0, USERS)] * 4 + [(CHUNK, USERS)] * (PROMPT // CHUNK) + [(0, USERS)] * 6
    fig, axes = plt.subplots(2, 1, figsize=(11, 6), sharex=True, layout="constrained")
    for ax, title, work in zip(axes, ("the prompt in one step, alone", f"the prompt in chunks of {CHUNK:,}"), (whole, cut)):
        start, tokens = 0, []
        for prompt_tokens, decodes in work:
            stop = start + m.step_us(prompt_tokens, decodes) / 1e3
            if prompt_tokens:
                look = {"facecolor": "#56b4e9", "edgecolor": "#333333", "hatch": "///"}
                ax.broken_barh([(start, stop - start)], (USERS + 1, 4), **look)
            tokens += [stop] if decodes else []
            start = stop
        for user in range(USERS):
            ax.plot(tokens, [user] * len(tokens), ".", color="#d55e00", markersize=4)
        longest = int(np.argmax(np.diff(tokens)))
        begin, end = tokens[longest], tokens[longest + 1]
        ax.annotate("", (begin, 12), (end, 12), arrowprops={"arrowstyle": "<->", "linewidth": 1.5})
        how_long = f"{end - begin:.1f} ms" if numbers else "how long?"
        wide = end - begin > 60
        box = {"facecolor": "white", "edgecolor": "0.5"}
        ax.text((begin + end) / 2 if wide else end + 4, 12, f"no user gets a token: {how_long}", va="center",
                ha="center" if wide else "left", bbox=box)
        ax.set(title=title, ylim=(-1, USERS + 6))
        ax.set_yticks([0, USERS - 1, USERS + 3], ["user 1", f"user {USERS}", "prompt"])
    axes[1].set_xlabel("time in ms (modelled)" if numbers else "time")
    if not numbers:
        axes[1].set_xticks([])
    plt.show()


draw_schedules(numbers=False)

# %% [markdown] id="guess-text"
# **Guess before you go on.** In the upper picture, how long is the longest time between one token of user 1 and the next?
# Choose 5, 24, 150 or 1_000 milliseconds and write it in place of None. It is not graded; a recorded guess makes the
# answer easier to remember.

# %% id="guess"
freeze_ms = None  # 5, 24, 150 or 1_000

# %% id="guess-reveal"
quiet, freeze = m.step_us(0, USERS), exclusive_baseline(m, PROMPT, USERS).worst_stall_us
cut_gap = chunked(m, PROMPT, USERS, CHUNK).worst_stall_us
print(f"you said {freeze_ms} ms, and the nearest is 150: it is {freeze / 1e3:.1f} ms")
thoughts = {
    5: f"That is the usual wait, {quiet / 1e3:.1f} ms, when a step has 24 decodes and nothing else.",
    24: f"That is the longest wait in the lower picture, {cut_gap / 1e3:.1f} ms, where the prompt is cut.",
    1_000: "A second is too long for 8,192 tokens. 'How far to trust the model' looks at a prompt four times as long.",
}
if freeze_ms not in (150, None):
    print(thoughts.get(freeze_ms, "How many dots would fit into the gap? Each usual wait is about 5 ms."))
    print("Why were you off? Write it down in the next cell.")
assert (quiet, freeze, cut_gap) == (5_192, 155_248, 23_624)
draw_schedules(numbers=True)

# %% [markdown] id="guess-why"
# *I was off because ... (double-click to write here)*

# %% [markdown] id="step-text"
# ## 2. What a step costs
#
# A step has three parts:
#
# - a *fixed* part, the same for every step: among other things, all weights of the model (the numbers that training has
#   fixed) are read from memory once;
# - a part for each *prompt token*;
# - a part for each *decode*.
#
# The preset called reference says 2,600 us for the fixed part, 18 us for a prompt token and 108 us for a decode (us:
# microseconds, 1,000 of them are 1 ms). The three numbers were chosen so that 8,192 tokens take 150 ms and a step with a chunk of
# 1,024 and 24 decodes takes 24 ms; no device was measured. They are attributes of an object `m`: `m.fixed_us`,
# `m.prefill_us_per_token`, `m.decode_us`.
#
# A worked example, with easier numbers: what does a step with 30 prompt tokens and decodes of 4 users cost?

# %% id="step-example"
small = LinearCost(fixed_us=100, prefill_us_per_token=2, decode_us=10)

# Step 1: what is paid once?
once = small.fixed_us

# Step 2: what do the prompt tokens add?
prompt_part = 30 * small.prefill_us_per_token

# Step 3: what do the decodes add? One token for each user.
decode_part = 4 * small.decode_us

print(f"{once} + {prompt_part} + {decode_part} = {once + prompt_part + decode_part} us")
assert once + prompt_part + decode_part == 200

# %% [markdown] id="step-exercise"
# You may think that decodes cost nothing beside a long prompt, since the step runs anyway. They do share the large
# fixed part with the prompt. But each still reads the keys and values of its request.
#
# ### Exercise 0.1: how long does a step take?
#
# 4 minutes, difficulty 1 of 5, about one line. For any number of prompt tokens and decodes, and any cost `m`.

# %% [markdown] id="step-hints"
# <details><summary>Hint 1: where to begin</summary>
#
# Do the three steps of the example, with `m` in place of `small`.
#
# </details>
# <details><summary>Hint 2: what is usually missed</summary>
#
# Count the fixed part once: not for each token, and not twice when the step has prompt tokens and decodes.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `return m.fixed_us + m.prefill_us_per_token * ... + m.decode_us * ...`
#
# </details>

# %% id="step-solution" exercise="0.1" solution="step_us" minutes=4 difficulty=1
from course_lib.cost.linear import LinearCost

# include course_lib.cost.linear:step_us

# %% id="step-check" check="step_us" group="values" points=2
check.step_us(step_us, group="values")

# %% id="step-visible"
for what, prompt_tokens, decodes in [
    ("24 decodes", 0, USERS),
    ("8,192 prompt tokens", PROMPT, 0),
    ("8,192 prompt tokens and 24 decodes", PROMPT, USERS),
]:
    print(f"{what:36} {step_us(prompt_tokens, decodes, m):8,} us")
beside = step_us(PROMPT, USERS, m) - step_us(PROMPT, 0, m)
print(f"24 decodes add {beside:,} us to the prompt's step; alone they take {step_us(0, USERS, m):,} us")

# %% [markdown] id="step-after"
# You can now compute a step's duration before it runs. The prompt's step takes 29 times as long as a step of decodes
# alone.

# %% id="step-ratio"
assert m.step_us(PROMPT, 0) == 150_056 and round(m.step_us(PROMPT, 0) / m.step_us(0, USERS)) == 29
assert m.step_us(PROMPT, USERS) - m.step_us(PROMPT, 0) == 2_592

# %% [markdown] id="timeline-text"
# ## 3. The freeze, step by step
#
# There are two ways to run a whole prompt while users stream, and their numbers differ a little. So each number below
# names its way.
#
# - **Mixed baseline:** the whole prompt in one step *together with* the users' decodes.
# - **Exclusive baseline:** the whole prompt in a step without decodes, which wait. This is the upper picture at the
#   beginning.
#
# We write a schedule as rows `(start_us, stop_us, prompt_tokens, decodes)`, one for each step. A step starts when the one
# before it stops. The new prompt arrives during the first step. Its answer has one token, which comes at the end of the
# prompt's step, so there is no decode of it afterwards.
#
# A worked example: the **mixed** baseline for a prompt of 50 tokens and 3 users, at the easier cost.

# %% id="timeline-example"
# Step 1: what is in each step? The users' decodes; the prompt with the decodes; the decodes again.
work = [(0, 3), (50, 3), (0, 3)]  # (prompt tokens, decodes)

# Step 2: how long does each take?
durations = [small.step_us(prompt_tokens, decodes) for prompt_tokens, decodes in work]
print("durations", durations)

# Step 3: put them back to back, from time 0.
rows, start = [], 0
for (prompt_tokens, decodes), duration in zip(work, durations):
    rows.append((start, start + duration, prompt_tokens, decodes))
    start += duration
for row in rows:
    print(row)
assert rows == [(0, 130, 0, 3), (130, 360, 50, 3), (360, 490, 0, 3)]

# %% [markdown] id="timeline-exercise"
# ### Exercise 0.2: the timeline of the exclusive baseline
#
# 7 minutes, difficulty 2 of 5, about six lines. The same three rows, but now the prompt's step has no decodes.
# `m.step_us(prompt_tokens, decodes)` gives a step's duration; so does your `step_us`.

# %% [markdown] id="timeline-hints"
# <details><summary>Hint 1: where to begin</summary>
#
# Say in words what each of the three steps computes. Only the middle one differs from the example.
#
# </details>
# <details><summary>Hint 2: what is usually missed</summary>
#
# The middle step has no decodes, so its row ends in 0. The step after it has all the decodes again, and pays the fixed
# part again.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# Loop over `[(0, users), (prompt, 0), (0, users)]` as the example does, and return the rows.
#
# </details>

# %% id="timeline-solution" exercise="0.2" solution="one_shot_timeline" minutes=7 difficulty=2
from course_lib.cost.linear import LinearCost

# include course_lib.lessons.nb00_freeze:one_shot_timeline

# %% id="timeline-check" check="one_shot_timeline" group="values" points=3
check.one_shot_timeline(one_shot_timeline, group="values")

# %% [markdown] id="gap-text"
# You can now write down any schedule as numbers. How long does a user wait in it?
#
# A *gap* is the time from one token of a user to that user's next. (Its usual name is inter-token latency, ITL.) A
# token appears when the step that computes it *stops*. A worked example with the three rows above, all of which have
# decodes:

# %% id="gap-example"
# Step 1: when do the users get tokens? At the end of each step that has decodes.
tokens = [stop for start, stop, prompt_tokens, decodes in rows if decodes]
print("tokens at", tokens)

# Step 2: the time from each token to the next.
gaps = [tokens[1] - tokens[0], tokens[2] - tokens[1]]
print("gaps     ", gaps)

# Step 3: the longest.
print("longest  ", max(gaps))
assert max(gaps) == 230 == rows[1][1] - rows[1][0]  # in the mixed baseline it is just the prompt's step

# %% [markdown] id="gap-exercise"
# You may think that the freeze lasts as long as the prompt's step. In the mixed baseline it does. But in the exclusive
# one the prompt's step gives the users nothing: they get their next token when the step *after* it stops.
#
# ### Exercise 0.3: the longest gap
#
# 6 minutes, difficulty 2 of 5, about two lines. For any schedule: there may be several prompts, alone or with decodes,
# and steps without decodes at both ends. Loop over the rows as the example does; the check gives a list of such rows.

# %% [markdown] id="gap-hints"
# <details><summary>Hint 1: where to begin</summary>
#
# First make the list of the times at which tokens come. Then compare neighbours in that list.
#
# </details>
# <details><summary>Hint 2: what is usually missed</summary>
#
# A step without decodes gives no token: leave its row out. The time before the first token, or after the last, is no
# gap.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `tokens = [stop for _, stop, _, decodes in steps if decodes]`, and then the largest `b - a` for `a, b` in
# `zip(tokens, tokens[1:])`.
#
# </details>

# %% id="gap-solution" exercise="0.3" solution="worst_gap" minutes=6 difficulty=2
from collections.abc import Sequence

# include course_lib.lessons.nb00_freeze:worst_gap

# %% id="gap-check" check="worst_gap" group="values" points=3
check.worst_gap(worst_gap, group="values")

# %% id="gap-visible"
def rows_of(work):
    """Rows of a schedule from the contents of each step: pairs (prompt tokens, decodes)."""
    rows, start = [], 0
    for prompt_tokens, decodes in work:
        stop = start + m.step_us(prompt_tokens, decodes)
        rows.append((start, stop, prompt_tokens, decodes))
        start = stop
    return rows


exclusive = one_shot_timeline(PROMPT, USERS, m)
mixed = rows_of([(0, USERS), (PROMPT, USERS), (0, USERS)])
for name, steps in [("exclusive", exclusive), ("mixed", mixed)]:
    start, stop, _, _ = steps[1]
    print(f"{name:9} baseline: the prompt's step takes {stop - start:,} us, the longest gap is {worst_gap(steps):,} us")

# %% id="gap-numbers"
alone, with_decodes = m.step_us(PROMPT, 0), m.step_us(PROMPT, USERS)
assert lesson.worst_gap(lesson.one_shot_timeline(PROMPT, USERS, m)) == alone + m.step_us(0, USERS) == 155_248
assert lesson.worst_gap(mixed) == with_decodes == 152_648
assert exclusive_baseline(m, PROMPT, USERS).worst_stall_us == 155_248
assert mixed_baseline(m, PROMPT, USERS).worst_stall_us == 152_648

# %% [markdown] id="tail-text"
# You can now say for any schedule how long a user is frozen: 155,248 us in the exclusive baseline, which is the prompt's
# 150,056 and the next step's 5,192; and 152,648 us in the mixed one.
#
# Does the usual measure show it? Servers are often judged by *P99*: the gap that 99 of 100 gaps do not exceed.
# (P50 is the middle one: half of the gaps are no longer.) Take 100 gaps of a user,
# of which one is the freeze.

# %% id="tail"
hundred = [m.step_us(0, USERS)] * 99 + [exclusive_baseline(m, PROMPT, USERS).worst_stall_us]
print(f"P50 {percentile(hundred, 50):,} us   P99 {percentile(hundred, 99):,} us   longest {max(hundred):,} us")
assert (percentile(hundred, 50), percentile(hundred, 99), max(hundred)) == (5_192, 5_192, 155_248)

# %% [markdown] id="tail-after"
# P99 does not show it: one gap in a hundred is exactly what it leaves out. (By nearest rank. NumPy's default
# interpolates between neighbours and gives a little more, without a trace of the freeze either.) So this course always
# gives the longest gap as well.

# %% [markdown] id="order-text"
# ## 4. Does another order help?
#
# Three prompts wait while 24 users stream: 8,192 tokens, 2,048 and 300. Each runs whole, in a step without decodes
# (exclusive), and between two prompts there is a step of decodes. You may choose the order.
#
# **Guess:** is the users' longest gap shorter if the longest prompt runs last, or first? Write "last", "first" or "same".

# %% id="order-guess"
best_place = None  # "last", "first" or "same"

# %% id="order-reveal"
waiting = (8_192, 2_048, 300)
gaps = {}
print("order                 users' longest gap   first token of 8,192 / 2,048 / 300 after (ms)")
for order in permutations(waiting):
    steps = rows_of([(0, USERS), *(row for prompt in order for row in [(prompt, 0), (0, USERS)])])
    gaps[order] = lesson.worst_gap(steps)
    came = steps[0][1]  # they all wait when the first step stops
    first = {prompt: (stop - came) / 1e3 for _, stop, prompt, _ in steps if prompt}
    print(f"{' '.join(f'{p:6,}' for p in order)}    {gaps[order]:8,} us          " + "  ".join(f"{first[p]:6.1f}" for p in waiting))

back_to_back = set()
for order in permutations(waiting):
    back_to_back.add(lesson.worst_gap(rows_of([(0, USERS), *((prompt, 0) for prompt in order), (0, USERS)])))
print(f"\nwithout decodes between the prompts: {back_to_back} us, whatever the order")
print(f"you said {best_place!r}, and it is 'same'")
if best_place == "last":
    print("Last only moves the freeze to a later moment. It is as long then.")
elif best_place == "first":
    print("First only moves the freeze to an earlier moment. It is as long then.")
assert set(gaps.values()) == {155_248} and back_to_back == {202_712}

# %% [markdown] id="order-why"
# All orders have the same longest gap. The order decides only which of the three *new requests* waits for which: the
# prompt of 300 tokens gets its first token after 8 ms or after 208.
#
# You may think that the order causes the freeze. But whenever the long prompt runs, it runs in one step, and every user
# who streams then waits for all of it. It could only wait until no user streams, and on a busy server that never
# happens. The trouble is not the order. It is that the prompt is *indivisible*.
#
# *I was off because ... (double-click to write here)*

# %% [markdown] id="never-text"
# ## 5. The prompt that never runs
#
# A step has a *budget*, the largest number of tokens that it may compute: `max_num_batched_tokens`, as this course and
# vLLM, a widely used server program, call it. The server reserves memory for that many, and a small budget keeps steps
# short. A decode takes one token of it. The rest is for prompts, which wait in a queue, *first come, first served*. If
# the first prompt fits whole into what is left, the step takes it and looks at the next. If it does not fit, the step
# takes no more prompts.
#
# A worked example: prompts of 300, 500 and 90 tokens wait, and the step has 700 tokens left.

# %% id="never-example"
queue, left = [300, 500, 90], 700

# Step 1: does the first fit? It does, and its tokens are subtracted from the budget.
assert queue[0] <= left
left -= queue[0]

# Step 2: does the second fit into what is left?
print(f"{queue[1]} tokens into {left}: {queue[1] <= left}")

# Step 3: it does not, so the queue stops here. The third would fit, but it came later.
print("picked: [0]")

# %% [markdown] id="never-exercise"
# You may want to let the short prompt pass. But while short prompts keep coming, the one in front may then wait for
# ever. So the usual rule is strict.
#
# ### Exercise 0.4: which prompts run in this step?
#
# 6 minutes, difficulty 2 of 5, about six lines. Return the places of the prompts that run, whole.

# %% [markdown] id="never-hints"
# <details><summary>Hint 1: where to begin</summary>
#
# Go through the queue from the front, and keep what is left of the budget.
#
# </details>
# <details><summary>Hint 2: what is usually missed</summary>
#
# A prompt that does not fit ends the loop. If you skip it, later ones pass it. A prompt that fits exactly does fit.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `for place, tokens in enumerate(queue):`, then `if tokens > budget: break`, then record the place and subtract the
# tokens.
#
# </details>

# %% id="never-solution" exercise="0.4" solution="whole_prompt_pick" minutes=6 difficulty=2
from collections.abc import Sequence

# include course_lib.schedule.policies:whole_prompt_pick

# %% id="never-check" check="whole_prompt_pick" group="values" points=3
check.whole_prompt_pick(whole_prompt_pick, group="values")

# %% [markdown] id="never-run-text"
# You can now say which prompts a step takes. Run your rule in the course's real scheduler: the part of the engine that
# decides what each step computes. Its rules are grouped into *profiles*. The profile whole-prompt runs prompts whole;
# the profile course cuts them where the budget ends. Budget 8,192. 24 users stream, and at step 10 a prompt of 9,000
# tokens comes, and after it one of 120.
#
# **Guess:** in which step does each of the two prompts run under the rule you wrote? Write a step, or "never".

# %% id="never-guess"
runs_in_step = {"9,000 tokens": None, "120 tokens": None}

# %% id="never-run"
LONG, SHORT = 24, 25  # request ids of the two new prompts; the users are 0 to 23


def serve(profile, steps=1_000, plan_step=None):
    """What each step computed, as a list of {request: (start, stop)}: the real planner, without a model."""
    rules = profile_named(profile)
    cache = rules.new_cache(4_000, 16, enable_prefix_caching=False)
    scheduler = Scheduler(
        cache, rules, max_num_batched_tokens=8_192, max_num_seqs=64, plan_step=plan_step, refuse_stuck=False
    )
    for user in range(USERS):
        scheduler.add(Request(user, [user] * 20, max_tokens=2 * steps))
    history = []
    for number in range(steps):
        if number == 10:
            scheduler.add(Request(LONG, [1] * 9_000, max_tokens=1))
            scheduler.add(Request(SHORT, [2] * 120, max_tokens=1))
        step = scheduler.schedule()
        finished = [i for i, chunk in step.chunks.items() if chunk.stop == scheduler.requests[i].num_tokens]
        scheduler.commit(step, dict.fromkeys(finished, 0))  # 0 stands for the token that a model would give
        history.append({i: (chunk.start, chunk.stop) for i, chunk in step.chunks.items()})
    return history


def my_plan(requests, *, max_num_batched_tokens, max_chunk, max_num_seqs, pick=None):
    """Every decode, and then the prompts that your rule picks."""
    decodes = [r for r in requests if r.decoding]
    prompts = [r for r in requests if not r.decoding]
    left = max_num_batched_tokens - len(decodes)
    picked = (pick or whole_prompt_pick)([r.num_uncomputed for r in prompts], left)
    return tuple(Chunk(r.id, r.num_computed, r.num_tokens) for r in (*decodes, *(prompts[i] for i in picked)))


def report(name, history):
    print(name)
    for request, prompt in ((LONG, 9_000), (SHORT, 120)):
        parts = [f"step {n}: tokens {h[request][0]:,} to {h[request][1] - 1:,}" for n, h in enumerate(history) if request in h]
        print(f"  {prompt:5,} tokens   {'; '.join(parts) or f'never in {len(history):,} steps'}")


whole_prompt, course = serve("whole-prompt"), serve("course")
report("your whole_prompt_pick", serve("course", plan_step=my_plan))
report("profile whole-prompt", whole_prompt)
report("profile course", course)
print("you said", runs_in_step)
if runs_in_step["9,000 tokens"] in (10, 11):
    print("9,000 tokens do not fit into a budget of 8,192 in any step: your rule cannot cut them.")
if runs_in_step["120 tokens"] in (10, 11):
    print("120 tokens would fit. But they came second, and the prompt in front of them blocks the queue.")
assert not any({LONG, SHORT} & step.keys() for step in whole_prompt) and len(whole_prompt) == 1_000
assert course[10][LONG] == (0, 8_168) and course[11][LONG] == (8_168, 9_000) and course[11][SHORT] == (0, 120)

# %% [markdown] id="never-why"
# Not in 1,000 steps, and not in a million: 9,000 never fits into 8,192, however empty the server is. This is called
# *starvation*. The short prompt after it starves as well.
#
# Cut at the budget, the same prompt runs in two steps: 8,168 tokens beside the 24 decodes, then the other 832, and the
# short prompt beside those. With chunks a prompt of any length can run, on two conditions: the budget must be larger
# than the number of decodes, and the memory for keys and values must hold the whole prompt.
#
# The course's scheduler refuses such a request when it arrives, with the reason; above that was switched off.
#
# *I was off because ... (double-click to write here)*

# %% id="never-refused"
rules = profile_named("whole-prompt")
strict = Scheduler(rules.new_cache(4_000, 16), rules, max_num_batched_tokens=8_192, max_num_seqs=64)
try:
    strict.add(Request(LONG, [1] * 9_000, max_tokens=1))
except ValueError as error:
    print("ValueError:", error)

# %% [markdown] id="cut-text"
# ## 6. What cutting costs
#
# Now cut the prompt of 8,192 tokens into chunks of 1,024, each in a step with a decode for each of the 24 users, as in
# the lower picture at the beginning. (1,024 is here a cap for one request; the step's budget is larger and includes the
# 24 decodes. Notebook 05 has both knobs.) The time from the start of the prompt's first step to its first token is its
# *time to first token*, TTFT. (Servers count from the request's arrival; here we leave out the wait for the step that
# is running.)
#
# Fill in the three blanks, in place of None. This is not graded; the cell says what fits.

# %% id="cut-faded"
number_of_steps = None  # Step 1: how many steps does the prompt take?
one_step_us = None  # Step 2: how long is each? Write it with m.step_us(..., ...)
first_token_us = None  # Step 3: the TTFT of the prompt

# %% id="cut-reveal"
line = chunked(m, PROMPT, USERS, CHUNK)
often = {
    9: "8,192 is exactly 8 chunks, and the last of them also gives the first token: no ninth step.",
    18_432: "That is the prompt tokens' part alone.",
    21_032: "The decodes are in each step too.",
    150_056: "That is the TTFT of the exclusive baseline.",
    168_256: "The decodes are in each step too.",
}
for name, yours, right in [
    ("number_of_steps", number_of_steps, len(line.step_us)),
    ("one_step_us", one_step_us, line.step_us[0]),
    ("first_token_us", first_token_us, line.ttft_us),
]:
    said = "fits" if yours == right else f"is {right:,}. {often.get(yours, '')}"
    print(f"{name:16} you wrote {yours}: it {said}")
assert (len(line.step_us), line.step_us[0], line.ttft_us) == (8, 23_624, 188_992)
assert line.worst_stall_us == 23_624  # the decodes are in every step, so each gap is one step

# %% [markdown] id="cut-after"
# The longest gap falls from 155 ms (exclusive) or 153 ms (mixed) to 24 ms. The price:
#
# | 8,192 tokens, 24 users | steps | longest gap | TTFT of the prompt |
# | --- | --- | --- | --- |
# | exclusive baseline | 1 | 155,248 us | 150,056 us |
# | mixed baseline | 1 | 152,648 us | 152,648 us |
# | chunks of 1,024 | 8 | 23,624 us | 188,992 us |
#
# The first token of the long prompt comes 39 ms later than in the exclusive baseline. Each of the 8 steps pays the
# fixed part, and each has the users' decodes.

# %% id="cut-table"
for name, line in [
    ("exclusive baseline", exclusive_baseline(m, PROMPT, USERS)),
    ("mixed baseline", mixed_baseline(m, PROMPT, USERS)),
    ("chunks of 1,024", chunked(m, PROMPT, USERS, CHUNK)),
    ("one chunk of 8,192", chunked(m, PROMPT, USERS, PROMPT)),
]:
    print(f"{name:20} steps {len(line.step_us)}   longest gap {line.worst_stall_us:8,} us   TTFT {line.ttft_us:8,} us")

# A chunk as long as the prompt is the mixed baseline, step for step. It is not the exclusive one.
assert chunked(m, PROMPT, USERS, PROMPT) == mixed_baseline(m, PROMPT, USERS) != exclusive_baseline(m, PROMPT, USERS)
assert line.ttft_us == 152_648 and round((188_992 - 150_056) / 1e3) == 39

# %% [markdown] id="honest-text"
# ### How far to trust the model
#
# The cost is linear: a prompt token costs the same at every position. In reality a token attends to all tokens before
# it, so late tokens cost more. (Both models leave one cost out: a later chunk reads the earlier chunks' keys and values
# again.) Below is a second model, with the cost of attention: 15 us for a prompt token and 0.74 *nanoseconds* for each
# pair of a token and one that it sees. For 8,192 tokens the two agree. For 32,768 they do not.

# %% id="honest"
def attention_step_us(start, stop, decodes):
    """A step with the prompt's tokens [start, stop): linear cost, and 0.74 ns for each pair. Also a model."""
    pairs = stop * (stop + 1) // 2 - start * (start + 1) // 2
    return LinearCost(2_600, 15, 108).step_us(stop - start, decodes) + pairs * 74 // 100_000


def linear_step_us(start, stop, decodes):
    return m.step_us(stop - start, decodes)


found = {}
print("model            8,192 alone   32,768 alone   chunks of 1,024 of 32,768   longest gap, mixed : chunks")
for name, took in (("linear", linear_step_us), ("with attention", attention_step_us)):
    steps = [took(start, start + CHUNK, USERS) for start in range(0, 32_768, CHUNK)]
    gain = took(0, 32_768, USERS) / max(steps)
    found[name] = (took(0, PROMPT, 0), took(0, 32_768, 0), min(steps), max(steps), round(gain, 1))
    a, b, low, high, _ = found[name]
    print(f"{name:15} {a / 1e3:8.1f} ms {b / 1e3:11.1f} ms        {low / 1e3:4.1f} to {high / 1e3:4.1f} ms {gain:25.2f}")

exclusive_gain = exclusive_baseline(m, 32_768, USERS).worst_stall_us / 23_624
print(f"(linear, against the exclusive baseline: {exclusive_gain:.2f})")
assert found["linear"] == (150_056, 592_424, 23_624, 23_624, 25.2) and round(exclusive_gain, 2) == 25.30
assert [round(us / 1e3, 1) for us in found["with attention"][:4]] == [150.3, 891.4, 20.9, 45.0]
assert found["with attention"][4] == 19.9

# %% [markdown] id="honest-after"
# So "25 times better" and "a 32k prompt freezes all users for nearly a second" are both right, but not in one model:
# the linear one gives 25 times and 0.59 s, the one with attention 0.89 s and 20 times. In the first all 32 chunks take
# equally long; in the second the last takes twice as long as the first. Both are models: what your device does must be
# measured.
#
# One question is open: can a prompt be cut without changing what the model computes? The next notebooks answer it: yes,
# to the last bit, if attention looks back only, the mask and the positions are right, and the order of every sum is
# fixed.

# %% [markdown] id="break-text"
# ## 7. Break it
#
# The course has collected wrong answers that people really write. First the wrong ways to measure a gap, on three
# timelines: the two baselines, and one in which the number of users changes, so that the steps are not equally long.
#
# **Before you run it:** which wrong way is right in both baselines?

# %% id="break-gaps"
def wrong(exercise, name):
    """One of the course's collected wrong answers, as a function."""
    return EXERCISES[exercise].compile(EXERCISES[exercise].wrong_answer(name).source)


ragged = rows_of([(0, 6), (3_000, 0), (0, 48), (400, 48), (0, 6)])
timelines = [lesson.one_shot_timeline(PROMPT, USERS, m), mixed, ragged]
truth = [lesson.worst_gap(steps) for steps in timelines]
print(f"{'gaps in us':18} exclusive       mixed      ragged   (* where it is right)")
print(f"{'right':18}" + "".join(f"{us:10,}  " for us in truth))
right_twice = []
always_right = []
for answer in EXERCISES["worst_gap"].wrong_answers:
    said = [wrong("worst_gap", answer.name)(steps) for steps in timelines]
    always_right += [answer.name] if said == truth else []
    print(f"{answer.name:18}" + "".join(f"{us:10,}{'*' if us == right else ' '} " for us, right in zip(said, truth)))
    right_twice += [answer.name] if said[:2] == truth[:2] and said != truth else []
assert "between_starts" in right_twice and always_right == ["before_the_first", "after_the_last", "first_gap", "first_stop_counted"]

# %% [markdown] id="break-ask"
# `between_starts` is right in both baselines only because the step before the freeze and the step after it are equally
# long. A test whose steps are all alike would not find it.
#
# 1. `longest_step` forgets the step after the prompt. In which baseline is it right, and why there?
# 2. `step_after_added` is right in the exclusive baseline. What does it wrongly add in the mixed one?
# 3. Four of the wrong ways are right in all three timelines. What must a timeline contain to show that they are wrong?
#
# Now the wrong picks, in the real scheduler for 100 steps. It refuses some: a step must not exceed its budget.

# %% id="break-picks"
signature = {}
for answer in EXERCISES["whole_prompt_pick"].wrong_answers:
    pick = wrong("whole_prompt_pick", answer.name)
    try:
        history = serve("course", steps=100, plan_step=lambda requests, pick=pick, **knobs: my_plan(requests, pick=pick, **knobs))
    except (ValueError, IndexError) as error:
        signature[answer.name] = "stopped: " + str(error)[:75]
    else:
        runs = {n: [i for i, h in enumerate(history) if n in h] for n in (LONG, SHORT)}
        streamed = sum(1 for h in history[1:] if len(h) >= USERS)
        signature[answer.name] = f"9,000 runs in {runs[LONG] or 'no step'}, 120 runs in {runs[SHORT] or 'no step'}, all users in {streamed} of 99 steps"
    print(f"{answer.name:32} {signature[answer.name]}")
as_right = "9,000 runs in no step, 120 runs in no step, all users in 99 of 99 steps"
assert [name for name, text in signature.items() if text == as_right] == ["budget_for_each", "strictly_less", "all_or_none"]
assert signature["around_the_head"].startswith("9,000 runs in no step, 120 runs in [10]")
assert signature["head_always"].startswith("stopped") and signature["number_of_requests"].startswith("stopped")

# %% [markdown] id="break-after"
# With `around_the_head` the short prompt runs, and the long one still never does: another order does not help here
# either.
#
# `strictly_less`, `budget_for_each` and `all_or_none` look right in this run. Which queue would show them? `head_only`
# and `equal_prompts_once` are right about the two new prompts, but not about the users: look at the last column. (At the
# start, 24 users come at once, with prompts of 20 tokens each.)

# %% [markdown] id="explore-text"
# ## 8. Try other settings
#
# Each bar is a step; its height is the duration. The dashed line is a *target*: no step longer than 50 ms. Before you
# move a control, say what will happen.
#
# 1. Turn chunking on. Which bars get lower, and what gets longer?
# 2. Set the chunk to 8,192, the length of the prompt. To which of the two baselines is that equal?
# 3. Turn chunking off and move the users from 24 to 48. How much does the freeze grow? Why so little?
# 4. Chunks of 128: what takes most of each step now?

# %% id="explore"
from course_lib.widgets.stall import explore_stall

explore_stall()

# %% [markdown] id="questions-text"
# ## 9. Questions
#
# Six about this notebook, and two about its earlier sections. Answer from memory first.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("00_freeze")

# %% [markdown] id="end"
# ## What you can do now
#
# - Say how long a step takes, and how long a streaming user is frozen, in the mixed and in the exclusive baseline.
# - Explain why no order of the requests prevents the freeze, and why P99 may not show it.
# - Show that a whole prompt longer than the budget never runs, and that it does run in chunks.
# - Say what cutting costs: more steps, and a later first token for the long prompt.
#
# Next: can a prompt be cut at all? Notebook 01.
