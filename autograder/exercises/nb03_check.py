"""Exercise 3.3, check_positions: the learner writes the test; right and wrong prefills are put before it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from autograder.compare import error_text, printed_note
from autograder.exercise import Call, Callback, Exercise, Group, Outcome, Raised, Returned, Verdict
from autograder.exercises import kv
from autograder.exercises.nb03_check_answers import MISTAKES
from autograder.kept import known_mistakes
from course_lib.cache.pool import KVPool
from course_lib.diagnosis.faults import FAULTS, Scenario
from course_lib.model import Model
from course_lib.model_config import ModelConfig
from course_lib.positions import rope
from course_lib.prefill import one_pass, prefill

SOLUTION = "course_lib.lessons.nb03_positions:check_positions"
MAX_TOKENS = 160
# Seeds of weights under which some faults change the next token and others do not, so that a test of the next
# token alone can be told from a test that checks nothing; tests/test_checks.py makes sure of it.
WEIGHTS = (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
RIGHT_PREFILLS = {
    "plain": "a right prefill",
    "busy": "a right prefill with blocks of 4 tokens and two other requests in the batch",
}


class Mistake(NamedTuple):
    """A mistake of a wrong prefill, and how a test comes to refuse it."""

    what: str
    needs: str  # the kind of question that shows it, as in `usage`
    ask: str  # advice to a test that does not ask it
    compare: str  # advice to a test that asks it and still lets the mistake through


WRONG_PREFILLS = {
    "relative": Mistake(
        "q and k restart at position 0 in every chunk",
        "chunks",
        "cut the prompt into several chunks and compare K",
        "compare K, of every layer and in every bit",
    ),
    "q_only": Mistake(
        "only the queries restart in every chunk, the keys are right",
        "chunks",
        "cut the prompt into several chunks. Layer 0's K and V are clean there: compare every layer, in all bits",
        "compare K and V of every layer, in all bits; those of layer 0 are clean",
    ),
    "k_only": Mistake(
        "only the keys restart in every chunk, the queries are right",
        "chunks",
        "cut the prompt into several chunks and compare K",
        "compare K, of every layer and in every bit",
    ),
    "last_layer_keys": Mistake(
        "only the last layer's keys restart in every chunk, all others are right",
        "chunks",
        "cut the prompt into several chunks and compare K of every layer, or the logits",
        "compare K of every layer, or the logits, in every bit; no V shows it, since no layer comes behind the last",
    ),
    "chunk_index": Mistake(
        "each chunk starts at chunk index x length of the longest chunk",
        "ragged",
        "with equal chunks that is right: use ragged ones, a longer chunk after a shorter one",
        "compare K, of every layer and in every bit",
    ),
    "one_based": Mistake(
        "every position is counted from 1, in the prefix too",
        "reference",
        "it agrees with itself whatever the cut: compare with reference, and compare K, or all bits",
        "compare K, or all bits; of V and logits only the last bits change",
    ),
    "coarse_angles": Mistake(
        "positions are right, but the cosines and sines are rounded to bfloat16",
        "reference",
        "it agrees with itself whatever the cut: compare with reference, in every bit",
        "compare K in every bit, with np.array_equal; a tolerance lets it through, and V of layer 0 has no angle in it",
    ),
    "reset_at_prefix": Mistake(
        "the cached tokens are not counted",
        "hit",
        "without a hit that is right: pass a hit greater than 0",
        "compare K, of every layer and in every bit",
    ),
}
_ASKED = {
    "chunks": "You cut the prompt into several chunks",
    "ragged": "You use ragged chunks",
    "reference": "You call reference",
    "hit": "You pass a hit",
}


def cases(seed: int) -> list[Call]:
    """Every right and wrong prefill once, in an order and with weights that the seed chooses."""
    rng = np.random.default_rng(seed)
    weights = int(rng.choice(WEIGHTS))
    names = rng.permutation([*RIGHT_PREFILLS, *WRONG_PREFILLS]).tolist()
    reference = Callback("reference", (weights,))
    return [
        Call(
            (Callback("prefill_fn", (name, weights)), reference),
            "check_positions(prefill_fn, reference)",
            {"prefill": name},
        )
        for name in names
    ]


def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    """An AssertionError refuses a prefill, a normal return accepts it, and any other error is the test's own."""
    by_name = {c.facts["prefill"]: o for c, o in zip(calls, outcomes, strict=True)}
    for name in (*RIGHT_PREFILLS, *WRONG_PREFILLS):
        outcome = by_name[name]
        about = RIGHT_PREFILLS.get(name) or f"a wrong prefill, in which {WRONG_PREFILLS[name].what}"
        if isinstance(outcome, Raised) and outcome.type != "AssertionError":
            call = next(c for c in calls if c.facts["prefill"] == name)
            return Verdict(
                False,
                what=f"Given {about}, your test itself broke. {error_text(call, outcome)}{printed_note(outcome)}",
                which="Only an AssertionError counts as a refusal.",
            )
        if name in RIGHT_PREFILLS and isinstance(outcome, Raised):
            text = f" It said: {outcome.message}." if outcome.message else ""
            place = f" ({outcome.line})" if outcome.line else ""
            return Verdict(
                False,
                what=f"Your test refuses {about}{place}.{text}{printed_note(outcome)}",
                which="A right prefill equals reference(token_ids) in every bit of K, V and logits.",
            )
    survivors = [name for name in WRONG_PREFILLS if isinstance(by_name[name], Returned)]
    if not survivors:
        return Verdict(
            True, count=f"{len(RIGHT_PREFILLS)} right prefills accepted, {len(WRONG_PREFILLS)} wrong ones refused"
        )
    let_through = f"lets through {len(survivors)} of {len(WRONG_PREFILLS)} wrong prefills"
    if all(isinstance(o, Returned) and isinstance(o.value, np.ndarray) and o.value.dtype == bool for o in outcomes):
        what = f"Your test returns what it found, and no check reads that: use assert. So it {let_through}."
        return Verdict(False, what=what + printed_note(outcomes[0]), which=_unasked(outcomes))
    asked = [name for name in survivors if WRONG_PREFILLS[name].needs in usage(by_name[name])]
    alike = bool(asked) and _all_alike(outcomes)
    listed = "\n".join(f"  - {name}: {_advice(WRONG_PREFILLS[name], name in asked, alike)}" for name in survivors)
    what = f"Your test {let_through}:\n{listed}\n"
    which = _unasked(outcomes)
    if alike:
        what += (
            "All tokens of your prompt are alike, so all values are, and attention returns the same "
            "whatever it looks at.\n"
        )
        which = "Use a prompt of different tokens." + (f" {which}" if len(survivors) > len(asked) else "")
    return Verdict(False, what=what + printed_note(by_name[survivors[0]]), which=which)


