# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 01 Must a prompt run in one pass?
#
# While a long prompt goes through the model in one pass, no other user gets a token. Can the pass be stopped in the
# middle and continued later? In this notebook you find out which part of the work depends on which. Then you write a
# cache that keeps what has been computed, and a prefill that runs a prompt in *chunks*: runs of its tokens, one after
# another. At the end you compare the cache that the chunks fill with that of one pass, in every bit.
#
# About an hour. NumPy is enough; the pictures use matplotlib. Positions count from 0.
#
# The words that the notebook builds on: a language model reads *tokens*, numbers that stand for pieces of text. It turns each
# token into a list of numbers, its *vector*, and sends the vector through its *layers*, one after another. In a layer three
# matrix products make a *query*, a *key* and a *value* from the vector; the matrices hold the model's *weights*, numbers that
# training has fixed. *Attention* compares a token's query with the keys of the tokens that it may see, and takes a mean of
# their values, in which a key that fits better counts more. The result changes the token's vector, and the changed vector
# goes into the next layer. Keys (K) and values (V) are kept in the *KV cache*, because later tokens need them again. A *row*
# of the cache is the key, or the value, of one token in one layer. The last layer gives the *logits*, a score for each
# possible next token. To compute a prompt's tokens is called *prefill*, and *one pass* computes all of them at once.

# %% id="setup"
import matplotlib.pyplot as plt
import numpy as np

from autograder import check
from autograder.exercises import EXERCISES
from autograder.kept import solution_text
from course_lib.lessons.nb01_divisible import run_chunk
from course_lib.prefill import cut, one_pass
from course_lib.prefill import prefill as paged_prefill
from course_lib.weights import seeded_model

model = seeded_model("tiny", arith="exact")  # 3 layers, weights from a seed, no sum rounded: the same bits everywhere
LAYERS = model.config.num_layers

# %% [markdown] id="divide-text"
# ## 1. Which rows need which tokens?
#
# Here is the cache of a prompt of 12 tokens in a model of 3 layers. Each small square is one row of the cache: the key
# or the value of one token in one layer. Suppose that the pass is stopped after token 7, at the thick bar. Can the rows
# on its left be computed without the tokens on its right?

# %% id="divide-picture"
ids = [(7 * i * i + 3 * i) % 128 for i in range(12)]  # a prompt: token ids below the vocabulary's 128


def draw_rows(ax, marked, title, marks="///"):
    """Hatched: the rows where `marked` [layers, 2 (K, V), tokens] is True."""
    rows = marked.reshape(-1, marked.shape[-1])
    for r, c in np.ndindex(rows.shape):
        look = {"facecolor": "#f2c07a", "hatch": marks} if rows[r, c] else {"facecolor": "white"}
        ax.add_patch(plt.Rectangle((c - 0.5, r - 0.5), 1, 1, edgecolor="0.4", linewidth=0.5, **look))
    for layer in range(1, LAYERS):
        ax.axhline(2 * layer - 0.5, color="black", linewidth=1)
    ax.set(xlim=(-0.5, rows.shape[1] - 0.5), ylim=(len(rows) - 0.5, -0.5), title=title, xlabel="token at position")
    ax.set_xticks(range(rows.shape[1]))
    ax.set_yticks(range(len(rows)), [f"layer {layer} {name}" for layer in range(LAYERS) for name in "KV"])


fig, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
draw_rows(ax, np.zeros((LAYERS, 2, 12), dtype=bool), "finished, without the tokens on the right?")
for r, c in np.ndindex(2 * LAYERS, 8):
    ax.text(c, r, "?", ha="center", va="center")
ax.axvline(7.5, color="black", linewidth=4)
plt.show()

