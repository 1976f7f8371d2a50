"""What runs beside the answers of notebook 05: requests and states are built from rows, and read again afterwards."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
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
    r = Row(*row)
    return Request(
        r.id, _token_ids(r.id, r.tokens), max_tokens=r.max_tokens, prompt_len=r.prompt, num_computed=r.computed,
        num_cached=r.cached, stop_token_ids=frozenset([r.stop] if r.stop >= 0 else []),
    )  # fmt: skip


def plan_step(answer: Callable, rows: list | tuple, budget: int, cap: int, max_num_seqs: int) -> tuple[tuple, tuple]:
    """The chunks (id, start, stop), and (id, field) of all that the planner changed. It gets the type of `rows`."""
    requests = type(rows)(map(request_of, rows))
    before, changes = list(requests), _changes(requests)
    knobs = {"max_num_batched_tokens": budget, "max_chunk": cap, "max_num_seqs": max_num_seqs}
    call = lambda requests: answer(requests, **knobs)  # noqa: E731
    try:
        inspect.signature(answer).bind(requests, **knobs)
    except TypeError:  # written without the names: the same in order
        call = lambda requests: answer(requests, *knobs.values())  # noqa: E731
    plan = call(requests)
    if not isinstance(plan, (list, tuple)):
        raise TypeError(f"it returned {_kind(plan)}, wanted a tuple of Chunks")
    if list(requests) != before:
        raise ArgumentChanged("requests")
    others = [request_of((99, 3)), request_of((98, 2, 1, 2))]
    return _lasting(lambda: tuple(map(_chunk, plan)), lambda: call(others)), changes()


def commit(answer: Callable, *rows: Any) -> tuple:
    """What can be seen of the state after the commit (_opened), then what it returned."""
    (state, seen), (other, _) = _opened(*rows), _opened(*ANOTHER)
    sampled = _sampled(rows[2])
    returned = answer(state, sampled)
    if sampled != _sampled(rows[2]):
        raise ArgumentChanged("sampled")
    return _lasting(
        lambda: (*seen("finish_reason"), _numbers(returned, "what it returned")),
        lambda: answer(other, _sampled(ANOTHER[2])),
    )


def abort(answer: Callable, *rows: Any) -> tuple:
    """What can be seen of the state after the abort (_opened)."""
    (state, seen), (other, _) = _opened(*rows), _opened(*ANOTHER)
    answer(state)
    return _lasting(seen, lambda: answer(other))


def pack_ragged(
    answer: Callable, chunks: Iterable[tuple], lengths: Iterable[tuple[int, int]], text: int
) -> tuple[tuple, ...]:
    """The four lists. `chunks` are (id, start, stop), `lengths` pairs (id, tokens) of all requests.

    text   which token ids the requests have, so that the same chunks can be of other tokens
    """
    tokens, before = ({i: [text + token for token in _token_ids(i, n)] for i, n in lengths} for _ in range(2))
    result = answer(tuple(Chunk(*chunk) for chunk in chunks), tokens)
    if tokens != before:
        raise ArgumentChanged("tokens")
    if not isinstance(result, (tuple, list)) or len(result) != 4:
        what = f"{len(result)} parts" if isinstance(result, (tuple, list)) else _kind(result)
        raise TypeError(f"it returned {what}, wanted four lists: ids, positions, cu_q, cu_k")

    def again():
        for ids in tokens.values():  # the requests go on
            ids.append(0)
        answer((Chunk(3, 1, 3),), {3: [1, 2, 3]})

    return _lasting(lambda: tuple(map(_numbers, result, ("ids", "positions", "cu_q", "cu_k"))), again)


# --- building and reading

ANOTHER = ((77, 3),), ((66, 4, 2, 5, 0, 3), (67, 3)), ((67, 0, 3), (66, 5, 6)), 1  # a state for a later call


def _token_ids(request: int, length: int) -> list[int]:
    """Token ids that tell one request from another, and one position from another."""
    return [1_000 * (request + 1) + 7 * place % 997 for place in range(length)]


def _sampled(chunks: Iterable[tuple]) -> dict[int, int]:
    return {i: token_for(i) for i, *_ in chunks}


def _opened(waiting: Iterable, running: Iterable, chunks: Iterable, admitted: int) -> tuple[State, Callable]:
    """A state with an open step, and a function that reads what can be seen of it.

    It gives the ids in waiting and running, the chunks, admitted, num_computed and token ids of each request (those
    that were running, then those that waited), and (id, field) of what else has changed and is not `free`.
    """
    state = State([*map(request_of, waiting)], [*map(request_of, running)], tuple(Chunk(*c) for c in chunks), admitted)
    requests = [*state.running, *state.waiting]
    ids, changes = {id(r): r.id for r in requests}, _changes(requests)

    def seen(*free: str) -> tuple:
        for name in ("waiting", "running"):
            queue = getattr(state, name)
            if not isinstance(queue, list):
                raise TypeError(f"state.{name} is {_kind(queue)} afterwards, wanted a list of requests")
            if not all(id(request) in ids for request in queue):
                raise TypeError(f"state.{name} holds something that is none of the requests it had (a copy?)")
        if state.waiting is state.running:
            raise TypeError("state.waiting and state.running are one and the same list afterwards")
        if not isinstance(state.chunks, (tuple, list)):
            raise TypeError(f"state.chunks is {_kind(state.chunks)} afterwards, wanted ()")
        after = []
        for i, request in zip(ids.values(), requests):
            if not isinstance(request.token_ids, list):
                raise TypeError(f"token_ids of request {i} is {_kind(request.token_ids)} afterwards, wanted a list")
            computed = _whole(request.num_computed, f"num_computed of request {i}")
            after.append((computed, _numbers(request.token_ids, f"token_ids of request {i}")))
        queues = (tuple(ids[id(request)] for request in queue) for queue in (state.waiting, state.running))
        others = tuple(one for one in changes() if one[1] not in {"num_computed", "token_ids", *free})
        return *queues, tuple(map(_chunk, state.chunks)), _whole(state.admitted, "state.admitted"), tuple(after), others

    return state, seen


def _changes(requests: Iterable[Request]) -> Callable[[], tuple[tuple[int, str], ...]]:
    """A function that gives (id, field) of all that is different in these requests since now."""

    def fields():
        return [{k: list(v) if isinstance(v, list) else v for k, v in vars(r).items()} for r in requests]

    before = fields()

    def changed(now: dict, then: dict) -> list[str]:
        return sorted(k for k in {**now, **then} if k not in then or now.get(k) != then[k])

    return lambda: tuple((then["id"], k) for now, then in zip(fields(), before) for k in changed(now, then))


def _lasting(read: Callable[[], Any], again: Callable[[], Any]) -> Any:
    """What read() gives. ResultChanged if it is another after again(), a later call of the answer that may fail."""
    first, then = read(), None
    with contextlib.suppress(Exception):
        again()
    with contextlib.suppress(Exception):
        then = read()
    if then != first:
        raise ResultChanged("what came of it changes with a later call")
    return first


def _chunk(chunk: Any) -> tuple[int, int, int]:
    if not all(hasattr(chunk, name) for name in ("request_id", "start", "stop")):
        raise TypeError(f"{chunk!r:.60} is no Chunk(request_id, start, stop)")
    return tuple(_whole(getattr(chunk, name), f"a chunk's {name}") for name in ("request_id", "start", "stop"))


def _numbers(values: Any, what: str) -> tuple[int, ...]:
    """A list, tuple or array of whole numbers as ints."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, (list, tuple, range, deque)):
        raise TypeError(f"{what} is {_kind(values)}, wanted a list of whole numbers")
    return tuple(_whole(value, f"a number in {what}") for value in values)


def _whole(value: Any, what: str) -> int:
    with contextlib.suppress(TypeError):
        if not isinstance(value, bool):
            return operator.index(value)
    raise TypeError(f"{what} is {value!r:.40}, wanted a whole number")


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"
