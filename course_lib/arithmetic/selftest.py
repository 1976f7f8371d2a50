"""Does this machine keep what tile arithmetic assumes? Measured, because no vendor promises it.

Assumed: the same call on the same shape gives the same bits each time, wherever its operands lie in
memory, and a row's bits do not depend on the contents of the other rows.
"""

import numpy as np

from course_lib.arithmetic import plain, tile
from course_lib.arithmetic.arrays import cast, like, namespace, to_numpy
from course_lib.arithmetic.rows import TILE, RowTable, random_rows

SHAPES = ((64, 192), (256, 1024), (1024, 256))  # inner, columns
ROUNDS = 3


def self_test(backend: str = "numpy", dtype: str = "float32", device: str = "cpu") -> list[str]:
    """Check matmul, RMSNorm and the activation on tiles of several shapes; the problems found, empty when well."""
    problems = []
    for w in _weights(backend, dtype, device):
        inner = w.shape[0]
        problems += check_matmul(w)
        gain = w[:, 0]
        problems += _check(lambda x, gain=gain: plain.rms_norm(x, gain, 1e-5), w, f"RMSNorm over {inner}")
        problems += _check(lambda x: plain.silu_mul(x, x), w, f"activation over {inner}")
    return problems


def row_counts(backend: str = "numpy", dtype: str = "float32", device: str = "cpu") -> dict[str, str]:
    """Operation -> the row counts that give a row the bits of a 32-row call on this machine, in words (see rows.py)."""
    table, positions = RowTable(), np.zeros(1, dtype=np.int64)
    for w in _weights(backend, dtype, device):
        x = random_rows(w, (1, w.shape[0]), 0)
        tile.matmul(table, x, w, positions)
        tile.rms_norm(table, x, w[:, 0], 1e-5, positions)
        tile.silu_mul(table, x, x, positions)
    return table.in_words()


def _weights(backend: str, dtype: str, device: str) -> list:
    weights = [_random(shape, 1) for shape in SHAPES]
    if backend == "torch":
        import torch

        return [torch.from_numpy(w).to(device=device, dtype=getattr(torch, dtype)) for w in weights]
    return weights


def check_matmul(w) -> list[str]:
    """The same for `tile @ w` alone, w [inner, columns]; a model runs it on its own weights when it starts."""
    return _check(lambda x: namespace(w).matmul(x, w), w, f"matmul with a {tuple(w.shape)} weight")


def _check(operation, w, name: str) -> list[str]:
    """operation on a tile: repeated, and with each row alone among other neighbours."""

    def bits(x: np.ndarray) -> np.ndarray:
        return to_numpy(operation(cast(like(w, x.copy()), w.dtype)))

    x = _random((TILE, w.shape[0]), 2)
    first = bits(x)
    if any(not np.array_equal(first, bits(x)) for _ in range(ROUNDS)):
        return [
            f"{name}: the same call gave other bits when repeated. Set a fixed number of threads, or use arith='exact'."
        ]
    for neighbours in (np.zeros_like(x), _random(x.shape, 3), 100 * _random(x.shape, 4)):
        for keep in (np.arange(TILE) % 2 == 0, np.arange(TILE) % 2 == 1, np.arange(TILE) == TILE - 1):
            mixed = bits(np.where(keep[:, None], x, neighbours))
            if not np.array_equal(first[keep], mixed[keep]):
                return [f"{name}: a row's bits depend on the rows beside it. Use arith='exact' on this machine."]
    return []


def _random(shape: tuple[int, int], seed: int) -> np.ndarray:
    words = np.random.PCG64(seed).random_raw(shape[0] * shape[1]).astype("<u8")
    return ((words >> np.uint64(40)).astype(np.float32) / 2**23 - 1).reshape(shape)
