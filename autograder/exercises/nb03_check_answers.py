"""Kept answers to exercise 3.3: tests of a prefill that miss something, and tests that do not."""

from __future__ import annotations

from autograder.exercise import WrongAnswer


def _test(body: str, ids: str = "[(7 * i * i + 3 * i) % 128 for i in range(40)]") -> str:
    return f"def check_positions(prefill_fn, reference):\n    ids = {ids}\n" + "".join(
        f"    {line}\n" for line in body.splitlines()
    )


def _cuts(compare: str, cuts: str = "([5, 20, 15], 0), ([3, 19], 18)") -> str:
    """A test that goes through `cuts` and makes one comparison for each."""
    return _test(f"""\
k0, v0, logits0 = reference(ids)
for sizes, hit in [{cuts}]:
    k, v, logits = prefill_fn(ids, sizes, hit)
    {compare}""")


ALL = "assert np.array_equal(k, k0) and np.array_equal(v, v0) and np.array_equal(logits, logits0)"

WRONG = (
    WrongAnswer("accepts_everything", _test("return None"), "It asks nothing and refuses nothing."),
    WrongAnswer(
        "refuses_everything",
        _test("assert False"),
        "It refuses whatever it is given. A test that nothing can pass says nothing.",
    ),
    WrongAnswer(
        "returns_the_answer",
        _cuts("same = np.array_equal(k, k0) and np.array_equal(v, v0)") + "    return same\n",
        "Nothing that a test returns counts. It refuses by raising: assert np.array_equal(...), once for each cut.",
    ),
    WrongAnswer(
        "v_of_layer_0",
        _cuts("assert np.array_equal(v[0], v0[0])"),
        "A test that compares V of layer 0, or shapes, does exactly this. RoPE turns q and k and never v, and "
        "nothing comes before layer 0: that V is the same with any positions.",
    ),
    WrongAnswer(
        "k_of_layer_0",
        _cuts("assert np.array_equal(k[0], k0[0])"),
        "A test that compares K of layer 0 alone does exactly this. Wrong key positions show there. Wrong query "
        "positions pass through attention first and show from layer 1 on.",
    ),
    WrongAnswer(
        "argmax",
        _cuts("assert logits.argmax() == logits0.argmax()", "([2, 38], 0), ([1, 37], 2)"),
        "A test that compares the most likely next token does exactly this. That token often stays the same when the "
        "cache is wrong: compare bits.",
    ),
    WrongAnswer(
        "close_v",
        _cuts("assert np.allclose(v, v0, atol=1e-4) and np.allclose(logits, logits0, atol=1e-4)"),
        "A test that compares V and logits within a tolerance does exactly this. Attention depends on "
        "differences of positions, so when all are one too large only the last bits of V and logits change. K "
        "itself is turned further.",
    ),
    WrongAnswer(
        "all_v",
        _cuts("assert np.array_equal(v, v0)"),
        "A test that compares V alone, of every layer and in every bit, does exactly this. V shows what the layers "
        "before it did with positions, and no layer comes behind the last: its keys reach K and the logits only.",
    ),
    WrongAnswer(
        "tolerance",
        _cuts(
            "for got, want in ((k, k0), (v, v0), (logits, logits0)):\n        assert np.allclose(got, want, atol=0.1)"
        ),
        "A test that compares K, V and logits within a tolerance does exactly this. A small mistake changes bits "
        "too: the arithmetic here is exact, so compare with np.array_equal.",
    ),
    WrongAnswer(
        "equal_chunks",
        _cuts(ALL, "([10] * 4, 0), ([8, 8, 6], 18)"),
        "A test whose chunks are all equally long, except for a shorter last one, does exactly this: chunk index x "
        "chunk length is then the right start.",
    ),
    WrongAnswer(
        "no_hit",
        _cuts(ALL, "([5, 20, 15], 0), ([1, 39], 0)"),
        "A test without a hit does exactly this: nothing tells it whether cached tokens are counted.",
    ),
    WrongAnswer(
        "one_chunk",
        _cuts(ALL, "([40], 0)"),
        "A test whose only chunk is the whole prompt does exactly this: in the first chunk relative and absolute "
        "positions are the same.",
    ),
    WrongAnswer(
        "against_itself",
        _test(
            """\
k0, v0, logits0 = prefill_fn(ids, [40], 0)
for sizes, hit in [([5, 20, 15], 0), ([3, 19], 18)]:
    k, v, logits = prefill_fn(ids, sizes, hit)
    """
            + ALL
        ),
        "A test that compares the prefill with the same prefill in one pass does exactly this: a mistake that is the "
        "same in every "
        "cut agrees with itself.",
    ),
)

RIGHT = (
    _cuts(ALL),
    _test("""\
wanted = reference(ids)
for hit, sizes in ((0, [1] * 7 + [33]), (17, [2, 21]), (16, [24])):
    for got, want in zip(prefill_fn(ids, sizes, hit), wanted):
        np.testing.assert_array_equal(got, want)"""),
    _test("""\
rng = np.random.default_rng(0)
k0, _, logits0 = reference(ids)
for _ in range(3):
    hit, first = int(rng.integers(1, 20)), int(rng.integers(1, 9))
    k, _, logits = prefill_fn(ids, [first, 40 - hit - first], hit=hit)
    if k.tobytes() != k0.tobytes():
        raise AssertionError(f"K differs at {np.argwhere(k != k0)[0]} for a hit of {hit}")
    assert (logits == logits0).all()"""),
)
