"""Exercise 9.4, my_policy: the learner's scheduling policy, judged by what it did to a workload."""

from __future__ import annotations

import functools
from operator import index

import numpy as np

from autograder.compare import first_trouble
from autograder.exercise import Call, Exercise, Group, Outcome, Raised, Verdict
from autograder.exercises import nb09_policy_answers
from autograder.kept import known_mistakes
from course_lib.lessons import nb09_capstone as capstone
from course_lib.schedule.refusals import expect_plan
from course_lib.schedule.request import Chunk, Request

MOST_STEPS = 400  # right policies need 60 to 250
ASKED = 3  # states that each group begins with
LONG_US, GAP_US = 1_200_000, 500_000  # in the crowd: the long prompt's first token; a streaming user's longest gap
OVER_WHOLE, OF_BEST = 1.5, 0.88
FIELDS = ("arrival", "prompt_len", "num_tokens", "num_computed", "num_cached")


def drive(policy, kind: int, knobs: list[int], table: np.ndarray):
    """kind 0: the plan for a state, rows (request, start, stop) below a row (requests changed, 0, 0).

    kind 1, 2: serve capstone.mixed_workload or crowd with the seed knobs[0], and say what came of it.
    """
    if kind == 0:
        return _plan(policy, knobs, table)
    arrivals = list((capstone.mixed_workload if kind == 1 else capstone.crowd)(knobs[0]))
    report = capstone.run(arrivals, _Limited(policy, len(arrivals)), keep=True)
    gaps = max((gap for r in report.requests for gap in r.gaps_us), default=0)
    long = max((r.ttft_us for r in report.requests if r.prompt_tokens == 8_000), default=0)
    return np.array([len(arrivals), report.num_finished, report.num_good, gaps, long, report.steps.count])


class _Limited:
    """The policy, called as the scheduler calls plan_step, at most MOST_STEPS times."""

    def __init__(self, policy, requests: int):
        self.policy, self.requests, self.steps = policy, requests, 0

    def __call__(self, requests, **knobs):
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise ValueError(
                f"{MOST_STEPS} steps, and {len(requests)} of {self.requests} requests are not done yet. A policy that "
                "gives each step as much as the target allows needs less than half of that"
            )
        return _call(self.policy, requests, knobs)


def _call(policy, requests, knobs):
    """With the knobs by place, or by name where the policy, like plan_step, wants them so."""
    code = getattr(policy, "__code__", None)
    return policy(requests, **knobs) if code and code.co_kwonlyargcount else policy(requests, *knobs.values())


def _requests(table: np.ndarray) -> tuple[Request, ...]:
    made = []
    for number, (arrival, prompt_len, tokens, computed, cached) in enumerate(table.tolist()):
        made.append(
            Request(
                10 + number, [0] * tokens, max_tokens=10**6, arrival=arrival, prompt_len=prompt_len,
                num_computed=computed, num_cached=cached,
            )
        )  # fmt: skip
    return tuple(made)


def _names(knobs: list[int]) -> dict[str, int]:
    return dict(zip(("max_num_batched_tokens", "max_chunk", "max_num_seqs"), knobs, strict=True))


def _plan(policy, knobs: list[int], table: np.ndarray) -> np.ndarray:
    requests = _requests(table)
    plan = _call(policy, requests, _names(knobs))
    try:
        rows = [(index(c.request_id), index(c.start), index(c.stop)) for c in plan]
    except (TypeError, AttributeError):
        what = f"my_policy returned {plan!r:.60}, wanted a tuple of Chunk(request_id, start, stop) in whole numbers"
        raise TypeError(what) from None
    before = _requests(table)
    changed = sum(vars(a) != vars(b) for a, b in zip(requests, before))
    return np.array([(changed, 0, 0), *rows])


# --- cases


