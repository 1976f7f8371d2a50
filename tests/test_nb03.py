"""Notebook 03: positions, the rotation, and the test of a prefill, which is put before right and wrong prefills."""

import random

import numpy as np
import pytest

from autograder import check
from autograder.answers import InProcess
from autograder.check import evaluate
from autograder.exercise import Raised, Returned
from autograder.exercises import EXERCISES
from autograder.exercises.nb03_prefills import RIGHT, WEIGHTS, WRONG, run
from autograder.judge import judge

SEEDS = (check.PUBLIC_SEED, 0)
CHECK = EXERCISES["check_positions"]
IDS = tuple((7 * i * i + 3 * i) % 128 for i in range(40))
CUTS = (((5, 20, 15), 0), ((3, 19), 18))


def verdicts(name, source, seed):
    exercise = EXERCISES[name]
    return [evaluate(exercise, group, exercise.compile(source), seed) for group in exercise.groups]


def verdict_of(fn):
    return evaluate(CHECK, CHECK.groups[0], fn)


# positions

RANGE = "np.arange(cached + computed, cached + computed + take)"
POSITIONS = "def positions(cached, computed, take):\n    "
NO_POSITIONS = {
    "they go on from the call before": "last = [0]\ndef positions(cached, computed, take):\n"
    "    last[0] = last[0] if computed else cached\n    last[0] += take\n    return np.arange(last[0] - take, last[0])",
    "the hit counts before the first chunk alone": POSITIONS + "first = computed or cached\n"
    "    return np.arange(first, first + take)",
    "one of both numbers": POSITIONS + "return np.arange(cached | computed, (cached | computed) + take)",
    "the hit's whole blocks": POSITIONS + "return np.arange(take) + cached // 16 * 16 + computed",
    "only one token is wrong": POSITIONS + "return np.arange(take) + computed + cached * (take > 1)",
    "one too few behind a hit": POSITIONS + "return np.arange(take) + computed + cached - (cached > 0)",
    "narrow integers": POSITIONS + f"return {RANGE}.astype(np.uint8)",
    "float32": POSITIONS + f"return {RANGE}.astype(np.float32)",
    "a list of floats": POSITIONS + f"return [float(p) for p in {RANGE}]",
    "a column": POSITIONS + f"return {RANGE}[:, None]",
    "first and last": POSITIONS + "return cached + computed, cached + computed + take",
    "one list for all": "kept = []\ndef positions(cached, computed, take):\n"
    "    kept[:] = range(cached + computed, cached + computed + take)\n    return kept",
    "one array for all": "kept = np.zeros(9_000, int)\ndef positions(cached, computed, take):\n"
    f"    kept[:take] = {RANGE}\n    return kept[:take]",
}


