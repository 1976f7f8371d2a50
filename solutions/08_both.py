# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 08 Chunks on top of a cached prefix
#
# With a prefix cache, the beginning of a prompt is not computed again if another request has computed it. Chunking cuts
# the rest. In this notebook you combine the two: how much of a prompt is attached, what each step then computes, and
# what each of the two gains. At the end you write the *test* that a server with both must pass.
#
# About 75 minutes. NumPy is enough; the pictures use matplotlib. Positions count from 0: the 5,001st token stands at
# position 5,000.
#
# The words that the notebook builds on: a language model reads and writes *tokens*, numbers that stand for pieces of text.
# A *request* is one user's text, the *prompt*, and the answer to it. For each token the model computes, in each of its
# *layers*, a *key* and a *value* (K and V), which later tokens look back at; they are kept in the *KV cache*. To
# compute a prompt's tokens is called *prefill*. A server works in *steps*, runs of the model over some tokens of some
# requests. A *chunk* is a run of one request's tokens that are computed in one step. The step that computes the
# prompt's last token gives the *logits*, a score for each possible next token, and from them the first token of the
# answer; the time until then is the *TTFT* (time to first token). Each later token takes one more step, a *decode*. A
# user whose answer is being generated is *streaming*; the time from one of these tokens to the next is a *gap*.
#
# K and V are stored in a pool of *blocks*, each with *slots* for, say, 16 tokens. A **prefix cache** records which
# block holds which beginning of a text. When a step *admits* a waiting request, so that it is *running*, the prompt is
# looked up there, and the blocks found are *attached*: added to the request's *block table*, the list of its blocks.
# The attached tokens are the *hit*, the rest of the prompt is the *tail*. Notebook 07 builds such a cache; here it is
# given.
#
# All times here are *modelled*, in whole microseconds (us), by the preset reference: a step takes 2,600 us, plus 18 us
# for each prompt token and 108 us for each decode (notebook 00). Nothing in this notebook is measured.

# %% id="setup"
import matplotlib.pyplot as plt
import numpy as np

from autograder import check
from autograder.answers import InProcess
from autograder.exercise import Returned
from autograder.exercises import EXERCISES
from course_lib.commands import walkthrough
from course_lib.cost.devices import MODELS
from course_lib.cost.linear import PRESETS, LinearCost
from course_lib.cost.work import pairs
from course_lib.engine import Engine
from course_lib.prefill import one_pass
from course_lib.schedule.request import Request
from course_lib.weights import seeded_model

m = PRESETS["reference"]
PROMPT, SHARED, CHUNK = 7_000, 5_000, 1_024


def wrong(exercise, name):
    """One of the course's collected wrong answers, as a function."""
    return EXERCISES[exercise].compile(EXERCISES[exercise].wrong_answer(name).source)

# %% [markdown] id="story-text"
# ## 1. What runs in N, N+1 and N+2?
#
# Users B, C and D are streaming. In step N a request A is admitted: a prompt of 7,000 tokens. Its first 5,000 were
# computed a minute ago for another request. For now a block holds one token, so that all 5,000 are found. A step takes
# at most 1,024 tokens of one prompt, and a decode for each of B, C and D.

# %% id="story-picture"
def draw_story(rows, title):
    """Rows (label, start, stop): what A computes in a step, on the axis of its positions; None: not known yet."""
    fig, ax = plt.subplots(figsize=(10, 2.6), layout="constrained")
    ax.broken_barh([(0, SHARED)], (-0.4, len(rows) - 0.2), facecolor="0.9", edgecolor="0.6")
    ax.text(SHARED / 2, (len(rows) - 1) / 2, "found in the cache: 5,000 tokens", ha="center", va="center")
    for place, (label, start, stop) in enumerate(rows):
        if start is None:
            ax.text(6_000, place, "?", ha="center", va="center", fontsize=14)
            continue
        ax.broken_barh([(start, stop - start)], (place - 0.3, 0.6), facecolor="#56b4e9", edgecolor="#333333", hatch="///")
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        ax.text((start + stop) / 2, place, f"{stop - start:,}", ha="center", va="center", bbox=box)
    ax.axvline(PROMPT, color="black", linestyle="--", linewidth=1.5)
    ax.set_yticks(range(len(rows)), [f"{label}, with B, C, D" for label, *_ in rows])
    ax.set(xlim=(0, 7_400), ylim=(len(rows) - 0.4, -0.6), xlabel="position in A (dashed: the end of the prompt)", title=title)
    plt.show()


draw_story([("N", None, None), ("N+1", None, None), ("N+2", None, None)], "what does A compute in each step?")

# %% [markdown] id="story-guess-text"
# **Guess before you go on.** How many tokens of A does each of the three steps compute? And in which of them is A's first
# answer token made? Write numbers in place of the Nones (0 for step N, 1 for N+1, 2 for N+2). It is not graded; a
# recorded guess makes the answer easier to remember.