# %% [markdown] id="guess-text"
# An experiment decides it. Exchange one token of the prompt for another, run the whole prompt again, and see which rows
# of the cache change. A row that does not change does not depend on that token.
#
# **Guess before you go on.** First the last token is exchanged, at position 11; then, in the original prompt, the one
# at position 4. For each layer, how many of the 12 rows of K change? Write numbers in place of the Nones. It is not
# graded; a recorded guess makes the answer easier to remember.

# %% id="guess"
last_exchanged = [None, None, None]  # rows of K that change in layer 0, 1 and 2
middle_exchanged = [None, None, None]

# %% id="guess-reveal"
def changed_rows(position):
    """Which rows differ, [layers, 2 (K, V), tokens], when the token at `position` is another one."""
    other = list(ids)
    other[position] = (other[position] + 1) % 128
    before, after = one_pass(model, ids), one_pass(model, other)
    return np.stack([(a != b).any(axis=(2, 3)) for a, b in ((before.k, after.k), (before.v, after.v))], axis=1)


last, middle = changed_rows(11), changed_rows(4)
thoughts = {
    (12, 12, 12): "You let a token change the rows before it. A token looks back, never ahead.",
    (1, 12, 12): "Layer 0 is right. Above it you let a token change the rows before it: a token looks back, never ahead.",
    (0, 0, 0): "You left out the rows of the exchanged token: they are made from it.",
    (0, 1, 1): "Layer 0's rows are made from the token itself, so its row changes there too.",
    (8, 8, 8): "Layer 0's keys are made from each token and its position, before any attention: no other token is in them.",
    (0, 7, 7): "You left out the rows of the exchanged token. The later tokens are right.",
    (1, 7, 7): "Layer 0 is right. Above it the row of the exchanged token changes as well: 1 + 7.",
    (1, 5, 5): "You counted the tokens that it looks back at. The rows that change belong to tokens that look back at it.",
    (1, 1, 8): "One layer too late: layer 1 is made from what attention in layer 0 returned, which looks back already.",
    (0, 0, 1): "A change begins in layer 0: the first keys are made from the token itself.",
}
for name, said, rows in (("last", last_exchanged, last), ("middle", middle_exchanged, middle)):
    truth = rows[:, 0].sum(axis=1).tolist()
    print(f"{name} token exchanged: you said {said}, and it is {truth}")
    if said != truth and None not in said:
        if name == "middle" and said == [1, 1, 1]:
            print("   You kept the change at the exchanged token. Every later token looks back at it.")
        else:
            print("  ", thoughts.get(tuple(said), "Look at the picture below, layer by layer."))
        print("   Why were you off? Write it down below the picture.")

fig, axes = plt.subplots(1, 2, figsize=(12, 2.8), layout="constrained")
draw_rows(axes[0], last, "hatched: changes with token 11")
draw_rows(axes[1], middle, "hatched: changes with token 4")
plt.show()

assert last[:, 0].sum(axis=1).tolist() == [1, 1, 1] and middle[:, 0].sum(axis=1).tolist() == [1, 8, 8]
assert np.array_equal(last[:, 0], last[:, 1]) and np.array_equal(middle[:, 0], middle[:, 1])  # V as K
assert not last[..., :11].any() and not middle[..., :4].any()

# %% [markdown] id="guess-why"
# *I was off because ... (double-click to write here)*

# %% [markdown] id="causal"
# No row before the exchanged token changes, in any layer, by a single bit. Attention in such a model is *causal*: a
# token sees itself and the tokens before it, and none after it. So a row depends on its token and earlier ones only.
#
# In layer 0 it does not even depend on earlier ones. Keys are made from a token and its position, values from the token
# alone, both before any attention: one row of K and one of V change. What attention in layer 0 returns goes into the
# rows of layer 1, and there the change has reached every later token: positions 4 to 11, which are eight.
#
# You may think that a prompt is one piece, since attention connects each of its tokens with the others. But the
# connections point one way only. When tokens 0 to 1,023 have gone through all layers, their rows are final, whatever
# comes after them. They can be stored; other users can be served; and tokens 1,024 to 2,047 can go through the model
# later, with the stored rows.
#
# (Some models, for example those that only classify texts, have attention that looks both ways. Their passes cannot be
# cut like this. Section 6 shows what would happen.)

