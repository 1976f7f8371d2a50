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
# A long prompt is cut into chunks. Its tokens attend to the keys that earlier chunks left in the cache, and to the keys
# of the chunk itself. The *mask* says which query sees which key. In this notebook you write it for one chunk and for a
# batch of several requests, and then the attention that uses it. At the end a prompt computed in chunks leaves the same
# KV cache as one computed in one pass, in every bit.
#
# About an hour. NumPy is enough; the pictures use matplotlib. Positions count from 0.
#
# The words that the notebook builds on: a language model reads *tokens*, numbers that stand for pieces of text. It turns each
# token into a list of numbers, its *vector*, and sends the vector through its *layers*, one after another. In a layer three
# matrix products make a *query*, a *key* and a *value* from the vector; the matrices hold the model's *weights*, numbers that
# training has fixed. *Attention* compares a token's query with the keys of the tokens that it may see, and takes a mean of
# their values, in which a key that fits better counts more. The result changes the token's vector, and the changed vector
# goes into the next layer. Keys (K) and values (V) are kept in the *KV cache*, because later tokens need them again. The
# last layer gives the *logits*, a score for each possible next token. To compute a prompt's tokens is called *prefill*.

# %% id="setup"
from dataclasses import replace

import numpy as np

from autograder import check
from autograder.exercises import EXERCISES
from course_lib.arithmetic import exact
from course_lib.diagnosis.kv_diff import first_divergence
from course_lib.prefill import one_pass, prefill
from course_lib.weights import SEEDED, seeded_model

# %% [markdown] id="crash-text"
# ## 1. Why did the second chunk crash?
#
# A *request* is one user's prompt and its answer. A *step* is one run of the model. A *chunk* is a run of new tokens of
# one request that are computed in one step: they have queries. A token is *cached* if its key and value are in the
# cache before the chunk begins, whichever request computed them.
#
# Until November 2023, Meta's code for Llama could extend a KV cache by one token at a time only. Given a second chunk
# of several tokens it stopped with an error (meta-llama/llama, issue 899; repaired by pull request 900). Its mask was a
# square, with a column for each *new* token. Here is the same situation: 5 tokens are cached and 3 are new.
#
# A *score* is a number for one query and one key; it is high if they fit well. A hidden key gets the score minus
# infinity; section 4 shows that its weight is then 0. The scores here are random: only their shape matters.

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
# The scores have 8 columns and the mask has 3. A chunk of one token sees every key there is and needs no mask, so one
# token at a time had always worked.
#
# A crash is the lucky case: it shows the mistake. A mask of the right shape with wrong entries raises no error.
#
# Which mask belongs there? On the left is the mask of one pass over all 8 tokens: each query sees the key of its token
# and all keys before it. The frame marks the rows of our chunk. On the right is the table that the chunk needs.

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
# Nones. It is not graded; a recorded guess makes the answer easier to remember.

# %% id="guess"
keys_seen = [None, None, None]  # by the queries at positions 5, 6 and 7