# %% id="story-guess"
tokens_of_a = [None, None, None]
first_token_in = None

# %% id="story-reveal"
story = walkthrough.tell(walkthrough.OWN_CAP, 1)  # the course's scheduler and cache, with blocks of one token
rows = []
for number, step in enumerate(story.steps):
    ((start, stop),) = [(start, stop) for i, start, stop in step.chunks if i == story.id]
    rows.append((f"N+{number}" if number else "N", start, stop))
    others = len(step.chunks) - 1
    print(f"{rows[-1][0]:4} A computes {start:,} to {stop - 1:,}, {stop - start:5,} of its tokens; {others} decodes beside it")
truth = [stop - start for _, start, stop in rows]
print(f"\nyou said {tokens_of_a} and it is {truth}; you said {first_token_in}, and the first token is made in step N+1")
if tokens_of_a == [1_024, 976, 0]:
    print("In N+2 A computes a token too: its first answer token, a decode like those of B, C and D.")
elif tokens_of_a == [1_024, 1_024, 1_024]:
    print("That many tokens mean chunks that begin at position 0, or that are filled up with nothing.")
if first_token_in == 2:
    print("The step that computes the prompt's last token gives its logits. In N+2 the first answer token is computed.")
assert truth == [1_024, 976, 1] and story.chunks == [(5_000, 6_024), (6_024, 7_000)]
draw_story(rows, "A's chunks behind the hit")

# %% [markdown] id="story-why"
# *I was off because ... (double-click to write here)*
#
# Caching and chunking do not interfere. The look-up happens once, at admission, for the whole prompt. Then the tail is
# cut into chunks, like a prompt that begins at position 5,000. A's queries see all keys before them: the attached ones,
# and those of its earlier chunks.

# %% [markdown] id="admit-text"
# ## 2. How long is the hit?
#
# Blocks of one token exist: SGLang's default is a page of 1 token (0.5.23). vLLM's default is 16 tokens a block, nano-vllm
# has 256. These servers find only *whole* blocks: in a block that is shared in part, the other slots hold another
# prompt's tokens, and it would have to be copied before it is written.
#
# **Guess:** of A's 7,000 tokens, the first 5,000 were computed before. Into how many chunks is the tail cut, for blocks of
# 8, 16 and 256 tokens?

# %% id="admit-guess"
chunks_for = {8: None, 16: None, 256: None}

# %% id="admit-reveal"
for size in chunks_for:
    story = walkthrough.tell(walkthrough.OWN_CAP, size)
    cut = " + ".join(f"{stop - start:,}" for start, stop in story.chunks)
    print(f"blocks of {size:3}: {SHARED / size:7.2f} blocks, hit {story.hit:,}, tail {PROMPT - story.hit:,} = {cut:18} you said {chunks_for[size]}")
assert [walkthrough.tell(walkthrough.OWN_CAP, size).hit for size in (8, 16, 256)] == [5_000, 4_992, 4_864]
assert [len(walkthrough.tell(walkthrough.OWN_CAP, size).chunks) for size in (8, 16, 256)] == [2, 2, 3]

# %% [markdown] id="admit-after"
# 5,000 is 625 blocks of 8. With blocks of 16 the hit loses 8 tokens, with blocks of 256 it loses 136, and these cost a
# third chunk. If you wrote 2 three times: how many whole blocks of 256 fit into 5,000?
#
# ### The one prompt that must not be attached as a whole
#
# Now let the *whole* prompt be cached: 5,008 tokens, 313 blocks of 16. All of its K and V are there. **Guess:** how many
# tokens must the model still compute before the answer can begin?

# %% id="full-guess"
still_to_compute = None

# %% id="full-reveal"
hit = max(n for n in range(0, 5_008, 16))  # whole blocks, and the last token is not among them
print(f"you said {still_to_compute}, and with blocks of 16 it is {5_008 - hit}")
thoughts = {
    0: "The cache holds K and V, no logits. Without a query for the last token there is no first answer token.",
    1: "One token would do for the logits. But a hit is in whole blocks, so the last block goes with it.",
    5_008: "All blocks but the last are attached as usual.",
}
if still_to_compute != 16:
    print(thoughts.get(still_to_compute, "Which token's logits give the first answer token?"))
assert 5_008 - hit == 16

# %% [markdown] id="full-after"
# An engine that attaches all of such a prompt has nothing left to run. nano-vllm stopped there with an error (issue
# 144, December 2025); in a scheduler that takes `min(0, budget)` tokens, the request never runs. So the look-up leaves
# out the last token. Some engines then start in the middle of a block; vLLM computes the whole block again (pull
# request 11186, December 2024), and so does this course.
#
# ### Exercise 8.1: how many tokens are attached?
#
# 5 minutes, difficulty 1 of 5, one line.

