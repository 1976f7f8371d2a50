# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 04 Bits
#
# So far the course used operations in which no sum is rounded. In real engines sums are rounded, and a prompt in chunks
# mostly leaves other last bits than one pass. In this notebook you measure the differences, and then write a matrix
# product and an attention whose bits do not depend on the cut.
#
# About 75 minutes, and two hours if torch or English is new to you. This notebook needs torch (the CPU build is enough) beside NumPy; the pictures use matplotlib.
# Positions count from 0.
#
# The words that the notebook builds on: a language model reads *tokens*. In each of its *layers* every token gets a *query*,
# a *key* and a *value*, each by a matrix product; *attention* gives a token the mean of the values that it may see, weighted
# by how well their keys fit its query. Keys (K) and values (V) stay in the *KV cache*. To compute a prompt's tokens is called
# *prefill*; it can be done in one pass or in *chunks*, runs of new tokens. A *kernel* is the piece of a library that carries
# out one operation. A *dtype* is a number format, such as float32.

# %% id="setup"
import itertools
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch

from autograder import check
from autograder.answers import InProcess
from autograder.drivers.fickle import fickle_products, on_fickle_tensors, on_tensors
from autograder.exercises import EXERCISES

torch.set_num_threads(1)  # the products here are small: more threads only wait for each other

# %% [markdown] id="dtype-text"
# ## 1. Does another number format make chunked and uncut equal?
#
# float32, float64, bfloat16 (a 16-bit format for models, with the range of float32 and few digits): which of them gives the
# same bits when a prompt is chunked?
#
# Floating-point numbers form a grid. From 1 to 2 the grid's step is 2^-23 in float32, 2^-52 in float64 and 2^-7 in
# bfloat16. Every addition is rounded to the grid. Below, three numbers are added in two orders, in each dtype: 1, h and h,
# where h is half a step. 1 + h lies in the middle between two numbers of the grid and is rounded to 1, so (1 + h) + h gives 1.
# But 1 + (h + h) gives the next number. The black strokes in the picture are the numbers that the dtype has.

# %% id="dtype-orders"
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}

fig, axes = plt.subplots(1, 3, figsize=(12, 2.2), layout="constrained")
for ax, (name, dtype) in zip(axes, DTYPES.items()):
    one = torch.tensor(1.0, dtype=dtype)
    step = torch.finfo(dtype).eps  # from 1 to the next number
    half = torch.tensor(step / 2, dtype=dtype)
    left_first, right_first = (one + half) + half, one + (half + half)
    places = [(float(x) - 1) / step for x in (left_first, right_first)]
    ax.plot(range(4), [0] * 4, "|", color="black", markersize=18)
    ax.plot(places[0], 0, "o", color="#0072b2", markersize=9)
    ax.plot(places[1], 0, "s", color="#d55e00", markersize=9)
    ax.text(places[0], 0.5, "(1 + h) + h", ha="center", color="#0072b2")
    ax.text(places[1], 0.5, "1 + (h + h)", ha="center", color="#d55e00")
    ax.set(title=f"{name}, h = {float(half):.1e}", ylim=(-0.6, 1), xlim=(-0.7, 3.3), xticks=range(4), yticks=[], xlabel="steps above 1")
    assert places == [0, 1]
plt.show()

# %% [markdown] id="dtype-why"
# In every dtype the last bit depends on the order of additions. With a chunk of another length a kernel may add in
# another order. The question is whether it does.
#
# **Guess before you go on.** One layer's work on 200 tokens: a matrix product `x @ w`, and attention by torch's kernel
# (SDPA, scaled dot product attention). It is computed in one pass, and then in chunks of 1, 7, 64 or 100 tokens, with
# the same inputs. Write True where you expect all 200 rows to have the same bits as in one pass.

# %% id="guess"
same_bits = {
    "float32": {1: None, 7: None, 64: None, 100: None},
    "float64": {1: None, 7: None, 64: None, 100: None},
    "bfloat16": {1: None, 7: None, 64: None, 100: None},
}

# %% id="guess-reveal"
TOKENS, WIDTH, SIZES = 200, 64, (1, 7, 64, 100)


def ordinary_kernels(dtype):
    """Name -> function (start, stop) that computes the rows of one chunk."""
    rng = np.random.default_rng(0)
    x, q, k, v = (torch.from_numpy(rng.standard_normal((TOKENS, WIDTH))).to(dtype) for _ in range(4))
    w = torch.from_numpy(rng.standard_normal((WIDTH, WIDTH))).to(dtype)

    def product(a, b):
        return x[a:b] @ w

    def attention(a, b):
        mask = torch.ones(b - a, b, dtype=torch.bool).tril(a)  # row i sees keys 0 to a + i
        one_head = (q[None, None, a:b], k[None, None, :b], v[None, None, :b])
        return torch.nn.functional.scaled_dot_product_attention(*one_head, attn_mask=mask)[0, 0]

    def numpy_product(a, b):
        return torch.from_numpy(x.numpy()[a:b] @ w.numpy())

    kernels = {"torch x @ w": product, "torch SDPA": attention}
    return kernels if dtype == torch.bfloat16 else kernels | {"NumPy x @ w": numpy_product}  # NumPy has no bfloat16


