"""The prefills that exercise 3.3 puts before a test: right ones that work in different ways, and wrong ones.

A wrong prefill returns the shapes and the dtype of a right one; only numbers in it are wrong. For each tensor, layer,
token and bit that a test may leave out there is one that is wrong in no other place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from autograder.exercise import Callback
from autograder.exercises import kv
from course_lib.model import Model
from course_lib.positions import inverse_frequencies, positions, rope
from course_lib.prefill import KVSnapshot, cut, one_pass, prefill

MAX_TOKENS = 160
# Seeds of weights under which some mistakes change the next token and others do not, so that a test of the next token
# alone can be told from a test that checks nothing; tests/test_nb03.py makes sure of it.
WEIGHTS = (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
RIGHT = {
    "plain": "a right prefill",
    "busy": "a right prefill with blocks of 4 tokens and two other requests in the batch",
    "early": "a right prefill that publishes its first chunk at once and goes on behind it as behind a hit",
    "recut": "a right prefill that computes the hit itself, in chunks of its own and blocks of one token",
}


# A name, and the kind of question that shows the mistake (nb03_check.usage); what is wrong; what a test must compare.
_MISTAKES = """
    relative: chunks
      q and k restart at position 0 in every chunk
      compare K, of every layer and in every bit
    q_only: chunks
      only the queries restart in every chunk, the keys are right
      compare K and V of every layer, in all bits; those of layer 0 are clean
    k_only: chunks
      only the keys restart in every chunk, the queries are right
      compare K, of every layer and in every bit
    last_layer_keys: chunks
      only the last layer's keys restart in every chunk, all others are right
      compare K of every layer, or the logits; no V shows it, since no layer comes behind the last
    last_layer_queries: chunks
      only the last layer's queries restart in every chunk
      compare the logits; no K and no V shows it, since no layer comes behind the last
    cold_only: cold
      q and k restart in every chunk of a request without a hit; behind a hit they are right
      compare K, of every layer and in every bit
    chunk_index: ragged
      each chunk starts at chunk index x length of the longest chunk
      compare K, of every layer and in every bit
    reset_at_prefix: hit
      the cached tokens are not counted
      compare K, of every layer and in every bit
    one_based: reference
      every position is counted from 1, in the prefix too
      compare K, or all bits; of V and logits only the last bits change
    bfloat16_angles: reference
      positions are right, but the cosines and sines are cut to the bits of bfloat16
      compare K in every bit, with np.array_equal; V of layer 0 has no angle in it
    float32_angles: reference
      positions are right, but the angles are computed in float32: cosines and sines change in their last bits
      compare K in every bit, with np.array_equal; a tolerance lets it through
    stored_keys: chunks
      the keys that layer 0 stores restart in every chunk, and attention has read the right ones before
      compare K of every layer; no V and no logits show it
    hit_key: hit
      the keys of the first cached token are cleared when the prefill is done
      compare K of all tokens, the cached ones too
    hit_value: hit
      the first cached token's value in layer 0 is cleared when the prefill is done
      compare V of every layer, in every token, the cached ones too
    last_key: reference
      the last layer stores the last token's key without its rotation
      compare K of the last layer, in every token; nothing is computed from it that could show it
    swapped_keys: reference
      in layer 1 the keys of the first two tokens have changed places when the prefill is done
      compare K number by number; its sum stays the same
    one_key: reference
      one number of K in layer 1 is wrong in its last bit
      compare every number of K in every bit, with np.array_equal; a tolerance or a sum lets it through
    last_value: reference
      the last layer stores the last token's value with its heads in the wrong order
      compare V of the last layer, in every token; nothing is computed from it that could show it
    one_value: reference
      one number of V in layer 1 is wrong in its last bit
      compare every number of V in every bit, with np.array_equal
    one_logit: reference
      one of the last logits, and not the highest, is wrong in its last bit
      compare all logits in every bit, with np.array_equal
"""


class Wrong(NamedTuple):
    needs: str
    what: str
    compare: str


_LINES = [line.strip() for line in _MISTAKES.strip().splitlines()]
WRONG = {
    head.partition(": ")[0]: Wrong(head.partition(": ")[2], what, compare)
    for head, what, compare in zip(_LINES[::3], _LINES[1::3], _LINES[2::3])
}


@lru_cache(maxsize=8)
def drawn(key: int) -> tuple[int, tuple[str, ...]]:
    """From a key: the seed of the weights, and which prefill each number stands for."""
    rng = np.random.default_rng(key)
    return int(rng.choice(WEIGHTS)), tuple(rng.permutation([*RIGHT, *WRONG]).tolist())


def make_prefill(marker: Callback) -> Callable:
    """The prefill_fn that a Callback("prefill_fn", (number, key)) stands for. The marker tells no name."""

    def prefill_fn(token_ids, sizes, hit=0):
        number, key = marker.data
        weights, names = drawn(key)
        return run(names[number], weights, *_plain(token_ids, sizes, hit))

    return prefill_fn


def make_reference(marker: Callback) -> Callable:
    """The reference(token_ids) that a Callback("reference", (key,)) stands for: one right pass."""

    def reference(token_ids):
        ids, *_ = _plain(token_ids, (), 0)
        return run("reference", drawn(*marker.data)[0], ids, (len(ids),), 0)

    return reference


def _plain(token_ids, sizes, hit) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The arguments as integers; ValueError tells a learner what a prefill takes."""
    vocab = kv.model().config.vocab_size
    takes = "prefill_fn takes a list of token ids, a list of chunk lengths and a hit length, all whole numbers."
    try:
        ids, sizes, hit = tuple(map(int, token_ids)), tuple(map(int, sizes)), int(hit)
    except (TypeError, ValueError):
        raise ValueError(takes) from None
    if not 1 <= len(ids) <= MAX_TOKENS or min(ids) < 0 or max(ids) >= vocab:
        raise ValueError(f"token_ids must be 1 to {MAX_TOKENS} numbers from 0 to {vocab - 1}.")
    return ids, sizes, hit