# %% [markdown] id="admit-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Two limits and one rounding. How many tokens may be attached at most, blocks aside?
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# First the limits, then the rounding. In the other order a full hit ends in the middle of a block.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `min(shared, ...) // block_size * block_size`: the division drops what does not fill a block.
#
# </details>

# %% id="admit-solution" exercise="8.1" solution="admit" minutes=5 difficulty=1
# include course_lib.lessons.nb08_both:admit

# %% id="admit-check" check="admit" group="values" points=2
check.admit(admit, group="values")

# %% id="admit-visible"
for size in (1, 8, 16, 64, 256):
    hit = admit(PROMPT, SHARED, size)
    print(f"blocks of {size:3}: hit {hit:,}, tail {PROMPT - hit:,}; to compute of a prompt that is all cached: {PROMPT - admit(PROMPT, PROMPT, size)}")
assert [admit(PROMPT, SHARED, size) for size in (8, 16, 256)] == [5_000, 4_992, 4_864]  # as the real cache found

# %% [markdown] id="chunk-text"
# ## 3. The next chunk
#
# Two numbers limit a step, and they are easily confused:
#
# - `max_num_batched_tokens`, the *budget*: tokens of all requests together, decodes included;
# - `max_chunk`, the *cap*: tokens of one request.
#
# In section 1 the budget was 1,027 and the cap 1,024: enough for the chunk and three decodes. Some servers have only
# the budget (Sarathi-Serve calls it the chunk size). Take blocks of 1 again, no cap, and a budget of 1,024. Decodes
# come first.
#
# **Guess:** how is the tail of 2,000 cut now? And how with a budget of 2,048?

# %% id="shared-guess"
cut_1024 = [None, None]
cut_2048 = [None]

# %% id="shared-reveal"
for budget, guess in ((1_024, cut_1024), (2_048, cut_2048)):
    story = walkthrough.tell(walkthrough.Knobs("one budget", budget=budget, max_chunk=0), 1)
    cut = [stop - start for start, stop in story.chunks]
    longest = max(story.step_us(step) for step in story.steps)
    print(f"budget {budget:,}: you said {guess}, and it is {cut}; the longest step takes {longest:,} us (modelled)")
    assert cut == {1_024: [1_021, 979], 2_048: [2_000]}[budget]
if cut_1024 == [1_024, 976]:
    print("The three decodes come first; A gets the rest.")
elif cut_1024 == [1_021, 1_024]:
    print("The second chunk takes what is left, not the whole budget.")

# %% [markdown] id="chunk-example-text"
# The budget bounds the gap of B, C and D, since no step has more tokens. A cap alone bounds nothing when several
# prompts wait.
#
# Which tokens go into the next chunk? A worked example: A has a hit of 5,000, and step N has computed the next 1,021
# tokens. The budget is 1,024.

# %% id="chunk-example"
# Step 1: where does the chunk begin? After everything that is in the cache, attached or computed.
start = 5_000 + 1_021

# Step 2: what is left of A? All other tokens.
rest = 7_000 - start

# Step 3: what may it take? The smallest of what is left of A, what is left of the budget, and the cap if there is one.
take = min(rest, 1_024 - 3)
print(f"start {start:,}, take min({rest:,}, {1_024 - 3:,}) = {take}, stop {start + take:,}")
assert (start, start + take) == (6_021, 7_000)

# %% [markdown] id="chunk-faded-text"
# The same with three blanks, for blocks of 256 (hit 4,864), the cap of 1,024 and a budget that is large enough. Replace
# each `None` and run the cell. It is not graded.

# %% id="chunk-faded"
chunk_starts = [4_864, None, 6_912]
chunk_stops = [5_888, 6_912, None]
last_take = None

for name, given, right in (
    ("chunk_starts", chunk_starts, [4_864, 5_888, 6_912]),
    ("chunk_stops", chunk_stops, [5_888, 6_912, 7_000]),
    ("last_take", last_take, 88),
):
    blank = given is None or (isinstance(given, list) and None in given)
    print(f"{name:13} {'fits' if given == right else 'has a blank' if blank else 'not yet: begin where the chunk before it stops'}")

# %% [markdown] id="chunk-exercise"
# You may think of the tail as a separate prompt that starts at 0. Then its first token would get position 0, and RoPE
# would turn its key as if it stood at the beginning (notebook 03). A chunk's start is absolute: the number of the
# request's tokens in the cache.
#
# And you may think that `prompt_len - num_computed` tokens are left. That is right until a request is *preempted*: the
# pool is full, so the scheduler takes its blocks away and computes it again later. Then it waits, is looked up again,
# and all its tokens must be computed, those of the answer too. So count all its tokens, not the prompt's.
#
# ### Exercise 8.2: the next chunk
#
# 8 minutes, difficulty 2 of 5, about three lines. You need only `request.num_tokens` and `request.num_computed`.