@pytest.mark.parametrize("name", NO_POSITIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_positions_lose_points(name, seed):
    assert not all(v.passed for v in verdicts("positions", NO_POSITIONS[name], seed))


@pytest.mark.parametrize(
    "returned",
    ["range(first, first + take)", "tuple(range(first, first + take))", "known[first : first + take]"],
)
def test_positions_may_be_a_range_a_tuple_or_a_view_that_stays_as_it_is(returned):
    source = f"known = np.arange(9_000)\n{POSITIONS}first = cached + computed\n    return {returned}"
    assert all(v.passed for v in verdicts("positions", source, 2))


# rope

ROPE = """\
def rope(x, positions, theta=10000.0):
    cos, sin = rope_cos_sin(positions, x.shape[-1], theta)
    cos, sin = cos[:, None, :], sin[:, None, :]
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    out = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return out
"""
NO_ROPE = {
    "cos and sin swapped": ("cos, sin = rope_cos_sin", "sin, cos = rope_cos_sin"),
    "positions sorted": ("rope_cos_sin(positions", "rope_cos_sin(np.sort(positions)"),
    "positions wrap": ("rope_cos_sin(positions", "rope_cos_sin(positions % 4096"),
    "two thetas only": (", theta)", ", 500_000 if theta > 10_000 else 10_000)"),
    "one head_dim": ("x.shape[-1] // 2", "8"),
    "the first head alone": ("return out", "out[:, 1:] = x[:, 1:]\n    return out"),
    "float64": ("return out", "return out.astype(np.float64)"),
    "float16": ("return out", "return out.astype(np.float16).astype(np.float32)"),
    "lists": ("return out", "return out.tolist()"),
    "x turned in place": ("return out", "x[:] = out\n    return x"),
    "positions counted on in place": ("return out", "positions += len(x)\n    return out"),
    "one buffer": (
        "    return out",
        "    kept[: x.size] = out.reshape(-1)\n    return kept[: x.size].reshape(x.shape)",
    ),
}
NO_BITS = {  # right values, and bits that depend on the cut
    "a common scale": ("return out", "return out / x.max() * x.max()"),
    "remembered rows": (
        "return out",
        "out = out / x.max() * x.max()\n    for i in range(len(x)):\n"
        "        out[i] = seen.setdefault((x[i].tobytes(), int(positions[i])), out[i].copy())\n    return out",
    ),
}


def changed_rope(old, new):
    assert ROPE.count(old) == 1
    return "kept, seen = np.zeros(9_000, np.float32), {}\n" + ROPE.replace(old, new)


@pytest.mark.parametrize("name", NO_ROPE)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_rotation_loses_the_points_of_logic(name, seed):
    assert not verdicts("rope", changed_rope(*NO_ROPE[name]), seed)[0].passed


@pytest.mark.parametrize("name", NO_BITS)
@pytest.mark.parametrize("seed", SEEDS)
def test_bits_that_depend_on_the_cut_lose_points_and_are_called_nothing_else(name, seed):
    logic, bits = verdicts("rope", changed_rope(*NO_BITS[name]), seed)
    assert logic.passed and not bits.passed and not bits.mistakes and "last bits" in bits.what


def test_float64_is_told_by_its_dtype():
    logic, bits = verdicts("rope", changed_rope(*NO_ROPE["float64"]), 2)
    assert "dtype float64, wanted float32" in logic.what and logic.mistakes == bits.mistakes == ("float64",)


# check_positions: the prefills


@pytest.mark.parametrize("weights", [WEIGHTS[0], WEIGHTS[-1]])
@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_a_right_prefill_has_the_references_bytes_and_a_wrong_one_its_shapes_and_dtypes(name, weights):
    reference, equal = run("reference", weights, IDS, (len(IDS),), 0), []
    for sizes, hit in CUTS:
        got = run(name, weights, IDS, sizes, hit)
        assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in reference]
        assert all(np.isfinite(x).all() for x in got)
        equal.append(all(x.tobytes() == y.tobytes() for x, y in zip(got, reference)))
    assert all(equal) == (name in RIGHT)


def places(name, weights=0):
    """Where a prefill differs from reference, over both cuts: layers of K, layers of V, how many logits."""
    reference = run("reference", weights, IDS, (len(IDS),), 0)
    layers, logits = [set(), set()], 0
    for sizes, hit in CUTS:
        *kv, scores = run(name, weights, IDS, sizes, hit)
        for found, x, y in zip(layers, kv, reference):
            found |= set(np.flatnonzero((x != y).any(axis=(1, 2, 3))).tolist())
        logits += int((scores != reference[2]).sum())
    return *layers, logits


@pytest.mark.parametrize("weights", [WEIGHTS[0], WEIGHTS[-1]])
def test_each_tensor_and_each_layer_is_the_only_wrong_one_somewhere(weights):
    found = [places(name, weights) for name in WRONG]
    for layer in range(3):
        assert ({layer}, set(), 0) in found and (set(), {layer}, 0) in found
    assert any(not k and not v and logits > 100 for k, v, logits in found) and (set(), set(), 2) in found


