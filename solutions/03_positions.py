# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 03 Positions
#
# RoPE (rotary position embedding) tells attention where a token stands: it turns the token's query and key by an angle
# that grows with the position. In a chunked prefill that position must be counted from the start of the request. In
# this notebook you write the positions of a chunk, the rotation, and then the *test* that catches a prefill with wrong
# positions.
#
# About 75 minutes. NumPy is enough; the pictures use matplotlib. Positions count from 0: the first token of a request
# stands at position 0. Where a text says "the 5,001st token", that is position 5,000.
#
# The words that the notebook builds on: a language model reads *tokens*, numbers that stand for pieces of text. It turns each
# token into a list of numbers, its *vector*, and sends the vector through its *layers*, one after another. In a layer three
# matrix products make a *query*, a *key* and a *value* from the vector; the matrices hold the model's *weights*, numbers that
# training has fixed. *Attention* compares a token's query with the keys of the tokens that it may see, and takes a mean of
# their values, in which a key that fits better counts more. The result changes the token's vector, and the changed vector
# goes into the next layer. Keys (K) and values (V) are kept in the *KV cache*, because later tokens need them again. The
# last layer gives the *logits*, a score for each possible next token. To compute a prompt's tokens is called *prefill*.

# %% id="setup"
import numpy as np

from autograder import check
from autograder.answers import InProcess
from autograder.exercise import Returned
from autograder.exercises import EXERCISES
from autograder.exercises.nb03_prefills import RIGHT, WRONG
from course_lib.diagnosis.kv_diff import first_divergence
from course_lib.positions import rope_cos_sin
from course_lib.prefill import one_pass, prefill
from course_lib.weights import seeded_model

# %% [markdown] id="silent-text"
# ## 1. Wrong, and no error
#
# A report of January 2026 said that transformers (5.0.0rc1 and before) gave RoPE wrong positions in its chunked prefill, with
# bad outputs (huggingface/transformers, issue 43082; repaired by pull request 43132). Such a mistake is dangerous
# because nothing crashes: the model still answers.
#
# Here is a mistake of that kind, made on purpose. A prompt of 72 tokens is computed in three *chunks*, runs of new tokens
# that go through the model in one step. In each chunk the positions start at 0 again.

# %% id="silent"
model = seeded_model("tiny", arith="exact")  # 3 layers, weights from a seed, no sum rounded: the same bits everywhere
ids = [(7 * i * i + 3 * i) % 128 for i in range(72)]  # token ids below the vocabulary's 128
sizes = [24, 9, 39]


def relative(cached, computed, take):
    """Chunk-relative positions: every chunk looks like the beginning of the request."""
    return np.arange(take)


def describe(name, run):
    p = np.exp(run.logits - run.logits.max())
    p /= p.sum()
    print(f"{name:9} next token {p.argmax():3}   its probability {p.max():.2f}   all numbers finite: {np.isfinite(run.k).all()}")


whole = one_pass(model, ids)
wrong = prefill(model, ids, sizes, positions=relative)
describe("one pass", whole)
describe("relative", wrong)
print(f"\nnumbers of the KV cache that differ: {((whole.k != wrong.k).mean() + (whole.v != wrong.v).mean()) / 2:.0%}")

# %% [markdown] id="silent-after"
# No error and no warning, and the second line looks as good as the first. (The weights are pseudo-random, so we look at
# numbers here and not at text.) Only a comparison of the caches shows the mistake.
#
# **Guess before you go on.** Layer 0 and layer 1 each have keys K and values V. Which of the four differ from one pass
# under chunk-relative positions? Write True where you expect a difference.

# %% id="guess"
differs = {"layer 0 K": None, "layer 0 V": None, "layer 1 K": None, "layer 1 V": None}

# %% id="guess-reveal"
truth = {}
for layer in (0, 1):
    for name, a, b in (("K", whole.k, wrong.k), ("V", whole.v, wrong.v)):
        positions_off = np.flatnonzero((a[layer] != b[layer]).any(axis=(1, 2)))
        label = f"layer {layer} {name}"
        truth[label] = len(positions_off) > 0
        where = f"differs at {len(positions_off)} positions, first at {positions_off[0]}" if truth[label] else "is equal in every bit"
        print(f"{label} {where:38} you said {differs[label]}")
assert list(truth.values()) == [True, False, True, True]