def _advice(mistake: Mistake, asked: bool, alike: bool) -> str:
    """What is wrong, and what the test still has to do to refuse it.

    asked   the test has put the kind of question that shows the mistake
    alike   its prompt repeats one token: the fault may be there, and not in what it compares
    """
    if not asked:
        return f"{mistake.what}. To refuse it: {mistake.ask}."
    if alike:
        return f"{mistake.what}. To refuse it: use different tokens, and {mistake.compare}."
    seen = f"{_ASKED[mistake.needs]}, but what you compare does not show it"
    return f"{mistake.what}. {seen}. To refuse it: {mistake.compare}."


def _all_alike(outcomes: Sequence[Outcome]) -> bool:
    """Whether every prompt asked about repeats one token (and some prompt has more than one)."""
    prompts = [ids for o in outcomes for _, ids, *_ in o.asked]
    return all(len(set(ids)) == 1 for ids in prompts) and any(len(ids) > 1 for ids in prompts)


def _unasked(outcomes: Sequence[Outcome]) -> str:
    """What kind of question the test never put, over all the prefills it was given."""
    does = {name for o in outcomes for name in usage(o)}
    texts = {
        "prefill": "It never calls prefill_fn.",
        "reference": "It never calls reference.",
        "chunks": "It never cuts a prompt into more than one chunk.",
        "ragged": "No chunk of it is shorter than a later one.",
        "hit": "It never passes a hit.",
    }
    missing = [text for name, text in texts.items() if name not in does]
    if not missing:
        return (
            "What it asks for would show all of them; what it then compares does not. "
            "Compare K, V and logits with reference, in every bit."
        )
    return missing[0] if "prefill" not in does else " ".join(missing)


def usage(outcome: Outcome) -> frozenset[str]:
    """What kinds of question a test put to its two callbacks."""
    does = set()
    for name, *args in outcome.asked:
        if name == "reference":
            does.add("reference")
            continue
        _, sizes, hit = args
        does |= {"prefill"} | ({"chunks"} if len(sizes) > 1 else set()) | ({"hit"} if hit else set())
        does |= {"ragged"} if any(size < max(sizes) for size in sizes[:-1]) else set()
    return frozenset(does)


