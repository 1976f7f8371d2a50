"""The trade of a chunk size, to move: one prompt among streaming users, with a target, a cached part and attention.

Steps are drawn on a clock: a bar is as wide and as high as its step is long, and the users' tokens stand below it, each
at the end of its step. All of it is modelled, by formula: the scheduler gives the same numbers (a test holds both).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from course_lib.cost.attention import AttentionCost
from course_lib.cost.linear import PRESETS, TRAILING_STEPS, LinearCost, Timeline, knee_chunk
from course_lib.cost.work import StepWork, pairs
from course_lib.widgets.explorer import Choice, Explorer, Slider, Switch, explore

LINEAR, ATTENTION = PRESETS["reference"], AttentionCost()
BEFORE = 3  # steps of decodes alone that are drawn before the prompt's first
ALONE, MIXED = "alone (exclusive baseline)", "with the decodes (mixed baseline)"
MOST = 65_536
PARTS = (  # what a step's time is made of, from the bottom up: colour and hatching differ
    ("fixed part", {"facecolor": "#bbbbbb", "hatch": ""}),
    ("prompt tokens", {"facecolor": "#56b4e9", "hatch": "///"}),
    ("attention of the prompt tokens", {"facecolor": "#009e73", "hatch": "xxx"}),
    ("decodes", {"facecolor": "#d55e00", "hatch": "..."}),
)
Parts = tuple[int, int, int, int]  # us of a step, in the order of PARTS


def explore_simulator() -> Explorer:
    """Steps and token streams; controls for the prompt, the chunk, the users, the target, the hit and attention."""
    return explore(
        build,
        update,
        size=(10, 5.6),
        prompt=Slider("prompt tokens", 1_024, MOST, 8_192, step=1_024),
        chunking=Switch("chunking", start=True),
        chunk=Slider("chunk, if chunking", 128, MOST, 1_024, step=128),
        unchunked=Choice("if not, the prompt runs", (MIXED, ALONE)),
        users=Slider("streaming users", 0, 64, 24),
        target_ms=Slider("target for a gap, ms", 5, 200, 50, step=5),
        hit=Slider("tokens in the prefix cache", 0, MOST, 0, step=512),
        attention=Switch("attention grows with the context"),
    )


@dataclass(frozen=True)
class View:
    """What a setting comes to.

    line    the timeline from the prompt's first step on, as the simulator has it
    steps   what each step that is drawn is made of: some of decodes alone, the prompt's own, and those behind
    tail    prompt tokens that are computed; the others are cached
    waits   whether the decodes wait for the prompt's step (exclusive baseline)
    """

    line: Timeline
    steps: tuple[Parts, ...]
    tail: int
    waits: bool


def view(
    prompt: int, users: int, chunking: bool, chunk: int, unchunked: str, hit: int = 0, attention: bool = False
) -> View:
    """The steps of a setting, by formula. A hit of the whole prompt, or more, leaves its last token to compute."""
    cost = ATTENTION if attention else LINEAR
    hit = min(hit, prompt - 1)
    waits = not chunking and unchunked == ALONE
    takes = min(chunk, prompt - hit) if chunking else prompt - hit
    spans = [(start, min(start + takes, prompt)) for start in range(hit, prompt, takes)]
    own = [_parts(cost, start, stop, 0 if waits else users) for start, stop in spans]
    alone = _parts(cost, 0, 0, users)
    step_us = [sum(parts) for parts in own]
    decode_us = sum(alone)
    if not users:
        gaps, after = [], 0
    elif waits:
        gaps, after = [step_us[0] + decode_us, *[decode_us] * (TRAILING_STEPS - 1)], TRAILING_STEPS
    else:
        gaps, after = [*step_us, *[decode_us] * TRAILING_STEPS], TRAILING_STEPS
    drawn = [alone] * (BEFORE if users else 0) + own + [alone] * after
    return View(Timeline(tuple(step_us), tuple(gaps), users), tuple(drawn), prompt - hit, waits)


def _parts(cost: LinearCost | AttentionCost, start: int, stop: int, decodes: int) -> Parts:
    """The cost's own step, taken apart."""
    linear = cost.prefill_us_per_token * (stop - start)
    attention = 0
    if isinstance(cost, AttentionCost) and stop > start:
        whole = cost.work_us(StepWork(stop - start, decodes, pairs(start, stop), start))
        attention = whole - cost.fixed_us - linear - cost.decode_us * decodes
    return cost.fixed_us, linear, attention, cost.decode_us * decodes


# --- the picture


def build(figure) -> dict:
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path

    figure.set_layout_engine("none")  # laying out anew at each move takes as long as drawing
    edges = {"left": 0.09, "right": 0.985, "top": 0.86, "bottom": 0.1, "hspace": 0.12}
    top, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": (3, 2), **edges})
    top.tick_params(labelbottom=False)
    edge = {"edgecolor": "#333333", "linewidth": 0.3}
    bars = [top.add_patch(PathPatch(Path([(0, 0)]), **look, **edge)) for _, look in PARTS]
    target = top.axhline(50, color="black", linestyle="--", linewidth=1.5, label="target")
    handles = [Patch(label=label, **look, **edge) for label, look in PARTS]
    figure.legend(handles=[*handles, target], loc="upper center", ncols=5, fontsize=9, frameon=False)
    (tokens,) = below.plot([], [], ".", color="#d55e00", markersize=3)
    first = below.plot([], [], "*", color="#0072b2", markersize=11)[0]
    top.set(ylabel="step, ms (modelled)")
    below.set(xlabel="time since the prompt's first step, ms (modelled)", ylabel="tokens")
    return {"top": top, "below": below, "bars": bars, "target": target, "tokens": tokens, "first": first}


