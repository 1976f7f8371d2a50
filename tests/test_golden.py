"""`exact` means the same bits everywhere: NumPy, torch, every dtype, and the hashes kept in the repository."""

import pytest

from course_lib.weights.golden import DTYPES, MODELS, golden_hashes, measured_hashes


@pytest.mark.parametrize("name", MODELS)
def test_numpy_leaves_the_golden_bits(name):
    assert measured_hashes(name) == golden_hashes(name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_torch_leaves_the_golden_bits(name, dtype):
    assert measured_hashes(name, backend="torch", dtype=dtype) == golden_hashes(name, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_cuda_leaves_the_golden_bits(name, dtype):
    assert measured_hashes(name, backend="torch", dtype=dtype, device="cuda") == golden_hashes(name, dtype)
