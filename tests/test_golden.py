"""`exact` means the same bits everywhere: NumPy, torch, every dtype, and the hashes kept in the repository."""

import json

import pytest
from make_golden import PATH, measure

GOLDEN = json.loads(PATH.read_text(encoding="utf-8"))


def test_numpy_leaves_the_golden_bits():
    assert measure("numpy", "float32") == GOLDEN["float32"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_leaves_the_golden_bits(dtype):
    assert measure("torch", dtype) == GOLDEN[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_cuda_leaves_the_golden_bits(dtype):
    assert measure("torch", dtype, "cuda") == GOLDEN[dtype]