# %% [markdown] id="cache-text"
# ## 2. What a chunk leaves in the cache
#
# The next chunk needs the keys and values of all tokens before it, in every layer. A worked example with the keys of two
# layers, for a chunk of 3 tokens and then one of 2. (A layer does attention several times in parallel, each time with
# other, shorter vectors: these are its *heads*, `head_dim` is the length of their vectors, and `kv_heads` is the number
# of heads that have separate keys and values. Here there is one head, and a key has 2 numbers.)

# %% id="cache-example"
rng = np.random.default_rng(0)

# Step 1: each layer has a separate, empty store: 0 tokens, 1 head, 2 numbers.
stores = [np.zeros((0, 1, 2), dtype=np.float32) for layer in range(2)]

# Step 2: the first chunk goes through the layers, and each layer keeps the chunk's keys in its store.
for layer in range(2):
    keys = rng.standard_normal((3, 1, 2)).astype(np.float32)
    stores[layer] = np.concatenate([stores[layer], keys])
print("after chunk 0:", [store.shape for store in stores])

# Step 3: the second chunk's keys go after those of the first, in the order of the tokens.
for layer in range(2):
    keys = rng.standard_normal((2, 1, 2)).astype(np.float32)
    stores[layer] = np.concatenate([stores[layer], keys])
print("after chunk 1:", [store.shape for store in stores])

# Step 4: a store is one array: row p is the key of the token at position p.
print("key of token 3 in layer 1:", stores[1][3])

# %% [markdown] id="cache-exercise"
# You may think that a chunk's keys can replace those before them, since the earlier chunk is computed. But each later
# token looks back at all rows, and so will every token of the answer.
#
# ### Exercise 1.1: a cache that grows
#
# 12 minutes, difficulty 2 of 5, about six lines in three methods. Keys and values this time. Two things are easily
# missed: each layer has separate rows, and the caller of `append` may overwrite its arrays afterwards.

# %% [markdown] id="cache-hints"
# <details><summary>Hint 1: a direction</summary>
#
# The worked example is nearly the class: its list `stores` becomes `self.k`, and the values need a second list, `self.v`.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# `[x] * 3` holds the same x three times; a list of three different ones is `[make() for _ in range(3)]`.
# And `np.zeros` makes float64 unless you say `dtype=np.float32`.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `append` is `self.k[layer] = np.concatenate([self.k[layer], k])` and the same for v; `np.concatenate` makes a new
# array, so the caller may overwrite its array. `view` returns what is in the two lists for that layer.
#
# </details>

# %% id="cache-solution" exercise="1.1" solution="KVCache" minutes=12 difficulty=2
# include course_lib.lessons.nb01_divisible:KVCache

# %% [markdown] id="cache-check-text"
# The first check fills the caches of three requests in turn, some with thousands of tokens, and views them after each
# append. In the second the caller overwrites its arrays after each append.

# %% id="cache-check-views" check="KVCache" group="views" points=3
check.KVCache(KVCache, group="views")

# %% id="cache-check-reuse" check="KVCache" group="reuse" points=1
check.KVCache(KVCache, group="reuse")

# %% [markdown] id="cache-after"
# Now nothing is computed twice: the cache keeps it until the request ends.

# %% [markdown] id="chunks-text"
# ## 3. One chunk after another
#
# The course supplies `run_chunk(model, ids, cache)`. It puts the next tokens through all layers and gives the logits of the
# *last* of them. In each layer it first appends the chunk's keys and values to the cache; then the chunk's queries look
# at the whole view. It takes the position from the cache: with 8 tokens in it, the next one has position 8.
#
# Here is the prompt of 12 tokens in two chunks. (Stuck with exercise 1.1? Put `from course_lib.lessons.nb01_divisible import KVCache`
# into a new cell, go on, and come back later.)

