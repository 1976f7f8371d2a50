"""The engines of exercise 8.4 in words, and the kinds of question that show what is wrong in them."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable
from os.path import commonprefix
from typing import NamedTuple

from autograder.exercise import Outcome
from autograder.exercises.nb08_parts import BLOCK, MAX_TOKENS

RIGHT = {
    "plain": "a right engine",
    "busy": "a right engine, in which two other users decode in every step, and take the blocks of what is preempted",
    "tree": "a right engine whose cache is a radix tree",
    "early": "a right engine that finds blocks from the step on that writes them (as vLLM does), so that prompts which "
    "come together hit each other",
}
ASKS = {  # kind of question: how a test asks it
    "chunks": "serve a prompt that is longer than the chunk size",
    "hit": "serve a prompt that begins like an earlier one",
    "uneven": "have a hit that is no multiple of the chunk size",
    "short": "have a hit behind which the last chunk of a prompt is not a full one",
    "part": "let two prompts part inside a block that both fill, and go on behind it",
    "whole": "serve one prompt twice, with a length that is a multiple of the block size",
    "long": "serve a prompt that has more than a chunk in common with an earlier one",
    "together": "serve two prompts together that have more than a chunk in common",
    "preempt": "preempt a request before its answer is there",
    "preempt_part": "preempt after a step that ends inside a block",
    "preempt_answer": "ask for an answer of several tokens, and preempt when two or more are there, one is still to "
    "come, and the last block is not full",
}
_BITS = "in every bit (np.array_equal; a sum or a tolerance does not show it)"
_COMPARE = {  # advice to a test that asks the question and still accepts the engine
    "K": f"compare K of every layer {_BITS}",
    "V": f"compare V of every layer {_BITS}",
    "LOGITS": f"compare all logits {_BITS}",
    "HIT": "K, V and logits are right, only too much is computed: compare `hit` with what it should be",
    None: "compare K, V and logits with reference(tokens), in every bit",
}


class Fault(NamedTuple):
    needs: str  # the kind of question that shows it
    what: str  # what is wrong
    compare: str  # advice to a test that asks it and still accepts the engine


def _read(text: str) -> dict[str, dict[str, Fault]]:
    """By group and name. An entry is `name (needs): what`, and `| advice` where that is special."""
    groups: dict[str, dict[str, Fault]] = {}
    for entry in re.sub(r"\n +", " ", textwrap.dedent(text).strip()).splitlines():
        if entry.endswith(":"):
            group = groups.setdefault(entry[:-1], {})
        else:
            name, needs, what, advice = re.fullmatch(r"(\w+) \((\w+)\): (.*?)(?: \| (.*))?", entry).groups()
            group[name] = Fault(needs, what, _COMPARE.get(advice, advice))
    return groups


FAULTS = _read("""
    behind_a_hit:
    tail_from_0 (hit): positions behind a hit begin at 0
    on_chunk_grid (uneven): the first position of a chunk is taken as a multiple of the chunk size
    part_block (part): a block is recognised by its first token, so one that is shared in part is attached as a whole
    full_hit (whole): a prompt is attached to its last token, and nothing is left to compute (nano-vllm, issue 144)
      | such an engine stops by itself; do not catch that
    left_before_hit (short): what is left to compute is counted before the hit is known, so a chunk runs past the
      prompt's end (nano-vllm, pull request 207) | such an engine stops by itself; do not catch that
    sees_ahead (chunks): a chunk that does not end the prompt reads keys behind its own queries (nano-vllm, issue 212)
      | compare K and V of every layer with reference(tokens); those of layer 0 are clean
    last_token (hit): behind a hit the last token is never computed, and the logits are those of the token before it
      | compare K and V of all tokens, or the logits, with reference(tokens)
    freed_hit (hit): the first attached block is freed too soon and overwritten after the last step; all later tokens,
      and the logits, are right | compare K and V of all tokens, the attached ones too
    swapped_keys (hit): after a hit, in layer 0, K of the last two tokens stand in each other's slots; V, all other K
      and the logits are right | compare K of every layer, element by element; a sum does not show it
    swapped_values (hit): after a hit, in the last layer, V of the last two tokens stand in each other's slots; K, all
      other V and the logits are right | compare V of every layer, element by element; a sum does not show it
    keys_last_bit (hit): after a hit the last layer's K is rotated by less exact angles: a last bit differs, V and
      logits are right | K
    values_last_bit (hit): after a hit layer 0's V is summed in another order: a last bit differs, K and logits are
      right | V
    logits_last_bit (hit): after a hit the logits are summed in another order: a last bit differs, K and V are right
      | LOGITS
    saved:
    never_hits (hit): nothing is ever found in the cache | HIT
    whole_chunks (uneven): only chunks that are cached from end to end are skipped | HIT
    chunk_then_match (long): the first chunk is cut before the look-up, so no hit is longer than a chunk (dynamo, issue
      13188) | HIT
    hash_from_chunk (long): the chain of block hashes begins anew in every chunk, so blocks of later chunks are not
      found again | HIT
    order:
    publishes_early (together): blocks are found as soon as they are allocated, before anything is written into them
      (see nano-vllm, issue 208)
    keeps_computed (preempt_part): after a preemption a request goes on where it had stopped, though its last, partly
      filled block is gone
    prompt_only (preempt_answer): after a preemption the prompt is computed again, and K and V of the answer's tokens
      are not (akin to nano-vllm, issue 144)
      | compare K and V of all tokens with reference(tokens), those of the answer too
    readmitted_keys (preempt): after a preemption layer 0's K is rotated by less exact angles: a last bit differs, V and
      logits are right | K
    readmitted_values (preempt): after a preemption the last layer's V is summed in another order: a last bit differs, K
      and logits are right | V
    readmitted_logits (preempt): after a preemption the logits are summed in another order: a last bit differs, K and V
      are right | LOGITS
