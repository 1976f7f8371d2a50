# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 07 What two prompts share
#
# Two users talk to the same assistant. Their prompts begin with the same 5,000 tokens, the *system prompt* that the
# operator puts in front of every user's text. **What is computed twice, and stored twice?** In this notebook you build
# a *prefix cache*, which keeps the beginnings of earlier prompts: how a beginning is recognised, which request uses
# which block, what may be evicted, and what must never be shared. Your table then runs in the course's real engine, and
# the keys and values that a request finds there equal freshly computed ones in every bit.
#
# About 75 minutes. NumPy is enough; the pictures use matplotlib. Places and positions count from 0.
#
# The words that the notebook builds on: a language model reads *tokens*, numbers that stand for pieces of text. A *request*
# is one user's text, the *prompt*, and its answer. In each of its *layers* the model computes a *key* and a *value* (K
# and V) for every token; a later token *attends* to those of all tokens before it, so they are kept in the *KV cache*.
# To compute a prompt's tokens is called *prefill*; it can be cut into *chunks*, one for each *step* of the server. The
# step that computes the prompt's last token gives *logits*, a score for each possible next token, and so the first
# token of the answer.
#
# The KV cache is a pool of *slots*, each for one token, in *blocks* of 16 or so. A request's *block table* lists its blocks in
# token order: with blocks of 16, the token at position 20 stands in the table's block 1, slot 4. A block is *full* when all of
# its slots are written. Tokens of a new request whose K and V are in the pool already are its *hit*.

# %% id="setup"
import random
import time

import matplotlib.pyplot as plt
import numpy as np

from autograder import check
from autograder.exercises import EXERCISES
from course_lib.cache import prefix as library
from course_lib.cache.manager import CacheManager
from course_lib.cache.radix import RadixCache
from course_lib.cost.devices import MODELS
from course_lib.engine import Engine
from course_lib.lessons import nb07_prefix_cache as lesson
from course_lib.prefill import one_pass
from course_lib.schedule.request import Request
from course_lib.weights import seeded_model

SHARED = 5_000  # tokens of the system prompt

# %% [markdown] id="twice-text"
# ## 1. What is stored twice?
#
# User 1 sends 7,000 tokens and user 2 sends 5,600. The first 5,000 are the same. A token's K and V depend on the token,
# its position and the tokens before it, and on no later token. So for the first 5,000 tokens user 2 needs exactly the
# numbers that user 1 has. Each row is a user's block table; the hatched part is the same.

# %% id="twice-picture"
fig, ax = plt.subplots(figsize=(10, 2.4))
for row, tokens in enumerate((7_000, 5_600)):
    ax.broken_barh([(0, SHARED)], (row - 0.35, 0.7), facecolor="#bbbbbb", hatch="///", edgecolor="#333333")
    ax.broken_barh([(SHARED, tokens - SHARED)], (row - 0.35, 0.7), facecolor=("#56b4e9", "#f2c07a")[row], edgecolor="#333333")
    ax.text(SHARED / 2, row, "the same system prompt", ha="center", va="center", bbox={"facecolor": "white"})
    ax.text((SHARED + tokens) / 2, row, "own text", ha="center", va="center")
ax.set(xlim=(0, 7_100), ylim=(1.6, -0.6), xlabel="position")
ax.set_yticks([0, 1], ["user 1", "user 2"])
plt.show()

# %% [markdown] id="twice-guess-text"
# **Guess before you go on.** The server keeps full blocks of 16 tokens, and finds all that user 1's request filled. How
# many of user 2's tokens need not be computed? Write a number in place of None. It is not graded; a recorded guess
# makes the answer easier to remember.

# %% id="twice-guess"
hit_tokens = None

# %% id="twice-reveal"
thoughts = {
    5_000: "5,000 is what the two prompts share. But the 313th block holds 8 shared tokens and 8 of user 1's text.",
    5_008: "You rounded up. The block in which the prompts first differ also holds tokens of user 1's text.",
    5_600: "The rest of user 2's text is in no cache.",
    0: "You may think that K and V belong to a user. They belong to a beginning of a text.",
}
print("block   full shared blocks   tokens that hit   user 2 computes positions")
found = {}
for size in (1, 8, 16, 256):
    blocks = SHARED // size
    found[size] = blocks * size
    print(f"{size:5} {blocks:20,} {blocks * size:17,}   {blocks * size:,} to 5,599")
print(f"\nyou said {hit_tokens}, and with blocks of 16 it is {found[16]:,}")
if hit_tokens != found[16]:
    print(thoughts.get(hit_tokens, "How many whole blocks of 16 lie inside 5,000 tokens?"))
    print("Why were you off? Write it down in the next cell.")
assert found == {1: 5_000, 8: 5_000, 16: 4_992, 256: 4_864}

# %% [markdown] id="twice-why"
# *I was off because ... (double-click to write here)*

