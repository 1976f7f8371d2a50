"""Exercise 4.3, block_attention: an online softmax over blocks of keys, the same in every cut."""

from __future__ import annotations

import math

import numpy as np

from autograder.drivers import nb04
from autograder.exercise import Call
from autograder.exercises.nb04_attention_mistakes import MISTAKES, ROUNDING
from autograder.exercises.nb04_kernels import TOKENS, cuts, kernel_call, kernel_groups, midpoints, same, values
from autograder.kit import draws, exercise

SOLUTION = "course_lib.lessons.nb04_bits:block_attention"


def oracle(call: Call) -> np.ndarray:
    """The formula in float64, with the causal mask of this chunk."""
    q, k, v = (values(x).astype(np.float64) for x in call.args[:3])
    ahead = np.arange(len(k)) > call.args[3] + np.arange(len(q))[:, None]
    scores = np.where(ahead, -np.inf, q @ k.T / math.sqrt(q.shape[1]))
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights @ v / weights.sum(1, keepdims=True)


def limit(wanted: np.ndarray, dtype: str) -> np.ndarray:
    """Float32's sums, and for bfloat16 one rounding at the end."""
    return 5e-5 * np.abs(wanted).max() + 2.0**-8 * np.abs(wanted) * (dtype == "bfloat16")


def vectors(rng: np.random.Generator, tokens: int, scale: float = 1.0, head_dim: int = 16) -> list[np.ndarray]:
    """q, k, v whose scores differ in size from query to query."""
    q, k, v = (rng.standard_normal((tokens, head_dim)).astype(np.float32) for _ in range(3))
    return [q * np.float32(scale) * rng.uniform(0.3, 2.0, (tokens, 1)).astype(np.float32), k, v]


def sloping(rng: np.random.Generator, tokens: int, level: float, slope: float) -> list[np.ndarray]:
    """q, k, v whose scores are about level + slope * key. They are exact in float32, however large level is."""
    q, k, v = (rng.standard_normal((tokens, 16)) for _ in range(3))
    q, k = np.round(q * 8) / 8, np.round(k * 8) / 8
    q[:, 0], k[:, 0] = 4, level + slope * np.arange(tokens)  # a score is divided by sqrt(16)
    return [x.astype(np.float32) for x in (q, k, v)]


def logic_cases(seed: int) -> list[Call]:
    """Inside one block, over several, at the edges of blocks, decodes, large, low, rising, falling scores, blocks."""
    rng, draw = np.random.default_rng(seed), draws(seed)
    first, calls = draw(9, 20), []
    plain, large = (lambda n: vectors(rng, n)), (lambda n: vectors(rng, n, 60.0))
    wide, narrow = (lambda n: vectors(rng, n, 1.0, 40)), (lambda n: vectors(rng, n, 1.0, 6))
    low, lowest = (lambda n: sloping(rng, n, -300, 0)), (lambda n: sloping(rng, n, -20_000, 0))
    rising, falling = (lambda n: sloping(rng, n, 0, 1 / 16)), (lambda n: sloping(rng, n, 0, -1 / 16))
    for made, rows, start, dtype, *block in (
        (plain, first, 0, "float32"),
        (plain, first, 0, "float32"),  # the same shapes, other numbers
        (plain, draw(70, 90), draw(5, 30), "float32"),
        (wide, draw(3, 9), 64 + draw(20, 50), "float32"),
        (plain, 1, draw(130, 150), "float32"),
        (plain, 1, 0, "float32"),
        (plain, 1, 63, "bfloat16"),
        (plain, 1, 64, "float32"),
        (plain, 64, 64, "float32"),
        (narrow, draw(70, 90), draw(5, 30), "bfloat16"),
        (large, draw(5, 9), 128, "float32"),
        (low, draw(5, 9), 125, "float32"),
        (low, draw(5, 9), 125, "bfloat16"),
        (lowest, draw(5, 9), 90, "float32"),
        (rising, draw(5, 9), 125, "float32"),
        (falling, draw(5, 9), 125, "float32"),
        (plain, draw(11, 20), draw(20, 50), "float32", 16),
        (plain, draw(5, 9), draw(20, 30), "float32", 7),
        (plain, 3, 6, "bfloat16", 1),
        (plain, draw(5, 9), draw(20, 50), "float32", 256),
    ):
        q, k, v = made(start + rows)
        calls.append(kernel_call("block_attention", {"q": q[start:], "k": k, "v": v}, start, dtype, block))
    again = {"q": q[start:], "k": k[::-1], "v": v}  # the same queries, other keys
    return [*calls, kernel_call("block_attention", again, start, dtype, block)]


def bits_cases(seed: int) -> list[Call]:
    """One pass and chunks of it, by the fickle product. At position 40 every mean in float32 is a midpoint."""
    rng, calls = np.random.default_rng(seed), []
    for dtype, *block in (("float32",), ("bfloat16",), ("float32", 48)):
        q, k, v = vectors(rng, TOKENS)
        chunks = cuts(rng, dtype, block)
        if dtype == "float32" and not block:
            scores = np.array([math.fsum(q[40].astype(np.float64) * key) for key in k[:41]]) / 4
            weights = np.exp(scores - scores.max())
            weights /= math.fsum(weights)
            steps = 1 + np.argsort(weights[1:])[[20, 10, 0]]  # key 0 is all that query 0 sees
            v[:41] = midpoints(weights, v[:41], steps)
            chunks += [(40, 41), (38, 45)]
        for a, b in chunks:
            arrays = {"q": q[a:b], "k": k[:b], "v": v[:b]}
            calls.append(kernel_call("block_attention", arrays, a, dtype, block, rows=(a, b), whole=b - a == TOKENS))
    return calls


EXERCISE = exercise(
    SOLUTION,
    groups=kernel_groups(
        logic_cases,
        bits_cases,
        oracle=oracle,
        limit=limit,
        axes="a row for each query, a column for each of head_dim",
        whose="the query at position",
        which=ROUNDING,
    ),
    mistakes=MISTAKES,
    same=same,
    reread="Reread notebook 04, section 4.",
    imports="import math\n\nimport numpy as np\nimport torch",
    library=("course_lib.attention.tiled:attend_tiled",),
    driver=nb04.block_attention,
)