# %% [markdown] id="chunk-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Do the three steps of the example: start, rest, take.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# `max_chunk` of 0 means no cap, and `left` may be 0 or negative. What is then the smallest of the three, and what
# should it be?
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `take = min(request.num_tokens - start, max_chunk or left, left)`: `max_chunk or left` is `left` when there is no cap.
# Never return less than `start` as the stop.
#
# </details>

# %% id="chunk-solution" exercise="8.2" solution="next_chunk" minutes=8 difficulty=2
from course_lib.schedule.request import Request

# include course_lib.lessons.nb08_both:next_chunk

# %% id="chunk-check" check="next_chunk" group="values" points=3
check.next_chunk(next_chunk, group="values")

# %% [markdown] id="chunk-visible-text"
# Your two functions give A's chunks for any setting.

# %% id="chunk-visible"
def tail_chunks(block_size, budget, cap, admit=admit, next_chunk=next_chunk, steps=12):
    """A's chunks from its admission on, beside three decodes; at most `steps` of them."""
    hit = admit(PROMPT, SHARED, block_size)
    request = Request(0, list(range(PROMPT)), num_computed=hit, num_cached=hit)
    found = []
    while request.num_computed < PROMPT and len(found) < steps:
        found.append(next_chunk(request, budget - 3, cap))
        request.num_computed += found[-1][1] - found[-1][0]
    return found


for block_size, budget, cap in ((1, 1_027, 1_024), (16, 1_027, 1_024), (256, 1_027, 1_024), (1, 1_024, 0), (1, 2_048, 0)):
    found = tail_chunks(block_size, budget, cap)
    knobs = walkthrough.Knobs("mine", budget=budget, max_chunk=cap)
    assert found == walkthrough.tell(knobs, block_size).chunks  # what the course's scheduler does
    print(f"blocks of {block_size:3}, budget {budget:,}, cap {cap:5,}: " + ", ".join(f"[{a:,}, {b:,})" for a, b in found))

# %% [markdown] id="grid-text"
# ### Skip tokens, not chunks
#
# One could cut the prompt at multiples of 1,024 first, and then leave out each cached chunk. Say that 24 users stream,
# and that blocks have 1 token.
#
# **Guess:** how many of the 5,000 cached tokens does that design compute again?

# %% id="grid-guess"
computed_again = None

# %% id="grid-reveal"
kept = SHARED // CHUNK * CHUNK  # only completely cached chunks are left out
again = SHARED - kept
ttft = {}
for name, hit in (("skip tokens", SHARED), ("skip chunks", kept)):
    steps = [m.step_us(min(CHUNK, PROMPT - start), 24) for start in range(hit, PROMPT, CHUNK)]
    ttft[name] = sum(steps)
    print(f"{name}: hit {hit:,}, {len(steps)} chunks, first token after {ttft[name]:,} us (modelled)")
print(f"you said {computed_again}, and it is {again}")
assert again == 904 and ttft == {"skip tokens": 46_384, "skip chunks": 67_848}

# %% [markdown] id="grid-after"
# Four chunks, 4,096 tokens, are left out, and 904 cached tokens are computed a second time: 21 ms more until the first
# token. The cut comes after the look-up: **first the hit, then the chunks**. The reverse order was a real fault: a
# simulator of NVIDIA's Dynamo cut the first chunk and then looked it up, so no hit was longer than a chunk
# (ai-dynamo/dynamo, issue 13188, 2026).

# %% [markdown] id="saved-text"
# ## 4. What does each of them gain?
#
# "5,000 of 7,000 tokens are free." Are they? The tail's queries still look at all keys before them, those of the hit
# too. Each query with each key that it sees is one *pair* of work in attention: the token at position p has p + 1
# pairs.
#
# **Guess:** what share of the work does the hit save? Choose from 29, 51, 69 and 71 percent for each row. FLOPs are the
# multiplications and additions of the whole model, Llama 3 8B: most are per token, some per pair.

# %% id="saved-guess"
saved = {"tokens": None, "attention pairs": None, "FLOPs": None}

# %% id="saved-reveal"
shape = MODELS["8b"]  # Llama 3 8B, from its published configuration


def flops(tokens, seen_pairs):
    return tokens * shape.linear_flops_per_token + seen_pairs * shape.attention_flops_per_pair


share = {
    "tokens": SHARED / PROMPT,
    "attention pairs": pairs(0, SHARED) / pairs(0, PROMPT),
    "FLOPs": flops(SHARED, pairs(0, SHARED)) / flops(PROMPT, pairs(0, PROMPT)),
}
for name, part in share.items():
    print(f"{name:16} {part:.1%} saved, you said {saved[name]}")