def _state(rng: np.random.Generator, number: int) -> Call:
    """A state of a server: decodes, prompts half done, some that wait, one with a hit, one after a preemption."""
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    rows = []
    for _ in range(draw(2, 9)):
        prompt, answer = draw(20, 3_000), draw(1, 40)
        rows.append((prompt, prompt + answer, prompt + answer - 1, 0))
    for _ in range(draw(1, 3)):
        prompt = draw(3_000, 12_000)
        rows.append((prompt, prompt, draw(500, prompt - 200), 0))
    running = len(rows)
    hit = 16 * draw(1, 10)
    rows.append((hit + draw(20, 400), 0, hit, hit))
    rows.append((60 * draw(2, 9), 7, 0, 0))
    rows += [(draw(5_000, 12_000), 0, 0, 0)] + [(draw(50, 500), 0, 0, 0) for _ in range(draw(2, 7))]
    table = np.zeros((len(rows), len(FIELDS)), dtype=np.int64)
    arrivals = np.sort(rng.integers(0, 900_000, len(rows)))
    for i, (prompt, more, computed, cached) in enumerate(rows):
        tokens = more if i < running else prompt + more
        table[i] = arrivals[i], prompt, tokens, computed, cached
    decodes = sum(t - c == 1 for t, c in table[:, 2:4].tolist())
    knobs = [
        [capstone.BUDGET, 0, capstone.MAX_NUM_SEQS],
        [draw(900, 1_500), 0, running + draw(1, 3)],
        [2_048, 16 * draw(4, 30), capstone.MAX_NUM_SEQS],
        [max(decodes - 1, 1), 0, capstone.MAX_NUM_SEQS],
        [capstone.BUDGET, 0, max(decodes - 1, 1)],
        [decodes + draw(3, 40), 0, capstone.MAX_NUM_SEQS],
    ][number % 6]
    return Call((0, knobs, table), f"my_policy of {len(rows)} requests, {_words(knobs)},", {"decodes": decodes})