# %% [markdown] id="guess-why"
# RoPE turns queries and keys, and never values. Layer 0's values come from the tokens alone, so they are equal whatever
# the positions. Layer 0's keys are turned by too small an angle from position 24 on, where the second chunk begins. So
# attention computes wrong scores and returns other vectors, and layer 1 is computed from those.
#
# This pattern, **layer 0 K wrong and layer 0 V clean, points to the rotation, and first of all to positions**, before
# you read any code.
#
# If you were off: on which of the four, and what did you think turns V, or takes the mistake into layer 1?
#
# *I was off because ... (double-click to write here)*

# %% [markdown] id="picture-text"
# RoPE cuts a vector into pairs of numbers and turns each pair (section 3). On the left is the angle of the first pair, which
# turns fastest: by 1 radian for each position. In the other two pictures all tokens have the same vector, so a score
# (bright: high) depends only on the distance that RoPE sees. A row is a query, a column a key. With absolute positions
# a score depends on the distance alone: unbroken stripes along the diagonal. With chunk-relative ones the stripes start
# again at the dashed lines, the *seams* between chunks: token 24 has token 0's position.

# %% id="picture"
import matplotlib.pyplot as plt

absolute = np.arange(len(ids))
restarted = np.concatenate([np.arange(n) for n in sizes])
seams = np.cumsum(sizes)[:-1]

fig, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
axes[0].plot(absolute, absolute, "-", color="black", label="absolute")
axes[0].plot(absolute, restarted, "--o", markersize=3, color="#d55e00", label="chunk-relative")
axes[0].set(title="angle of pair 0, in radians", xlabel="token", ylabel="angle = position x 1")
axes[0].legend(loc="upper left")
for ax, title, where in ((axes[1], "scores, absolute", absolute), (axes[2], "scores, chunk-relative", restarted)):
    cos, sin = rope_cos_sin(where, 16)  # [tokens, 8] each: 8 pairs of dimensions
    scores = cos @ cos.T + sin @ sin.T  # of vectors that are (1, 0) in every pair
    image = ax.imshow(scores, cmap="cividis")
    ax.set(title=title, xlabel="key of token", ylabel="query of token")
    fig.colorbar(image, ax=ax, shrink=0.7, label="score")
for ax in axes:
    ax.set_xticks([0, *seams, len(ids) - 1])
    for seam in seams:
        ax.axvline(seam - 0.5, color="black", linestyle="--", linewidth=1.5)
for ax in axes[1:]:
    ax.set_yticks([0, *seams, len(ids) - 1])
    for seam in seams:
        ax.axhline(seam - 0.5, color="black", linestyle="--", linewidth=1.5)
plt.show()

# %% [markdown] id="trained-text"
# ### Confident and wrong
#
# The pictures come from pseudo-random weights. What does a *trained* model do? The course has a small one. It reads a
# ledger: names get digits, later lines win, and a query asks for a name's digit now. A model that does not know which
# line came later can only guess.
#
# **Guess:** with chunk-relative positions the model is mostly wrong. How sure is it of its answers, on average? (1:
# certain; 0.1: a guess among ten digits.)

# %% id="trained-guess"
mean_confidence = None

# %% id="trained"
from course_lib.weights import ledger

trained = ledger.ledger_model()
prompts, answers = ledger.prompts(12, 32, 1)  # 12 prompts of 32 lines
print("a prompt ends like this:", ledger.text(prompts[0][-14:]), " and the answer is", answers[0], "\n")

chunk_sizes = [16, 32, 64, prompts.shape[1]]
results = {}
for name, given in (("absolute", None), ("chunk-relative", ledger.chunk_relative)):
    results[name] = [ledger.evaluate(trained, prompts, answers, size, given) for size in chunk_sizes]
    for size, (accuracy, confidence) in zip(chunk_sizes, results[name]):
        print(f"{name:15} chunks of {size:3}: {accuracy:4.0%} right, confidence {confidence:.2f}")

relative_confidence = np.mean([confidence for _, confidence in results["chunk-relative"][:-1]])
print(f"\nyou said {mean_confidence}; in chunks, with chunk-relative positions, it is {relative_confidence:.2f}")
assert all(accuracy == 1 for accuracy, _ in results["absolute"]) and results["chunk-relative"][0][0] < 0.5
assert relative_confidence > 0.85

# %% id="trained-picture"
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
for name, style in (("absolute", {"color": "black", "marker": "o"}), ("chunk-relative", {"color": "#d55e00", "marker": "x", "linestyle": "--"})):
    left.plot(chunk_sizes, [accuracy for accuracy, _ in results[name]], label=name, **style)
    right.plot(chunk_sizes, [confidence for _, confidence in results[name]], label=name, **style)