assert [round(100 * part, 1) for part in share.values()] == [71.4, 51.0, 69.3]

# %% [markdown] id="saved-after"
# Half of the pairs remain, since late tokens have more of them than early ones, and the hit saves the early ones. If
# you wrote 71 three times, you counted tokens instead of pairs. The share of FLOPs is close to that of tokens because
# at this length the model does much more work per token than for its pairs. And the hit still takes memory: its blocks
# stay in the pool.
#
# The preset reference, which gives the next numbers, ignores pairs.
#
# Now the time. A prompt can be served in four ways: with neither, with one of the two, or with both. Without chunking
# the prompt runs in a step without decodes, and the users' next tokens come at the end of the step after it (the
# *exclusive baseline* of notebook 00).
#
# A worked example with easy numbers: a prompt of 100 tokens, 60 of them cached, 3 users, chunks of 25. Two of the four
# ways:

# %% id="cells-example"
small = LinearCost(fixed_us=100, prefill_us_per_token=2, decode_us=10)

# Caching only. Step 1: the tail. Step 2: its step, alone. Step 3: the users' next tokens come one step later.
tail = 100 - 60
alone = small.step_us(tail, 0)
print("caching only: TTFT", alone, " longest gap", alone + small.step_us(0, 3))

# Both. Step 1: the tail in chunks. Step 2: a step for each, with three decodes. Step 3: they add up to the TTFT, and the
# users get a token in each.
steps = [small.step_us(25, 3), small.step_us(15, 3)]
print("both:         TTFT", sum(steps), " longest gap", max(steps))
assert (alone, alone + small.step_us(0, 3)) == (180, 310) and (sum(steps), max(steps)) == (340, 180)

# %% [markdown] id="cells-exercise"
# ### Exercise 8.3: two by two
#
# 10 minutes, difficulty 2 of 5, about eight lines. All four ways, for any prompt. A's answer has one token here, so A
# does not decode afterwards. (`python -m course_lib walkthrough`, where it does, shows unchunked gaps that are 108 us
# longer.)

# %% [markdown] id="cells-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Caching changes only the tail: `prompt` tokens without it, `prompt - hit` with it. So write the two ways to serve a
# tail once.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# The last chunk is shorter: `min(chunk, tail - done)`. And only the unchunked gap contains a second step.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# For `tail` in `(prompt, prompt - hit)`: first `alone = m.step_us(tail, 0)` with the gap `alone + m.step_us(0, users)`,
# then `steps = [m.step_us(min(chunk, tail - done), users) for done in range(0, tail, chunk)]` with their sum and their
# maximum.
#
# </details>

# %% id="cells-solution" exercise="8.3" solution="two_by_two" minutes=10 difficulty=2
from course_lib.cost.linear import LinearCost

# include course_lib.lessons.nb08_both:two_by_two

# %% id="cells-check" check="two_by_two" group="values" points=3
check.two_by_two(two_by_two, group="values")

# %% [markdown] id="cells-guess-text"
# **Guess:** 24 users stream, and no gap may be longer than 50 ms. Which of the ways that keep this target has the
# earliest first token? Write "neither", "chunking only", "caching only" or "both".

# %% id="cells-guess"
best_way = None

# %% id="cells-reveal"
WAYS = ("neither", "chunking only", "caching only", "both")
for users in (3, 24):
    cells = two_by_two(PROMPT, SHARED, users, CHUNK, m)
    print(f"{users} users (modelled)")
    for way, (first, gap) in zip(WAYS, cells):
        print(f"  {way:14} first token after {first:7,} us   longest gap {gap:7,} us{'   over 50 ms' if gap > 50_000 else ''}")
    if users == 3:
        told = [walkthrough.tell(cell, 1).ttft_us for cell in walkthrough.CELLS]  # the course's scheduler, step by step
        assert [first for first, _ in cells] == told == [128_600, 146_468, 38_600, 41_848]
kept = [(first, way) for way, (first, gap) in zip(WAYS, cells) if gap <= 50_000]
print(f"\nyou said {best_way}, and it is {min(kept)[1]}")
assert cells == [(128_600, 133_792), (162_344, 23_624), (38_600, 43_792), (46_384, 23_624)] and min(kept)[1] == "caching only"

# %% [markdown] id="cells-after"
# More is not always better. Here the cache alone keeps the target, and chunking on top of it *costs* 7.8 ms of TTFT.
# But without the cache, chunking costs 33.7 ms of TTFT. Caching reduces the work and chunking cuts the rest: the
# shorter the tail, the fewer steps pay a fixed part and decodes.
#
# But a server does not know beforehand how long a tail will be. **Guess:** from which tail on does the cache alone no
# longer keep 50 ms, with 24 users? Find it with your function: `two_by_two(PROMPT, PROMPT - tail, 24, CHUNK, m)[2][1]`
# is the gap of caching only.

