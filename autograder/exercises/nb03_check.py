"""Exercise 3.3, check_positions: the learner writes the test; right and wrong prefills are put before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autograder.compare import error_text, printed_note
from autograder.exercise import Call, Callback, Group, Outcome, Raised, Returned, Verdict
from autograder.exercises.nb03_prefills import RIGHT, WRONG, drawn, make_prefill, make_reference
from autograder.kit import exercise
from autograder.plain import fits

SOLUTION = "course_lib.lessons.nb03_positions:check_positions"
MOST_SHOWN = 7  # wrong prefills that a message explains; the others it names
ASK = {  # by kind of question: what a test must ask
    "chunks": "cut the prompt into several chunks",
    "ragged": "use ragged chunks, a longer one after a shorter one, since with equal chunks that is right",
    "cold": "cut a prompt into several chunks without a hit, since behind a hit that is right",
    "hit": "pass a hit greater than 0, since without one that is right",
    "reference": "call reference, since the prefill agrees with itself whatever the cut",
}
ASKED = "What you ask brings out these, but what you compare does not show them:"
HIDDEN = "All tokens of your prompt are alike, so attention returns the same whatever it looks at. That may hide these:"
NEVER = {
    "prefill": "It never calls prefill_fn.",
    "reference": "It never calls reference.",
    "chunks": "It never cuts a prompt into more than one chunk.",
    "ragged": "No chunk of it is shorter than a later one.",
    "cold": "All its prompts that it cuts have a hit.",
    "hit": "It never passes a hit.",
}


def cases(seed: int) -> list[Call]:
    """Every right and wrong prefill once, in an order and with weights that the seed chooses."""
    key = int(np.random.default_rng(seed).integers(2**62))
    return [
        Call(
            (Callback("prefill_fn", (number, key)), Callback("reference", (key,))),
            "check_positions(prefill_fn, reference)",
            {"prefill": name},
        )
        for number, name in enumerate(drawn(key)[1])
    ]


def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    """An AssertionError refuses a prefill, a normal return accepts it, and any other error is the test's own."""
    by_name = {c.facts["prefill"]: o for c, o in zip(calls, outcomes, strict=True)}
    for name in (*RIGHT, *WRONG):
        outcome = by_name[name]
        if not isinstance(outcome, Raised) or (outcome.type == "AssertionError" and name in WRONG):
            continue
        about = RIGHT.get(name) or f"a wrong prefill, in which {WRONG[name].what}"
        if outcome.type != "AssertionError":
            what = f"Given {about}, your test itself broke. {error_text(calls[0], outcome)}"
            which = "Only an AssertionError counts as a refusal."
        else:
            text = f" It said: {outcome.message}." if outcome.message else ""
            what = f"Your test refuses {about}{f' ({outcome.line})' if outcome.line else ''}.{text}"
            which = "A right prefill equals reference(token_ids) in every bit of K, V and logits."
        return Verdict(False, what=what + printed_note(outcome), which=which)
    survivors = [name for name in WRONG if isinstance(by_name[name], Returned)]
    if not survivors:
        return Verdict(True, count=f"{len(RIGHT)} right prefills accepted, {len(WRONG)} wrong ones refused")
    let_through = f"lets through {len(survivors)} of {len(WRONG)} wrong prefills"
    if all(isinstance(o, Returned) and isinstance(o.value, np.ndarray) and o.value.dtype == bool for o in outcomes):
        what = f"Your test returns what it found, and no check reads that: use assert. So it {let_through}."
        return Verdict(False, what=what + printed_note(outcomes[0]), which=_unasked(outcomes))
    unasked = [name for name in survivors if WRONG[name].needs not in usage(by_name[name])]
    asked = [name for name in survivors if name not in unasked]
    alike = bool(asked) and _all_alike(outcomes)
    lines = [f"Your test {let_through}:"]
    for place, name in enumerate((unasked + asked)[:MOST_SHOWN]):
        needs, mistake, compare = WRONG[name]
        lines += [HIDDEN if alike else ASKED] * (place == len(unasked))
        todo = compare if name in asked else f"{ASK[needs]}. Then {compare}"
        lines.append(f"  - {name}: {mistake}. To refuse it: {todo}.")
    lines += [f"  - and {', '.join((unasked + asked)[MOST_SHOWN:])}."] * (len(survivors) > MOST_SHOWN)
    which = "" if alike and not unasked else _unasked(outcomes)
    what = "\n".join(lines) + "\n" + printed_note(by_name[survivors[0]])
    return Verdict(False, what=what, which=f"Use a prompt of different tokens. {which}".strip() if alike else which)


