"""Exercise 7.4, RequestCache: hits first, then new blocks; published when they are computed."""

from __future__ import annotations

from collections import Counter

import numpy as np

from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb01_cache import same
from autograder.exercises.nb07_requests_answers import MISTAKES
from autograder.exercises.nb07_shared import Told, flat, judge_told, name_of, parsed, whole
from autograder.kept import known_mistakes
from course_lib.cache.allocator import BlockAllocator
from course_lib.cache.prefix import PrefixIndex

ADMIT, COMMIT, RELEASE = range(3)


class _Allocator(BlockAllocator):
    """The engine's allocator with `free`, the notebook's name for free_order."""

    @property
    def free(self) -> list[int]:
        return self.free_order


def drive(make, num_blocks: int, block_size: int, prompts: list[int], operations: list[int]) -> list[int]:
    """prompts: of each request its tokens, how many hashes follow, and those. operations: rows (kind, request, stop).

    After each: what admit gives, refs, the free order, and which blocks can be found.
    """
    allocator, prefix = _Allocator(num_blocks, uncached_first=False), PrefixIndex()
    cache, tables, computed, seen = make(allocator, prefix, block_size), {}, {}, []
    requests = parsed(prompts)
    for kind, request, stop in zip(operations[::3], operations[1::3], operations[2::3], strict=True):
        back, (num_tokens, hashes) = [], requests[request]
        if kind == ADMIT:
            table = cache.admit(num_tokens, [name_of(h) for h in hashes])
            back = [-1] if table is None else whole(table, "what admit gives")
            if table is not None:
                tables[request] = back
                computed[request] = 0
        elif kind == COMMIT and request in tables:
            cache.commit(list(tables[request]), [name_of(h) for h in hashes], computed[request], stop)
            computed[request] = stop
        elif kind == RELEASE and request in tables:
            allocator.release(tables.pop(request))
        blocks = range(1, num_blocks + 1)
        seen += [back, [allocator.refs[b] for b in blocks], allocator.free, [b for b in blocks if b in prefix]]
    return flat(seen, ["what admit gives", "refs", "free", "the blocks found"] * (len(seen) // 4))


class _Oracle:
    """What every block holds, as the hash that covers it; computed anew from tables and a list of free blocks."""

    def __init__(self, num_blocks: int, block_size: int, requests: list[tuple[int, list[int]]]):
        self.size, self.requests = block_size, requests
        self.free = list(range(1, num_blocks + 1))
        self.tables: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.found: list[tuple[int, int]] = []  # (hash, block), the first published first

    def hit(self, request: int) -> list[int]:
        num_tokens, hashes = self.requests[request]
        blocks = []
        for i, value in enumerate(hashes):
            have = [block for h, block in self.found if h == value]
            if not have or (i + 1) * self.size > num_tokens - 1:
                break
            blocks.append(have[0])
        return blocks

    def play(self, kind: int, request: int, stop: int) -> Told:
        num_tokens, hashes = self.requests[request]
        back: list[int] = []
        if kind == ADMIT:
            shown = ", ".join(f"h{value}" for value in hashes)
            text, hit = f"admit({num_tokens}, [{shown}])", self.hit(request)
            rest = [block for block in self.free if block not in hit]
            new = (num_tokens + self.size - 1) // self.size - len(hit)
            if new > len(rest):
                return text, [-1]
            self.free, back = rest[new:], hit + rest[:new]
            self.tables[request], self.computed[request] = back, 0
            self.found = [pair for pair in self.found if pair[1] not in rest[:new]]
        elif kind == COMMIT:
            start, table = self.computed[request], self.tables[request]
            text = f"commit({table}, hashes, {start}, {stop})"
            for i, value in enumerate(hashes):
                if (i + 1) * self.size <= stop and table[i] not in [block for _, block in self.found]:
                    self.found.append((value, table[i]))
            self.computed[request] = stop
        else:
            table = self.tables.pop(request)
            text, held = f"the request's end, release({table})", Counter(b for t in self.tables.values() for b in t)
            self.free += [block for block in reversed(table) if not held[block]]
        return text, back


def trace_cases(seed: int) -> list[Call]:
    rng = np.random.default_rng(seed)
    return [_call(rng, num_blocks, size, roomy=True) for num_blocks, size in ((16, 4), (14, 3))]


def tight_cases(seed: int) -> list[Call]:
    """A small pool: hits among the free blocks, evictions, and requests that do not fit."""
    rng = np.random.default_rng(seed)
    return [_call(rng, num_blocks, size, roomy=False) for num_blocks, size in ((6, 4), (7, 3))]


def _call(rng: np.random.Generator, num_blocks: int, size: int, roomy: bool) -> Call:
    """Prompts over few beginnings, some of them whole blocks; each is admitted, computed in chunks, and ends."""
    number: dict[tuple, int] = {}
    requests: list[tuple[int, list[int]]] = []
    oracle, operations = _Oracle(num_blocks, size, requests), []
    salt = int(rng.integers(1, 10_000))

    def new_request(pages: list[int], more: int) -> int:
        chain = [number.setdefault(tuple(pages[: i + 1]), salt + 7 * len(number)) for i in range(len(pages))]
        requests.append((len(pages) * size + more, chain))
        return len(requests) - 1

    def add(kind: int, request: int, stop: int = 0) -> Told:
        operations.extend((kind, request, stop))
        return oracle.play(kind, request, stop)

    def serve(pages: list[int], more: int) -> int:
        request = new_request(pages, more)
        add(ADMIT, request)
        if request in oracle.tables:
            cached = len(oracle.hit(request)) * size
            total = requests[request][0]
            add(COMMIT, request, int(rng.integers(cached + 1, total + 1)))
            add(COMMIT, request, total)
        return request

    first = serve([0, 1, 2], 1)
    half = new_request([0, 1, 2], 0)
    add(ADMIT, half)  # the whole prompt is cached, and one block is computed again
    add(RELEASE, first)
    if half in oracle.tables:
        add(RELEASE, half)
    fresh = new_request([0, 1, 3], 2)
    add(ADMIT, fresh)  # its hit is free
    if fresh in oracle.tables:
        add(RELEASE, fresh)  # it ends before anything is computed
    if not roomy:
        other = new_request([8], 1)
        add(ADMIT, other), add(RELEASE, other)
        add(ADMIT, new_request([0, 1, 2, *range(20, 18 + num_blocks)], 0))  # one block more than there are
    for _ in range(18 if roomy else 26):
        running = sorted(oracle.tables)
        while running and (len(running) > (2 if roomy else 1) or rng.random() < 0.4):
            add(RELEASE, running.pop(int(rng.integers(0, len(running)))))
        depth = int(rng.integers(1, 4 if roomy else 6))
        pages = [0, 1, *rng.integers(2, 4, 4).tolist()][:depth] if rng.random() < 0.75 else [4, *range(5, 4 + depth)]
        serve(pages, int(rng.integers(0, size)))
    flat = [x for num_tokens, chain in requests for x in (num_tokens, len(chain), *chain)]
    label = f"RequestCache over {num_blocks} blocks of {size} tokens"
    return Call((num_blocks, size, flat, operations), label)


def _told(call: Call) -> list[Told]:
    num_blocks, size, prompts, operations = call.args
    oracle, story = _Oracle(num_blocks, size, parsed(prompts)), []
    for kind, request, stop in zip(operations[::3], operations[1::3], operations[2::3], strict=True):
        text, back = oracle.play(kind, request, stop)
        held = Counter(block for table in oracle.tables.values() for block in table)
        story += [(text, back), (f"{text}: `refs` after it", [held[b] for b in range(1, num_blocks + 1)])]
        story.append((f"{text}: `free` after it", list(oracle.free)))
        story.append((f"{text}: the blocks that can be found after it", sorted(block for _, block in oracle.found)))
    return story


def judge_calls(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    verdict = judge_told(calls, outcomes, _told)
    return Verdict(True, count=f"{sum(len(call.args[3]) // 3 for call in calls)} calls") if verdict.passed else verdict


SOLUTION = "course_lib.lessons.nb07_prefix_cache:RequestCache"

EXERCISE = Exercise(
    name="RequestCache",
    groups=(Group("trace", trace_cases, judge_calls), Group("tight", tight_cases, judge_calls)),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 07, section 5.",
    solution=SOLUTION,
    driver=drive,
)