# %% id="tail-guess"
tail_from_which_chunking_matters = None  # look for it in a new cell, or work it out from 2,600, 18 and 108

# %% id="tail-reveal"
first_over = next(t for t in range(1, PROMPT) if two_by_two(PROMPT, PROMPT - t, 24, CHUNK, m)[2][1] > 50_000)
print(f"you said {tail_from_which_chunking_matters}, and it is {first_over:,} tokens")
if tail_from_which_chunking_matters == 2_634:
    print("That forgets the step after the prompt's: the users' tokens come at its end.")
tails = range(200, 7_001, 100)
fig, ax = plt.subplots(figsize=(8, 3.2), layout="constrained")
for column, look in ((2, {"label": "caching only", "linestyle": "-", "color": "#d55e00"}), (3, {"label": "both", "linestyle": "--", "color": "#0072b2"})):
    ax.plot(tails, [two_by_two(PROMPT, PROMPT - t, 24, CHUNK, m)[column][1] / 1e3 for t in tails], **look)
ax.axhline(50, color="black", linestyle=":", label="target, 50 ms")
ax.axvline(first_over, color="0.6", linewidth=1)
ax.set(xlabel="tail in tokens", ylabel="longest gap in ms (modelled)", title="24 users")
ax.legend()
plt.show()
assert first_over == 2_345

# %% [markdown] id="tail-after"
# Such a tail needs only one user whose prompt is not cached, or who pastes a new document after the cached one. A
# server sets a chunk size for long tails, and pays a few milliseconds for the others.

# %% [markdown] id="same-text"
# ## 5. Is it the same answer?
#
# Attached K and V were computed for another request, in other chunks, in a batch with other users. Is the answer the
# same as that of a *cold* run, in which nothing is cached? In arithmetic with a fixed order of sums it must be, bit for
# bit (notebook 04). In ordinary arithmetic a run with a hit and a cold one cut the work differently, so last bits may
# differ, and sometimes a token. Such a difference proves no fault, and a fault can hide among them.
#
# Here is the course's engine with a small model in exact arithmetic: 70 tokens, 50 of them shared, blocks of 4,
# chunks of 10. The second line attaches blocks that were computed in chunks of 7. In the third the pool is so small
# that A is preempted.
#
# **Guess:** in which of the three are K, V and logits equal to the cold run's, in every bit?

# %% id="same-guess"
equal_bits = {"same chunks": None, "other chunks": None, "preempted": None}

# %% id="same-reveal"
model = seeded_model("tiny", arith="exact")  # 3 layers, weights from a seed
ids = [(7 * i * i + 3 * i) % 128 for i in range(70)]
cold = one_pass(model, ids)


def new_engine(num_blocks=80):
    return Engine(model, num_blocks=num_blocks, block_size=4, max_num_batched_tokens=13, max_chunk=10, max_num_seqs=3)


def to_first_token(engine, prompt, chunk=10):
    """Run a prompt until its first answer token: hits at its admissions, its chunks, and its K, V and logits."""
    engine.scheduler.max_chunk = chunk
    request = engine.add_request(prompt, max_tokens=2)
    hits, chunks = [], []
    while not request.generated:
        record = engine.step()
        hits += [hit for i, hit in record.hits if i == request.id]
        chunks += [(start, stop) for i, start, stop in record.chunks if i == request.id]
    left = (*engine.kv(request), engine.logits[request.id])
    engine.abort(request)  # one token is enough
    return hits, chunks, left


for name in equal_bits:
    engine = new_engine(num_blocks=19 if name == "preempted" else 80)
    to_first_token(engine, ids[:50] + [1, 2, 3], chunk=7 if name == "other chunks" else 10)
    if name == "preempted":
        engine.add_request([9, 8, 7], max_tokens=12)  # B decodes, and needs another block before A is done
        engine.step()
    hits, chunks, left = to_first_token(engine, ids)
    same = all(np.array_equal(got, want) for got, want in zip(left, (cold.k, cold.v, cold.logits)))
    print(f"{name:13} hits {hits}, chunks {chunks}: {'equal in every bit' if same else 'DIFFERENT'}, you said {equal_bits[name]}")
    assert same and hits == ([48, 60] if name == "preempted" else [48])

