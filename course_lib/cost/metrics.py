"""What a run comes to: waits, targets met, throughput; counted as it goes, in memory that does not grow with it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_VALUES = 2**16  # distinct values that a histogram tells apart; then it keeps four leading digits


class Histogram:
    """Counts of whole numbers, 0 or more, such as waits in us.

    Exact up to 65,536 distinct values. With more, each value is kept to four leading digits, rounded up: at most
    0.1 % too long. Count, total and maximum are always exact.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.exact = True
        self.count = self.total = self.max = 0

    def add(self, value: int, times: int = 1) -> None:
        self.counts[value if self.exact else _four_digits(value)] += times
        self.count += times
        self.total += value * times
        if value > self.max:
            self.max = value
        if self.exact and len(self.counts) > MOST_VALUES:
            self.exact, fine = False, self.counts
            self.counts = Counter()
            for known, count in fine.items():
                self.counts[_four_digits(known)] += count

    def update(self, counts: Mapping[int, int]) -> None:
        """Add each value as often as `counts` says."""
        for value, times in counts.items():
            self.add(value, times)

    def percentile(self, percent: int) -> int:
        """Nearest rank: the smallest value that at least `percent` in a hundred do not exceed; 0 if there is none."""
        if not 0 <= percent <= 100:
            raise ValueError(f"percentile {percent}: wanted 0 to 100.")
        rank = max(-(-percent * self.count // 100), 1)
        for value in sorted(self.counts):
            rank -= self.counts[value]
            if rank <= 0:
                return min(value, self.max)
        return 0

    def above(self, limit: int) -> int:
        """How many values are larger than `limit`."""
        return sum(count for value, count in self.counts.items() if value > limit)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def as_dict(self) -> dict[str, int]:
        """For JSON: p50, p90, p99, max, mean (rounded) and count."""
        percentiles = {f"p{p}": self.percentile(p) for p in (50, 90, 99)}
        return {**percentiles, "max": self.max, "mean": round(self.mean), "count": self.count}


def _four_digits(value: int) -> int:
    unit = 10 ** max(len(str(value)) - 4, 0)
    return -(-value // unit) * unit


class Targets(NamedTuple):
    """A request is good if its first token comes within ttft_us and no later one within more than itl_us."""

    ttft_us: int = 1_000_000
    itl_us: int = 50_000


DEFAULT_TARGETS = Targets()


class RequestTimes(NamedTuple):
    """One request's run. gaps_us: between its tokens, in order. ttft_us: from its arrival to its first token."""

    id: int
    arrival_us: int
    ttft_us: int
    gaps_us: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int


@dataclass
class Report:
    """The result of a simulation. Times are modelled, in us.

    itl              time between a token of a request and its next, all requests together
    steps            durations of the steps
    requests         one row for each finished request, in order of finish, if `keep` was asked for
    num_refused      requests that could never have run
    num_starved      requests that were still there when no step could do anything any more
    """

    targets: Targets = DEFAULT_TARGETS
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    steps: Histogram = field(default_factory=Histogram)
    requests: list[RequestTimes] = field(default_factory=list)
    keep: bool = False
    num_finished: int = 0
    num_good: int = 0
    num_refused: int = 0
    num_starved: int = 0
    num_preemptions: int = 0
    why_refused: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    begin_us: int | None = None
    end_us: int = 0

    def finish(self, request) -> None:
        """Count a request that is done (a simulator.SimRequest)."""
        ttft = request.first_us - request.arrival
        good = ttft <= self.targets.ttft_us and request.worst_us <= self.targets.itl_us
        self.ttft.add(ttft)
        self.num_finished += 1
        self.num_good += good
        self.num_preemptions += request.num_preemptions
        self.prompt_tokens += request.prompt_len
        self.cached_tokens += request.first_hit
        self.output_tokens += request.num_tokens - request.prompt_len
        self.end_us = max(self.end_us, request.last_us)
        if self.keep:
            row = (request.id, request.arrival, ttft, tuple(request.gaps), request.prompt_len, request.first_hit)
            self.requests.append(RequestTimes(*row))

    @property
    def duration_us(self) -> int:
        """From the first arrival to the last token."""
        return max(self.end_us - (self.begin_us or 0), 0)

    def per_second(self, amount: int) -> float:
        return amount * 1e6 / self.duration_us if self.duration_us else 0.0

    @property
    def goodput(self) -> float:
        """Requests per second that met both targets."""
        return self.per_second(self.num_good)

    @property
    def attainment(self) -> float:
        """Share of the requests that met both targets; refused and starved ones did not."""
        all_requests = self.num_finished + self.num_refused + self.num_starved
        return self.num_good / all_requests if all_requests else 0.0

    @property
    def steps_over_target(self) -> int:
        return self.steps.above(self.targets.itl_us)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from the prefix cache at the request's first admission."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_dict(self) -> dict:
        """For JSON. Rates are per second of modelled time."""
        counts = ("num_finished", "num_good", "num_refused", "num_starved", "num_preemptions", "steps_over_target")
        return {
            "ttft_us": self.ttft.as_dict(),
            "itl_us": self.itl.as_dict(),
            "step_us": self.steps.as_dict(),
            **{name: getattr(self, name) for name in counts},
            "targets_us": self.targets._asdict(),
            "attainment": self.attainment,
            "goodput_req_per_s": self.goodput,
            "prefill_tok_per_s": self.per_second(self.prompt_tokens - self.cached_tokens),
            "decode_tok_per_s": self.per_second(self.output_tokens),
            "hit_rate": self.hit_rate,
            "duration_us": self.duration_us,
            "exact_percentiles": self.ttft.exact and self.itl.exact and self.steps.exact,
        }