def test_one_last_bit_is_lost_in_a_sum_and_swapped_keys_keep_theirs():
    for weights in WEIGHTS[:4]:
        k, v, _ = run("reference", weights, IDS, (len(IDS),), 0)
        assert run("one_key", weights, IDS, *CUTS[0])[0].sum() == k.sum()
        assert run("one_value", weights, IDS, *CUTS[0])[1].sum() == v.sum()
        swapped = run("swapped_keys", weights, IDS, *CUTS[0])[0]
        assert swapped.astype(np.float64).sum() == k.astype(np.float64).sum()


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
@pytest.mark.parametrize("sizes, hit", [((5, 20), 0), ((40,), 18), ((), 0), ((40,), 40)])
def test_every_prefill_refuses_chunks_that_do_not_add_up(name, sizes, hit):
    with pytest.raises(ValueError):
        run(name, 0, IDS, sizes, hit)


@pytest.mark.parametrize("weights", [WEIGHTS[0], *(pytest.param(w, marks=pytest.mark.slow) for w in WEIGHTS[1:])])
def test_the_next_token_survives_some_mistakes_and_not_all(weights):
    right = run("reference", weights, IDS, (len(IDS),), 0)[2].argmax()

    def survives(name):
        return all(run(name, weights, IDS, *cut)[2].argmax() == right for cut in (((2, 38), 0), ((1, 37), 2)))

    assert 2 <= sum(map(survives, WRONG)) < len(WRONG)


def test_what_travels_with_a_prefill_is_numbers_and_does_not_tell_which_it_is():
    (group,) = CHECK.groups
    for seed in range(3):
        calls = group.cases(seed)
        names = [call.facts["prefill"] for call in calls]
        assert sorted(names) == sorted([*RIGHT, *WRONG])
        for number, call in enumerate(calls):
            (own, key), (same_key,) = (marker.data for marker in call.args)
            assert (own, key) == (number, same_key)  # its place in the order that the key shuffles
    orders = {tuple(call.facts["prefill"] for call in group.cases(seed)) for seed in range(9)}
    assert len(orders) == 9


# check_positions: tests that are too weak

