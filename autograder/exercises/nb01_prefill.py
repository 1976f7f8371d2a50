"""Exercise 1.2, prefill: a prompt in chunks, each against what the chunks before it left."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from autograder.compare import counted, first_trouble
from autograder.drivers import nb01
from autograder.exercise import Call, Group, Outcome, Verdict, one_by_one
from autograder.exercises import kv
from autograder.kit import exercise, shown
from autograder.plain import array_of
from course_lib.prefill import KVSnapshot, one_pass

SOLUTION = "course_lib.lessons.nb01_divisible:prefill"
FORM = ([([int], object, [(object, object)])], bool)  # of each prompt: chunks that ran, logits, each layer's K and V


def prompts(seed: int) -> Iterator[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """One or two prompts in turn, (ids, sizes) each: uneven and equal chunks, one pass, single tokens, one token.

    The second has the tokens of the first, two of them exchanged.
    """
    rng = np.random.default_rng(seed)
    length = int(rng.integers(13, 19))
    ids, middle = kv.prompt(rng, length), length // 2
    other = (*ids[: middle - 1], ids[middle], ids[middle - 1], *ids[middle + 1 :])
    three, four, five = (kv.ragged(rng, length, parts) for parts in (3, 4, 5))
    yield [(ids[:7], (3, 1, 3))]
    yield [(ids, three), (other, three)]
    yield [(ids, (1, length - 1)), (other, five)]
    yield [(ids, (length,)), (other, (length - 2, 1, 1))]
    yield [(ids, four), (other[:8], (1,) * 8)]
    yield [(ids[:1], (1,)), (ids[:9], (3, 3, 3))]


def cases(seed: int) -> list[Call]:
    return [
        Call(([(list(i), list(s)) for i, s in jobs],), f"prefill of {', then of '.join(words(*job) for job in jobs)}")
        for jobs in prompts(seed)
    ]


def words(ids: Sequence[int], sizes: Sequence[int]) -> str:
    return f"{counted(len(ids), 'token')}, cut {' + '.join(map(str, sizes))}"


@functools.lru_cache(maxsize=32)
def reference(ids: tuple[int, ...]) -> KVSnapshot:
    return one_pass(kv.model(), ids)


def kv_trouble(ids: list[int], sizes: list[int], ran: tuple, logits: object, layers: tuple) -> str | None:
    """The first layer whose keys or values differ from one pass's; then, whether the prompt was cut as asked."""
    right = reference(tuple(ids))
    if len(layers) != len(right.k):
        return "what came back could not be read"
    clean = np.array_equal(array_of(layers[0][1]), right.v[0])
    for layer, pair in enumerate(layers):
        for name, given, wanted in zip("KV", pair, (right.k[layer], right.v[layer])):
            got = array_of(given)
            if got is None or got.shape != wanted.shape:
                gives = f"is {shown(given)}" if got is None else f"has shape {list(got.shape)}"
                return f"layer {layer} {name} {gives}, wanted {list(wanted.shape)}, a row for each token of the prompt"
            differs = (got != wanted).any(axis=(1, 2))
            if differs.any():
                first = f"compared with one pass, layer {layer} {name} differs, first at position {np.argmax(differs)}"
                # layer 0's values do not depend on positions
                return first + "; layer 0 V is equal: the right tokens, at wrong positions" * (clean and layer == 0)
    if list(ran) != sizes:
        return f"the cache is right, but the chunks that ran have {_few(ran)} tokens, wanted {_few(sizes)}"
    return None


