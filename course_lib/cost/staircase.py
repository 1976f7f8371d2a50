"""Why 136 tokens can cost half as much again as 128: a GPU multiplies matrices in whole tiles, and tiles in waves.

A product of [tokens x inner] by [inner x columns] is cut into tiles of the result, and each SM computes one tile at a
time. Eight rows over the edge cost a whole further row of tiles, and one tile over what the SMs hold costs a further
wave: time climbs in stairs. Below the first stair, time is what it takes to read the weights, whatever is multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from course_lib.cost.devices import DEVICES, Device


@dataclass(frozen=True)
class Staircase:
    """Time of a matrix product on a device, with constants that are fitted to a measured profile.

    tiles               (rows, columns, percent of the peak rate that such a tile reaches); the fastest choice counts
    tail_percent        what a last wave of a few tiles takes of a full wave's time; the rest grows with its tiles
    bandwidth_percent   of the peak bandwidth, for reading the weights and the tokens, writing the results
    launch_ns           on top of each product
    """

    device: Device
    tiles: tuple[tuple[int, int, int], ...]
    tail_percent: int
    bandwidth_percent: int
    launch_ns: int

    def gemm_ns(self, tokens: int, inner: int, columns: int, itemsize: int = 2) -> int:
        """Nanoseconds of one product: launch + sqrt(read^2 + multiply^2).

        Reading and multiplying overlap, though not wholly: the root lies between the larger of the two and their sum.
        """
        if tokens < 1:
            raise ValueError(f"{tokens} tokens: a product needs at least 1.")
        moved = itemsize * (inner * columns + tokens * (inner + columns))
        read = moved * 10**11 // (self.device.memory_bytes_per_s * self.bandwidth_percent)
        multiply = min(self._multiply_ns(tokens, inner, columns, *tile) for tile in self.tiles)
        return self.launch_ns + isqrt(read * read + multiply * multiply)

    def _multiply_ns(
        self, tokens: int, inner: int, columns: int, tile_rows: int, tile_columns: int, percent: int
    ) -> int:
        sms, tail = self.device.sms, self.tail_percent
        tiles = -(-tokens // tile_rows) * -(-columns // tile_columns)
        full, rest = divmod(tiles, sms)
        waves = full * 100 * sms + (tail * sms + (100 - tail) * rest if rest else 0)  # in 1 / (100 sms)
        return waves * 2 * tile_rows * tile_columns * inner * 10**9 // (self.device.matmul_flops * percent)


# Fitted to Vidur's measurements of the four products of a Llama-2-7B layer at 259 numbers of tokens, 1 to 4,096
# (github.com/microsoft/vidur, data/profiling/compute/{a100,h100}/meta-llama/Llama-2-7b-hf/mlp.csv, one GPU, medians;
# read 2026-11-30). The sum of the four is within 10% at every one of them: A100 median 4.3%, worst 9.3%; H100 median
# 3.2%, worst 9.8%. A single product is up to 32% (A100) and 30% (H100) off: the GPU's library does not always choose
# the fastest tiles (88 tokens take it longer than 128 on the H100). The A100's constants hold within 10% for Llama 3 8B
# too, which they were not fitted to. They are a fit: no single one of them is a property of the GPU.
_HOPPER = {
    "tiles": ((128, 256, 79), (128, 128, 76), (64, 64, 63), (32, 128, 47)),
    "tail_percent": 66, "bandwidth_percent": 83, "launch_ns": 3_000,
}  # fmt: skip
STAIRCASES = {
    "a100": Staircase(
        DEVICES["a100"], tiles=((128, 128, 75), (64, 256, 60)), tail_percent=12, bandwidth_percent=100, launch_ns=0
    ),
    "h100": Staircase(DEVICES["h100"], **_HOPPER),
    "h200": Staircase(DEVICES["h200"], **_HOPPER),  # not measured: the H100's processor, with faster memory
}
