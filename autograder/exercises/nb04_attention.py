"""Exercise 4.3, block_attention: an online softmax over blocks of keys, the same in every cut."""

from __future__ import annotations

import numpy as np

from autograder.exercise import Call, Exercise, Group
from autograder.exercises.fickle import on_fickle_tensors, tensor_arg, values
from autograder.exercises.nb02_attend import halfway
from autograder.exercises.nb02_attend import oracle as attend64
from autograder.exercises.nb02_mask import causal
from autograder.exercises.nb04_attention_answers import MISTAKES, ROUNDING
from autograder.exercises.nb04_kernels import TOKENS, cuts, judge_bits, judge_logic, logic, same
from autograder.kept import known_mistakes

AXES = "a row for each query, a column for each of head_dim"
HEAD_DIM = 16
SOLUTION = "course_lib.lessons.nb04_bits:block_attention"


def _call(q, k, v, start: int, dtype: str, *block: int, **facts) -> Call:
    args = (*(tensor_arg(x, dtype) for x in (q, k, v)), start, *block)
    also = f", block={block[0]}" if block else ""
    label = f"block_attention(q {list(q.shape)}, k and v {list(k.shape)}, start={start}{also}) in {dtype}"
    return Call(args, label, {"dtype": dtype, "start": start, **facts})


def oracle(call: Call) -> np.ndarray:
    """The formula in float64, with the causal mask of this chunk."""
    q, k, v = (values(x) for x in call.args[:3])
    return attend64(q, k, v, causal(len(q), call.args[3]))


def _vectors(rng: np.random.Generator, tokens: int, scale: float = 1.0) -> list[np.ndarray]:
    """q, k, v whose scores grow and fall along the keys, so that the largest is in an early block or a late one."""
    q, k, v = (rng.standard_normal((tokens, HEAD_DIM)).astype(np.float32) for _ in range(3))
    return [q * np.float32(scale) * rng.uniform(0.3, 2.0, (tokens, 1)).astype(np.float32), k, v]


def logic_cases(seed: int) -> list[Call]:
    """Inside one block, over several, off the grid, a decode, scores beyond float32's exp, other blocks."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    calls = []
    for rows, start, block, scale, dtype in (
        (draw(9, 20), 0, (), 1.0, "float32"),
        (draw(70, 90), draw(5, 30), (), 1.0, "float32"),
        (draw(3, 9), 64 + draw(20, 50), (), 1.0, "float32"),
        (1, draw(130, 150), (), 1.0, "float32"),
        (draw(5, 9), 128, (), 60.0, "float32"),
        (draw(70, 90), draw(5, 30), (), 1.0, "bfloat16"),
        (draw(11, 20), draw(20, 50), (16,), 1.0, "float32"),
    ):
        q, k, v = _vectors(rng, start + rows, scale)
        calls.append(_call(q[start:], k, v, start, dtype, *block))
    return calls


def bits_cases(seed: int) -> list[Call]:
    """In both dtypes one pass and chunks of it, by the fickle product. At position 40 every mean is a midpoint."""
    rng = np.random.default_rng(seed)
    calls = []
    for dtype in ("float32", "bfloat16"):
        q, k, v = _vectors(rng, TOKENS)
        chunks = [(0, TOKENS), *cuts(rng, dtype)]
        if dtype == "float32":
            v = halfway(q[40], k[:41], v)
            chunks += [(40, 41), (38, 45)]
        calls += [_call(q[a:b], k[:b], v[:b], a, dtype, rows=(a, b)) for a, b in chunks]
    return calls


_logic = logic(oracle, AXES)

EXERCISE = Exercise(
    name="block_attention",
    groups=(
        Group("logic", logic_cases, judge_logic(_logic)),
        Group("bits", bits_cases, judge_bits(_logic, "the query at position", ROUNDING)),
    ),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 04, section 4.",
    imports="import math\n\nimport numpy as np\nimport torch",
    solution=SOLUTION,
    library=("course_lib.attention.tiled:attend_tiled",),
    driver=on_fickle_tensors,
)
