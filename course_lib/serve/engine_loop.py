"""The engine in a thread: commands come in through a queue, tokens go out to an event loop once a step.

Only this thread touches the Engine. When nothing is to be done, it sleeps on its queue.

A step that raises leaves the engine as it was, so the requests in its batch are tried again, each alone. A request
whose step raises then too ends with an error; all others go on with the tokens that they have.
"""

import asyncio
import json
import logging
import queue
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple

from course_lib.engine import Engine
from course_lib.schedule.request import Request
from course_lib.schedule.step_record import StepRecord

log = logging.getLogger(__name__)
ENDING = "the server is shutting down"


class TokenEvent(NamedTuple):
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
    events    of TokenEvents: at most max_tokens + 1, which bounds what waits for a client that does not read
    leaving   its client has gone
    cached    prompt tokens found in the prefix cache when it was first admitted
    request   of the engine, while the prompt is in it
    """

    index: int
    prompt: Sequence[int]
    options: dict
    events: asyncio.Queue
    leaving: bool = False
    cached: int | None = None
    generated: list[int] = field(default_factory=list)
    request: Request | None = None
    ended: bool = False


class Status(NamedTuple):
    """After the last step: prompts that run, blocks that are free, and steps so far."""

    running: int
    free_blocks: int
    steps: int


class EngineLoop:
    """Feeds an Engine from an event loop. `start` it there; `submit` and `abort` are called there, and return at once.

    engine   nothing else may use it from now on
    trace    a text file for one JSON object a step (StepRecord.as_dict); closed at the end. Request ids count in
             order of arrival; a request that is tried again after a failed step has a new one
    """

    def __init__(self, engine: Engine, trace: IO[str] | None = None):
        self.engine = engine
        self.open: set[Ticket] = set()  # submitted, and the last event has not come; for the event loop
        self.why_dead = "the engine has not been started"  # "" while it runs
        self.crashed = False
        self._thread: threading.Thread | None = None
        self._trace = trace
        self._commands: queue.SimpleQueue = queue.SimpleQueue()
        self._closing = threading.Lock()  # so that no command is put into a queue that is read no more
        self._tickets: dict[int, Ticket] = {}  # in the engine, by request id
        self._suspects: deque[Ticket] = deque()  # after a failed step, to be tried alone
        self._alone: Ticket | None = None  # the suspect that is being tried
        self._held: list[Ticket] = []  # tickets that wait until no suspect is left
        self._out: list[tuple[Ticket, TokenEvent]] = []
        self._steps = 0
        self._look()

    # --- called on the event loop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.why_dead = ""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue prompts. RuntimeError when the engine does not run any more; nothing is queued then."""
        with self._closing:
            if self.why_dead:
                raise RuntimeError(self.why_dead)
            self.open.update(tickets)
            for ticket in tickets:
                self._commands.put(("add", ticket))

    def abort(self, ticket: Ticket) -> None:
        """Its client has gone: end it when the present step ends. A ticket that has ended stays as it is."""
        if ticket in self.open and not ticket.leaving:
            ticket.leaving = True
            self._commands.put(("abort", ticket))

    def stop(self) -> None:
        """End every ticket now, with an error, and the thread when the present step ends: see `join`."""
        with self._closing:
            if self._thread is None or self.why_dead:
                return
            self.why_dead = ENDING
        self._commands.put(("stop", None))
        self._call(self._end_open)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of the thread, at most so many seconds; False if it still computes a step then."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def _end_open(self) -> None:
        self._deliver([(ticket, TokenEvent(ticket.index, None, "unavailable", ENDING)) for ticket in self.open])

    def _deliver(self, events: list[tuple[Ticket, TokenEvent]]) -> None:
        for ticket, event in events:
            if ticket not in self.open:  # it was ended by `stop`
                continue
            if event.finish_reason:
                self.open.discard(ticket)
            ticket.events.put_nowait(event)

    # --- the engine's thread

    def _run(self) -> None:
        why = "the engine's thread has died; see the server's log"
        try:
            while self._turn():
                pass
            why = ENDING
        except BaseException:
            self.crashed = True
            log.exception("the engine's thread has died")
        finally:
            with self._closing:
                self.why_dead = why
            waiting = []
            while not self._commands.empty():
                kind, ticket = self._commands.get()
                waiting += [ticket] if kind == "add" else []
            for ticket in [*self._tickets.values(), *self._suspects, *self._held, *waiting]:
                try:
                    self._end(ticket, "unavailable", why)
                except Exception:  # an engine that has died may be unable to abort
                    self._out.append((ticket, TokenEvent(ticket.index, None, "unavailable", why)))
            self._flush()
            if self._trace is not None:
                self._trace.close()

    @property
    def _busy(self) -> bool:
        return bool(self._tickets or self._suspects or self._held)

    def _turn(self) -> bool:
        """Carry out the commands, then compute a step. False: stop."""
        go_on = self._take_commands()
        if go_on and self._busy:
            self._advance()
        self._flush()
        return go_on

    def _take_commands(self) -> bool:
        """Carry out what is in the queue; when there is nothing to compute, sleep until something is. False: stop."""
        block = not self._busy
        while True:
            try:
                kind, ticket = self._commands.get(block=block)
            except queue.Empty:
                self._look()
                return True
            block = False
            if kind == "stop":
                return False
            if kind == "abort":
                self._end(ticket, "aborted")
            elif self._suspects or self._alone:
                self._held.append(ticket)
            else:
                self._add(ticket)

    def _add(self, ticket: Ticket) -> None:
        """Into the engine, with the tokens generated so far: the next one depends on its position, not on the step."""
        left = ticket.options["max_tokens"] - len(ticket.generated)
        try:
            options = {**ticket.options, "max_tokens": left}
            ticket.request = self.engine.add_request([*ticket.prompt, *ticket.generated], **options)
        except Exception as error:
            self._fail(ticket, error)
        else:
            self._tickets[ticket.request.id] = ticket

    def _take_out(self, ticket: Ticket) -> None:
        """Out of the engine; its blocks are free."""
        if ticket.request is not None:
            self.engine.abort(ticket.request)  # does nothing to a finished one
            self._tickets.pop(ticket.request.id, None)
            ticket.request = None

    def _end(self, ticket: Ticket, reason: str, error: str = "") -> None:
        if ticket.ended:
            return
        self._take_out(ticket)
        for queued in (self._suspects, self._held):
            if ticket in queued:
                queued.remove(ticket)
        if self._alone is ticket:
            self._alone = None
        ticket.ended = True
        self._out.append((ticket, TokenEvent(ticket.index, None, reason, error)))

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}"[:300]
        log.error("a request of %d tokens failed: %s", len(ticket.prompt), what)
        self._end(ticket, "error", f"the engine failed on this request: {what}")

    def _advance(self) -> None:
        """Compute a step: of all tickets in the engine, or, after a failure, of one suspect alone."""
        if self._suspects and self._alone is None:
            self._alone = self._suspects.popleft()
            self._add(self._alone)
        if self._tickets:
            try:
                record = self.engine.step()
                if not record.chunks and not record.preempted:
                    raise RuntimeError(f"step {record.step} planned nothing, although requests are not done")
            except Exception as error:
                if self._alone is not None:
                    self._fail(self._alone, error)
                else:
                    self._suspect(error)
            else:
                self._publish(record)
        if not self._suspects and self._alone is None:
            held, self._held = self._held, []
            for ticket in held:
                self._add(ticket)
        self._look()

    def _suspect(self, error: Exception) -> None:
        """A step of several raised. Take all out of the engine; the batch of that step is tried first, one by one."""
        log.warning("a step failed and is tried again, one request at a time", exc_info=error)
        tickets = list(self._tickets.values())
        try:
            planned = self.engine.scheduler.schedule()
            batch = {self._tickets[i] for i in planned.chunks}
            self.engine.scheduler.undo(planned)
        except Exception:  # not even planning works
            self.engine.scheduler.roll_back()
            batch = set()
        for ticket in tickets:
            self._take_out(ticket)
            (self._suspects if ticket in batch or not batch else self._held).append(ticket)

    def _publish(self, record: StepRecord) -> None:
        """Give each ticket what the step brought it."""
        self._steps += 1
        for request_id, cached in record.hits:
            ticket = self._tickets[request_id]
            ticket.cached = cached if ticket.cached is None else ticket.cached
        for request_id, token in record.sampled:
            ticket = self._tickets[request_id]
            reason = ticket.request.finish_reason
            ticket.generated.append(token)
            self._out.append((ticket, TokenEvent(ticket.index, token, reason)))
            if reason:
                del self._tickets[request_id]
                ticket.ended = True
            if ticket is self._alone:  # it was not to blame
                self._alone = None
                if not reason:
                    self._take_out(ticket)
                    self._held.append(ticket)
        if self._trace is not None:
            self._write(record)

    def _write(self, record: StepRecord) -> None:
        try:
            self._trace.write(json.dumps(record.as_dict()) + "\n")
        except OSError as error:  # a full disk is no reason to stop serving
            log.error("the trace ends here: %s", error)
            self._trace = None  # closing it would only try to write again

    def _look(self) -> None:
        s = self.engine.scheduler
        self.status = Status(len(s.running), s.cache.num_free, self._steps)

    def _flush(self) -> None:
        """Hand over what there is, with one wake-up of the event loop."""
        if self._out:
            events, self._out = self._out, []
            self._call(self._deliver, events)

    def _call(self, function, *args) -> None:
        """Have the event loop call it."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop is closed, and with it every connection
            pass
