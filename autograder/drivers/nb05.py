"""What runs beside the answers of notebook 05: requests and states are built from rows, and read again afterwards."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from autograder.drivers import ArgumentChanged, ResultChanged
from course_lib.lessons.nb05_budget import State
from course_lib.schedule.request import Chunk, Request


class Row(NamedTuple):
    """A request in plain numbers: `prompt` and `answer` count tokens; the others are as in Request."""

    id: int
    prompt: int
    answer: int = 0
    computed: int = 0
    cached: int = 0
    max_tokens: int = 16
    stop: int = -1  # the token at which it stops

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer


def token_for(request: int) -> int:
    """What the logits of the request's chunk choose in a step."""
    return 90_000 + request


def request_of(row: Sequence[int]) -> Request:
    """The request, with token ids that tell it from others, and its positions from each other."""
    r = Row(*row)
    return Request(
        r.id, [100 * r.id + place for place in range(r.tokens)], max_tokens=r.max_tokens, prompt_len=r.prompt,
        stop_token_ids=frozenset([r.stop] if r.stop >= 0 else []), num_computed=r.computed, num_cached=r.cached,
    )  # fmt: skip


def plan_step(
    answer: Callable, rows: Sequence[Sequence[int]], budget: int, cap: int, max_num_seqs: int
) -> tuple[tuple, tuple]:
    """The chunks (id, start, stop), and (id, field) of all that the planner changed. It gets the type of `rows`."""
    requests = type(rows)(map(request_of, rows))
    before, fields = list(requests), _fields(requests)
    knobs = {"max_num_batched_tokens": budget, "max_chunk": cap, "max_num_seqs": max_num_seqs}
    try:
        inspect.signature(answer).bind(requests, **knobs)
        call = functools.partial(answer, **knobs)
    except TypeError:  # written without the names: the same in order
        call = lambda requests: answer(requests, *knobs.values())  # noqa: E731
    plan = call(requests)
    if not isinstance(plan, (list, tuple)):
        raise TypeError(f"it returned {_kind(plan)}, wanted a tuple of Chunks")
    if list(requests) != before:
        raise ArgumentChanged("requests")
    others = [request_of((99, 3)), request_of((98, 2, 1, 2))]
    chunks = _lasting(lambda: tuple(map(_chunk, plan)), lambda: call(others))
    return chunks, tuple((r.id, name) for r, names in zip(before, _changed(before, fields)) for name in names)


def commit(answer: Callable, *rows: Any) -> tuple:
    """The state after the commit as _seen has it, then what it returned."""
    state, requests = _state(*rows)
    fields, sampled = _fields(requests), _sampled(state)
    returned = answer(state, sampled)
    if sampled != _sampled(_state(*rows)[0]):
        raise ArgumentChanged("sampled")

    def read():
        return *_seen(state, requests, fields, {"finish_reason"}), _numbers(returned, "what it returned")

    other, _ = _state(*ANOTHER)
    return _lasting(read, lambda: answer(other, _sampled(other)))


def abort(answer: Callable, *rows: Any) -> tuple:
    """The state after the abort as _seen has it."""
    state, requests = _state(*rows)
    fields = _fields(requests)
    answer(state)
    return _lasting(lambda: _seen(state, requests, fields), lambda: answer(_state(*ANOTHER)[0]))


def pack_ragged(answer: Callable, chunks: Iterable[tuple], lengths: Iterable[tuple[int, int]]) -> tuple[tuple, ...]:
    """The four lists. `chunks` are (id, start, stop), `lengths` pairs (id, tokens) of all requests."""
    tokens = {i: tokens_of(i, n) for i, n in lengths}
    result = answer(tuple(Chunk(*chunk) for chunk in chunks), tokens)
    if tokens != {i: tokens_of(i, n) for i, n in lengths}:
        raise ArgumentChanged("tokens")
    if not isinstance(result, (tuple, list)) or len(result) != 4:
        what = f"{len(result)} parts" if isinstance(result, (tuple, list)) else _kind(result)
        raise TypeError(f"it returned {what}, wanted four lists: ids, positions, cu_q, cu_k")

    def again():
        for ids in tokens.values():  # the requests go on
            ids.append(0)
        answer((Chunk(3, 1, 3),), {3: [1, 2, 3]})

    names = ("ids", "positions", "cu_q", "cu_k")
    return _lasting(lambda: tuple(map(_numbers, result, names)), again)


