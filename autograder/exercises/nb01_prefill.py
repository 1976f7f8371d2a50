"""Exercise 1.2, prefill: a prompt in chunks, each against what the chunks before it left."""

from __future__ import annotations

import copy
import functools

import numpy as np

from autograder.compare import error_text, printed_note, why_not_an_array
from autograder.exercise import Call, Exercise, Group, Outcome, Raised, Verdict
from autograder.exercises import kv
from autograder.exercises.nb01_cache import same
from autograder.kept import known_mistakes
from autograder.packing import pack, unpack
from course_lib.prefill import KVSnapshot, one_pass


class _Noting:
    """An embedding that notes how many tokens are looked up at a time: the chunks that really ran."""

    def __init__(self, table: np.ndarray):
        self.table, self.sizes = table, []

    def __getitem__(self, ids):
        self.sizes.append(int(np.size(ids)))
        return self.table[ids]


def drive(prefill, ids: list[int], sizes: list[int]) -> np.ndarray:
    """The chunk lengths that ran, the logits, and each layer's keys and values."""
    model = copy.copy(kv.model())
    model.embedding = noting = _Noting(model.embedding)
    result = prefill(model, ids, sizes)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TypeError(f"it returned {_described(result)}, wanted a pair: the cache, and the last token's logits")
    cache, logits = result
    if isinstance(cache, np.ndarray) or not hasattr(cache, "view"):
        raise TypeError(f"the first thing that it returned is {_described(cache)}, wanted the cache")
    views, names = [], []
    for layer in range(model.config.num_layers):
        views += cache.view(layer)
        names += [f"what the returned cache's view({layer}) gives as its {name}" for name in ("keys", "values")]
    return pack([noting.sizes, logits, *views], ["the list of chunks", "the second thing, the logits,", *names])


def _described(value) -> str:
    return "None" if value is None else f"something of type {type(value).__name__}"


def _call(ids: tuple[int, ...], sizes: tuple[int, ...]) -> Call:
    shown = " + ".join(map(str, sizes)) if len(sizes) <= 8 else f"{len(sizes)} chunks of 1"
    return Call((list(ids), list(sizes)), f"prefill of {len(ids)} tokens, cut {shown}", {"ids": ids})


def _cases(seed: int, low: int, high: int, partitions: int) -> list[Call]:
    """Ragged cuts of one prompt, then all of it in one pass, and token by token."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(low, high))
    ids = kv.prompt(rng, length)
    cuts = [kv.ragged(rng, length, int(rng.integers(2, 5))) for _ in range(partitions)]
    return [_call(ids, sizes) for sizes in (*cuts, (length,), (1,) * length)]


def kv_cases(seed: int) -> list[Call]:
    return _cases(seed, 17, 25, 20)


def logits_cases(seed: int) -> list[Call]:
    return _cases(seed, 12, 17, 5)


@functools.lru_cache(maxsize=8)
def _reference(ids: tuple[int, ...]) -> KVSnapshot:
    return one_pass(kv.model(), ids)


def _first_part(call: Call, outcome: Outcome) -> tuple[str | None, list[np.ndarray]]:
    what = error_text(call, outcome) if isinstance(outcome, Raised) else why_not_an_array(call, outcome)
    return what, [] if what else unpack(outcome.value)


def _kv_trouble(call: Call, parts: list[np.ndarray]) -> str | None:
    """The first layer whose keys or values differ from one pass's; then, whether the prompt was cut as asked."""
    right, (ran, _, *views) = _reference(call.facts["ids"]), parts
    for layer in range(len(right.k)):
        for name, got, wanted in (("K", views[2 * layer], right.k[layer]), ("V", views[2 * layer + 1], right.v[layer])):
            if got.shape != wanted.shape:
                tokens = f"layer {layer} {name} has shape {list(got.shape)}, wanted {list(wanted.shape)}"
                return f"{call.label}: {tokens}, a row for each token of the prompt."
            differs = (got != wanted).any(axis=(1, 2))
            if differs.any():
                clean = "" if layer or name == "V" else _layer_0_v(views[1], right.v[0])
                first = f"layer {layer} {name} differs, first at position {int(np.argmax(differs))}"
                return f"{call.label}: compared with one pass, {first}{clean}."
    if ran.tolist() != call.args[1]:
        return (
            f"{call.label}: the cache is right, but the chunks that ran have {_sizes(ran.tolist())} tokens, "
            f"wanted {_sizes(call.args[1])}."
        )
    return None


def _layer_0_v(got: np.ndarray, wanted: np.ndarray) -> str:
    """Layer 0's values do not depend on positions: right values beside wrong keys mean that the tokens are right."""
    return "; layer 0 V is equal: the right tokens, at wrong positions" if np.array_equal(got, wanted) else ""


def _sizes(sizes: list[int]) -> str:
    shown = ", ".join(map(str, sizes[:8]))
    return shown + (", ..." if len(sizes) > 8 else "")


