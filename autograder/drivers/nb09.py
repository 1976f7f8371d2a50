"""What runs beside the answers of notebook 09: a device and its clock, step costs, and the requests of a policy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from operator import index
from typing import Any

import numpy as np

from course_lib.cost.attention import AttentionCost
from course_lib.cost.fit import FittedCost
from course_lib.cost.presets import PRESETS
from course_lib.cost.work import StepCost
from course_lib.schedule.request import Request

SYNC_US = 3  # host time of asking the device whether it is done


class Device:
    """A host clock and a device that works through what was started, in us. `steps`: how long each takes, in a ring.

    first_us   what the first step takes on top
    launch_us  what starting a step takes the host; on a device that is not `asynchronous` the whole step as well
    """

    def __init__(self, steps: Sequence[int], first_us: int, launch_us: int, asynchronous: bool, busy_us: int):
        self.steps, self.first_us, self.launch_us, self.asynchronous = steps, first_us, launch_us, asynchronous
        self.now, self.free, self.count = 1_000_000, 1_000_000 + busy_us, 0

    def run(self) -> None:
        takes = self.steps[self.count % len(self.steps)] + (self.first_us if self.count == 0 else 0)
        self.count += 1
        self.now += self.launch_us
        self.free = max(self.free, self.now) + takes
        if not self.asynchronous:
            self.now = self.free

    def synchronize(self) -> None:
        self.now = max(self.now, self.free) + SYNC_US

    def clock(self) -> float:
        return float(self.now)

    def do(self, what: int) -> float | None:
        """RUN, SYNCHRONIZE, or the time that the clock shows."""
        return (self.run, self.synchronize, self.clock)[what]()


RUN, SYNCHRONIZE, CLOCK = range(3)


def time_step(answer: Callable, device: Callable[[int], float | None], repeats: int, unit: float) -> Any:
    """What the answer measures on a device that is out of its reach. unit: of the clock, in us."""
    return answer(lambda: device(RUN), lambda: device(SYNCHRONIZE), lambda: device(CLOCK) / unit, repeats)


def cost_of(kind: str, *numbers: int) -> StepCost:
    """A step cost from plain data: a preset's name; us, us, us and ps of AttentionCost; five times ps of FittedCost."""
    if kind == "attention":
        return AttentionCost(*numbers)
    return FittedCost(*(Fraction(ps, 10**6) for ps in numbers)) if kind == "fitted" else PRESETS[kind]


def recommend(answer: Callable, target_us: int, users: int, longest: int, cost: tuple) -> Any:
    return answer(target_us, users, longest, cost_of(*cost))


def requests_of(table: np.ndarray) -> tuple[Request, ...]:
    """Requests from rows (id, arrival in us, prompt_len, num_tokens, num_computed, num_cached)."""
    return tuple(
        Request(
            number, _tokens(tokens), max_tokens=10**6, arrival=arrival, prompt_len=prompt_len, num_computed=computed,
            num_cached=cached,
        )
        for number, arrival, prompt_len, tokens, computed, cached in table.tolist()
    )  # fmt: skip


def _tokens(count: int) -> list[int]:
    """So many tokens, in a list that requests share unless a policy has changed it.

    Lists of thousands, made anew for each request and step, would take most of a step's time.
    """
    shared = _shared(count)
    return shared if len(shared) == count else [0] * count


@functools.lru_cache(maxsize=128)
def _shared(count: int) -> list[int]:
    return [0] * count


def plan(answer: Callable, table: np.ndarray, *knobs: int) -> tuple[int, np.ndarray]:
    """How many of the requests the policy changed, and its chunks: int64 rows (request id, start, stop).

    knobs   max_num_batched_tokens, max_chunk, max_num_seqs: given by place, or by name where the policy wants that
    """
    requests = requests_of(table)
    before = [(dict(vars(r)), _sizes(r)) for r in requests]
    if _by_name(answer):
        names = ("max_num_batched_tokens", "max_chunk", "max_num_seqs")
        given = answer(requests, **dict(zip(names, knobs, strict=True)))
    else:
        given = answer(requests, *knobs)
    chunks = list(given) if isinstance(given, Iterable) else [given]
    try:
        rows = [(index(c.request_id), index(c.start), index(c.stop)) for c in chunks]
        plan = np.array(rows, dtype=np.int64).reshape(-1, 3)
    except (TypeError, AttributeError, OverflowError):
        what = f"my_policy returned {given!r:.60}, wanted a tuple of Chunk(request_id, start, stop) in whole numbers"
        raise TypeError(what) from None
    changed = sum((vars(r), _sizes(r)) != then for r, then in zip(requests, before))
    return changed, plan


def _sizes(request: Request) -> tuple[int, int, int]:
    return len(request.token_ids), len(request.block_table), len(request.block_hashes)


def _by_name(policy: Callable) -> bool:
    code = getattr(policy, "__code__", None)
    if code:
        return code.co_kwonlyargcount > 0
    return any(p.kind is p.KEYWORD_ONLY for p in inspect.signature(policy).parameters.values())
