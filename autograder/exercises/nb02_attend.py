"""Exercise 2.3, attend: attention of one head, right (logic) and the same however the prompt is cut (bits)."""

from __future__ import annotations

import math

import numpy as np

from autograder.compare import first_far_index, first_trouble, keeps_bits, same_integers, wrong_shape
from autograder.exercise import Call, Group, Outcome, Verdict, whole_or_chunk
from autograder.exercises.nb02_mask import causal
from autograder.kit import exercise

SOLUTION = "course_lib.attention.reference:attend"
AXES = "a row for each query, a column for each of head_dim"
CLOSE = 1e-4  # of the largest value; the exact operations are within 5e-5, float16 results or weights are not
ROUNDING = (
    "A plain matrix product or sum does this: how many rows and keys there are decides in which order it adds, and "
    "rounded sums depend on their order. exact.matmul, exact.exp and exact.weighted_mean round no sum."
)


def oracle(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The formula in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.where(mask, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def _call(q, k, v, mask, **facts) -> Call:
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v), ("mask", mask)))
    return Call((q, k, v, mask), f"attend({shapes})", facts)


def _vectors(rng: np.random.Generator, tokens: int, head_dim: int) -> list[np.ndarray]:
    """q, k, v whose scale differs from token to token, so that every row has another largest score."""
    q, k, v = (rng.standard_normal((tokens, head_dim)).astype(np.float32) for _ in range(3))
    return [q * rng.uniform(0.3, 2.0, (tokens, 1)).astype(np.float32), k, v]


def logic_cases(seed: int) -> list[Call]:
    """Chunks behind caches of several lengths, a decode, one token alone; scores far below 0, and far above.

    Then a mask that is not causal, and the same call with other queries, keys, values and mask in turn.
    """
    rng = np.random.default_rng(seed)
    calls = []
    for chunk_len, cached_len, head_dim in ((3, 5, 16), (1, 12, 64), (1, 0, 32), (7, 0, 16), (5, 20, 32), (6, 4, 16)):
        chunk_len += int(rng.integers(0, 3)) * (chunk_len > 1)
        cached_len += int(rng.integers(0, 3)) * (cached_len > 0)
        q, k, v = _vectors(rng, chunk_len + cached_len, head_dim)
        calls.append(_call(q[cached_len:], k, v, causal(chunk_len, cached_len)))
    low, steep, q = ((rng.standard_normal((n, 16)) / 4).astype(np.float32) for n in (9, 9, 4))
    calls.append(_call(np.full((4, 16), -8, np.float32), low + 8, v[:9], causal(4, 5)))
    steep[:, 0], q[:, 0] = range(8, 17), (4, 60, 2, 30)  # scores up to 240, the largest of them hidden
    calls.append(_call(q, steep, v[:9], causal(4, 5)))
    first, other = _scattered(rng), _scattered(rng)
    calls.append(_call(*first))
    return calls + [_call(*first[:i], other[i], *first[i + 1 :]) for i in range(4)]


def _scattered(rng: np.random.Generator) -> list[np.ndarray]:
    q, k, v = _vectors(rng, 9, 16)
    mask = rng.random((4, 9)) < 0.5
    mask[np.arange(4), rng.integers(0, 9, 4)] = True  # every query sees some key
    return [q[:4], k, v, mask]


def _logic(call: Call, got: np.ndarray) -> str | None:
    wanted = oracle(*call.args)
    shape = wrong_shape(call, got, wanted.shape, AXES)
    if shape or got.dtype.kind not in "biuf":
        return shape or f"{call.label} has dtype {got.dtype}, wanted float32."
    at = first_far_index(got, wanted, CLOSE)
    if at is None:
        return None if got.dtype == np.float32 else f"{call.label} has dtype {got.dtype}, wanted float32."
    nan = " NaN comes from exp of a number that is too large, or from a row in which no key is left."
    what = f"{call.label}: row {at[0]}, column {at[1]} is {got[at]:.4g}, it should be {wanted[at]:.4g}."
    return what + nan * bool(np.isnan(got[at]))


def same(a: Outcome, b: Outcome) -> bool:
    """Close numbers of the same dtype, or the same error."""
    x, y = (getattr(outcome, "value", None) for outcome in (a, b))
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.dtype == y.dtype and x.shape == y.shape and first_far_index(x, y, CLOSE) is None
    return same_integers(a, b)


def judge_logic(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _logic) or Verdict(True, count=f"{len(calls)} cases close to float64")


def bits_cases(seed: int) -> list[Call]:
    """One prompt in one pass, then in chunks: single tokens, short and ragged ones, and a hit (rows after it alone).

    For the query at position 40 every number of the result lies halfway between two float32 neighbours, so that
    computing in float64 and rounding at the end does not hide in which order the sums were added.
    """
    rng = np.random.default_rng(seed)
    tokens, hit = 96, int(rng.integers(20, 60))
    q, k, v = _vectors(rng, tokens, 64)
    k[:, 0], q[60] = 8, 0
    q[60, 0] = -250  # all scores of this query are -250
    v = halfway(q[40], k[:41], v)
    # the short ones first, so that no result of a longer one can be remembered for them
    chunks = [
        (0, tokens),
        (0, 1),
        (40, 41),
        (95, 96),
        (0, 2),
        (2, 5),
        (hit, hit + 3),
        (5, 12),
        (12, 43),
        (43, 96),
        (hit, 96),
    ]
    return [
        _call(
            q[start:stop],
            k[:stop],
            v[:stop],
            causal(stop - start, start),
            rows=(start, stop),
            whole=stop - start == tokens,
        )
        for start, stop in chunks
    ]