def _all_alike(outcomes: Sequence[Outcome]) -> bool:
    """Whether every prompt asked about repeats one token (and some prompt has more than one)."""
    prompts = [asked[1] for o in outcomes for asked in o.asked if len(asked) > 1 and fits(asked[1], [int])]
    return all(len(set(ids)) == 1 for ids in prompts) and any(len(ids) > 1 for ids in prompts)


def _unasked(outcomes: Sequence[Outcome]) -> str:
    """What kind of question the test never put, over all the prefills it was given."""
    does = {kind for outcome in outcomes for kind in usage(outcome)}
    missing = [text for kind, text in NEVER.items() if kind not in does and (kind != "cold" or "chunks" in does)]
    if not missing:
        return "Compare K, V and logits with reference, in every bit."
    return " ".join(missing if "prefill" in does else missing[:1])


def usage(outcome: Outcome) -> frozenset[str]:
    """What kinds of question a test put to its two callbacks: keys of NEVER."""
    does = set()
    for asked in outcome.asked:
        if fits(asked, (str, [int])):
            does.add("reference")
        elif fits(asked, (str, [int], [int], int)) and asked[2]:
            _, _, sizes, hit = asked
            ragged = any(size < max(sizes) for size in sizes[:-1])
            chunks = len(sizes) > 1
            kinds = {"prefill": True, "chunks": chunks, "ragged": ragged, "cold": chunks and not hit, "hit": hit > 0}
            does |= {kind for kind, put in kinds.items() if put}
    return frozenset(does)


def same(a: Outcome, b: Outcome) -> bool:
    """Both refused (or broke in the same way), or both accepted after the same kinds of question, returning alike."""
    if isinstance(a, Raised) and isinstance(b, Raised):
        return a.type == b.type and (a.type == "AssertionError" or a.message == b.message)
    accepted = isinstance(a, Returned) and isinstance(b, Returned)
    return accepted and (a.value is None) == (b.value is None) and usage(a) == usage(b)