# %% id="chunks-example"
config = model.config

# Step 1: one empty cache for the whole request.
cache = KVCache(config.num_layers, config.kv_heads, config.head_dim)

# Step 2: the first chunk, tokens 0 to 7, with nothing cached.
run_chunk(model, ids[0:8], cache)
print("after chunk 0 the cache holds", len(cache.view(0)[0]), "tokens")

# Step 3: the second chunk, tokens 8 to 11, with the first in the cache.
logits = run_chunk(model, ids[8:12], cache)
print("after chunk 1 the cache holds", len(cache.view(0)[0]), "tokens")

# Step 4: compare with one pass, every layer, keys and values, and the logits.
whole = one_pass(model, ids)
for layer in range(LAYERS):
    k, v = cache.view(layer)
    print(f"layer {layer}: K equal {np.array_equal(k, whole.k[layer])}, V equal {np.array_equal(v, whole.v[layer])}")
print("logits equal", np.array_equal(logits, whole.logits))

# %% [markdown] id="logits-text"
# Now the same prompt in chunks of 5, 4 and 3 tokens. `run_chunk` is called three times, and gives logits three times.
#
# **Guess:** which of the three are needed to begin the answer? Write a list of the calls' numbers, from 0.

# %% id="logits-guess"
needed = None

# %% id="logits-reveal"
cache, each, start = KVCache(config.num_layers, config.kv_heads, config.head_dim), [], 0
for size in (5, 4, 3):
    each.append(run_chunk(model, ids[start : start + size], cache))
    start += size
    if start < len(ids):
        print(f"call {len(each) - 1}: guesses the token at position {start}, which is in the prompt: {ids[start]}")
equal = [np.array_equal(logits, whole.logits) for logits in each]
print(f"call {len(each) - 1}: guesses the token at position {start}, the first of the answer")
print("equal to the logits of one pass:", equal)
print("\nyou said", needed, "and it is [2]")
if needed == [0, 1, 2]:
    print("Each call's logits are for the token after its last one. For calls 0 and 1 that token is known.")
elif needed == [0]:
    print("Call 0 has seen 5 of the 12 tokens. It cannot know how the prompt ends.")
elif needed == []:
    print("The answer begins right after the prompt's last token, and call 2 computes that token.")
assert equal == [False, False, True]

# %% [markdown] id="logits-after"
# *I was off because ... (double-click to write here)*
#
# Only the chunk with the prompt's last token says how the answer begins. The other chunks' logits are discarded, or not
# computed at all (the course's engine does not). So the first token appears when the *last* chunk has run, and other
# work between the chunks makes that later, not earlier.
#
# Before you write it as a function: where do chunks begin and end? Fill in the three blanks and run the cell; it tells
# you what fits. It is not graded.

# %% id="chunks-faded"
lengths = [5, 1, 4, 2]
pieces = [(0, 5), (5, None), (None, 10), (10, None)]  # (start, stop): tokens start to stop - 1

for number, (piece, length) in enumerate(zip(pieces, lengths)):
    before = sum(lengths[:number])
    if None in piece:
        print(f"chunk {number} has a blank")
    elif piece == (before, before + length):
        print(f"chunk {number} fits: {length} tokens behind {before}")
    else:
        print(f"chunk {number}: not yet. How many tokens stand before it, and how long is it?")

# %% [markdown] id="prefill-exercise"
# ### Exercise 1.2: a prompt in chunks
#
# 10 minutes, difficulty 2 of 5, about seven lines. For any `sizes` that add up to the prompt, equal or not. It uses
# your `KVCache`.

