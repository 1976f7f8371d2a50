"""Explorer of notebook 03: attention scores between tokens of equal content, under right and wrong positions."""

from collections.abc import Callable

import numpy as np

from course_lib.positions import rope_cos_sin
from course_lib.widgets.explorer import Choice, Explorer, Slider, explore

TOKENS, HEAD_DIM = 96, 16

# name in the menu: position of the tokens of a chunk, given (cached, computed, take, index of the chunk, chunk size)
RULES: dict[str, Callable] = {
    "absolute": lambda cached, computed, take, index, size: cached + computed + np.arange(take),
    "chunk-relative": lambda cached, computed, take, index, size: np.arange(take),
    "from the end of the hit": lambda cached, computed, take, index, size: computed + np.arange(take),
    "chunk index x chunk size": lambda cached, computed, take, index, size: index * size + np.arange(take),
}


def positions_of(rule: str, chunk: int, hit: int) -> tuple[np.ndarray, list[int]]:
    """What each of 96 tokens is told about its position [96] int64, and where the chunks begin.

    The first `hit` tokens were cached, with right positions; chunks of `chunk` tokens compute the rest.
    """
    told, starts = [np.arange(hit)], []
    for index, computed in enumerate(range(0, TOKENS - hit, chunk)):
        take = min(chunk, TOKENS - hit - computed)
        starts.append(hit + computed)
        told.append(RULES[rule](hit, computed, take, index, chunk))
    return np.concatenate(told), starts


def explore_seams() -> Explorer:
    """Move the chunk size and the hit, and see where a rule's positions part from the absolute ones."""
    return explore(
        _build,
        _update,
        size=(9, 4.2),
        rule=Choice("positions", list(RULES), "chunk-relative"),
        chunk=Slider("chunk size", 8, TOKENS, 32, 8),
        hit=Slider("tokens from the prefix cache", 0, 64, 0, 8),
    )


def _build(figure) -> dict:
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    left.plot(range(TOKENS), range(TOKENS), "-", color="black", label="where it stands")
    (told,) = left.plot(range(TOKENS), range(TOKENS), ".", color="#d55e00", label="what it is told")
    left.set(xlabel="token", ylabel="position")
    left.legend(loc="upper left")
    image = right.imshow(np.zeros((TOKENS, TOKENS)), cmap="cividis", vmin=-HEAD_DIM // 2, vmax=HEAD_DIM // 2)
    right.set(xlabel="key of token", ylabel="query of token", title="scores of equal contents")
    figure.colorbar(image, ax=right, shrink=0.8)
    seams = [ax.axvline(0, color="black", linestyle="--", linewidth=1) for ax in (left, right) for _ in range(12)]
    return {"told": told, "image": image, "seams": seams}


def _update(artists: dict, rule: str, chunk: int, hit: int) -> str:
    told, starts = positions_of(rule, chunk, hit)
    cos, sin = rope_cos_sin(told, HEAD_DIM)
    artists["told"].set_ydata(told)
    artists["image"].set_data(cos @ cos.T + sin @ sin.T)
    for i, line in enumerate(artists["seams"]):
        at = starts[i % 12] if i % 12 < len(starts) else -10  # out of sight
        line.set_xdata([at - 0.5] * 2)
        line.set_visible(at > 0)
    wrong = np.flatnonzero(told != np.arange(TOKENS))
    if not len(wrong):
        return f"{rule}: every token is told where it stands; the stripes run through all seams."
    first = int(wrong[0])
    count = f"{len(wrong)} of {TOKENS} tokens are told another position"
    return f"{rule}: {count}. Token {first} is told {int(told[first])}."
