"""States with an open step as plain numbers, for exercises 5.2 and 5.3: made, driven, packed and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from autograder.compare import error_text, printed_note, why_not_an_array
from autograder.exercise import Call, Outcome, Raised, Verdict
from autograder.packing import pack, unpack
from course_lib.lessons.nb05_budget import State
from course_lib.schedule.request import Chunk, Request

IMPORTS = "import numpy as np\nfrom collections.abc import Mapping\nfrom course_lib.lessons.nb05_budget import State"


class Row(NamedTuple):
    """A request: its place is running (0) or waiting (1); take is its chunk's length in the open step, or 0."""

    id: int
    waits: int
    prompt: int
    answer: int
    computed: int
    max_tokens: int
    take: int

    @property
    def tokens(self) -> list[int]:
        """Token ids that tell one request, and one place in it, from another."""
        return [100 * self.id + place for place in range(self.prompt + self.answer)]


def token_for(request: int) -> int:
    """What the logits of the request's chunk choose, in every step of these exercises."""
    return 90_000 + request


def state_of(numbers: Sequence[int], admitted: int) -> State:
    rows = [Row(*numbers[at : at + len(Row._fields)]) for at in range(0, len(numbers), len(Row._fields))]
    requests = [
        Request(r.id, r.tokens, max_tokens=r.max_tokens, prompt_len=r.prompt, num_computed=r.computed) for r in rows
    ]
    chunks = [Chunk(r.id, r.computed, r.computed + r.take) for r in rows if r.take]
    chunks.sort(key=lambda c: c.stop - c.start > 1)  # decodes first, so not in the order of admission
    waiting = [request for request, row in zip(requests, rows) if row.waits]
    running = [request for request, row in zip(requests, rows) if not row.waits]
    return State(waiting, running, tuple(chunks), admitted)


def requests_in(state: State, numbers: Sequence[int]) -> list[Request]:
    """The requests of a state that state_of made of these numbers, in the order of the rows."""
    ids = numbers[:: len(Row._fields)]
    return sorted([*state.running, *state.waiting], key=lambda r: ids.index(r.id))


def packed(state: State, requests: Sequence[Request], *more) -> np.ndarray:
    """All that can be seen of a state, then `more`."""
    names = ["state.waiting", "state.running", "state.chunks", "state.admitted", "num_computed", "lengths", "token_ids"]
    for name, queue in (("waiting", state.waiting), ("running", state.running)):
        if not all(isinstance(request, Request) for request in queue):
            raise TypeError(f"state.{name} holds something that is no request")
    values = [
        [r.id for r in state.waiting],
        [r.id for r in state.running],
        [[c.request_id, c.start, c.stop] for c in state.chunks],
        state.admitted,
        [r.num_computed for r in requests],
        [len(r.token_ids) for r in requests],
        [token for r in requests for token in r.token_ids],
    ]
    return pack([*values, *more], [*names, "what it returned"][: len(values) + len(more)])


def call_of(name: str, rows: Sequence[Row], admitted: int) -> Call:
    numbers = [number for row in rows for number in row]
    return Call((numbers, admitted), name, {"rows": tuple(rows), "admitted": admitted})


def random_rows(rng: np.random.Generator) -> tuple[list[Row], int]:
    """Running requests in every situation, some of them admitted by the open step, and some that still wait."""
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    old, new, waiting = draw(2, 6), draw(0, 4), draw(0, 4)
    rows = []
    for place, number in enumerate(rng.permutation(40)[: old + new + waiting].tolist()):
        prompt, answer, most = draw(5, 20), draw(1, 5), draw(6, 9)
        if place >= old + new:
            rows.append(Row(number, 1, prompt, draw(0, 2), 0, most, 0))
            continue
        kinds = ["fresh", "again"] if place >= old else ["decode", "last", "half", "ends", "idle", "again"]
        kind = str(rng.choice(kinds))
        if kind == "decode":
            rows.append(Row(number, 0, prompt, answer, prompt + answer - 1, most, 1))
        elif kind == "last":  # its next token is its last
            rows.append(Row(number, 0, prompt, answer, prompt + answer - 1, answer + 1, 1))
        elif kind == "idle":  # nothing for it in this step
            rows.append(Row(number, 0, prompt, answer, prompt + answer - 1, most, 0))
        elif kind == "again":  # prompt and answer are recomputed: past the prompt's end, or to the very end
            take = prompt + answer if draw(0, 2) else prompt + draw(0, answer)
            rows.append(Row(number, 0, prompt, answer, 0, most, take))
        else:
            start = 0 if kind == "fresh" else draw(1, prompt - 2)
            left = prompt - start
            take = left if kind == "ends" or draw(0, 2) else draw(1, left)
            rows.append(Row(number, 0, prompt, 0, start, most, take))
    if not any(row.take for row in rows):
        rows[0] = Row(rows[0].id, 0, 9, 0, 2, 6, 7)
    return rows, new


class After(NamedTuple):
    """A packed state, by name."""

    waiting: list[int]
    running: list[int]
    chunks: list
    admitted: int
    computed: dict[int, int]
    tokens: dict[int, list[int]]
    returned: list | None = None


def after_of(call: Call, got: np.ndarray) -> After:
    waiting, running, chunks, admitted, computed, lengths, tokens, *more = (x.tolist() for x in unpack(got))
    ids = [row.id for row in call.facts["rows"]]
    ends = np.cumsum([0, *lengths]).tolist()
    each = {i: tokens[a:b] for i, a, b in zip(ids, ends, ends[1:])}
    return After(waiting, running, chunks, admitted, dict(zip(ids, computed)), each, *(more[:1]))


def judge_with(trouble: Callable[[Call, After], str | None], count: str) -> Callable:
    def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
        for call, outcome in zip(calls, outcomes, strict=True):
            what = error_text(call, outcome) if isinstance(outcome, Raised) else why_not_an_array(call, outcome)
            what = what or trouble(call, after_of(call, outcome.value))
            if what:
                return Verdict(False, what=what + printed_note(outcome))
        return Verdict(True, count=count.format(len(calls)))

    return judge


def listed(ids: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, ids)) + "]"
