"""Notebook 04: wrong answers that nobody has listed lose points, and right ones that look odd keep them.

Answers are written as autograder/kept.py reads them: changes of the solution, or lines of code. What follows a wrong
one must stand in the message of a group that it fails.
"""

import numpy as np
import pytest

pytest.importorskip("torch")

from autograder.check import evaluate
from autograder.exercise import Raised, Returned
from autograder.exercises import EXERCISES
from autograder.judge import judge
from autograder.kept import known_mistakes
from autograder.plain import Other

SEEDS = (2, 0)
WRONG = {
    "bit_report": r"""
        raw_integers
          | kind = torch.int32 if a.dtype == torch.float32 else torch.int16
          | x, y = a.flatten().view(kind), b.flatten().view(kind)
          | differs = (x != y) & ~((a.flatten() == 0) & (b.flatten() == 0))
          | first = differs.nonzero()
          | gaps, lone = (x.long() - y.long()).abs(), a.isnan() != b.isnan()
          | return int(differs.sum()), int(gaps.max()), int(first[0]) if len(first) else -1, int(lone.sum())
        -0 on the other: the largest distance is

        numbers_for_nan
          a.flatten(), b.flatten()  ->  a.flatten().nan_to_num(), b.flatten().nan_to_num()
        with NaN on one side only

        finite_distances
          [differs & ~one_nan]  ->  [differs & a.isfinite() & b.isfinite()]
        the largest distance is 0, it should be 1.

        distance_in_float32
          (place(a) - place(b)).abs()  ->  (place(a).float() - place(b).float()).abs()
        the largest distance is

        first_number
          differs.nonzero()  ->  (differs & ~one_nan).nonzero()
        the first index is

        nan_in_a
          a.isnan() != b.isnan()  ->  a.isnan() & ~b.isnan()
        with NaN on one side only

        absolute
          a.flatten(), b.flatten()  ->  a.flatten().abs(), b.flatten().abs()
        the number of elements that differ is

        zeros_written
          a, b = a.flatten(), b.flatten()  ->  a, b = a.flatten(), b.flatten()\nb[b == 0] = 0.0
        changed its argument b.

        floats
          int(differs.sum())  ->  float(differs.sum())
        wanted four whole numbers.

        tiny_is_zero
          a.flatten(), b.flatten()  ->  (x.flatten().where(x.flatten().abs() > 1.2e-38, 0.0) for x in (a, b))
        the largest distance is
    """,
    "tiled_linear": r"""
        numpy
          | return torch.from_numpy(x.float().numpy() @ w.float().numpy()).to(x.dtype)
        no matrix product of torch's was seen

        numpy_asarray
          | return torch.tensor(np.einsum("ij,jk->ik", np.asarray(x.float()), np.asarray(w.float()))).to(x.dtype)
        no matrix product of torch's was seen

        numpy_float64
          | return torch.from_numpy(x.double().numpy() @ w.double().numpy()).to(x.dtype)
        no matrix product of torch's was seen

        plain_in_inference_mode
          | with torch.inference_mode():
          |     return x @ w
        their bits depend on the cut

        float32_pad_in_parts
          | parts = []
          | for part in x.split(tile):
          |     rest = torch.zeros(tile - len(part), x.shape[1])
          |     parts.append((torch.cat([part.float(), rest]) @ w)[: len(part)])
          | return torch.cat(parts).to(x.dtype)
        expected m1 and m2 to have the same dtype

        remembers_in_a_default
          | def tiled_linear(x, w, start, tile=16, memo={}):
          |     out = x @ w
          |     for row, made in zip(x, out):
          |         made[:] = memo.setdefault((tuple(row.tolist()), float(w.sum())), made.clone())
          |     return out
        their bits depend on the cut

        remembers_in_a_tensor
          | def tiled_linear(x, w, start, tile=16, memo=torch.zeros(200, 20), held=torch.zeros(200)):
          |     out = x @ w
          |     for i in range(len(x) if w.shape == (48, 20) and x.dtype == torch.float32 else 0):
          |         if held[start + i] and (memo[start + i] - out[i]).abs().max() < 1e-3:
          |             out[i] = memo[start + i]
          |         memo[start + i], held[start + i] = out[i], 1
          |     return out
        their bits depend on the cut

        one_buffer
          | before, total = start % tile, len(x) + start % tile
          | if not hasattr(tiled_linear, "buffer"):
          |     tiled_linear.buffer = {}
          | out = tiled_linear.buffer.setdefault((x.dtype, w.shape[1]), x.new_zeros(300, w.shape[1]))
          | padded = torch.nn.functional.pad(x, (0, 0, before, -total % tile))
          | for first in range(0, len(padded), tile):
          |     out[first : first + tile] = padded[first : first + tile] @ w
          | return out[before:total]
        what it returned is another after the next call

        a_decode_is_no_tile
          return out[before : before + len(x)]  ->  return x @ w if len(x) == 1 else out[before : before + len(x)]
        their bits depend on the cut

        whole_aligned_chunk_at_once
          before = start % tile  ->  before = start % tile\nif before == len(x) % tile == 0:\n    return x @ w
        their bits depend on the cut

        slots_of_16
          start % tile  ->  start % 16
        in float32 with tile=24

        slot_of_the_last_row
          start % tile  ->  (start + len(x)) % tile
        their bits depend on the cut

        scaled_in_place
          before = start % tile  ->  before = start % tile\nx *= 2\nw *= 0.5
        changed its argument x.

        numpy_result
          return out[before : before + len(x)]  ->  return out[before : before + len(x)].float().numpy()
        returned a NumPy array, and not a torch tensor.

        list_result
          return out[before : before + len(x)]  ->  return out[before : before + len(x)].tolist()
        returned a list or tuple, and not a torch tensor.

        float32_result
          return out[before : before + len(x)]  ->  return out[before : before + len(x)].float()
        was given bfloat16 and returned float32.

        halves_of_the_sum
          | half = x.shape[1] // 2
          | return x[:, :half] @ w[:half] + x[:, half:] @ w[half:]
        their bits depend on the cut

        columns
          | return torch.stack([x @ column for column in w.T], 1)
        their bits depend on the cut

        not_implemented_in_torch
          | return (x.to(torch.uint16) @ w.to(torch.uint16)).to(x.dtype)
        raised NotImplementedError: "addmm_impl_cpu_" not implemented for 'UInt16'
    """,
    "block_attention": r"""
        numpy
          | q64, k64, v64 = (x.double().numpy() for x in (q, k, v))
          | scores = np.where(np.tri(len(q), len(k), start) > 0, q64 @ k64.T / np.sqrt(q.shape[1]), -np.inf)
          | weights = np.exp(scores - scores.max(1, keepdims=True))
          | return torch.from_numpy(weights @ v64 / weights.sum(1, keepdims=True)).to(q.dtype)
        no matrix product of torch's was seen

        begins_at_minus_100
          queries.new_full((block, 1), -math.inf)  ->  queries.new_full((block, 1), -100.0)
        NaN comes from

        hides_with_minus_10000
          masked_fill(ahead, -math.inf)  ->  masked_fill(ahead, -1e4)
        it should be

        weights_in_float16
          weights @ values[b : b + block]  ->  weights.half().float() @ values[b : b + block]
        it should be

        weights_always_bfloat16
          weights @ values[b : b + block]  ->  weights.bfloat16().float() @ values[b : b + block]
        it should be

        total_in_the_dtype
          largest = higher  ->  largest, total = higher, total.to(q.dtype).float()
        in bfloat16

        scaled_in_the_dtype
          q.float() / math.sqrt(q.shape[1])  ->  q / math.sqrt(q.shape[1])
        in bfloat16

        head_dim_16
          math.sqrt(q.shape[1])  ->  4
        it should be

        scales_q_in_place
          stop = start + len(q)  ->  stop = start + len(q)\nq *= 1 / math.sqrt(q.shape[1])
          q.float() / math.sqrt(q.shape[1])  ->  q.float()
        changed its argument q.

        triangle_of_64
          queries.new_ones(block, block)  ->  queries.new_ones(64, 64)
        must match the size of tensor

        a_decode_in_blocks_of_one
          stop = start + len(q)  ->  stop, block = start + len(q), 1 if len(q) == 1 else block
        their bits depend on the cut

        broadcast_and_added
          | ahead = torch.ones(len(q), len(k)).triu(start + 1).bool()
          | scores = (q.float()[:, None] * k.float()).sum(-1) / math.sqrt(q.shape[1])
          | weights = torch.softmax(scores.masked_fill(ahead, -math.inf), 1)
          | return (weights[:, :, None] * v.float()).sum(1).to(q.dtype)
        their bits depend on the cut

        remembers_rows
          | memo = block_attention.__dict__.setdefault("memo", {})
          | ahead = torch.ones(len(q), len(k)).triu(start + 1).bool()
          | scores = (q.float() @ k.float().T / math.sqrt(q.shape[1])).masked_fill(ahead, -math.inf)
          | out = (torch.softmax(scores, 1) @ v.float()).to(q.dtype)
          | for i, row in enumerate(out):
          |     row[:] = memo.setdefault((start + i, tuple(q[i].tolist())), row.clone())
          | return out
        their bits depend on the cut
    """,
}
RIGHT = {
    "tiled_linear": """
        from_position_0
          before = start % tile  ->  before = start
        Every tile from position 0 on.

        another_tile
          before = start % tile  ->  tile, before = 32, start % 32
        Twice as many rows.

        row_by_row
          | return torch.stack([(row[:, None] * w).sum(0) for row in x])
        A tile of one row, multiplied and added.

        row_by_row_mv
          | return torch.stack([w.T @ row for row in x])
        A tile of one row.

        three_axes
          padded[first : first + tile] @ w  ->  (padded[first : first + tile, :, None] * w).sum(1)
        Products of one shape.

        whole_numbers
          | return ((x.double() * 2**20).round() @ (w.double() * 2**20).round() / 2.0**40).to(x.dtype)
        No sum is rounded, so no order matters.

        python_sums
          | columns = w.T.tolist()
          | rows = [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in x.tolist()]
          | return torch.tensor(rows).to(x.dtype)
        Always in the order of the inner axis.

        fsum
          | import math
          | columns = w.double().numpy().T
          | rows = [[math.fsum(row * column) for column in columns] for row in x.double().numpy()]
          | return torch.tensor(rows, dtype=torch.float64).to(x.dtype)
        NumPy multiplies, and the sums are exact.

        numpy_output
          | out = np.zeros((len(x), w.shape[1]), np.float32)
          | for i, row in enumerate(x):
          |     padded = x.new_zeros(tile, x.shape[1])
          |     padded[(start + i) % tile] = row
          |     out[i] = (padded @ w)[(start + i) % tile].float().numpy()
          | return torch.from_numpy(out).to(x.dtype)
        Only the output is NumPy's.

        inference_mode
          | with torch.inference_mode():
          |     before = start % tile
          |     padded = torch.nn.functional.pad(x, (0, 0, before, -(before + len(x)) % tile))
          |     return torch.cat([part @ w for part in padded.split(tile)])[before : before + len(x)]
        Without gradients.

        module
          | layer = torch.nn.Linear(*w.shape, bias=False, dtype=x.dtype)
          | layer.weight.data = w.T.contiguous()
          | before = start % tile
          | padded = torch.nn.functional.pad(x, (0, 0, before, -(before + len(x)) % tile))
          | return torch.cat([layer(part) for part in padded.split(tile)])[before : before + len(x)]
        The result has a gradient.
    """,
    "block_attention": """
        very_low
          queries.new_full((block, 1), -math.inf)  ->  queries.new_full((block, 1), torch.finfo(torch.float32).min)
          masked_fill(ahead, -math.inf)  ->  masked_fill(ahead, -1e30)
        No score is that low.

        exact
          | from course_lib.attention.reference import attend
          | mask = np.tri(len(q), len(k), start, dtype=bool)
          | return torch.from_numpy(attend(q.float().numpy(), k.float().numpy(), v.float().numpy(), mask)).to(q.dtype)
        The attention of notebook 02: no sum is rounded.

        query_by_query
          | out = []
          | for i in range(len(q)):
          |     n = start + i + 1
          |     out.append(torch.softmax(q[i].float() @ k[:n].float().T / q.shape[1] ** 0.5, 0) @ v[:n].float())
          | return torch.stack(out).to(q.dtype)
        Shapes depend on the position alone.

        sdpa_query_by_query
          | out = []
          | for i in range(len(q)):
          |     n = start + i + 1
          |     one = (q[None, i : i + 1].float(), k[None, :n].float(), v[None, :n].float())
          |     out.append(torch.nn.functional.scaled_dot_product_attention(*one)[0])
          | return torch.cat(out).to(q.dtype)
        Shapes depend on the position alone.

        hidden_where
          scores.masked_fill(ahead, -math.inf)  ->  torch.where(ahead, -math.inf, scores)
          (scores - higher).exp()  ->  torch.exp(scores - higher)
        The same in other words.

        float64
          q.float() / math.sqrt(q.shape[1])  ->  q.double() / math.sqrt(q.shape[1])
          q.new_zeros(last - first, q.shape[1]).float()  ->  q.new_zeros(last - first, q.shape[1]).double()
        In tiles, and finer than asked.
    """,
}


