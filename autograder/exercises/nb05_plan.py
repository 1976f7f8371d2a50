"""Exercise 5.1, plan_step: decodes first, then prompts in order, never over the budget."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import numpy as np

from autograder.compare import counted, first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb05_plan_answers import MISTAKES
from autograder.kept import known_mistakes
from autograder.packing import pack, unpack
from course_lib.schedule.request import Request

STATES = 60  # random states in each group
FIELDS = 5  # numbers for a request in a call: id, tokens, prompt, computed, cached


class Row(NamedTuple):
    """A request as plain numbers; `tokens` counts prompt and answer."""

    id: int
    tokens: int
    prompt: int
    computed: int
    cached: int = 0

    @property
    def decoding(self) -> bool:
        return self.computed == self.tokens - 1 >= self.prompt and self.computed > self.cached

    def __str__(self) -> str:
        if self.computed == self.tokens:
            return f"{self.id}: all {self.tokens} computed"
        if self.decoding:
            return f"{self.id}: decoding"
        again = f" and {self.tokens - self.prompt} of answer" if self.tokens > self.prompt else ""
        return f"{self.id}: prompt of {self.prompt}{again}, {self.computed} computed"


def requests_of(numbers: list[int]) -> list[Request]:
    """Requests with these sizes, in this order."""
    rows = [Row(*numbers[at : at + FIELDS]) for at in range(0, len(numbers), FIELDS)]
    return [
        Request(r.id, [0] * r.tokens, prompt_len=r.prompt, num_computed=r.computed, num_cached=r.cached) for r in rows
    ]


def drive(plan_step, numbers: list[int], budget: int, cap: int, max_num_seqs: int) -> np.ndarray:
    """The chunks, a row (id, start, stop) for each, and of each request what a planner must leave alone."""
    requests = requests_of(numbers)
    knobs = {"max_num_batched_tokens": budget, "max_chunk": cap, "max_num_seqs": max_num_seqs}
    try:
        inspect.signature(plan_step).bind(requests, **knobs)
    except TypeError:  # written without the names: the same in order
        plan = plan_step(requests, *knobs.values())
    else:
        plan = plan_step(requests, **knobs)
    if not isinstance(plan, (list, tuple)):
        what = "None" if plan is None else f"something of type {type(plan).__name__}"
        raise TypeError(f"it returned {what}, wanted a tuple of Chunks")
    if bad := [c for c in plan if not all(hasattr(c, name) for name in ("request_id", "start", "stop"))]:
        raise TypeError(f"{str(bad[0])[:60]} in what it returned is no Chunk(request_id, start, stop)")
    rows = [[c.request_id, c.start, c.stop] for c in plan] or np.zeros((0, 3), dtype=int)
    after = [[r.num_computed, r.num_tokens] for r in requests] or np.zeros((0, 2), dtype=int)
    return pack([rows, after], ["what the chunks hold", "a request's num_computed"])


def _call(rows: list[Row], budget: int, cap: int, max_num_seqs: int) -> Call:
    named = f"budget {budget}, max_chunk {cap}, max_num_seqs {max_num_seqs}"
    listed = "; ".join(map(str, rows))
    numbers = [number for row in rows for number in row]
    return Call((numbers, budget, cap, max_num_seqs), f"plan_step([{listed}], {named})", {"rows": rows})


def decode(number: int, length: int = 5) -> Row:
    """A request that has computed `length` tokens and has one new one of its answer."""
    return Row(number, length + 1, length, length)


def _random_rows(rng: np.random.Generator) -> list[Row]:
    """Requests in any state, ids and order mixed: decoding, half done, with a hit, to recompute, finished."""
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    rows = []
    for number in rng.permutation(30)[: draw(2, 10)].tolist():
        kind = rng.choice(["decode", "decode", "prompt", "half", "hit", "again", "finished", "last"])
        prompt = draw(4, 30)
        rows.append(
            {
                "decode": decode(number, prompt),
                "prompt": Row(number, prompt, prompt, 0),
                "half": Row(number, prompt, prompt, draw(1, prompt)),
                "hit": Row(number, prompt, prompt, prompt // 2, prompt // 2),
                "again": Row(number, prompt + draw(1, 9), prompt, 0),
                "finished": Row(number, prompt, prompt, prompt),
                "last": Row(number, prompt, prompt, prompt - 1),
            }[kind]
        )
    return rows


def plan_cases(seed: int) -> list[Call]:
    """No cap, and max_num_seqs above the number of requests: what the budget alone decides."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    twelve = [decode(i) for i in range(12)]
    calls = [
        _call([*twelve, Row(12, 20, 20, 0)], 8, 0, 64),  # more decodes than budget
        _call([*twelve[:8], Row(12, 20, 20, 0)], 8, 0, 64),  # the budget is used up exactly
        _call([Row(3, 9, 9, 9), Row(1, 20, 20, 4), decode(2)], 16, 0, 64),  # a finished one in front
        _call([Row(0, 14, 9, 0), decode(1)], 32, 0, 64),  # to be recomputed, answer included
        _call([Row(0, 40, 40, 0), decode(1), Row(2, 8, 8, 7), Row(3, 40, 40, 0)], 32, 0, 64),
    ]
    return calls + [_call(_random_rows(rng), draw(1, 60), 0, 64) for _ in range(STATES)]


