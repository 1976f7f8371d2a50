"""Exercise 1.1, KVCache: keep the keys and values of every token of a request, layer by layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from autograder.drivers import nb01
from autograder.exercise import Call, Outcome, Raised, Returned, one_by_one
from autograder.kit import exercise, shown, values
from autograder.plain import array_of, equal

SOLUTION = "course_lib.lessons.nb01_divisible:KVCache"
AXES = "[tokens, kv_heads, head_dim]"


def requests(seed: int, reuse: bool) -> Iterator[tuple]:
    """Three requests' caches, from one layer to three, from one token to some thousands; views after any append."""
    rng = np.random.default_rng(seed)
    for layers, heads, dim in ((3, 2, 4), (4, 3, 2), (1, 1, 1)):
        turns = [(0, layer, 0) for layer in range(layers)]  # views of empty layers
        for request in (0, 1, 0, 2, 1, 0, 2):  # the third cache is made when the others hold tokens
            for layer in rng.permutation(layers).tolist():
                turns += [(request, layer, int(rng.integers(1, 9))), (request, layer, 0)]
            turns += [(int(rng.choice([0, 1, request])), int(rng.integers(layers)), 0)] * 2
        turns += [(r, layer, n) for r in range(3) for layer in range(layers) for n in (2, 0, 1, 0)]
        yield layers, heads, dim, turns, reuse, *_tokens(rng, turns, heads, dim)
    long = [1, int(rng.integers(300, 600)), 1, int(rng.integers(5_000, 5_500)), 1]
    turns = [line for n in long for line in ((0, 1, n), (0, 0, 1), (0, 1, 0))] + [(0, 0, 0)]
    yield 2, 1, 2, turns, reuse, *_tokens(rng, turns, 1, 2)


def _tokens(rng: np.random.Generator, turns: list, heads: int, dim: int) -> list[np.ndarray]:
    """Keys and values of all appended tokens, some of them all zero: zeros do not tell which rows are in use."""
    total = sum(tokens for *_, tokens in turns)
    both = [rng.standard_normal((total, heads, dim)).astype(np.float32) for _ in range(2)]
    for x in both:
        x[rng.random(total) < 0.1] = 0
        x[-2:] = 0  # the last token and the one before it, in the chunk before, are alike
    return both


def label(layers: int, heads: int, dim: int, *_) -> str:
    return f"KVCache({layers}, {heads}, {dim})"


def trouble(call: Call, got: tuple, wanted: tuple) -> str | None:
    """The first view that is not what was appended, in words."""
    (got, kept), (wanted, _) = got, wanted
    if not len(got) == len(kept) == len(wanted):
        return f"{call.label}: what came back could not be read."
    views, past = zip(got, wanted), {}
    for request, layer, tokens in call.args[3]:
        lengths = past.setdefault((request, layer), [])
        if tokens:
            lengths.append(tokens)
            continue
        sizes = f"{' + '.join(map(str, lengths))} token{'s' * (lengths != [1])}"
        when = f"after appends of {sizes} to it" if lengths else "before any append to it"
        where = f"{call.label}, the cache of request {request}: view({layer}) {when}"
        for name, given, right in zip(("keys", "values"), *next(views)):
            what = _different(name, given, right)
            if what:
                return f"{where} {what}"
    if not all(kept):
        return f"{call.label}: a later call changed what a view had given. Give out arrays that nothing writes into."
    return None


def _different(name: str, given: object, right: np.ndarray) -> str | None:
    mine = array_of(given)
    if mine is None:
        return f"gives {shown(given)} as its {name}, wanted an array of shape {list(right.shape)}: {AXES}."
    if mine.shape != right.shape:
        return f"gives {name} of shape {list(mine.shape)}, wanted {list(right.shape)}: {AXES}."
    if mine.dtype != np.float32:
        return f"gives {name} of dtype {mine.dtype}, wanted float32, as they were appended."
    differs = (mine != right).any(axis=(1, 2))
    return f"gives {name} in which token {np.argmax(differs)} is not as it was appended." if differs.any() else None


def same(a: Outcome, b: Outcome) -> bool:
    """The same numbers of the same dtype, or the same error; numbers in its text (of rows, say) may be others."""
    if isinstance(a, Raised) and isinstance(b, Raised):
        return a.type == b.type and re.sub(r"\d+", "#", a.message) == re.sub(r"\d+", "#", b.message)
    return isinstance(a, Returned) and isinstance(b, Returned) and equal(a.value, b.value)