for ax, title in ((left, "accuracy"), (right, "mean confidence in its own answer")):
    ax.set(title=title, xlabel="chunk size (the last is one pass)", ylim=(0, 1.05), xticks=chunk_sizes)
left.legend(loc="center right")
plt.show()

# %% [markdown] id="trained-after"
# Most answers are wrong, and the mean confidence stays high. To the model every chunk looks like the beginning of a
# ledger, and its confidence stays high. An alarm on low confidence would miss most of the wrong answers.
#
# *I expected the confidence to be ... because ... (double-click to write here)*

# %% [markdown] id="positions-text"
# ## 2. Where a chunk stands
#
# An engine knows two numbers about a request. `cached` tokens were found in the *prefix cache*: their K and V were
# computed earlier, for another request whose prompt has the same beginning. These tokens are called the *hit*.
# `computed` tokens were computed since then, by earlier chunks of this request. `take` tokens come next. (Notebook 02's
# `cached_len` is the sum `cached + computed`.)
#
# Take a prompt of 7,000 tokens with a hit of 5,000. The other 2,000 tokens are computed in two chunks, 1,024 and 976.
#
# **Guess:** which position does the first token of the second chunk have?

# %% id="positions-guess"
first_of_second_chunk = None

# %% id="positions-reveal"
cached, chunks = 5_000, [1_024, 976]

# Step 1: how many tokens stand before the second chunk? The hit, and the first chunk.
before = cached + chunks[0]

# Step 2: with 0-based positions, that many tokens fill the positions 0 to before - 1. So the next one is:
print("you said", first_of_second_chunk, "and it is", before)
thoughts = {
    0: "That is chunk-relative.",
    1_024: "The hit counts too.",
    6_025: "That counts from 1.",
    5_000: "That is the first token of the first chunk.",
    976: "That is the chunk's length, or its index times that.",
    5_976: "Hit plus index times this chunk's length: the chunk before it was longer.",
}
if first_of_second_chunk != before:
    print(thoughts.get(first_of_second_chunk, "Count the tokens that stand before it."))

# Step 3: the last position. It must be that of the last token of the prompt.
last = before + chunks[1] - 1
print("the second chunk's last token stands at", last)
assert last == 7_000 - 1

# %% [markdown] id="positions-exercise"
# You may think that a chunk starts at its index times the chunk size. That is right while all chunks before it were
# equally long, and nothing was cached. In a real engine chunks are *ragged*: they get shorter when the same step also
# computes tokens of other requests.
#
# ### Exercise 3.1: the positions of the next tokens
#
# 5 minutes, difficulty 1 of 5, one line.

# %% [markdown] id="positions-hints"
# <details><summary>Hint 1: a direction</summary>
#
# How many tokens of the request stand before the first of these? Two of the three arguments say it.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# Both count: the hit (`cached`) and the tokens that earlier chunks of this request have computed since (`computed`).
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `np.arange(first, first + take)`, where `first` is the number of tokens before them.
#
# </details>

# %% id="positions-solution" exercise="3.1" solution="positions" minutes=5 difficulty=1
# include course_lib.positions:positions

# %% [markdown] id="positions-check-text"
# The first check compares numbers. The second runs a model of 3 layers with your positions, over ragged chunks and a hit,
# and compares K and V of all layers and the logits with one pass, bit for bit.

# %% id="positions-check-values" check="positions" group="values" points=2
check.positions(positions, group="values")

# %% id="positions-check-kv" check="positions" group="kv" points=2
check.positions(positions, group="kv")

# %% [markdown] id="positions-after"
# Your chunks now have the right positions, whatever was cached and however the prompt was cut.

# %% [markdown] id="rope-text"
# ## 3. Turning by an angle
#
# A layer does attention several times in parallel, with shorter vectors each time; these are its *heads*, and a head's
# query or key has `head_dim` numbers. RoPE takes them in pairs: number i and number i + head_dim // 2 (this form is
# called *rotate-half*). Each pair is a point in a plane, and is turned around the origin by an angle. The angle is the
# position times the pair's speed. Pair 0 has speed 1; each next pair is slower, `theta ** (-2 * i / head_dim)`, where
# the base `theta` is 10,000 here.
#
# A worked example with head_dim = 4, so two pairs, at position 3.