def halfway(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """v changed a little, so that in each column the mean of v[: len(k)] under q's weights is a midpoint of float32."""
    q, k = q.astype(np.float64), k.astype(np.float64)
    scores = np.array([math.fsum(q * key) for key in k]) / math.sqrt(len(q))
    weights = np.exp(scores - scores.max())
    weights /= math.fsum(weights)
    by_weight = 1 + np.argsort(weights[1:])  # key 0 stays as it is: the first query sees no other
    coarse, fine, finest = by_weight[len(k) // 2], by_weight[len(k) // 4], by_weight[0]
    v = v.copy()
    v[[fine, finest]] = 0  # a small weight times a small value: steps far below what float64 resolves
    for column in v.T:

        def mean(column=column):
            return math.fsum(weights * column[: len(k)].astype(np.float64))

        below = np.float32(mean())
        middle = (float(below) + float(np.nextafter(below, np.float32(np.inf)))) / 2
        for key in (coarse, fine, finest):
            column[key] += (middle - mean()) / weights[key]
    return v


def judge_bits(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    """Passed if the values are right and each chunk's rows equal those of the answer's own one pass in every bit."""
    return keeps_bits(calls, outcomes, _logic, lambda row: f"the query at position {row}", ROUNDING)


MISTAKES = f"""
    no_scale
      exact.matmul(q, k.T) / np.float32(np.sqrt(q.shape[-1]))  ->  exact.matmul(q, k.T)
    The scores are not divided by sqrt(head_dim): the softmax is too sharp.

    scale_by_head_dim
      np.sqrt(q.shape[-1])  ->  q.shape[-1]
    The scores are divided by head_dim; its square root belongs there.

    mask_ignored
      scores = np.where(mask, scores, -np.inf)  ->
    The mask is not used: every query sees every key.

    own_triangle
      np.where(mask  ->  np.where(np.tri(*mask.shape, dtype=bool)
    The mask is not used: this is a triangle from the top left corner, what torch's is_causal=True gives. Behind a cache
    it hides nearly all cached keys.

    mask_inverted
      np.where(mask, scores, -np.inf)  ->  np.where(mask, -np.inf, scores)
    True and False are swapped: the visible keys are hidden, and the hidden ones seen.

    mask_as_factor
      np.where(mask, scores, -np.inf)  ->  scores * mask
    The scores are multiplied by the mask. A hidden key then has score 0, and exp(0) = 1 is a weight like any other. A
    hidden score must be -inf.

    mask_after_softmax
      scores = np.where(mask, scores, -np.inf)  ->
      exact.weighted_mean(weights, v)  ->  (weights / weights.sum(axis=-1, keepdims=True) * mask) @ v
    The softmax is taken over all keys, and then the hidden weights are set to 0. What is left no longer adds up to 1.

    softmax_over_queries
      exact.weighted_mean(weights, v)  ->  (weights / weights.sum(axis=0, keepdims=True)) @ v
    The softmax runs down the columns, over queries. A query's weights over its keys must add up to 1: axis=-1.

    no_maximum
      scores - scores.max(axis=-1, keepdims=True)  ->  scores
    The row's maximum is not subtracted before exp. Weights then grow beyond 1, and overflow when scores are large.

    maximum_from_zero
      scores.max(axis=-1, keepdims=True)  ->  scores.max(axis=-1, keepdims=True, initial=0)
    The maximum of a row is never below 0 here, whatever its scores are. When all scores of a row are far below 0, every
    weight becomes 0. Begin with minus infinity, or with the row's first score.

    no_normalisation
      exact.weighted_mean(weights, v)  ->  exact.matmul(weights.astype(np.float32), v)
    The weights are not divided by their sum: a query that sees more keys gets a longer vector.

    float64_result
      exact.weighted_mean(weights, v)  ->  (weights @ v) / weights.sum(axis=-1, keepdims=True)
    The numbers are right, and the result is float64. np.sqrt and exact.exp give float64, and all that is computed with
    them is float64 again. The cache and the next layer are float32: exact.weighted_mean gives the dtype of the values.

    float64_rounded
      | q, k, v = (x.astype(np.float64) for x in (q, k, v))
      | scores = np.where(mask, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
      | weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
      | return (weights @ v / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
    A computation in float64 that is rounded once at the end does exactly this: the order of the sums shows only where a
    number lies halfway between two float32 neighbours. That is rare, but it happens. The exact operations round no sum.
    alike: 0.9

    maximum_over_hidden
      scores = np.where(mask, scores, -np.inf)  ->
      keepdims=True))  ->  keepdims=True)) * mask
    The maximum is taken over hidden keys too. Which of those there are depends on the cut, and so do the last bits.
    Hide first, then take the maximum.
    alike: 0.9

    mean_by_matmul
      keepdims=True))  ->  keepdims=True)).astype(np.float32)
      exact.weighted_mean(weights, v)  ->  exact.matmul(weights, v) / exact.matmul(weights, np.ones_like(v[:, :1]))
    The values are mixed with exact.matmul. It rounds each column of v once, to a grid that fits the column's largest
    number, hidden keys included: with other keys the grid is another one. exact.weighted_mean has a fixed grid.
    alike: 0.95

    plain
      exact.matmul(q, k.T)  ->  q @ k.T
      exact.exp  ->  np.exp
      exact.weighted_mean(weights, v)  ->  (weights @ v) / weights.sum(axis=-1, keepdims=True)
    {ROUNDING}
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[Group("logic", logic_cases, judge_logic), Group("bits", bits_cases, judge_bits, apart=whole_or_chunk)],
    mistakes=MISTAKES,
    reread="Reread notebook 02, section 4.",
    imports="import numpy as np\nfrom course_lib.arithmetic import exact",
    same=same,
)