def knob_cases(seed: int) -> list[Call]:
    """With a cap, and with max_num_seqs below the number of requests."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    prompts = [Row(i, 40, 40, 0) for i in range(1, 5)]
    calls = [
        _call([decode(0), *prompts], 41, 10, 64),  # all four, each up to the cap
        _call([decode(0), *prompts], 25, 10, 64),  # the third gets what is left
        _call([decode(0), *prompts], 64, 0, 3),  # max_num_seqs leaves room for two prompts
        _call([decode(i) for i in range(6)], 64, 1, 4),
    ]
    for _ in range(STATES):
        rows = _random_rows(rng)
        calls.append(_call(rows, draw(2, 60), draw(0, 4) * draw(1, 6), draw(1, len(rows) + 2)))
    return calls


def wanted(rows: list[Row], budget: int, cap: int, max_num_seqs: int) -> list[list[int]]:
    """The rule, written another way: sort the requests, then give each its tokens."""
    queue = sorted((r for r in rows if r.computed < r.tokens), key=lambda r: not r.decoding)[:max_num_seqs]
    chunks = []
    for r in queue:
        take = min(r.tokens - r.computed, cap or budget, budget - sum(c[2] - c[1] for c in chunks))
        chunks += [[r.id, r.computed, r.computed + take]] if take > 0 else []
    return chunks


def _trouble(call: Call, got: np.ndarray) -> str | None:
    """The first rule that the plan breaks, and the plan that was wanted if it breaks none by itself."""
    (chunks, after), (_, budget, cap, max_num_seqs) = unpack(got), call.args
    rows = {row.id: row for row in call.facts["rows"]}
    if after.tolist() != [[r.computed, r.tokens] for r in rows.values()]:
        return f"{call.label} has changed the requests. A plan only reads them."
    if chunks.ndim != 2 or chunks.dtype.kind not in "iu":
        return f"{call.label}: the chunks must hold whole numbers."
    chunks = chunks.tolist()
    for i, start, stop in chunks:
        if i not in rows:
            return f"{call.label} has a chunk of request {i}, which it was not given."
        r, chunk = rows[i], f"Chunk({i}, {start}, {stop})"
        if start != r.computed:
            done = counted(r.computed, "token")
            return f"{call.label} has {chunk}; request {i} has {done} computed, so it starts there."
        if r.computed == r.tokens:
            return f"{call.label} has {chunk}; request {i} has no token left to compute."
        if not start < stop <= r.tokens:
            return f"{call.label} has {chunk}; request {i} has {counted(r.tokens, 'token')}, and a chunk at least one."
        if cap and stop - start > cap:
            return f"{call.label} has {chunk}: more tokens than max_chunk={cap}."
    total = sum(stop - start for _, start, stop in chunks)
    if len({i for i, *_ in chunks}) < len(chunks):
        return f"{call.label} has two chunks of one request."
    if total > budget:
        return f"{call.label} plans {counted(total, 'token')}; the budget is {budget}."
    if len(chunks) > max_num_seqs:
        return f"{call.label} serves {counted(len(chunks), 'request')}; max_num_seqs is {max_num_seqs}."
    right = wanted(call.facts["rows"], budget, cap, max_num_seqs)
    if chunks != right:
        return f"{call.label} is {_shown(chunks)}, it should be {_shown(right)}."
    return None


def _shown(chunks: list[list[int]]) -> str:
    return "(" + ", ".join(f"{i}: [{start}, {stop})" for i, start, stop in chunks) + ")"


def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} states")


SOLUTION = "course_lib.schedule.plan:plan_step"

EXERCISE = Exercise(
    name="plan_step",
    groups=(Group("budget", plan_cases, judge), Group("knobs", knob_cases, judge)),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 05, section 3.",
    imports="import numpy as np\nfrom collections.abc import Sequence\n"
    "from course_lib.schedule.request import Chunk, Request",
    solution=SOLUTION,
    library=("course_lib.schedule.policies:plan_in_order",),
    driver=drive,
)