# %% [markdown] id="prefill-hints"
# <details><summary>Hint 1: a direction</summary>
#
# It is the worked example with a loop over `sizes` in place of steps 2 and 3.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# The cache is made once, above the loop. Keep a number `start`: the tokens run so far. Chunks may have different
# lengths, so it cannot be computed from the number of the chunk.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# In the loop: `logits = run_chunk(model, ids[start : start + size], cache)`, then `start += size`. Each turn overwrites
# the logits of the one before, so the last ones remain. Return the cache first, then the logits.
#
# </details>

# %% id="prefill-solution" exercise="1.2" solution="prefill" minutes=10 difficulty=2
from collections.abc import Sequence

from course_lib.lessons.nb01_divisible import run_chunk

# include course_lib.lessons.nb01_divisible:prefill

# %% [markdown] id="prefill-check-text"
# Both checks run several prompts, in uneven chunks, as one chunk, and token by token. The first compares K and V of all
# three layers with one pass, bit for bit, and checks that the chunks ran as asked. The second compares the logits.

# %% id="prefill-check-kv" check="prefill" group="kv" points=4
check.prefill(prefill, group="kv")

# %% id="prefill-check-logits" check="prefill" group="logits" points=2
check.prefill(prefill, group="logits")

# %% [markdown] id="prefill-after"
# Now a prefill can be stopped after any token and continued later.

# %% [markdown] id="every-text"
# ## 4. Every cut, and what it costs
#
# Take a prompt of 24 tokens and cut it into chunks of 1 token, of 2, and so on up to one chunk of 24.
#
# **Guess:** for how many of the 24 chunk sizes does your prefill leave K, V and logits that equal those of one pass in every
# bit?

# %% id="every-guess"
equal_sizes = None

# %% id="every-reveal"
longer = [(5 * i * i + 11 * i) % 128 for i in range(24)]
whole = one_pass(model, longer)


def equals_one_pass(cache, logits):
    """Every layer's K and V, and the logits: np.array_equal knows no tolerance."""
    views = [cache.view(layer) for layer in range(LAYERS)]
    kv_equal = all(np.array_equal(k, whole.k[i]) and np.array_equal(v, whole.v[i]) for i, (k, v) in enumerate(views))
    return kv_equal and np.array_equal(logits, whole.logits)


results = {size: equals_one_pass(*prefill(model, longer, cut(24, size))) for size in range(1, 25)}
print("".join("=" if equal else "x" for equal in results.values()), " (= equal in every bit, chunk sizes 1 to 24)")
print("you said", equal_sizes, "and it is", sum(results.values()))
if equal_sizes == 1:
    print("You counted the one chunk of 24 alone. Look at section 1 again: no row depends on where the cut is.")
elif equal_sizes == 8:
    print("You counted the sizes that divide 24. The last chunk may be shorter; nothing needs equal chunks.")
assert all(results.values())

# %% [markdown] id="every-after"
# All 24. You may think that a cut costs a little precision. Here it does not cost one bit.
#
# That has two reasons. By causality, each row is computed from the same numbers in every cut; this holds for any such
# model. And the *bits* are equal because the model here computes with the course's `exact` operations, in which no sum
# is ever rounded. With ordinary float32 code the same cuts give rows that are equal up to rounding, and mostly not in
# every bit:

# %% id="plain"
ordinary = model.with_arithmetic("plain")  # the same weights, NumPy's matrix products
one = paged_prefill(ordinary, longer, [24])
same, worst = 0, 0.0
for size in range(1, 25):
    run = paged_prefill(ordinary, longer, cut(24, size))
    same += run.equals(one)
    worst = max(worst, float(np.abs(run.k - one.k).max()), float(np.abs(run.v - one.v).max()))
print(f"ordinary float32: {same} of 24 chunk sizes are equal in every bit; K and V differ by at most {worst:.0e}")
print("(measured on this machine: another processor or NumPy may give another count)")

