# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 02 The mask of a chunk
#
# A long prompt is cut into chunks. A chunk attends to the keys that earlier chunks left in the cache, and to its own.
# The *mask* says which query sees which key. In this notebook you write it for one chunk and for a batch of several
# requests, and then the attention that uses it. At the end a cut prompt leaves the same KV cache as an uncut one,
# in every bit.
#
# About 50 minutes. NumPy is enough; the pictures use matplotlib. Positions count from 0.
#
# The words that the notebook builds on: a language model reads *tokens*, numbers that stand for pieces of text. In each of
# its *layers* every token gets three vectors: a *query*, a *key* and a *value*. *Attention* compares a token's query with the
# keys of the tokens that it may see, and gives it a mean of their values, weighted by how well the keys fit. From that
# the next layer is made. Keys (K) and values (V) are kept in the *KV cache*, because later tokens need them again. The
# last layer gives the *logits*, a score for each possible next token. To compute a prompt's tokens is called *prefill*.

# %% id="setup"
from dataclasses import replace

import numpy as np

from autograder import check
from autograder.exercises import EXERCISES
from course_lib.invariant import exact
from course_lib.kv_diff import first_divergence
from course_lib.prefill import one_pass, prefill
from course_lib.weights import SEEDED, seeded_model

# %% [markdown] id="crash-text"
# ## 1. Why did the second chunk crash?
#
# A *request* is one user's prompt and its answer. A *chunk* is a run of new tokens of one request that are computed in
# one step: they have queries. A token is *cached* here if its key and value are in the cache before the chunk begins,
# whoever put them there.
#
# Until November 2023, Meta's own code for Llama could go on from a KV cache by one token at a time only. Given a second
# chunk of several tokens it stopped with an error (meta-llama/llama, issue 899; repaired by pull request 900). Its mask
# was a square, with a column for each *new* token. Here is the same situation: 5 tokens are cached and 3 are new.

# %% id="crash"
chunk_len, cached_len = 3, 5
rng = np.random.default_rng(0)
scores = rng.standard_normal((chunk_len, cached_len + chunk_len))  # a row for each query, a column for each key
square = np.tril(np.ones((chunk_len, chunk_len), dtype=bool))  # the lower triangle; True: this query sees this key

try:
    np.where(square, scores, -np.inf)
except ValueError as error:
    print("ValueError:", error)

# %% [markdown] id="crash-after"
# The scores have 8 columns and the mask has 3. A chunk of one token needs no mask at all, since it sees every key there is:
# so going on one token at a time had always worked.
#
# A crash is the lucky case: it says where it is. A mask of the right shape with wrong entries says nothing.
#
# Which mask belongs there? On the left is the mask of one pass over all 8 tokens: each query sees its own key and all
# keys before it. The frame marks the rows of our chunk. On the right is what the chunk computes.

# %% id="crash-picture"
import matplotlib.pyplot as plt


def draw_mask(ax, mask, title, first_query=0):
    """Hatched and marked 1: the query (row) sees the key (column)."""
    rows, columns = mask.shape
    for r in range(rows):
        for c in range(columns):
            look = {"facecolor": "#bcd9ee", "hatch": "///"} if mask[r, c] else {"facecolor": "white"}
            ax.add_patch(plt.Rectangle((c - 0.5, r - 0.5), 1, 1, edgecolor="0.45", **look))
            ax.text(c, r, "1" if mask[r, c] else "", ha="center", va="center", weight="bold")
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), title=title, xlabel="key at position", aspect="equal")
    ax.set_xticks(range(columns))
    ax.set_yticks(range(rows), [f"query {first_query + r}" for r in range(rows)])


triangle = np.tril(np.ones((8, 8), dtype=bool))
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
draw_mask(left, triangle, "one pass: 8 queries, 8 keys")
left.add_patch(plt.Rectangle((-0.5, 4.5), 8, 3, fill=False, edgecolor="black", linewidth=3))
draw_mask(right, np.zeros((3, 8), dtype=bool), "the chunk: 3 queries, 8 keys", first_query=5)
for row, column in np.ndindex(3, 8):
    right.text(column, row, "?", ha="center", va="center")
right.axvline(4.5, color="black", linestyle="--")
right.text(2, -0.75, "cached", ha="center")
right.text(6, -0.75, "new", ha="center")
right.set_title("the chunk: 3 queries, 8 keys", pad=20)
plt.show()

