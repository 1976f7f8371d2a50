"""Kept answers to exercise 8.4: tests of an engine that miss something, and tests that do not."""

from __future__ import annotations

from autograder.exercise import WrongAnswer

PROMPTS = "    a = [(7 * i * i + 3 * i) % 128 for i in range(24)]\n    b = a[:18] + [5, 4, 3, 2, 1]\n"
BITS = "assert np.array_equal(k, k0) and np.array_equal(v, v0) and np.array_equal(logits, logits0)"
WARM = "([a, b, a], 7, {}, [0, 16, 20])"
TOGETHER = "([a, b], 6, {'together': True}, None)"
PREEMPT = "([a], 6, {'answer': 3, 'preempt': 5}, None)"


def _test(body: str, prompts: str = PROMPTS) -> str:
    return f"def check_composition(serve, reference):\n{prompts}" + "".join(f"    {x}\n" for x in body.splitlines())


def _cases(*cases: str, bits: str = BITS, hits: bool = True, prompts: str = PROMPTS) -> str:
    """A test that goes through (prompts, chunk, options, hits) and compares what each prompt left."""
    body = f"""\
for prompts, chunk, options, hits in [{", ".join(cases)}]:
    results = serve(prompts, chunk, **options)
    for tokens, hit, k, v, logits in results:
        k0, v0, logits0 = reference(tokens)
        {bits}
"""
    if hits:
        body += "    assert hits is None or [hit for _, hit, *_ in results] == hits\n"
    return _test(body, prompts)


WRONG = (
    WrongAnswer("accepts_everything", _test("return None"), "It asks nothing and refuses nothing."),
    WrongAnswer(
        "refuses_everything",
        _test("assert False"),
        "It refuses whatever it is given. A test that nothing can pass says nothing.",
    ),
    WrongAnswer(
        "returns_the_answer",
        _test("""\
*_, (tokens, hit, k, v, logits) = serve([a, b, a], 7)
k0, v0, logits0 = reference(tokens)
return hit == 20 and np.array_equal(k, k0) and np.array_equal(v, v0) and np.array_equal(logits, logits0)"""),
        "Nothing that a test returns counts. It refuses by raising: assert np.array_equal(...).",
    ),
    WrongAnswer(
        "one_prompt",
        _cases("([a], 7, {}, [0])"),
        "A test that serves one prompt alone does exactly this. It tests chunks, and nothing is ever attached.",
    ),
    WrongAnswer(
        "whole_prompts",
        _cases("([a, b, a], 40, {}, [0, 16, 20])"),
        "A test whose chunks are longer than its prompts does exactly this. It tests the cache; nothing is ever cut.",
    ),
    WrongAnswer(
        "no_hits",
        _cases(WARM, TOGETHER, PREEMPT, hits=False),
        "A test that compares K, V and logits and never looks at `hit` does exactly this. A cache that is not used "
        "passes every comparison of bits: assert how many tokens were attached.",
    ),
    WrongAnswer(
        "hits_only",
        _test("assert [hit for _, hit, *_ in serve([a, b, a], 7)] == [0, 16, 20]"),
        "A test that looks at the lengths of the hits alone does exactly this. Whether what was attached is right, and "
        "what was computed behind it, shows in K, V and the logits.",
    ),
    WrongAnswer(
        "never_preempts",
        _cases(WARM, TOGETHER),
        "A test without a preemption does exactly this. A request that lost its blocks looks its prompt up again and "
        "finds what it has published itself: that is a separate path through the code.",
    ),
    WrongAnswer(
        "one_after_the_other",
        _cases(WARM, PREEMPT),
        "A test in which every prompt waits for the one before does exactly this. What is found too early shows only "
        "while its owner still computes it: serve two prompts together.",
    ),
    WrongAnswer(
        "preempts_the_prompt",
        _cases(WARM, TOGETHER, "([a], 6, {'preempt': 1}, None)"),
        "A test that preempts before the first answer token does exactly this. Afterwards there is more to compute "
        "again than the prompt.",
    ),
    WrongAnswer(
        "even_lengths",
        _cases(
            "([a, b, a], 8, {}, [0, 16, 20])",
            TOGETHER,
            PREEMPT,
            prompts=PROMPTS.replace("a[:18] + [5, 4, 3, 2, 1]", "a[:16] + [5, 4, 3, 2, 1]"),
        ),
        "A test whose prompts part at a block's end does exactly this. Let them part inside a block.",
    ),
    WrongAnswer(
        "never_twice",
        _cases("([a, b], 7, {}, [0, 16])", TOGETHER, PREEMPT),
        "A test that never serves a prompt a second time does exactly this. A prompt that is cached from end to end is "
        "the one case in which nothing seems left to compute.",
    ),
    WrongAnswer(
        "k_of_layer_0",
        _cases(WARM, TOGETHER, PREEMPT, bits="assert k.shape == k0.shape and np.array_equal(k[0], k0[0])"),
        "A test that compares K of layer 0 does exactly this. Those are made before any attention: what was read "
        "wrongly shows from layer 1 on.",
    ),
    WrongAnswer(
        "first_prompt_only",
        _test(
            """\
for prompts, chunk, options in [([a, b], 7, {}), ([a, b], 6, {"together": True})]:
    tokens, hit, k, v, logits = serve(prompts, chunk, **options)[0]
    k0, v0, logits0 = reference(tokens)
    """
            + BITS
        ),
        "A test that compares the first prompt alone does exactly this. The first one finds the cache empty: compare "
        "the later ones too.",
    ),
)

RIGHT = (
    _cases(WARM, TOGETHER, PREEMPT),
    _test("""\
a, b = list(range(20)), list(range(14)) + [99] * 5
runs = [serve([a, b, a], 5), serve([a, b], 9, 1, True), serve([a], 6, answer=4, preempt=6)]
for tokens, hit, k, v, logits in [one for run in runs for one in run]:
    (same, _, *cold), = serve([tokens], 100)
    assert same == tokens
    for got, want in zip((k, v, logits), cold):
        np.testing.assert_array_equal(got, want)
assert runs[0][1][1] == 12 and runs[0][2][1] == 16"""),
    _test("""\
rng = np.random.default_rng(3)
base = rng.integers(0, 128, 20).tolist()
def bits(results):
    for tokens, _, k, v, logits in results:
        for got, want in zip((k, v, logits), reference(tokens)):
            if got.tobytes() != want.tobytes():
                raise AssertionError(f"other bits for {len(tokens)} tokens")
for cut in (9, 14, 20):
    other = base[:cut] + rng.integers(0, 128, 6).tolist() if cut < 20 else base
    other[cut : cut + 1] = [(base[cut] + 1) % 128] if cut < 20 else []
    results = serve([base, other], 5)
    bits(results)
    if results[1][1] != min(cut, len(other) - 1) // 4 * 4:
        raise AssertionError(f"a hit of {results[1][1]} for {cut} shared tokens")
bits(serve([base, base], 5, together=True))
bits(serve([base], 5, answer=5, preempt=6))"""),
)
