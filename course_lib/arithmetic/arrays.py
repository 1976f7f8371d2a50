"""The little that NumPy and torch do under different names, so that one source serves both."""

import sys

import numpy as np


def namespace(x):
    """The module that x's array type belongs to: numpy or torch (never imported here)."""
    return sys.modules["torch"] if type(x).__module__.partition(".")[0] == "torch" else np


def cast(x, dtype):
    """x as `dtype` of its own library; x itself if it has that dtype already."""
    return x.astype(dtype, copy=False) if isinstance(x, np.ndarray) else x.to(dtype)


def like(x, array: np.ndarray):
    """A NumPy array as x's kind of array, on x's device, with its own dtype."""
    return array if isinstance(x, np.ndarray) else sys.modules["torch"].from_numpy(array).to(x.device)


def zeros(x, shape: tuple[int, ...], dtype=None):
    """Zeros of x's kind of array, on x's device, in `dtype` (x's if not given)."""
    array = empty(x, shape, dtype)
    array[...] = 0
    return array


def empty(x, shape: tuple[int, ...], dtype=None):
    """Like `zeros`, but filled with whatever the memory holds."""
    if isinstance(x, np.ndarray):
        return np.empty(shape, dtype or x.dtype)
    return sys.modules["torch"].empty(shape, dtype=dtype or x.dtype, device=x.device)


def contiguous(x):
    """x if its elements lie in C order without gaps; else such a copy."""
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.contiguous()


def address(x) -> int:
    """Where x begins in memory."""
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr()


def add_product(total, a, b) -> None:
    """total += a @ b for stacks of matrices [n, rows, inner] and [n, inner, columns], in place."""
    if isinstance(total, np.ndarray):
        total += np.matmul(a, b)
    else:
        total.baddbmm_(a, b)


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits (uint16; NumPy has no bfloat16) to the float32 of equal value: bfloat16 is its upper half."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_numpy(x) -> np.ndarray:
    """The same values on the CPU as NumPy; bfloat16 and float16 become float32, which holds them exactly."""
    if isinstance(x, np.ndarray):
        return x
    x = x.detach().cpu()
    return (x.float() if x.is_floating_point() and x.element_size() < 4 else x).numpy()


def bits(x) -> np.ndarray:
    """x on the CPU as NumPy, in its own dtype; bfloat16, which NumPy lacks, as its bits in uint16."""
    if isinstance(x, np.ndarray):
        return x
    torch = namespace(x)
    x = x.detach().cpu()
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()
