"""Where two KV caches first differ, and what the pattern of differences means.

Layer 0's keys and values depend on a token and its position alone. So layer 0 K tells about positions,
layer 0 V about writes and blocks, and a clean layer 0 with a wrong layer 1 about attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from course_lib.prefill import KVSnapshot

# Relative difference of a head's vector below which only the order of sums differs. float32 kernels were
# seen to differ by 4e-7, and small mask faults by 7e-3; for the 16-bit types the two lie closer together.
ROUNDING = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
TENSORS = ("k", "v")


@dataclass(frozen=True)
class Divergence:
    """The first difference: by layer, then K before V, then position; the logits come last (layer None)."""

    layer: int | None
    tensor: str  # K, V or logits
    position: int
    index: int  # kv_head * head_dim + dim; for logits the token id
    ulps: int  # steps between the two numbers in their own format
    relative: float  # |a - b| / |a| of the head's vector there; inf if it is not finite
    largest: float  # the same, the largest of all layers and positions
    where: np.ndarray = field(repr=False, compare=False)  # [layers, 2 (K, V), tokens] bool: what differs

    def __str__(self) -> str:
        place = "the logits" if self.layer is None else f"layer {self.layer} {self.tensor} at position {self.position}"
        size = f"relative {self.relative:.2g} (largest anywhere {self.largest:.2g})"
        return f"first difference: {place}, {self.ulps} ulps, {size}"


def first_divergence(a: KVSnapshot, b: KVSnapshot) -> Divergence | None:
    """Where b first differs from a, the reference; None if K, V and logits are all equal.

    Raises ValueError when the two cannot be compared.
    """
    if a.dtype != b.dtype or a.k.shape != b.k.shape or a.logits.shape != b.logits.shape:
        raise ValueError(f"{a.dtype} {a.k.shape} and {b.dtype} {b.k.shape} cannot be compared: other model or prompt.")
    if a.equals(b):
        return None
    layers, tokens = a.k.shape[:2]
    differs = [_differs(a.values(name), b.values(name)).reshape(layers, tokens, -1) for name in TENSORS]
    relative = [_relative(a.values(name), b.values(name)) for name in TENSORS]
    logits_relative = _relative(a.values("logits"), b.values("logits"))
    largest = max(float(x.max()) for x in (*relative, logits_relative))
    where = np.stack([d.any(axis=-1) for d in differs], axis=1)
    for layer, tensor, position in np.argwhere(where)[:1].tolist():
        index = int(np.argmax(differs[tensor][layer, position]))
        flat = (layer * tokens + position) * differs[tensor].shape[-1] + index
        here = float(relative[tensor][layer, position].max())
        ulps = _ulps(getattr(a, TENSORS[tensor]), getattr(b, TENSORS[tensor]), flat)
        return Divergence(layer, TENSORS[tensor].upper(), position, index, ulps, here, largest, where)
    index = int(np.argmax(_differs(a.values("logits"), b.values("logits"))))
    ulps = _ulps(a.logits, b.logits, index)
    return Divergence(None, "logits", tokens - 1, index, ulps, float(logits_relative), largest, where)


def explain(d: Divergence, dtype: str, sizes: Sequence[int], hit: int, block_size: int) -> str:
    """The likely cause of a difference, read from its pattern alone. `faults.replay` can prove it.

    sizes, hit, block_size   the cut, the attached tokens and the block size of the run that differs
    """
    if d.largest < ROUNDING[dtype]:
        return "rounding level everywhere: another kernel sums in another order; this is not a mistake of logic."
    if d.layer is None:
        return (
            "K and V are all equal and only the logits differ: attention in the last layer, the final norm or the head."
        )
    positions = np.flatnonzero(d.where[d.layer].any(axis=0))
    if positions[0] < hit:
        return _inside_the_hit(d.layer, positions[positions < hit], block_size)
    if d.layer > 0:
        size = "large, as if cached keys were missing" if d.relative > 0.3 else "small, as if by a key or two"
        return (
            f"layer 0 is clean and layer {d.layer} differs from position {d.position} on ({size}): attention. "
            "Look at the mask, then at the positions of the queries."
        )
    if not d.where[0, 1].any():
        return (
            f"layer 0 K differs from position {d.position} on and layer 0 V is clean: the positions given to RoPE. "
            "They must be absolute, counted from 0 at the start of the request."
        )
    chunk_ends = hit + np.cumsum(sizes) - 1
    if np.isin(positions, chunk_ends).all():
        return "layer 0 K and V differ at chunk ends only: the last write of a chunk is dropped."
    return (
        f"layer 0 K and V differ from position {d.position} on: written to the wrong slots, or other tokens were run."
    )


def _inside_the_hit(layer: int, positions: np.ndarray, block_size: int) -> str:
    blocks = np.unique(positions // block_size)
    if layer > 0:
        return (
            f"block {blocks[0]} of the hit is clean in layer 0 only: right tokens, computed after another beginning "
            "(its hash lacks the parent)."
        )
    if len(positions) == 1:
        return f"one position inside the hit ({positions[0]}): a shared block was written to."
    if len(blocks) == 1:
        return f"the whole block {blocks[0]} of the hit: it was reused for other tokens, or is the wrong block."
    return (
        f"blocks {blocks.tolist()} of the hit: the block table is read in the wrong order. "
        "Attention cannot tell; a gather can."
    )


def _differs(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ~((x == y) | (np.isnan(x) & np.isnan(y)))


def _relative(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|x - y| / |x| along the last axis; inf where it is not a number."""
    with np.errstate(all="ignore"):
        length = np.linalg.norm(x.astype(np.float64), axis=-1)
        ratio = np.linalg.norm(x.astype(np.float64) - y, axis=-1) / np.maximum(length, 1e-30)
    return np.where(np.isfinite(ratio), ratio, np.inf)


def _ulps(a: np.ndarray, b: np.ndarray, flat: int) -> int:
    """Representable numbers from a's to b's element: the difference of their bits, read as sign and magnitude."""

    def ordered(x: np.ndarray) -> int:
        element = np.ascontiguousarray(x).reshape(-1)[flat : flat + 1]
        bits = int(element.view(f"u{element.itemsize}")[0])
        sign = 1 << (8 * element.itemsize - 1)
        return bits if bits < sign else sign - bits

    return abs(ordered(a) - ordered(b))