# %% [markdown] id="guess-text"
# **Guess before you go on.** How many keys does each of the three queries see? Write three numbers in place of the
# Nones. Nobody grades this; a guess on record makes the answer stick.

# %% id="guess"
keys_seen = [None, None, None]  # by the queries at positions 5, 6 and 7

# %% id="guess-reveal"
truth = triangle[5:].sum(axis=1).tolist()
thoughts = {
    (1, 2, 3): "You counted from the start of the chunk, as if nothing were cached.",
    (8, 8, 8): "You let each query see the whole chunk. A token must not see the tokens behind it.",
    (5, 6, 7): "You left out each token's own key. A token sees itself.",
    (5, 5, 5): "You counted the cached keys alone. The chunk's own keys up to the query's count too.",
    (7, 8, 9): "You counted one key too many: with 0-based positions, keys 0 to 5 are six keys.",
}
print("you said", keys_seen, "and it is", truth)
if keys_seen != truth:
    print(thoughts.get(tuple(keys_seen), "Count the marks in the framed rows of the picture."))
    print("Why were you off? Write it down in the next cell.")

# %% [markdown] id="guess-why"
# *I was off because ... (double-click to write here)*

# %% [markdown] id="mask-text"
# ## 2. The mask of one chunk
#
# A worked example in three steps, for 3 new tokens behind 5 cached ones. Only the last step is left undone: it compares
# for one query, and you need all of them.

# %% id="mask-example"
# Step 1: where does each query stand? The chunk begins right behind what is cached.
queries = [cached_len + row for row in range(chunk_len)]
print("queries stand at", queries)

# Step 2: where does each key stand? Keys 0 to 4 are cached, keys 5 to 7 are the chunk's own.
keys = list(range(cached_len + chunk_len))
print("keys stand at   ", keys)

# Step 3: a query sees the keys that do not stand behind it. For the query in row 1:
print("row 1 sees      ", [key <= queries[1] for key in keys])
assert [key <= queries[1] for key in keys] == triangle[queries[1]].tolist()

# %% [markdown] id="mask-exercise"
# You may think that a chunk's mask depends on the chunk alone, since every chunk is causal in itself. But its rows are
# rows 5, 6 and 7 of the big triangle, and not rows 0, 1 and 2. What is cached moves the diagonal.
#
# ### Exercise 2.1: which keys does each query of a chunk see?
#
# 8 minutes, difficulty 1 of 5, about three lines. For any `chunk_len` and `cached_len`. In NumPy, `a[:, None]` makes a
# column of `a`, and comparing a column with a row gives a table of all pairs. Loops are fine too.

# %% id="mask-solution" exercise="2.1" solution="chunk_attention_mask" minutes=8 difficulty=1
# include course_lib.masks:chunk_attention_mask

# %% [markdown] id="mask-check-text"
# The first check compares masks. The second runs a model of 3 layers with your masks: three prompts in uneven chunks, one
# of them behind a *prefix hit*, tokens that an earlier request with the same beginning has left in the cache. K and V of
# all layers and the last logits must equal those of one pass, bit for bit.

# %% id="mask-check-values" check="chunk_attention_mask" group="values" points=3
check.chunk_attention_mask(chunk_attention_mask, group="values")

# %% id="mask-check-kv" check="chunk_attention_mask" group="kv" points=2
check.chunk_attention_mask(chunk_attention_mask, group="kv")

# %% [markdown] id="layers-text"
# ### Why three layers?
#
# The course keeps wrong masks that people really write. Five of them can be run on any chunk. We put each into a model
# and compare its KV cache with the one-pass cache: first a model of 1 layer, then one of 3.
#
# **Guess:** how many of the five does the comparison find in the model of 1 layer? Write a number.

# %% id="layers-guess"
found_with_one_layer = None

# %% id="layers-reveal"
def model_with(layers):
    """Weights from a seed, and arithmetic in which no sum is rounded: the same bits on every machine."""
    return seeded_model(config=replace(SEEDED["tiny"], num_layers=layers), arith="exact")


def wrong(exercise, name):
    """One of the wrong answers that the course keeps, as a function."""
    return EXERCISES[exercise].compile(EXERCISES[exercise].wrong_answer(name).source)


