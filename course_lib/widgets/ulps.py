"""Explorer of notebook 04: how many ulps each position is off one pass, by ordinary kernels and by aligned tiles.

Measured where it runs, on torch's CPU kernels: another machine, torch or number of threads has another map.
"""

import functools

import numpy as np

from course_lib.lessons.nb04_bits import bit_report, block_attention, tiled_linear
from course_lib.widgets.explorer import Choice, Explorer, explore

TOKENS, WIDTH = 160, 64
SIZES = (1, 2, 3, 5, 7, 16, 17, 64, 100)
DTYPES, KERNELS = ("float32", "bfloat16"), ("x @ w", "attention")
NAMES = ("ordinary kernel", "aligned tiles")


@functools.cache
def ulp_maps(dtype: str, kernel: str) -> np.ndarray:
    """[2 (NAMES), chunk sizes, TOKENS] int64: the largest distance in ulps of each row from one pass."""
    x, w, q, k, v = _tensors(dtype)
    pairs = {
        "x @ w": (lambda a, b: x[a:b] @ w, lambda a, b: tiled_linear(x[a:b], w, a)),
        "attention": (lambda a, b: _sdpa(q[a:b], k[:b], v[:b]), lambda a, b: block_attention(q[a:b], k[:b], v[:b], a)),
    }
    maps = np.zeros((2, len(SIZES), TOKENS), dtype=np.int64)
    for which, run in enumerate(pairs[kernel]):
        whole = run(0, TOKENS)
        for row, size in enumerate(SIZES):
            for start in range(0, TOKENS, size):
                stop = min(start + size, TOKENS)
                for position, part in enumerate(run(start, stop), start):
                    if not bool((part == whole[position]).all()):
                        maps[which, row, position] = bit_report(part, whole[position])[1]
    return maps


def _tensors(dtype: str):
    import torch

    rng = np.random.default_rng(4)
    shapes = [(TOKENS, WIDTH), (WIDTH, WIDTH), *[(TOKENS, WIDTH)] * 3]
    return [torch.from_numpy(rng.standard_normal(shape)).to(getattr(torch, dtype)) for shape in shapes]


def _sdpa(q, k, v):
    """torch's own attention for the last len(q) of the keys, with the right mask."""
    import torch

    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    return torch.nn.functional.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], mask)[0, 0]


def explore_ulps() -> Explorer:
    """Choose a dtype, a kernel and a chunk size: which positions have other bits than in one pass?"""
    return explore(
        _build,
        _update,
        size=(10, 5.4),
        dtype=Choice("dtype", DTYPES),
        kernel=Choice("kernel", KERNELS, "attention"),
        chunk=Choice("chunk size", SIZES, 7),
    )


def _build(figure) -> dict:
    from matplotlib.patches import Rectangle

    axes = figure.subplots(2, 1, sharex=True)
    images, marks, frames = [], [], []
    for ax in axes:
        image = ax.imshow(np.zeros((len(SIZES), TOKENS)), cmap="Blues", vmin=0, vmax=8, aspect="auto")
        images.append(image)
        marks.append(ax.plot([], [], "x", color="#d55e00", markersize=3, markeredgewidth=0.7)[0])
        frames.append(ax.add_patch(Rectangle((-0.5, 0), TOKENS, 1, fill=False, edgecolor="black", linewidth=2)))
        ax.set_yticks(range(len(SIZES)), SIZES)
        ax.set_ylabel("chunk size")
    axes[1].set_xlabel("position")
    bar = figure.colorbar(images[0], ax=axes, extend="max")
    bar.set_label("log2(1 + largest distance in ulps); x: not equal")
    return {"axes": axes, "images": images, "marks": marks, "frames": frames}


def _update(artists: dict, dtype: str, kernel: str, chunk: int) -> str:
    maps, row = ulp_maps(dtype, kernel), SIZES.index(chunk)
    for i, name in enumerate(NAMES):
        artists["images"][i].set_data(np.log2(1 + maps[i]))
        sizes, positions = np.nonzero(maps[i])
        artists["marks"][i].set_data(positions, sizes)
        artists["frames"][i].set_y(row - 0.5)
        artists["axes"][i].set_title(f"{name}, {kernel} in {dtype}")
    said = []
    for name, one in zip(NAMES, maps[:, row]):
        differ = int((one > 0).sum())
        far = f", by up to {int(one.max()):,} ulps" if differ else ""
        said.append(f"{name}: {differ} of {TOKENS} positions differ from one pass{far}")
    return f"Chunks of {chunk}, measured on this machine. {'; '.join(said)}."
