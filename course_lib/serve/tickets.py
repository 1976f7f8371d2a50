"""What travels between an event loop and the engine's thread: prompts in, tokens out."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from course_lib.schedule.request import Request


class Event(NamedTuple):
    """A token of one ticket, or its end, or both. The last event of a ticket has a `finish_reason`.

    token           None when it ends without one more: it was aborted, or failed
    finish_reason   "", or one of: length, stop, aborted, error (this request failed), unavailable (the engine ended)
    error           for people, when it is one of the last two
    """

    index: int
    token: int | None = None
    finish_reason: str = ""
    error: str = ""


@dataclass(eq=False)
class Ticket:
    """One prompt on its way through the engine.

    index     its place among the prompts of its HTTP request
    options   arguments of Engine.add_request; max_tokens is among them
    events    where its Events go: at most max_tokens + 1, which bounds what waits for a client that does not read
    cached    prompt tokens found in the prefix cache when it was first admitted
    """

    index: int
    prompt: Sequence[int]
    options: dict
    events: asyncio.Queue
    leaving: bool = False  # its client is gone
    cached: int | None = None
    generated: list[int] = field(default_factory=list)
    request: Request | None = None  # in the engine
    ended: bool = False


class Status(NamedTuple):
    """After the last step: prompts that run, blocks that are free, and steps so far."""

    running: int
    free_blocks: int
    steps: int
