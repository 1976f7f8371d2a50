"""One request through scheduler and prefix cache, iteration by iteration: chunking and caching together.

Every number of a plan comes from the planner and the cache; times are modelled (cost.linear, preset "reference").
With --engine the same plans run on a small real model, and the KV of all of them is compared bit for bit.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.cli import Parser, UserError, positive
from course_lib.cost.linear import PRESETS
from course_lib.engine import Engine
from course_lib.prefill import one_pass, token_ids
from course_lib.schedule.profiles import profile_named
from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler
from course_lib.schedule.step_record import StepRecord
from course_lib.weights import seeded_model

PROMPT, SHARED, CHUNK = 7_000, 5_000, 1_024  # tokens
USERS = ("B", "C", "D")
COST = PRESETS["reference"]
ALL_AT_ONCE = PROMPT + len(USERS)  # a budget that holds the whole prompt beside the decodes


@dataclass(frozen=True)
class Knobs:
    """One way to serve the prompt. `budget` is max_num_batched_tokens."""

    name: str
    budget: int = CHUNK + len(USERS)
    max_chunk: int = CHUNK
    profile: str = "course"
    caching: bool = True


SHARED_BUDGET = Knobs("one budget", budget=CHUNK, max_chunk=0)
OWN_CAP = Knobs("cap and budget")
WHOLE = {"budget": ALL_AT_ONCE, "max_chunk": 0, "profile": "sglang-prefill-first"}  # a step of its own: exclusive
CELLS = (
    Knobs("neither", **WHOLE, caching=False),
    Knobs("chunking only", caching=False),
    Knobs("caching only", **WHOLE),
    Knobs("both"),
)


@dataclass(frozen=True)
class Story:
    """What happened: `steps` from A's first chunk to its first decode. A is request `id`."""

    id: int
    hit: int
    steps: tuple[StepRecord, ...]

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """A's chunks (start, stop), up to the one that yields its first token."""
        found = []
        for step in self.steps:
            found += [(start, stop) for i, start, stop in step.chunks if i == self.id]
            if self.id in dict(step.sampled):
                return found
        return found

    def step_us(self, step: StepRecord) -> int:
        """Modelled duration: A's prompt tokens and the decodes of all."""
        prompt = sum(stop - start for i, start, stop in step.chunks if i == self.id and start < PROMPT)
        return COST.step_us(prompt, step.num_tokens - prompt)

    @property
    def ttft_us(self) -> int:
        """From the start of A's first step to the end of the step that yields its first token."""
        return sum(self.step_us(step) for step in self.steps[: len(self.chunks)])

    @property
    def worst_gap_us(self) -> int:
        """Longest time between two tokens of B, from the end of the step before A's first."""
        gap = worst = 0
        for step in self.steps:
            gap += self.step_us(step)
            if 0 in dict(step.sampled):
                worst, gap = max(worst, gap), 0
        return worst