# %% [markdown] id="twice-after"
# The usual sentence, "a shared beginning of 5,000 tokens hits 5,000 tokens", is right with blocks of 1 or 8, which
# divide 5,000, if the prompt is longer than that. With 16 it is 4,992.
#
# The first position that user 2 computes is 4,992. Counted from 1 that is "token 4,993". Texts about servers mix the
# two ways of counting; in this course positions count from 0, and *after a hit of n tokens computing goes on at
# position n*.
#
# A hit is not free. The other tokens still attend to all of it, and a shared block still takes memory, once for all
# requests that share it. Here is a hit of 5,000 in a prompt of 7,000, counted in tokens and in attention's *pairs* of a
# token and one that it sees:

# %% id="twice-cost"
pairs = lambda tokens: tokens * (tokens + 1) // 2  # noqa: E731
tokens_saved, pairs_saved = SHARED / 7_000, pairs(SHARED) / pairs(7_000)
print(f"a hit of 5,000 of 7,000 tokens: {tokens_saved:.1%} of the tokens, {pairs_saved:.1%} of attention's pairs")
kv_bytes = SHARED * MODELS["8b"].kv_bytes_per_token
print(f"K and V of 5,000 tokens, in a model of Llama 3 8B's shape in 16 bits: {kv_bytes / 1e6:,.1f} MB")
assert (round(100 * tokens_saved, 1), round(100 * pairs_saved, 1), kv_bytes) == (71.4, 51.0, 655_360_000)

# %% [markdown] id="hash-text"
# ## 2. By what is a block found?
#
# The server must find the blocks of a new prompt's beginning quickly. By what should a block be found? By its 16
# tokens? A letter below is a block of 16 tokens. Five prompts come one after another, each when the one before has
# finished, into a pool from which nothing is evicted. The last has one token after its three blocks.
#
# **Guess:** how many *blocks* hit, for each?

# %% id="trace-guess"
blocks_hit = {"ABCD": None, "ABEF": None, "XBCD": None, "ABCD again": None, "ABC and a token": None}

# %% id="trace-reveal"
def tokens_of(letters, more=0):
    """16 tokens for each letter, and `more` after them."""
    return [token for letter in letters for token in [ord(letter)] * 16] + [1] * more


traces = {"ABCD": 0, "ABEF": 0, "XBCD": 0, "ABCD again": 0, "ABC and a token": 0}
manager = CacheManager(30, 16, library.PrefixIndex())  # the engine's
for number, name in enumerate(traces):
    letters, _, more = name.partition(" ")
    request = Request(number, tokens_of(letters, more=1 if more == "and a token" else 0))
    hit = manager.match(request)
    manager.allocate(request, request.num_tokens, hit=hit)
    manager.publish(request, 0, request.num_tokens)
    manager.release(request)
    traces[name] = len(hit)
thoughts = {
    "XBCD": "B, C and D are in the cache, but after A. Here they stand after X, and that is another text.",
    "ABCD again": "All four are there. But then nothing would be computed, and there would be no logits: the last block is computed again.",
    "ABC and a token": "One token is left to compute, and it is enough.",
    "ABEF": "A hit is a beginning: A and B.",
}
for name, right in traces.items():
    said = blocks_hit[name]
    print(f"{name:16} you said {said}, it is {right}. {'' if said == right else thoughts.get(name, '')}")
assert list(traces.values()) == [0, 2, 0, 3, 3]

# %% [markdown] id="parent-text"
# ### Why is XBCD a miss?
#
# You may think that B's block, with B's keys and values, is right wherever B occurs. Look at the K and V of the same 16
# tokens, at the same positions, after A and after X, in the course's small model of three layers. Its arithmetic,
# *exact*, never rounds a sum, so the differences below are not rounding.

# %% id="parent-kv"
model = seeded_model("tiny", arith="exact")
behind_a, behind_x = (one_pass(model, tokens_of(letters)) for letters in ("AB", "XB"))
equal = {}
for layer in range(3):
    for name in ("k", "v"):
        ours, theirs = (getattr(run, name)[layer, 16:] for run in (behind_a, behind_x))
        equal[layer, name] = bool(np.array_equal(ours, theirs))
        print(f"layer {layer} {name.upper()} of B: {'equal' if equal[layer, name] else 'DIFFERENT'}")
assert [equal[layer, "k"] and equal[layer, "v"] for layer in range(3)] == [True, False, False]

# %% [markdown] id="chain-text"
# Layer 0 computes K and V before any attention. From layer 1 on they also depend on the text that B's tokens saw before
# them. So a block must be found by its *whole beginning*. A chain of hashes does that: a *hash* is a short number
# computed from a long text, such that two texts with the same hash cannot be found in practice. A block's hash is
# computed from its parent's hash and its tokens, and the parent's hash stands for all the text before.
#
# A worked example for ABC, with a toy hash that is short enough to read:

# %% id="chain-example"
def toy_hash(parent, tokens):
    return f"h({parent}{''.join(map(chr, sorted(set(tokens))))})"


# Step 1: the first block's parent is the root.
a = toy_hash("", tokens_of("A"))
# Step 2: each next block takes the hash before it as its parent.
b = toy_hash(a, tokens_of("B"))
c = toy_hash(b, tokens_of("C"))
# Step 3: the same tokens after another beginning.
print(a, b, c, "   and B behind X:", toy_hash(toy_hash("", tokens_of("X")), tokens_of("B")))
assert toy_hash(toy_hash("", tokens_of("X")), tokens_of("B")) != b

# %% [markdown] id="hash-exercise"
# ### Exercise 7.1: the hash of a block
#
# 5 minutes, difficulty 2 of 5, one or two lines. `pack("<3q", 5, 6, 7)` makes 24 bytes: three numbers of 8 bytes each, in
# *little-endian* order. `hashlib.sha256(text).digest()` makes the 32 bytes of a text's SHA-256, for which no two texts
# with one hash are known. Bytes are joined with `+`.

# %% [markdown] id="hash-hints"
# <details><summary>Hint 1: a direction</summary>
#
# One call of SHA-256 over one text. What must be in the text so that blocks with different beginnings get different
# hashes?
#
# </details>
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# The parent's hash goes in first, all 32 bytes of it; and each token takes 8 bytes, so that tokens 1, 23 and 12, 3 differ.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `hashlib.sha256(parent + pack(f"<{len(token_ids)}q", *token_ids))`, and then its bytes.
#
# </details>

# %% id="hash-solution" exercise="7.1" solution="block_hash" minutes=5 difficulty=2
import hashlib
from collections.abc import Sequence
from struct import pack

# include course_lib.cache.prefix:block_hash

# %% id="hash-check" check="block_hash" group="values" points=2
check.block_hash(block_hash, group="values")

# %% [markdown] id="root-text"
# Equal hashes now mean equal beginnings, unless an attacker can make two texts with one hash. Then a prompt may be
# served another user's block (vLLM's GHSA-rm76-4mrf-v9r8). SHA-256 is vLLM's default since 0.10.2; before that it was
# Python's `hash`.
#
# The first block's parent is the *root*, and it can say to whom the cache belongs. If all users share one cache, one
# user can send a guess of another's prompt and see by the time to the first token whether it hits (reported for vLLM as
# CVE-2025-46570). With a *salt* for each tenant in the root, prompts of different tenants share nothing: no other code
# changes.

# %% id="root"
def hashes_of(token_ids, block_size, root):
    """The chain: a hash for each full block."""
    chain, parent = [], root
    for page in lesson.pages_of(token_ids, block_size):
        parent = block_hash(parent, page)
        chain.append(parent)
    return chain


roots = {tenant: library.root_hash([("salt", tenant)]) for tenant in ("tenant 7", "tenant 8")}
chains = {tenant: hashes_of(tokens_of("ABC"), 16, root) for tenant, root in roots.items()}
print("equal hashes of two tenants:", sum(x == y for x, y in zip(*chains.values())), "of 3")
assert hashes_of(tokens_of("ABC"), 16, roots["tenant 7"]) == chains["tenant 7"]
assert not set(chains["tenant 7"]) & set(chains["tenant 8"])

# %% [markdown] id="measured-text"
# What does a look-up cost? This is *measured* on the machine that runs this notebook, and varies from run to run. 7,000
# tokens, blocks of 16, a table that has the first 312 blocks.

# %% id="measured"
ids = [(7 * i * i + 3 * i) % 50_000 for i in range(7_000)]


def best_ms(work, tries=5):
    """The shortest of some tries, in milliseconds."""
    took = []
    for _ in range(tries):
        begin = time.perf_counter()
        work()
        took.append((time.perf_counter() - begin) * 1e3)
    return min(took)


chain = hashes_of(ids, 16, library.root_hash())
known = library.PrefixIndex()
for block, value in enumerate(chain[:312], 1):
    known.publish(value, block)
print(f"measured: {best_ms(lambda: hashes_of(ids, 16, library.root_hash())):.2f} ms for a chain of {len(chain)} hashes")
print(f"measured: {best_ms(lambda: known.match(chain)):.2f} ms to find {len(known.match(chain))} blocks")
assert len(chain) == 437 and len(known.match(chain)) == 312

# %% [markdown] id="table-text"
# A hit costs a chain of hashes and a look-up, instead of a prefill.
#
# ## 3. The table
#
# The *prefix cache* is a table from hashes to blocks. (This is how vLLM keeps it. "A radix tree keyed by hashes", as one often
# reads, mixes up two designs: the tree is SGLang's, it needs no hashes, and section 6 builds it.)
#
# It has four operations. `publish`: this block is now found by that hash. `match`: which blocks hold the longest
# beginning? `forget`: this block is about to be overwritten. `block in cache`: can this block be found at all? Two
# requests that compute the same beginning at the same time make two copies of a block. The table keeps both. `match`
# gives the copy published first; when that is forgotten, it gives the other.
#
# **Guess:** blocks 1, 2 and 3 are published for the chain h0, h1, h2. Block 2 is forgotten. Which blocks does `match([h0, h1,
# h2])` give?