# %% [markdown] id="why-bits"
# The second run has no mistake, and yet a test for equality would fail. Notebook 04 explains why the last bits differ,
# and makes them equal with ordinary float32 products. Until then all notebooks compute in `exact`: any difference is a
# mistake, and there is no tolerance in which one could hide.
#
# ### What does the comparison see?
#
# Comparing two caches is a simple test of a prefill, and it finds a whole class of mistakes. But it must compare all
# layers of a model that has at least two, and the logits too: in section 1 you saw that layer 0's rows do not depend on
# attention. A mistake in attention first shows in layer 1, and one in the last layer's attention in the logits alone.
# Comparing the next token is no test: it can stay the same when the cache is wrong. Section 5 counts how often.
#
# ### Does a cut cost time?
#
# A prompt of 8,192 tokens is cut into 8 chunks of 1,024. Attention compares pairs: each token with itself and every token
# before it.
#
# **Guess:** do chunks compare more pairs than one pass, fewer, or as many? Write "more", "fewer" or "as many".

# %% id="work-guess"
pairs_in_chunks = None

# %% id="work-reveal"
def work(sizes):
    """Pairs of attention, keys fetched from earlier chunks, and how often the weights are read, in one layer."""
    pairs = fetched = start = 0
    for size in sizes:
        pairs += sum(start + row + 1 for row in range(size))  # row `row` of the chunk sees start + row + 1 keys
        fetched += start  # the chunk reads every earlier key once more
        start += size
    return pairs, fetched, len(sizes)


in_one, in_chunks = work([8_192]), work([1_024] * 8)
print(f"{'':18}{'pairs':>12}{'earlier keys fetched':>24}{'weights read':>16}")
for name, (pairs, fetched, reads) in (("one pass", in_one), ("8 chunks of 1,024", in_chunks)):
    print(f"{name:18}{pairs:>12,}{fetched:>24,}{reads:>15}x")
print("\nyou said", pairs_in_chunks, "and it is: as many")
if pairs_in_chunks == "more":
    print("Chunks fetch more: they read again from the cache keys that one pass had at hand.")
elif pairs_in_chunks == "fewer":
    print("A later chunk's queries look back at all earlier chunks as well. No pair is left out.")
