"""Requests in every situation, and states with an open step made of them, for exercises 5.1 to 5.3."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from autograder.compare import counted
from autograder.drivers.nb05 import Row, token_for
from autograder.exercise import Call
from autograder.kit import shown

IMPORTS = "import numpy as np\nfrom collections.abc import Mapping\nfrom course_lib.lessons.nb05_budget import State"
FORM = ([int], [int], [(int, int, int)], int, [(int, [int])], [(int, str)])  # of a state, as its driver returns it

RUNNING = tuple(
    "decode last stopped half half_one half_stopped ends ends_last ends_stopped one one_last again again_prompt past "
    "beyond newest again_ends again_last again_stopped from_zero".split()
)
ADMITTED = tuple("whole whole_last first single readmitted readmitted_past readmitted_last".split())


def request_in(kind: str, number: int, draw: Callable[[int, int], int]) -> tuple[Row, int]:
    """A request in a situation, and the stop of its chunk in the open step: num_computed if it has none."""
    prompt, answer, c, most = draw(7, 20), draw(3, 6), draw(1, 4), draw(2, 5)
    prompt = 1 if kind == "single" else prompt
    end = prompt + answer
    has, computed, stop, more, *stops = {  # tokens of the answer, and how many more it may have
        "decode": (answer, end - 1, end, most),
        "last": (answer, end - 1, end, 1),
        "stopped": (answer, end - 1, end, most, "at the sampled token"),
        "idle": (answer, end - 1, end - 1, 1),
        "paused": (0, c, c, 1),
        "half": (0, c, c + 2, 1),
        "half_one": (0, c, c + 1, 1),  # a chunk of one token that is no decode
        "half_stopped": (0, c, prompt - 1, most, "at the sampled token"),  # which is thrown away
        "ends": (0, c, prompt, most),
        "ends_last": (0, c, prompt, 1),
        "ends_stopped": (0, c, prompt, most, "at the sampled token"),
        "one": (0, prompt - 1, prompt, most),
        "one_last": (0, prompt - 1, prompt, 1),
        "again": (answer, c, c + 2, 1),  # these were preempted: prompt and answer are computed again
        "again_prompt": (answer, c, prompt, 1),
        "past": (answer, c, prompt + 1, 1),
        "beyond": (answer, prompt, prompt + 1, 1),
        "newest": (answer, prompt + 1, end - 1, 1, "at the sampled token"),
        "again_ends": (answer, prompt, end, most),
        "again_last": (answer, prompt + 1, end, 1),
        "again_stopped": (answer, c, end, most, "at the sampled token"),
        "from_zero": (answer, 0, c, most),
        "whole": (0, 0, prompt, most),
        "whole_last": (0, 0, prompt, 1),
        "first": (0, 0, c, 1),
        "single": (0, 0, 1, 1),
        "readmitted": (answer, 0, end, most),
        "readmitted_past": (answer, 0, prompt + 1, 1),
        "readmitted_last": (answer, 0, end, 1),
        "waiting": (0, 0, 0, most),
        "preempted": (answer, 0, 0, 1),
    }[kind]
    return Row(number, prompt, has, computed, 0, has + more, token_for(number) if stops else -1), stop


def states(seed: int) -> Iterator[tuple]:
    """(waiting, running, chunks, admitted): each situation alone; several requests that finish; then random states."""
    rng = np.random.default_rng(seed)

    def state(running: str, admitted: str = "", waiting: str = "", turned: bool = False) -> tuple:
        """Of requests in these situations, with ascending ids; their chunks stand as a plan has them, decodes first.

        turned   the ids descend, and the chunks stand in reverse
        """
        ids = sorted(rng.permutation(60).tolist()[:20], reverse=not turned)
        draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
        queues = [[request_in(k, ids.pop(), draw) for k in kinds.split()] for kinds in (waiting, running, admitted)]
        waits, runs, new = ([tuple(row) for row, _ in queue] for queue in queues)
        chunks = [(row.id, row.computed, stop) for row, stop in queues[1] + queues[2] if stop > row.computed]
        chunks.sort(key=lambda chunk: chunk[2] - chunk[1] > 1)
        return tuple(waits), tuple(runs + new), tuple(chunks[::-1] if turned else chunks), len(new)

    yield from (state(kind) for kind in RUNNING)
    yield from (state("", kind) for kind in ADMITTED)
    yield state("ends_last last", waiting="preempted")  # the decode's chunk stands first
    yield state("last stopped decode", waiting="waiting waiting")
    yield state("again_last idle ends_last paused one_last", "whole_last first", "waiting preempted")
    yield state("decode last", turned=True)
    yield state("last ends_stopped again_last", turned=True)
    yield state("idle", "first", "waiting")
    yield state("", "whole readmitted first", "preempted waiting")
    yield state("half_one decode past", "whole readmitted_last single", "waiting preempted", turned=True)
    for _ in range(20):
        runs, new, waits = rng.integers(1, 6), rng.integers(0, 4), rng.integers(0, 4)
        kinds = [*rng.choice([*RUNNING, "idle", "paused"], runs), str(rng.choice(RUNNING))]
        new, waits = rng.choice(ADMITTED, new), rng.choice(["waiting", "preempted"], waits)
        yield state(*map(" ".join, (kinds, new, waits)), turned=bool(rng.integers(2)))


def label(what: str, waiting: tuple, running: tuple, chunks: tuple, admitted: int) -> str:
    step = ", ".join(f"{i}: [{start}, {stop})" for i, start, stop in chunks)
    queues = f"running {shown([row[0] for row in running])}, waiting {shown([row[0] for row in waiting])}"
    return f"{what} of a step with the chunks {step}, {queues}, admitted {admitted}"


def trouble(call: Call, got: tuple, wanted: tuple) -> str | None:
    """The first field of a request or of the state that is wrong, in a sentence."""
    rows = [Row(*row) for row in call.args[1] + call.args[0]]  # running, then waiting
    if len(got[4]) != len(rows):
        return f"{call.label}: what came back could not be read."
    for row, (computed, tokens), right in zip(rows, got[4], wanted[4]):
        where = f"{call.label}: request {row.id} had {counted(row.tokens, 'token')}, {row.computed} of them computed"
        if len(tokens) != len(right[1]):
            return f"{where}. Afterwards it has {counted(len(tokens), 'token')}, it should have {len(right[1])}."
        if tokens != right[1]:
            behind = " and the sampled one behind them" if len(tokens) > row.tokens else ""
            return f"{where}. Wanted are the tokens that it had{behind}."
        if computed != right[0]:
            return f"{where}. Afterwards num_computed is {computed}, it should be {right[0]}."
    if got[5]:
        return f"{call.label}: {got[5][0][1]} of request {got[5][0][0]} has changed. All else of a request stays."
    for name, mine, right in zip(("waiting", "running"), got, wanted):
        if mine != right:
            done = f" Finished are {shown(wanted[6])}." if len(wanted) > 6 else ""
            for row in [row for row in rows if (row.id in mine) != (row.id in right) and done][:1]:
                stops = ", and the sampled token is its stop token" if row.stop >= 0 else ""
                done += f" Request {row.id} has max_tokens={row.max_tokens}{stops}."
            return f"{call.label}: state.{name} is {shown(mine)} afterwards, it should be {shown(right)}.{done}"
    if got[6:] != wanted[6:]:
        return f"{call.label}: it returned {shown(got[6])}, finished are {shown(wanted[6])}."
    if got[2:4] != wanted[2:4]:
        return f"{call.label}: the step is still open. Afterwards state.chunks is () and state.admitted is 0."
    return None
