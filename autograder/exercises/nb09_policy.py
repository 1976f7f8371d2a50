"""Exercise 9.4, my_policy: a scheduling policy, judged by what a simulated server does with its plans.

The simulation runs here. The policy is asked for one step after another, in plain data both ways, and nothing that it
does to its requests, or to the library beside it, reaches the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from autograder.compare import counted, error_text, first_trouble, printed_note
from autograder.drivers import nb09
from autograder.exercise import Call, Group, Outcome, Raised, Verdict
from autograder.exercises import nb09_policy_mistakes
from autograder.kit import draws, exercise
from course_lib.cost.metrics import Report
from course_lib.cost.workload import Arrival
from course_lib.lessons.nb09_capstone import BUDGET, MARKS, MAX_NUM_SEQS, TARGETS, crowd, mixed_workload, run
from course_lib.schedule.refusals import expect_plan
from course_lib.schedule.request import Chunk

SOLUTION = "course_lib.lessons.nb09_capstone:my_policy"
PLAN = (int, np.ndarray)  # requests that the policy changed, and its chunks: rows (request id, start, stop)
MOST_STEPS = 400  # of a run; right policies need 60 to 250
# Shares of workloads differ by 2 percent (a good policy) to 11 (a poor one): the marks are some four errors of the mean
# away from the answers on either side
WORKLOADS = {"beats": 6, "reaches": 12}
CROWDS = 2  # right answers need up to 1.9 s there, those that let the long prompt starve 2.5 and more (30 seeds)
HOPELESS = 4, 20  # workloads, after which a policy that is so many percent below the mark is told so
AGAIN = 6  # states of `valid` that are asked about again, forwards and backwards
LONG_US, GAP_US = 2_200_000, 500_000  # in the crowd: the long prompt's first token; a streaming user's longest gap


# --- valid: plans for single states


def states(seed: int) -> list[Call]:
    """All that a state can hold, with every knob at its edges, then six that are drawn; some are asked about again."""
    draw = draws(seed)

    def decodes(number):
        for _ in range(number):
            prompt, answer = draw(20, 3_000), draw(1, 40)
            yield prompt, prompt + answer, prompt + answer - 1, 0

    def running():  # chunks of prompts; preempted: its answer is recomputed; all but its newest token was found cached
        yield from ((n, n, draw(500, n - 200), 0) for n in (draw(3_000, 12_000), draw(3_000, 6_000)))
        yield 900, 940, draw(910, 930), 0
        yield 320, 337, 336, 336

    def waiting():
        hit = 16 * draw(1, 10)
        yield hit + draw(20, 400), hit + draw(420, 430), hit, hit
        yield 160, 161, 160, 160
        yield 60 * draw(2, 9), 60 * 9 + 7, 0, 0
        yield from ((n, n, 0, 0) for n in (1, draw(5_000, 12_000), *(draw(50, 500) for _ in range(draw(2, 7)))))

    full = (BUDGET, 0, MAX_NUM_SEQS)
    n = draw(4, 9)
    everything = (*decodes(n), *running(), *waiting())
    shapes = [(everything, knobs) for knobs in (
        full, (draw(900, 1_500), 0, n + draw(1, 3)), (2_048, 16 * draw(4, 30), MAX_NUM_SEQS),
        (n - 1, 0, MAX_NUM_SEQS), (n, 0, MAX_NUM_SEQS), (n + 1, 0, MAX_NUM_SEQS), (n + draw(3, 40), 0, MAX_NUM_SEQS),
        (BUDGET, 0, n - 1), (BUDGET, 0, n), (BUDGET, 0, n + 1), (1, 0, 1), (BUDGET, 1, MAX_NUM_SEQS), (BUDGET, 0, 1),
        (n + draw(2, 9), draw(10, 90), MAX_NUM_SEQS), (n - 1, 1, n), (n + 300, draw(100, 200), n + 4),
    )]  # fmt: skip
    shapes += [(tuple(waiting()), full), (tuple(running()), (1, 0, 1)), (tuple(decodes(n)), full)]
    shapes += [((row,), full) for row in (*running(), *waiting(), (9_000, 9_000, 8_999, 0))]  # alone
    shapes.append((tuple(decodes(1)), (1, 1, 1)))
    for _ in range(6):
        rows = (*decodes(draw(0, 9)), *running(), *waiting())
        shapes.append((rows, (draw(1, 3_000), draw(0, 2) * draw(1, 500), draw(1, len(rows)))))
    calls = [_state(draw, rows, knobs) for rows, knobs in shapes]
    return [*calls, *calls[:AGAIN], *reversed(calls[:AGAIN])]


def _state(draw: Callable, rows: tuple, knobs: tuple) -> Call:
    ids = np.random.default_rng(draw(0, 10**6)).permutation(len(rows)) + draw(0, 90)
    arrivals = [draw(0, 900_000) for _ in rows]
    table = np.column_stack([ids, arrivals, np.array(rows)]).astype(np.int64)
    names = ("max_num_batched_tokens", "max_chunk", "max_num_seqs")
    words = ", ".join(f"{name}={value}" for name, value in zip(names, knobs, strict=True))
    return Call((table, *knobs), f"my_policy of {counted(len(rows), 'request')}, {words},")


def judge_valid(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    trouble = first_trouble(calls, outcomes, _broken, form=PLAN)
    if trouble:
        return trouble
    first: dict[int, Outcome] = {}
    for call, outcome in zip(calls, outcomes, strict=True):
        if not np.array_equal(first.setdefault(id(call), outcome).value[1], outcome.value[1]):
            what = "planned something else when it was asked again about the same requests and knobs. A policy is pure:"
            return Verdict(False, what=f"{call.label} {what} it remembers nothing, and chance has no part in it.")
    return Verdict(True, count=f"{len(calls)} states")


def _broken(call: Call, got: tuple) -> str | None:
    """Which rule a plan breaks, in words; None for a plan that an engine can run."""
    table, budget, max_chunk, max_num_seqs = call.args
    chunks, odd = _chunks(call.label, got)
    try:
        expect_plan(chunks, {request.id: request for request in nb09.requests_of(table)}, budget, max_num_seqs)
    except ValueError as error:
        return _rule(call.label, error)
    over = [chunk for chunk in chunks if max_chunk and chunk.num_tokens > max_chunk]
    return odd or (f"{call.label} returned {over[0]}, and max_chunk is {max_chunk}." if over else None)


def _chunks(label: str, got: tuple) -> tuple[list[Chunk], str]:
    """The chunks of a plan, and what is wrong whatever they are: unreadable, requests changed, none at all."""
    changed, rows = got
    if rows.ndim != 2 or rows.shape[1] != 3 or rows.dtype.kind not in "iu":
        return [], f"{label} gave a plan that could not be read."
    if changed:
        return [], f"{label} changed {changed} of its requests. A policy reads them; commit advances them."
    chunks = [Chunk(*row) for row in rows.tolist()]
    return chunks, "" if chunks else f"{label} plans nothing, although there is work: the server would stand still."


def _rule(label: str, error: ValueError) -> str:
    return f"{label} broke a rule: {error}".replace("plan_step", "my_policy")


# --- fair, beats, reaches: the policy serves whole workloads


class Refused(Exception):
    """The policy did something that ends the run; the text says what."""


def serve(workload: Iterable[Arrival], ask: Callable[[Call], Outcome], where: str, keep: bool = False) -> Report:
    """The result of a run whose every step is what the policy answers. Raises Refused for a plan that cannot be."""
    arrivals = list(workload)
    label = f"my_policy {where}"
    steps, note = 0, ""

    def policy(requests, **knobs):
        nonlocal steps, note
        steps += 1
        if steps > MOST_STEPS:
            raise Refused(
                f"{label}: {MOST_STEPS} steps, and {len(requests)} of {len(arrivals)} requests are not done yet. A "
                "policy that gives each step as much as the target allows needs less than half of that."
            )
        rows = [(r.id, r.arrival, r.prompt_len, len(r.token_ids), r.num_computed, r.num_cached) for r in requests]
        call = Call((np.array(rows, dtype=np.int64), *knobs.values()), label)
        outcome = ask(call)
        note = printed_note(outcome)
        if isinstance(outcome, Raised):
            raise Refused(error_text(call, outcome) + note)
        chunks, odd = _chunks(label, outcome.value)
        if odd:
            raise Refused(odd + note)
        return chunks

    try:
        return run(arrivals, policy, keep=keep)
    except ValueError as error:
        raise Refused(_rule(label, error) + note) from None


def talk(rule: Callable[[int, Callable], tuple[bool, str]]) -> Callable[[int, Callable], Verdict]:
    """A conversation from a rule: rule(seed, ask) -> whether the policy passes, and what to say of it."""

    def verdict(seed: int, ask: Callable[[Call], Outcome]) -> Verdict:
        try:
            passed, text = rule(seed, ask)
        except Refused as refused:
            passed, text = False, str(refused)
        return Verdict(True, count=text) if passed else Verdict(False, what=text)

    return verdict


def _seeds(seed: int, number: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 2**31, number).tolist()


@talk
def fair(seed: int, ask: Callable) -> tuple[bool, str]:
    for number in _seeds(seed, CROWDS):
        report = serve(crowd(number), ask, "in the crowd", keep=True)
        gap = max((gap for r in report.requests for gap in r.gaps_us), default=0)
        if gap > GAP_US:
            most = f"{GAP_US / 1e6:g} s is the most."
            return False, f"my_policy in the crowd: a streaming user waited {gap / 1e6:.2f} s for a token; {most}"
        tokens, wait = max((r.prompt_tokens, r.ttft_us) for r in report.requests)
        if wait > LONG_US:
            return False, (
                f"my_policy in the crowd: the prompt of {tokens:,} tokens got its first token after {wait / 1e6:.2f} "
                f"s, while short prompts overtook it; {LONG_US / 1e6:g} s is the most."
            )
    return True, f"no request starves in {CROWDS} crowds"


def at_least(percent: int, workloads: int) -> Callable[[int, Callable], Verdict]:
    """The conversation that is passed if so many of the requests of that many workloads meet both targets."""

    @talk
    def reach(seed: int, ask: Callable) -> tuple[bool, str]:
        reports: list[Report] = []
        for number in _seeds(seed, workloads):
            reports.append(serve(mixed_workload(number), ask, "on the mixed workload"))
            good, requests = sum(r.num_good for r in reports), sum(r.num_finished for r in reports)
            if len(reports) == HOPELESS[0] and 100 * good < (percent - HOPELESS[1]) * requests:
                break
        share = f"{100 * good / requests:.1f}% of {requests:,} requests meet both targets"
        if len(reports) == workloads and 100 * good >= percent * requests:
            return True, share
        on = f"on the first {len(reports)} of" if len(reports) < workloads else "on"
        wanted = f"{percent}% are wanted ({-(-percent * requests // 100):,} requests, and it is {good:,})"
        return False, f"my_policy {on} {workloads} mixed workloads: {share}, and {wanted}. {_why(reports)}"

    return reach


def _why(reports: list[Report]) -> str:
    """Which of the two targets is missed, how often, and by how much."""
    steps, gap = sum(r.steps.count for r in reports), max(r.itl.max for r in reports) / 1e3
    mean = sum(r.steps.total for r in reports) / steps / 1e3
    late, latest = sum(r.ttft.above(TARGETS.ttft_us) for r in reports), max(r.ttft.max for r in reports) / 1e6
    text = f"Your longest gap between two tokens was {gap:.0f} ms, "
    first = f"{late:,} requests got their first token after more than 500 ms, the last one after {latest:.1f} s."
    if gap * 1e3 > TARGETS.itl_us:
        over = sum(r.steps_over_target for r in reports)
        why = f"{over:,} of {steps:,} steps took longer than that. Give a step less work."
        if not over:
            why = "and no step took longer than that. So steps left out the decodes of users who stream."
        return f"{text}over the target of 50: {why} And {first}"
    text += f"within the target of 50; what fails is the time to the first token: {first} A step took {mean:.0f} ms in "
    return text + "the mean."


EXERCISE = exercise(
    SOLUTION,
    groups=[
        Group("valid", states, judge_valid, form=PLAN),
        Group("fair", form=PLAN, talk=fair),
        *(Group(name, form=PLAN, talk=at_least(MARKS[name], count)) for name, count in WORKLOADS.items()),
    ],
    mistakes=nb09_policy_mistakes.MISTAKES,
    reread="Reread notebook 09, section 7.",
    imports="import numpy as np\nfrom course_lib.schedule.request import Chunk, Request",
    driver=nb09.plan,
)
