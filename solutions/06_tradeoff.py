# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 06 How small a chunk?
#
# A scheduler runs the chunks of a prompt in steps with other users' decodes. **How small a chunk would you choose?** In
# this notebook you report gaps so that a freeze shows, sweep the chunk size, solve for the largest chunk that keeps a
# target, and compute what decodes cost in a GPU's step with a chunk. Then you see what the simple model leaves out.
#
# About 70 minutes. NumPy is enough; the pictures use matplotlib. Places and positions count from 0.
#
# The words that the notebook builds on: a server works in *steps*; one step is one run of the model over some tokens of some
# requests. Computing a prompt's tokens is called *prefill*. A *chunk* is a run of a prompt's tokens that one step computes. A
# *decode* gives one user whose answer is already *streaming* the next token, and reads the *keys and values* (K and V) of
# that user's earlier tokens. The time from one token of a user to the next is a *gap*, or inter-token latency, *ITL*.
# The time until the first token of a prompt's answer is its *TTFT* (time to first token). A step's *budget*,
# `max_num_batched_tokens`, is the largest number of tokens that it may compute; `max_chunk` is the most for one
# request.
#
# All times are *modelled*: they come from formulas, and are the same on every machine. Some constants were fitted to
# published measurements; the text says which. Nothing is measured in this notebook.

# %% id="setup"
import matplotlib.pyplot as plt
import numpy as np

from autograder import check
from autograder.exercises import EXERCISES
from course_lib.cost.linear import PRESETS, chunked, exclusive_baseline, mixed_baseline, percentile
from course_lib.lessons import nb06_tradeoff as lesson

m = PRESETS["reference"]  # a step: 2,600 us, and 18 us for a prompt token, and 108 us for a decode
PROMPT, USERS, TARGET_US = 8_192, 24, 50_000
assert (m.fixed_us, m.prefill_us_per_token, m.decode_us) == (2_600, 18, 108)

# %% [markdown] id="open-text"
# ## 1. How small a chunk would you choose?
#
# 24 users stream. A prompt of 8,192 tokens comes, and each step has one chunk of it and a decode for every user. Below
# are three chunk sizes. A box is a step; its width and height are its duration; hatched: it computes prompt tokens. The
# users get their tokens where a step ends. The dashed line is a *target*: no gap longer than 50 ms.

# %% id="open-picture"
def draw_steps(chunks):
    """One row of steps for each chunk size, on the same clock."""
    fig, axes = plt.subplots(len(chunks), 1, figsize=(11, 1.9 * len(chunks)), sharex=True, layout="constrained")
    for ax, chunk in zip(axes, chunks):
        line = chunked(m, PROMPT, USERS, chunk)
        start = 0
        for number, us in enumerate(line.gap_us):
            prompt = number < len(line.step_us)
            look = {"facecolor": "#56b4e9", "hatch": "///"} if prompt else {"facecolor": "#d55e00"}
            ax.add_patch(plt.Rectangle((start / 1e3, 0), us / 1e3, us / 1e3, edgecolor="#333333", linewidth=0.5, **look))
            start += us
        ax.axhline(TARGET_US / 1e3, color="black", linestyle="--")
        ax.set(xlim=(0, 520), ylim=(0, 170), ylabel="ms")
        ax.set_title(f"chunks of {chunk:,}: first token of the prompt after {line.ttft_us / 1e3:.0f} ms", fontsize=10)
    axes[-1].set_xlabel("time, ms (modelled)")
    plt.show()


draw_steps([128, 1_024, 8_192])

# %% [markdown] id="guess-text"
# **Guess before you go on.** It is not graded; a recorded guess makes the answer easier to remember.
#
# 1. What is the largest chunk that keeps every gap at 50 ms or below? Write a number of tokens.
# 2. P99 is the gap that 99 of 100 gaps do not exceed. Take 120 gaps of one user, during which one such prompt comes.
#    Sketch the P99 of these 120 gaps, in ms, for five chunk sizes.

# %% id="guess"
largest_chunk = None
p99_ms = {128: None, 1_024: None, 2_048: None, 4_096: None, 8_192: None}

# %% [markdown] id="guess-hold"
# Section 4 answers the first question. Here is the second: your sketch, P99, and the longest gap.

# %% id="guess-reveal"
def window(chunk, gaps=120):
    """The gaps of one user around one prompt: a gap for each of the prompt's steps, and ordinary ones."""
    line = chunked(m, PROMPT, USERS, chunk)
    return [*line.step_us, *[m.step_us(0, USERS)] * (gaps - len(line.step_us))]


sizes = list(p99_ms)
p99 = {chunk: percentile(window(chunk), 99) for chunk in sizes}
longest = {chunk: max(window(chunk)) for chunk in sizes}
print("chunk      you said        P99    longest   (ms)")
for chunk in sizes:
    print(f"{chunk:5,} {p99_ms[chunk]!s:>12} {p99[chunk] / 1e3:10.1f} {longest[chunk] / 1e3:10.1f}")
fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
ax.plot(sizes, [longest[c] / 1e3 for c in sizes], "s--", color="#d55e00", label="longest gap")
ax.plot(sizes, [p99[c] / 1e3 for c in sizes], "o-", color="#0072b2", label="P99 of 120 gaps")
mine = [(c, y) for c, y in p99_ms.items() if y is not None]
ax.plot([c for c, _ in mine], [y for _, y in mine], "x:", color="black", label="your sketch")
ax.axhline(TARGET_US / 1e3, color="black", linewidth=0.8, label="50 ms")
ax.set(xlabel="chunk, tokens", ylabel="ms (modelled)", xscale="log", xticks=sizes, xticklabels=[f"{c:,}" for c in sizes])
ax.legend()
plt.show()
if mine and p99_ms[8_192] is not None and p99_ms[8_192] > 100:
    print("You said that P99 shows the freeze of the whole prompt. It is one gap of 120, and P99 leaves one in a hundred out.")
elif mine and all(y == mine[0][1] for _, y in mine):
    print("You said that P99 is the same for all. It rises with the chunk while more than one gap in a hundred comes from a chunk.")
