"""Notebook 04: the fickle product keeps what it promises, and what the notebook and its explorer say is so."""

import hashlib
import json

import numpy as np
import pytest
from starting import ROOT

pytest.importorskip("torch")

import torch

from autograder.check import evaluate
from autograder.drivers.fickle import fickle_products, on_fickle_tensors
from autograder.exercises import EXERCISES
from autograder.exercises.nb04_kernels import tensor_arg, values
from course_lib.arithmetic import exact
from course_lib.arithmetic.selftest import self_test
from course_lib.lessons.nb04_bits import bit_report, block_attention, tiled_linear
from course_lib.weights import golden

HASH = "bd4768eb9c9ce45a4ff83c7e7bbf42a1b2aaa61d37ff2d7922ffe67ee43a52bd"
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def random(*shape, seed=1, dtype=torch.float32):
    words = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return torch.from_numpy((words >> np.uint64(11)) / 2**52 - 1).reshape(shape).to(dtype)


# The fickle product


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_fickle_product_keeps_two_things_and_nothing_more(dtype):
    x, w = random(40, 48, dtype=dtype), random(48, 24, seed=2, dtype=dtype)
    with fickle_products():
        whole, again = x @ w, x @ w
        other = torch.where((torch.arange(40) == 7)[:, None], x, random(40, 48, seed=3, dtype=dtype)) @ w
        fewer, moved = x[:7] @ w, x.roll(1, 0) @ w
    assert torch.equal(whole, again) and torch.equal(other[7], whole[7])
    assert not torch.equal(fewer, whole[:7]) and not torch.equal(moved.roll(-1, 0), whole)
    within = {torch.float32: 1e-5, torch.bfloat16: 0.2, torch.float64: 1e-13}[dtype]
    assert float((whole.double() - x.double() @ w.double()).abs().max()) < within


def test_the_fickle_product_has_the_same_bits_on_every_machine():
    with fickle_products():
        product = random(20, 30) @ random(30, 10, seed=2)
    assert hashlib.sha256(product.numpy().tobytes()).hexdigest() == HASH


def test_a_sum_that_is_exact_is_the_same_in_every_order():
    x, w = (torch.round(random(*shape) * 1000) for shape in ((33, 40), (40, 9)))
    with fickle_products():
        assert torch.equal(x @ w, (x.double() @ w.double()).float())


def test_no_function_of_torch_gets_past_the_fickle_product():
    x, w, one = random(12, 48), random(48, 24, seed=2), torch.zeros(24)
    three = x.reshape(2, 6, 48)
    ways = {
        "matmul": lambda: torch.matmul(x, w),
        "mm": lambda: torch.mm(x, w),
        "inference mode": torch.inference_mode()(lambda: x @ w),
        "linear in inference mode": torch.inference_mode()(lambda: torch.nn.functional.linear(x, w.T, one)),
        "out": lambda: torch.mm(x, w, out=torch.empty(12, 24)),
        "linear": lambda: torch.nn.functional.linear(x, w.T.contiguous()),
        "linear with bias": lambda: torch.nn.functional.linear(x, w.T.contiguous(), one),
        "einsum": lambda: torch.einsum("ik,kj->ij", x, w),
        "tensordot": lambda: torch.tensordot(x, w, 1),
        "addmm": lambda: torch.addmm(one, x, w),
        "three axes": lambda: three @ w,
        "bmm": lambda: torch.bmm(three, w.expand(2, 48, 24)),
        "in place": lambda: torch.zeros(12, 24).addmm_(x, w),
        "batches": lambda: torch.addbmm(one, x.reshape(12, 2, 24).transpose(0, 1), w.reshape(2, 24, 24)),
        "mv": lambda: torch.stack([torch.mv(w.T, row) for row in x]),
        "addmv": lambda: torch.stack([torch.addmv(one, w.T, row) for row in x]),
        "broadcast and added": lambda: (x[:, :, None] * w).sum(1),
        "broadcast and added, keepdim": lambda: (x[:, None, :] * w.T).sum(-1, keepdim=True),
        "dot": lambda: torch.stack([torch.stack([torch.dot(row, column) for column in w.T]) for row in x]),
    }
    with fickle_products():
        fickle = {name: way().reshape(12, 24) for name, way in ways.items()}
    right = x.double() @ w.double()
    for name, way in ways.items():
        assert not torch.equal(fickle[name], way().reshape(12, 24)), name
        assert float((fickle[name].double() - right).abs().max()) < 1e-5, name
    q, k, v = (random(1, 1, 30, 16, seed=s) for s in (1, 2, 3))
    attention = torch.nn.functional.scaled_dot_product_attention
    with fickle_products():
        assert not torch.equal(attention(q, k, v)[:, :, :3], attention(q[:, :, :3], k, v))
    assert float((attention(q, k, v) - attention(q.double(), k.double(), v.double())).abs().max()) < 1e-5


