"""Exercise 1.1, KVCache: keep the keys and values of every token of a request, layer by layer."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from autograder.compare import error_text, printed_note, why_not_an_array
from autograder.exercise import Call, Exercise, Group, Outcome, Raised, Returned, Verdict
from autograder.kept import known_mistakes
from autograder.packing import pack, unpack

AXES = "[tokens, kv_heads, head_dim]"
USED = -1.0  # what the caller writes into its arrays when it uses them for something else


def drive(
    make, num_layers: int, kv_heads: int, head_dim: int, operations: list, reuse: int, k: np.ndarray, v: np.ndarray
):
    """Two requests' caches; each operation is (request, layer, tokens): append the next tokens of k, v, or view if 0.

    Returns every view, keys and values in turn. With `reuse` the appended arrays are overwritten after each append.
    """
    if isinstance(make, type):  # what an answer keeps in its class lasts for one call, and not from check to check
        kept = {n: copy.deepcopy(value) for n, value in vars(make).items() if isinstance(value, (list, dict, set))}
        make = type(make.__name__, (make,), kept)
    caches = [make(num_layers, kv_heads, head_dim) for _ in range(2)]
    views, names, done = [], [], 0
    for request, layer, tokens in _triples(operations):
        if tokens:
            mine = [x[done : done + tokens].copy() for x in (k, v)]
            caches[request].append(layer, *mine)
            if reuse:
                mine[0][...] = mine[1][...] = USED
            done += tokens
        else:
            seen = caches[request].view(layer)
            if not isinstance(seen, (tuple, list)) or len(seen) != 2:
                raise TypeError(f"view({layer}) gives {type(seen).__name__}, wanted a pair: keys, values")
            views += [np.array(x) if isinstance(x, np.ndarray) else x for x in seen]  # as it is now
            names += [f"what view({layer}) gives as its {name}" for name in ("keys", "values")]
    return pack(views, names)


def _triples(operations: Sequence[int]) -> list[tuple[int, int, int]]:
    return list(zip(operations[::3], operations[1::3], operations[2::3], strict=True))


def _cases(seed: int, reuse: bool) -> list[Call]:
    """Two requests, appends to all layers in turn; views of one layer after each chunk, or of the layer just grown."""
    rng = np.random.default_rng(seed)
    calls = []
    for heads, dim, even in ((2, 4, True), (3, 2, False)):
        layers, operations = 3, [0, 1, 0]  # a view of an empty layer
        for _ in range(5):
            request = int(rng.integers(0, 2))
            for layer in rng.permutation(layers):
                tokens = int(rng.integers(1, 8))
                operations += [request, int(layer), tokens]
                operations += [request, int(layer), 0] if not even else []
            operations += [request, int(rng.integers(0, layers)), 0] if even else []
        for request in range(2):
            for layer in range(layers):
                operations += [request, layer, 2, request, layer, 0, request, layer, 1, request, layer, 0]
        total = sum(operations[2::3])
        k, v = (rng.standard_normal((total, heads, dim)).astype(np.float32) for _ in range(2))
        args = (layers, heads, dim, operations, int(reuse), k, v)
        calls.append(Call(args, f"KVCache({layers}, {heads}, {dim})"))
    return calls


def views_cases(seed: int) -> list[Call]:
    return _cases(seed, reuse=False)


def reuse_cases(seed: int) -> list[Call]:
    return _cases(seed, reuse=True)


def _trouble(call: Call, got: np.ndarray) -> str | None:
    """The first view that is not what was appended, in words."""
    _, heads, dim, operations, _, k, v = call.args
    parts, done = unpack(got), 0
    kept: dict[tuple[int, int], list[int]] = {}  # rows of k and v that belong to (request, layer)
    chunks: dict[tuple[int, int], list[int]] = {}
    for request, layer, tokens in _triples(operations):
        if tokens:
            kept.setdefault((request, layer), []).extend(range(done, done + tokens))
            chunks.setdefault((request, layer), []).append(tokens)
            done += tokens
            continue
        rows, past = kept.get((request, layer), []), chunks.get((request, layer), [])
        lengths = " + ".join(map(str, past)) + (" token" if past == [1] else " tokens")
        appended = f"after appends of {lengths} to it" if past else "before any append to it"
        where = f"{call.label}: view({layer}) {appended}"
        for name, whole in (("keys", k), ("values", v)):
            part = parts.pop(0)
            if part.shape != (len(rows), heads, dim):
                return f"{where} gives {name} of shape {list(part.shape)}, wanted {[len(rows), heads, dim]}: {AXES}."
            if part.dtype != np.float32:
                return f"{where} gives {name} of dtype {part.dtype}, wanted float32, as they were appended."
            differs = (part != whole[np.array(rows, dtype=int)]).any(axis=(1, 2))
            if differs.any():
                token = int(np.argmax(differs))
                return f"{where}: the {name} of token {token} are not the ones that were appended."
    return None


def judge_views(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    for call, outcome in zip(calls, outcomes, strict=True):
        what = _unusable(call, outcome) or _trouble(call, outcome.value)
        if what:
            return Verdict(False, what=what + printed_note(outcome))
    views = sum(call.args[3][2::3].count(0) for call in calls)
    return Verdict(True, count=f"{views} views of {2 * len(calls)} caches")


def _unusable(call: Call, outcome: Outcome) -> str | None:
    return error_text(call, outcome) if isinstance(outcome, Raised) else why_not_an_array(call, outcome)


def same(a: Outcome, b: Outcome) -> bool:
    """Equal arrays, or the same error with the same text."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return isinstance(a, Raised) and isinstance(b, Raised) and (a.type, a.message) == (b.type, b.message)
    x, y = a.value, b.value
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return type(x) is type(y) and x == y
    return isinstance(a, Returned) and np.array_equal(x, y, equal_nan=True)


