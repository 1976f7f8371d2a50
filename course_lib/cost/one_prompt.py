"""One long prompt among streaming users, on the simulator: the course's reference setting, for any step cost."""

from dataclasses import dataclass, replace

from course_lib.cost import linear
from course_lib.cost.linear import TRAILING_STEPS, Timeline
from course_lib.cost.metrics import Report
from course_lib.cost.simulator import ServerConfig, SimServer, streaming_user
from course_lib.cost.work import StepCost, StepWork, pairs
from course_lib.cost.workload import Arrival
from course_lib.schedule.step_record import StepRecord

MOST_CHUNK = 1 << 24  # tokens; longer prompts are not simulated
MODES = {  # how the prompt is served: the profile that does it
    "chunked": "course",
    "mixed": "whole-prompt",
    "exclusive": "sglang-prefill-first",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The users who stream when the prompt comes, and how the prompt is cut. The defaults are the reference setting.

    mode      "chunked"; or unchunked: "mixed" (beside the decodes) or "exclusive" (alone, the decodes wait)
    chunk     tokens of the prompt in a step, where it is chunked
    hit       of the prompt, tokens found in the prefix cache: 0 <= hit < prompt
    context   tokens that each user's next decode reads, at least 2. Linear costs do not depend on it
    """

    prompt: int = 8_192
    users: int = 24
    chunk: int = 1_024
    mode: str = "chunked"
    hit: int = 0
    context: int = 1_024

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}; there are {', '.join(MODES)}.")
        if self.chunk < 1 or self.users < 0 or self.context < 2:
            raise ValueError(
                f"chunk={self.chunk}, users={self.users}, context={self.context}: wanted at least 1, 0 and 2."
            )
        linear.tail_of(self.prompt, self.users, self.hit)

    @property
    def tail(self) -> int:
        """Prompt tokens to compute."""
        return self.prompt - self.hit


def run(setting: Setting, cost: StepCost) -> tuple[Timeline, list[tuple[int, StepRecord]]]:
    """From the step that the prompt could first be in, to TRAILING_STEPS decode-only steps after its last.

    returns   the timeline, and (begin in us, record) of each step; the prompt is the request with the largest id
    """
    server, steps = _server(setting, cost)
    prompt_id, begin = setting.users + 1, server.clock_us
    server.push(prompt_id, Arrival(begin, setting.prompt, 1, "shared", setting.hit))
    while prompt_id not in {r.id for r in server.run_until(server.clock_us + 1)}:
        pass
    for _ in range(TRAILING_STEPS if setting.users else 0):
        server.run_until(server.clock_us + 1)
    steps = [(at - begin, record) for at, record in steps if at >= begin]
    prompt_us = [r.duration_us for _, r in steps if any(c[0] == prompt_id for c in r.chunks)]
    tokens = [at + r.duration_us for at, r in steps if any(c[0] != prompt_id for c in r.chunks)]
    gaps = [after - before for before, after in zip([0, *tokens], tokens)]
    return Timeline(tuple(prompt_us), tuple(gaps), setting.users), steps


def _server(setting: Setting, cost: StepCost) -> tuple[SimServer, list[tuple[int, StepRecord]]]:
    """A server whose users stream and whose cache holds the hit, and the list that its steps are written to."""
    block_size = next(b for b in (16, 8, 4, 2, 1) if setting.hit % b == 0)  # so that the hit is exact
    takes = setting.chunk if setting.mode == "chunked" else setting.prompt
    lives = setting.context + setting.tail // min(takes, setting.tail) + TRAILING_STEPS + 2
    config = ServerConfig(
        profile=MODES[setting.mode], block_size=block_size,
        num_blocks=setting.prompt // block_size + setting.users * (lives // block_size + 2) + 8,
        max_num_batched_tokens=max(takes, setting.hit) + setting.users + block_size,
        max_chunk=setting.chunk if setting.mode == "chunked" else 0, max_num_seqs=setting.users + 1,
        refuse_stuck=False,
    )  # fmt: skip
    steps: list[tuple[int, StepRecord]] = []
    server = SimServer(config, cost, Report(), watch=lambda at, record: steps.append((at, record)))
    if setting.hit:
        server.push(0, Arrival(0, setting.hit, 1, "shared", setting.hit))
        server.run_until()
    for user in range(1, setting.users + 1):
        request = streaming_user(user, setting.context, tokens=10**9, since_us=server.clock_us)
        server.push_computed(request, server.clock_us)
    return server, steps


# --- by formula


def chunk_steps_us(setting: Setting, cost: StepCost) -> list[int]:
    """Durations of the steps that the prompt is in when it is chunked, by formula instead of by the scheduler."""
    return [_chunk_step_us(setting, cost, number) for number in range(_num_chunks(setting))]


def _num_chunks(setting: Setting) -> int:
    return -(-setting.tail // setting.chunk)


def _chunk_step_us(setting: Setting, cost: StepCost, number: int) -> int:
    start = setting.hit + number * setting.chunk
    stop = min(start + setting.chunk, setting.prompt)
    context = setting.users * (setting.context + number)
    return cost.work_us(StepWork(stop - start, setting.users, pairs(start, stop), start, context))


def knee(setting: Setting, cost: StepCost, target_us: int) -> int:
    """The largest chunk with which no step of the prompt, decodes included, takes more than target_us; 0 if none.

    If the whole tail fits into one step, the answer is for a prompt as long as the chunk. ValueError when prompt
    tokens cost too little to say.
    """

    def meets(chunk: int, prompt: int = setting.prompt) -> bool:
        cut = replace(setting, chunk=chunk, prompt=prompt)
        from_the_end = reversed(range(_num_chunks(cut)))  # where a step is longest: most chunks fail there at once
        return all(_chunk_step_us(cut, cost, number) <= target_us for number in from_the_end)

    if not meets(setting.tail):
        return next((chunk for chunk in range(setting.tail - 1, 0, -1) if meets(chunk)), 0)
    fits, too_much = setting.tail, 2 * setting.tail
    while meets(too_much, setting.hit + too_much):
        fits, too_much = too_much, 2 * too_much
        if fits > MOST_CHUNK:
            raise ValueError(f"{fits} prompt tokens in one step take less than {target_us} us: no chunk is too large.")
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        fits, too_much = (middle, too_much) if meets(middle, setting.hit + middle) else (fits, middle)
    return fits


def sweep_point(setting: Setting, cost: StepCost) -> dict[str, int]:
    """What one chunk size gives and takes, as linear.sweep has it."""
    return linear.sweep_point(run(setting, cost)[0], setting.chunk, setting.tail)