def differing_rows(kernel, size):
    """How many of the rows differ from one pass, and by how much at most."""
    whole = kernel(0, TOKENS)
    cut = torch.cat([kernel(a, min(a + size, TOKENS)) for a in range(0, TOKENS, size)])
    return int((cut != whole).any(1).sum()), float((cut.double() - whole.double()).abs().max())


print(f"rows of {TOKENS} that differ from one pass, measured here: torch {torch.__version__}, NumPy {np.__version__},"
      f" {torch.get_num_threads()} threads\n")
print(f"{'':25}" + "".join(f"chunk {size:3}   " for size in SIZES) + "largest difference")
truth, largest = {}, {}
for name, dtype in DTYPES.items():
    table = {kernel: [differing_rows(f, size) for size in SIZES] for kernel, f in ordinary_kernels(dtype).items()}
    for kernel, row in table.items():
        print(f"{name:9} {kernel:15}" + "".join(f"{rows:9}   " for rows, _ in row) + f"{max(far for _, far in row):.1e}")
    torch_rows = [row for kernel, row in table.items() if kernel.startswith("torch")]
    truth[name] = {size: all(row[i][0] == 0 for row in torch_rows) for i, size in enumerate(SIZES)}
    largest[name] = max(far for row in table.values() for _, far in row)
print()
for name in DTYPES:
    print(f"{name:9} you said {list(same_bits[name].values())}; here it is {list(truth[name].values())}")
for name, thought in (
    ("float64", "You expected more of float64. The steps of its grid are smaller, but a sum is still rounded to it."),
    ("float32", "You expected more of float32: look at the column of that chunk size."),
    ("bfloat16", "You expected more of bfloat16. Its steps are so wide that two sums mostly land on the same place. Mostly."),
):
    if any(said and not truth[name][size] for size, said in same_bits[name].items()):
        print(thought)
    if any(said is False and truth[name][size] for size, said in same_bits[name].items()):
        print(f"You expected less of {name}: where a kernel adds in the same order, or the dtype is coarse, bits can be equal.")
assert largest["float64"] < 1e-12

# %% [markdown] id="guess-why"
# *I was off because ... (double-click to write here)*

# %% [markdown] id="luck-text"
# These numbers hold for your machine: another processor, library or number of threads gives another table. Where you
# see 0, the kernel happens to add in the same order, or rounding hides another order. On the machine where this text
# was written (x86-64, torch 2.13.0, NumPy 2.4, November 2026), no dtype had 0 in all columns. bfloat16 came closest:
# equal at 64 and 100, different at 1 and 7, and there by more than the others, since its steps are large.
#
# You may think that a kernel which gives equal bits on your machine is safe. But no library promises it. PyTorch's
# documentation says that a slice of a result need not have the bits of a computation on the slice (note "Numerical
# accuracy"; in the docs since 1.11). NVIDIA promises the same bits for the same cuBLAS call on GPUs of one architecture
# with equally many processors and the same toolkit version, as long as a single stream is active (cuBLAS 12.1, section
# 2.1.4). A call with another number of rows is another call.
#
# So the course has a matrix product that changes its order on purpose. The *fickle* product adds in an order that
# depends on the shape of the product and on the row's place in it. Two things still hold: the same call gives the same
# bits, and a row does not depend on the contents of the other rows. It replaces torch's matrix products, however they
# are written (`x @ w`, `einsum`, or multiplied with broadcasting and added up); torch's other sums, and NumPy, stay as
# they are. It gives the same bits on every machine, so this table is the same everywhere:

# %% id="fickle-table"
print(f"rows of {TOKENS} that differ from one pass, with the fickle product\n")
for name, dtype in DTYPES.items():
    kernels = ordinary_kernels(dtype)
    with fickle_products():
        rows = [differing_rows(kernels["torch x @ w"], size)[0] for size in SIZES]
    print(f"{name:9}" + "".join(f"{n:9}" for n in rows))
    assert min(rows) > 100

# %% [markdown] id="luck-after"
# None of the three dtypes gives equal bits by itself. The order of the sums must be fixed; wider numbers do not help.

# %% [markdown] id="report-text"
# ## 2. Compare bits
#
# First a measure. "Equal or not" says little, and a difference such as 1e-6 says nothing without the distance between
# neighbouring numbers. So we count steps: one *ulp* (unit in the last place) is the step from a number to the next of
# its dtype.
#
# The bits of a positive float, read as a whole number, count these steps. Negative numbers have the sign bit set, and
# the other bits count away from zero. A worked example:

# %% id="report-example"
x = torch.tensor([1.0, 1.0000001, 0.0, -0.0, -1.0])

