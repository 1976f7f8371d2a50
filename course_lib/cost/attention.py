"""A linear cost plus what a straight line leaves out: attention, which grows with the pairs of tokens that meet."""

from dataclasses import dataclass

from course_lib.cost.work import StepCost, StepWork


@dataclass(frozen=True)
class AttentionCost(StepCost):
    """fixed_us + prefill_us_per_token per prompt token + decode_us per decode, in microseconds, + pair_ps
    picoseconds per query-key pair of the prompt tokens. Whole microseconds; the pairs' share is rounded down.
    """

    fixed_us: int = 2_600
    prefill_us_per_token: int = 15
    decode_us: int = 108
    pair_ps: int = 740

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 0:
                unit = "picoseconds" if name == "pair_ps" else "microseconds"
                raise ValueError(f"{name}={value!r}, wanted whole {unit}, 0 or more.")
        if self.fixed_us == 0 and 0 in (self.prefill_us_per_token, self.decode_us):
            raise ValueError("some steps would take no time at all: give fixed_us, or both of the others, at least 1.")

    def work_us(self, work: StepWork) -> int:
        if work.prefill_tokens + work.decodes < 1:
            raise ValueError(f"{work} is not a step: give it some work.")
        linear = self.fixed_us + self.prefill_us_per_token * work.prefill_tokens + self.decode_us * work.decodes
        return linear + self.pair_ps * work.prefill_pairs // 1_000_000