@pytest.mark.parametrize("made", [torch.float32, torch.bfloat16, torch.int64, torch.uint16], ids=str)
def test_the_fickle_product_refuses_what_torch_refuses(made):
    """The same type of error with the same text; and what torch accepts is accepted."""
    x, w, v = torch.ones(4, 6), torch.ones(6, 5, dtype=made), torch.ones(6, dtype=made)
    c = torch.zeros(4, 5)
    ways = [
        lambda: x @ w,
        lambda: w.T @ w,
        lambda: x @ w.T,
        lambda: torch.mm(x, w[:3]),
        lambda: torch.mm(x, v),
        lambda: torch.bmm(x[None], w[None]),
        lambda: torch.bmm(x[None], w),
        lambda: torch.bmm(w[None], w[None]),
        lambda: torch.mv(x, v),
        lambda: torch.dot(x[0], v),
        lambda: torch.dot(v, v[:2]),
        lambda: torch.addmm(c, x, w),
        lambda: torch.addmm(w[:4], x, x.T),
        lambda: torch.addmm(torch.zeros(7, 7), x, w),
        lambda: c.clone().addmm_(x, w),
        lambda: torch.baddbmm(c[None], x[None], w[None]),
        lambda: torch.mm(x, x.T, out=torch.zeros(4, 4, dtype=made)),
        lambda: torch.einsum("ik,kj->ij", x, w),
        lambda: torch.matmul(x[None], w[None]),
        lambda: torch.nn.functional.linear(x, w.T),
        lambda: torch.tensordot(x, w, 1),
        lambda: torch.nn.functional.scaled_dot_product_attention(x[None, None], w.T[None, None], w.T[None, None]),
    ]

    def outcome(way):
        try:
            return "gave", way().dtype
        except Exception as error:
            return type(error), str(error)

    for place, way in enumerate(ways):
        wanted = outcome(way)
        with fickle_products():
            assert outcome(way) == wanted, place


def test_the_fickle_product_keeps_out_in_place_beta_and_whole_numbers():
    x, w = random(5, 9), random(9, 4, seed=2)
    out, nan = torch.zeros(5, 4), torch.full((5, 4), torch.nan)
    whole = torch.tensor([[2**62, 1, -(2**62)], [3, 4, 5]])
    with fickle_products():
        product = x @ w
        assert torch.mm(x, w, out=out) is out and torch.equal(out, product)
        assert torch.equal(torch.addmm(nan, x, w, beta=0, alpha=2), 2 * product)
        square = random(5, 5)
        assert torch.equal(square.clone().addmm_(square, x @ x.T, beta=3), torch.addmm(square, square, x @ x.T, beta=3))
        assert (whole @ torch.ones(3, 1, dtype=torch.int64)).flatten().tolist() == [1, 12]


@pytest.mark.filterwarnings("ignore:__array__")
def test_what_leaves_torch_for_numpy_is_seen_and_what_stays_is_not():
    x = random(5, 9)
    for way in (x.numpy, lambda: np.asarray(x), lambda: np.array(x), lambda: np.stack(list(x)), lambda: np.dot(x, x.T)):
        with fickle_products() as seen:
            way()
        assert seen.left and not seen.products
    for way in (lambda: x.sum(1), lambda: x[0, 0].item(), lambda: x.nonzero().numpy(), lambda: repr(x), x.tolist):
        with fickle_products() as seen:
            way()
        assert not seen.left and not seen.products