def _logits_trouble(call: Call, parts: list[np.ndarray]) -> str | None:
    right, logits = _reference(call.facts["ids"]).logits, parts[1]
    if logits.shape != right.shape:
        return (
            f"{call.label}: the logits have shape {list(logits.shape)}, wanted {list(right.shape)}: the last token's."
        )
    if not np.array_equal(logits, right):
        return f"{call.label}: {int((logits != right).sum())} of {len(right)} logits are not those of one pass."
    return None


def _judge(trouble, count: str):
    def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
        for call, outcome in zip(calls, outcomes, strict=True):
            what, parts = _first_part(call, outcome)
            what = what or trouble(call, parts)
            if what:
                return Verdict(False, what=what + printed_note(outcome))
        return Verdict(True, count=count.format(len(calls)))

    return judge


SOLUTION = "course_lib.lessons.nb01_divisible:prefill"

MISTAKES = """
    fresh_cache
      for size in sizes:  ->  for size in sizes:\\n    cache = KVCache(c.num_layers, c.kv_heads, c.head_dim)
    Every chunk gets a new, empty cache, so it sees nothing of the prompt before it, and only the last chunk's tokens
    are returned. Make one cache, above the loop.

    blind_chunks
      for size in sizes:  ->  for size in sizes:\\n    own = KVCache(c.num_layers, c.kv_heads, c.head_dim)
      size], cache)  ->  size], own)\\nfor layer in range(c.num_layers):\\n    cache.append(layer, *own.view(layer))
    Each chunk was computed against an empty cache, as if it were a whole prompt, and the pieces were put together
    afterwards. A chunk must run against what the chunks before it left.

    last_chunk_dropped
      start = 0  ->  start, logits = 0, np.zeros(c.vocab_size, np.float32)
      in sizes:  ->  in sizes[:-1]:
    The last chunk never runs: its tokens are missing in the cache, and the logits are those of a token in the middle of
    the prompt.

    first_logits
      start += size  ->  first = first if start else logits\\nstart += size
      return cache, logits  ->  return cache, first
    These are the logits of the first chunk: they say what comes after its last token, in the middle of the prompt. Only
    the chunk that holds the prompt's last token says how the answer begins.

    every_chunks_logits
      start = 0  ->  start, kept = 0, []
      start += size  ->  start += size\\nkept.append(logits)
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
      size], cache)  ->  size], cache) if start < len(ids) else logits
    Every chunk is taken to be as long as the first, which is right for equal chunks only. A chunk starts where the one
    before it stopped, and has its own length.

    equal_chunks_raises
      in sizes:  ->  in [sizes[0]] * len(sizes):
    Every chunk is taken to be as long as the first: ragged chunks then run out of tokens, or leave some over. A chunk
    starts where the one before it stopped.

    index_times_own_size
      for size in sizes:  ->  for i, size in enumerate(sizes):\\n    start = i * size
      size], cache)  ->  size], cache) if start < len(ids) else logits
    The start is the chunk's number times its own length, which is right for equal chunks only. Keep a running start.

    mean_logits
      start = 0  ->  start, kept = 0, []
      start += size  ->  start += size\\nkept.append(logits)
      return cache, logits  ->  return cache, np.mean(kept, axis=0, dtype=np.float32)
    These are the mean of all chunks' logits. Only the last chunk's say how the answer begins.

    stop_is_size
      ids[start : start + size], cache)  ->  ids[start:size], cache) if start < size else logits
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
      for size in sizes:  ->  for size in sizes:\\n    cache = KVCache(c.num_layers, c.kv_heads, c.head_dim)
      ids[start :  ->  ids[:
    The cache is thrown away before each chunk and the prompt computed from its beginning again. The result is right,
    and the steps get longer and longer: nothing has been divided.

    one_pass
      in sizes:  ->  in [len(ids)]:
    The whole prompt runs in one pass and `sizes` is ignored. That leaves the right cache, and freezes the other users
    for as long as before.

    back_to_front
      start = 0  ->  start = len(ids)
      for size in sizes:  ->  for size in reversed(sizes):\\n    start -= size
      start += size  ->
    The chunks run back to front. A chunk needs the keys and values of all tokens before it, so the order is not free:
    the first chunk first.

    logits_first
      return cache, logits  ->  return logits, cache
    The two results are swapped: the cache comes first, then the logits.
"""

EXERCISE = Exercise(
    name="prefill",
    groups=(
        Group("kv", kv_cases, _judge(_kv_trouble, "{} cuts leave one pass's K and V, in every bit")),
        Group("logits", logits_cases, _judge(_logits_trouble, "{} cuts give one pass's logits, in every bit")),
    ),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 01, section 3.",
    imports="import numpy as np\nfrom course_lib.lessons.nb01_divisible import KVCache, run_chunk",
    solution=SOLUTION,
    library=(
        "course_lib.prefill:prefill",
        "course_lib.prefill:one_pass",
    ),
    driver=drive,
)
