"""Explorer of notebook 01: one token of a prompt is another one. Which rows of the KV cache change?"""

import functools

import numpy as np

from course_lib.model import Model
from course_lib.prefill import KVSnapshot, prefill
from course_lib.weights import seeded_model
from course_lib.widgets.explorer import Choice, Explorer, Slider, Switch, explore

TOKENS = 24
CUTS = {"one pass": (24,), "8 + 8 + 8": (8, 8, 8), "5 + 11 + 2 + 6": (5, 11, 2, 6), "one token at a time": (1,) * 24}


def changed_rows(flip: int, sizes: tuple[int, ...], look_ahead: bool = False) -> np.ndarray:
    """[layers, 2 (K, V), TOKENS] bool: the rows that differ when token `flip` is another one, in the same cut.

    look_ahead   attention also sees the tokens behind it, as far as its chunk goes (no language model does that)
    """
    before, after = _run(None, sizes, look_ahead), _run(flip, sizes, look_ahead)
    return np.stack([(a != b).any(axis=(2, 3)) for a, b in ((before.k, after.k), (before.v, after.v))], axis=1)


@functools.lru_cache(maxsize=1)
def _model() -> Model:
    return seeded_model("tiny", arith="exact")


@functools.lru_cache(maxsize=256)
def _run(flip: int | None, sizes: tuple[int, ...], look_ahead: bool) -> KVSnapshot:
    ids = [(7 * i * i + 3 * i) % 128 for i in range(TOKENS)]
    if flip is not None:
        ids[flip] = (ids[flip] + 1) % 128
    everything = (
        (lambda chunk_len, cached_len: np.ones((chunk_len, cached_len + chunk_len), bool)) if look_ahead else None
    )
    return prefill(_model(), ids, sizes, mask=everything)


def explore_changed_rows() -> Explorer:
    """Choose the token that changes and how the prompt is cut."""
    return explore(
        _build,
        _update,
        size=(9.5, 3.4),
        flip=Slider("token that is changed", 0, TOKENS - 1, 13),
        cut=Choice("chunks", list(CUTS)),
        look_ahead=Switch("attention looks ahead"),
    )


def _build(figure) -> dict:
    from matplotlib.patches import Rectangle

    ax, layers = figure.add_subplot(), _model().config.num_layers
    rows = [f"layer {layer} {name}" for layer in range(layers) for name in "KV"]
    cells = [
        [Rectangle((c - 0.5, r - 0.5), 1, 1, edgecolor="0.4", linewidth=0.5) for c in range(TOKENS)]
        for r in range(len(rows))
    ]
    for cell in (cell for line in cells for cell in line):
        ax.add_patch(cell)
    ax.set(xlim=(-0.5, TOKENS - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel="token at position")
    ax.set_xticks(range(TOKENS))
    ax.set_yticks(range(len(rows)), rows)
    for layer in range(1, layers):
        ax.axhline(2 * layer - 0.5, color="black", linewidth=1)
    seams = [ax.axvline(0, color="black", linewidth=2.5) for _ in range(TOKENS - 1)]
    frame = ax.add_patch(
        Rectangle((0, -0.5), 1, len(rows), fill=False, edgecolor="#0072b2", linewidth=3, linestyle="--", zorder=5)
    )
    ax.set_title("hatched: the row changes   dashed frame: the changed token   thick lines: where chunks meet")
    return {"cells": cells, "seams": seams, "frame": frame}


def _update(artists: dict, flip: int, cut: str, look_ahead: bool) -> str:
    sizes = CUTS[cut]
    changed = changed_rows(flip, sizes, look_ahead)
    for line, marks in zip(artists["cells"], changed.reshape(-1, TOKENS)):
        for cell, differs in zip(line, marks):
            cell.set(facecolor="#e69f00" if differs else "white", hatch="///" if differs else "")
    ends = np.cumsum(sizes)
    for i, seam in enumerate(artists["seams"]):
        seam.set_visible(i < len(ends) - 1)
        seam.set_xdata([ends[min(i, len(ends) - 1)] - 0.5] * 2)
    artists["frame"].set_x(flip - 0.5)

    first = int(np.argmax(changed.any(axis=(0, 1))))
    said = f"Token {flip} is another one: {int(changed.sum())} of {changed.size} rows change"
    if look_ahead and first < flip:
        whose = "the beginning of the prompt" if len(sizes) == 1 else "the beginning of its chunk"
        return (
            f"{said}, back to token {first}, {whose}: if attention looked ahead, no row would be final before all its "
            "tokens were known, and another cut would leave another cache."
        )
    own = "only its own two" if changed[0].sum() == 2 else f"{int(changed[0].sum())}"
    behind = f"those of tokens {flip} to {TOKENS - 1}" if flip < TOKENS - 1 else f"those of token {flip}"
    kept = (
        f"The {flip} tokens before it keep all their rows"
        if flip > 1
        else "Token 0 keeps its rows"
        if flip
        else "No token stands before it"
    )
    finished = int((ends <= flip).sum())
    chunks = "" if len(sizes) == 1 else f" (chunks that stay as they are: {finished} of {len(sizes)})"
    return f"{said}. In layer 0 {own}, in the layers above {behind}. {kept}{chunks}."