# %% id="guess-reveal"
truth = triangle[5:].sum(axis=1).tolist()
thoughts = {
    (1, 2, 3): "You counted from the start of the chunk, as if nothing were cached.",
    (8, 8, 8): "You let each query see the whole chunk. A token must not see the tokens after it.",
    (5, 6, 7): "You left out each token's own key. A token sees itself.",
    (5, 5, 5): "You counted the cached keys alone. The chunk's keys up to the query count too.",
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
# A worked example in three steps, for 3 new tokens after 5 cached ones. The last step does one query only; your mask
# does all of them.

# %% id="mask-example"
# Step 1: where does each query stand? The chunk begins right after the cached tokens.
queries = [cached_len + row for row in range(chunk_len)]
print("queries stand at", queries)

# Step 2: where does each key stand? Keys 0 to 4 are cached, keys 5 to 7 are the chunk's.
keys = list(range(cached_len + chunk_len))
print("keys stand at   ", keys)

# Step 3: a query sees the keys up to its position, its own included. For the query in row 1:
print("row 1 sees      ", [key <= queries[1] for key in keys])
assert [key <= queries[1] for key in keys] == triangle[queries[1]].tolist()

# %% [markdown] id="mask-exercise"
# (torch's `scaled_dot_product_attention(is_causal=True)` draws its triangle from the top left, torch 2.13: right for
# one pass, wrong for a chunk after cached tokens.)
#
# You may think that a chunk's mask depends on the chunk alone. But its rows are rows 5, 6 and 7 of the big triangle,
# and not rows 0, 1 and 2: the cached tokens move the diagonal.
#
# ### Exercise 2.1: which keys does each query of a chunk see?
#
# 8 minutes, difficulty 1 of 5, about three lines. For any `chunk_len` and `cached_len`. In NumPy, `a[:, None]` makes a
# column of `a`, and comparing a column with a row gives a table of all pairs. Loops are fine too.

# %% [markdown] id="mask-hints"
# <details><summary>Hint 1: a direction</summary>
#
# The worked example has the two lists that you need: the positions of the queries and of the keys. The mask compares
# every query with every key.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# A query in row i stands at position `cached_len + i`, not at position i. The keys stand at 0 to `cached_len + chunk_len - 1`.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# With `queries` and `keys` as two `np.arange`s, `keys[None, :]` is a row and `queries[:, None]` is a column. Which of
# `<`, `<=`, `>=` says "does not stand after the query"?
#
# </details>

# %% id="mask-solution" exercise="2.1" solution="chunk_attention_mask" minutes=8 difficulty=1
# include course_lib.attention.mask:chunk_attention_mask

# %% [markdown] id="mask-check-text"
# The first check compares masks. The second runs a model of 3 layers with your masks: three prompts in uneven chunks,
# one of them after a *prefix hit*: tokens whose K and V an earlier request with the same beginning has left in the
# cache. K and V of all layers and the last logits must equal those of one pass, bit for bit.

# %% id="mask-check-values" check="chunk_attention_mask" group="values" points=3
check.chunk_attention_mask(chunk_attention_mask, group="values")

# %% id="mask-check-kv" check="chunk_attention_mask" group="kv" points=2
check.chunk_attention_mask(chunk_attention_mask, group="kv")

# %% [markdown] id="mask-after"
# You can now cut a prompt anywhere: two numbers give the mask of any chunk.

# %% [markdown] id="layers-text"
# ### Why three layers?
#
# The course has a collection of wrong masks that people really write. Here are five of them. We run each in a model and
# compare the KV cache with that of one pass: first in a model of 1 layer, then in one of 3.
#
# **Guess:** how many of the five does the comparison find in the model of 1 layer? Write a number.

# %% id="layers-five"
names = ["top_left", "all_true", "cached_hidden", "one_too_many", "offset_by_chunk"]
for name in names:
    print(f"{name:16} {EXERCISES['chunk_attention_mask'].wrong_answer(name).message.split('. ')[0]}")

# %% id="layers-guess"
found_with_one_layer = None

# %% id="layers-reveal"
def model_with(layers):
    """Weights from a seed, and arithmetic in which no sum is rounded: the same bits on every machine."""
    return seeded_model(config=replace(SEEDED["tiny"], num_layers=layers), arith="exact")


def wrong(exercise, name):
    """One of the course's collected wrong answers, as a function."""
    return EXERCISES[exercise].compile(EXERCISES[exercise].wrong_answer(name).source)


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
# In a model of one layer the KV comparison finds nothing. Layer 0's K is made from a token and its position, its V from the
# token alone, before any attention has happened. A wrong mask first changes what attention *returns*, and that goes into the K and V
# of the next layer. In the last layer it can change the logits alone, and not always: under `all_true` and
# `one_too_many` the logits of the 1-layer model are equal as well. These two let a query see keys *after* it. No token
# comes after the last one, so its row of the mask is right, and logits are made for the last token only. With more
# layers the wrong rows of earlier tokens reach it through the next layer's K and V.
#
# So compare K and V of all layers, in a model of at least two, and the logits too. If your guess was above 0: what did
# you think K and V of layer 0 are made from?
#
# *I thought ... (double-click to write here)*

# %% [markdown] id="ragged-text"
# ## 3. A batch of several requests
#
# One step of an engine runs chunks of several requests at once. Their lengths differ: the batch is *ragged*. A *decode*
# is a chunk of one token, the newest of the answer. The step before chose it, but its key and value are not in the
# cache yet; this step computes them, and its logits choose the next token. All new tokens of the batch are stacked into
# one list of rows, and all keys into one list of columns.
#
# Take three requests. Request 0 has a chunk of 3 tokens after 5 cached ones. Request 1 is a decode with 3 tokens in
# the cache, so its newest token stands at position 3. Request 2 begins: 2 new tokens, nothing cached. So `q_lens` = [3,
# 1, 2] new tokens, and `kv_lens` = [8, 4, 2] keys, cached and new.
#
# **Guess:** which columns does the decode's row see? Write a list of column numbers.

# %% id="ragged-guess"
decode_sees = None

# %% id="ragged-reveal"
q_lens, kv_lens = [3, 1, 2], [8, 4, 2]

# Step 1: to which request does each row belong, and what is its position? New tokens are the last of their request.
rows = [(0, 5), (0, 6), (0, 7), (1, 3), (2, 0), (2, 1)]  # (request, position)
assert len(rows) == sum(q_lens)

# Step 2: the same for each column.
columns = [(request, position) for request, n in enumerate(kv_lens) for position in range(n)]

# Step 3: the same request, at most the query's position. For the decode, row 3:
request, position = rows[3]
sees = [c for c, (r, p) in enumerate(columns) if r == request and p <= position]
print("you said", decode_sees, "and it is", sees)
if decode_sees == list(range(4)):
    print("Those are positions, or row 3 of one big triangle. Request 1's keys begin after request 0's 8 keys.")
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
# You may think that the batch, one stack of rows, has one big causal mask. But rows of one request must not see the
# keys of another: that would mix two users' texts.
#
# ### Exercise 2.2: one mask for a ragged batch
#
# 10 minutes, difficulty 2 of 5, six to eight lines: for example a loop over the requests that fills its part of a table
# of False. You may use your `chunk_attention_mask`.

# %% [markdown] id="ragged-faded-text"
# Before you write it, here is the table for the example with three blanks. Replace each `None` and run the cell; it
# tells you what fits. It is not graded.

# %% id="ragged-faded"
first_row = [0, None, 4]  # of each request: its first row in the batch
first_column = [0, None, 12]  # of each request: its first column
already_cached = [5, 3, None]  # of each request: keys that were there before this step

for name, given, right in (
    ("first_row", first_row, [0, 3, 4]),
    ("first_column", first_column, [0, 8, 12]),
    ("already_cached", already_cached, [5, 3, 0]),
):
    print(f"{name:15} {'fits' if given == right else 'not yet: add up what the requests before it bring' if None not in given else 'has a blank'}")

# %% [markdown] id="ragged-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Start from a table of False with a row for each new token and a column for each key. Each request fills one rectangle
# of it.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# The rectangle of request i begins at row `sum(q_lens[:i])` and at column `sum(kv_lens[:i])`. The number of its cached
# tokens is `kv_lens[i] - q_lens[i]`.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `mask[row : row + q, column : column + kv] = chunk_attention_mask(q, kv - q)`, and then `row += q` and `column += kv`.
#
# </details>

# %% id="ragged-solution" exercise="2.2" solution="ragged_mask" minutes=10 difficulty=2
from collections.abc import Sequence

# include course_lib.attention.mask:ragged_mask

# %% id="ragged-check-values" check="ragged_mask" group="values" points=3
check.ragged_mask(ragged_mask, group="values")

# %% [markdown] id="ragged-after"
# A step can now hold chunks and decodes of any requests, of any length, and no user sees another's text.

# %% [markdown] id="attend-text"
# ## 4. Attention with a mask
#
# A layer does attention several times in parallel, each time with other, shorter vectors: these are its *heads*, and
# `head_dim` is the length of the vectors. Attention of one head, for one query, has four steps. Here there are three
# keys, and the mask hides the last.

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

# Step 3, weigh: e to the power of each score. First subtract the largest, so that no weight is above 1.
weight = np.exp(score - score.max())
print("weights", weight.round(4), " a hidden key has weight 0")

# Step 4, mix: the mean of the values by these weights.
mean = weight @ v / weight.sum()
print("result ", mean.round(4), " the value [9, 9] has no part in it")
assert weight[2] == 0 and mean.max() < 1

# %% [markdown] id="bits-text"
# Step 3, together with the division by the sum of the weights in step 4, is called *softmax*: it makes scores into weights
# that add up to 1.
#
# Right numbers are not enough here. We want a query to get the same bits whether its prompt is computed in one pass or
# in chunks. Below, ordinary float32 code computes 96 queries in one pass, and then some of them in smaller chunks, with
# exactly the same keys and values.
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
# A float32 sum is rounded after every addition, so its last bits depend on the order of the additions. The library
# chooses that order, and may choose another for other numbers of rows and keys. No result here is wrong, yet not all
# bits are equal.
#
# The course supplies three operations in which *no sum is ever rounded*, so no order changes their results, on any machine:
#
# | call | gives | shapes |
# | --- | --- | --- |
# | `exact.matmul(x, w)` | x @ w | [rows, inner] and [inner, columns] to [rows, columns] |
# | `exact.exp(x)` | e to the power of x, minus infinity included | any shape |
# | `exact.weighted_mean(weights, values)` | for each row of weights, the mean of the values | [rows, keys] and [keys, columns] to [rows, columns] |
#
# Before it sums, `matmul` rounds each column of `w` once to a *grid*: multiples of a small number that depends on the
# column's largest. So give it columns that are the same in every cut, such as one key each in `k.T`. For a mean over
# keys use `weighted_mean`, whose grid is fixed. It wants weights between 0 and 1: subtract the largest score of a row
# before `exp`. Operations on single elements (dividing, `np.where`) are safe. So is a maximum, if the keys that a query
# must not see are hidden first: their number depends on the cut.
#
# ### Exercise 2.3: attention of one head
#
# 12 minutes, difficulty 3 of 5, about four lines. For all queries of a chunk at once, built from the three operations.

# %% [markdown] id="parsons-text"
# First put the lines in order. Six of these eight belong to the attention of one head, two do not. Write their letters in
# the right order, for instance `order = "ABCDEF"`, and run the cell.
#
# - A: `weights = exact.exp(scores - scores.max(axis=1, keepdims=True))`
# - B: `scores = exact.matmul(q, k.T)`
# - C: `scores = np.where(mask, scores, -np.inf)`
# - D: `return exact.weighted_mean(weights, v)`
# - E: `scores = scores / np.sqrt(q.shape[1])`
# - F: `def attend(q, k, v, mask):`
# - G: `scores = np.where(mask, scores, 0)`
# - H: `weights = weights / k.shape[0]`

# %% id="parsons"
order = ""

if order in ("FBECAD", "FBCEAD"):
    print("That runs, and it is right.")
elif not order:
    print("Write the letters.")
elif "G" in order:
    print("A hidden key with score 0 still gets a weight: e to the power of 0 is 1. Hide it with minus infinity.")
elif "H" in order:
    print("weighted_mean divides by the sum of the weights. How many keys there are is not that sum.")
elif sorted(order) != list("ABCDEF"):
    print("Six lines, each once.")
else:
    print("Those six lines, in another order: what does a line need that a later line makes?")

# %% [markdown] id="attend-hints"
# <details><summary>Hint 1: a direction</summary>
#
# The four steps of the example, each for a whole table instead of one row: score, hide, weigh, mix.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# Hide before you weigh, and subtract the largest score of each row before `exact.exp`:
# `scores.max(axis=1, keepdims=True)`.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `exact.matmul(q, k.T)`, divided by the square root of the head_dim; `np.where(mask, ..., -np.inf)`; `exact.exp(...)`; then
# `exact.weighted_mean(weights, v)`, which divides by the sum of the weights itself.
#
# </details>

# %% id="attend-solution" exercise="2.3" solution="attend" minutes=12 difficulty=3
from course_lib.arithmetic import exact

# include course_lib.attention.reference:attend

# %% [markdown] id="attend-check-text"
# The first check wants right numbers: close to the formula in float64. The second compares your function's chunks with
# its one pass, in every bit.

# %% id="attend-check-logic" check="attend" group="logic" points=3
check.attend(attend, group="logic")

# %% id="attend-check-bits" check="attend" group="bits" points=2
check.attend(attend, group="bits")

# %% [markdown] id="attend-after"
# The bits of this attention depend neither on the cut, nor on other requests in the batch, nor on the machine.

# %% [markdown] id="break-text"
# ## 5. Break it
#
# Every wrong mask of the collection, run in the model of 3 layers. The first difference from one pass is the mistake's
# signature. The model refuses some before anything runs: those do no harm.

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
# Choose one that ran, and see how far its error spreads. Change `name`, and before you run the cell say which positions
# will be marked in which layer.
#
# 1. Why is layer 0 always clean?
# 2. `cached_hidden` and `top_left` both spoil the first token after the hit. Why does `one_too_many` do so as well?
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

# %% [markdown] id="explore-text"
# ## 6. Look for yourself
#
# Change the length of the chunk and of the cache, and choose a mask. Blue cells (1) are seen. Orange ones (+) are seen
# and must not be, pink ones (o) are not seen and must be. Which wrong mask is right when nothing is cached? Which have
# the same number of wrong entries however much is cached?

# %% id="explore"
from course_lib.widgets.mask import explore_mask

explore_mask()

# %% [markdown] id="questions-text"
# ## 7. Questions
#
# Choose an answer before you read on. Each wrong answer says which mistake leads to it. The score is not reported.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("02_mask")

# %% [markdown] id="end"
# ## What you can do now
#
# - Write the mask of any chunk after any number of cached tokens, and of a batch of several requests.
# - Say why a wrong mask leaves K and V of layer 0 right, and why a comparison needs two layers and the logits.
# - Tell a wrong mask from rounding, and write attention whose bits do not depend on the cut.
#
# The mask says *which* keys a query sees. RoPE says *where* they stand, and a mistake there raises no error: notebook
# 03.