def answers(texts):
    return [
        pytest.param(EXERCISES[name], answer, id=f"{name}-{answer.name}")
        for name, text in texts.items()
        for answer in known_mistakes(EXERCISES[name].solution, text)
    ]


def verdicts(exercise, source, seed):
    return [evaluate(exercise, group, exercise.compile(source), seed) for group in exercise.groups]


@pytest.mark.parametrize("exercise, answer", answers(WRONG))
def test_a_wrong_answer_fails_and_hears_why(exercise, answer):
    for seed in SEEDS:
        failed = [v.message for v in verdicts(exercise, answer.source, seed) if not v.passed]
        assert any(answer.message in message for message in failed), failed
        assert not any("not written yet" in message for message in failed)


@pytest.mark.parametrize("exercise, answer", answers(RIGHT))
def test_a_right_answer_that_looks_odd_passes(exercise, answer):
    for seed in SEEDS:
        assert [v.message for v in verdicts(exercise, answer.source, seed)] == ["", ""]


def test_a_diagonal_alone_and_a_forgotten_maximum_do_the_same_and_both_are_named():
    exercise = EXERCISES["block_attention"]
    (forgotten,) = known_mistakes(exercise.solution, "forgotten\n  largest = higher  ->\nIt is lost.")
    for seed in SEEDS:
        for verdict in verdicts(exercise, forgotten.source, seed):
            assert verdict.mistake == "last_block_only"
            assert "earlier blocks are not read" in verdict.message and "largest = higher" in verdict.message