# %% [markdown] id="same-after"
# All three. K and V of a token depend on the tokens up to it and on nothing else, so it does not matter which request
# computed them, or in which chunks. Look at the last line: A was preempted when 68 tokens were computed, waited, and
# was looked up a second time. Now it finds 60 tokens: the 48 of the earlier request, and 12 that A itself had computed
# and *published*, that is, entered in the prefix cache. The second admission needs the same look-up as the first.
#
# (`python -m course_lib walkthrough --engine` runs the 7,000 tokens of this notebook on a larger model in all four ways. It
# takes half a minute.)
#
# ### Write the test
#
# Faults of this combination are public. In nano-vllm alone, in April 2026, in the weeks after chunks were added to its
# cache: the tokens left were counted before the hit was known, so a prompt of 465 tokens with a hit of 256 was cut at
# [256, 721) (pull requests 207 and 210); attention read slots of the prompt that no chunk had written yet (issue 212);
# blocks could be found before they held anything (issue 208, which discusses when that does harm). Chunks and cache had
# each worked alone.
#
# You test an engine, the part of a server that plans steps and runs them, without seeing its code. Your test gets two
# functions:
#
# - `serve(prompts, chunk, answer=1, together=False, preempt=0)` serves a list of prompts on a fresh engine with blocks of
#   **4** tokens, at most `chunk` tokens of a prompt in a step. Each prompt comes when the one before is finished; with
#   `together=True` all come at once. Each gets `answer` tokens, 8 at most. With `preempt=n` each is preempted once, after
#   its n-th step, and waits to be admitted again.
# - `reference(token_ids)` gives `k, v, logits` of a correct cold pass.
#
# `serve` returns for each prompt `tokens, hit, k, v, logits`: the tokens that have K and V, namely the prompt and the
# answer without its last token; the number attached at the last admission; K and V of these tokens, [layers, tokens,
# kv_heads, head_dim]; the logits of the last of them. All arithmetic is exact. Every engine returns arrays of the right
# shape. When a wrong engine cannot go on, `serve` raises, and that counts as your refusal.
#
# Four engines are right; one of them has two other users decoding in every step, one keeps its prefixes in a radix tree
# (notebook 07), and one finds blocks from the step on that writes them, as vLLM does. Twenty-three are wrong: some in
# all that follows a hit, some in K, V or the logits alone, in one layer, in the attached tokens, or in a last bit. Here
# is a test that looks sensible, and what the check says about it:

# %% id="test-example"
def weak_check(serve, reference):
    prompt = [5, 9, 2, 7, 7, 1, 8, 3, 4, 4, 6, 0]
    for tokens, hit, k, v, logits in serve([prompt, prompt[:8] + [1, 2, 3, 4]], 8):
        assert all(np.array_equal(got, want) for got, want in zip((k, v, logits), reference(tokens)))


for group in ("behind_a_hit", "saved", "order"):
    try:
        check.check_composition(weak_check, group=group)
    except check.CheckFailed as error:
        print(str(error).splitlines()[0])

# %% [markdown] id="test-exercise"
# That test compares every bit, and most of the wrong engines pass. Before you write: which of these would show which
# kind of fault? *A prompt longer than a chunk; a hit that is no multiple of the chunk; a hit longer than a chunk;
# prompts that first differ inside a block; the same prompt twice; two at once; a preemption in the middle of an answer;
# a look at `hit`.*
#
# You may think that equal K, V and logits prove the cache right. But a cache that finds nothing gives equal bits as
# well. With `together=True`, or after a preemption, do not assert a certain hit: right engines differ there.
#
# ### Exercise 8.4: a test for both together
#
# 20 minutes, difficulty 4 of 5, about ten lines. Prompts of 20 to 30 tokens are enough (160 at most, of all prompts together); token ids
# are 0 to 127. Points come in three groups: the tokens after a hit (13 wrong engines), what is saved (4), and the order
# of events (6).

# %% [markdown] id="test-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Write the comparison once, for all results of a `serve`. Then choose three or four calls of `serve`, each for certain
# faults.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# Serve `[a, b, a]` in chunks of 7, where a has 24 tokens and b differs from it from token 18 on. This one call has
# prompts that differ inside a block, a hit longer than a chunk and no multiple of it, and a prompt that is cached
# completely. What are the three hits? Assert them.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `serve([a, b, a], 7)` with the hits `[0, 16, 20]`; `serve([a, b], 6, together=True)`; `serve([a], 6, answer=3,
# preempt=5)`, where 25 tokens are computed at the preemption, and the last one stands alone in its block.
#
# </details>

# %% id="test-solution" exercise="8.4" solution="check_composition" minutes=20 difficulty=4
# include course_lib.lessons.nb08_both:check_composition

# %% [markdown] id="test-check-text"
# The first check is about the tokens after a hit, the second about what is saved, the third about the order of events.
# In each your test must also accept the four right engines.

# %% id="test-check-behind" check="check_composition" group="behind_a_hit" points=3
check.check_composition(check_composition, group="behind_a_hit")

# %% id="test-check-saved" check="check_composition" group="saved" points=2
check.check_composition(check_composition, group="saved")

# %% id="test-check-order" check="check_composition" group="order" points=2
check.check_composition(check_composition, group="order")

# %% [markdown] id="test-after"
# Such a test takes a second. Each of its lines stands for a fault that was shipped.