# Step 1: the same 32 bits, read as a whole number with a sign.
bits = x.view(torch.int32).long()  # int64, so that differences fit
for number, whole_number in zip(x.tolist(), bits.tolist()):
    print(f"{number:12.8g} {whole_number & 0xFFFFFFFF:032b} {whole_number:12}")

# Step 2: reverse the negative ones. Read as int32, a negative float is -2^31 + size, where size is its other 31 bits.
# We want -size, and that is -2^31 - bits. For -0 the size is 0, so it becomes 0.
place = torch.where(bits < 0, -(2**31) - bits, bits)

# Step 3: differences of places are ulps.
print("places", place.tolist())
print("from 1.0 to 1.0000001:", int(place[1] - place[0]), "ulp; from -0 to +0:", int(place[2] - place[3]))
assert int(place[1] - place[0]) == 1 and place[2] == place[3] and place[4] == -place[0]

# %% [markdown] id="atol-text"
# You may think that a tolerance is as good. But a tolerance that accepts rounding accepts mistakes too. Here is a real
# mistake: the mask hides the first of 300 keys from 50 queries. The arithmetic rounds no sum, so any difference is the
# mistake; the results are stored in bfloat16. **Guess:** does torch's test, `torch.testing.assert_close` with its
# default tolerance for bfloat16, find it?

# %% id="atol-guess"
notices = None

# %% id="atol-reveal"
from course_lib.attention.reference import attend


def wrong(exercise, name):
    """One of the course's collected wrong answers, as a function."""
    return EXERCISES[exercise].compile(EXERCISES[exercise].wrong_answer(name).source)


rng = np.random.default_rng(0)
q, k, v = ((about + spread * rng.standard_normal((300, 64))).astype(np.float32) for about, spread in ((0, 0.3), (0, 1), (1, 0.3)))
mask = np.tri(50, 300, 250, dtype=bool)  # 50 queries after 250 cached keys
mask_without_key_0 = mask.copy()
mask_without_key_0[:, 0] = False
good, bad = (torch.from_numpy(attend(q[250:], k, v, m)).bfloat16() for m in (mask, mask_without_key_0))

try:
    torch.testing.assert_close(bad, good)
    noticed = False
except AssertionError:
    noticed = True
print(f"you said {notices}; it is {noticed}. torch.equal says {torch.equal(bad, good)}")
if notices:
    print("Each query misses one of 250 keys or more. Its mean moves by less than the tolerance, which is 1.6% here.")
assert not noticed and not torch.equal(bad, good)

# %% [markdown] id="report-exercise"
# torch tensors work much like NumPy arrays. What you need here and below:
#
# | torch | NumPy |
# | --- | --- |
# | `x.view(torch.int32)` | `x.view(np.int32)`: the same bits |
# | `x.long()`, `x.float()`, `x.to(dtype)` | `x.astype(...)` |
# | `x.isnan()`, `x.nonzero()` | `np.isnan(x)`, `np.argwhere(x)` |
# | `x.masked_fill(m, y)` | `np.where(m, y, x)` |
# | `x.amax(1, keepdim=True)`, `a.maximum(b)` | `x.max(1, keepdims=True)`, `np.maximum(a, b)` |
# | `x.new_zeros(n, m)` | `np.zeros((n, m), x.dtype)` |
# | `int(x)`, `x.tolist()` | the same, as Python numbers |
#
# ### Exercise 4.1: compare two tensors bit by bit
#
# 12 minutes, difficulty 2 of 5, about ten lines. Both zeros count as equal, and so do two NaNs (NaN, "not a number", is what
# 0 / 0 gives; it is not equal to itself, `x.isnan()` finds it). bfloat16 has 16 bits: `x.view(torch.int16)` gives its
# whole numbers, and the sign bit alone is -(2**15).

# %% [markdown] id="report-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Make two tables of True and False first: where do the two differ, and where is exactly one of them NaN? All results
# are counted from these two and from the places of step 2.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# `a != b` says True where both are NaN, so take those out: `& ~(a.isnan() & b.isnan())`. And make the bits int64 before you
# subtract: from the lowest float32 to the highest there are more steps than int32 can count.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `distances = (place(a) - place(b)).abs()[differs & ~one_nan]`, where `place` is steps 1 and 2 of the example for either
# dtype (`x.element_size()` is 4 or 2 bytes); its maximum is 0 if it is empty. `differs.nonzero()` lists the places that differ.
#
# </details>

# %% id="report-solution" exercise="4.1" solution="bit_report" minutes=12 difficulty=2
# include course_lib.lessons.nb04_bits:bit_report

# %% id="report-check" check="bit_report" group="values" points=3
check.bit_report(bit_report, group="values")

# %% [markdown] id="report-after"
# You can now say of any two results whether they are equal, how far apart they are, and where they first differ.

