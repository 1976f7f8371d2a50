"""Exercise 8.4, check_composition: the learner writes the test; right and wrong engines are put before it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from autograder.compare import error_text, printed_note
from autograder.exercise import Call, Callback, Exercise, Group, Outcome, Raised, Returned, Verdict
from autograder.exercises import nb08_composition_answers
from autograder.exercises.nb08_engines import make_reference, make_serve
from autograder.exercises.nb08_faults import BLOCK
from autograder.kept import known_mistakes

LABEL = "check_composition(serve, reference)"
REFUSALS = ("AssertionError", "EngineStopped")  # the second comes out of serve, when the engine cannot go on
WEIGHTS = tuple(range(12))  # seeds of weights
RIGHT_ENGINES = {
    "plain": "a right engine",
    "busy": "a right engine, in which two other users decode in every step",
    "tree": "a right engine whose cache is a radix tree",
}


class Mistake(NamedTuple):
    """A mistake of a wrong engine, and how a test comes to refuse it."""

    what: str
    needs: str  # the kind of question that shows it, as in `usage`
    ask: str  # advice to a test that does not ask it
    compare: str  # advice to a test that asks it and still lets the mistake through


_KV = "compare K, V and logits with reference(tokens), in every bit"
_HIT = "K, V and logits are right, only too much is computed: compare `hit` with what it should be"
MISTAKES = {
    "behind_a_hit": {
        "tail_from_0": Mistake(
            "positions behind a hit begin at 0", "hit", "serve a prompt that begins like an earlier one", _KV
        ),
        "on_chunk_grid": Mistake(
            "the first position of a chunk is taken as a multiple of the chunk size",
            "uneven",
            "serve a prompt whose hit is no multiple of the chunk size",
            _KV,
        ),
        "part_block": Mistake(
            "a block is recognised by its first token, so one that is shared in part is attached as a whole",
            "part",
            "let two prompts part inside a block",
            _KV,
        ),
        "full_hit": Mistake(
            "a prompt is attached to its last token, and nothing is left to compute (nano-vllm, issue 144)",
            "whole",
            "serve one prompt twice, with a length that is a multiple of the block size",
            "such an engine stops by itself; do not catch that",
        ),
        "left_before_hit": Mistake(
            "what is left to compute is counted before the hit is known, so a chunk runs past the prompt's end "
            "(nano-vllm, pull request 207)",
            "hit",
            "serve a prompt that begins like an earlier one",
            "it shows where the last chunk is not a full one: choose lengths that do not fit the chunk size",
        ),
        "last_token": Mistake(
            "behind a hit the prompt's last token is never computed",
            "hit",
            "serve a prompt that begins like an earlier one",
            "compare K and V of all tokens, or the logits, with reference(tokens)",
        ),
        "sees_ahead": Mistake(
            "a chunk that does not end the prompt reads keys behind its own queries (nano-vllm, issue 212)",
            "chunks",
            "serve a prompt that is longer than the chunk size",
            "compare K and V of every layer with reference(tokens); those of layer 0 are clean",
        ),
    },
    "saved": {
        "never_hits": Mistake(
            "nothing is ever found in the cache", "hit", "serve a prompt that begins like an earlier one", _HIT
        ),
        "whole_chunks": Mistake(
            "only chunks that are cached from end to end are skipped",
            "uneven",
            "serve a prompt whose hit is no multiple of the chunk size",
            _HIT,
        ),
        "chunk_then_match": Mistake(
            "the first chunk is cut before the look-up, so no hit is longer than a chunk (dynamo, issue 13188)",
            "long",
            "serve a prompt that has more than a chunk in common with an earlier one",
            _HIT,
        ),
        "hash_from_chunk": Mistake(
            "the chain of block hashes begins anew in every chunk, so blocks of later chunks are not found again",
            "long",
            "serve a prompt that has more than a chunk in common with an earlier one",
            _HIT,
        ),
    },
    "order": {
        "publishes_early": Mistake(
            "blocks are found as soon as they are allocated, before anything is written into them (see "
            "nano-vllm, issue 208)",
            "together",
            "serve two prompts with a common beginning together",
            _KV,
        ),
        "keeps_computed": Mistake(
            "after a preemption a request goes on where it had stopped, though its last, partly filled block is gone",
            "preempt_part",
            "preempt after a step that ends inside a block",
            _KV,
        ),
        "prompt_only": Mistake(
            "after a preemption the prompt is computed again, and the answer's tokens are not (akin to "
            "nano-vllm, issue 144)",
            "preempt_answer",
            "ask for an answer of several tokens, and preempt when two or more are there, one is still to come, and "
            "the last block is not full",
            _KV,
        ),
    },
}
_ASKED = {
    "chunks": "You serve a prompt in several chunks",
    "hit": "You serve a prompt that begins like an earlier one",
    "uneven": "You have a hit that is no multiple of the chunk size",
    "part": "You let two prompts part inside a block",
    "whole": "You serve a prompt that is cached from end to end",
    "long": "You have a hit that is longer than a chunk",
    "together": "You serve two prompts with a common beginning together",
    "preempt_part": "You preempt inside a block",
    "preempt_answer": "You preempt in the middle of an answer",
}


def cases(group: str, seed: int) -> list[Call]:
    """Every right engine and the group's wrong ones once, in an order and with weights that the seed chooses."""
    rng = np.random.default_rng(seed)
    weights = int(rng.choice(WEIGHTS))
    names = rng.permutation([*RIGHT_ENGINES, *MISTAKES[group]]).tolist()
    reference = Callback("reference", (weights,))
    return [Call((Callback("serve", (name, weights)), reference), LABEL, {"engine": name}) for name in names]