assert in_one == (8_192 * 8_193 // 2, 0, 1) == (33_558_528, 0, 1)
assert in_chunks == (33_558_528, 28_672, 8)

# %% [markdown] id="work-after"
# *I was off because ... (double-click to write here)*
#
# The arithmetic is the same, pair by pair. The memory traffic is not: the model's weights are read once for each chunk,
# 8 times instead of once, and the chunks together fetch earlier keys 28,672 times in each layer, and as many values
# (each earlier token counted once for each chunk; kernels that work in tiles read more, in one pass as well). Each
# chunk also has a fixed cost. So very small chunks are expensive; notebook 06 shows how small is too small.

# %% [markdown] id="break-text"
# ## 5. Break it
#
# The course has collected wrong answers that people really write. Here is each of them on a prompt of 16 tokens, cut
# 3 + 1 + 7 + 5: the cache that it fills is compared with that of one pass. First the wrong caches, in a right prefill.
#
# Before you run the cell, take `overwrite`, where each append replaces what the layer held: how many tokens will be left in
# its cache, and will anything raise an error?

# %% id="break-run"
prompt, sizes = [(3 * i * i + 13 * i + 5) % 128 for i in range(16)], [3, 1, 7, 5]
whole = one_pass(model, prompt)
EQUAL, DIFFERS, MISSING, EXTRA = range(4)


def compared(cache):
    """[layers * 2 (K, V), 32]: for each row of the cache, one of the four states."""
    states = np.full((2 * LAYERS, 2 * len(prompt)), EQUAL)
    for row in range(2 * LAYERS):
        got, wanted = cache.view(row // 2)[row % 2], (whole.k, whole.v)[row % 2][row // 2]
        for token in range(states.shape[1]):
            there, due = token < len(got), token < len(wanted)
            if there and due:
                states[row, token] = EQUAL if np.array_equal(got[token], wanted[token]) else DIFFERS
            else:
                states[row, token] = EXTRA if there else MISSING if due else EQUAL
    return states


def with_cache(make_cache):
    """A right prefill that uses this cache."""
    right_prefill = EXERCISES["prefill"].compile(solution_text("course_lib.lessons.nb01_divisible:prefill"))
    right_prefill.__globals__["KVCache"] = make_cache
    return right_prefill


def run_all(prefills):
    """name -> (states, logits) of each one that runs; the others are printed with their errors."""
    found = {}
    for name, fn in prefills.items():
        try:
            cache, logits = fn(model, prompt, sizes)
            found[name] = compared(cache), logits
        except Exception as error:
            print(f"{name} raises {type(error).__name__}: {error}")
    return found


def draw_all(found):
    looks = {DIFFERS: ("#e69f00", "////"), MISSING: ("0.8", "xxxx"), EXTRA: ("#cc79a7", "....")}
    seams = np.cumsum(sizes)[:-1].tolist()
    lines = -(-len(found) // 3)
    fig, axes = plt.subplots(lines, 3, figsize=(12, 1.45 * lines), layout="constrained", squeeze=False)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()
    for ax, (name, (states, logits)) in zip(axes.flat, found.items()):
        for row, line in enumerate(states):
            edges = [0, *(np.flatnonzero(np.diff(line)) + 1).tolist(), len(line)]
            for start, stop in zip(edges[:-1], edges[1:]):  # a bar for each run of equal states
                if line[start] != EQUAL:
                    colour, hatch = looks[line[start]]
                    ax.barh(row, stop - start, 1, start - 0.5, color=colour, hatch=hatch, edgecolor="0.3", linewidth=0)
        right = "equal" if np.array_equal(logits, whole.logits) else "differ"
        ax.set_title(f"{name}: logits {right}", fontsize=9)
        ax.set(xlim=(-0.5, (32 if (states == EXTRA).any() else 16) - 0.5), ylim=(2 * LAYERS - 0.5, -0.5))
        ax.set_yticks([0.5, 2.5, 4.5], ["layer 0", "layer 1", "layer 2"], fontsize=8)
        ax.set_xticks(seams, seams, fontsize=8)
        for seam in seams:
            ax.axvline(seam - 0.5, color="black", linewidth=1.2)
        for edge in (1.5, 3.5):
            ax.axhline(edge, color="0.4", linewidth=0.6)
    plt.show()
    print("orange, ///: differs from one pass   grey, xxx: missing   pink, ...: too much   in each layer K above V")


def kept(exercise):
    """name -> each wrong answer that the course has collected."""
    return {wrong.name: EXERCISES[exercise].compile(wrong.source) for wrong in EXERCISES[exercise].wrong_answers}


caches = run_all({name: with_cache(make_cache) for name, make_cache in kept("KVCache").items()})
draw_all(caches)

# %% [markdown] id="break-ask"
# Most of them raise nothing. `overwrite` leaves the 5 tokens of the last chunk, and no error.
#
# 1. Four of these caches are right here, in every bit: this run cannot show their mistakes. What would a run have to do
#    to show `shared_between_requests`, what to show `fixed_rows`, and what to show the other two?
# 2. `float64` has the right keys in layer 0, and yet differs from one pass. In which layer does the difference begin,
#    and what comes between?
# 3. In `in_front` every row differs in the end, although the first chunk was computed correctly. Where are its rows
#    now?

# %% id="break-prefills"
prefills = run_all(kept("prefill"))
draw_all(prefills)

# %% [markdown] id="break-after"
# Now the wrong prefills, with a right cache. Find these in the pictures:
#
# - `blind_chunks`: layer 0 V is clean and layer 0 K is not. Values do not depend on the position, keys do. Each chunk
#   started at position 0, so **the right tokens ran at wrong positions**.
# - `first_logits`, `every_chunks_logits`, `summed_logits`, `mean_logits`: a clean cache and wrong logits. A comparison
#   of caches alone misses them.
# - `one_pass` and `recomputed`: everything is equal. The cache does not show *how* it was filled; your check counts the
#   tokens of each run to find out.
# - `one_cache_for_all_prompts`: everything is equal as well, for the first prompt. Only the second one shows it.

# %% id="break-facts"
def clean(found):
    """Names of those whose cache equals one pass's, and of those whose logits do."""
    right = [name for name, (states, _) in found.items() if not states.any()]
    return right, [name for name, (_, logits) in found.items() if np.array_equal(logits, whole.logits)]


print("a clean cache, wrong caches:  ", *clean(caches)[0])
print("a clean cache, wrong prefills:", *clean(prefills)[0])
wrong_kv = [logits for found in (caches, prefills) for states, logits in found.values() if states.any()]
same_token = sum(int(logits.argmax() == whole.logits.argmax()) for logits in wrong_kv)
print(f"of {len(wrong_kv)} runs with a wrong KV cache, {same_token} choose the same next token as one pass")

unseen = ["shared_between_requests", "keeps_the_callers_array", "keeps_the_first_array", "fixed_rows"]
assert clean(caches) == (unseen, unseen)
logits_only = {"first_logits", "every_chunks_logits", "summed_logits", "mean_logits"}
all_equal = {"recomputed", "one_pass", "one_cache_for_all_prompts"}
assert set(clean(prefills)[0]) == logits_only | all_equal
assert set(clean(prefills)[1]) == all_equal
assert (caches["overwrite"][0][:, :16] != MISSING).sum(axis=1).tolist() == [5] * 6
assert (caches["float64"][0] != EQUAL).any(axis=1).tolist() == [False] * 2 + [True] * 4
blind = prefills["blind_chunks"][0]
assert blind[0].any() and not blind[1].any()  # layer 0: K differs, V does not

# %% [markdown] id="explore-text"
# ## 6. Look for yourself
#
# Choose the token that is exchanged and how the prompt is cut. While attention is causal, the cut makes no difference:
# try to find one. Then let attention look ahead, and move the cut again. Which rows would be final after a chunk?

# %% id="explore"
from course_lib.widgets.changed_rows import explore_changed_rows

explore_changed_rows()

# %% [markdown] id="real-text"
# ### A real model (optional)
#
# Your `prefill` and your `KVCache` work for any model of this shape, a trained one too. The cell computes a prompt in
# chunks of 2 tokens with your code and lets the model go on. In `exact` a token of a model with 135 million weights
# takes about a second.

# %% id="real"
from course_lib.lessons.real_model import real_model

if found := real_model(arith="exact"):
    real, tokenizer = found
    text_ids = tokenizer.encode("The capital of France is")
    cache, logits = prefill(real, text_ids, cut(len(text_ids), 2))
    written = [int(logits.argmax())]
    while len(written) < 12 and written[-1] not in tokenizer.end:
        logits = run_chunk(real, written[-1:], cache)  # one token more, at the place after those in the cache
        written.append(int(logits.argmax()))
    print(tokenizer.decode([*text_ids, *written]))

# %% [markdown] id="questions-text"
# ## 7. Questions
#
# Choose an answer before you read on. Each wrong answer says which mistake leads to it. The score is not reported.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("01_divisible")

# %% [markdown] id="end"
# ## What you can do now
#
# - Say which rows of the KV cache depend on a token, and why a prompt can be cut after any token.
# - Write a KV cache that only grows, and a prefill that leaves the same bits however the prompt is cut.
# - Say what a cut leaves unchanged (every pair of attention) and what it adds (weights and earlier keys are read again).
# - Compare two caches: all layers, K and V, and the logits.
#
# `run_chunk` did the hard part for you: which keys each query may see. That is the mask: notebook 02.