def tokens_of(request: int, length: int) -> list[int]:
    """Tokens that tell one request from another, and one position from another."""
    return [1_000 * (request + 1) + 7 * place % 997 for place in range(length)]


# --- building and reading

ANOTHER = ((77, 3),), ((66, 4, 2, 5, 0, 3), (67, 3)), ((67, 0, 3), (66, 5, 6)), 1  # a state for a later call


def _state(waiting: Iterable, running: Iterable, chunks: Iterable, admitted: int) -> tuple[State, list[Request]]:
    """A state with an open step, and its requests: the running ones, then those that wait."""
    state = State([*map(request_of, waiting)], [*map(request_of, running)], tuple(Chunk(*c) for c in chunks), admitted)
    return state, [*state.running, *state.waiting]


def _sampled(state: State) -> dict[int, int]:
    return {chunk.request_id: token_for(chunk.request_id) for chunk in state.chunks}


def _seen(
    state: State, requests: list[Request], fields: list[dict], free: Iterable[str] = ()
) -> tuple[tuple, tuple, tuple, int, tuple]:
    """(waiting, running, chunks, admitted, requests): ids, ids, (id, start, stop) each, a count, and of each request
    (num_computed, its tokens, names of the other fields that have changed and are not `free`)."""
    ids = {id(request): then["id"] for request, then in zip(requests, fields)}
    queues = []
    for name in ("waiting", "running"):
        queue = getattr(state, name)
        if not isinstance(queue, list):
            raise TypeError(f"state.{name} is {_kind(queue)} afterwards, wanted a list of requests")
        if not all(id(request) in ids for request in queue):
            raise TypeError(f"state.{name} holds something that is none of the requests it had (a copy?)")
        queues.append(tuple(ids[id(request)] for request in queue))
    if state.waiting is state.running:
        raise TypeError("state.waiting and state.running are one and the same list afterwards")
    if not isinstance(state.chunks, (tuple, list)):
        raise TypeError(f"state.chunks is {_kind(state.chunks)} afterwards, wanted ()")
    after = []
    for request, names in zip(requests, _changed(requests, fields)):
        what = f"of request {ids[id(request)]}"
        if not isinstance(request.token_ids, list):
            raise TypeError(f"token_ids {what} is {_kind(request.token_ids)} afterwards, wanted a list")
        tokens = _numbers(request.token_ids, f"token_ids {what}")
        others = tuple(name for name in names if name not in {"num_computed", "token_ids", *free})
        after.append((_whole(request.num_computed, f"num_computed {what}"), tokens, others))
    return *queues, tuple(map(_chunk, state.chunks)), _whole(state.admitted, "state.admitted"), tuple(after)


def _fields(requests: Iterable[Request]) -> list[dict[str, Any]]:
    return [{k: list(v) if isinstance(v, list) else v for k, v in vars(r).items()} for r in requests]


def _changed(requests: Iterable[Request], before: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """For each request the names of the fields that are not as they were."""

    def same(a, b):
        return type(a) is type(b) and a == b

    return [
        sorted(name for name in {**now, **then} if name not in now or not same(now[name], then.get(name)))
        for now, then in zip(_fields(requests), before)
    ]


def _lasting(read: Callable[[], Any], again: Callable[[], Any]) -> Any:
    """What read() gives. ResultChanged if it is another after again(), a later call of the answer that may fail."""
    first = read()
    with contextlib.suppress(Exception):
        again()
    try:
        then = read()
    except Exception:  # it can no longer be read
        then = None
    if then != first:
        raise ResultChanged("what came of it changes with a later call")
    return first


def _chunk(chunk: Any) -> tuple[int, int, int]:
    if not all(hasattr(chunk, name) for name in ("request_id", "start", "stop")):
        raise TypeError(f"{chunk!r:.60} is no Chunk(request_id, start, stop)")
    return tuple(_whole(getattr(chunk, name), f"a chunk's {name}") for name in ("request_id", "start", "stop"))


def _numbers(values: Any, what: str) -> tuple[int, ...]:
    """A list, tuple or array of whole numbers as ints; TypeError with what it is instead."""
    if not isinstance(values, (list, tuple, range, deque)) and not hasattr(values, "tolist"):
        raise TypeError(f"{what} is {_kind(values)}, wanted a list of whole numbers")
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, Iterable):  # an array without an axis
        raise TypeError(f"{what} is the number {values!r:.40}, wanted a list of whole numbers")
    return tuple(_whole(value, f"a number in {what}") for value in values)


def _whole(value: Any, what: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r:.40}, wanted a whole number") from None


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"
