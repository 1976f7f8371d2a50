"""Kept answers to exercise 2.3: attention that is wrong, or right and not the same in every cut, or right."""

from __future__ import annotations

from autograder.exercise import WrongAnswer

ROUNDING = (
    "A plain matrix product or sum does this: how many rows and keys there are decides in which order it adds, and "
    "rounded sums depend on their order. exact.matmul, exact.exp and exact.weighted_mean round no sum."
)


def _wrong(
    name: str,
    message: str,
    *,
    scores: str = "exact.matmul(q, k.T) / np.float32(np.sqrt(q.shape[-1]))",
    masked: str = "np.where(mask, scores, -np.inf)",
    weights: str = "exact.exp(scores - scores.max(axis=-1, keepdims=True))",
    result: str = "exact.weighted_mean(weights, v)",
) -> WrongAnswer:
    """The library's four lines with some of them wrong."""
    lines = (f"scores = {scores}", f"scores = {masked}", f"weights = {weights}", f"return {result}")
    return WrongAnswer(name, "def attend(q, k, v, mask):\n" + "".join(f"    {line}\n" for line in lines), message)


WRONG = (
    _wrong(
        "no_scale",
        "The scores are not divided by sqrt(head_dim): the softmax is too sharp.",
        scores="exact.matmul(q, k.T)",
    ),
    _wrong(
        "scale_by_head_dim",
        "The scores are divided by head_dim; its square root belongs there.",
        scores="exact.matmul(q, k.T) / np.float32(q.shape[-1])",
    ),
    _wrong("mask_ignored", "The mask is not used: every query sees every key.", masked="scores"),
    _wrong(
        "own_triangle",
        "The mask is not used: this is a triangle from the top left corner, what torch's is_causal=True gives. Behind "
        "a cache it hides nearly all cached keys.",
        masked="np.where(np.tri(*mask.shape, dtype=bool), scores, -np.inf)",
    ),
    _wrong(
        "mask_inverted",
        "True and False are swapped: the visible keys are hidden, and the hidden ones seen.",
        masked="np.where(mask, -np.inf, scores)",
    ),
    _wrong(
        "mask_as_factor",
        "The scores are multiplied by the mask. A hidden key then has score 0, and exp(0) = 1 is a weight like "
        "any other. A hidden score must be -inf.",
        masked="scores * mask",
    ),
    _wrong(
        "mask_after_softmax",
        "The softmax is taken over all keys, and then the hidden weights are set to 0. What is left "
        "no longer adds up to 1.",
        masked="scores",
        result="(weights / weights.sum(axis=-1, keepdims=True) * mask) @ v",
    ),
    _wrong(
        "softmax_over_queries",
        "The softmax runs down the columns, over queries. A query's weights over its keys must add up to 1: axis=-1.",
        weights="exact.exp(scores - scores.max(axis=-1, keepdims=True))",
        result="(weights / weights.sum(axis=0, keepdims=True)) @ v",
    ),
    _wrong(
        "no_maximum",
        "The row's maximum is not subtracted before exp. Weights then grow beyond 1, and overflow when "
        "scores are large.",
        weights="exact.exp(scores)",
    ),
    _wrong(
        "no_normalisation",
        "The weights are not divided by their sum: a query that sees more keys gets a longer vector.",
        result="exact.matmul(weights.astype(np.float32), v)",
    ),
    WrongAnswer(
        "float64_rounded",
        """\
def attend(q, k, v, mask):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.where(mask, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights @ v / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
""",
        "A computation in float64 that is rounded once at the end does exactly this: the order of the sums shows "
        "only where a number lies halfway between two float32 neighbours. That is rare, but it happens. The exact "
        "operations round no sum.",
        alike=0.9,
    ),
    WrongAnswer(
        "maximum_over_hidden",
        """\
def attend(q, k, v, mask):
    scores = exact.matmul(q, k.T) / np.float32(np.sqrt(q.shape[-1]))
    return exact.weighted_mean(exact.exp(scores - scores.max(axis=-1, keepdims=True)) * mask, v)
""",
        "The maximum is taken over hidden keys too. Which of those there are depends on the cut, and so do the last "
        "bits. Hide first, then take the maximum.",
        alike=0.9,
    ),
    WrongAnswer(
        "mean_by_matmul",
        """\
def attend(q, k, v, mask):
    scores = np.where(mask, exact.matmul(q, k.T) / np.float32(np.sqrt(q.shape[-1])), -np.inf)
    weights = exact.exp(scores - scores.max(axis=-1, keepdims=True)).astype(np.float32)
    return exact.matmul(weights, v) / exact.matmul(weights, np.ones((len(v), 1), np.float32))
""",
        "The values are mixed with exact.matmul. It rounds each column of v once, to a grid that fits the "
        "column's largest number, hidden keys included: with other keys the grid is another one. "
        "exact.weighted_mean has a fixed grid.",
        alike=0.95,
    ),
    WrongAnswer(
        "plain",
        """\
def attend(q, k, v, mask):
    scores = np.where(mask, q @ k.T / np.float32(np.sqrt(q.shape[-1])), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights @ v) / weights.sum(axis=-1, keepdims=True)
""",
        ROUNDING,
    ),
)

RIGHT = (
    """\
def attend(q, k, v, mask):
    scores = exact.matmul(q, k.T) * np.float32(1 / np.sqrt(q.shape[1]))
    scores[~mask] = -1e9
    return exact.weighted_mean(exact.exp(scores - np.max(scores, axis=1)[:, None]), v)
""",
    """\
def attend(q, k, v, mask):
    rows = []
    for query, sees in zip(q, mask):
        keys, values = k[sees], v[sees]
        scores = exact.matmul(query[None, :] / np.sqrt(np.float32(len(query))), keys.T)
        rows.append(exact.weighted_mean(exact.exp(scores - scores.max()), values)[0])
    return np.array(rows)
""",
    """\
def attend(q, k, v, mask):
    import math
    out = []
    for query, sees in zip(q.astype(np.float64), mask):
        score = [math.fsum(query * key) / math.sqrt(len(query)) for key in k[sees].astype(np.float64)]
        weight = np.array([math.exp(s - max(score)) for s in score])
        out.append([math.fsum(weight * column) / math.fsum(weight) for column in v[sees].T])
    return np.array(out, dtype=np.float32)
""",
)
