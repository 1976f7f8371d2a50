"""Weights from a seeded integer generator: models of any size, with the same bits on every machine."""

import numpy as np

from course_lib.cli import UserError
from course_lib.model import Model
from course_lib.model_config import ModelConfig
from course_lib.weights.build import build, converter

SEEDED = {
    # Three layers: a one-layer model cannot show a wrong mask in its KV. Grouped heads, so that GQA is exercised.
    "tiny": ModelConfig(
        vocab_size=128, hidden_size=64, num_layers=3, q_heads=4, kv_heads=2, head_dim=16, intermediate_size=128
    ),
    "small": ModelConfig(
        vocab_size=512, hidden_size=256, num_layers=3, q_heads=8, kv_heads=2, head_dim=32, intermediate_size=512
    ),
}


def seeded_model(
    name: str = "tiny", seed: int = 0, *, backend: str = "numpy", arith: str = "tile", dtype: str = "float32",
    device: str = "cpu", config: ModelConfig | None = None,
) -> Model:  # fmt: skip
    """A model of pseudo-random weights, identical on every machine.

    name      a key of SEEDED; `config`, if given, takes its place
    backend   numpy | torch;  dtype   float32, with torch also bfloat16 and float16
    """
    if config is None and name not in SEEDED:
        raise UserError(f"no seeded model {name!r}; there are {sorted(SEEDED)}.")
    config = config or SEEDED[name]
    generator = _IntegerNormal(seed)
    sharper = (config.q_heads + config.kv_heads) * config.head_dim

    def make(key: str, shape: tuple[int, ...], layer: int | None) -> np.ndarray:
        array = generator(shape)
        if "norm" in key:
            return 1 + array / 8
        if key != "embedding":
            array *= 1 / np.sqrt(shape[0])  # sqrt in float64 is one IEEE rounding
        if key == "qkv":
            array[:, :sharper] *= 1.5  # sharper attention, so that a wrong mask is seen
        return array

    return build(config, make, converter(backend, dtype, device), arith)


class _IntegerNormal:
    """Nearly normal numbers (mean 0, variance 1) with the same bits on every machine and NumPy release.

    Raw 64-bit words of PCG64 (NumPy promises its raw stream, not its distributions) give four 16-bit
    integers each; their sum is nearly normal (Irwin-Hall), and one IEEE multiply scales it.
    """

    def __init__(self, seed: int):
        self._bits = np.random.PCG64(seed)

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        words = self._bits.random_raw(int(np.prod(shape))).astype("<u8").view("<u2").reshape(-1, 4)
        total = words.astype(np.int64).sum(axis=1) - 2 * 65535
        return (total * (np.sqrt(3.0) / 65536)).reshape(shape)  # each term has variance 65536**2 / 12