def test_arguments_in_bfloat16_are_rounded_as_torch_rounds():
    x = random(1000).numpy() * np.float32(1e3)
    assert np.array_equal(values(tensor_arg(x, "bfloat16")), torch.from_numpy(x).bfloat16().float().numpy())
    assert np.array_equal(values(tensor_arg(x, "float32")), x)
    got = on_fickle_tensors(lambda a, n: (a.dtype, n), tensor_arg(x, "bfloat16"), 3)
    assert got == (torch.bfloat16, 3)


# The kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fickle", [True, False])
def test_the_kernels_keep_their_bits_in_every_cut(dtype, fickle):
    problems = [] if fickle else self_test("torch", str(dtype).removeprefix("torch."))
    if problems:
        pytest.skip(problems[0])
    x, w = random(200, 48, dtype=dtype), random(48, 20, seed=2, dtype=dtype)
    q, k, v = (random(200, 16, seed=s, dtype=dtype) * 4 for s in (3, 4, 5))

    def run(a, b):
        return tiled_linear(x[a:b], w, a), block_attention(q[a:b], k[:b], v[:b], a)

    def cut(sizes):
        edges = np.cumsum([0, *sizes]).tolist()
        return [torch.cat(parts) for parts in zip(*map(run, edges, edges[1:]))]

    def check():
        whole = run(0, 200)
        for sizes in ([7] * 28 + [4], [64, 64, 64, 8], [100, 100], [1, 3, 61, 17, 118], [1] * 70 + [130]):
            assert all(torch.equal(*pair) for pair in zip(cut(sizes), whole)), sizes[:3]

    if fickle:
        with fickle_products():
            check()
    else:
        check()


def test_the_kernels_are_close_to_float64():
    x, w = random(70, 300), random(300, 20, seed=2)
    assert float((tiled_linear(x, w, 5).double() - x.double() @ w.double()).abs().max()) < 1e-5 * 30
    q, k, v = (random(150, 16, seed=s) * 3 for s in (3, 4, 5))
    scores = (q.double() @ k.double().T / 4).masked_fill(torch.ones(150, 150).triu(1).bool(), -torch.inf)
    wanted = scores.softmax(1) @ v.double()
    assert float((block_attention(q, k, v, 0).double() - wanted).abs().max()) < 1e-5
    assert float((block_attention(q[40:], k, v, 40, block=16).double() - wanted[40:]).abs().max()) < 1e-5


def test_block_attention_makes_no_tensor_that_grows_with_the_square_of_the_tokens():
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls):
            return False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            sizes.append(made.numel() if isinstance(made, torch.Tensor) else 0)
            return made

    q, k, v = (random(1024, 16, seed=s) for s in (1, 2, 3))
    with Watch():
        block_attention(q, k, v, 0)
    assert max(sizes) == 2 * 1024 * 16  # keys and values; a table of scores would have 1,048,576


def test_a_plain_kernel_earns_logic_and_not_bits_and_a_mistake_is_named_however_it_is_written():
    cases = {
        ("tiled_linear", "plain"): "return torch.nn.functional.linear(x, w.T.contiguous())",
        ("tiled_linear", "chunk_aligned"): "return torch.cat([(torch.cat([part, torch.zeros(tile - len(part), "
        "x.shape[1], dtype=x.dtype)]) @ w)[: len(part)] for part in x.split(tile)])",
        ("tiled_linear", "one_product"): "b = start % tile; p = torch.nn.functional.pad(x, (0, 0, b, -(b + len(x)) % "
        "tile)); return (p.reshape(-1, tile, x.shape[1]) @ w).flatten(0, 1)[b : b + len(x)]",
        ("block_attention", "plain"): "return torch.nn.functional.scaled_dot_product_attention(q[None, None], "
        "k[None, None], v[None, None], attn_mask=torch.ones(len(q), len(k)).tril(start).bool())[0, 0]",
    }
    signatures = {"tiled_linear": "x, w, start, tile=16", "block_attention": "q, k, v, start, block=64"}
    for (name, mistake), body in cases.items():
        fn = EXERCISES[name].compile(f"def {name}({signatures[name]}):\n    {body}\n")
        for seed in (2, 3):
            logic, bits = (evaluate(EXERCISES[name], group, fn, seed) for group in EXERCISES[name].groups)
            assert logic.passed and not bits.passed and bits.mistake == mistake, (name, mistake, bits.message)
            assert "depend on the cut" in bits.message