# %% id="gap-guess"
found_behind_a_gap = None  # a list of block numbers

# %% id="gap-reveal"
table = library.PrefixIndex()
for block, value in enumerate((b"h0", b"h1", b"h2"), 1):
    table.publish(value, block)
table.forget(2)
print("you said", found_behind_a_gap, "and it is", table.match([b"h0", b"h1", b"h2"]))
if found_behind_a_gap == [1, 3]:
    print("Block 3 is there and useless: a request computes everything after its hit, so the hit has no holes.")
elif found_behind_a_gap == []:
    print("Block 1 still holds the beginning.")
assert table.match([b"h0", b"h1", b"h2"]) == [1]

# %% [markdown] id="table-exercise"
# ### Exercise 7.2: find, publish, forget
#
# 9 minutes, difficulty 2 of 5, one to six lines for each method. Two dictionaries or lists are enough, one for each
# direction. Here and below, the lists that a method is given belong to its caller and stay as they are, and two objects
# of a class share nothing.

# %% [markdown] id="table-hints"
# <details><summary>Hint 1: a direction</summary>
#
# One direction leads from a hash to a list of blocks, in order of publishing. The other leads from a block to its hash; `forget` and
# `in` need it.
#
# </details>
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# `match` stops at the first hash that is missing. `forget` clears both directions, and for this one block only: another copy stays.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# publish: if the block has no hash yet, note it, and `self.blocks.setdefault(value, []).append(block)`. forget: take the block out of
# `self.blocks[value]`, and delete that entry if it is empty now.
#
# </details>

# %% id="table-solution" exercise="7.2" solution="PrefixCache" minutes=9 difficulty=2
from collections.abc import Sequence

# include course_lib.lessons.nb07_prefix_cache:PrefixCache

# %% id="table-check" check="PrefixCache" group="calls" points=3
check.PrefixCache(PrefixCache, group="calls")

# %% [markdown] id="engine-text"
# Your table runs in the real engine now: `Engine(model, prefix_cache=...)`. User 1's prompt is 50 shared tokens and 3
# others, user 2's is the same 50 and 4 others. Blocks of 8, chunks of up to 20 tokens.
#
# **Guess:** how many of its 54 tokens does user 2 compute? Then we read user 2's K and V from the pool and compare them
# with those of a fresh prefill in one pass, nothing cached.

# %% id="engine-guess"
user_2_computes = None

# %% id="engine-reveal"
mine = PrefixCache(40)
engine = Engine(model, num_blocks=40, block_size=8, max_num_batched_tokens=20, prefix_cache=mine)
system = [(7 * i * i + 3 * i) % 128 for i in range(50)]
engine.add_request([*system, 1, 2, 3], max_tokens=2)
engine.run()
second = engine.add_request([*system, 9, 8, 7, 6], max_tokens=4)
step = engine.step()
computes = sum(stop - start for _, start, stop in step.chunks)
k, v = engine.kv(second)
fresh = one_pass(model, second.token_ids[: second.num_computed], block_size=8)
print("you said", user_2_computes, "and it is", computes, "behind a hit of", second.num_cached)
print("K and V of all layers equal a fresh prefill:", np.array_equal(k, fresh.k), np.array_equal(v, fresh.v))
print("so do the logits:", np.array_equal(engine.logits[second.id], fresh.logits))
assert (second.num_cached, computes) == (48, 6) and k.shape[1] == 54
assert np.array_equal(k, fresh.k) and np.array_equal(v, fresh.v) and np.array_equal(engine.logits[second.id], fresh.logits)

# %% [markdown] id="lend-text"
# Six tokens instead of 54, and not one bit differs: a hit block holds what a prefill would have computed.
#
# ## 4. Allocate, share, release
#
# The *allocator* records which blocks are in use. It never sees a token. Each block has a *reference count*: the number
# of block tables that list it. A block with count 0 is *free*. It may be allocated again, and until then *its content
# stays and can still be found*: a free block is not an empty one. A reference count does not keep a block in the cache,
# it only prevents a block in use from being allocated. (To overwrite a cached block, because it is allocated for other
# tokens, is to *evict* it.)
#
# Free blocks stand in a line. The front is allocated first, freed blocks go to the end: the block unused for the
# longest time goes first, *least recently used* or LRU. A hit on a free block takes it out of the line: `touch`.
#
# **Guess:** six blocks. A request gets blocks 1, 2, 3, publishes all three and finishes. The next request shares
# nothing and needs four blocks. In which order should the three have been put at the end of the line, so that a third
# request, with the first's prompt, still finds as much as possible? Write the line, from the front, after the first
# request has finished.

