"""The knobs for a target, to move: the steps of the longest prompt with the recommended chunk. Modelled."""

from course_lib.cost.presets import PRESETS
from course_lib.cost.work import work_of
from course_lib.lessons.nb09_device import recommend
from course_lib.widgets.explorer import Choice, Explorer, Slider, explore

COSTS = ("reference-attention", "8b-h100", "8b-a100", "8b-l4")


def explore_knobs() -> Explorer:
    """A bar for each step of the prompt; controls for the device, the target, the users and the prompt. Modelled."""
    return explore(
        build,
        update,
        device=Choice("cost", COSTS),
        target=Slider("target, ms", 10, 150, 50, step=5),
        users=Slider("streaming users", 0, 64, 24, step=4),
        longest=Slider("longest prompt", 2_048, 32_768, 8_192, step=2_048),
    )


def steps_of(device: str, target: int, users: int, longest: int) -> tuple[tuple[int, int], list[int]]:
    """(chunk, budget), and the us of each step of the prompt; no steps if no chunk fits."""
    knobs = recommend(1_000 * target, users, longest, PRESETS[device])
    starts = range(0, longest, knobs[0]) if knobs[0] else ()
    chunks = [(start, min(start + knobs[0], longest)) for start in starts]
    return knobs, [PRESETS[device].work_us(work_of([chunk], [longest] * users)) for chunk in chunks]


def build(figure) -> dict:
    ax = figure.subplots()
    (line,) = ax.step([], [], where="mid", color="#0072b2", linewidth=2, marker="o", label="steps of the prompt")
    target = ax.axhline(50, color="black", linestyle="--", label="target")
    ax.set(xlabel="step of the prompt", ylabel="how long it takes, in ms (modelled)")
    ax.legend(loc="lower right")
    return {"ax": ax, "line": line, "target": target}


def update(artists, device: str, target: int, users: int, longest: int) -> str:
    (chunk, budget), steps = steps_of(device, target, users, longest)
    artists["line"].set_data(range(len(steps)), [us / 1e3 for us in steps])
    artists["target"].set_ydata([target, target])
    artists["ax"].set_xlim(-0.5, max(len(steps), 8) - 0.5)
    artists["ax"].set_ylim(0, 1.3 * target)
    artists["ax"].set_title(f"{device}, {users} users, a prompt of {longest:,}")
    if not chunk:
        return f"No chunk meets {target} ms: the decodes alone, or one prompt token beside them, take longer. Modelled."
    return (
        f"max_chunk={chunk:,}, max_num_batched_tokens={budget:,}: {len(steps)} steps, {sum(steps) / 1e3:.1f} ms to the "
        f"first token, the longest step {max(steps) / 1e3:.1f} ms. All of it modelled."
    )