if mine and any(abs(y - p99[c] / 1e3) > 5 for c, y in mine):
    print("Why were you off? Write it down in the next cell.")
assert list(p99.values()) == [7_496, 23_624, 42_056, 78_920, 5_192]
assert [longest[c] for c in sizes] == [7_496, 23_624, 42_056, 78_920, 152_648]

# %% [markdown] id="guess-why"
# By P99 alone the best server does not cut at all. So P99 alone is not enough.
#
# *I was off because ... (double-click to write here)*

# %% [markdown] id="itl-text"
# ## 2. How long did the users wait?
#
# Three numbers summarize many gaps: P50, P99 and the longest. P50 and P99 are taken by *nearest rank*: sort the gaps,
# and take the smallest one that at least 50, or 99, in a hundred do not exceed. It is always one of the gaps.
#
# A worked example with ten gaps, and P75.

# %% id="itl-example"
gaps = [5, 5, 24, 5, 6, 5, 24, 5, 24, 7]

# Step 1: sort them.
ordered = sorted(gaps)
print("sorted  ", ordered)

# Step 2: how many of them are 75 in a hundred? Of 10 gaps 7.5, so at least 8.
rank = -(-75 * len(gaps) // 100)  # // rounds down, and with the two minus signs it rounds up
print("rank    ", rank)

# Step 3: the gap of that rank. The first of the list has rank 1 and index 0.
print("P75     ", ordered[rank - 1])
assert ordered[rank - 1] == 24 and sum(gap <= 24 for gap in gaps) >= 7.5 > sum(gap < 24 for gap in gaps)

# %% [markdown] id="itl-exercise"
# You may think that P99 shows every stall, since a stall is the longest gap. But it leaves one gap in a hundred out,
# and a single stall among 100 gaps or more is that one.
#
# ### Exercise 6.1: P50, P99 and the longest
#
# 8 minutes, difficulty 2 of 5, about four lines. For any list of gaps in whole microseconds, in any order.

# %% [markdown] id="itl-hints"
# <details><summary>Hint 1: where to begin</summary>
#
# Do the three steps of the example for 50 and for 99, with the same sorted list.
#
# </details>
# <details><summary>Hint 2: what is usually missed</summary>
#
# The rank is rounded up, and it counts from 1: P99 of 100 gaps has rank 99 and index 98. `np.percentile` interpolates
# between two neighbours by default.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `ordered[-(-percent * len(ordered) // 100) - 1]` for 50 and for 99, and then `ordered[-1]`.
#
# </details>

# %% id="itl-solution" exercise="6.1" solution="itl" minutes=8 difficulty=2
from collections.abc import Sequence

# include course_lib.lessons.nb06_tradeoff:itl

# %% id="itl-check" check="itl" group="values" points=3
check.itl(itl, group="values")

# %% id="itl-visible"
stall = exclusive_baseline(m, PROMPT, USERS).worst_stall_us  # the prompt alone, while the decodes wait
quiet = m.step_us(0, USERS)
for count, stalls in ((99, 1), (100, 1), (120, 1), (120, 2), (1_000, 10), (1_000, 11)):
    p50, p99_us, most = itl([quiet] * (count - stalls) + [stall] * stalls)
    print(f"{stalls:2} of {count:5,} gaps are stalls:  P50 {p50 / 1e3:5.1f}   P99 {p99_us / 1e3:5.1f}   longest {most / 1e3:5.1f} ms")

# %% id="itl-numbers"
assert lesson.itl([quiet] * 99 + [stall]) == (5_192, 5_192, 155_248)  # P99 says 5.2 ms, and a user waited 155 ms
assert lesson.itl([quiet] * 98 + [stall]) == (5_192, 155_248, 155_248)  # among fewer than 100 gaps it shows
assert lesson.itl([quiet] * 118 + [stall] * 2) == (5_192, 155_248, 155_248)

# %% [markdown] id="itl-after"
# You can now report waits without hiding a freeze: P99 *and* the longest, over enough gaps, with enough long prompts
# among them.

# %% [markdown] id="sweep-text"
# ## 3. Sweep the chunk size
#
# What does a chunk size gain, and what does it cost? A worked example with a prompt of 70 tokens, a chunk of 30, 2
# users, and easier costs.

# %% id="sweep-example"
from course_lib.cost.linear import LinearCost

small = LinearCost(fixed_us=100, prefill_us_per_token=2, decode_us=10)

# Step 1: how many prompt tokens are in each step? The last one has the rest.
parts = [30, 30, 10]
assert sum(parts) == 70

# Step 2: how long is each step? Each has a decode for both users.
steps = [small.step_us(part, 2) for part in parts]
print("steps            ", steps, "us")

# Step 3: the prompt's first token comes at the end of its last step.
print("TTFT             ", sum(steps), "us")

# Step 4: the users get a token at the end of every step, so their longest gap is the longest step.
print("longest gap      ", max(steps), "us")

# Step 5: prompt tokens per second, rounded down. A second has 1,000,000 us.
print("prefill          ", 70 * 1_000_000 // sum(steps), "tokens per second")
assert steps == [180, 180, 140] and 70 * 1_000_000 // sum(steps) == 140_000

# %% [markdown] id="sweep-exercise"
# You may think that smaller is smoother and costs nothing, since the prompt's tokens are the same. But each step pays
# its fixed part, and more steps have more decodes.
#
# ### Exercise 6.2: what each chunk size gains and costs
#
# 10 minutes, difficulty 2 of 5, about five lines. The five steps of the example, for each of several chunk sizes.

# %% [markdown] id="sweep-hints"
# <details><summary>Hint 1: where to begin</summary>
#
# Write it for one chunk size first. `range(0, prompt, chunk)` gives the position at which each step's chunk begins.
#
# </details>
# <details><summary>Hint 2: what is usually missed</summary>
#
# The last step has `prompt - start` tokens if that is less than `chunk`. With a chunk longer than the prompt there is
# one step. And the decodes are in every step.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `steps = [m.step_us(min(chunk, prompt - start), users) for start in range(0, prompt, chunk)]`, and then the row
# `(chunk, len(steps), sum(steps), max(steps), ...)`.
#
# </details>

# %% id="sweep-solution" exercise="6.2" solution="sweep" minutes=10 difficulty=2
from collections.abc import Sequence

from course_lib.cost.linear import LinearCost

# include course_lib.lessons.nb06_tradeoff:sweep

# %% id="sweep-check" check="sweep" group="values" points=4
check.sweep(sweep, group="values")

# %% id="sweep-visible"
CHUNKS = [128, 256, 512, 1_024, 1_536, 2_048, 2_560, 3_072, 4_096, 6_144, 8_192]
rows = sweep(CHUNKS, PROMPT, USERS, m)
print("chunk   steps   TTFT, ms   longest gap, ms   prefill tok/s")
for chunk, count, ttft, worst, rate in rows:
    over = "   over the target" if worst > TARGET_US else ""
    print(f"{chunk:5,} {count:7} {ttft / 1e3:10.1f} {worst / 1e3:17.1f} {rate:15,}{over}")

# %% id="sweep-picture"
fig, axes = plt.subplots(1, 2, figsize=(11, 3.8), sharey=True, layout="constrained")
for ax, column, scale, label, side in ((axes[0], 4, 1, "prefill, tokens per second", -1), (axes[1], 2, 1e3, "TTFT of the prompt, ms", 1)):
    at = [row[column] / scale for row in rows]
    ax.plot(at, [row[3] / 1e3 for row in rows], "s--", color="#d55e00", label="longest gap")
    ax.plot(at, [itl(window(row[0]))[1] / 1e3 for row in rows], "o-", color="#0072b2", markersize=4, label="P99 of 120 gaps")
    for row in rows:
        ax.annotate(f"{row[0]:,}", (row[column] / scale, row[3] / 1e3), xytext=(6 * side, 3), textcoords="offset points", fontsize=8, ha="right" if side < 0 else "left")
    ax.axhline(TARGET_US / 1e3, color="black", linestyle=":")
    ax.set(xlabel=f"{label} (modelled)", yscale="log")
    ax.set_yticks([5, 10, 20, 50, 100, 150], ["5", "10", "20", "50", "100", "150"])
axes[0].set_ylabel("gap, ms (modelled)")
axes[0].legend(loc="upper left", fontsize=8)
axes[0].set_title("more to the right and lower is better")
axes[1].set_title("more to the left and lower is better")
plt.show()

# %% [markdown] id="sweep-after"
# You can now draw this trade for any prompt and any cost. (On the command line: `python -m course_lib sweep --out sweep.png`.)
# Look at the P99 of the largest chunks: by P99 they are fine. Below 512 tokens you pay much TTFT for slightly shorter
# gaps. Above 4,096 you pay much longer gaps for slightly less TTFT. Between, your target decides.
#
# There are two servers without chunks to compare with: the *mixed* baseline computes the whole prompt in one step with
# the decodes, the *exclusive* one computes it alone while the decodes wait. These numbers recur in the course; the last
# line is for 32,768 tokens:

# %% id="sweep-numbers"
line = chunked(m, PROMPT, USERS, 1_024)
print(f"worst stall {line.worst_stall_us:,} us, TTFT {line.ttft_us:,} us, {line.steps_over_target(TARGET_US)} steps over 50 ms")
print(f"decode throughput {line.decode_tok_per_s:,} tokens per second (the prompt's 8 steps and 5 of decodes after them)")
long_prompt = chunked(m, 32_768, USERS, 1_024).worst_stall_us
gain = {name: of(m, 32_768, USERS).worst_stall_us / long_prompt for name, of in [("mixed", mixed_baseline), ("exclusive", exclusive_baseline)]}
print(f"at 32,768 tokens: {gain['mixed']:.2f} times shorter than in the mixed baseline, {gain['exclusive']:.2f} than in the exclusive one")
assert lesson.sweep([1_024], PROMPT, USERS, m) == [(1_024, 8, 188_992, 23_624, 43_345)]
assert (line.worst_stall_us, line.ttft_us, line.steps_over_target(TARGET_US), line.decode_tok_per_s) == (23_624, 188_992, 0, 1_451)
assert {name: round(x, 2) for name, x in gain.items()} == {"mixed": 25.19, "exclusive": 25.30}

# %% [markdown] id="whole-text"
# And a chunk as long as the prompt? **Guess:** how long is the users' longest gap then, 150_056, 152_648 or 155_248 us? (The
# prompt's step alone takes 150,056 us, a step of decodes alone 5,192.)

# %% id="whole-guess"
one_chunk_gap = None

# %% id="whole-reveal"
whole = mixed_baseline(m, PROMPT, USERS)
print(f"you said {one_chunk_gap}, and it is {whole.worst_stall_us:,} us")
thoughts = {
    150_056: "That is the prompt alone. A step with a chunk has the decodes too, and they add 24 x 108 us.",
    155_248: "That is the exclusive baseline: the decodes wait, and the next step's 5,192 us come on top.",
}
if one_chunk_gap not in (None, 152_648):
    print(thoughts.get(one_chunk_gap, "It is all one step: 2,600 + 18 x 8,192 + 108 x 24."), "Why were you off?")
assert chunked(m, PROMPT, USERS, PROMPT) == whole and whole.worst_stall_us == 152_648
assert exclusive_baseline(m, PROMPT, USERS).worst_stall_us == 155_248

# %% [markdown] id="whole-after"
# A chunk as long as the prompt is the *mixed* baseline, step for step: the users get a token at the end of the prompt's
# step. In the *exclusive* one the prompt runs alone and they get it one step later. So "the largest chunk is the same
# as no chunking" is right only if the server without chunking also mixes.

# %% [markdown] id="knee-text"
# ## 4. The largest chunk that keeps the target
#
# The largest chunk whose step still meets the target is called the *knee*: a larger one misses the target, and a
# smaller one costs TTFT. You need not search for it: a step's time is linear in its tokens, so you can solve for the
# chunk.
#
# A worked example at the easier cost: 2 users, target 190 us.

# %% id="knee-example"
# Step 1: what is used before the first prompt token? The fixed part and the decodes.
gone = small.fixed_us + small.decode_us * 2

# Step 2: what is left of the target, and how many tokens is that?
left = 190 - gone
print(f"{left} us left, {left / small.prefill_us_per_token} tokens")

# Step 3: try it, and try one more.
print(small.step_us(35, 2), "us with 35 tokens,", small.step_us(36, 2), "us with 36")
assert small.step_us(35, 2) <= 190 < small.step_us(36, 2)

# %% [markdown] id="knee-exercise"
# ### Exercise 6.3: solve for the chunk
#
# 6 minutes, difficulty 2 of 5, about two lines. When the decodes alone take longer than the target, there is no such chunk:
# return 0.

# %% [markdown] id="knee-hints"
# <details><summary>Hint 1: where to begin</summary>
#
# Do the first two steps of the example with `m`, `users` and `target_us`.
#
# </details>
# <details><summary>Hint 2: what is usually missed</summary>
#
# Round down with `//`, and return at least 0. A step that takes exactly the target meets it.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `left = target_us - m.fixed_us - m.decode_us * users`, and then `max(left // ..., 0)`.
#
# </details>

# %% id="knee-solution" exercise="6.3" solution="pick_chunk" minutes=6 difficulty=2
from course_lib.cost.linear import LinearCost

# include course_lib.lessons.nb06_tradeoff:pick_chunk

# %% id="knee-check" check="pick_chunk" group="values" points=3
check.pick_chunk(pick_chunk, group="values")

# %% id="knee-reveal"
knee = lesson.pick_chunk(TARGET_US, USERS, m)
print(f"you guessed {largest_chunk}, and the largest chunk is {knee:,}")
print(f"{m.step_us(knee, USERS):,} us with {knee:,} tokens, {m.step_us(knee + 1, USERS):,} us with one more")
if isinstance(largest_chunk, int) and largest_chunk != knee:
    took = m.step_us(max(largest_chunk, 1), USERS) / 1e3
    print(f"Your chunk's step takes {took:.1f} ms: " + ("over the target." if took > 50 else "it keeps the target, and so does a larger one."))
    if largest_chunk == (TARGET_US - m.fixed_us) // m.prefill_us_per_token:
        print("You left out the decodes, or the fixed part. (They are nearly equal here, so both give this number.)")
for users in (1, 24, 100, 400, 500):
    print(f"{users:4} users: {pick_chunk(TARGET_US, users, m):5,}")
assert knee == 2_489 and lesson.pick_chunk(TARGET_US, 500, m) == 0

# %% [markdown] id="even-text"
# You can now answer "how small?" with one number, for any target.
#
# Is the knee then the best chunk? Compare 2,048 with 2,560 in your sweep: 4 steps both, the same TTFT, and 42.1 ms against
# 51.3. A larger chunk that does not save a step only makes the steps uneven. So does 2,489.
#
# Fill in the blanks in place of None: how should 8,192 tokens be cut, if no chunk may be longer than 2,489? This is not graded;
# the cell says what fits.

# %% id="even-faded"
steps_needed = None  # Step 1: at most 2,489 tokens each, how many steps do 8,192 tokens take?
even_chunk = None  # Step 2: as many steps, all equally long: how many tokens each?
even_gap_us = None  # Step 3: how long is such a step with the 24 decodes? m.step_us(..., ...) says it

# %% id="even-reveal"
often = {
    3: "3 x 2,489 is 7,467, and there is a rest.",
    2_489: "Then the last step has 725 tokens only.",
    39_464: "The decodes are in each step too.",
}
for name, yours, right in [("steps_needed", steps_needed, 4), ("even_chunk", even_chunk, 2_048), ("even_gap_us", even_gap_us, 42_056)]:
    said = "fits" if yours == right else f"is {right:,}. {often.get(yours, '')}"
    print(f"{name:12} you wrote {yours}: it {said}")
at_knee, even, too_large = lesson.sweep([knee, 2_048, 2_560], PROMPT, USERS, m)
for row in (at_knee, even, too_large):
    print(f"chunk {row[0]:5,}: {row[1]} steps, TTFT {row[2] / 1e3:.1f} ms, longest gap {row[3] / 1e3:.1f} ms")
assert {row[1:3] for row in (at_knee, even, too_large)} == {(4, 168_224)}
assert (at_knee[3], even[3], too_large[3]) == (49_994, 42_056, 51_272)

# %% [markdown] id="even-after"
# The same number of steps, the same TTFT, and gaps 8 ms shorter than at the knee. So: solve for the knee, count the
# steps, and cut evenly.
#
# ### Chunk or budget?
#
# So far one prompt came at a time. **Guess:** four prompts of 4,096 tokens wait at once, `max_chunk` is 1,024, the budget is
# 4,120, and 24 users stream. How long is the users' longest gap, about 24, 42, 79 or 153 ms?

# %% id="budget-guess"
gap_ms = None

# %% id="budget-reveal"
from course_lib.cost.simulator import ServerConfig, simulate
from course_lib.cost.workload import Arrival


def four_prompts(budget, max_chunk):
    """24 users stream 100 tokens each; four prompts come at once. A server on a clock, with the real scheduler."""
    arrivals = [Arrival(0, 2, 100) for _ in range(USERS)] + [Arrival(100_000, 4_096, 1) for _ in range(4)]
    config = ServerConfig(max_num_batched_tokens=budget, max_chunk=max_chunk)
    return simulate(arrivals, config, m).itl.max


for budget, max_chunk in ((4_120, 1_024), (1_048, 1_024), (1_048, 0)):
    print(f"budget {budget:,}, max_chunk {max_chunk or 'none':>5}: longest gap {four_prompts(budget, max_chunk) / 1e3:5.1f} ms")
print(f"you said {gap_ms}")
if gap_ms == 24:
    print("That is one chunk of one prompt. The other three are in the same step.")
elif gap_ms not in (None, 79):
    print("Four chunks of 1,024 and 24 decodes: add them up.")
assert four_prompts(4_120, 1_024) == m.step_us(4_096, USERS) == 78_920
assert four_prompts(1_048, 1_024) == four_prompts(1_048, 0) == m.step_us(1_024, USERS) == 23_624

# %% [markdown] id="budget-after"
# The *budget* bounds the step, and so the gap; `max_chunk` only divides it among prompts. Set the budget to your knee
# plus the decodes, both for the *largest* number of users who may stream at once: a decode takes one token of the
# budget and costs as much as six.
#
# ### A whole workload
#
# Finally, try your choice. Below, 150 requests come at random, with prompts of up to 32,768 tokens (half of them
# below 1,024), and the real scheduler serves them on a clock. `itl` is your function, here over the gaps of all
# requests together.

# %% id="workload"
from course_lib.cost.workload import Lengths, Poisson

work = Poisson(rate=4, count=150, prompt=Lengths(1, 32_768, 1_024, 1.2), output=Lengths(50, 250))
print(f"{'budget':>6} {'P50':>9} {'P99':>9} {'longest':>9}   TTFT, P50   (ms)")
kept = {}
for budget in (256, 1_024, 2_048, 4_096, 8_192):
    report = simulate(work, ServerConfig(max_num_batched_tokens=budget), m, keep=True)
    gaps = [gap for request in report.requests for gap in request.gaps_us]
    shown = " ".join(f"{us / 1e3:9.1f}" for us in itl(gaps))
    print(f"{budget:6,} {shown} {report.ttft.percentile(50) / 1e3:11.1f}")
    kept[budget] = lesson.itl(gaps)
assert kept[2_048][1] > 2 * kept[8_192][1] and kept[8_192][2] > 3 * kept[2_048][2]

# %% [markdown] id="workload-after"
# From 2,048 to 8,192 P99 *falls*, since fewer gaps are long ones, and the longest grows to nearly four times as much.
# By P99 alone one would choose 8,192 of these, with the longest freezes. (256 has the lowest P99 of all, and the
# longest TTFT.)

# %% [markdown] id="ride-text"
# ## 5. Decodes ride along
#
# Why mix at all? Because decodes are cheaper in a step that runs anyway: they *ride along*. In the reference preset 24
# decodes add 2,592 us to a prompt's step and take 5,192 us alone, twice as much. Is that so on a GPU?
#
# To multiply a step's tokens with the model's weights, a GPU reads all weights from its memory, and computes. It does
# both at the same time, so **the slower one counts**: this model is called a *roofline*. Reading takes as long for one
# token as for a thousand. Computing grows with the tokens.
#
# After that comes attention. Each decode reads the K and V of its request's tokens so far, its *context*, which is not
# shared.
#
# Below is Llama 3 8B on an H100, from data sheet and config file. (We assume that it reaches 80% of the bandwidth and
# 70% of the arithmetic, and leave out the prompt's attention and a step's fixed part.)

# %% id="ride-hardware"
from course_lib.cost.devices import DEVICES, MODELS
from course_lib.lessons.nb06_tradeoff import Hardware

hw = Hardware.of(DEVICES["h100"], MODELS["8b"])
print(f"weights                 {hw.weight_bytes / 1e9:8.1f} GB")
print(f"K and V of a token      {hw.kv_bytes_per_token:8,} bytes")
print(f"arithmetic of a token   {hw.flops_per_token / 1e9:8.1f} billion operations")
print(f"memory delivers         {hw.bytes_per_us:8,} bytes a microsecond")
print(f"the processor computes  {hw.flops_per_us / 1e6:8.1f} million operations a microsecond")

# %% [markdown] id="ride-example-text"
# A worked example: 24 decodes alone, each with a context of 1,024 tokens.

# %% id="ride-example"
# Step 1: read the weights, once for all tokens of the step.
read = hw.weight_bytes / hw.bytes_per_us

# Step 2: compute. A decode is one token.
multiply = hw.flops_per_token * 24 / hw.flops_per_us
print(f"reading the weights {read:7,.0f} us, computing {multiply:5,.0f} us: the slower one counts")

# Step 3: after that, each decode reads its context.
kv_read = hw.kv_bytes_per_token * 24 * 1_024 / hw.bytes_per_us
print(f"reading 24 contexts {kv_read:7,.0f} us")
print(f"the step            {max(read, multiply) + kv_read:7,.0f} us")
assert round(max(read, multiply) + kv_read) == 6_802

# %% [markdown] id="ride-guess-text"
# **Guess:** how much longer does a step with a chunk of 1,024 get when these 24 decodes join it? About 0, 500, 1_700 or 6_800
# us?

# %% id="ride-guess"
joins_us = None

# %% [markdown] id="ride-exercise"
# ### Exercise 6.4: a step from bytes and arithmetic
#
# 9 minutes, difficulty 2 of 5, about four lines. The three steps of the example, for any number of prompt tokens and decodes.
# Microseconds; it does not matter whether you round them.

# %% [markdown] id="ride-hints"
# <details><summary>Hint 1: where to begin</summary>
#
# Compute the three times of the example separately. Two of them overlap, and the third is added.
#
# </details>
# <details><summary>Hint 2: what is usually missed</summary>
#
# Both kinds of token are multiplied with the weights: `prefill + decodes`. The weights are read once, whatever is in the step.
# Only decodes read contexts here.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `max(read, multiply) + kv_read`, where `multiply` is `hw.flops_per_token * (prefill + decodes) / hw.flops_per_us`.
#
# </details>

# %% id="ride-solution" exercise="6.4" solution="roofline" minutes=9 difficulty=2
from course_lib.lessons.nb06_tradeoff import Hardware

# include course_lib.lessons.nb06_tradeoff:roofline

# %% id="ride-check" check="roofline" group="values" points=3
check.roofline(roofline, group="values")

# %% id="ride-visible"
def riding(step, chunk, context, users=USERS):
    """What the decodes take alone, and what they add to a step with a chunk, in us."""
    alone = step(0, users, context, hw)
    beside = step(chunk, users, context, hw) - step(chunk, 0, context, hw)
    return round(alone), round(beside)


print("24 decodes            context   alone, us   beside a chunk, us   ratio")
print(f"reference preset            any       {m.step_us(0, USERS):,}                {m.step_us(PROMPT, USERS) - m.step_us(PROMPT, 0):,}     2.0")
for chunk, context in ((128, 128), (1_024, 128), (1_024, 1_024), (1_024, 4_096)):
    alone, beside = riding(roofline, chunk, context)
    print(f"roofline, chunk {chunk:5,}   {context:7,}      {alone:6,}               {beside:6,}   {alone / beside:5.1f}")
print(f"\nyou said {joins_us}: with a context of 1,024 beside a chunk of 1,024 it is about 1,700")
if joins_us == 0:
    print("They add no reading of weights. But they read their contexts, and the processor is busy already.")
elif joins_us == 500:
    print("That is their arithmetic. Reading their contexts is added.")
elif joins_us == 6_800:
    print("That is what they take alone. Beside the chunk the weights are not read again for them.")

# %% id="ride-numbers"
assert m.step_us(0, USERS) == 5_192 and m.step_us(PROMPT, USERS) - m.step_us(PROMPT, 0) == 2_592
assert riding(lesson.roofline, 1_024, 1_024) == (6_802, 1_686) and riding(lesson.roofline, 1_024, 128) == (5_751, 634)
contexts = 24 * 4_096 * hw.kv_bytes_per_token
print(f"24 contexts of 4,096 tokens are {contexts / 1e9:.1f} GB: {contexts / DEVICES['h100'].memory_bytes_per_s * 1e3:.1f} ms at the data sheet's full speed")
assert round(contexts / 1e9, 1) == 12.9 and round(contexts / DEVICES["h100"].memory_bytes_per_s * 1e3, 1) == 3.8

# %% [markdown] id="ride-after"
# You can now compute a step's time on any GPU from its data sheet. Decodes share the reading of the weights, and while
# contexts are short the gain is far larger than 2: 9 times beside a chunk of 1,024, and 38 times beside one of 128,
# where the processor is mostly idle. But each decode still reads its K and V. With contexts of 4,096 tokens that is
# most of its cost, and the ratio is 2 again.
#
# This also shows when a chunk is too small. Plot the time of a step over its tokens:

# %% id="ridge-picture"
tokens = np.arange(1, 1_101)
fig, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
ax.plot(tokens, [lesson.roofline(int(n), 0, 0, hw) / 1e3 for n in tokens], color="#0072b2", label="roofline")
ax.plot(tokens, [m.step_us(int(n), 0) / 1e3 for n in tokens], "--", color="0.4", label="reference preset")
ridge = hw.weight_bytes * hw.flops_per_us / (hw.bytes_per_us * hw.flops_per_token)
ax.axvline(ridge, color="black", linestyle=":")
ax.text(ridge + 10, 1, f"{ridge:.0f} tokens: reading and\ncomputing take equally long")
ax.set(xlabel="prompt tokens in the step", ylabel="ms (modelled)", ylim=(0, 24))
ax.legend()
plt.show()
assert int(ridge) == 277 and lesson.roofline(64, 0, 0, hw) == lesson.roofline(256, 0, 0, hw)

# %% [markdown] id="ridge-after"
# Left of the corner a chunk of 64 takes as long as one of 256: the GPU waits for the weights, and the prompt makes a
# quarter of the progress. In this model a step with fewer tokens than at the corner, decodes included, is no shorter.
# (The reference preset has no corner, so your sweep showed 9.8 and 7.5 ms for 256 and 128.)
#
# ### Is it the same work?
#
# **Guess:** a prompt of 8,192 tokens in 8 chunks instead of one. What grows: the pairs of a token with one that it sees, the bytes
# read for weights, or the bytes read for K and V? Write True or False for each.

# %% id="work-guess"
grows = {"pairs": None, "weight bytes": None, "K and V bytes": None}

# %% id="work-reveal"
from course_lib.cost.work import pairs


def work_of_prompt(prompt, chunk):
    """(pairs, GB of weights, GB of earlier K and V) that a chunked prefill computes and reads."""
    starts = range(0, prompt, chunk)
    seen = sum(pairs(start, min(start + chunk, prompt)) for start in starts)
    return seen, len(starts) * hw.weight_bytes / 1e9, sum(starts) * hw.kv_bytes_per_token / 1e9


for prompt, chunk in ((8_192, 8_192), (8_192, 1_024), (32_768, 1_024), (32_768, 256)):
    seen, weights_gb, kv_gb = work_of_prompt(prompt, chunk)
    print(f"{prompt:6,} in chunks of {chunk:5,}: {seen:11,} pairs, weights {weights_gb:7,.1f} GB, earlier K and V {kv_gb:6.1f} GB")
truth = {"pairs": False, "weight bytes": True, "K and V bytes": True}
print("you said", grows)
if any(grows[name] is not None and grows[name] != truth[name] for name in truth):
    print("The pairs stay, since each token sees the same tokens. The weights are read in each step, and a chunk reads")
    print("all K and V that earlier chunks left. Why were you off?")
assert work_of_prompt(8_192, 1_024)[0] == work_of_prompt(8_192, 8_192)[0] == 8_192 * 8_193 // 2
assert round(work_of_prompt(8_192, 1_024)[1] - work_of_prompt(8_192, 8_192)[1]) == 105
assert [round(work_of_prompt(*cut)[2], 1) for cut in ((8_192, 1_024), (32_768, 1_024), (32_768, 256))] == [3.8, 66.6, 272.7]

# %% [markdown] id="work-after"
# "The total work is the same" holds for the arithmetic, and not for the bytes. Eight steps read the weights eight times: 105 GB
# more. With chunks of 1,024 that reading overlaps with the longer arithmetic; below the corner it does not. And 32,768
# tokens in chunks of 256 read 273 GB of K and V again.
#
# ### Does it raise the throughput?
#
# You may think that mixing serves more tokens per second, since decodes ride along. That depends on the baseline.
# Compute the same prompt and 13 tokens for each user, in three ways:

# %% id="throughput"
chunks = sum(chunked(m, PROMPT, USERS, 1_024).gap_us)  # 8 steps with a chunk, 5 of decodes alone
mixed = m.step_us(PROMPT, USERS) + 12 * m.step_us(0, USERS)
exclusive = m.step_us(PROMPT, 0) + 13 * m.step_us(0, USERS)
for name, us in (("chunks of 1,024", chunks), ("mixed baseline", mixed), ("exclusive baseline", exclusive)):
    print(f"{name:20} {us:9,} us")
print(f"chunks against the exclusive baseline: {100 * (exclusive / chunks - 1):.1f}% more")
assert chunks == mixed == 214_952 and round(100 * (exclusive / chunks - 1), 1) == 1.2

# %% [markdown] id="throughput-after"
# 1.2% more than the exclusive baseline, and nothing over the mixed one. A stall-free scheduler promises that decodes never
# stall. It does not promise throughput; that grows only where the decodes would otherwise run in separate steps.

# %% [markdown] id="line-text"
# ## 6. What a straight line leaves out
#
# In the reference preset a prompt token costs the same at every position. In reality it attends to all tokens before
# it. A second preset, reference-attention, has 15 us for a prompt token and 0.74 ns for each *pair* of a token and one
# that it sees. For 8,192 tokens the two nearly agree.
#
# **Guess:** in it, how many times as long as the first chunk does the last one take, of 32,768 tokens in chunks of 1,024?

# %% id="line-guess"
last_over_first = None

# %% id="line-reveal"
from course_lib.cost.one_prompt import Setting, run
from course_lib.cost.one_prompt import knee as solve_knee
from course_lib.cost.presets import preset_named

found = {}
print("preset                prompt   alone, s   chunks, ms    mixed : chunks   knee for 50 ms")
for name in ("reference", "reference-attention"):
    cost = preset_named(name)
    for prompt in (8_192, 32_768):
        alone = run(Setting(prompt=prompt, mode="exclusive"), cost)[0].ttft_us
        line, _ = run(Setting(prompt=prompt), cost)
        gain = run(Setting(prompt=prompt, mode="mixed"), cost)[0].worst_stall_us / line.worst_stall_us
        found[name, prompt] = (alone, line.step_us[0], line.step_us[-1], round(gain, 2), solve_knee(Setting(prompt=prompt), cost, TARGET_US))
        a, first, last, _, largest = found[name, prompt]
        print(f"{name:20} {prompt:7,} {a / 1e6:10.2f}   {first / 1e3:4.1f} to {last / 1e3:4.1f} {gain:14.2f} {largest:15,}")
ratio = found["reference-attention", 32_768][2] / found["reference-attention", 32_768][1]
print(f"\nyou said {last_over_first}, and it is {ratio:.2f}")
if last_over_first == 1:
    print("That is the straight line, in which a chunk costs the same at every position.")
elif isinstance(last_over_first, (int, float)) and last_over_first > 10:
    print("The pairs of the last chunk are 63 times those of the first. But the matrix products cost the same for each chunk.")

# %% id="line-numbers"
assert found["reference", 32_768] == (592_424, 23_624, 23_624, 25.19, 2_489)
assert [round(us / 1e3, 1) for us in found["reference-attention", 32_768][:3]] == [891.4, 20.9, 45.0]
assert found["reference-attention", 32_768][3:] == (19.87, 1_176) and found["reference-attention", 8_192][4] == 2_322
shape = MODELS["8b"]
even_at = shape.linear_flops_per_token / shape.attention_flops_per_pair  # as much attention as everything else
print(f"Llama 3 8B: a token that sees {even_at:,.0f} others spends half of its arithmetic on attention")
print("(by the rule of 2 operations per parameter, which counts embedding and last product too; without them 26,624)")
assert round(2 * shape.layer_weights / shape.attention_flops_per_pair) == 26_624
for prompt in (8_192, 32_768):
    first, last = (1_024 * even_at + pairs(start, start + 1_024) for start in (0, prompt - 1_024))
    print(f"  {prompt:,} tokens in chunks of 1,024: the last chunk has {last / first:.2f} times the arithmetic of the first")
    assert round(last / first, 2) == {8_192: 1.23, 32_768: 2.02}[prompt]
assert round(even_at) == 30_633

# %% [markdown] id="line-after"
# So a step's time is not constant, and two common sentences do not come from one model. "25 times shorter" is from the
# linear one, in which 32,768 tokens take 0.59 s. "Close to a second" is from the other, 0.89 s, in which the gain is
# about 20. No single setting gives both. Neither is a measurement.
#
# The knee moves too: 2,489 for any prompt in the linear model, but 2,322 for 8,192 tokens and 1,176 for 32,768 in the
# other. A chunk that keeps the target at the beginning of a long prompt misses it at the end. (Sarathi-Serve, one of
# the systems that brought chunked prefill, can therefore make chunks smaller as the prompt goes on.)

# %% [markdown] id="stairs-text"
# ### Stairs
#
# A straight line leaves out one more thing. A GPU multiplies matrices in *tiles*, often of 128 rows, a row for each
# token. **Guess:** how much longer than 128 tokens do 136 take in the matrix products of a layer, in percent?

# %% id="stairs-guess"
percent_longer = None

# %% id="stairs-reveal"
from course_lib.cost.staircase import STAIRCASES

a100 = STAIRCASES["a100"]


def layer_us(tokens):
    """Matrix products of a layer of Llama 3 8B on an A100. Modelled; the constants fit Vidur's measurements of Llama 2 7B."""
    return sum(a100.gemm_ns(tokens, *gemm) for gemm in shape.gemms.values()) / 1e3


for tokens in (128, 136, 256, 1_000, 1_024, 1_048):
    print(f"{tokens:5,} tokens: {layer_us(tokens):7.0f} us")
jump = 100 * (layer_us(136) / layer_us(128) - 1)
print(f"you said {percent_longer}%, and it is {jump:.0f}%")
if isinstance(percent_longer, (int, float)) and percent_longer < 10:
    print("136 is 6% more than 128. But the 8 tokens over 128 need a second row of tiles, computed like a full one.")
elif isinstance(percent_longer, (int, float)) and percent_longer > 80:
    print("Twice the tiles are not twice the time: the weights are read once, and processors that were idle take some of them.")

counts = np.arange(8, 1_301, 4)
fig, ax = plt.subplots(figsize=(9, 3.4), layout="constrained")
ax.plot(counts, [layer_us(int(n)) for n in counts], color="#0072b2")
for tokens in (1_024, 1_048):
    ax.plot([tokens], [layer_us(tokens)], "o", color="#d55e00")
    ax.annotate(f"{tokens:,}", (tokens, layer_us(tokens)), xytext=(6, -12), textcoords="offset points")
ax.set(xlabel="tokens in the step", ylabel="one layer, us (modelled)", xticks=range(0, 1_281, 128))
ax.grid(axis="x", alpha=0.4)
plt.show()
assert round(jump) == 51 and 1.01 * layer_us(1_024) > layer_us(1_000) and layer_us(1_048) > 1.1 * layer_us(1_024)

# %% [markdown] id="stairs-after"
# All tokens of the step count: a chunk of 1,024 and 24 decodes are 1,048, one stair higher than a chunk of 1,000 with
# the same decodes. So choose a *budget* at the edge of a stair; the decodes are part of it.

# %% [markdown] id="break-text"
# ## 7. Break it
#
# The course has collected wrong answers that people really write. First, wrong ways to summarize waits, on three
# windows of 120 gaps of a user: the prompt whole (mixed), in chunks of 4,096, and in chunks of 1,024.
#
# **Before you run it:** which wrong ways say the same as the right one in all three?

# %% id="break-itl"
def wrong(exercise, name):
    """One of the course's collected wrong answers, as a function."""
    return EXERCISES[exercise].compile(EXERCISES[exercise].wrong_answer(name).source)


windows = [window(8_192), window(4_096), window(1_024)]
truth = [lesson.itl(gaps) for gaps in windows]
same_in_all = []
print(f"{'P50, P99, longest in ms':24} {'whole':>21} {'4,096':>21} {'1,024':>21}")
for name, of in [("right", lesson.itl)] + [(a.name, wrong("itl", a.name)) for a in EXERCISES["itl"].wrong_answers]:
    said = [tuple(float(us) for us in of(gaps)) for gaps in windows]
    same_in_all += [name] if said == truth else []
    print(f"{name:24} " + " ".join(f"{' '.join(f'{us / 1e3:6.1f}' for us in row):>21}" for row in said))
assert same_in_all[0] == "right" and "one_rank_too_high" in same_in_all
assert wrong("itl", "stalls_dropped")(window(8_192)) == (5_192, 5_192, 5_192)

# %% [markdown] id="break-ask"
# 1. `stalls_dropped` calls the longest gap an outlier and leaves it out. What does it say of a server that does not cut?
# 2. `rank_rounded_down` misses two stalls in 120 gaps. For how many gaps would it be right?
# 3. `one_rank_too_high` and `upper_middle` are right in all three. Which gaps show them? (`floats` has the right numbers
#    everywhere, and not the right type.)
#
# Now the wrong ways to pick a chunk, each run on the server: 24 users, 8,192 tokens, target 50 ms.

# %% id="break-pick"
right_chunk, verdict = lesson.pick_chunk(TARGET_US, USERS, m), {}
for answer in EXERCISES["pick_chunk"].wrong_answers:
    chunk = int(wrong("pick_chunk", answer.name)(TARGET_US, USERS, m))
    (_, count, ttft, worst, _), = lesson.sweep([chunk], PROMPT, USERS, m)
    verdict[answer.name] = "over the target" if worst > TARGET_US else "more steps" if count > 4 else "as good"
    print(f"{answer.name:26} {chunk:6,}: longest gap {worst / 1e3:5.1f} ms, {count:2} steps, TTFT {ttft / 1e3:6.1f} ms   {verdict[answer.name]}")
assert verdict["no_decodes"] == verdict["rounded_up"] == "over the target"
assert verdict["whole_tiles"] == verdict["strictly_below"] == "as good" and verdict["per_user"] == "more steps"
assert wrong("pick_chunk", "below_zero")(TARGET_US, 500, m) == -367

# %% [markdown] id="break-after"
# Several are as good here, because 2,489 and 2,200 both need 4 steps: one prompt length does not separate them.
# `at_least_one` and `below_zero` are right here, and wrong when the decodes alone exceed the target: with 500 users
# `below_zero` gives -367. What would a scheduler do with that?

# %% [markdown] id="explore-text"
# ## 8. Try other settings
#
# A bar is a step; its width and height are its duration. The dots below it are the users' tokens, the star is the
# prompt's first. The line above has the numbers, and the sentence below says what the setting shows. Before you move a
# control, say what will happen.
#
# 1. Make the chunk 8,192, as long as the prompt. Then turn chunking off. What changes?
# 2. Chunks of 128: what takes most of each step? What happens to the star?
# 3. Put 7,168 tokens into the prefix cache. (They were computed for an earlier prompt with the same beginning, and only the rest
#    is computed.) Is there still something to cut?
# 4. A prompt of 32,768 tokens, attention on: where is the longest gap now, and what is the largest chunk that keeps 50 ms?
# 5. A target of 5 ms: with how many users does no chunk keep it?

# %% id="explore"
from course_lib.widgets.simulator import explore_simulator

explore_simulator()

# %% [markdown] id="questions-text"
# ## 9. Questions
#
# Six about this notebook, and two about earlier ones. Answer from memory first.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("06_tradeoff")

# %% [markdown] id="end"
# ## What you can do now
#
# - Report waits so that a freeze shows: P99 and the longest, over enough gaps.
# - Plot what a chunk size gains and costs, solve for the largest that keeps a target, and cut evenly below it.
# - Say what decodes cost beside a chunk, what chunking reads again, and why it does not promise throughput.
# - Say what a linear model leaves out: attention that grows, and tiles.
#
# Chunks only spread the work of a prompt over steps. Some of it need not be done at all, because another request's
# prompt has the same beginning: notebook 07.
