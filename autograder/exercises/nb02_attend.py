"""Exercise 2.3, attend: attention of one head, right (logic) and the same however the prompt is cut (bits)."""

from __future__ import annotations

import numpy as np

from autograder.compare import far_from, first_index, first_trouble, returned, same_floats, wrong_shape
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict, WrongAnswer
from autograder.exercises.nb02_mask import causal

AXES = "a row for each query, a column for each of head_dim"


def oracle(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The formula in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.where(mask, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def _call(q, k, v, mask, **facts) -> Call:
    shapes = ", ".join(
        f"{name} {list(x.shape)}" for name, x in zip(("q", "k", "v", "mask"), (q, k, v, mask), strict=True)
    )
    return Call((q, k, v, mask), f"attend({shapes})", facts)


def _vectors(rng: np.random.Generator, tokens: int, head_dim: int, scale: float = 1.0) -> list[np.ndarray]:
    """q, k, v whose sizes differ from token to token, so that a row's largest score is its own."""
    q, k, v = (rng.standard_normal((tokens, head_dim)).astype(np.float32) for _ in range(3))
    return [q * np.float32(scale) * rng.uniform(0.3, 2.0, (tokens, 1)).astype(np.float32), k, v]


def logic_cases(seed: int) -> list[Call]:
    """Chunks of several lengths and caches, a decode, a mask that is not causal, and scores beyond float32's exp."""
    rng = np.random.default_rng(seed)
    calls = []
    for chunk_len, cached_len, head_dim, scale in (
        (3, 5, 16, 1.0),
        (1, 12, 8, 1.0),
        (7, 0, 16, 1.0),
        (5, 20, 32, 1.0),
        (6, 4, 16, 60.0),
    ):
        chunk_len, cached_len = (
            chunk_len + int(rng.integers(0, 3)) * (chunk_len > 1),
            cached_len + int(rng.integers(0, 3)),
        )
        q, k, v = _vectors(rng, chunk_len + cached_len, head_dim, scale)
        calls.append(_call(q[cached_len:], k, v, causal(chunk_len, cached_len)))
    q, k, v = _vectors(rng, 9, 16)
    scattered = rng.random((4, 9)) < 0.5
    scattered[np.arange(4), rng.integers(0, 9, 4)] = True  # every query sees some key
    return [*calls, _call(q[:4], k, v, scattered)]


def _logic(call: Call, got: np.ndarray) -> str | None:
    wanted = oracle(*call.args)
    shape = wrong_shape(call, got, wanted.shape, AXES)
    if shape or got.dtype.kind not in "biuf":
        return shape or f"{call.label} has dtype {got.dtype}, wanted float32."
    at = far_from(got, wanted)
    if at is None:
        return None
    nan = (
        " NaN comes from exp of a number that is too large, or from a row in which no key is left."
        if np.isnan(got[at])
        else ""
    )
    return f"{call.label}: row {at[0]}, column {at[1]} is {got[at]:.4g}, it should be {wanted[at]:.4g}.{nan}"


def judge_logic(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _logic) or Verdict(True, count=f"{len(calls)} cases close to float64")


def bits_cases(seed: int) -> list[Call]:
    """One prompt in one pass, then in chunks: single tokens, short and ragged ones, and a hit (rows after it alone)."""
    rng = np.random.default_rng(seed)
    tokens, calls = 96, []
    q, k, v = _vectors(rng, tokens, 64)
    calls.append(_call(q, k, v, causal(tokens, 0), rows=(0, tokens)))
    hit = int(rng.integers(20, 60))
    for start, stop in (
        (0, 1),
        (40, 41),
        (0, 2),
        (2, 5),
        (5, 12),
        (12, 43),
        (43, 96),
        (hit, hit + 3),
        (hit, 96),
        (95, 96),
    ):
        calls.append(_call(q[start:stop], k[:stop], v[:stop], causal(stop - start, start), rows=(start, stop)))
    return calls


def judge_bits(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    """Right, and each chunk's rows the same as one pass's in every bit. Never compared with the library's own bits."""
    trouble = first_trouble(calls, outcomes, _logic)
    if trouble:
        return trouble
    whole, *chunks = returned(outcomes)
    for call, got in zip(calls[1:], chunks, strict=True):
        start, stop = call.facts["rows"]
        if got.dtype != whole.dtype or not np.array_equal(got, whole[start:stop]):
            row = 0 if got.dtype != whole.dtype else first_index(got != whole[start:stop])[0]
            return Verdict(
                False,
                what=(
                    f"Your values are right, but their bits depend on the cut: the query at position {start + row} "
                    f"gives other "
                    f"last bits in the chunk [{start}, {stop}) than in one pass of {len(whole)} tokens."
                ),
                which=_ROUNDING,
            )
    return Verdict(True, count=f"{len(chunks)} chunks equal one pass in every bit")


_ROUNDING = (
    "A plain matrix product or sum does this: how many rows and keys there are decides in which order it adds, and "
    "rounded "
    "sums depend on their order. exact.matmul, exact.exp and exact.weighted_mean round no sum."
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
        "The row's maximum is not subtracted before exp. Weights then grow beyond 1, and overflow when scores are "
        "large.",
        weights="exact.exp(scores)",
    ),
    _wrong(
        "no_normalisation",
        "The weights are not divided by their sum: a query that sees more keys gets a longer vector.",
        result="exact.matmul(weights.astype(np.float32), v)",
    ),
    WrongAnswer(
        "plain",
        """\
def attend(q, k, v, mask):
    scores = np.where(mask, q @ k.T / np.float32(np.sqrt(q.shape[-1])), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights @ v) / weights.sum(axis=-1, keepdims=True)
""",
        _ROUNDING,
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

EXERCISE = Exercise(
    name="attend",
    number="2.3",
    title="Attention of one head",
    notebook="02_mask",
    mode="kernel",
    groups=(Group("logic", 3, logic_cases, judge_logic), Group("bits", 2, bits_cases, judge_bits)),
    same=same_floats,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 02, section 4.",
    imports="import numpy as np\nfrom course_lib.invariant import exact",
    library=("course_lib.attention.reference:attend",),
)