def run(name: str, weights: int, ids: tuple[int, ...], sizes: tuple[int, ...], hit: int) -> tuple[np.ndarray, ...]:
    """k, v and logits of the prefill of that name, new arrays. Each refuses the questions that a right one refuses."""
    _computed("plain", weights, ids, sizes, hit)
    left = _computed(name if name not in WRONG or name in _CHANGES else "plain", weights, ids, sizes, hit)
    k, v, logits = left.k.copy(), left.v.copy(), left.logits.copy()
    _spoil(name, k, v, logits, sizes, hit)
    return k, v, logits


@lru_cache(maxsize=1024)
def _computed(name: str, weights: int, ids: tuple[int, ...], sizes: tuple[int, ...], hit: int) -> KVSnapshot:
    model = kv.model(weights)
    if name == "reference":
        return one_pass(model, ids)
    if name == "busy":
        beside = [[(5 * i + r) % model.config.vocab_size for i in range(len(sizes) + 3 + r)] for r in (1, 2)]
        return prefill(model, ids, sizes, hit=hit, block_size=4, beside=beside)
    if name == "early" and len(sizes) > 1:
        return prefill(model, ids, sizes[1:], hit=hit + sizes[0])
    if name == "recut":
        return prefill(model, ids, cut(len(ids), 15), block_size=1)
    if name == "one_based" and hit:  # in the prefix too, so the prefix is computed here as a first chunk
        hit, sizes = 0, (hit, *sizes)
    changes = _CHANGES[name](model, sizes) if name in _CHANGES else {}
    return prefill(changes.pop("model", model), ids, sizes, hit=hit, **changes)


def _restarts(cached: int, computed: int, take: int) -> np.ndarray:
    return np.arange(take)


def _with(model: Model, **parts: Callable) -> Model:
    """The model with other functions in it."""
    model = copy.copy(model)
    vars(model).update(parts)
    return model


def _last_layer_restarts(which: int, model: Model) -> Model:
    """The model for one request, whose last layer turns queries (0) or keys (1) by chunk-relative positions."""

    def layer(w, x, where, rotations, attend):
        if w is model.layers[-1]:
            rotations[which] = model._rope(where - where[0])
        return model.layer(w, x, where, rotations, attend)

    return _with(model, layer=layer)


def _float32_angles(model: Model, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    speeds = inverse_frequencies(model.config.head_dim, model.config.rope_theta).astype(np.float32)
    angles = where.astype(np.float32)[:, None] * speeds
    return np.cos(angles), np.sin(angles)


def _bfloat16_angles(model: Model, where: np.ndarray) -> list[np.ndarray]:
    return [(x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in model._rope(where)]


_CHANGES: dict[str, Callable[[Model, tuple[int, ...]], dict]] = {  # what makes a computation wrong
    "relative": lambda model, sizes: {"positions": _restarts},
    "q_only": lambda model, sizes: {"positions": _restarts, "key_positions": positions},
    "k_only": lambda model, sizes: {"key_positions": _restarts},
    "last_layer_queries": lambda model, sizes: {"model": _last_layer_restarts(0, model)},
    "last_layer_keys": lambda model, sizes: {"model": _last_layer_restarts(1, model)},
    "cold_only": lambda model, sizes: {"positions": lambda *chunk: (positions if chunk[0] else _restarts)(*chunk)},
    "chunk_index": lambda model, sizes: {
        "positions": lambda hit, done, take: hit + (np.cumsum(sizes) <= done).sum() * max(sizes) + np.arange(take)
    },
    "reset_at_prefix": lambda model, sizes: {"positions": lambda _, computed, take: computed + np.arange(take)},
    "one_based": lambda model, sizes: {"positions": lambda *chunk: positions(*chunk) + 1},
    "bfloat16_angles": lambda model, sizes: {"model": _with(model, _rope=partial(_bfloat16_angles, model))},
    "float32_angles": lambda model, sizes: {"model": _with(model, _rope=partial(_float32_angles, model))},
}


def _spoil(name: str, k: np.ndarray, v: np.ndarray, logits: np.ndarray, sizes: tuple[int, ...], hit: int) -> None:
    """Make one place wrong of what a right prefill has left, when all attention has run."""
    tokens = k.shape[1]
    if name == "stored_keys":
        k[0, hit:] = rope(k[0, hit:], -hit - np.repeat(np.cumsum(sizes) - sizes, sizes))
    elif name == "hit_key" and hit:
        k[:, 0] = 0
    elif name == "hit_value" and hit:
        v[0, 0] = 0
    elif name == "last_key":
        k[-1, -1, :1] = rope(k[-1, -1:, :1], np.array([1 - tokens]))
    elif name == "swapped_keys" and tokens > 1:
        k[1, [0, 1]] = k[1, [1, 0]]
    elif name in ("one_key", "one_value"):
        x = (k if name == "one_key" else v)[1, :, -1]
        at = np.unravel_index(np.abs(x).argmin(), x.shape)  # the smallest, whose last bit a sum does not hold
        x[at] = np.nextafter(x[at], np.float32(np.inf))
    elif name == "last_value":
        v[-1, -1] = v[-1, -1, ::-1]
    elif name == "one_logit":
        at = 96 + np.argsort(logits[96:], kind="stable")[16]  # neither among the first nor among the highest
        logits[at] = np.nextafter(logits[at], np.float32(np.inf))
