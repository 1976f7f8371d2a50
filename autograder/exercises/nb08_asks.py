"""What kinds of question a test of exercise 8.4 puts to an engine."""

from __future__ import annotations

from collections.abc import Sequence

from autograder.exercise import Outcome
from autograder.exercises.nb08_parts import BLOCK

ASKS = {  # kind: what a test does that asks it, "You ...", and what to tell one that does not
    "chunks": ("serve a prompt in several chunks", "serve a prompt that is longer than the chunk size"),
    "hit": ("serve a prompt that begins like an earlier one",) * 2,
    "uneven": ("have a hit that is no multiple of the chunk size",) * 2,
    "part": (
        "let two prompts part inside a block",
        "let two prompts part inside a block that both fill, and go on behind it",
    ),
    "whole": (
        "serve a prompt that is cached from end to end",
        "serve one prompt twice, with a length that is a multiple of the block size",
    ),
    "long": (
        "have a hit that is longer than a chunk",
        "serve a prompt that has more than a chunk in common with an earlier one",
    ),
    "together": ("serve two prompts together that have more than a chunk in common",) * 2,
    "preempt": ("preempt a request", "preempt a request before its answer is there"),
    "preempt_part": ("preempt inside a block", "preempt after a step that ends inside a block"),
    "preempt_answer": (
        "preempt in the middle of an answer",
        "ask for an answer of several tokens, and preempt when two or more are there, one is still to come, and the "
        "last block is not full",
    ),
}


def usage(outcome: Outcome) -> frozenset[str]:
    """What kinds of question a test put to its two callbacks."""
    does = set()
    for name, *args in outcome.asked:
        does.add(name)
        try:
            does |= _kinds(*args) if name == "serve" else set()
        except (TypeError, ValueError, OverflowError):  # asked in a way that serve understood and this does not
            pass
    return frozenset(does)


def _kinds(prompts, chunk: int, answer: int, together: bool, preempt: int) -> set[str]:
    prompts, does = [[int(t) for t in prompt] for prompt in prompts], set()
    for place, prompt in enumerate(prompts):
        common = [_common(prompt, other) for other in prompts[:place]]
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
            "whole": shared == len(prompt) and len(prompt) % BLOCK == 0,
            "part": any(n % BLOCK and _up(n) <= min(len(prompt) - 1, len(o)) for n, o in zip(common, prompts)),
            "preempt": preempted,
            "preempt_part": part,
            "preempt_answer": part and answered >= 2,
        }
        does |= {kind for kind, true in facts.items() if true}
    return does


def _up(tokens: int) -> int:
    return -(-tokens // BLOCK) * BLOCK


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