# %% [markdown] id="break-text"
# ## 6. Break it
#
# First every wrong `admit` that the course has collected, for A in blocks of 16, and for a prompt of 5,008 tokens that
# is cached completely.

# %% id="break-admit"
for answer in EXERCISES["admit"].wrong_answers:
    hit, full = (wrong("admit", answer.name)(*setting, 16) for setting in ((PROMPT, SHARED), (5_008, 5_008)))
    notes = []
    if hit > SHARED or full > 5_008:
        notes.append("attaches what no request computed")
    if full == 5_008:
        notes.append("a full hit never runs")
    if hit % 16 or full % 16:
        notes.append("ends inside a block")
    if not notes and (hit, full) != (4_992, 4_992):
        notes.append("right, and computes too much")
    print(f"{answer.name:20} hit {hit:6,} of 5,000, {full:6,} of 5,008   {', '.join(notes) or 'nothing wrong here'}")

# %% [markdown] id="break-ask"
# 1. Three of them show nothing wrong in these two prompts. Which prompts would show them?
# 2. Which of these mistakes would a comparison of K, V and logits never find?
#
# Now every wrong `next_chunk`, after a hit of 4,992 with a cap of 1,024. The cell asks for at most five chunks: which
# functions would never end, and why?

# %% id="break-chunk"
for answer in EXERCISES["next_chunk"].wrong_answers:
    found = tail_chunks(16, 1_027, 1_024, next_chunk=wrong("next_chunk", answer.name), steps=5)
    right = found == tail_chunks(16, 1_027, 1_024)
    shown = ", ".join(f"[{a:,}, {b:,})" for a, b in found[:3]) + (", ..." if len(found) > 3 else "")
    print(f"{answer.name:20} {shown:48} {'right here' if right else ''}")

# %% [markdown] id="break-tests-text"
# Nine of them are right in this setting. Which cap, budget or request would show each mistake? And why does `advances`
# stop so early?
#
# And the tests. Below, each wrong *test* of the collection runs on the same engines as yours. Hatched: the test is
# wrong about this engine. Before you run it: which engine is refused by a test that looks at hits alone?

# %% id="break-tests"
exercise = EXERCISES["check_composition"]
calls = {}
for group in exercise.groups:
    calls |= {call.facts["engine"]: call for call in group.cases(check.PUBLIC_SEED)}
right_engines = ("plain", "busy", "tree", "early")
columns = [*right_engines, *(name for name in calls if name not in right_engines)]
accepted = {}
for answer in exercise.wrong_answers:
    test = InProcess(exercise.compile(answer.source), callbacks=exercise.callbacks)
    outcomes = test.run([calls[name] for name in columns])
    accepted[answer.name] = [isinstance(outcome, Returned) for outcome in outcomes]

fig, ax = plt.subplots(figsize=(13, 6.5), layout="constrained")
for row, name in enumerate(accepted):
    for column, ok in enumerate(accepted[name]):
        good = ok == (columns[column] in right_engines)
        look = {"facecolor": "white"} if good else {"facecolor": "#f2c07a", "hatch": "xxx"}
        ax.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, edgecolor="0.5", **look))
ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(accepted) - 0.5, -0.5), title="hatched: the test is wrong about this engine")
ax.set_xticks(range(len(columns)), columns, rotation=40, ha="right")
ax.set_yticks(range(len(accepted)), list(accepted))
ax.axvline(3.5, color="black", linewidth=3)
plt.show()
past = {name: sum(row[i] for row in accepted.values()) for i, name in enumerate(columns) if name not in right_engines}
print("tests that each wrong engine gets past:", past)

# %% [markdown] id="explore-text"
# ## 7. Look for yourself
#
# Change the cached tokens, the block size, the chunk size and the number of users. On the left are A's steps, on the
# right the four ways.
#
# 1. Which block size costs A a third chunk? What else can do that?
# 2. With 24 users, below how many cached tokens does "caching only" miss the target?
# 3. Find a setting in which "both" has the earliest first token of the ways that keep the target. What must be true of
#    the tail?

# %% id="explore"
from course_lib.widgets.both import explore_both

explore_both()

# %% [markdown] id="questions-text"
# ## 8. Questions
#
# Choose an answer before you read on. Each wrong answer says which mistake leads to it. The score is not reported.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("08_both")

# %% [markdown] id="end"
# ## What you can do now
#
# - Say how much of a prompt is attached, for any block size, and why a completely cached prompt still computes a block.
# - Name the tokens of every chunk after a hit, in absolute positions, under a cap, a budget, or both.
# - Say what chunking and caching gain alone and together, and from which tail on chunking matters.
# - Write the test that an engine with both must pass, and name a shipped fault for each of its lines.
#
# All times were modelled. Notebook 09 measures a real device.
