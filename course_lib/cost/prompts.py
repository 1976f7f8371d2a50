"""Prompts for the simulator: no tokens that mean something, but the same ones exactly where content is shared."""

from hashlib import sha256
from struct import pack

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex
from course_lib.cost.workload import MOST_TOKENS, Arrival
from course_lib.schedule.request import Request

TOKEN = 0  # what every request generates: no model runs


def fill_prompt(request: Request, arrival: Arrival, cache) -> None:
    """Give an empty request its prompt, as far as the cache can tell one prompt from another.

    A radix tree compares token ids, so it gets them all. A hash table compares chained hashes of full blocks: each
    gets a name, equal for equal content, instead of a SHA-256 of ids, which nothing would read again. Only the
    tokens after the last full block are hashed later, with what is generated. Without a cache, zeros will do.

    ValueError, before any token is made, for more than MOST_TOKENS.
    """
    if arrival.prompt_tokens > MOST_TOKENS:
        raise ValueError(f"a prompt of {arrival.prompt_tokens} tokens; the simulator tells {MOST_TOKENS} apart.")
    request.prompt_len = prompt = arrival.prompt_tokens
    if isinstance(cache, CacheManager):
        full = 0 if cache.prefix is None else prompt // cache.block_size
        if isinstance(cache.prefix, PrefixIndex):
            request.block_hashes = _names(request.id, arrival, full, cache.block_size)
            request.salt = "" if full else str(request.id)  # shares nothing: no full block of its prompt
            plain = full * cache.block_size
        else:
            plain = prompt if cache.prefix is None else 0
    else:
        plain = 0
    request.token_ids = [TOKEN] * plain
    request.token_ids += _token_ids(request.id, arrival, plain)


def _token_ids(id: int, arrival: Arrival, start: int) -> list[int]:
    """Token ids of the prompt from `start`: below zero where it is shared, above where only this request has it."""
    shared, prompt = arrival.prefix_tokens, arrival.prompt_tokens
    if start == prompt:
        return []
    family = -(int.from_bytes(sha256(arrival.prefix_id.encode()).digest()[:4], "big") + 1) * MOST_TOKENS
    own = (id + 1) * MOST_TOKENS
    return [*range(family + start, family + shared), *range(own + max(start, shared), own + prompt)]


def _names(id: int, arrival: Arrival, full: int, block_size: int) -> list[bytes]:
    """A name for each full block of the prompt: equal exactly when everything up to the block's end is shared."""
    shared = arrival.prefix_tokens // block_size
    family = sha256(arrival.prefix_id.encode()).digest()[:16] if shared else b""
    own = pack("<q", id)
    return [
        *(family + pack("<q", block) for block in range(shared)),
        *(own + pack("<q", block) for block in range(shared, full)),
    ]