def _few(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")


def logits_trouble(ids: list[int], sizes: list[int], ran: tuple, logits: object, layers: tuple) -> str | None:
    right, got = reference(tuple(ids)).logits, array_of(logits)
    if got is None:
        return f"the second thing that it returned, the logits, is {shown(logits)}"
    if got.shape != right.shape:
        return f"the logits have shape {list(got.shape)}, wanted {list(right.shape)}: the last token's"
    differs = got != right
    return f"{differs.sum()} of {len(right)} logits are not those of one pass" if differs.any() else None


def group(name: str, trouble: Callable, count: str) -> Group:
    def wrong_with(call: Call, value: tuple) -> str | None:
        (jobs,), (results, kept) = call.args, value
        if len(results) != len(jobs):
            return f"{call.label}: what came back could not be read."
        for place, ((ids, sizes), result) in enumerate(zip(jobs, results)):
            what = trouble(ids, sizes, *result)
            if what:
                behind = " The prompt before it was right." if place else ""
                return f"prefill of {words(ids, sizes)}: {what}.{behind}"
        return None if kept else f"{call.label}: the second call changed the cache that the first one returned."

    def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
        cuts = sum(len(call.args[0]) for call in calls)
        return first_trouble(calls, outcomes, wrong_with, FORM) or Verdict(True, count=count.format(cuts))

    return Group(name, cases, judge, form=FORM, apart=one_by_one)


MISTAKES = r"""
    start_forgotten
      start += size  ->
    The start stays at 0: every chunk begins with the prompt's first token again. The next chunk starts where this one
    stopped: start += size.

    start_is_size
      start += size  ->  start = size
    The third chunk starts at the length of the second alone. It starts behind all tokens before it: start += size.

    cache_of_other_sizes
      c.num_layers, c.kv_heads, c.head_dim)  ->  c.num_layers, c.head_dim, c.kv_heads)
    The cache was made for arrays of another shape: KVCache takes num_layers, kv_heads and head_dim, in this order, and
    keys have kv_heads heads, not q_heads.

    one_cache_for_all_prompts
      | def prefill(model, ids, sizes, cache=KVCache(3, 2, 16)):
      |     start = 0
      |     for size in sizes:
      |         logits = run_chunk(model, ids[start : start + size], cache)
      |         start += size
      |     return cache, logits
    The second prompt is put behind the first: one cache serves all prompts. Make a new one in each call, inside the
    function: a default value, like a variable of the notebook, is made once.

    fresh_cache
      for size in sizes:  ->  for size in sizes:\n    cache = KVCache(c.num_layers, c.kv_heads, c.head_dim)
    Every chunk gets a new, empty cache, so it sees nothing of the prompt before it, and only the last chunk's tokens
    are returned. Make one cache, above the loop.

    blind_chunks
      for size in sizes:  ->  for size in sizes:\n    own = KVCache(c.num_layers, c.kv_heads, c.head_dim)
      size], cache)  ->  size], own)\nfor layer in range(c.num_layers):\n    cache.append(layer, *own.view(layer))
    Each chunk was computed against an empty cache, as if it were a whole prompt, and the pieces were put together
    afterwards. A chunk must run against what the chunks before it left.

    last_chunk_dropped
      start = 0  ->  start, logits = 0, np.zeros(c.vocab_size, np.float32)
      in sizes:  ->  in sizes[:-1]:
    The last chunk never runs: its tokens are missing in the cache, and the logits are those of a token in the middle of
    the prompt.

    first_logits
      start += size  ->  first = first if start else logits\nstart += size
      return cache, logits  ->  return cache, first
    These are the logits of the first chunk: they say what comes after its last token, in the middle of the prompt. Only
    the chunk that holds the prompt's last token says how the answer begins.

    every_chunks_logits
      start = 0  ->  start, kept = 0, []
      start += size  ->  start += size\nkept.append(logits)
      return cache, logits  ->  return cache, np.array(kept)
    The logits of every chunk are kept. Those of the earlier chunks predict a token that the prompt already has: keep
    the last chunk's alone.

    summed_logits
      start = 0  ->  start, logits = 0, np.zeros(c.vocab_size, np.float32)
      logits = run_chunk  ->  logits = logits + run_chunk
    The logits of all chunks are added up. They are not parts of one result: each belongs to another token. Keep the
    last chunk's alone.

    equal_chunks
      in sizes:  ->  in [sizes[0]] * len(sizes):
    Every chunk is taken to be as long as the first: ragged chunks then run out of tokens, or leave some over. A chunk
    starts where the one before it stopped.

    index_times_own_size
      for size in sizes:  ->  for i, size in enumerate(sizes):\n    start = i * size
    The start is the chunk's number times its own length, which is right for equal chunks only. Keep a running start.

    mean_logits
      start = 0  ->  start, kept = 0, []
      start += size  ->  start += size\nkept.append(logits)
      return cache, logits  ->  return cache, np.mean(kept, axis=0, dtype=np.float32)
    These are the mean of all chunks' logits. Only the last chunk's say how the answer begins.

    stop_is_size
      start + size], cache)  ->  size], cache)
    A slice ids[a:b] stops in front of position b: b is not its length. The chunk is ids[start : start + size].

    one_token_overlap
      ids[start :  ->  ids[max(start - 1, 0) :
    Each chunk repeats the last token of the one before it, so that token is in the cache twice and all later ones stand
    one position too far. The cache has it already.

    from_the_start_again
      ids[start :  ->  ids[:
    Each chunk computes the prompt from its beginning again and appends it all once more. What earlier chunks computed
    is in the cache: run only the new tokens.

    recomputed
      for size in sizes:  ->  for size in sizes:\n    cache = KVCache(c.num_layers, c.kv_heads, c.head_dim)
      ids[start :  ->  ids[:
    The cache is thrown away before each chunk and the prompt computed from its beginning again. The result is right,
    and the steps get longer and longer: nothing has been divided.

    one_pass
      in sizes:  ->  in [len(ids)]:
    The whole prompt runs in one pass and `sizes` is ignored. That leaves the right cache, and freezes the other users
    for as long as before.

    back_to_front
      start = 0  ->  start = len(ids)
      for size in sizes:  ->  for size in reversed(sizes):\n    start -= size
      start += size  ->
    The chunks run back to front. A chunk needs the keys and values of all tokens before it, so the order is not free:
    the first chunk first.

    logits_first
      return cache, logits  ->  return logits, cache
    The two results are swapped: the cache comes first, then the logits.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        group("kv", kv_trouble, "{} cuts leave one pass's K and V, in every bit"),
        group("logits", logits_trouble, "{} cuts give one pass's logits, in every bit"),
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 01, section 3.",
    imports="import numpy as np\nfrom course_lib.lessons.nb01_divisible import KVCache, run_chunk",
    library=("course_lib.prefill:prefill", "course_lib.prefill:one_pass"),
    driver=nb01.prefills,
)
