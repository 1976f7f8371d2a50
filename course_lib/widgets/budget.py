"""Explorer of notebook 05: step through a scheduler, and move its two knobs."""

from collections.abc import Callable, Sequence

from course_lib.schedule.plan import plan_step
from course_lib.schedule.request import Chunk, Request
from course_lib.widgets.explorer import Choice, Explorer, Slider, explore

STEPS, PROMPT, MOST_PROMPTS = 24, 40, 4  # steps that are drawn, tokens of each prompt, and how many there can be
CHECKED, UNCHECKED = "plan_step", "unchecked decodes"
LOOKS = (  # decodes, then each prompt: colour and hatching differ
    {"facecolor": "#d55e00", "hatch": "..."},
    {"facecolor": "#56b4e9", "hatch": "///"},
    {"facecolor": "#e6e6e6", "hatch": "xxx"},
    {"facecolor": "#f0e442", "hatch": "---"},
    {"facecolor": "#9fd3b6", "hatch": "\\\\\\"},
)


def plan_unchecked(requests: Sequence[Request], *, max_num_batched_tokens: int, max_chunk: int, max_num_seqs: int):
    """The first scheduler of the lesson: a decode for each running request, prompts from the rest, even if below 0."""
    left, chunks = max_num_batched_tokens, []
    for r in requests:
        if r.decoding:
            chunks.append(Chunk(r.id, r.num_computed, r.num_computed + 1))
            left -= 1
    for r in requests:
        if not r.decoding:
            take = min(r.num_uncomputed, max_chunk or r.num_uncomputed, left)
            if take <= 0:
                break
            chunks.append(Chunk(r.id, r.num_computed, r.num_computed + take))
            left -= take
    return tuple(chunks)


RULES: dict[str, Callable] = {CHECKED: plan_step, UNCHECKED: plan_unchecked}


def history(rule: str, users: int, prompts: int, budget: int, cap: int) -> list[dict[int, Chunk]]:
    """The chunks of each of 24 steps, by request id: users 0, 1, ..., then the prompts. Nobody finishes."""
    requests = [Request(i, [0] * 9, prompt_len=8, num_computed=8) for i in range(users)]
    requests += [Request(users + i, [0] * PROMPT, max_tokens=10**6) for i in range(prompts)]
    steps = []
    for _ in range(STEPS):
        plan = RULES[rule](requests, max_num_batched_tokens=budget, max_chunk=cap, max_num_seqs=users + prompts or 1)
        for chunk in plan:
            request = requests[chunk.request_id]
            request.num_computed = chunk.stop
            if request.num_uncomputed == 0:
                request.token_ids.append(0)
        steps.append({chunk.request_id: chunk for chunk in plan})
    return steps


def explore_budget() -> Explorer:
    """Bars for 24 steps, and how far each prompt is in the step that is chosen."""
    return explore(
        build,
        update,
        size=(9, 5.2),
        step=Slider("step", 0, STEPS - 1, 0),
        rule=Choice("scheduler", (CHECKED, UNCHECKED)),
        users=Slider("users who decode", 0, 24, 6),
        prompts=Slider(f"prompts of {PROMPT} tokens", 0, MOST_PROMPTS, 2),
        budget=Slider("max_num_batched_tokens", 4, 64, 16),
        cap=Slider("max_chunk (0: none)", 0, 32, 0),
    )


