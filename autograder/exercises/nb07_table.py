"""Exercise 7.2, PrefixCache: which block holds this beginning?"""

from __future__ import annotations

import numpy as np

from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb01_cache import same
from autograder.exercises.nb07_shared import Told, flat, judge_told, name_of, parsed
from autograder.exercises.nb07_table_answers import RIGHT, WRONG

PUBLISH, FORGET, MATCH, CONTAINS = range(4)


def drive(make, num_blocks: int, operations: list[int]) -> list[int]:
    """Each operation is its kind, how many numbers follow, and those."""
    cache, seen, names = make(num_blocks), [], []
    for kind, given in parsed(operations):
        if kind == PUBLISH:
            cache.publish(name_of(given[0]), given[1])
            seen.append([])
        elif kind == FORGET:
            cache.forget(given[0])
            seen.append([])
        elif kind == MATCH:
            seen.append(cache.match([name_of(number) for number in given]))
        else:
            seen.append([int(block in cache) for block in range(1, num_blocks + 1)])
        names.append("what match gives")
    return flat(seen, names)


def call_cases(seed: int) -> list[Call]:
    """Few hashes and many blocks, so that copies, gaps in a chain and reused blocks are all there."""
    rng = np.random.default_rng(seed)
    calls = []
    for num_blocks in (5, 9):
        hashes = rng.choice(10_000, 4, replace=False).tolist()
        operations, held = [], {}

        def add(kind, *given, operations=operations):
            operations.extend((kind, len(given), *given))

        add(MATCH, *hashes)
        order = [0, 2, 0, 1, 0] + rng.integers(0, 4, 45).tolist()
        for i, which in enumerate(order):
            free = [block for block in range(1, num_blocks + 1) if block not in held]
            if held and (not free or (i > 5 and rng.random() < 0.45)):
                block = int(rng.choice(sorted(held)))
                add(FORGET, block)
                del held[block]
            else:
                block = int(rng.choice(free))
                held[block] = hashes[which]
                add(PUBLISH, hashes[which], block)
                if i % 3 == 0:
                    add(PUBLISH, hashes[which], block)
            add(MATCH, *hashes)
            add(MATCH, hashes[which], hashes[0], int(rng.integers(10_000, 20_000)), hashes[which])
            add(CONTAINS)
        calls.append(Call((num_blocks, operations), f"PrefixCache({num_blocks})"))
    return calls


def _told(call: Call) -> list[Told]:
    num_blocks, operations = call.args
    published: list[tuple[int, int]] = []  # (block, hash), the first published first
    story = []
    for kind, given in parsed(operations):
        if kind == PUBLISH:
            if given[1] not in [block for block, _ in published]:
                published.append((given[1], given[0]))
            story.append((f"publish(h{given[0]}, {given[1]})", []))
        elif kind == FORGET:
            published = [pair for pair in published if pair[0] != given[0]]
            story.append((f"forget({given[0]})", []))
        elif kind == MATCH:
            firsts = [next((b for b, value in published if value == number), None) for number in given]
            found = firsts[: firsts.index(None)] if None in firsts else firsts
            story.append((f"match([{', '.join(f'h{number}' for number in given)}])", found))
        else:
            inside = [int(block in [b for b, _ in published]) for block in range(1, num_blocks + 1)]
            story.append((f"`block in cache` for blocks 1 to {num_blocks}", inside))
    return story


def judge_calls(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return judge_told(calls, outcomes, _told)


EXERCISE = Exercise(
    name="PrefixCache",
    number="7.2",
    title="The table",
    notebook="07_prefix_cache",
    mode="equal",
    groups=(Group("calls", 3, call_cases, judge_calls),),
    same=same,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 07, section 3.",
    library=("course_lib.lessons.nb07_prefix_cache:PrefixCache", "course_lib.cache.prefix:PrefixIndex"),
    driver=drive,
)