# %% id="lend-guess"
line_of_free = None  # for example [4, 5, 6, ...]

# %% id="lend-reveal"
good = lesson.Allocator(6)
good.release(good.allocate(3))
print("you said", line_of_free, "and it is", good.free)
if line_of_free == [4, 5, 6, 1, 2, 3]:
    print("Then block 1 is allocated next. Without the first block nothing is found, though 2 and 3 are still there.")
elif line_of_free and line_of_free[:3] in ([1, 2, 3], [3, 2, 1]):
    print("To the end of the line: 4, 5 and 6 hold nothing that a request could use.")
good.allocate(4)
print("after four more blocks, free:", good.free, " so the first two blocks of the prompt can still hit")
assert good.free == [2, 1]

# %% [markdown] id="lend-example-text"
# A worked example of the counts, for two requests that share two blocks:

# %% id="lend-example"
# Step 1: request 1 gets three blocks.
pool = lesson.Allocator(6)
one = pool.allocate(3)
print("request 1 has", one, "      refs", pool.refs[1:], "free", pool.free)
# Step 2: request 2 hits the first two, and gets one new block.
pool.touch(one[:2])
two = [*one[:2], *pool.allocate(1)]
print("request 2 has", two, "      refs", pool.refs[1:], "free", pool.free)
# Step 3: request 1 finishes. Only block 3 is in no table any more.
pool.release(one)
print("request 1 is gone            refs", pool.refs[1:], "free", pool.free)
# Step 4: request 2 finishes. Its last block is freed first.
pool.release(two)
print("request 2 is gone            refs", pool.refs[1:], "free", pool.free)
assert pool.free == [5, 6, 3, 4, 2, 1]

# %% [markdown] id="lend-exercise"
# ### Exercise 7.3: the allocator
#
# 10 minutes, difficulty 3 of 5, three to six lines for each method. The checks read `refs` and `free`; any kind of
# list, deque or dictionary is fine.

# %% [markdown] id="lend-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Every block is either in `free`, with count 0, or not in `free`, with a count of at least 1. Each method must keep
# that true.
#
# </details>
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# `touch` takes a block out of `free` only if its count is 0, and adds one in any case. `release` puts it back only when the count
# *becomes* 0, and goes through the table from its end.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# release: first `if any(self.refs[block] == 0 for block in blocks): raise ValueError(...)`, then for each block in
# `reversed(blocks)`: one less, and `self.free.append(block)` if that made 0.
#
# </details>

# %% id="lend-solution" exercise="7.3" solution="Allocator" minutes=10 difficulty=3
from collections.abc import Sequence

# include course_lib.lessons.nb07_prefix_cache:Allocator

# %% [markdown] id="lend-check-text"
# The first check plays operations on two allocators and compares counts and the free line after each with those of the
# course's own. The second also releases tables a second time.

# %% id="lend-check-trace" check="Allocator" group="trace" points=3
check.Allocator(Allocator, group="trace")

# %% id="lend-check-twice" check="Allocator" group="twice" points=1
check.Allocator(Allocator, group="twice")

# %% [markdown] id="admit-text"
# No block is lost or allocated twice now. (The engine's `BlockAllocator` removes a block from the middle of the line in
# constant time; with `list.remove` it takes longer the longer the line is.)
#
# ## 5. Hits first, then new blocks
#
# Now the two work together. When a request is admitted, its hit is matched and its block table made. There are four
# rules. A real server broke the first and the last (nano-vllm, issues 144 and 208); the other two are as easily missed:
#
# - **At least one token is left to compute.** If all tokens of a prompt hit, there is nothing to run, so there are no
#   logits, and the request never gets a first token. (A scheduler that takes `min(0, budget)` tokens of it never
#   finishes it.)
# - **Touch before you allocate.** The blocks of a hit may be free. If new blocks are allocated first, they may be
#   blocks of the hit.
# - **Count the free blocks of the hit.** They stand in the free line; touching them makes the line shorter.
# - **Publish what is computed, and only full blocks.** Between admission and the end of the step that fills it, a block
#   holds nothing, or another request's text.
#
# **Guess:** the second rule, with numbers. Four blocks, all free: the line is [3, 2, 1, 4]. Blocks 1, 2 and 3 hold the
# beginning ABC. A request for ABC and one token more needs four blocks, of which three hit. If the server allocates
# *before* it touches, which block is the new one?

# %% id="touch-guess"
new_block = None

# %% id="touch-reveal"
line = lesson.Allocator(4)
line.free = [3, 2, 1, 4]
print("you said", new_block, "and it is", line.free[0], ": a block of its hit, which it will now overwrite with other tokens")
print("touched first, the line is", [block for block in line.free if block not in (1, 2, 3)])
if new_block == 4:
    print("4 is right if the hit is touched first. `allocate` sees the line and not the hit.")