names = ["top_left", "all_true", "cached_hidden", "one_too_many", "offset_by_chunk"]
ids = [(7 * i * i + 3 * i) % 128 for i in range(44)]  # a prompt: token ids below the vocabulary's 128
sizes, hit = [11, 6, 18], 9  # a prefix hit of 9 tokens, then three chunks

found, unseen = {}, []
for layers in (1, 3):
    model = model_with(layers)
    whole = one_pass(model, ids)
    found[layers] = 0
    print(f"model of {layers} layer{'s' * (layers > 1)}")
    for name in names:
        cut = prefill(model, ids, sizes, hit=hit, mask=wrong("chunk_attention_mask", name))
        kv_equal = np.array_equal(cut.k, whole.k) and np.array_equal(cut.v, whole.v)
        logits_equal = np.array_equal(cut.logits, whole.logits)
        found[layers] += not kv_equal
        unseen += [name] if kv_equal and logits_equal else []
        print(f"  {name:16} KV {'equal ' if kv_equal else 'DIFFER'}  logits {'equal ' if logits_equal else 'DIFFER'}")

print(f"\nyou said {found_with_one_layer}; the KV comparison finds {found[1]} with 1 layer and {found[3]} with 3")
assert found == {1: 0, 3: len(names)} and unseen == ["all_true", "one_too_many"]  # unseen in the model of 1 layer

# %% [markdown] id="layers-after"
# In a model of one layer the KV comparison finds nothing. K and V of layer 0 are made from a token and its position,
# before any attention has happened. A wrong mask first changes what attention *returns*, and that goes into the K and V
# of the next layer. In the last layer it goes into the logits alone, and not always: under `all_true` and `one_too_many`
# the logits of the 1-layer model are equal as well. Logits are made for the last token only, and the last token of a
# chunk may see everything in it.
#
# So compare K and V of all layers of a model that has at least two, and the logits too. If your guess was above 0: what
# did you think K and V of layer 0 are made from?
#
# *I thought ... (double-click to write here)*

# %% [markdown] id="ragged-text"
# ## 3. A batch of several requests
#
# One step of an engine runs chunks of several requests at once. Their lengths differ: the batch is *ragged*. A *decode*,
# the step that makes one more token of an answer, is a chunk of one. All new tokens of the batch are stacked into one
# list of rows, and all keys into one list of columns.
#
# Take three requests. Request 0 brings a chunk of 3 tokens behind 5 cached ones. Request 1 is a decode with 3 tokens in
# the cache. Request 2 begins: 2 new tokens, nothing cached. So `q_lens` = [3, 1, 2] new tokens, and `kv_lens` = [8, 4, 2]
# keys in all, new ones included.
#
# **Guess:** which columns does the decode's row see? Write a list of column numbers.

# %% id="ragged-guess"
decode_sees = None

# %% id="ragged-reveal"
q_lens, kv_lens = [3, 1, 2], [8, 4, 2]

# Step 1: whose is each row, and at which position does it stand? Its new tokens are the last of each request.
rows = [(0, 5), (0, 6), (0, 7), (1, 3), (2, 0), (2, 1)]  # (request, position)
assert len(rows) == sum(q_lens)

# Step 2: whose is each column, and at which position?
columns = [(request, position) for request, n in enumerate(kv_lens) for position in range(n)]

# Step 3: the same request, and not behind the query. For the decode, row 3:
request, position = rows[3]
sees = [c for c, (r, p) in enumerate(columns) if r == request and p <= position]
print("you said", decode_sees, "and it is", sees)
if decode_sees == list(range(4)):
    print("Those are positions. Request 1's keys begin in the column behind request 0's 8 keys.")
elif decode_sees == [11]:
    print("A decode sees its cached keys as well as its own.")
elif decode_sees == list(range(12)):
    print("Columns 0 to 7 belong to request 0, another user.")

# %% id="ragged-picture"
batch = np.array([[r == request and p <= position for r, p in columns] for request, position in rows])
fig, ax = plt.subplots(figsize=(9, 4.2))
draw_mask(ax, batch, "")
ax.set_xticks(range(len(columns)), [p for _, p in columns])
ax.set_yticks(range(len(rows)), [f"request {r}, query {p}" for r, p in rows])
for edge in np.cumsum(kv_lens)[:-1]:
    ax.axvline(edge - 0.5, color="black", linewidth=3)