TEST = """\
def check_positions(prefill_fn, reference):
    ids = [(7 * i * i + 3 * i) % 128 for i in range(40)]
    K, V, L = reference(ids)
    for sizes, hit in [([5, 20, 15], 0), ([3, 19], 18)]:
        k, v, l = prefill_fn(ids, sizes, hit)
        pairs, kv = ((k, K), (v, V), (l, L)), ((k, K), (v, V))
        COMPARE
"""
WEAK = {
    "one logit": "assert l[0] == L[0]",
    "K, V and one logit": "assert (k == K).all() and (v == V).all() and l[0] == L[0]",
    "any for all": "assert all((a == b).any() for a, b in pairs)",
    "any of the logits": "assert (k == K).all() and (v == V).all() and (l == L).any()",
    "K alone": "assert (k == K).all()",
    "V alone": "assert (v == V).all()",
    "logits alone": "assert np.array_equal(l, L)",
    "the last layer's K alone": "assert (k[-1] == K[-1]).all()",
    "V and logits": "assert (v == V).all() and (l == L).all()",
    "K and logits": "assert (k == K).all() and (l == L).all()",
    "K and V": "assert all((a == b).all() for a, b in kv)",
    "sum of K": "assert k.sum() == K.sum()",
    "sums": "assert all(a.sum() == b.sum() for a, b in pairs)",
    "float64 sums": "assert all(a.sum(dtype=float) == b.sum(dtype=float) for a, b in pairs)",
    "sorted": "assert all((np.sort(a, None) == np.sort(b, None)).all() for a, b in pairs)",
    "allclose": "assert all(np.allclose(a, b) for a, b in pairs)",
    "allclose of 1e-7": "assert all(np.allclose(a, b, rtol=1e-7, atol=0) for a, b in pairs)",
    "rounded": "assert all((a.round(6) == b.round(6)).all() for a, b in pairs)",
    "float16": "assert all((a.astype(np.float16) == b.astype(np.float16)).all() for a, b in pairs)",
    "most numbers": "assert all((a == b).mean() > 0.999 for a, b in pairs)",
    "not the first layer": "assert all((a[1:] == b[1:]).all() for a, b in kv) and (l == L).all()",
    "not the last layer": "assert all((a[:-1] == b[:-1]).all() for a, b in kv) and (l == L).all()",
    "not the middle layer": "assert all((a[::2] == b[::2]).all() for a, b in kv) and (l == L).all()",
    "the first head": "assert all((a[:, :, 0] == b[:, :, 0]).all() for a, b in kv) and (l == L).all()",
    "the last head": "assert all((a[:, :, -1] == b[:, :, -1]).all() for a, b in kv) and (l == L).all()",
    "not the first token": "assert all((a[:, 1:] == b[:, 1:]).all() for a, b in kv) and (l == L).all()",
    "not the first token's K": "assert (k[:, 1:] == K[:, 1:]).all() and (v == V).all() and (l == L).all()",
    "not the last token's K": "assert (k[:, :-1] == K[:, :-1]).all() and (v == V).all() and (l == L).all()",
    "not the last token's V": "assert (k == K).all() and (v[:, :-1] == V[:, :-1]).all() and (l == L).all()",
    "behind the hit": "assert all((a[:, hit:] == b[:, hit:]).all() for a, b in kv) and (l == L).all()",
    "V behind the hit": "assert (k == K).all() and (v[:, hit:] == V[:, hit:]).all() and (l == L).all()",
    "the last chunk": "assert all((a[:, -sizes[-1]:] == b[:, -sizes[-1]:]).all() for a, b in kv) and (l == L).all()",
    "the best five": "assert all((a == b).all() for a, b in kv) and (l.argsort()[-5:] == L.argsort()[-5:]).all()",
    "half of the logits": "assert all((a == b).all() for a, b in kv) and (l[:64] == L[:64]).all()",
    "only the first cut": "assert all((a == b).all() for a, b in pairs); break",
    "only the last cut": "pass\n    assert all((a == b).all() for a, b in pairs)",
    "one or the other": "assert (k == K).all() or (v == V).all() or (l == L).all()",
    "nothing": "assert k is not None",
    "shapes": "assert all(a.shape == b.shape for a, b in pairs)",
    "a tuple": "assert (np.array_equal(k, K), 'K')",
    "its own error caught": "try: assert (k == K).all()\n        except AssertionError: print('K differs')",
    "another error": "if not all((a == b).all() for a, b in pairs): raise ValueError('differs')",
    "what is in the closure": "assert 'relative' not in str([c.cell_contents for c in prefill_fn.__closure__])",
    "how often it was called": "seen.append(1); assert len(seen) < 9",
}


def weak(name):
    return "seen = []\n" + TEST.replace("COMPARE", WEAK[name])


@pytest.mark.filterwarnings("ignore:assertion is always true:SyntaxWarning")
@pytest.mark.parametrize("name", WEAK)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_weak_test_loses_points(name, seed):
    assert not any(v.passed for v in verdicts("check_positions", weak(name), seed))


def test_a_test_of_all_bits_in_both_cuts_earns_them():
    for strong in ("all((a == b).all() for a, b in pairs)", "all(a.tobytes() == b.tobytes() for a, b in pairs)"):
        assert [v.message for v in verdicts("check_positions", TEST.replace("COMPARE", f"assert {strong}"), 2)] == [""]


@pytest.mark.filterwarnings("ignore:assertion is always true:SyntaxWarning")
@pytest.mark.parametrize("name", ["nothing", "shapes", "a tuple", "its own error caught"])
def test_a_test_that_refuses_nothing_is_called_that(name):
    (verdict,) = verdicts("check_positions", weak(name), 2)
    assert verdict.mistakes == ("always_true",) and f"lets through {len(WRONG)} of {len(WRONG)}" in verdict.what