# %% id="rope-example"
x = [1.0, 2.0, 0.5, -1.0]
position, theta = 3, 10000.0

# Step 1: the pairs. Number 0 goes with number 2, number 1 with number 3.
pair_0 = (x[0], x[2])

# Step 2: each pair's angle.
angles = [position * theta ** (-2 * i / 4) for i in range(2)]
print("angles", angles)

# Step 3: turn pair 0. (a, b) becomes (a cos - b sin, b cos + a sin).
a, b = pair_0
c, s = np.cos(angles[0]), np.sin(angles[0])
turned = (a * c - b * s, b * c + a * s)
print("pair 0 was", pair_0, "and becomes", tuple(round(float(t), 4) for t in turned))

# A turn keeps the length, and turning by 3 is the same as turning three times by 1.
assert np.isclose(np.hypot(a, b), np.hypot(*turned))
again = complex(*pair_0)
for _ in range(3):
    again *= np.exp(1j)
assert np.isclose(complex(*turned), again)

# %% [markdown] id="rope-distance"
# Why a rotation? A score is a dot product of a query and a key. When both are turned, it depends only on the difference
# of their angles. So attention sees distances, although every token is turned by its absolute position.
#
# **Guess:** a query at position 7 looks at a key at position 4. Both are then moved 1,000 positions on. Does their score
# change?

# %% id="distance-guess"
score_changes = None

# %% id="distance-reveal"
def turn(x, position):
    """A vector of pairs, given as complex numbers."""
    speeds = 10000.0 ** (-np.arange(len(x)) / len(x))
    return x * np.exp(1j * position * speeds)


rng = np.random.default_rng(0)
query, key = (rng.standard_normal(8) + 1j * rng.standard_normal(8) for _ in range(2))
for p in (7, 1_007):
    print(f"query at {p:5}, key at {p - 3:5}: score {np.vdot(turn(key, p - 3), turn(query, p)).real:.6f}")
for p in (7, 1_007):
    print(f"query at {p:5}, key at {p - 4:5}: score {np.vdot(turn(key, p - 4), turn(query, p)).real:.6f}")
print(f"you said {score_changes}; it is False: the distance is the same, and so is the score, up to rounding")
assert np.isclose(np.vdot(turn(key, 4), turn(query, 7)), np.vdot(turn(key, 1_004), turn(query, 1_007)))

# %% [markdown] id="rope-exercise"
# You may conclude that positions do no harm if all are wrong by the same number. For the scores that is nearly true:
# only their last bits change. But the turned keys stay in the cache, and another engine, or the same one after a
# repair, may use them as a hit. A key that was turned by one position too many is not the key that those engines
# compute.
#
# ### Exercise 3.2: rotate
#
# 12 minutes, difficulty 3 of 5, about five lines. For a whole chunk: `x` is [tokens, heads, head_dim], and each token
# has a position. All heads of a token turn by the same angles. `rope_cos_sin(positions, head_dim, theta)` gives you the
# cosines and sines, each [tokens, head_dim // 2], with the same bits on every machine; `cos[:, None, :]` adds an axis
# for the heads. Complex numbers, `einsum` or loops are fine too.

# %% [markdown] id="rope-faded-text"
# The same for one token of one head, with blanks. `x` has 4 numbers; `c` and `s` hold the cosine and sine of each pair.
# Replace the three `None`s, each by an index from 0 to 3.

# %% id="rope-faded"
x = np.array([1.0, 2.0, 0.5, -1.0])
c, s = np.cos([3.0, 0.03]), np.sin([3.0, 0.03])
partner_of_0, partner_of_1, sine_comes_from = None, None, None  # the last: in new x[0], which number is multiplied by a sine?

if None in (partner_of_0, partner_of_1, sine_comes_from):
    print("There are blanks left.")
elif (partner_of_0, partner_of_1) == (1, 0):
    print("Those are neighbours. Here the partner of number i is number i + head_dim // 2.")
elif (partner_of_0, partner_of_1, sine_comes_from) == (2, 3, 2):
    print("Right: new x[0] = x[0] * c[0] - x[2] * s[0], as in", round(float(x[0] * c[0] - x[2] * s[0]), 4))
else:
    print("Look at step 1 and step 3 of the example again.")

# %% [markdown] id="rope-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Cut the last axis in two halves, `a` and `b`. Pair i is (a[i], b[i]), so all pairs turn at once.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# `cos` and `sin` are [tokens, pairs] and `x` is [tokens, heads, head_dim]: add an axis for the heads,
# `cos[:, None, :]`.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)`: step 3 shows which sign belongs to which half.
#
# </details>

