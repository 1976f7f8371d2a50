"""Does this machine keep what tile arithmetic assumes? Measured, because no vendor promises it.

Assumed: the same call on the same shape gives the same bits each time, wherever its operands lie in
memory, and a row's bits do not depend on the contents of the other rows.
"""

import numpy as np

from course_lib.arithmetic import plain
from course_lib.arithmetic.arrays import cast, like, to_numpy
from course_lib.arithmetic.tile import TILE, matmul

SHAPES = ((64, 192), (256, 1024), (1024, 256))  # inner, columns
ROUNDS = 3


def self_test(backend: str = "numpy", dtype: str = "float32", device: str = "cpu") -> list[str]:
    """Check matmul, RMSNorm and the activation on tiles of several shapes; the problems found, empty when well."""
    problems = []
    for inner, columns in SHAPES:
        w = _random((inner, columns), 1)
        if backend == "torch":
            import torch

            w = torch.from_numpy(w).to(device=device, dtype=getattr(torch, dtype))
        problems += check_matmul(w)
        gain = w[:, 0]
        problems += _check(lambda x, gain=gain: plain.rms_norm(x, gain, 1e-5), w, f"RMSNorm over {inner}")
        problems += _check(lambda x: plain.silu_mul(x, x), w, f"activation over {inner}")
    return problems


def check_matmul(w, tile: int = TILE) -> list[str]:
    """The same for `tile @ w` alone, w [inner, columns]; a model runs it on its own weights when it starts."""
    return _check(lambda x: matmul(x[None], w)[0], w, f"matmul with a {tuple(w.shape)} weight", tile)


def _check(operation, w, name: str, tile: int = TILE) -> list[str]:
    """operation on a tile: repeated, and with each row alone among other neighbours."""

    def bits(x: np.ndarray) -> np.ndarray:
        return to_numpy(operation(cast(like(w, x.copy()), w.dtype)))

    x = _random((tile, w.shape[0]), 2)
    first = bits(x)
    if any(not np.array_equal(first, bits(x)) for _ in range(ROUNDS)):
        return [
            f"{name}: the same call gave other bits when repeated. Set a fixed number of threads, or use arith='exact'."
        ]
    for neighbours in (np.zeros_like(x), _random(x.shape, 3), 100 * _random(x.shape, 4)):
        for keep in (np.arange(tile) % 2 == 0, np.arange(tile) % 2 == 1, np.arange(tile) == tile - 1):
            mixed = bits(np.where(keep[:, None], x, neighbours))
            if not np.array_equal(first[keep], mixed[keep]):
                return [f"{name}: a row's bits depend on the rows beside it. Use arith='exact' on this machine."]
    return []


def _random(shape: tuple[int, int], seed: int) -> np.ndarray:
    words = np.random.PCG64(seed).random_raw(shape[0] * shape[1]).astype("<u8")
    return ((words >> np.uint64(40)).astype(np.float32) / 2**23 - 1).reshape(shape)
