"""A prompt behind a hit, to move: its steps one by one, and what chunking and caching bring, alone and together."""

from course_lib.cost.linear import PRESETS
from course_lib.lessons.nb08_both import admit, two_by_two
from course_lib.widgets.explorer import Choice, Explorer, Slider, explore

PROMPT = 7_000
COST = PRESETS["reference"]
TARGET_US = 50_000
AFTER = 2  # steps of decodes alone that are drawn behind the prompt's last
WAYS = ("neither", "chunking only", "caching only", "both")
FIRST, GAP = {"facecolor": "#56b4e9", "hatch": "///"}, {"facecolor": "#d55e00", "hatch": "..."}


def explore_both() -> Explorer:
    """Steps and bars; controls for what is cached, the chunk, the block and the users. Modelled, preset reference."""
    return explore(
        build,
        update,
        size=(10, 4.6),
        shared=Slider("tokens computed before", 0, PROMPT, 5_000, step=8),
        block_size=Choice("block size", (1, 8, 16, 64, 256, 512), 16),
        chunk=Slider("chunk", 128, 4_096, 1_024, step=128),
        users=Slider("streaming users", 1, 48, 3),
    )


def chunks_of(hit: int, chunk: int) -> list[tuple[int, int]]:
    """(start, stop) of each chunk behind the hit."""
    return [(start, min(start + chunk, PROMPT)) for start in range(hit, PROMPT, chunk)]


def build(figure) -> dict:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    edge = {"edgecolor": "#333333", "linewidth": 0.6}
    steps = left.add_patch(PathPatch(Path([(0, 0)]), **FIRST, **edge))
    (dots,) = left.plot([], [], "o", color=GAP["facecolor"], markersize=5)
    left.set(xlabel="time in ms (modelled), from the step N on", ylim=(-0.6, 1.9))
    left.set_yticks([0, 1], ["the users'\ntokens", "A's chunks"])
    names = [left.text(0, 1.55, "", ha="center", fontsize=8) for _ in range(4)]
    places = range(len(WAYS))
    bars = [
        right.bar([x + shift for x in places], [1] * len(WAYS), 0.38, label=label, **look, **edge)
        for label, look, shift in (("first token of A", FIRST, -0.2), ("longest gap of a user", GAP, 0.2))
    ]
    values = [[right.text(bar.get_x() + 0.19, 0, "", ha="center", fontsize=7) for bar in group] for group in bars]
    right.axhline(TARGET_US / 1e3, color="black", linestyle="--", linewidth=1.5, label="target, 50 ms")
    right.set_xticks(places, [way.replace(" ", "\n") for way in WAYS])
    right.set(ylabel="ms (modelled)")
    right.legend(loc="upper right", fontsize=8)
    return {"left": left, "right": right, "steps": steps, "dots": dots, "names": names, "bars": bars, "values": values}


def update(artists, shared: int, block_size: int, chunk: int, users: int) -> str:
    hit = admit(PROMPT, shared, block_size)
    chunks = chunks_of(hit, chunk)
    cells = two_by_two(PROMPT, hit, users, chunk, COST)
    _draw_steps(artists, chunks, users)
    for column, (group, texts) in enumerate(zip(artists["bars"], artists["values"])):
        for bar, text, cell in zip(group, texts, cells):
            ms = cell[column] / 1e3
            bar.set_height(ms)
            text.set(y=ms + 1, text=f"{ms:.0f}")
    artists["right"].set_ylim(0, 1.45 * max(max(cell) for cell in cells) / 1e3)
    sizes = [stop - start for start, stop in chunks]
    cut = " + ".join(f"{n:,}" for n in sizes) if len(sizes) < 5 else f"{len(sizes)} chunks of up to {sizes[0]:,}"
    artists["left"].set_title(f"hit {hit:,}, tail {PROMPT - hit:,} = {cut}; {users} users", fontsize=10)
    kept = [way for way, (_, gap) in zip(WAYS, cells) if gap <= TARGET_US]
    best = min(kept, key=lambda way: cells[WAYS.index(way)][0]) if kept else ""
    verdict = f"Of the ways that keep every gap within 50 ms, {best} has the earliest first token" if best else (
        "No way keeps every gap within 50 ms"
    )  # fmt: skip
    ttft, gap = cells[3]
    return (
        f"Hit {hit:,} tokens, tail {PROMPT - hit:,} = {cut}. Both: first token after {ttft / 1e3:.1f} ms, longest gap "
        f"{gap / 1e3:.1f} ms. {verdict}. All of it modelled."
    )


def _draw_steps(artists, chunks: list[tuple[int, int]], users: int) -> None:
    from matplotlib.path import Path

    durations = [COST.step_us(stop - start, users) / 1e3 for start, stop in chunks]
    durations += [COST.step_us(0, users) / 1e3] * AFTER
    edges = [sum(durations[:i]) for i in range(len(durations) + 1)]
    boxes = [[(a, 0.75), (a, 1.25), (b, 1.25), (b, 0.75), (a, 0.75)] for a, b in zip(edges, edges[1 : len(chunks) + 1])]
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(boxes)
    artists["steps"].set_path(Path([point for box in boxes for point in box], codes))
    artists["dots"].set_data(edges[1:], [0] * len(durations))
    artists["left"].set_xlim(-0.03 * edges[-1], 1.03 * edges[-1])
    few = len(durations) <= len(artists["names"])
    for number, name in enumerate(artists["names"]):
        shown = few and number < len(durations)
        name.set_text((f"N+{number}" if number else "N") if shown else "")
        name.set_x((edges[number] + edges[number + 1]) / 2 if shown else 0)