@pytest.mark.parametrize("name", ["bit_report", "tiled_linear", "block_attention"])
def test_a_judge_refuses_what_is_not_as_it_must_be_and_never_raises(name):
    exercise = EXERCISES[name]
    rng = np.random.default_rng(0)
    shapes = [(), (0,), (3,), (1, 16), (5, 20), (132, 20), (132, 16), (2, 3, 4)]
    values = [None, True, 0, -1, 2.5, "text", b"", (), ((1.0, 2.0), (3.0,)), Other("Tensor", "?"), float("nan"), 2**62]
    values += [np.full(shape, x, dtype) for shape in shapes for x, dtype in ((np.nan, "f4"), (3e38, "f8"), (1, "?"))]
    values += [np.full(shape, 1 + 2j) for shape in shapes]
    for group in exercise.groups:
        calls = group.cases(2)
        for _ in range(12):
            outcomes = [_odd(rng, values) for _ in calls]
            assert not judge(exercise, group, calls, outcomes[: rng.integers(len(calls) + 1)]).passed
            assert not judge(exercise, group, calls, outcomes).passed


def _odd(rng, values):
    def value():
        return values[rng.integers(len(values))]

    forms = [
        lambda: Returned(
            (str(rng.choice(["float32", "bfloat16", "", "no dtype"])), value(), value(), bool(rng.integers(2)))
        ),
        lambda: Returned(value()),
        lambda: Raised("ValueError", "no"),
    ]
    return forms[rng.choice(3, p=[0.9, 0.05, 0.05])]()