def build(figure) -> dict:
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path

    top, bottom = figure.subplots(2, 1, height_ratios=(2, 1))
    edge = {"edgecolor": "#333333", "linewidth": 0.4}
    bars = [top.add_patch(PathPatch(Path([(0, 0)]), **look, **edge)) for look in LOOKS]
    line = top.axhline(0, color="black", linestyle="--", linewidth=1.5, label="budget")
    (here,) = top.plot([0], [0], "v", color="black", markersize=9, label="the step below", clip_on=False)
    names = ["decodes", *(f"prompt {i}" for i in range(MOST_PROMPTS))]
    handles = [Patch(label=name, **look, **edge) for name, look in zip(names, LOOKS)]
    top.legend(handles=[*handles, line, here], loc="upper right", ncols=4, fontsize=8)
    top.set(xlabel="step", ylabel="tokens", xlim=(-0.6, STEPS - 0.4))
    parts = [
        [bottom.barh(i, 0, height=0.7, color=color, hatch=hatch, edgecolor="#333333", linewidth=0.4)[0]
         for i in range(MOST_PROMPTS)]
        for color, hatch in (("#bbbbbb", ""), ("#56b4e9", "///"))
    ]  # fmt: skip
    bottom.set(xlim=(0, PROMPT), ylim=(MOST_PROMPTS - 0.5, -0.5))
    bottom.set(xlabel="prompt tokens: grey were computed before the step, hatched are computed in it")
    bottom.set_yticks(range(MOST_PROMPTS), names[1:])
    return {"top": top, "bars": bars, "line": line, "here": here, "parts": parts}


def update(artists, step: int, rule: str, users: int, prompts: int, budget: int, cap: int) -> str:
    steps = history(rule, users, prompts, budget, cap)
    tokens = [_tokens(chunks, users) for chunks in steps]
    floor = [0] * STEPS
    for part, bar in enumerate(artists["bars"]):
        ceiling = [low + counts[part] for low, counts in zip(floor, tokens)]
        bar.set_path(_boxes(floor, ceiling))
        floor = ceiling
    artists["top"].set_ylim(0, 1.45 * max(*floor, budget))
    artists["line"].set_ydata([budget] * 2)
    artists["here"].set_data([step], [floor[step] + 0.05 * max(*floor, budget)])
    before, now = artists["parts"]
    for i in range(MOST_PROMPTS):
        done = sum(_prompt_tokens(chunks, users + i) for chunks in steps[:step])
        before[i].set_width(done)
        now[i].set_x(done)
        now[i].set_width(_prompt_tokens(steps[step], users + i))
    return _sentence(steps[step], step, users, prompts, budget)


def _prompt_tokens(chunks: dict[int, Chunk], request: int) -> int:
    chunk = chunks.get(request)
    return min(chunk.stop, PROMPT) - chunk.start if chunk and chunk.start < PROMPT else 0


def _tokens(chunks: dict[int, Chunk], users: int) -> list[int]:
    """Tokens of the decodes, and of each prompt."""
    prompts = [_prompt_tokens(chunks, users + i) for i in range(MOST_PROMPTS)]
    return [sum(c.num_tokens for c in chunks.values()) - sum(prompts), *prompts]


def _boxes(floor: Sequence[int], ceiling: Sequence[int]):
    from matplotlib.path import Path

    boxes = [
        [(x - 0.4, low), (x - 0.4, high), (x + 0.4, high), (x + 0.4, low), (x - 0.4, low)]
        for x, (low, high) in enumerate(zip(floor, ceiling))
    ]
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(boxes)
    return Path([point for box in boxes for point in box], codes)


def _sentence(chunks: dict[int, Chunk], step: int, users: int, prompts: int, budget: int) -> str:
    decodes, *of_prompts = _tokens(chunks, users)
    total = decodes + sum(of_prompts)
    parts = [f"{decodes} decodes"] + [f"{n} tokens of prompt {i}" for i, n in enumerate(of_prompts) if n]
    said = f"Step {step}: {', '.join(parts)}; {total} tokens of a budget of {budget}"
    said += f", {total - budget} too many." if total > budget else "."
    idle = [i for i in range(users) if i not in chunks]
    if idle:
        said += f" {len(idle)} of {users} users get no token."
    ends = [i for i in range(prompts) if users + i in chunks and chunks[users + i].stop == PROMPT]
    if ends:
        said += f" When it stops, the first token of the answer is there for prompt {', '.join(map(str, ends))}."
    return said