SOLUTION = "course_lib.lessons.nb01_divisible:KVCache"

MISTAKES = """
    overwrite
      np.concatenate([self.k[layer], k])  ->  k.copy()
      np.concatenate([self.v[layer], v])  ->  v.copy()
    Each append overwrites what the layer held, so only the last chunk is left. Append puts new tokens behind the old
    ones: later chunks need the keys of all tokens before them.

    one_list_for_all_layers
      | class KVCache:
      |     def __init__(self, num_layers, kv_heads, head_dim):
      |         self.k = [[np.zeros((0, kv_heads, head_dim), np.float32)]] * num_layers
      |         self.v = [[np.zeros((0, kv_heads, head_dim), np.float32)]] * num_layers
      |
      |     def append(self, layer, k, v):
      |         self.k[layer].append(k.copy())
      |         self.v[layer].append(v.copy())
      |
      |     def view(self, layer):
      |         return np.concatenate(self.k[layer]), np.concatenate(self.v[layer])
    All layers share one list: what is appended to one layer is seen in the others. In Python [[]] * 3 is three names
    for one list; write [[] for _ in range(3)]. Each layer has its own keys.

    shared_between_requests
      class KVCache:  ->  class KVCache:\\n    k, v = [], []
      self.k = [  ->  self.k += [
      self.v = [  ->  self.v += [
    Two caches share their contents: one request sees the keys of another. What belongs to one object is made in
    __init__, as self.something; a variable of the class belongs to all objects.

    keeps_the_callers_array
      | class KVCache:
      |     def __init__(self, num_layers, kv_heads, head_dim):
      |         self.k = [[np.zeros((0, kv_heads, head_dim), np.float32)] for _ in range(num_layers)]
      |         self.v = [[np.zeros((0, kv_heads, head_dim), np.float32)] for _ in range(num_layers)]
      |
      |     def append(self, layer, k, v):
      |         self.k[layer].append(k)
      |         self.v[layer].append(v)
      |
      |     def view(self, layer):
      |         return np.concatenate(self.k[layer]), np.concatenate(self.v[layer])
    The cache keeps the caller's array itself. The caller has used that array for something else, and the cache changed
    with it. Keep a copy: k.copy().

    stale_view
      self.k = [  ->  self.joined = {}\\nself.k = [
      return self.k[layer], self.v[layer]  ->  return self.joined.setdefault(layer, (self.k[layer], self.v[layer]))
    View joins the chunks once and gives that old copy ever after: it is stale as soon as something is appended.

    k_and_v_swapped
      return self.k[layer], self.v[layer]  ->  return self.v[layer], self.k[layer]
    Keys and values are swapped: the keys come back as values.

    keys_twice
      [self.v[layer], v]  ->  [self.v[layer], k]
    The keys are stored twice and the values nowhere. Look at the second line of append.

    in_front
      [self.k[layer], k]  ->  [k, self.k[layer]]
      [self.v[layer], v]  ->  [v, self.v[layer]]
    New tokens are put in front of the old ones. Row p of a view belongs to the token at position p: new tokens go
    behind.

    layers_from_one
      def append(self, layer, k, v):  ->  def append(self, layer, k, v):\\n    layer = layer - 1
    Append counts layers from 1 and view counts them from 0, so every layer reads another one's keys. Layers count from
    0 in both.

    list_of_chunks
      | class KVCache:
      |     def __init__(self, num_layers, kv_heads, head_dim):
      |         self.k = [[np.zeros((0, kv_heads, head_dim), np.float32)] for _ in range(num_layers)]
      |         self.v = [[np.zeros((0, kv_heads, head_dim), np.float32)] for _ in range(num_layers)]
      |
      |     def append(self, layer, k, v):
      |         self.k[layer].append(k.copy())
      |         self.v[layer].append(v.copy())
      |
      |     def view(self, layer):
      |         return self.k[layer], self.v[layer]
    View gives a list of chunks. Attention needs one array, the chunks joined along the tokens: np.concatenate.

    along_the_heads
      [self.k[layer], k])  ->  [self.k[layer], k], axis=1) if len(self.k[layer]) else k.copy()
      [self.v[layer], v])  ->  [self.v[layer], v], axis=1) if len(self.v[layer]) else v.copy()
    The chunks are joined along axis 1, the heads. Tokens are axis 0.

    float64
      self.k = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.k = [np.zeros((0, kv_heads, head_dim))
      self.v = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.v = [np.zeros((0, kv_heads, head_dim))
    The cache holds float64. np.zeros and np.empty make float64 unless told otherwise, and joining float64 with float32
    gives float64: twice the memory, and attention then rounds its result differently. Say dtype=np.float32.
"""

EXERCISE = Exercise(
    name="KVCache",
    groups=(Group("views", views_cases, judge_views), Group("reuse", reuse_cases, judge_views)),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 01, section 2.",
    solution=SOLUTION,
    driver=drive,
)