""")
_NAMES = [*RIGHT, *(name for faults in FAULTS.values() for name in faults)]


def engine_of(key: int) -> str:
    """The name of the engine that a marker's key stands for. A test that sees the key learns nothing from it."""
    return random.Random(key).choice(_NAMES)


def key_of(name: str, draw: Callable[[int, int], int]) -> int:
    """A key of that engine, by draw(low, high)."""
    while engine_of(key := draw(0, 1 << 62)) != name:
        pass
    return key


def usage(outcome: Outcome) -> frozenset[str]:
    """What a test called, and what kinds of question it put to `serve`."""
    does = set()
    for name, *args in outcome.asked:
        does.add(name)
        try:
            does |= _kinds(*args) if name == "serve" else set()
        except (TypeError, ValueError, ArithmeticError):  # asked in a way that serve understood and this does not
            pass
    return frozenset(does)


def _kinds(prompts, chunk: int, answer: int, together: bool, preempt: int) -> set[str]:
    prompts, does = [[int(t) for t in prompt] for prompt in prompts[:MAX_TOKENS]], set()
    if sum(map(len, prompts)) > MAX_TOKENS:
        return does
    for place, prompt in enumerate(prompts):
        common = [len(commonprefix([prompt, other])) for other in prompts[:place]]
        shared = max(common, default=0)
        hit = min(shared, len(prompt) - 1) // BLOCK * BLOCK
        if together:
            does |= {"together"} if hit > chunk else set()
            hit, shared, common = 0, 0, []
        steps = -(-(len(prompt) - hit) // chunk)  # until its first token
        answered = preempt - steps + 1
        preempted = 0 < preempt and answered < answer
        computed = len(prompt) + answered - 1 if answered > 0 else hit + preempt * chunk
        part = preempted and computed % BLOCK > 0  # what stands in full blocks is found again
        facts = {
            "chunks": len(prompt) - hit > chunk > 1,
            "hit": hit > 0,
            "long": hit > chunk,
            "uneven": hit % chunk > 0,
            "short": hit > 0 and (len(prompt) - hit) % chunk > 0,
            "whole": shared == len(prompt) and len(prompt) % BLOCK == 0,
            "part": any(n % BLOCK and n - n % -BLOCK <= min(len(prompt) - 1, len(o)) for n, o in zip(common, prompts)),
            "preempt": preempted,
            "preempt_part": part,
            "preempt_answer": part and answered >= 2,
        }
        does |= {kind for kind, true in facts.items() if true}
    return does