def same(a: Outcome, b: Outcome) -> bool:
    """Both refused (or broke in the same way), or both accepted after the same kinds of question, returning alike."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return isinstance(a, Raised) and isinstance(b, Raised) and a.type == b.type
    return (a.value is None) == (b.value is None) and usage(a) == usage(b)


def make_prefill(marker: Callback) -> Callable:
    """The prefill_fn(token_ids, sizes, hit) that a Callback("prefill_fn", (name, weights seed)) stands for."""

    def prefill_fn(token_ids, sizes, hit=0):
        return _copies(_run(*marker.data, *_plain(token_ids, sizes, hit)))

    return prefill_fn


def make_reference(marker: Callback) -> Callable:
    """The reference(token_ids) that a Callback("reference", (weights seed,)) stands for: one right pass."""

    def reference(token_ids):
        ids, *_ = _plain(token_ids, [1], 0)
        return _copies(_run("reference", *marker.data, ids, (len(ids),), 0))

    return reference


def _plain(token_ids, sizes, hit) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The arguments as integers; ValueError tells a learner what a prefill takes."""
    vocab = kv.model().config.vocab_size
    try:
        ids, sizes, hit = tuple(int(t) for t in token_ids), tuple(int(s) for s in sizes), int(hit)
    except (TypeError, ValueError):
        raise ValueError(
            "prefill_fn takes a list of token ids, a list of chunk lengths and a hit length, all whole numbers."
        ) from None
    if not 1 <= len(ids) <= MAX_TOKENS or min(ids) < 0 or max(ids) >= vocab:
        raise ValueError(f"token_ids must be 1 to {MAX_TOKENS} numbers from 0 to {vocab - 1}.")
    return ids, sizes, hit


def _copies(snapshot) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return snapshot.k.copy(), snapshot.v.copy(), snapshot.logits.copy()


@functools.lru_cache(maxsize=1024)
def _run(name: str, weights: int, ids: tuple[int, ...], sizes: tuple[int, ...], hit: int):
    model = kv.model(weights)
    if name == "reference":
        return one_pass(model, ids)
    if name == "busy":
        beside = [[(5 * i + r) % model.config.vocab_size for i in range(len(sizes) + 3 + r)] for r in (1, 2)]
        return prefill(model, ids, sizes, hit=hit, block_size=4, beside=beside)
    if name == "one_based":  # in the prefix too, so the prefix is computed here as a first chunk
        positions = lambda _, computed, take: np.arange(computed + 1, computed + take + 1)  # noqa: E731
        return prefill(model, ids, (hit, *sizes) if hit else sizes, positions=positions)
    if name == "chunk_index":
        starts = np.cumsum([0, *sizes]).tolist()
        positions = lambda cached, computed, take: cached + starts.index(computed) * max(sizes) + np.arange(take)  # noqa: E731
        return prefill(model, ids, sizes, hit=hit, positions=positions)
    if name == "last_layer_keys":
        return prefill(_last_keys_restart(model), ids, sizes, hit=hit)
    if name == "coarse_angles":
        return prefill(_coarse_angles(model), ids, sizes, hit=hit)
    return Scenario(model, ids, sizes, hit).run(FAULTS[_KNOWN[name]] if name in _KNOWN else None)


def _last_keys_restart(model: Model) -> Model:
    """The model for one request; its last layer rotates keys by positions counted from the start of their chunk."""
    model = copy.copy(model)
    model.new_pool = functools.partial(_pool_that_turns_back, model.config, model.new_pool)
    return model


def _pool_that_turns_back(config: ModelConfig, new_pool: Callable, *args) -> KVPool:
    pool = new_pool(*args)
    write, written = pool.write, 0

    def turned_back(layer, slots, k, v):
        nonlocal written
        if layer == config.num_layers - 1:  # the tokens before this chunk are the ones written so far
            k = rope(k, np.full(len(k), -written), config.rope_theta)
            written += len(k)
        write(layer, slots, k, v)

    pool.write = turned_back
    return pool


def _coarse_angles(model: Model) -> Model:
    """The model with its cosines and sines rounded to bfloat16, in every chunk and in the prefix."""
    model = copy.copy(model)
    exact = model._rope
    model._rope = lambda positions: tuple(_to_bfloat16(x) for x in exact(positions))
    return model


def _to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest number that bfloat16 has, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)


_KNOWN = {
    "relative": "chunk-relative positions",
    "q_only": "chunk-relative query positions",
    "k_only": "chunk-relative key positions",
    "reset_at_prefix": "positions reset at the prefix",
}


EXERCISE = Exercise(
    name="check_positions",
    groups=(Group("kills", cases, judge),),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 03, section 4.",
    callbacks={"prefill_fn": make_prefill, "reference": make_reference},
    solution=SOLUTION,
)
