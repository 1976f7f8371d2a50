"""Many decode-only steps at once, with the state that step by step would leave. For simulators: no forward runs.

Between two admissions each running request gets one token a step, and a block now and then. Only those blocks need
the cache; counting does the rest.
"""

from collections.abc import Sequence

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex
from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler


def decode_only_steps(scheduler: Scheduler) -> int:
    """How many of the next steps are certain to decode one token for each running request and do nothing else.

    Up to the first step that finishes a request, that one included. 0 when anything else may happen: a prompt is not
    done, a request may be admitted, blocks may run out, or the policy need not decode every request (Profile).
    Requests that stop at a token (stop_token_ids) are never certain.
    """
    running = scheduler.running
    may_admit = scheduler.waiting and len(running) < scheduler.max_num_seqs
    if not running or may_admit or not scheduler.profile.decodes_all:
        return 0
    left = []
    for r in running:
        if not r.decoding or r.stop_token_ids:
            return 0
        left.append(r.prompt_len + r.max_tokens - len(r.token_ids))
    steps = min(left)
    block_size, free = scheduler.cache.block_size, scheduler.cache.num_free
    while steps and len(running) * (steps // block_size + 1) > free:  # each may need that many more
        steps //= 2
    return steps


def decode_many(scheduler: Scheduler, steps: int, token: int = 0) -> list[Request]:
    """As `steps` rounds of schedule and commit, with `token` sampled each time. Returns the requests that finished.

    steps   1 .. decode_only_steps(scheduler); with more, the state is one that step by step would not reach
    """
    cache, running = scheduler.cache, scheduler.running
    # Exactly these classes: a radix tree frees and evicts as it publishes, and a class from outside may do anything.
    hashed = type(cache) is CacheManager and (cache.prefix is None or type(cache.prefix) is PrefixIndex)
    if hashed:
        _allocate_all(cache, running, steps)
    if not hashed or cache.prefix is not None:  # after _allocate_all, each allocate finds that all is there
        for _, publish, _, request, stop in _events(running, steps, cache.block_size, scheduler.publish_early):
            if publish:
                request.token_ids += [token] * (stop - request.num_tokens)  # a block is published with its tokens
                cache.publish(request, stop - 1, stop)
            elif not cache.allocate(request, stop):
                raise AssertionError(f"no block for request {request.id}, although {cache.num_free} were counted free.")
    for request in running:
        request.num_computed = computed = request.num_computed + steps
        request.token_ids += [token] * (computed + 1 - len(request.token_ids))
    done = [r for r in running if len(r.token_ids) - r.prompt_len >= r.max_tokens]
    return scheduler.record_skipped_steps(steps, done)


def _allocate_all(cache: CacheManager, running: Sequence[Request], steps: int) -> None:
    """All blocks of these steps at once, in the order in which step by step would allocate them.

    Nothing in between could change which are next: what is published meanwhile is held, not free.
    """
    needs = []  # (step, place of the request in `running`) for each new block
    for place, request in enumerate(running):
        room = len(request.block_table) * cache.block_size - request.num_computed
        for step in range(room, steps, cache.block_size):
            needs.append((step, place))
    needs.sort()
    blocks = cache.allocator.allocate(len(needs))
    if blocks is None:
        raise AssertionError(f"no {len(needs)} blocks, although {cache.num_free} were counted free.")
    for (_, place), block in zip(needs, blocks):
        running[place].block_table.append(block)


def _events(running: Sequence[Request], steps: int, block_size: int, early: bool) -> list[tuple]:
    """Calls to the cache, in the order in which step by step makes them: rows (step, publish, place, request, stop).

    Within a step every request gets its block before any full block is published. With `early` (published when
    scheduled) the first request gets its block and publishes, then the second, and so on.
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