def judge(group: str, calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    """An AssertionError refuses an engine, a normal return accepts it, and any other error is the test's own."""
    mistakes = MISTAKES[group]
    by_name = {c.facts["engine"]: o for c, o in zip(calls, outcomes, strict=True)}
    for name in (*RIGHT_ENGINES, *mistakes):
        outcome = by_name[name]
        about = RIGHT_ENGINES.get(name) or f"a wrong engine, in which {mistakes[name].what}"
        if isinstance(outcome, Raised) and outcome.type not in REFUSALS:
            return Verdict(
                False,
                what=f"Given {about}, your test itself broke. {error_text(calls[0], outcome)}{printed_note(outcome)}",
                which="Only an AssertionError counts as a refusal.",
            )
        if name in RIGHT_ENGINES and isinstance(outcome, Raised):
            text = f" It said: {outcome.message}." if outcome.message else ""
            place = f" ({outcome.line})" if outcome.line else ""
            return Verdict(
                False,
                what=f"Your test refuses {about}{place}.{text}{printed_note(outcome)}",
                which="In a right engine K, V and logits equal reference(tokens) in every bit. A hit is in whole "
                "blocks and leaves a token to compute.",
            )
    survivors = [name for name in mistakes if isinstance(by_name[name], Returned)]
    if not survivors:
        return Verdict(True, count=f"{len(RIGHT_ENGINES)} right engines accepted, {len(mistakes)} wrong ones refused")
    let_through = f"lets through {len(survivors)} of {len(mistakes)} wrong engines"
    if all(isinstance(o, Returned) and isinstance(o.value, np.ndarray) and o.value.dtype == bool for o in outcomes):
        what = f"Your test returns what it found, and no check reads that: use assert. So it {let_through}."
        return Verdict(False, what=what + printed_note(outcomes[0]))
    listed = "\n".join(f"  - {name}: {_advice(mistakes[name], by_name[name])}" for name in survivors)
    what = f"Your test {let_through}:\n{listed}\n"
    return Verdict(False, what=what + printed_note(by_name[survivors[0]]), which=_unasked(outcomes))


def _advice(mistake: Mistake, outcome: Outcome) -> str:
    """What is wrong, and what the test still has to do to refuse it."""
    if mistake.needs not in usage(outcome):
        return f"{mistake.what}. To refuse it: {mistake.ask}."
    return f"{mistake.what}. {_ASKED[mistake.needs]}, but what you compare does not show it: {mistake.compare}."


def _unasked(outcomes: Sequence[Outcome]) -> str:
    does = {name for o in outcomes for name in usage(o)}
    if "serve" not in does:
        return "It never calls serve."
    return "" if "reference" in does else "It never calls reference."


def usage(outcome: Outcome) -> frozenset[str]:
    """What kinds of question a test put to its two callbacks."""
    does = set()
    for name, *args in outcome.asked:
        does |= {"reference"} if name == "reference" else _kinds(*args)
    return frozenset(does)


def _kinds(prompts, chunk: int, answer: int, together: bool, preempt: int) -> set[str]:
    prompts = [[int(t) for t in prompt] for prompt in prompts]
    does = {"serve"}
    for place, prompt in enumerate(prompts):
        common = [_common(prompt, other) for other in prompts[:place]]
        shared = max(common, default=0)
        if together:
            does |= {"together"} if shared >= BLOCK else set()
            shared, common = 0, []
        hit = min(shared, len(prompt) - 1) // BLOCK * BLOCK
        facts = {
            "chunks": len(prompt) - hit > chunk,
            "hit": hit > 0,
            "long": hit > chunk,
            "uneven": hit % chunk > 0,
            "whole": shared == len(prompt) and len(prompt) % BLOCK == 0,
            "part": any(n % BLOCK and n < min(len(prompt), len(o)) for n, o in zip(common, prompts)),
        }
        does |= {kind for kind, true in facts.items() if true}
        steps = -(-(len(prompt) - hit) // chunk)  # until its first token
        answered = preempt - steps + 1
        if 0 < preempt and answered < answer:
            computed = len(prompt) + answered - 1 if answered > 0 else hit + preempt * chunk
            if computed % BLOCK:  # what stands in full blocks is found again
                does |= {"preempt_part"} | ({"preempt_answer"} if answered >= 2 else set())
    return does


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def same(a: Outcome, b: Outcome) -> bool:
    """Both refused (or broke in the same way), or both accepted after the same kinds of question, returning alike."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return isinstance(a, Raised) and isinstance(b, Raised) and _type(a) == _type(b)
    return (a.value is None) == (b.value is None) and usage(a) == usage(b)


def _type(outcome: Raised) -> str:
    return REFUSALS[0] if outcome.type in REFUSALS else outcome.type


def _group(name: str) -> Group:
    made: tuple[Callable, Callable] = functools.partial(cases, name), functools.partial(judge, name)
    return Group(name, *made)


SOLUTION = "course_lib.lessons.nb08_both:check_composition"

EXERCISE = Exercise(
    name="check_composition",
    solution=SOLUTION,
    groups=(_group("behind_a_hit"), _group("saved"), _group("order")),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, nb08_composition_answers.MISTAKES),
    reread="Reread notebook 08, section 5.",
    callbacks={"serve": make_serve, "reference": make_reference},
)
