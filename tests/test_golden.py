"""`exact` means the same bits everywhere: NumPy, torch, every dtype, and the hashes kept in the repository."""

import json

import pytest
from make_golden import DTYPES, MODELS, PATH, measure

GOLDEN = json.loads(PATH.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODELS)
def test_numpy_leaves_the_golden_bits(name):
    assert measure(name, "numpy", "float32") == GOLDEN[name]["float32"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_torch_leaves_the_golden_bits(name, dtype):
    assert measure(name, "torch", dtype) == GOLDEN[name][dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_cuda_leaves_the_golden_bits(name, dtype):
    assert measure(name, "torch", dtype, "cuda") == GOLDEN[name][dtype]
