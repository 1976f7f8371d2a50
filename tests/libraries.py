"""NumPy and torch under one test: the same arrays in either library."""

import importlib.util

import numpy as np
import pytest

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
LIBRARIES = ["numpy", pytest.param("torch", marks=needs_torch)]


def array_of(library: str, x):
    """x as an array of `library`, with x's dtype; a copy that owns its memory."""
    x = np.array(x)
    if library == "numpy":
        return x
    import torch

    return torch.from_numpy(x)


def empty_of(library: str, dtype: str = "float32"):
    """A function (shape) -> uninitialised array, as KVPool wants it."""
    if library == "numpy":
        return lambda shape: np.empty(shape, dtype=dtype)
    import torch

    return lambda shape: torch.empty(shape, dtype=getattr(torch, dtype))