# %% id="rope-solution" exercise="3.2" solution="rope" minutes=12 difficulty=3
from course_lib.positions import rope_cos_sin

# include course_lib.positions:rope

# %% [markdown] id="rope-check-text"
# The first check wants right numbers, close to the formula in float64. The second compares the bits of each token in a
# chunk with those in one pass.

# %% id="rope-check-logic" check="rope" group="logic" points=3
check.rope(rope, group="logic")

# %% id="rope-check-bits" check="rope" group="bits" points=1
check.rope(rope, group="bits")

# %% [markdown] id="rope-after"
# Your rotation gives the keys of a chunk the same bits as in one pass.

# %% [markdown] id="test-text"
# ## 4. Write the test
#
# Now you test the prefill of someone else, without seeing its code. Your test gets two functions:
#
# - `prefill_fn(token_ids, sizes, hit)` computes a prompt in chunks of the given lengths, after a hit of `hit` tokens.
#   The first `hit` tokens are cached: their K and V exist before the first chunk. The lengths add up to
#   `len(token_ids) - hit`. It returns `k, v, logits`. You test this function; it may be wrong.
# - `reference(token_ids)` returns `k, v, logits` of a correct pass.
#
# `k` and `v` are [layers, tokens, kv_heads, head_dim] of all tokens, the hit too, and `logits` are those of the last
# token. All arithmetic is exact: right results are equal in every bit.
#
# Your test must accept four right prefills, which work in different ways, and refuse twenty wrong ones. A wrong one
# returns arrays of the right shapes and dtype (float32) and raises no error: only numbers in them are wrong, in some a
# single one in its last bit. Your test refuses by raising an AssertionError, as `assert` does. Here is a test that looks
# sensible, and what the check says about it:

# %% id="test-example"
def weak_check(prefill_fn, reference):
    ids = [5, 9, 2, 7, 7, 1, 8, 3]
    _, _, logits = prefill_fn(ids, [4, 4], 0)
    _, _, wanted = reference(ids)
    assert logits.argmax() == wanted.argmax()


try:
    check.check_positions(weak_check)
except check.CheckFailed as error:
    print(str(error).splitlines()[0])

# %% [markdown] id="test-exercise"
# Each mistake shows under certain conditions only. Before you write: which mistake can you think of that shows in one of
# these alone? *several chunks; ragged chunks; a hit; a comparison of K; of V; of the logits; of one layer; of one token;
# of the last bit; with the reference.*
#
# You may think that a prefill is right if its chunks agree with its one pass. But some mistakes are the same in every
# cut. Or you may think that the logits tell everything, since all is computed for them. But the cache is kept for later
# tokens, and it can be spoiled when attention has read it.
#
# ### Exercise 3.3: a test for positions
#
# 15 minutes, difficulty 3 of 5, about six lines. Two or three cuts of one prompt of 20 to 60 tokens are enough; token ids
# are 0 to 127. Each prefill takes some hundredths of a second.

# %% [markdown] id="test-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Compute `reference` once. Then compare all three results of `prefill_fn` with it, for more than one cut.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# One cut with chunks of different lengths and no hit, and one with a hit: each catches mistakes that the other misses.
# Every bit of K, V and logits counts, so `np.array_equal`, not `np.allclose`.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `for sizes, hit in [([5, 20, 15], 0), ([3, 19], 18)]:` with 40 tokens; then `assert np.array_equal(got, want)` for each of the three.
#
# </details>

# %% id="test-solution" exercise="3.3" solution="check_positions" minutes=15 difficulty=3
# include course_lib.lessons.nb03_positions:check_positions

# %% id="test-check" check="check_positions" group="kills" points=6
check.check_positions(check_positions, group="kills")

# %% [markdown] id="test-after"
# Such a test costs a few prefills, and it catches an engine that answers fluently and wrongly.

# %% [markdown] id="break-text"
# ## 5. Break it
#
# Every wrong `positions` that the course has collected, run in the model: ragged chunks after a hit of 10 tokens. The
# first difference from one pass is the mistake's signature.

