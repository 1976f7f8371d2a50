"""TTFT, gaps and stalls from the times of events. Pure; whole microseconds from the start of the run."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

QUICK_US = 1_000  # no server computes tokens of one stream at such distances for long
AT_ONCE_US = 100  # nor any at these
PERCENTILES = "interpolated linearly between neighbours, as by NumPy's default"


@dataclass(frozen=True)
class Stream:
    """One request.

    sent_us    start of the last try; first_sent_us of the first one
    event_us   arrival of each event with a piece of the answer
    end_us     when nothing more was to come
    state      "done", "failed", "stopped" or "interrupted"
    tokens     of the answer, as the server counts them; 0 if it does not, or the answer is not whole
    """

    name: str
    role: str
    prompt_tokens: int
    first_sent_us: int
    sent_us: int
    event_us: tuple[int, ...]
    end_us: int
    state: str
    tokens: int = 0

    @property
    def ttft_us(self) -> int | None:
        """From the start of the last try to the first event; None if none came."""
        return self.event_us[0] - self.sent_us if self.event_us else None

    @property
    def gap_us(self) -> list[int]:
        """Time from each event to the next."""
        return [after - before for before, after in pairwise(self.event_us)]

    @property
    def tpot_us(self) -> int | None:
        """Time per output token after the first: (last event - first) / (tokens - 1), as vLLM's benchmark has it.

        None if there is no second token. Where the server has counted none, each event is one.
        """
        tokens = self.tokens or len(self.event_us)
        if tokens < 2 or len(self.event_us) < 2:
            return None
        return round((self.event_us[-1] - self.event_us[0]) / (tokens - 1))

    @property
    def prefill(self) -> tuple[int, int]:
        """When it waits for its first event: (start, end)."""
        return self.sent_us, self.event_us[0] if self.event_us else self.end_us


class Wait(NamedTuple):
    """A request waits from one event for the next; `whole` False: none came before it ended."""

    name: str
    start_us: int
    end_us: int
    whole: bool = True

    @property
    def us(self) -> int:
        return self.end_us - self.start_us


def waits(stream: Stream) -> list[Wait]:
    """Every gap of a stream, and the wait that was still open when it failed, was stopped or interrupted."""
    found = [Wait(stream.name, before, after) for before, after in pairwise(stream.event_us)]
    if stream.event_us and stream.state != "done":
        found.append(Wait(stream.name, stream.event_us[-1], stream.end_us, whole=False))
    return found


def union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same moments as disjoint spans (start, end), in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def overlaps(wait: Wait, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether the wait and one of the disjoint, ordered spans share any time. To touch is not to share."""
    at = bisect_right(spans, wait.start_us, key=lambda span: span[1])  # the first span that ends after its start
    return at < len(spans) and spans[at][0] < wait.end_us and wait.start_us < wait.end_us


def prefills(streams: Sequence[Stream]) -> list[tuple[int, int]]:
    """When the long prompt waits for its first event; in a trace, when any request does.

    No request's own gaps overlap its own wait for the first event.
    """
    long = [stream for stream in streams if stream.role == "prompt"]
    return union(stream.prefill for stream in long or streams)


def waiting_during(wait: Wait, streams: Sequence[Stream]) -> list[Stream]:
    """The requests that waited for their first event at some time of `wait`, the longest prompt first."""
    found = [s for s in streams if s.name != wait.name and overlaps(wait, union([s.prefill]))]
    return sorted(found, key=lambda stream: -stream.prompt_tokens)


def freezes(streams: Sequence[Stream], most: int) -> list[tuple[Wait, int]]:
    """The longest wait, then the longest that overlaps none before it, at most `most`, each with how many streams
    waited at once: those silent for at least half of it."""
    of_each = [waits(stream) for stream in streams]
    found: list[Wait] = []
    for wait in sorted((wait for own in of_each for wait in own), key=lambda wait: -wait.us):
        if len(found) == most or wait.us == 0:
            break
        if not any(_shared_us(wait, other) for other in found):
            found.append(wait)
    return [(f, sum(any(2 * _shared_us(f, wait) >= f.us for wait in own) for own in of_each)) for f in found]


def _shared_us(a: Wait, b: Wait) -> int:
    return max(min(a.end_us, b.end_us) - max(a.start_us, b.start_us), 0)


def percentile(values: Sequence[int], percent: int) -> int:
    """Interpolated linearly between two neighbours (NumPy's default, and so what vLLM's benchmark shows), rounded.

    The simulator of the course, course_lib.cost, takes nearest rank instead: there each percentile is one of the gaps.
    """
    ordered = sorted(values)
    place, rest = divmod((len(ordered) - 1) * percent, 100)
    above = ordered[min(place + 1, len(ordered) - 1)]
    return round(ordered[place] + (above - ordered[place]) * rest / 100)


def spread(values: Sequence[int]) -> dict[str, int | None]:
    """count, p50, p90, p99 (see `percentile`) and max of some times; None where there are none."""
    names = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {"count": len(values)} | {n: percentile(values, p) if values else None for n, p in names.items()}


def came_at_once(stream: Stream) -> bool:
    """Whether the answer was held back between the model and us: three events or more, in no time beside the TTFT.

    Either no two neighbours are a millisecond apart and all took a twentieth of the TTFT at most; or three in four came
    with the one before them, and all took a quarter of it: what was held may come in several pieces, and while this
    client reads the pieces of one stream, those of another wait.
    """
    gaps, ttft = stream.gap_us, stream.ttft_us or 0
    if len(gaps) < 2:
        return False
    if max(gaps) < QUICK_US and 20 * sum(gaps) <= ttft:
        return True
    return 4 * _at_once(gaps) >= 3 * len(gaps) and 4 * sum(gaps) <= ttft


def bunched(streams: Iterable[Stream]) -> tuple[int, int]:
    """(events that came together with the one before them, all gaps)."""
    gaps = [gap for stream in streams for gap in stream.gap_us]
    return _at_once(gaps), len(gaps)


def _at_once(gaps: Sequence[int]) -> int:
    return sum(gap < AT_ONCE_US for gap in gaps)
