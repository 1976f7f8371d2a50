"""Workloads for the simulator: when requests arrive, and how long they are; the same each time it is iterated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from course_lib.cli import UserError

MOST_TOKENS = 1 << 24  # of a prompt or an answer; the simulator tells so many of a prompt apart
MOST_SIGMA = 20.0  # of a log-normal: beyond, its values leave the floating-point numbers


class Arrival(NamedTuple):
    """One request, before it is served.

    time_us         when it comes; a workload is in order of this
    prompt_tokens   at least 1;  output_tokens: tokens that it generates, at least 1
    prefix_id       requests with the same one share a beginning; "" shares with no other
    prefix_tokens   how much of the prompt is that beginning. Two requests share the shorter of theirs
    """

    time_us: int
    prompt_tokens: int
    output_tokens: int
    prefix_id: str = ""
    prefix_tokens: int = 0


@dataclass(frozen=True)
class Lengths:
    """A distribution of token counts: `low` to `high`, evenly; or, with a sigma, log-normal about `median`, cut there.

    Published traces are nearly log-normal, with a long tail of long prompts.
    """

    low: int
    high: int
    median: int = 0
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"lengths from {self.low} to {self.high}: wanted 1 <= low <= high.")
        if self.high > MOST_TOKENS or self.sigma > MOST_SIGMA:
            raise ValueError(f"wanted at most {MOST_TOKENS} tokens, and a sigma of at most {MOST_SIGMA:.0f}.")
        if self.sigma and not (self.sigma > 0 and self.low <= self.median <= self.high):
            raise ValueError(f"median {self.median}, sigma {self.sigma}: wanted low <= median <= high, sigma above 0.")

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """"1024" (always), "100-2000" (evenly), or "lognormal:MEDIAN,SIGMA,MOST". ValueError for anything else."""
        try:
            kind, _, rest = text.partition(":")
            if kind == "lognormal":
                median, sigma, most = rest.split(",")
                return cls(1, int(most), int(median), float(sigma))
            low, _, high = text.partition("-")
            return cls(int(low), int(high or low))
        except ValueError as error:
            raise ValueError(
                f"{text[:40]!r} is no length: wanted 1024, 100-2000, or lognormal:MEDIAN,SIGMA,MOST ({error})."
            ) from None

    @property
    def mean(self) -> float:
        """About the mean: for a log-normal that of the uncut distribution, but no more than `high`."""
        if not self.sigma:
            return (self.low + self.high) / 2
        return min(self.median * math.exp(self.sigma * self.sigma / 2), self.high)

    def draw(self, random: Random) -> int:
        if self.low == self.high:
            return self.low
        if not self.sigma:
            return self.low + int(random.random() * (self.high - self.low + 1))
        return min(max(round(self.median * math.exp(random.gauss(0.0, self.sigma))), self.low), self.high)


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """`count` requests, `rate` per second on average, each independent of the others.

    families, prefix_tokens   requests fall evenly into that many families; the first prefix_tokens of a prompt are
                              its family's (a system prompt, a document), and the drawn length comes on top
    seed                      the same arrivals for a seed
    """

    rate: float
    count: int
    prompt: Lengths
    output: Lengths
    families: int = 0
    prefix_tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf") or self.count < 0:
            raise ValueError(f"rate={self.rate}, count={self.count}: wanted a rate above 0 and a count of at least 0.")
        if self.families < 0 or self.prefix_tokens < 0 or (self.families > 0) != (self.prefix_tokens > 0):
            raise ValueError(
                f"families={self.families} with prefix_tokens={self.prefix_tokens}: give both, or neither."
            )

        if self.prefix_tokens + self.prompt.high > MOST_TOKENS:
            raise ValueError(
                f"prefix_tokens={self.prefix_tokens} and a prompt of up to {self.prompt.high}: at most {MOST_TOKENS} "
                "tokens together."
            )

    def __iter__(self) -> Iterator[Arrival]:
        random, time, per_us = Random(self.seed), 0.0, self.rate / 1e6
        for _ in range(self.count):
            time += random.expovariate(per_us)
            prompt, output = self.prompt.draw(random), self.output.draw(random)
            if self.families:
                family = str(int(random.random() * self.families))
                yield Arrival(int(time), prompt + self.prefix_tokens, output, family, self.prefix_tokens)
            else:
                yield Arrival(int(time), prompt, output)


def check(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    """Pass arrivals on; ValueError for one that is impossible or comes before the one ahead of it."""
    before = 0
    for place, arrival in enumerate(arrivals):
        if arrival.time_us < before:
            raise ValueError(f"arrival {place} comes at {arrival.time_us} us, before the one ahead of it ({before}).")
        if arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
            raise ValueError(f"arrival {place} is {arrival}: a prompt and an output have at least 1 token.")
        if not 0 <= arrival.prefix_tokens <= arrival.prompt_tokens:
            raise ValueError(f"arrival {place} is {arrival}: its prefix cannot be longer than its prompt.")
        before = arrival.time_us
        yield arrival


def scaled(arrivals: Iterable[Arrival], speed: float) -> Iterator[Arrival]:
    """The same requests, `speed` times as fast one after the other."""
    if not 0 < speed < float("inf"):
        raise UserError(f"speed={speed}: wanted a number above 0.")
    return (arrival._replace(time_us=int(arrival.time_us / speed)) for arrival in arrivals)


Workload = Iterable[Arrival] | Callable[[], Iterable[Arrival]]