def update(artists, prompt, chunking, chunk, unchunked, users, target_ms, hit, attention) -> str:
    shown = view(prompt, users, chunking, chunk, unchunked, hit, attention)
    steps, line = shown.steps, shown.line
    before = BEFORE if users else 0
    widths = [sum(parts) / 1e3 for parts in steps]
    ends = list(accumulate(widths, initial=-sum(widths[:before])))
    floor = [0.0] * len(steps)
    for part, bar in enumerate(artists["bars"]):
        top = [low + parts[part] / 1e3 for low, parts in zip(floor, steps)]
        bar.set_path(_boxes(ends, floor, top))
        floor = top
    artists["target"].set_ydata([target_ms, target_ms])
    times = [end for end, parts in zip(ends[1:], steps) if parts[3]]
    artists["tokens"].set_data(times * users, [user for user in range(1, users + 1) for _ in times])
    axes, below = artists["top"], artists["below"]
    for ax in (axes, below):
        ax.set_xlim(ends[0], ends[-1])
    axes.set_ylim(0, 1.25 * max(*floor, target_ms))
    room = max(users, 4) / 5  # so that the prompt's own row keeps clear of user 1's
    artists["first"].set_data([line.ttft_us / 1e3], [-room])
    below.set_ylim(-1.8 * room, max(users, 4) + 1)
    rows = sorted({1, users} - {0}) if users else []
    below.set_yticks([-room, *rows], ["prompt", *(f"user {row}" for row in rows)])
    axes.set_title(read_outs(shown, target_ms), fontsize=10)
    return _sentence(shown, prompt, chunking, target_ms, attention)


def read_outs(shown: View, target_ms: int) -> str:
    """The four numbers of a setting, in a line."""
    line = shown.line
    return (
        f"worst stall {line.worst_stall_us / 1e3:.1f} ms    TTFT of the prompt {line.ttft_us / 1e3:.1f} ms    "
        f"steps over target {line.steps_over_target(target_ms * 1000)} of {len(line.step_us)}    "
        f"decode {line.decode_tok_per_s:,} tok/s"
    )


def _boxes(ends: list[float], floor: list[float], top: list[float]):
    """All bars of one part as one path: hatching hundreds of separate ones takes seconds."""
    from matplotlib.path import Path

    boxes = [
        [(left, low), (left, high), (right, high), (right, low), (left, low)]
        for left, right, low, high in zip(ends, ends[1:], floor, top)
    ]
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(boxes)
    return Path([point for box in boxes for point in box], codes)


# --- the sentence


def _sentence(shown: View, prompt: int, chunking: bool, target_ms: int, attention: bool) -> str:
    line, cached = shown.line, prompt - shown.tail
    count, worst, over = len(line.step_us), line.worst_stall_us / 1e3, line.worst_stall_us > target_ms * 1000
    hit = f"{cached:,} of {prompt:,} tokens are cached, which leaves {shown.tail:,}: " if cached else ""
    if not line.users:
        steps = "1 step" if count == 1 else f"{count} steps"
        text = f"nobody is streaming, so nobody is frozen, and cutting only costs; the prompt takes {steps}."
    elif shown.waits:
        text = (
            f"the prompt runs alone, and every user waits {worst:.1f} ms, its step and the step of decodes behind it."
        )
    elif count == 1:
        how = "one chunk holds all that is to compute, so this is" if chunking else "the prompt runs whole, which is"
        text = f"{how} the mixed baseline, and every user waits {worst:.1f} ms for the token that comes with it" + (
            "." if over else ", which keeps the target: there is nothing to cut."
        )
    else:
        text = _chunked(shown, target_ms, attention)
    text = hit + text
    return f"{text[0].upper()}{text[1:]} Modelled."


def _chunked(shown: View, target_ms: int, attention: bool) -> str:
    line, count = shown.line, len(shown.line.step_us)
    whole = view(shown.tail, line.users, False, 1, MIXED).line if not attention else None
    over = line.steps_over_target(target_ms * 1000)
    fixed = sum(parts[0] for parts in shown.steps if parts[1])
    text = f"{count} chunks: nobody waits longer than {line.worst_stall_us / 1e3:.1f} ms"
    if over:
        text += f", and {over} of the {count} steps are over the target; "
        knee = 0 if attention else knee_chunk(LINEAR, target_ms * 1000, line.users)
        if attention:
            text += f"the last chunk takes {line.step_us[-1] / line.step_us[0]:.2f} times as long as the first."
        elif knee:
            text += f"chunks of at most {knee:,} would keep it."
        else:
            text += "no chunk can keep it, since the decodes alone take longer."
    elif fixed > line.ttft_us // 4:
        text += f", but the fixed part of the steps is {100 * fixed // line.ttft_us}% of the prompt's TTFT: cut less."
    elif whole:
        text += (
            f", within the target, and the prompt pays {(line.ttft_us - whole.ttft_us) / 1e3:.1f} ms of TTFT for it "
            "(against the mixed baseline)."
        )
    else:
        longest = max(line.step_us) / min(line.step_us[:-1] or line.step_us)
        text += (
            f", within the target, and the longest chunk takes {longest:.2f} times as long as the shortest full one."
        )
    return text