# %% [markdown] id="admit-faded-text"
# Before you write it, fill three blanks. Blocks of 16. A prompt of 64 tokens comes; all its four full blocks are in the
# cache, and all of them are free. Replace each `None`; it is not graded.

# %% id="admit-faded"
may_hit = None  # how many of its hashes may be matched, so that at least one token is left?
new_blocks = None  # how many new blocks does it need?
out_of_the_line = None  # how many blocks leave the free line in all, hit and new?

for name, given, right in (
    ("may_hit", may_hit, (64 - 1) // 16),
    ("new_blocks", new_blocks, 4 - 3),
    ("out_of_the_line", out_of_the_line, 3 + 1),
):
    said = "has a blank" if given is None else "fits" if given == right else "not yet: which token must be computed, and where does it stand?"
    print(f"{name:16} {said}")

# %% [markdown] id="admit-exercise"
# So for a completely cached prompt a whole block is computed again: 16 tokens, for the logits of one. (vLLM 0.33 and
# nano-vllm do this. SGLang 0.5.23, whose blocks have 1 token by default, computes 1. TensorRT-LLM 1.3 may reuse a part
# of a block, by copying it: `enable_partial_reuse`.)
#
# ### Exercise 7.4: admit and commit
#
# 12 minutes, difficulty 4 of 5, eight lines and two. `allocator` has `refs`, `free`, `allocate` and `touch`; `prefix` has `match`,
# `publish`, `forget` and `in`. A new block that can still be found by its old content must be forgotten.

# %% [markdown] id="admit-hints"
# <details><summary>Hint 1: a direction</summary>
#
# admit: match, count, refuse if there are too few blocks, touch, allocate, forget. In this order nothing has changed
# when you refuse.
#
# </details>
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# Match only `(num_tokens - 1) // block_size` hashes. There are enough blocks if `free` is at least as long as the new
# blocks *and* the hit blocks whose count is 0, together.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `new = -(-num_tokens // self.block_size) - len(hit)` rounds up. commit: for each place in `range(start // self.block_size, stop //
# self.block_size)` publish `hashes[place]` for `table[place]`.
#
# </details>

# %% id="admit-solution" exercise="7.4" solution="RequestCache" minutes=12 difficulty=4
from collections.abc import Sequence

# include course_lib.lessons.nb07_prefix_cache:RequestCache

# %% id="admit-check-trace" check="RequestCache" group="trace" points=3
check.RequestCache(RequestCache, group="trace")

# %% id="admit-check-tight" check="RequestCache" group="tight" points=2
check.RequestCache(RequestCache, group="tight")

# %% [markdown] id="same-text"
# Does the engine do the same? Below, your three classes and the engine's `CacheManager` serve the same 300 requests
# with 40 blocks; block tables, hits and the free line are compared after each. (The engine's allocator has one
# refinement of vLLM 0.33: freed blocks that cannot be found go to the front of the line. It is switched off here, as in
# vLLM 0.11.)

# %% id="same"
def random_prompt(rng):
    """One of three system prompts, and some of few texts after it."""
    letters = rng.choice(("AB", "AC", "D")) + "".join(rng.choices("EFG", k=rng.randrange(4)))
    return [token for letter in letters for token in [ord(letter)] * 4] + [1] * rng.randrange(4)


rng = random.Random(7)
allocator, table = Allocator(40), PrefixCache(40)
ours, theirs = RequestCache(allocator, table, 4), CacheManager(40, 4, library.PrefixIndex(), uncached_first=False)
running, hits, wanted = [], 0, 0
for number in range(300):
    request = Request(number, random_prompt(rng))
    hashes = hashes_of(request.token_ids, 4, library.root_hash())
    while len(running) > rng.randrange(6):
        old = running.pop(0)
        allocator.release(old.block_table)
        theirs.release(old)
    hit = theirs.match(request)
    theirs.allocate(request, request.num_tokens, hit=hit)
    assert ours.admit(request.num_tokens, hashes) == request.block_table
    for start, stop in ((0, 3), (3, request.num_tokens)):  # in two chunks
        ours.commit(request.block_table, hashes, start, stop)
        theirs.publish(request, start, stop)
    assert list(allocator.free) == theirs.allocator.free_order
    running.append(request)
    hits, wanted = hits + 4 * len(hit), wanted + request.num_tokens
print(f"300 requests, the same tables and the same line each time; {hits / wanted:.0%} of the tokens hit")

# %% [markdown] id="tree-text"
# Your cache makes the same decisions as the engine's, block for block.
#
# ## 6. The same as a tree
#
# There is another way, without hashes. A *radix tree* keeps the cached prompts themselves: a node is a run of blocks,
# and prompts with the same beginning share their nodes from the root down. It is SGLang's design. Where a new prompt
# differs from a run, the node is *cut*.
#
# A *page* is the tokens of one block. A worked example with pages of one letter; `draw` prints a node in each line, its children
# further to the right.

# %% id="tree-example"
def draw(node, depth=0):
    for child in node.children.values():
        print("   " * depth + "".join(chr(page[0]) for page in child.pages), child.blocks)
        draw(child, depth + 1)


tree = lesson.RadixTree(1)
for letters, blocks in (("ABCD", [1, 2, 3, 4]), ("ABEF", [5, 6, 7, 8]), ("ABCDG", [1, 2, 3, 4, 9])):
    known = tree.insert([ord(letter) for letter in letters], blocks)
    print(f"insert {letters}: {known} blocks were there already")
    draw(tree.root)
print("match ABCX:", tree.match([ord(letter) for letter in "ABCX"]))
assert tree.match([ord(letter) for letter in "ABEX"]) == [1, 2, 7]

# %% [markdown] id="tree-ask"
# Step 1, ABCD is one run. Step 2, ABEF differs from it after AB: the run is cut into AB and CD, and EF becomes a second
# child of AB. Blocks 5 and 6 are copies of AB; the tree keeps the blocks that it has. Step 3, ABCDG goes on after CD.
#
# **Guess:** what does `match` give for ABE, and how many nodes are there after inserting ABC? Write a list and a number.

# %% id="tree-guess"
match_of_abe, nodes_after_abc = None, None

# %% id="tree-reveal"
def count(node):
    return sum(1 + count(child) for child in node.children.values())


before = count(tree.root)
tree.insert([ord(letter) for letter in "ABC"], [1, 2, 3])
print("you said", match_of_abe, "and it is", tree.match([ord(letter) for letter in "ABE"]))
print("you said", nodes_after_abc, "nodes, and there were", before, "and are now", count(tree.root))
draw(tree.root)
if nodes_after_abc == before:
    print("ABC ends inside the run CD, so that run is cut, although nothing is added.")
assert (before, count(tree.root)) == (4, 5)

# %% [markdown] id="tree-exercise"
# ### Exercise 7.5: match and insert
#
# 14 minutes, difficulty 4 of 5, eight lines and ten. Given are `Node(pages, blocks, children)`, all three empty by
# default; `pages_of(token_ids, block_size)`, the pages of the full blocks; and `common(a, b)`, the number of equal
# items at the beginning of two lists. A child is filed under its first *page*: two prompts that share half a block
# share nothing.

# %% [markdown] id="tree-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Both methods go down in the same way: is the next page a child's first page? Then how much of that child's run is
# shared? If it is less than the whole run, they differ inside it.
#
# </details>
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# To cut a node: make a `Node` of the rest of its pages, the rest of its blocks and *all its children*; the old node
# keeps the front, and the new node is its only child.
#
# </details>
# <details><summary>Hint 3: nearly the code</summary>
#
# `lower = Node(node.pages[same:], node.blocks[same:], node.children)`; then shorten the node's `pages` and `blocks` to `[:same]`, and its
# children are `{lower.pages[0]: lower}`. At the end, if pages are left: `node.children[pages[known]] = Node(pages[known:], ...)`.
#
# </details>

# %% id="tree-solution" exercise="7.5" solution="RadixTree" minutes=14 difficulty=4
from collections.abc import Sequence

from course_lib.lessons.nb07_prefix_cache import Node, common, pages_of

# include course_lib.lessons.nb07_prefix_cache:RadixTree

# %% id="tree-check-values" check="RadixTree" group="values" points=3
check.RadixTree(RadixTree, group="values")

# %% id="tree-check-nodes" check="RadixTree" group="nodes" points=1
check.RadixTree(RadixTree, group="nodes")

# %% [markdown] id="compare-text"
# Table and tree find the same beginnings. Below 200 prompts go into your table, your tree and the engine's tree. The
# engine's tree also has *locks* on runs in use, and `evict`, which frees whole runs, the least recently used leaf
# first.

# %% id="compare"
rng = random.Random(11)
flat, own, theirs, spare = PrefixCache(2_000), RadixTree(4), RadixCache(4), 1
for _ in range(200):
    token_ids = random_prompt(rng)
    chain = hashes_of(token_ids, 4, library.root_hash())
    found = own.match(token_ids)
    assert found == theirs.match(token_ids).blocks == flat.match(chain)
    blocks = [*found, *range(spare, spare + len(chain) - len(found))]
    spare += len(chain) - len(found)
    assert own.insert(token_ids, blocks) == theirs.insert(token_ids, blocks) // 4 == len(found)
    for value, block in zip(chain, blocks):
        flat.publish(value, block)
print(f"200 prompts: the same {spare - 1} blocks, {count(own.root)} nodes; {theirs.evictable} tokens could be evicted")
theirs.lock(theirs.match(tokens_of("A")[:4] + tokens_of("B")[:4]).node)
freed = theirs.evict(1)
print(f"AB locked, evict(1 token) frees a whole leaf: {len(freed)} blocks, {4 * len(freed)} tokens")
print(f"evict everything: {len(theirs.evict(10_000))} blocks more; AB is in use and stays: {theirs.protected} tokens")
assert theirs.protected == 8 and theirs.evictable == 0

# %% [markdown] id="break-text"
# ## 7. Break it
#
# Every collected wrong answer for the allocator and for admit and commit, and the hashes that do harm, in a small
# server. Each slot records the tokens that it was computed from, and a request that reads a slot computed from other
# tokens is reported. **Before you run it:** take these four: the parent left out of the hash, the head freed first, the
# hit touched after allocating, a new block not forgotten. Which give a request another text's K and V, and which only
# make the cache less useful?

# %% id="break-table"
def wrong(exercise, name):
    """One of the course's collected wrong answers, as a function or class."""
    return EXERCISES[exercise].compile(EXERCISES[exercise].wrong_answer(name).source)


system = [9, 8, 7, 6, 5, 4, 3, 2]
prompts = [[*system, *[20] * 4], [*system, *[20] * 4, 21], [*system, *[20] * 4], [1, 1, 1, 1, *system, 30]]
rng = random.Random(3)
for _ in range(30):
    prompt = system if rng.random() < 0.7 else [rng.randrange(9)] * 4
    prompt = [*prompt, *(token for _ in range(rng.randrange(1, 4)) for token in [rng.randrange(50, 53)] * 4)]
    prompts += [prompt] + [[*prompt, *[60] * rng.randrange(4)]] * (rng.random() < 0.4)
prompts.insert(20, [*system, *range(100, 124), 1])  # 33 tokens, nine blocks: it fits only alone

parts = {"block_hash": library.block_hash, "allocator": lesson.Allocator,
         "prefix": lesson.PrefixCache, "cache": lesson.RequestCache}  # fmt: skip
serve = lambda **changed: lesson.serve_prompts(prompts, num_blocks=9, block_size=4, **parts | changed)  # noqa: E731
right_hits, trouble = serve()
assert trouble == "" and len(right_hits) == len(prompts)
print(f"right: {len(prompts)} prompts, {sum(right_hits)} tokens hit")
signature = {}
for part, exercise in (("block_hash", "block_hash"), ("allocator", "Allocator"), ("cache", "RequestCache")):
    print(exercise)
    for answer in EXERCISES[exercise].wrong_answers:
        hits, trouble = serve(**{part: wrong(exercise, answer.name)})
        same = f"no trouble, {sum(hits)} tokens hit" + (": as the right one" if hits == right_hits else "")
        signature[answer.name] = trouble or same
        if part != "block_hash" or trouble:
            print(f"  {answer.name:24} {signature[answer.name]}")
others_text = [name for name, text in signature.items() if "another text" in text]
assert {"no_parent", "touched_and_free", "touch_after_allocate", "not_forgotten"} <= set(others_text)
assert "nothing was written" in signature["published_early"] and "no token is left" in signature["nothing_left"]

# %% [markdown] id="break-ask"
# 1. `head_freed_first` and `revived_is_forgotten` never give a wrong text. How would you notice them in a running
#    server?
# 2. `touch_after_allocate` is right for many prompts before the first gets another text. What must be true of the pool
#    for that?
# 3. Some give the right result here. For each, say what a trace must contain to show the mistake.
# 4. The three that publish too much are caught at once, since a request with the same prompt comes while the first is
#    half computed. What does it read?

# %% [markdown] id="explore-text"
# ## 8. Look for yourself
#
# S is a block of the system prompt that users a, b and c share, x is a block of another user. Blocks with a thick frame
# are in use, those with a dotted one free; the name in a block is the beginning by which it is found. Before you move a
# control, say what will happen.
#
# 1. Go through the requests one by one, with 13 blocks. Which blocks does xxxxx evict, and why those?
# 2. At request 7, switch to head first. What changes in the free line? And in the curve over all requests?
# 3. From how many blocks on does a larger pool bring hardly anything? Where does that number come from?

# %% id="explore"
from course_lib.widgets.prefix_cache import explore_prefix_cache

explore_prefix_cache()

# %% [markdown] id="questions-text"
# ## 9. Questions
#
# Six about this notebook, and two about earlier ones. Answer from memory first.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("07_prefix_cache")

# %% [markdown] id="end"
# ## What you can do now
#
# - Say what two prompts share, in tokens and in blocks, and why equal tokens after another beginning are a miss.
# - Find, publish and forget blocks by a chain of hashes, or in a radix tree.
# - Allocate, share and release blocks so that none is lost, and none is allocated while a request uses it.
# - Admit a request so that it keeps its hit, leaves a token to compute, and publishes only what is computed.
#
# The tokens after a hit are still prefill, and may be many. Notebook 08 cuts them into chunks.
