"""What a step costs when cost is linear, and what that does to users who are streaming.

Everything is modelled, in integer microseconds: the same on every machine, and nothing to do with the speed
of this one. There is no quadratic term, so attention's share of a long prompt is left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from course_lib.cost.work import StepCost, StepWork

TRAILING_STEPS = 5  # decode-only steps that a timeline goes on for once the prompt is done


@dataclass(frozen=True)
class LinearCost(StepCost):
    """A step takes fixed_us + prefill_us_per_token per prompt token + decode_us per decode, in microseconds."""

    fixed_us: int = 2_600
    prefill_us_per_token: int = 18
    decode_us: int = 108

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 0:
                raise ValueError(f"{name}={value!r}, wanted whole microseconds, 0 or more.")
        if self.fixed_us == 0 and 0 in (self.prefill_us_per_token, self.decode_us):
            raise ValueError("some steps would take no time at all: give fixed_us, or both of the others, at least 1.")

    def step_us(self, prefill_tokens: int, decodes: int) -> int:
        """Duration of one step with that many prompt tokens and decodes (each 0 or more, not both 0)."""
        if prefill_tokens < 0 or decodes < 0 or prefill_tokens + decodes < 1:
            raise ValueError(f"{prefill_tokens} prompt tokens and {decodes} decodes are not a step: give it some work.")
        return step_us(prefill_tokens, decodes, self)

    def work_us(self, work: StepWork) -> int:
        return self.step_us(work.prefill_tokens, work.decodes)

    def decode_run_us(self, decodes: int, context: int, steps: int) -> list[int]:
        return [self.step_us(0, decodes)] * steps  # whatever the context


def step_us(prefill: int, decodes: int, m: LinearCost) -> int:
    """How long one step takes, in whole microseconds.

    prefill   prompt tokens in the step, 0 or more
    decodes   users who get one token each in the step, 0 or more
    m         the cost: m.fixed_us, m.prefill_us_per_token and m.decode_us, whole microseconds each
    """
    return m.fixed_us + m.prefill_us_per_token * prefill + m.decode_us * decodes


# "reference" reproduces the read-outs the course is built on: 24 users, prompt 8,192, chunk 1,024 give a worst
# stall of 23,624 us, a TTFT of 188,992 us and 1,451 decode tokens/s. A fit to those numbers, not a measurement.
PRESETS = {"reference": LinearCost()}


@dataclass(frozen=True)
class Timeline:
    """One prompt among streaming users, from its first step to TRAILING_STEPS decode-only steps after its last.

    step_us   duration of each step that works on the prompt
    gap_us    time between one streamed token and the next, the same for every user; empty with no users
    users     number of streaming users
    """

    step_us: tuple[int, ...]
    gap_us: tuple[int, ...]
    users: int

    @property
    def ttft_us(self) -> int:
        """Time from the start of the prompt's first step to its own first token."""
        return sum(self.step_us)

    @property
    def worst_stall_us(self) -> int:
        """Longest time that a streaming user waits for a token; 0 with no users."""
        return max(self.gap_us, default=0)

    @property
    def decode_tok_per_s(self) -> int:
        """Tokens that all streaming users together get per second of this timeline, rounded down."""
        return self.users * len(self.gap_us) * 1_000_000 // sum(self.gap_us) if self.gap_us else 0

    def steps_over_target(self, target_us: int) -> int:
        """Number of the prompt's steps that take longer than target_us."""
        return sum(us > target_us for us in self.step_us)


def chunked(cost: LinearCost, prompt: int, users: int, chunk: int, hit: int = 0) -> Timeline:
    """Every step: first one decode for each user, then at most `chunk` tokens of the prompt.

    prompt   tokens in the prompt
    hit      of these, tokens whose K and V come from the prefix cache: 0 <= hit < prompt
    """
    tail = tail_of(prompt, users, hit)
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: a step must take at least 1 token of the prompt, or it never ends.")
    full, rest = divmod(tail, chunk)
    steps = (cost.step_us(chunk, users),) * full + ((cost.step_us(rest, users),) if rest else ())
    return Timeline(steps, steps + _trailing(cost, users) if users else (), users)


def mixed_baseline(cost: LinearCost, prompt: int, users: int, hit: int = 0) -> Timeline:
    """Unchunked: the whole prompt in one step, together with the users' decodes."""
    return chunked(cost, prompt, users, prompt, hit)


def exclusive_baseline(cost: LinearCost, prompt: int, users: int, hit: int = 0) -> Timeline:
    """Unchunked: the whole prompt in a step of its own; the users' next tokens come with the step after it."""
    alone = cost.step_us(tail_of(prompt, users, hit), 0)
    if not users:
        return Timeline((alone,), (), users)
    first, *others = _trailing(cost, users)
    return Timeline((alone,), (alone + first, *others), users)


def knee_chunk(cost: LinearCost, target_us: int, users: int) -> int:
    """The largest chunk whose step, with every user's decode in it, takes at most target_us; 0 if none does."""
    if cost.prefill_us_per_token == 0:
        raise ValueError("prompt tokens cost nothing here, so every chunk meets the target or none does.")
    left = target_us - cost.fixed_us - cost.decode_us * users
    return max(left // cost.prefill_us_per_token, 0)


def sweep(cost: LinearCost, prompt: int, users: int, chunks: Iterable[int], hit: int = 0) -> list[dict[str, int]]:
    """What each chunk size gives and takes: a dict for each, with times in us and prompt tokens/s rounded down."""
    return [sweep_point(chunked(cost, prompt, users, chunk, hit), chunk, prompt - hit) for chunk in chunks]


def sweep_point(line: Timeline, chunk: int, tokens: int) -> dict[str, int]:
    """One point of a sweep: the timeline of a prompt of which `tokens` tokens are computed, `chunk` in a step."""
    return {
        "chunk": chunk,
        "ttft_us": line.ttft_us,
        "worst_itl_us": line.worst_stall_us,
        "p99_itl_us": percentile(line.gap_us, 99) if line.users else 0,
        "prefill_tok_per_s": tokens * 1_000_000 // line.ttft_us,
    }


def percentile(values: Iterable[int], percent: int) -> int:
    """Nearest-rank percentile: the smallest of the values that at least `percent` in a hundred do not exceed."""
    ordered = sorted(values)
    if not ordered or not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent} of {len(ordered)} values: wanted 0 to 100, of at least one value.")
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


def tail_of(prompt: int, users: int, hit: int) -> int:
    """Prompt tokens left to compute. ValueError when there are none, or users below 0."""
    if users < 0:
        raise ValueError(f"users={users}, wanted 0 or more.")
    if not 0 <= hit < prompt:
        raise ValueError(
            f"hit={hit} of a prompt of {prompt} tokens: at least the last token must be computed, since its logits "
            "give the first answer token. Wanted 0 <= hit < prompt."
        )
    return prompt - hit


def _trailing(cost: LinearCost, users: int) -> tuple[int, ...]:
    return (cost.step_us(0, users),) * TRAILING_STEPS