@pytest.mark.parametrize("name", ["V and logits", "not the last token's K", "the best five", "K, V and one logit"])
def test_a_test_that_no_kept_one_equals_is_called_by_no_name_and_hears_what_it_misses(name):
    (verdict,) = verdicts("check_positions", weak(name), 2)
    assert not verdict.mistakes and "what you compare does not show them" in verdict.what


def test_a_test_that_breaks_has_not_refused():
    def check_positions(prefill_fn, reference):
        prefill_fn([1, 2, 3], [2], 0)  # adds up to 2

    message = verdict_of(check_positions).message
    assert "your test itself broke" in message and "add up to" in message


def test_a_test_may_call_its_functions_in_any_honest_way():
    def check_positions(prefill_fn, reference):
        ids = np.arange(40) % 17
        for got in (
            prefill_fn(ids, iter([5, 20, 15])),
            prefill_fn(token_ids=ids.tolist(), sizes=np.array([3, 19]), hit=np.int64(18)),
        ):
            for mine, right in zip(got, reference(ids)):
                np.testing.assert_array_equal(mine, right)

    assert verdict_of(check_positions).message == ""


def test_a_test_that_calls_its_functions_with_something_else_is_told_what_they_take():
    def check_positions(prefill_fn, reference):
        prefill_fn("a prompt", 3, 0)

    message = verdict_of(check_positions).message
    assert "takes a list of token ids, a list of chunk lengths and a hit length" in message


def test_survivors_are_listed_with_what_would_show_them():
    def check_positions(prefill_fn, reference):
        for got, want in zip(prefill_fn(IDS, [5, 20, 15], 0), reference(IDS)):
            assert np.array_equal(got, want)

    message = verdict_of(check_positions).message
    assert f"lets through 3 of {len(WRONG)}" in message and "pass a hit" in message
    assert all(f"  - {name}: " in message for name in ("reset_at_prefix", "hit_key", "hit_value"))


def test_of_many_survivors_the_first_are_explained_and_the_others_named():
    message = verdict_of(lambda prefill_fn, reference: None).message
    assert message.count("To refuse it: ") == 7 and "\n  - and " in message
    assert all(name in message for name in WRONG)


def test_a_prompt_of_equal_tokens_is_told_apart_from_a_weak_comparison():
    def check_positions(prefill_fn, reference):
        for sizes, hit in CUTS:
            for got, want in zip(prefill_fn([5] * 40, sizes, hit), reference([5] * 40)):
                assert np.array_equal(got, want)

    assert "Use a prompt of different tokens." in verdict_of(check_positions).message


def test_the_judge_survives_whatever_comes_back():
    (group,) = CHECK.groups
    calls, draw = group.cases(2), random.Random(0)
    parts = (
        None,
        0,
        -1,
        2**62,
        float("nan"),
        "reference",
        "prefill_fn",
        b"",
        (),
        (1, 2),
        ((),),
        np.zeros((2, 0)),
        True,
    )

    def any_plain(depth=0):
        if depth < 3 and draw.random() < 0.5:
            return tuple(any_plain(depth + 1) for _ in range(draw.randrange(5)))
        return draw.choice(parts)

    for _ in range(12):
        outcomes = []
        for _ in calls:
            asked = tuple((draw.choice(parts), *(any_plain(),) * draw.randrange(4)) for _ in "abc")
            error = draw.choice(("AssertionError", "ValueError"))
            outcomes.append(draw.choice((Returned(any_plain(), asked=asked), Raised(error, "x", asked=asked))))
        assert not judge(CHECK, group, calls, outcomes).passed
    assert len(InProcess(CHECK.compile("def check_positions(*a): pass"), None, CHECK.callbacks).run(calls)) == len(
        calls
    )