def _words(knobs: list[int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in _names(knobs).items())


def _states(rng: np.random.Generator, count: int) -> list[Call]:
    return [_state(rng, number) for number in range(count)]


def valid_cases(seed: int) -> list[Call]:
    return _states(np.random.default_rng(seed), 18)


def _runs(seed: int, kind: int, count: int, what: str) -> list[Call]:
    rng = np.random.default_rng(seed)
    states = _states(rng, ASKED)
    seeds = rng.integers(0, 2**31, count).tolist()
    return states + [Call((kind, [s], np.zeros((0, 5), dtype=np.int64)), f"my_policy {what}") for s in seeds]


def fair_cases(seed: int) -> list[Call]:
    return _runs(seed, 2, 1, "in the crowd")


def beats_cases(seed: int) -> list[Call]:
    return _runs(seed, 1, 1, "on the mixed workload")


def reaches_cases(seed: int) -> list[Call]:
    return _runs(seed + 1, 1, 2, "on the mixed workload")


# --- judges


def _invalid(call: Call, got: np.ndarray) -> str | None:
    """Which rule a plan breaks, in words; None for a plan that an engine can run."""
    if got.ndim != 2 or got.shape[1] != 3 or len(got) < 1 or got.dtype.kind not in "biu":
        return f"{call.label} gives {got.tolist()!r:.60}, wanted a tuple of Chunk(request_id, start, stop)."
    _, knobs, table = call.args
    (changed, *_), *rows = got.tolist()
    requests = {r.id: r for r in _requests(table)}
    try:
        expect_plan([Chunk(*row) for row in rows], requests, knobs[0], knobs[2])
    except ValueError as error:
        return f"{call.label} broke a rule: {error}".replace("plan_step", "my_policy")
    if changed:
        return f"{call.label} changed {changed} of its requests. A policy reads them; commit advances them."
    over = [row for row in rows if knobs[1] and row[2] - row[1] > knobs[1]]
    if over:
        return f"{call.label} returned Chunk{tuple(over[0])}, and max_chunk is {knobs[1]}."
    return None if rows else f"{call.label} plans nothing, although there is work: the server would stand still."


def judge_valid(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _invalid) or Verdict(True, count=f"{len(calls)} states")


def _judge(calls: list[Call], outcomes: list[Outcome], trouble, count: str) -> Verdict:
    """The states first: a plan that breaks a rule there is told by the rule."""
    found = first_trouble(calls[:ASKED], outcomes[:ASKED], _invalid) or first_trouble(
        calls[ASKED:], outcomes[ASKED:], lambda call, got: _no_run(call, got) or trouble(call, got)
    )
    return found or Verdict(True, count=count)


def _no_run(call: Call, got: np.ndarray) -> str | None:
    if got.shape != (6,) or got.dtype.kind not in "biu":
        return f"{call.label} gives no result of a run."
    arrivals, finished = got.tolist()[:2]
    if finished < arrivals:
        return f"{call.label} finished {finished} of {arrivals} requests; then it planned nothing any more."
    return None


def judge_fair(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    def trouble(call: Call, got: np.ndarray) -> str | None:
        *_, gap, long, _ = got.tolist()
        if gap > GAP_US:
            return (
                f"{call.label}: a streaming user waited {gap / 1e6:.2f} s for a token; {GAP_US / 1e6:g} s is the most."
            )
        if long > LONG_US:
            return (
                f"{call.label}: the prompt of 8,000 tokens got its first token after {long / 1e6:.2f} s, while short "
                f"prompts overtook it; {LONG_US / 1e6:g} s is the most."
            )
        return None

    return _judge(calls, outcomes, trouble, "no request starves in the crowd")


@functools.lru_cache(maxsize=64)
def _whole(seed: int) -> int:
    return capstone.whole_prompt_good(seed)


@functools.lru_cache(maxsize=64)
def _best(seed: int) -> tuple[int, str, int]:
    return max((good, profile, budget) for (profile, budget), good in capstone.shipped_good(seed).items())


def judge_beats(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    def trouble(call: Call, got: np.ndarray) -> str | None:
        good, whole = got.tolist()[2], _whole(call.args[1][0])
        if good >= OVER_WHOLE * max(whole, 1):
            return None
        return (
            f"{call.label}: {good} of {got.tolist()[0]} requests meet both targets. Without cutting any prompt it is "
            f"{whole}; at least {OVER_WHOLE:g} times that is wanted. {_why(got)}"
        )

    return _judge(calls, outcomes, trouble, "more goodput than whole prompts")


def judge_reaches(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    results = [o.value.tolist() for o in outcomes[ASKED:] if not isinstance(o, Raised) and _is_run(o.value)]
    best = [_best(call.args[1][0]) for call in calls[ASKED:]]

    def trouble(call: Call, got: np.ndarray) -> str | None:
        if len(results) < len(best):
            return None  # another of the runs has no result, and first_trouble comes to it
        good, mark = sum(r[2] for r in results), sum(b[0] for b in best)
        if good >= OF_BEST * mark:
            return None
        names = " and ".join(f"{profile} with a budget of {budget:,}: {n}" for n, profile, budget in best)
        return (
            f"{call.label}, over {len(best)} seeds: {good} of {sum(r[0] for r in results)} requests meet both targets. "
            f"The best shipped profiles have {mark} ({names}); {OF_BEST:.0%} of that is wanted. {_why(got)}"
        )

    return _judge(calls, outcomes, trouble, f"at least {OF_BEST:.0%} of the best shipped profile's goodput")


def _is_run(value) -> bool:
    return isinstance(value, np.ndarray) and value.shape == (6,)


def _why(got: np.ndarray) -> str:
    _, _, _, gap, _, steps = got.tolist()
    over = gap > capstone.TARGETS.itl_us
    return f"Your longest gap between two tokens was {gap / 1e3:.0f} ms" + (
        ", over the target of 50: give a step less work."
        if over
        else f" in {steps} steps, within the target: what fails is the time to the first token."
    )


def same(a: Outcome, b: Outcome) -> bool:
    """Equal plans and equal results, or the same error in the same words."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return isinstance(a, Raised) and isinstance(b, Raised) and (a.type, a.message) == (b.type, b.message)
    x, y = a.value, b.value
    return np.array_equal(x, y) if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) else x == y


SOLUTION = "course_lib.lessons.nb09_capstone:my_policy"

EXERCISE = Exercise(
    name="my_policy",
    groups=(
        Group("valid", valid_cases, judge_valid),
        Group("fair", fair_cases, judge_fair),
        Group("beats", beats_cases, judge_beats),
        Group("reaches", reaches_cases, judge_reaches),
    ),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, nb09_policy_answers.MISTAKES),
    reread="Reread notebook 09, section 7.",
    imports="import numpy as np\nfrom course_lib.schedule.request import Chunk, Request",
    solution=SOLUTION,
    driver=drive,
)