# %% id="break-table"
hit, sizes = 10, [14, 9, 39]
for answer in EXERCISES["positions"].wrong_answers:
    try:
        cut = prefill(model, ids, sizes, hit=hit, positions=EXERCISES["positions"].compile(answer.source))
    except ValueError as error:
        print(f"{answer.name:14} refused: {error}")
        continue
    d = first_divergence(whole, cut)
    if d is None:
        print(f"{answer.name:14} equal to one pass in every bit")
        continue
    v_clean = "layer 0 V clean" if not d.where[0, 1].any() else "layer 0 V differs"
    same_token = "same" if cut.logits.argmax() == whole.logits.argmax() else "another"
    print(f"{answer.name:14} layer {d.layer} {d.tensor} from position {d.position:2}, {v_clean}, {same_token} next token")

# %% [markdown] id="break-ask"
# 1. Which of them would you have noticed from the next token?
# 2. `chunk_grid` and `no_computed` are right in the first chunk. From which position on do they differ, and why there?
# 3. Which mistakes are invisible with chunks of equal length and no hit? Write `hit, sizes = 0, [24, 24, 24]` in the
#    first line and run it again.
#
# Now the tests. Below, each wrong *test* of the collection runs on the same prefills as yours. Say before you run it:
# is there a wrong prefill that every wrong test accepts, or one that every test refuses?

# %% id="break-tests"
exercise = EXERCISES["check_positions"]
columns = [*RIGHT, *WRONG]
calls = sorted(exercise.groups[0].cases(check.PUBLIC_SEED), key=lambda call: columns.index(call.facts["prefill"]))
accepted = {}
for answer in exercise.wrong_answers:
    outcomes = InProcess(exercise.compile(answer.source), callbacks=exercise.callbacks).run(calls)
    accepted[answer.name] = [isinstance(outcome, Returned) for outcome in outcomes]

fig, ax = plt.subplots(figsize=(12, 8))
for row, name in enumerate(accepted):
    for column, ok in enumerate(accepted[name]):
        wanted = columns[column] in RIGHT
        look = {"facecolor": "white"} if ok == wanted else {"facecolor": "#f2c07a", "hatch": "xxx"}
        ax.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, edgecolor="0.5", **look))
ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(accepted) - 0.5, -0.5))
ax.set_title("hatched: the test refuses a right prefill, or accepts a wrong one", pad=20)
ax.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
ax.set_yticks(range(len(accepted)), list(accepted))
ax.axvline(len(RIGHT) - 0.5, color="black", linewidth=3)
ax.text((len(RIGHT) - 1) / 2, -0.6, "right", ha="center")
ax.text((len(RIGHT) + len(columns) - 1) / 2, -0.6, "wrong", ha="center")
plt.show()
past = {c: sum(a[i] for a in accepted.values()) for i, c in enumerate(columns) if c in WRONG}
print("tests that each wrong prefill gets past:", past)

# %% [markdown] id="explore-text"
# ## 6. Look for yourself
#
# Choose a rule, a chunk size and a hit. On the left is the position that each token gets, on the right are the scores
# between tokens with equal vectors. For which settings does "chunk index x chunk size" look perfect? What does a hit of
# a single token do to it?

# %% id="explore"
from course_lib.widgets.seams import explore_seams

explore_seams()

# %% [markdown] id="real-text"
# ### A real model (optional)
#
# What does a trained model write when its positions are wrong? The engine computes a prompt in chunks of 4 tokens and lets
# the model go on, once with your `positions` and once with the chunk-relative ones of section 1.

# %% id="real"
from course_lib.engine import Engine
from course_lib.lessons.real_model import real_model

if found := real_model():
    real, tokenizer = found
    text_ids = tokenizer.encode("Monday, Tuesday, Wednesday, Thursday, Friday,")
    for name, rule in (("your positions", positions), ("chunk-relative", relative)):
        engine = Engine(real, num_blocks=16, max_num_batched_tokens=4, positions=rule)
        request = engine.add_request(text_ids, max_tokens=16, stop_token_ids=tokenizer.end)
        engine.run()
        print(f"{name}: {tokenizer.decode([*text_ids, *request.generated])!r}")

# %% [markdown] id="questions-text"
# ## 7. Questions
#
# Choose an answer before you read on. Each wrong answer says which mistake leads to it. The score is not reported.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("03_positions")

# %% [markdown] id="end"
# ## What you can do now
#
# - Say which position any token of any chunk has, after any hit.
# - Rotate queries and keys so that a token's bits do not depend on the cut.
# - Read "layer 0 K differs, layer 0 V is clean" as "positions".
# - Write a test of a prefill with all it needs: ragged chunks, a hit, a reference, and every bit of K, V and logits.