for edge in np.cumsum(q_lens)[:-1]:
    ax.axhline(edge - 0.5, color="black", linewidth=3)
for request, (end, n) in enumerate(zip(np.cumsum(kv_lens), kv_lens)):
    ax.text(end - n / 2 - 0.5, -0.75, f"keys of request {request}", ha="center")
ax.set_xlabel("key at position, in its own request")
plt.show()

# %% [markdown] id="ragged-exercise"
# You may think that the whole batch is one big causal mask, as it is one stack of rows. But rows of one request must
# not see the keys of another: that would mix two users' texts.
#
# ### Exercise 2.2: one mask for a ragged batch
#
# 10 minutes, difficulty 2 of 5, six to eight lines: for example a loop over the requests that fills its part of a table
# of False. You may use your `chunk_attention_mask`.

# %% id="ragged-solution" exercise="2.2" solution="ragged_mask" minutes=10 difficulty=2
from collections.abc import Sequence

# include course_lib.masks:ragged_mask

# %% id="ragged-check-values" check="ragged_mask" group="values" points=3
check.ragged_mask(ragged_mask, group="values")

# %% [markdown] id="attend-text"
# ## 4. Attention with a mask
#
# A layer does attention several times side by side, each time with other, shorter vectors: these are its *heads*, and
# `head_dim` is the length of the vectors. Attention of one head, for one query, is four steps. Here it has three keys, of
# which the mask hides the last.

# %% id="attend-example"
q = np.array([1.0, 0.0, 2.0, 1.0])  # head_dim = 4
k = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [2.0, 0.0, 2.0, 1.0]])
v = np.array([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]])  # two numbers a value, to keep it short
sees = np.array([True, True, False])

# Step 1, score: how well does each key fit the query? Divided by sqrt(head_dim).
score = k @ q / np.sqrt(4)
print("scores ", score)

# Step 2, hide: minus infinity for every key that the query does not see.
score = np.where(sees, score, -np.inf)
print("hidden ", score)

# Step 3, weigh: e to the power of each score. First take away the largest, so that no weight is above 1.
weight = np.exp(score - score.max())
print("weights", weight.round(4), " a hidden key has weight 0")

# Step 4, mix: the mean of the values by these weights.
mean = weight @ v / weight.sum()
print("result ", mean.round(4), " the value [9, 9] has no part in it")
assert weight[2] == 0 and mean.max() < 1

# %% [markdown] id="bits-text"
# Right numbers are not enough here. We want a query to get the same bits whether its prompt is computed in one pass or
# in chunks. Below, ordinary float32 code computes 96 queries in one pass, and then some of them in smaller chunks, each
# with exactly the same keys and values before it.
#
# **Guess:** does the query at position 40 get the same bits alone, in a chunk of one? Write True or False.

# %% id="bits-guess"
same_bits = None

# %% id="bits-reveal"
plain = wrong("attend", "plain")  # the four steps in ordinary NumPy
rng = np.random.default_rng(1)
q, k, v = (rng.standard_normal((96, 64)).astype(np.float32) for _ in range(3))
mask = np.tril(np.ones((96, 96), dtype=bool))
whole = plain(q, k, v, mask)

print("positions   numbers that differ from one pass   largest difference")
differ = {}
for start, stop in [(40, 41), (0, 3), (40, 57), (32, 96)]:
    part = plain(q[start:stop], k[:stop], v[:stop], mask[start:stop, :stop])
    differ[start, stop] = int((part != whole[start:stop]).sum())
    print(f"{start:3} to {stop - 1:3}   {differ[start, stop]:5} of {part.size:5}{'':19} {np.abs(part - whole[start:stop]).max():.1e}")
print(f"\nyou said {same_bits}; for the query at position 40 it is {differ[40, 41] == 0} on this machine")