# %% id="report-visible"
differ, ulps, first, nans = bit_report(good, bad)
print(f"the hidden key: {differ:,} of {good.numel():,} numbers differ, by up to {ulps} ulps of bfloat16, first at index {first}")
f = ordinary_kernels(torch.float32)["torch SDPA"]
differ, ulps, first, nans = bit_report(torch.cat([f(i, i + 1) for i in range(TOKENS)]), f(0, TOKENS))
print(f"SDPA, one token at a time: {differ:,} numbers differ, by up to {ulps:,} ulps (measured here)")

# %% [markdown] id="ulps-note"
# Many ulps need not mean much: near 0 the steps are tiny, so a sum that nearly cancels is many ulps off and still right to
# seven digits of its largest term. Only a count of zero needs no interpretation.

# %% [markdown] id="tile-text"
# ## 3. A product whose rows do not depend on the cut
#
# A kernel chooses its inner loops by the shape of the product. So give it one shape only: put rows into *tiles* of
# exactly T rows (here T = 16), filled up with zeros, and compute each tile as one product
# `[T, inner] @ [inner, columns]`.
#
# The place of a row within its tile, here called its *slot* (not a slot of the KV cache), may matter too. So the token
# at position p is in slot p mod T of tile p // T, whichever chunk it is in. Below: the tokens at positions 21 to 34,
# once in one pass of 40 tokens and once as a chunk.