def scheduler_for(knobs: Knobs, block_size: int) -> Scheduler:
    """An empty scheduler and cache with these knobs."""
    profile = profile_named(knobs.profile)
    cache = profile.new_cache(-(-4 * PROMPT // block_size), block_size, enable_prefix_caching=knobs.caching)
    return Scheduler(
        cache, profile, max_num_batched_tokens=knobs.budget, max_chunk=knobs.max_chunk, max_num_seqs=8
    )


def tell(knobs: Knobs, block_size: int) -> Story:
    """The story on the planner alone: tokens are numbers, nothing is computed."""
    scheduler = scheduler_for(knobs, block_size)

    def step() -> StepRecord:
        planned = scheduler.schedule()
        return scheduler.commit(planned, dict.fromkeys(scheduler.ends(planned), 0))

    return _play(scheduler, step, shared=range(PROMPT), others=range(100_000, 200_000))


def run(knobs: Knobs, block_size: int, model, one_cold) -> tuple[Story, bool]:
    """The story on the real engine, and whether A's KV equals `one_cold`, a one-pass prefill, bit for bit."""
    engine = Engine(
        model, num_blocks=-(-4 * PROMPT // block_size), block_size=block_size, profile=knobs.profile,
        max_num_batched_tokens=knobs.budget, max_chunk=knobs.max_chunk, max_num_seqs=8,
        enable_prefix_caching=knobs.caching,
    )  # fmt: skip
    ids = token_ids(PROMPT, model.config.vocab_size)
    kept = {}

    def look(request: Request) -> None:
        kept["equal"] = all(
            np.array_equal(ours[:, :PROMPT], theirs) for ours, theirs in zip(engine.kv(request), one_cold)
        )

    return _play(engine.scheduler, engine.step, shared=ids, others=ids[::-1], look=look), kept["equal"]


def _play(scheduler: Scheduler, step, shared, others, look=None) -> Story:
    """B, C and D stream; W computes what A shares with it; then A comes. Token ids from `shared` and `others`."""
    for number in range(len(USERS)):
        prompt = list(others[30 * number : 30 * number + 20])
        scheduler.add(Request(number, prompt, max_tokens=100))
    step()
    warm = Request(3, [*shared[:SHARED], *others[200:205]], max_tokens=1)
    scheduler.add(warm)
    while not warm.finish_reason:
        step()
    request = Request(4, list(shared), max_tokens=8)
    scheduler.add(request)
    steps, hit = [], 0
    while len(request.generated) < 2:
        steps.append(step())
        hit += dict(steps[-1].hits).get(request.id, 0)
        if look is not None and len(request.generated) == 1:
            look(request)
    return Story(request.id, hit, tuple(steps))


def lookup_ms(block_size: int) -> float:
    """Measured here: hashing A's prompt, finding its blocks and taking them, in ms (smallest of five)."""
    best = float("inf")
    for _ in range(5):
        scheduler = scheduler_for(Knobs("both", budget=ALL_AT_ONCE, max_chunk=0), block_size)
        warm = Request(0, list(range(SHARED)), max_tokens=1)
        scheduler.cache.allocate(warm, SHARED)
        scheduler.cache.publish(warm, 0, SHARED)
        request = Request(1, list(range(PROMPT)))
        begin = time.perf_counter()
        hit = scheduler.cache.match(request)
        scheduler.cache.allocate(request, len(hit) * block_size, hit=hit)
        best = min(best, time.perf_counter() - begin)
    return best * 1e3


def parser() -> Parser:
    p = Parser(
        prog="python -m course_lib walkthrough",
        description=f"A prompt of {PROMPT:,} tokens, {SHARED:,} of them cached, arrives while three users stream.",
        example="python -m course_lib walkthrough --block-size 16",
    )
    p.add_argument(
        "--block-size", type=positive, default=1, metavar="B", help="tokens in a block: 1 (default), 8, 16, 128, 256"
    )
    p.add_argument("--engine", action="store_true", help="run it on a small real model, too, and compare the KV (30 s)")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    size = args.block_size
    if size > CHUNK:
        raise UserError(f"a block of {size} tokens is larger than a chunk of {CHUNK}; give --block-size 1 to {CHUNK}.")
    readings = [(knobs, tell(knobs, size)) for knobs in (OWN_CAP, SHARED_BUDGET)]
    cells = [(knobs, tell(knobs, size)) for knobs in CELLS]
    answer = {
        "block_size": size,
        "readings": [{**_numbers(story), "budget": s.budget, "max_chunk": s.max_chunk} for s, story in readings],
        "cells": [{"cell": knobs.name, **_numbers(story)} for knobs, story in cells],
        "lookup_ms": lookup_ms(size),
    }
    if not args.json:
        _print(size, readings, cells, answer["lookup_ms"])
    if args.engine:
        model = seeded_model()
        cold = one_pass(model, token_ids(PROMPT, model.config.vocab_size))
        results = [(knobs, *run(knobs, size, model, (cold.k, cold.v))) for knobs in CELLS]
        answer["kv_equal"] = {knobs.name: equal for knobs, _, equal in results}
        answer["plans_equal"] = all(ran.chunks == told.chunks for (_, ran, _), (_, told) in zip(results, cells))
        if not args.json:
            print("\non the real engine (tile arithmetic): KV of A against a cold one-pass prefill, bit for bit")
            for name, equal in answer["kv_equal"].items():
                print(f"  {name:14} {'equal' if equal else 'DIFFERENT'}")
    if args.json:
        print(json.dumps(answer, indent=1))
    return 0 if all(answer.get("kv_equal", {}).values()) and answer.get("plans_equal", True) else 1


def _numbers(story: Story) -> dict:
    return {
        "hit": story.hit,
        "tail": PROMPT - story.hit,
        "chunks": [list(chunk) for chunk in story.chunks],
        "first_token_iteration": len(story.chunks) - 1,
        "ttft_us": story.ttft_us,
        "worst_gap_us": story.worst_gap_us,
    }


def _print(size: int, readings, cells, hit_ms: float) -> None:
    story = readings[0][1]
    print(f"A, {PROMPT:,} tokens, arrives in iteration N while {', '.join(USERS)} stream. Positions count from 0.")
    print(f"Its first {SHARED:,} tokens were computed before, in blocks of {size}: {story.hit // size:,} full blocks,")
    print(f"hit {story.hit:,} tokens, tail {PROMPT - story.hit:,}.")
    for knobs, story in readings:
        cap = f"max_chunk {knobs.max_chunk:,}" if knobs.max_chunk else "no cap of its own"
        print(f"\nbudget {knobs.budget:,}, {cap}: chunks {' + '.join(f'{b - a:,}' for a, b in story.chunks)}")
        print(f"  {'iteration':9}  {'A computes':16}  {'A attends to':14}  beside  tokens     modelled")
        for number, step in enumerate(story.steps):
            _print_step(number, step, story)
        print(f"  A's first token: {story.ttft_us:,} us after it came; longest gap of {', '.join(USERS)}: "
              f"{story.worst_gap_us:,} us (modelled)")  # fmt: skip
    print("\nfour ways, modelled; unchunked cells give A a step of its own (exclusive baseline)")
    for knobs, story in cells:
        print(f"  {knobs.name:14} first token {story.ttft_us:>8,} us   longest gap {story.worst_gap_us:>8,} us   "
              f"{len(story.chunks)} chunk{'s' * (len(story.chunks) > 1)}")  # fmt: skip
    print(f"\na hit's own cost, measured here: {hit_ms:.2f} ms to hash {PROMPT:,} tokens, find their blocks, take them")


def _print_step(number: int, step: StepRecord, story: Story) -> None:
    name = f"N+{number}" if number else "N"
    own = [(start, stop) for i, start, stop in step.chunks if i == story.id]
    beside = " ".join(USERS[i] for i, *_ in step.chunks if i < len(USERS))
    computes = attends = "-"
    for start, stop in own:
        computes = f"{start:,} .. {stop - 1:,}" if start < PROMPT else f"decode at {start:,}"
        attends = f"0 .. {stop - 1:,}"
    note = "  -> A's first token" if number == len(story.chunks) - 1 else ""
    work = f"{computes:16}  {attends:14}  {beside:6}  {step.num_tokens:6,}"
    print(f"  {name:9}  {work}  {story.step_us(step):8,} us{note}")