MISTAKES = """
    accepts_everything
      | return None
    It asks nothing and refuses nothing.

    refuses_everything
      | assert False
    It refuses whatever it is given. A test that nothing can pass says nothing.

    returns_the_answer
      | token_ids = [(7 * i * i + 3 * i) % 128 for i in range(40)]
      | pairs = zip(prefill_fn(token_ids, [3, 19], 18), reference(token_ids))
      | return all(np.array_equal(got, want) for got, want in pairs)
    Nothing that a test returns counts. It refuses by raising: assert np.array_equal(...), once for each cut.

    always_true
      np.array_equal(got, want)  ->  got.shape == want.shape
    It asks for all that is needed and refuses nothing. It asserts what is always true, such as equal shapes, or it only
    prints, or catches its own AssertionError.

    any_for_all
      np.array_equal(got, want)  ->  (got == want).any()
    It is content with one equal number: .any() where .all() belongs, or a single index. A wrong cache holds many right
    numbers.

    v_of_layer_0
      np.array_equal(got, want)  ->  name != "v" or np.array_equal(got[0], want[0])
    It compares V of layer 0 alone. RoPE turns q and k and never v, and nothing comes before layer 0: that V is the same
    with any positions.

    k_of_layer_0
      np.array_equal(got, want)  ->  name != "k" or np.array_equal(got[0], want[0])
    It compares K of layer 0 alone. Wrong key positions show there. Wrong query positions pass through attention first
    and show from layer 1 on.

    k_of_the_last_layer
      np.array_equal(got, want)  ->  name != "k" or np.array_equal(got[-1], want[-1])
    It compares K of the last layer alone. Most mistakes reach it through the layers before. Misses: what went wrong in
    the last attention, and whatever was stored wrongly in an earlier layer when attention had read it.

    all_k
      np.array_equal(got, want)  ->  name != "k" or np.array_equal(got, want)
    It compares K alone. What the last layer's attention did shows in the logits only, and V is stored by itself.

    all_v
      np.array_equal(got, want)  ->  name != "v" or np.array_equal(got, want)
    It compares V alone, of every layer and in every bit. V shows what the layers before it did with positions, and no
    layer comes behind the last: its keys reach K and the logits only.

    no_v
      np.array_equal(got, want)  ->  name == "v" or np.array_equal(got, want)
    It compares K and the logits and leaves out V. A value that was stored wrongly after its attention ran shows nowhere
    else.

    no_logits
      np.array_equal(got, want)  ->  name == "logits" or np.array_equal(got, want)
    It compares K and V and leaves out the logits. The last layer's queries reach nothing else.

    all_logits
      np.array_equal(got, want)  ->  name != "logits" or np.array_equal(got, want)
    It compares the logits alone. They are made of what attention read; what is left in the cache may be something else.

    argmax
      ([5, 20, 15], 0), ([3, 19], 18)  ->  ([2, 38], 0), ([1, 37], 2)
      np.array_equal(got, want)  ->  name != "logits" or got.argmax() == want.argmax()
    It compares the most likely next token. That token often stays the same when the cache is wrong: compare bits.

    close_v
      np.array_equal(got, want)  ->  name == "k" or np.allclose(got, want, atol=1e-4)
    It compares V and logits within a tolerance. Attention depends on differences of positions, so when all are one too
    large only the last bits of V and logits change. K itself is turned further.

    tolerance
      np.array_equal(got, want)  ->  np.allclose(got, want, atol=0.1)
    It compares K, V and logits within a wide tolerance. A small mistake changes bits too: the arithmetic here is exact,
    so compare with np.array_equal.

    allclose
      np.array_equal(got, want)  ->  np.allclose(got, want)
    It compares within a small tolerance: np.allclose is content with five equal digits. Right results are equal in
    every bit here, so compare with np.array_equal.

    sums
      np.array_equal(got, want)  ->  got.sum() == want.sum()
    It compares sums. Numbers that have changed places have the same sum, and a last bit gets lost in it.

    last_token
      np.array_equal(got, want)  ->  np.array_equal(*(x if name == "logits" else x[:, -1] for x in (got, want)))
    It compares K and V of the last token alone. Most mistakes reach it through attention. What was overwritten after
    that does not.

    behind_the_hit
      np.array_equal(got, want)  ->  np.array_equal(*(x if name == "logits" else x[:, hit:] for x in (got, want)))
    It compares K and V behind the hit. The cached tokens belong to the request too: a prefill may spoil them.

    equal_chunks
      ([5, 20, 15], 0), ([3, 19], 18)  ->  ([10] * 4, 0), ([8, 8, 6], 18)
    All its chunks are equally long, except for a shorter last one: chunk index x chunk length is then the right start.

    no_hit
      ([5, 20, 15], 0), ([3, 19], 18)  ->  ([5, 20, 15], 0), ([1, 39], 0)
    It has no hit: nothing tells it whether cached tokens are counted, and what becomes of them.

    one_chunk
      ([5, 20, 15], 0), ([3, 19], 18)  ->  ([40], 0)
    Its only chunk is the whole prompt: in the first chunk relative and absolute positions are the same.

    against_itself
      reference(token_ids)  ->  prefill_fn(token_ids, [40], 0)
    It compares the prefill with the same prefill in one pass: a mistake that is the same in every cut agrees with
    itself.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[Group("kills", cases, judge)],
    mistakes=MISTAKES,
    reread="Reread notebook 03, section 4.",
    same=same,
    kind_only=True,
    callbacks={"prefill_fn": make_prefill, "reference": make_reference},
)
