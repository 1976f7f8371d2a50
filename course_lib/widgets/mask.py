"""Explorer of notebook 02: which keys a chunk's queries see, under the right mask and under wrong ones."""

from collections.abc import Callable

import numpy as np

from course_lib.attention.mask import chunk_attention_mask
from course_lib.widgets.explorer import Choice, Explorer, Slider, explore

MOST_NEW, MOST_CACHED = 8, 12

# name in the menu: (mask of row, key and cached length; what it does)
RULES: dict[str, tuple[Callable, str]] = {
    "right": (lambda row, key, cached: key <= cached + row, "each query sees all that stands before it, and itself"),
    "top-left corner": (lambda row, key, cached: key <= row, "row i sees keys 0 .. i, as if nothing were cached"),
    "everything": (lambda row, key, cached: key >= 0, "each query sees the tokens behind it in the chunk, too"),
    "own chunk only": (
        lambda row, key, cached: (key >= cached) & (key <= cached + row),
        "the cached keys are forgotten",
    ),
    "one ahead": (lambda row, key, cached: key <= cached + row + 1, "each query also sees the next token"),
    "without itself": (lambda row, key, cached: key < cached + row, "a query does not see its own key"),
}


def mask_of(rule: str, chunk_len: int, cached_len: int) -> np.ndarray:
    """The mask [chunk_len, cached_len + chunk_len] of a rule, bool."""
    row, key = np.arange(chunk_len)[:, None], np.arange(cached_len + chunk_len)[None, :]
    return np.broadcast_to(RULES[rule][0](row, key, cached_len), (chunk_len, cached_len + chunk_len))


def explore_mask() -> Explorer:
    """Move chunk_len and cached_len, and compare a rule with the right mask."""
    return explore(
        _build,
        _update,
        size=(9, 3.8),
        chunk_len=Slider("new tokens in the chunk", 1, MOST_NEW, 3),
        cached_len=Slider("tokens cached before it", 0, MOST_CACHED, 5),
        rule=Choice("mask", list(RULES)),
    )


def _build(figure) -> dict:
    from matplotlib.colors import ListedColormap

    ax = figure.add_subplot()
    shape = (MOST_NEW, MOST_CACHED + MOST_NEW)
    colours = ListedColormap(["#e8e8e8", "white", "#56b4e9", "#e69f00", "#cc79a7"])
    image = ax.imshow(np.zeros(shape), cmap=colours, vmin=-0.5, vmax=4.5, aspect="equal")
    marks = [[ax.text(c, r, "", ha="center", va="center") for c in range(shape[1])] for r in range(shape[0])]
    edge = ax.axvline(0, color="black", linestyle="--")
    ax.set(xlabel="key at position", title="1: seen   +: seen, and must not be   o: not seen, and must be")
    return {"ax": ax, "image": image, "marks": marks, "edge": edge}


def _update(artists: dict, chunk_len: int, cached_len: int, rule: str) -> str:
    keys = cached_len + chunk_len
    right, given = chunk_attention_mask(chunk_len, cached_len), mask_of(rule, chunk_len, cached_len)
    cells = np.zeros((MOST_NEW, MOST_CACHED + MOST_NEW))  # 0: no such query or key
    cells[:chunk_len, :keys] = np.select([right & given, ~right & given, right & ~given], [2, 3, 4], 1)
    artists["image"].set_data(cells)
    for row, marks in zip(cells, artists["marks"]):
        for cell, mark in zip(row, marks):
            mark.set_text({2: "1", 3: "+", 4: "o"}.get(int(cell), ""))
    artists["edge"].set_xdata([cached_len - 0.5] * 2)
    artists["ax"].set_xticks(range(keys))
    artists["ax"].set_yticks(range(chunk_len), [f"query {cached_len + r}" for r in range(chunk_len)])
    wrong = int((right != given).sum())
    blind = int((~given.any(axis=1)).sum())
    said = f"{chunk_len} queries, {keys} keys; {RULES[rule][1]}."
    if wrong == 0:
        return said + (" No entry differs from the right mask." if rule != "right" else "")
    said += f" {wrong} of {chunk_len * keys} entries are wrong"
    return said + (f", and {blind} queries see nothing at all." if blind else ".")