MISTAKES = r"""
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
      class KVCache:  ->  class KVCache:\n    k, v = [], []
      self.k = [  ->  self.k += [
      self.v = [  ->  self.v += [
    Two caches share their contents: one request sees the keys of another. What belongs to one object is made in
    __init__, as self.something; a variable of the class belongs to all objects.

    keeps_the_callers_array
      head_dim):  ->  head_dim):\n    none = np.zeros((0, kv_heads, head_dim), dtype=np.float32)
      self.k = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.k = [[none]
      self.v = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.v = [[none]
      self.k[layer] = np.concatenate([self.k[layer], k])  ->  self.k[layer].append(k)
      self.v[layer] = np.concatenate([self.v[layer], v])  ->  self.v[layer].append(v)
      return self.k[layer], self.v[layer]  ->  return np.concatenate(self.k[layer]), np.concatenate(self.v[layer])
    The cache keeps the caller's array itself. The caller has used that array for something else, and the cache changed
    with it. Keep a copy: k.copy().

    keeps_the_first_array
      np.concatenate([self.k[layer], k])  ->  np.concatenate([self.k[layer], k]) if len(self.k[layer]) else k
      np.concatenate([self.v[layer], v])  ->  np.concatenate([self.v[layer], v]) if len(self.v[layer]) else v
    The first chunk of a layer is kept as the caller's array itself, and changed when the caller used that array for
    something else. Keep a copy there too: k.copy().

    fixed_rows
      | class KVCache:
      |     def __init__(self, num_layers, kv_heads, head_dim):
      |         self.k = np.zeros((num_layers, 32, kv_heads, head_dim), np.float32)
      |         self.v = np.zeros((num_layers, 32, kv_heads, head_dim), np.float32)
      |         self.used = [0] * num_layers
      |
      |     def append(self, layer, k, v):
      |         start = self.used[layer]
      |         self.k[layer, start : start + len(k)] = k
      |         self.v[layer, start : start + len(v)] = v
      |         self.used[layer] += len(k)
      |
      |     def view(self, layer):
      |         return self.k[layer, : self.used[layer]], self.v[layer, : self.used[layer]]
    The cache has a fixed number of rows, and more tokens came. How long a request gets is not known when it begins:
    make a larger array when the old one is full, or join the chunks with np.concatenate.

    not_assigned
      self.k[layer] = np.concatenate([self.k[layer], k])  ->  np.concatenate([self.k[layer], k])
      self.v[layer] = np.concatenate([self.v[layer], v])  ->  np.concatenate([self.v[layer], v])
    Append leaves the layer as it was. np.concatenate changes neither of its arrays, it returns a new one: assign that
    to self.k[layer].

    flattened
      np.concatenate([self.k[layer], k])  ->  np.append(self.k[layer], k)
      np.concatenate([self.v[layer], v])  ->  np.append(self.v[layer], v)
    View gives one long row of numbers. np.append flattens its arrays unless you say axis=0.

    empty_is_none
      self.k = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.k = [None
      self.v = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.v = [None
      np.concatenate([self.k[layer], k])  ->  k.copy() if self.k[layer] is None else np.concatenate([self.k[layer], k])
      np.concatenate([self.v[layer], v])  ->  v.copy() if self.v[layer] is None else np.concatenate([self.v[layer], v])
    View gives None before the first token. Whatever reads the cache asks for its length: an empty layer gives arrays
    of shape [0, kv_heads, head_dim].

    nothing_to_join
      self.k = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.k = [[]
      self.v = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.v = [[]
      self.k[layer] = np.concatenate([self.k[layer], k])  ->  self.k[layer].append(k.copy())
      self.v[layer] = np.concatenate([self.v[layer], v])  ->  self.v[layer].append(v.copy())
      return self.k[layer], self.v[layer]  ->  return np.concatenate(self.k[layer]), np.concatenate(self.v[layer])
    View fails before the first token: np.concatenate of no arrays raises. Begin each layer's list with an empty array,
    np.zeros((0, kv_heads, head_dim), dtype=np.float32).

    stale_view
      self.k = [  ->  self.joined = {}\nself.k = [
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
      def append(self, layer, k, v):  ->  def append(self, layer, k, v):\n    layer = layer - 1
    Append counts layers from 1 and view counts them from 0, so every layer reads another one's keys. Layers count from
    0 in both.

    list_of_chunks
      head_dim):  ->  head_dim):\n    none = np.zeros((0, kv_heads, head_dim), dtype=np.float32)
      self.k = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.k = [[none]
      self.v = [np.zeros((0, kv_heads, head_dim), dtype=np.float32)  ->  self.v = [[none]
      self.k[layer] = np.concatenate([self.k[layer], k])  ->  self.k[layer].append(k.copy())
      self.v[layer] = np.concatenate([self.v[layer], v])  ->  self.v[layer].append(v.copy())
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


def _group(name: str, reuse: bool):
    group = values(
        name, SOLUTION, lambda seed: requests(seed, reuse), label, trouble, count="runs of several caches",
        driver=nb01.caches, form=([(object, object)], [bool]),
    )  # fmt: skip
    return replace(group, apart=one_by_one)


EXERCISE = exercise(
    SOLUTION,
    groups=[_group("views", reuse=False), _group("reuse", reuse=True)],
    mistakes=MISTAKES,
    reread="Reread notebook 01, section 2.",
    same=same,
    driver=nb01.caches,
)
