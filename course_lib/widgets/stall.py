"""The freeze, to move: how long each step takes while a prompt runs among streaming users."""

from course_lib.cost.linear import PRESETS, Timeline, chunked, exclusive_baseline, mixed_baseline
from course_lib.widgets.explorer import Choice, Explorer, Slider, Switch, explore

COST = PRESETS["reference"]
TARGET_US = 50_000
BEFORE = 2  # steps of decodes alone that are drawn before the prompt's first
ALONE, MIXED = "alone (exclusive baseline)", "with the decodes (mixed baseline)"
PARTS = (  # what a step's time is made of, from the bottom up: colour and hatching differ
    ("fixed part of a step", {"facecolor": "#bbbbbb", "hatch": ""}),
    ("prompt tokens", {"facecolor": "#56b4e9", "hatch": "///"}),
    ("decodes", {"facecolor": "#d55e00", "hatch": "..."}),
)


def explore_stall() -> Explorer:
    """Bars for the steps; controls for the prompt, the users, and how the prompt is cut. Modelled, preset reference."""
    return explore(
        build,
        update,
        size=(9, 4.5),
        prompt=Slider("prompt tokens", 1_024, 32_768, 8_192, step=1_024),
        users=Slider("streaming users", 0, 48, 24),
        chunking=Switch("chunking"),
        chunk=Slider("chunk, if chunking", 128, 8_192, 1_024, step=128),
        unchunked=Choice("if not, the prompt runs", (ALONE, MIXED)),
    )


def line_of(prompt: int, users: int, chunking: bool, chunk: int, unchunked: str) -> Timeline:
    """The library's timeline of a setting."""
    if chunking:
        return chunked(COST, prompt, users, chunk)
    return (exclusive_baseline if unchunked == ALONE else mixed_baseline)(COST, prompt, users)


def steps_of(line: Timeline, decodes_wait: bool) -> list[tuple[int, int, int]]:
    """(fixed, prompt, decodes) in us of every step that is drawn: some before the prompt, its own, and those after."""
    fixed, decodes = COST.fixed_us, COST.decode_us * line.users
    during = 0 if decodes_wait else decodes
    own = [(fixed, us - fixed - during, during) for us in line.step_us]
    after = len(line.gap_us) - len(own) + (1 if decodes_wait else 0) if line.users else 0
    return [(fixed, 0, decodes)] * (BEFORE if line.users else 0) + own + [(fixed, 0, decodes)] * after


def build(figure) -> dict:
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path

    ax = figure.subplots()
    edge = {"edgecolor": "#333333", "linewidth": 0.4}
    bars = [ax.add_patch(PathPatch(Path([(0, 0)]), **look, **edge)) for _, look in PARTS]
    target = ax.axhline(TARGET_US / 1e3, color="black", linestyle="--", linewidth=1.5, label="target, 50 ms")
    handles = [Patch(label=label, **look, **edge) for label, look in PARTS]
    ax.legend(handles=[*handles, target], loc="upper right", ncols=4, fontsize=9)
    ax.set(xlabel="step, counted from the prompt's first", ylabel="how long it takes, in ms (modelled)")
    return {"ax": ax, "bars": bars}


def update(artists, prompt: int, users: int, chunking: bool, chunk: int, unchunked: str) -> str:
    line = line_of(prompt, users, chunking, chunk, unchunked)
    decodes_wait = not chunking and unchunked == ALONE
    steps = steps_of(line, decodes_wait)
    first = -(BEFORE if users else 0)
    floor = [0.0] * len(steps)
    for part, bar in enumerate(artists["bars"]):
        top = [low + step[part] / 1e3 for low, step in zip(floor, steps)]
        bar.set_path(_boxes(first, floor, top))
        floor = top
    ax = artists["ax"]
    ax.set_xlim(min(first, -2) - 0.6, max(first + len(steps), 14) - 0.4)
    ax.set_ylim(0, 1.3 * max(*floor, TARGET_US / 1e3))
    how = _how(line, chunking, chunk, prompt, unchunked)
    ax.set_title(f"prompt {prompt:,}, {users} users, {how}")
    return _sentence(line, how, decodes_wait)


def _boxes(first: int, floor: list[float], top: list[float]):
    """All bars of one part as one path: hatching hundreds of separate ones takes seconds."""
    from matplotlib.path import Path

    boxes = [
        [(x - 0.4, low), (x - 0.4, high), (x + 0.4, high), (x + 0.4, low), (x - 0.4, low)]
        for x, (low, high) in enumerate(zip(floor, top), start=first)
    ]
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(boxes)
    return Path([point for box in boxes for point in box], codes)


def _how(line: Timeline, chunking: bool, chunk: int, prompt: int, unchunked: str) -> str:
    if not chunking:
        return f"whole prompt {unchunked}"
    if chunk >= prompt:
        return "one chunk: the same as the mixed baseline"
    return f"{len(line.step_us)} chunks of up to {chunk:,}"


def _sentence(line: Timeline, how: str, decodes_wait: bool) -> str:
    over = line.steps_over_target(TARGET_US)
    what = f"{how[0].upper()}{how[1:]}: the prompt's first token comes after {line.ttft_us / 1e3:.1f} ms"
    if not line.users:
        return f"{what}; nobody is streaming, so nobody is frozen."
    stall = f"the longest that a streaming user waits for a token is {line.worst_stall_us / 1e3:.1f} ms"
    why = " (the prompt's step and the step after it)" if decodes_wait else ""
    steps = "1 step takes" if over == 1 else f"{over or 'no'} steps take"
    return f"{what}; {stall}{why}; {steps} longer than 50 ms. All of it modelled."