# %% [markdown] id="bits-after"
# A float32 sum is rounded after every addition, so its last bits depend on the order of the additions. That order is
# the library's business: it changes with the number of rows and of keys. Nothing here is wrong, and nothing is equal.
#
# The course supplies three operations in which *no sum is ever rounded*. Their results do not depend on any order, so
# they are the same for every cut, on every machine:
#
# | call | gives | shapes |
# | --- | --- | --- |
# | `exact.matmul(x, w)` | x @ w | [rows, inner] and [inner, columns] to [rows, columns] |
# | `exact.exp(x)` | e to the power of x, minus infinity included | any shape |
# | `exact.weighted_mean(weights, values)` | for each row of weights, the mean of the values | [rows, keys] and [keys, columns] to [rows, columns] |
#
# `weighted_mean` wants weights between 0 and 1: take the largest score of a row away before `exp`. Everything that works
# element by element (dividing, `np.where`, a maximum) is safe as it is.
#
# ### Exercise 2.3: attention of one head
#
# 12 minutes, difficulty 3 of 5, about four lines. Now for all queries of a chunk at once, built from the three
# operations.

# %% id="attend-solution" exercise="2.3" solution="attend" minutes=12 difficulty=3
from course_lib.invariant import exact

# include course_lib.attention.reference:attend

# %% [markdown] id="attend-check-text"
# The first check wants right numbers: close to the formula in float64. The second wants your own chunks to equal your own
# one pass in every bit.

# %% id="attend-check-logic" check="attend" group="logic" points=3
check.attend(attend, group="logic")

# %% id="attend-check-bits" check="attend" group="bits" points=2
check.attend(attend, group="bits")

# %% [markdown] id="break-text"
# ## 5. Break it
#
# Every wrong mask that the course keeps, run in the model of 3 layers. The first difference from one pass is the mistake's
# signature. Some are refused by the model before anything runs: those are the harmless ones.

# %% id="break-table"
model = model_with(3)
whole = one_pass(model, ids)
print(f"{len(ids)} tokens, {hit} cached, chunks {sizes}\n")
for answer in EXERCISES["chunk_attention_mask"].wrong_answers:
    try:
        cut = prefill(model, ids, sizes, hit=hit, mask=wrong("chunk_attention_mask", answer.name))
    except ValueError as error:
        print(f"{answer.name:16} refused: {error}")
        continue
    d = first_divergence(whole, cut)
    if d is None:
        print(f"{answer.name:16} equal to one pass in every bit")
        continue
    print(f"{answer.name:16} layer {d.layer} {d.tensor}, position {d.position:2}, relative size {d.relative:.3f}")

# %% [markdown] id="break-ask"
# Choose one that ran, and see how far it spreads. Change `name`, and before you run the cell say which positions will be
# marked in which layer.
#
# 1. Why is layer 0 always clean?
# 2. `cached_hidden` and `top_left` both spoil the first token behind the hit. Why does `one_too_many` do so as well?
# 3. Two of the masks leave the last token of every chunk right in layer 1, and not in layer 2. Which, and why?

# %% id="break-picture"
name = "one_too_many"

d = first_divergence(whole, prefill(model, ids, sizes, hit=hit, mask=wrong("chunk_attention_mask", name)))
fig, ax = plt.subplots(figsize=(10, 2.2))
for layer in range(d.where.shape[0]):
    for tensor in (0, 1):
        for token in range(len(ids)):
            bad = d.where[layer, tensor, token]
            look = {"facecolor": "#f2c07a", "hatch": "xxx"} if bad else {"facecolor": "white"}
            ax.add_patch(plt.Rectangle((token - 0.5, 2 * layer + tensor - 0.5), 1, 1, edgecolor="0.6", linewidth=0.5, **look))
ax.set(xlim=(-0.5, len(ids) - 0.5), ylim=(5.5, -0.5), xlabel="position", title=f"{name}: hatched where the cache differs from one pass")
ax.set_yticks(range(6), [f"layer {layer} {t}" for layer in range(3) for t in "KV"])
for edge, label in zip(np.cumsum([0, hit, *sizes[:-1]]), ["hit", "chunk 0", "chunk 1", "chunk 2"]):
    ax.axvline(edge - 0.5, color="black", linewidth=2)
    ax.text(edge - 0.3, -0.75, label)
ax.set_title(ax.get_title(), pad=20)
plt.show()

# %% [markdown] id="end"
# ## What you can do now
#
# - Write the mask of any chunk behind any cache, and of a batch of several requests.
# - Say why a wrong mask leaves layer 0 clean, and why a comparison needs two layers and the logits.
# - Tell a mistake of logic from rounding, and build attention whose bits do not depend on the cut.
#
# The mask says *which* keys a query sees. *Where* they stand is said by RoPE, and getting that wrong raises no error at
# all: notebook 03.
