"""Exercise 8.4, check_composition: the learner writes the test; right and wrong engines are put before it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from autograder.compare import error_text, printed_note
from autograder.exercise import Call, Callback, Group, Outcome, Raised, Returned, Verdict
from autograder.exercises.nb08_engines import make_reference, make_serve
from autograder.exercises.nb08_faults import ASKS, FAULTS, RIGHT, Fault, key_of, usage
from autograder.kit import draws, exercise

SOLUTION = "course_lib.lessons.nb08_both:check_composition"
LABEL = "check_composition(serve, reference)"
REFUSALS = ("AssertionError", "EngineStopped")  # the second comes out of serve, when the engine cannot go on
WEIGHTS = tuple(range(12))  # seeds of weights


def cases(group: str, seed: int) -> list[Call]:
    """Every right engine and the group's wrong ones once, in an order and with weights that the seed chooses."""
    draw = draws(seed)
    weights = WEIGHTS[draw(0, len(WEIGHTS))]
    names = sorted([*RIGHT, *FAULTS[group]], key=lambda name: draw(0, 1 << 62))
    reference = Callback("reference", (weights,))
    return [Call((Callback("serve", (weights, key_of(n, draw))), reference), LABEL, {"engine": n}) for n in names]


def judge(group: str, calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    """An AssertionError refuses an engine, a normal return accepts it, and any other error is the test's own."""
    faults = FAULTS[group]
    by_name = {c.facts["engine"]: o for c, o in zip(calls, outcomes, strict=True)}
    for name in (*RIGHT, *faults):
        outcome = by_name[name]
        about = RIGHT.get(name) or f"a wrong engine, in which {faults[name].what}"
        if isinstance(outcome, Raised) and outcome.type not in REFUSALS:
            what = f"Given {about}, your test itself broke. {error_text(calls[0], outcome)}{printed_note(outcome)}"
            return Verdict(False, what=what, which="Only an AssertionError counts as a refusal.")
        if name in RIGHT and isinstance(outcome, Raised):
            text = f" It said: {outcome.message}." if outcome.message else ""
            place = f" ({outcome.line})" if outcome.line else ""
            return Verdict(
                False,
                what=f"Your test refuses {about}{place}.{text}{printed_note(outcome)}",
                which="In a right engine K, V and logits equal reference(tokens) in every bit. A hit is in whole "
                "blocks and leaves a token to compute; with together=True, and after a preemption, right engines "
                "differ in it.",
            )
    survivors = [name for name in faults if isinstance(by_name[name], Returned)]
    if not survivors:
        return Verdict(True, count=f"{len(RIGHT)} right engines accepted, {len(faults)} wrong ones refused")
    what = f"lets through {len(survivors)} of {len(faults)} wrong engines"
    if all(isinstance(o, Returned) and isinstance(o.value, np.ndarray) and o.value.dtype == bool for o in outcomes):
        what = f"Your test returns what it found, and no check reads that: use assert. So it {what}."
        return Verdict(False, what=what + printed_note(outcomes[0]))
    listed: dict[str, list[str]] = {}  # by advice
    for name in survivors:
        listed.setdefault(_advice(faults[name], by_name[name]), []).append(f"  - {name}: {faults[name].what}.\n")
    lines = "".join("".join(those) + f"    {advice}.\n" for advice, those in listed.items())
    return Verdict(
        False, what=f"Your test {what}:\n{lines}" + printed_note(by_name[survivors[0]]), which=_unasked(outcomes)
    )


def _advice(fault: Fault, outcome: Outcome) -> str:
    """What the test still has to do to refuse it."""
    if fault.needs not in usage(outcome):
        return f"To see this: {ASKS[fault.needs]}"
    return f"You ask for this, but what you compare does not show it: {fault.compare}"


def _unasked(outcomes: Sequence[Outcome]) -> str:
    does = {name for o in outcomes for name in usage(o)}
    if "serve" not in does:
        return "It never calls serve."
    return "" if "reference" in does else "It never calls reference."


def same(a: Outcome, b: Outcome) -> bool:
    """Both refused (or broke in the same way), or both accepted after the same kinds of question, returning alike.

    Over all calls: the same engines were accepted, with the same kinds of question.
    """

    def did(o: Outcome):
        return (o.value is None, usage(o)) if isinstance(o, Returned) else o.type in REFUSALS or (o.type, o.message)

    return did(a) == did(b)


MISTAKES = r"""
    accepts_everything
      | return None
    It asks nothing and refuses nothing.

    refuses_everything
      | assert False
    It refuses whatever it is given. A test that nothing can pass says nothing.

    returns_the_answer
      | a = [(7 * i * i + 3 * i) % 128 for i in range(24)]
      | b = a[:18] + [5, 4, 3, 2, 1]
      | *_, (tokens, hit, *left) = serve([a, b, a], 7)
      | return hit == 20 and all(map(np.array_equal, left, reference(tokens)))
    Nothing that a test returns counts. It refuses by raising: assert np.array_equal(...).

    one_prompt
      serve([a, b, a], 7)  ->  serve([a], 7)
      one_by_one + serve([a, b], 6, together=True) + serve([a], 6, answer=3, preempt=5)  ->  one_by_one
      [0, 16, 20]  ->  [0]
    It serves one prompt alone. So it tests chunks, and nothing is ever attached.

    whole_prompts
      serve([a, b, a], 7)  ->  serve([a, b, a], 40)
      one_by_one + serve([a, b], 6, together=True) + serve([a], 6, answer=3, preempt=5)  ->  one_by_one
    Its chunks are longer than its prompts. So it tests the cache, and nothing is ever cut.

    no_hits
      assert hits == [0, 16, 20], f"hits of {hits}"  ->
    It compares K, V and logits and never looks at `hit`. A cache that is not used passes every comparison of bits:
    assert how many tokens were attached.

    hits_only
      one_by_one + serve([a, b], 6, together=True) + serve([a], 6, answer=3, preempt=5)  ->  []
    It looks at the lengths of the hits alone. Whether what was attached is right, and what was computed behind it,
    shows in K, V and the logits.

    never_preempts
      together=True) + serve([a], 6, answer=3, preempt=5)  ->  together=True)
    It has no preemption. A request that lost its blocks looks its prompt up again and finds what it has published
    itself: that is a separate path through the code.

    one_after_the_other
      one_by_one + serve([a, b], 6, together=True)  ->  one_by_one
    Every prompt waits for the one before. What is found too early shows only while its owner still computes it: serve
    two prompts together.

    preempts_the_prompt
      answer=3, preempt=5  ->  preempt=1
    It preempts before the first answer token. Afterwards there is more to compute again than the prompt.

    even_lengths
      a[:18]  ->  a[:16]
      serve([a, b, a], 7)  ->  serve([a, b, a], 8)
    Its prompts part at a block's end. Let them part inside a block.

    never_twice
      [a, b, a]  ->  [a, b]
      [0, 16, 20]  ->  [0, 16]
    It never serves a prompt a second time. A prompt that is cached from end to end is the one case in which nothing
    seems left to compute.

    k_of_layer_0
      ("k", "v", "logits")  ->  ["k"]
      np.array_equal(got, want)  ->  np.array_equal(got[0], want[0])
    It compares K alone, perhaps only that of layer 0. Layer 0's K and V are made before any attention: what was read
    wrongly shows from layer 1 on, and in the logits.

    first_prompt_only
      serve([a, b, a], 7)  ->  serve([a, b], 7)[:1]
      serve([a, b], 6, together=True) + serve([a], 6, answer=3, preempt=5)  ->  serve([a, b], 6, together=True)[:1]
      [0, 16, 20]  ->  [0]
    It compares the first prompt alone. The first one finds the cache empty: compare the later ones too.

    logits_only
      ("k", "v", "logits"), left, reference(tokens))  ->  ["logits"], left[2:], reference(tokens)[2:])
    It compares the logits, and not all of K and V. The logits can be right while the cache holds wrong K and V, and
    then the next request that attaches these is wrong: compare K and V too.

    keys_and_values_only
      ("k", "v", "logits")  ->  ("k", "v")
    It compares K and V, and the logits not at all or not in every bit. What the last layer's attention reads wrongly,
    and which row the answer is taken from, shows in the logits alone.

    values_of_the_last_layer
      ("k", "v", "logits"), left, reference(tokens))  ->  ["v"], left[1][-1:], reference(tokens)[1][-1:])
    It compares V alone, perhaps only that of the last layer. K, other layers and the logits can be wrong while it is
    right.

    computed_tokens_only
      np.array_equal(got, want)  ->  np.array_equal(*(x[:, hit:] if x.ndim > 1 else x for x in (got, want)))
    It leaves out the attached tokens. These are read in every later step, and other requests attach them as well.

    hits_together
      + serve([a, b], 6, together=True)  ->  + (pair := serve([a, b], 6, together=True))
      hits = [hit  ->  assert [r[1] for r in pair] == [0, 0]\nhits = [hit
    It demands a certain hit of prompts that come together. A right engine may find the blocks of a prompt in the step
    that computes them: compare K, V and logits there, and no hit.

    hit_after_preemption
      serve([a], 6, answer=3, preempt=5)  ->  (again := serve([a], 6, answer=3, preempt=5))
      hits = [hit  ->  assert again[0][1] == 24\nhits = [hit
    It demands a certain hit after a preemption. Other requests may have taken these blocks, and then a right engine
    computes them again: compare K, V and logits there, and no hit.

    any_element
      np.array_equal(got, want)  ->  (got == want).any()
    It accepts an array of which most is wrong, as .any() does: that is true if a single comparison is. All must be
    equal: .all().

    tolerance
      np.array_equal(got, want)  ->  np.allclose(got, want)
    It passes over small differences. Nothing rounds differently in exact arithmetic, so each last bit that differs is a
    fault: compare with np.array_equal.
"""


def _group(name: str) -> Group:
    return Group(name, functools.partial(cases, name), functools.partial(judge, name))


EXERCISE = exercise(
    SOLUTION,
    mistakes=MISTAKES,
    groups=[_group("behind_a_hit"), _group("saved"), _group("order")],
    same=same,
    kind_only=True,
    reread="Reread notebook 08, section 5.",
    callbacks={"serve": make_serve, "reference": make_reference},
)