def test_an_answer_in_the_wrong_dtype_is_told_so():
    fn = EXERCISES["tiled_linear"].compile(
        "def tiled_linear(x, w, start, tile=16):\n    return x.double() @ w.double()\n"
    )
    message = evaluate(EXERCISES["tiled_linear"], EXERCISES["tiled_linear"].group("logic"), fn).message
    assert "was given float32 and returned float64" in message


# bit_report


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bit_report_at_the_edges(dtype):
    def of(a, b):
        return bit_report(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype))

    top = torch.finfo(dtype).max
    nan, inf = float("nan"), float("inf")
    assert of([], []) == (0, 0, -1, 0)
    assert of([0.0, nan, inf], [-0.0, -nan, inf]) == (0, 0, -1, 0)
    assert of([[1.0, inf]], [[1.0, top]]) == (1, 1, 1, 0)
    assert of([nan, 1.0], [1.0, nan]) == (2, 0, 0, 2)
    whole = torch.int32 if dtype == torch.float32 else torch.int16
    assert of([inf], [-inf])[1] == 2 * torch.tensor(inf, dtype=dtype).view(whole).item()


def test_bit_report_takes_any_layout():
    x = random(6, 8)
    y = x.clone()
    y[2, 3] = torch.nextafter(y[2, 3], torch.tensor(9.0))
    assert bit_report(x.T, y.T) == (1, 1, 3 * 6 + 2, 0)


# What the notebook says


def test_the_numbers_in_the_prose_are_the_librarys():
    text = (ROOT / "solutions" / "04_bits.py").read_text("utf-8")
    for number in (f"{exact.MAX_INNER:,} terms", f"{exact.MAX_KEYS:,} keys"):
        assert number in text
    assert (exact.X_BITS, exact.W_BITS) == (20, 21) and "for a row of x, 21 for a column of w" in text
    assert 2**exact.X_BITS * 2**exact.W_BITS * exact.MAX_INNER == 2**53
    from course_lib.arithmetic.tile import TILE

    assert TILE == 32 and "The course's engine uses T = 32" in text


def test_the_golden_hashes_have_one_home():
    kept = json.loads(golden.PATH.read_text("utf-8"))
    assert set(kept) == set(golden.MODELS) and all(set(of) == set(golden.DTYPES) for of in kept.values())
    assert golden.golden_hashes() == kept["ledger"]["float32"] == golden.measured_hashes()
    assert set(golden.golden_hashes()) == {"model", "k", "v", "logits"}


def test_the_explorer_shows_what_the_kernels_do():
    pytest.importorskip("matplotlib")
    from course_lib.widgets import ulps

    explorer = ulps.explore_ulps()
    for dtype in ulps.DTYPES:
        x, w, q, k, v = ulps._tensors(dtype)
        wholes = {"x @ w": x @ w, "attention": ulps._sdpa(q, k, v)}
        for kernel in ulps.KERNELS:
            for chunk in (7, 100):
                said = explorer.set(dtype=dtype, kernel=kernel, chunk=chunk)
                parts = [(a, min(a + chunk, ulps.TOKENS)) for a in range(0, ulps.TOKENS, chunk)]
                cut = torch.cat(
                    [x[a:b] @ w if kernel == "x @ w" else ulps._sdpa(q[a:b], k[:b], v[:b]) for a, b in parts]
                )
                differ = int((cut != wholes[kernel]).any(1).sum())
                assert f"ordinary kernel: {differ} of 160" in said
        if not self_test("torch", dtype):
            assert not ulps.ulp_maps(dtype, "x @ w")[1].any() and not ulps.ulp_maps(dtype, "attention")[1].any()