# %% id="tile-picture"
T = 16
fig, axes = plt.subplots(2, 1, figsize=(12, 3.2), sharex=True, layout="constrained")
for ax, (start, stop), title in zip(axes, ((0, 40), (21, 35)), ("one pass of 40 tokens", "a chunk: positions 21 to 34")):
    for p in range(start // T * T, -(-stop // T) * T):
        token = start <= p < stop
        look = {"facecolor": "#bcd9ee", "hatch": "///"} if token and 21 <= p < 35 else {"facecolor": "#e8f1f8" if token else "white"}
        ax.add_patch(plt.Rectangle((p, 0), 1, 1, edgecolor="0.5", **look))
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        ax.text(p + 0.5, 0.5, str(p) if token else "0", ha="center", va="center", fontsize=8, bbox=box if token else None)
    for tile in range(start // T, -(-stop // T)):
        ax.add_patch(plt.Rectangle((tile * T, 0), T, 1, fill=False, edgecolor="black", linewidth=2.5))
    ax.set(title=title, xlim=(-0.5, 48.5), ylim=(-0.1, 1.1), yticks=[])
axes[1].set_xticks([0, 16, 32, 48], ["tile 0", "tile 1", "tile 2", ""])
plt.show()

# %% [markdown] id="tile-guess-text"
# **Guess:** another chunk begins at position 45 and has 7 tokens. How many tiles are multiplied, in which slot is the
# first token, and how many rows of zeros are added in all?

# %% id="tile-guess"
tiles_slot_zeros = [None, None, None]

# %% id="tile-reveal"
start, rows = 45, 7

# Step 1: how many slots of the first tile lie before the chunk?
before = start % T

# Step 2: how many tiles cover those slots and the rows? Round up.
tiles = -(-(before + rows) // T)

# Step 3: the remaining rows are zeros.
zeros = tiles * T - rows

print("you said", tiles_slot_zeros, "and it is", [tiles, before, zeros])
if tiles_slot_zeros[0] == 1:
    print("7 rows would fit into one tile, from slot 0 on. But then position 45 changes its slot with the cut.")
elif tiles_slot_zeros[1] == 0:
    print("Slot 0 belongs to position 32. The position counts, not the place in the chunk.")
elif tiles_slot_zeros[2] == 9:
    print("That is one tile filled up. There are two, and 13 empty slots before the first token.")
assert [tiles, before, zeros] == [2, 13, 25]

# %% [markdown] id="tile-exercise"
# You may think that one product of `tiles * T` rows is as good and faster. But its shape depends on the number of
# tiles, and that depends on the cut. So compute one product for each tile.
#
# ### Exercise 4.2: a matrix product in tiles
#
# 12 minutes, difficulty 3 of 5, about eight lines. `x.new_zeros(n, m)` makes zeros of x's dtype (`torch.zeros` makes
# float32, and torch refuses to multiply that by bfloat16).

# %% [markdown] id="tile-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Do the three steps of the example, put the rows into a tensor of zeros that is a whole number of tiles long, multiply
# tile after tile, and return the chunk's rows.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# The chunk's first row goes to row `start % tile` of the zeros, and not to row 0. The result is read from the same
# place.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `padded[before : before + len(x)] = x`; then `for first in range(0, tiles * tile, tile):` multiply
# `padded[first : first + tile] @ w` into the same rows of an output; return its rows `before : before + len(x)`.
#
# </details>

# %% id="tile-solution" exercise="4.2" solution="tiled_linear" minutes=12 difficulty=3
# include course_lib.lessons.nb04_bits:tiled_linear

# %% [markdown] id="tile-check-text"
# The first check wants right numbers: close to float64. The second compares your function's chunks (1, 7, 64, 100 and
# ragged) with its one pass, in float32 and bfloat16. It uses the fickle product, which shows mistakes that your
# machine's kernels may hide.

# %% id="tile-check-logic" check="tiled_linear" group="logic" points=2
check.tiled_linear(tiled_linear, group="logic")

# %% id="tile-check-bits" check="tiled_linear" group="bits" points=3
check.tiled_linear(tiled_linear, group="bits")

# %% id="tile-visible"
def same_as_one_pass(kernel, cuts):
    """kernel(start, stop) in one pass, and for each of the cuts whether all bits are the same."""
    whole = kernel(0, TOKENS)
    return [bit_report(torch.cat([kernel(a, b) for a, b in itertools.pairwise(cut)]), whole)[0] == 0 for cut in cuts]


def linear(x, w, a, b):
    return tiled_linear(x[a:b], w, a)


ragged = [0, 3, 50, 51, 115, 190, TOKENS]
CUTS = [[*range(0, TOKENS, size), TOKENS] for size in SIZES] + [ragged]
rng = np.random.default_rng(0)
print("your tiled_linear on this machine's kernels, chunks of 1, 7, 64, 100 and ragged: equal to one pass?")
for name in ("float32", "bfloat16"):
    x, w = (torch.from_numpy(rng.standard_normal(shape)).to(DTYPES[name]) for shape in ((TOKENS, WIDTH), (WIDTH, 48)))
    print(f"{name:9}", same_as_one_pass(partial(linear, x, w), CUTS))

# %% [markdown] id="tile-after"
# Now equal input rows give equal output rows, bit for bit, however the prompt is cut.
#
# What does it cost? Rows of zeros are multiplied too: a single token costs a whole tile. A tile of one row would be
# right as well, but then the weights would be read again for each token. The course's engine uses T = 32; tokens of
# several requests share a tile, each in its slot.

# %% [markdown] id="online-text"
# ## 4. Attention in blocks of keys
#
# Attention has two products, of queries and keys and of weights and values. Their shapes depend on the number of queries and
# on the number of keys, and the keys grow with every chunk. The formula also needs all scores of a row at once, for N
# tokens a table of N x N.
#
# *Softmax* turns scores into weights (notebook 02). The *online softmax* needs neither one large product nor the table.
# It goes over *blocks* of keys (here: 64 keys in a row, not a block of an engine's cache) and keeps three things for
# each query: the *largest* score so far, the *total* of the weights so far, and the *mixed* values so far, both
# relative to that largest score. A worked example: one query, four keys in two blocks, values of one number.

# %% id="online-example"
scores, values = np.array([1.0, 3.0, 2.0, 5.0]), np.array([10.0, 20.0, 30.0, 40.0])

# Step 1: the first block. Weights are e to the power of score minus the largest score.
largest = scores[:2].max()
weights = np.exp(scores[:2] - largest)
total, mixed = weights.sum(), weights @ values[:2]
print(f"after block 0: largest {largest}, total {total:.4f}, mixed {mixed:.4f}")

# Step 2: the second block has a larger score. The sums so far are relative to 3, and must become relative to 5.
higher = max(largest, scores[2:].max())
shrink = np.exp(largest - higher)
print(f"higher {higher}, so the earlier sums shrink by {shrink:.4f}")

# Step 3: shrink both sums, then add the second block's.
weights = np.exp(scores[2:] - higher)
total, mixed = total * shrink + weights.sum(), mixed * shrink + weights @ values[2:]
largest = higher  # in a loop, this is what the next block begins with

# Step 4: divide once, at the end.
print(f"result {mixed / total:.6f}")
all_at_once = np.exp(scores - scores.max())
assert np.isclose(mixed / total, all_at_once @ values / all_at_once.sum())

# %% [markdown] id="online-faded-text"
# Now with three blanks, for a third block whose scores are all *smaller* than the largest. Replace each `None` and run
# the cell. It is not graded.

# %% id="online-faded"
block_scores, block_values = np.array([4.0, 0.0]), np.array([50.0, 60.0])

new_higher = None  # the largest score so far, this block included
new_shrink = None  # by what do the earlier sums shrink?
new_total = None  # total of all six weights, relative to new_higher

if None in (new_higher, new_shrink, new_total):
    print("a blank is left")
else:
    six = np.append(scores, block_scores)
    for name, given, wanted in (
        ("new_higher", new_higher, six.max()),
        ("new_shrink", new_shrink, 1.0),
        ("new_total", new_total, np.exp(six - six.max()).sum()),
    ):
        print(f"{name:11} {'fits' if np.isclose(given, wanted) else 'not yet'}")

# %% [markdown] id="blocks-text"
# Now the bits. For each query the same products must be computed in the same order however the prompt is cut, so every
# shape may depend on its position alone. Three rules do that:
#
# 1. Blocks of keys are counted from position 0, not from where the chunk or its new tokens begin.
# 2. The last block is filled up with zeros to its full length. The causal mask hides them.
# 3. Queries go in full tiles, aligned to their positions, as in section 3. Here a tile has as many rows as a block has keys.
#
# Then a tile of queries reads block 0 up to the block on the diagonal. Only that one needs a mask, and it is always the
# same triangle: row r sees the keys 0 to r of the block. (A mask as in notebook 02 grows with the prompt: for the last
# 1,024 of 32,768 tokens it has 1,024 x 32,768 entries, 32 MB of them.)
#
# **Guess:** the queries at positions 130 to 133 are computed as a chunk, with blocks of 64. How many blocks of keys do
# they read, and how many zeros are added after the last key?

# %% id="blocks-guess"
blocks_zeros = [None, None]

# %% id="blocks-reveal"
start, stop, block = 130, 134, 64
last = -(-stop // block) * block  # the end of the last block
print("you said", blocks_zeros, "and it is", [last // block, last - stop])
if blocks_zeros[1] == 60 and blocks_zeros[0] == 3:
    print("You counted the block's end from the chunk's 4 tokens; 128, 129 are keys of the last block as well.")
elif blocks_zeros[0] == 2:
    print("Positions 128 and up are in the third block.")
elif blocks_zeros[0] == 4:
    print("You let a block begin at the chunk: 64 + 64 + 2, and a new one. Then key 130 changes its block with the cut.")
elif blocks_zeros[0] == 1:
    print("The earlier keys are read as well.")
assert [last // block, last - stop] == [3, 58]

# %% [markdown] id="blocks-exercise"
# ### Exercise 4.3: attention that never builds the N x N table
#
# 25 minutes, difficulty 4 of 5, about 20 lines. One head, causal. A score is a query times a key, summed, divided by the square
# root of head_dim, as in notebook 02. Compute in float32 (`q.float()`) whatever the dtype, and round once at the end
# (`.to(q.dtype)`): in bfloat16 a sum of many weights loses the small ones.

# %% [markdown] id="blocks-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Two loops: over tiles of queries, from the one with `start` to the one with the last query; inside it over blocks of
# keys, from 0 to the block on the tile's diagonal. The body of the inner loop is steps 2 and 3 of the example, for all
# rows of a tile.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# `largest`, `total` and `mixed` are columns with a row for each query, `[block, 1]` and `[block, head_dim]`; begin with
# minus infinity, 0 and 0; then the first block is no special case, since e to the power of minus infinity is 0. Both
# `total` and `mixed` shrink. Divide after the inner loop.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `first, last = start // block * block, -(-stop // block) * block`; queries go to rows `start - first` and on of `last - first`
# rows of zeros, keys and values to rows 0 and on of `last` rows of zeros. For the tile that begins at position `tile`:
# `for b in range(0, tile + block, block)`, `scores = queries[rows] @ keys[b : b + block].T / math.sqrt(head_dim)`, and if `b == tile`:
# `scores.masked_fill(ahead, -math.inf)` with `ahead = torch.ones(block, block).triu(1).bool()`. Then
# `higher = largest.maximum(scores.amax(1, keepdim=True))`. The loop's last line is `largest = higher`: without it every
# block takes itself for the first, and what was summed before it is lost.
#
# </details>

# %% id="blocks-solution" exercise="4.3" solution="block_attention" minutes=25 difficulty=4
import math

# include course_lib.lessons.nb04_bits:block_attention

# %% id="blocks-check-logic" check="block_attention" group="logic" points=3
check.block_attention(block_attention, group="logic")

# %% id="blocks-check-bits" check="block_attention" group="bits" points=3
check.block_attention(block_attention, group="bits")

# %% id="blocks-visible"
def attention(q, k, v, a, b):
    return block_attention(q[a:b], k[:b], v[:b], a)


print("your block_attention on this machine's kernels: equal to one pass?")
for name in ("float32", "bfloat16"):
    q, k, v = (torch.from_numpy(rng.standard_normal((TOKENS, WIDTH))).to(DTYPES[name]) for _ in range(3))
    print(f"{name:9}", same_as_one_pass(partial(attention, q, k, v), CUTS))
print(f"scores held at a time, for 8,192 tokens: {64 * 64:,} in blocks, {8_192**2:,} in the full table")

# %% [markdown] id="blocks-after"
# You have now written both kinds of product in a layer. If the other operations (norm, rotation, activation) also give
# a row the same bits in every cut, the KV cache equals that of one pass, under the conditions of section 5. The
# course's engine does this for whole models.

# %% [markdown] id="two-text"
# ## 5. Two arithmetics: what is claimed, and what is not
#
# Your functions are the idea of the course's arithmetic `tile`, the engine's default. Its exact claim: **on one
# machine, with one library build and one thread setting, each token's K and V in every layer, and its logits, have the
# same bits however the prompt was cut, whatever prefix was cached, and whichever other requests were in the batch.** It
# does not claim the same bits on another machine. Another T gives other bits, too.
#
# It rests on two assumptions: the same call on the same shape gives the same bits, and a row does not depend on the
# contents of the other rows. NVIDIA promises the first for cuBLAS, under the conditions of section 1. We know of no
# vendor that promises the second. So the library tests your machine:

# %% id="selftest"
from course_lib.arithmetic.selftest import self_test

for backend, name in (("numpy", "float32"), ("torch", "float32"), ("torch", "bfloat16")):
    problems = self_test(backend, name)
    print(f"{backend:6} {name:9}", "the assumptions hold here" if not problems else problems)

# %% [markdown] id="rows-text"
# Rows of zeros cost time. Where a row has the same bits in every slot, and in calls of other row counts, the engine
# fills up with fewer of them: one new token then costs a call of one or a few rows instead of 32. No list of such row
# counts can be given: they depend on the processor, the library, the shape of the weight and the number of threads. So
# the engine tries it, with random rows: a call of 32 rows, and the same rows in other slots and in calls of 1, 2, 4, ...
# 1,024 rows. It uses a row count only if all bits agree. 32 rows, each in its slot, need no trial: they are the definition.
#
# Which row counts agree on your machine? "Each row in its slot" stands where a row's slot matters.

# %% id="rows"
from course_lib.arithmetic.selftest import row_counts

for backend in ("numpy", "torch"):
    print(backend)
    for operation, counts in row_counts(backend).items():
        print(f"  {operation:36} {counts}")

# %% [markdown] id="inner-text"
# You may think that a product can be cut anywhere, not only between rows. But look at the *inner* dimension, over which
# the sums run: two halves, each rounded, and then added. **Guess:** do all, some or none of the numbers keep their
# bits?

# %% id="inner-guess"
keep_their_bits = None  # "all", "some" or "none"

# %% id="inner-reveal"
from course_lib.arithmetic import exact

x, w = rng.standard_normal((16, 64)).astype(np.float32), rng.standard_normal((64, 48)).astype(np.float32)


def kept(product):
    halves = product(x[:, :32], w[:32]) + product(x[:, 32:], w[32:])
    return int((halves == product(x, w)).sum())


shares = {"exact.matmul": kept(exact.matmul), "NumPy x @ w": kept(lambda a, b: a @ b)}
with fickle_products():
    shares["fickle"] = kept(lambda a, b: (torch.from_numpy(a) @ torch.from_numpy(b)).numpy())
print(f"numbers of {16 * 48} that keep their bits when the inner dimension is cut in two:", shares)
print(f"you said {keep_their_bits}; it is some")
if keep_their_bits == "all":
    print("Nothing is rounded inside a sum of exact.matmul. But its result is rounded, and so is the addition here.")
elif keep_their_bits == "none":
    print("Rounding twice often gives the same as rounding once.")
assert 0 < shares["exact.matmul"] < 16 * 48 and 0 < shares["fickle"] < 16 * 48

# %% [markdown] id="exact-text"
# This holds even with `exact.matmul`, whose sums are not rounded: its *result* is rounded to float32, so each half is
# rounded, and their sum again. On GPUs this cut is called *split-K*, and a library may choose it by shape.
#
# How can a sum avoid rounding? float64 holds every whole number up to 2^53. Whole numbers whose sums stay below that
# can be added in any order. So `exact` rounds each factor *once*, before any sum, to a grid whose steps are a power of two: 20
# bits for a row of x, 21 for a column of w. A product of the two is a whole number of at most 41 bits (times a power of
# two), and 2^12 of them add up to at most 53 bits. This is called *snapping*. A small example, with grids of 4 and 5 bits:

# %% id="exact-example"
row, column = np.array([0.3, -1.7, 0.9, 1.2]), np.array([0.25, 0.11, -0.6, 0.8])

# Step 1: a power of two for each, so that the largest has 4, or 5, bits.
row_grid, column_grid = 2.0**-3, 2.0**-5

# Step 2: snap. From here on all numbers are whole.
r, c = np.round(row / row_grid), np.round(column / column_grid)
print("row   ", r, "\ncolumn", c)

# Step 3: add the products in every order there is.
terms = r * c
sums = {sum(order) for order in itertools.permutations(terms.tolist())}
print("terms ", terms, " sums over 24 orders:", sums)

# Step 4: back to the scale of the numbers.
print(f"snapped: {sums.pop() * row_grid * column_grid:.4f}   without snapping: {row @ column:.4f}   (with 20 and 21 bits: closer)")
assert len({np.cumsum(order)[-1] for order in itertools.permutations(row * column)}) > 1  # without snapping: several sums

snapped = exact.snap(x, exact.X_BITS)
assert np.array_equal(snapped.integers, np.round(snapped.integers)) and np.abs(snapped.integers).max() <= 2**20

# %% [markdown] id="golden-text"
# The order does not matter, and so neither do tiles, threads, libraries or machines. That has a price (1.8 to 4.9 times the
# time of ordinary code: torch 2.13, NumPy 2.4, one x86-64 CPU, one thread, 2026) and limits: at most 4,096 terms in a product and 8,322 keys in
# attention. Its use: a result can be *stored* and compared anywhere. The course has stored the hash of the KV cache of
# its small trained model for one prompt. A *hash* is a short number computed from all bytes: if one bit differs, so
# does it.
#
# **Guess:** does your machine give the same bits as ours? Write True or False.

# %% id="golden-guess"
same_hash = None

# %% id="golden-reveal"
from course_lib.weights.golden import golden_hashes, measured_hashes

kept_hashes, mine = golden_hashes("ledger"), measured_hashes("ledger")
for name in ("k", "v", "logits"):
    print(f"{name:6} kept {kept_hashes[name][:16]}...   here {mine[name][:16]}...   {'equal' if mine[name] == kept_hashes[name] else 'DIFFERENT'}")
print(f"you said {same_hash}; it is {mine == kept_hashes}")
assert mine == kept_hashes

# %% [markdown] id="demo-text"
# `python -m course_lib demo` uses the same arithmetic and needs NumPy alone. Its first part cuts a prompt of 70 tokens
# in all chunk sizes from 1 to 64, and one of 1,100 tokens in a few. Here is the first half of it; run the whole command in a
# terminal (about ten seconds).

# %% id="demo"
from course_lib.commands.demo import bit_identity
from course_lib.weights import seeded_model

checks = list(itertools.islice(bit_identity(seeded_model("tiny", arith="exact")), 64))
print(f"chunk sizes {checks[0]['chunk']} to {checks[-1]['chunk']} on {checks[0]['prompt_len']} tokens: {sum(c['equal'] for c in checks)} of {len(checks)} equal")
assert all(c["equal"] for c in checks)

# %% [markdown] id="break-text"
# ## 6. Break it
#
# Every wrong `tiled_linear` and `block_attention` that the course has collected. Some compute wrong numbers (*logic*),
# some compute right numbers whose bits depend on the cut. The last column uses your machine's kernels, without the
# fickle product. **Guess:** of the mistakes that cost bits, how many would your machine show?

# %% id="break-guess"
shown_here = None

# %% id="break-table"
def costs_bits(fn, exercise, driver):
    """Does one of the exercise's chunks, in float32, differ from one pass? driver: with which product."""
    whole, *chunks = [c for c in EXERCISES[exercise].group("bits").cases(7) if c.facts["series"] == "float32"]
    rows = driver(fn, *whole.args)
    return any(bit_report(driver(fn, *c.args), rows[slice(*c.facts["rows"])])[0] > 0 for c in chunks)


shows = {"fickle": [], "here": []}
for exercise in ("tiled_linear", "block_attention"):
    print(f"{exercise:32} logic   bits, fickle   bits, here")
    logic = EXERCISES[exercise].group("logic")
    for answer in EXERCISES[exercise].wrong_answers:
        fn, calls = wrong(exercise, answer.name), logic.cases(7)
        outcomes = InProcess(fn, EXERCISES[exercise].driver).run(calls)
        if not logic.judge(calls, outcomes).passed:
            print(f"  {answer.name:30} WRONG")
            continue
        row = {"fickle": costs_bits(fn, exercise, on_fickle_tensors), "here": costs_bits(fn, exercise, on_tensors)}
        for where, differs in row.items():
            shows[where] += [answer.name] if differs else []
        print(f"  {answer.name:30} right   " + "".join(f"{'DIFFER' if differs else 'same':15}" for differs in row.values()))
    print()
print(f"you said {shown_here}; this machine shows {len(shows['here'])} of the {len(shows['fickle'])} that the fickle product shows")
assert len(shows["fickle"]) == 20 and {"chunk_aligned", "one_product", "float64"} <= set(shows["fickle"])

# %% [markdown] id="break-ask"
# 1. Which of the mistakes that only cost bits does your machine hide? Would you rely on that?
# 2. `float64` computes everything in float64 and rounds once. Most numbers are equal. What is special about the others?
# 3. `tiles_from_chunk` and `all_queries_at_once` both read full blocks of keys from position 0. Which of the three rules of
#    section 4 does each break?

# %% [markdown] id="explore-text"
# Which positions differ, and by how much, on your machine? Above ordinary kernels, below aligned tiles. Try chunk 1 in
# float32 and in bfloat16, and 16 against 17. Before you change the kernel to `x @ w`, say which chunk sizes will be
# clean.

# %% id="explore"
from course_lib.widgets.ulps import explore_ulps

explore_ulps()

# %% [markdown] id="questions-text"
# ## 7. Questions
#
# Six about this notebook, and two about earlier ones.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("04_bits")

# %% [markdown] id="end"
# ## What you can do now
#
# - Say why no dtype gives equal bits by itself, and why a tolerance is no substitute for a comparison of bits.
# - Count ulps, and say where two results first differ.
# - Write a matrix product and an attention whose bits do not depend on the cut, without the N x N table.
# - State the claim of `tile` with its conditions, and say why `exact` needs none of them.
#
# Up to here one request was computed, in any pieces. The scheduler decides how many tokens of each request a step
# computes: notebook 05.
