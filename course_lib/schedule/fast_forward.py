"""Many decode-only steps at once, with the state that step by step would leave. For simulators: no forward runs.

Between two admissions nothing happens but one token for everybody, and a block now and then. Only those blocks
need the cache; counting does the rest.
"""

from collections.abc import Sequence

from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler


def decode_only_steps(scheduler: Scheduler) -> int:
    """How many of the next steps are certain to decode one token for each running request and do nothing else.

    Up to the step that finishes somebody, that one included. 0 when anything else may happen: a prompt is not
    done, somebody may be admitted, blocks may run out, or a policy from outside decides. Requests that stop at a
    token (stop_token_ids) are never certain.
    """
    running = scheduler.running
    if not running or scheduler.own_policy or (scheduler.waiting and len(running) < scheduler.max_num_seqs):
        return 0
    if not all(r.decoding and not r.stop_token_ids for r in running):
        return 0
    steps = min(r.prompt_len + r.max_tokens - r.num_tokens for r in running)
    block_size, free = scheduler.cache.block_size, scheduler.cache.num_free
    while steps and len(running) * (steps // block_size + 1) > free:  # each may need that many more
        steps //= 2
    return steps


def decode_many(scheduler: Scheduler, steps: int, token: int = 0) -> list[Request]:
    """As `steps` rounds of schedule and commit, with `token` sampled each time. Returns the requests that finished.

    steps   1 .. decode_only_steps(scheduler): whoever asks for more gets a state that step by step would not reach
    """
    cache, early = scheduler.cache, scheduler.publish_early
    for _, publish, _, request, stop in _events(scheduler.running, steps, cache.block_size, early):
        if publish:
            request.token_ids += [token] * (stop - request.num_tokens)  # a block is published with its tokens
            cache.publish(request, stop - 1, stop)
        elif not cache.allocate(request, stop):
            raise AssertionError(f"no block for request {request.id}, although {cache.num_free} were counted free.")
    running = list(scheduler.running)
    for request in running:
        computed = request.num_computed + steps
        request.token_ids += [token] * (computed + 1 - request.num_tokens)
        request.num_computed = computed
    return scheduler.count_steps(steps, running)


def _events(running: Sequence[Request], steps: int, block_size: int, early: bool) -> list[tuple]:
    """What the cache is asked for, in the order in which step by step asks: rows (step, publish, place, request, stop).

    Within a step all that decode get their blocks before any full block is published; `early` (published when
    scheduled): one request after the other.
    """
    events = []
    for place, request in enumerate(running):
        first = request.num_computed
        for position in range(first + -first % block_size, first + steps, block_size):
            events.append((position - first, False, place, request, position + 1))
        for stop in range(first + block_size - first % block_size, first + steps + 1, block_size):
            events.append((stop - 1 - first, True, place, request, stop))
    if early:
        events.sort(key=lambda e: (e[0], e[2], e[1]))
    else:
        events.sort(key=lambda e: (e[0], e[1], e[2]))
    return events
