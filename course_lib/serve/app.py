"""HTTP, in ASGI: POST /v1/completions, GET /v1/models, GET /health.

A request that has been accepted is answered to its end, or aborted when its client goes. Once a stream has begun, the
status is out, so an error is told in an event.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from course_lib.cli import UserError
from course_lib.serve.engine_loop import EngineLoop, Ticket, TokenEvent
from course_lib.serve.guard import JSON, KnownHosts, length, refuse
from course_lib.serve.protocol import DONE, CompletionWriter, Limits, Refusal, Usage, Wanted, models, parse
from course_lib.serve.texts import Texts

LAST_STEP = 2  # seconds that an ending server waits for the step that is being computed

log = logging.getLogger(__name__)
STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


@dataclass
class Service:
    """What the endpoints share.

    model     the name that clients ask for
    root      where the model, and so its tokenizer, is found; "" where that is its name only
    hosts     names beside localhost by which clients may ask for this server: see guard.KnownHosts
    started   when, in seconds since 1970
    """

    engine_loop: EngineLoop
    texts: Texts
    limits: Limits
    model: str
    root: str = ""
    hosts: Sequence[str] = ()
    started: float = field(default_factory=time.time)

    def writer(self, wanted: Wanted) -> CompletionWriter:
        name = f"cmpl-{secrets.token_hex(12)}"
        return CompletionWriter(wanted, self.texts, id=name, created=int(time.time()), model=self.model)

    def expect_room(self, prompts: int = 1) -> None:
        """Refusal when the engine is gone, or has no room for that many prompts more."""
        if why := self.engine_loop.why_dead:
            raise Refusal(503, f"No answer: {why}.", code="engine_unavailable")
        there = len(self.engine_loop.open)
        if there + prompts > self.limits.max_requests:
            raise Refusal(
                429,
                f"{there} prompts run or wait, and this server takes {self.limits.max_requests}. Try again later.",
                code="rate_limit_exceeded",
                headers={"retry-after": "1"},
            )

    def submit(self, tickets: list[Ticket]) -> None:
        """Refusal when the engine has gone since."""
        try:
            self.engine_loop.submit(tickets)
        except RuntimeError as error:
            raise Refusal(503, f"No answer: {error}.", code="engine_unavailable") from None

    def health(self) -> dict:
        """For GET /health; "waiting" counts all that were accepted and do not run."""
        loop, now = self.engine_loop, self.engine_loop.status
        return {
            "status": loop.why_dead or "ok",
            "running": now.running,
            "waiting": max(len(loop.open) - now.running, 0),
            "free_blocks": now.free_blocks,
            "num_blocks": loop.engine.scheduler.cache.num_blocks,
            "steps": now.steps,
            "uptime": round(time.time() - self.started, 3),
        }


class Completions:
    """POST /v1/completions, in plain ASGI because every token passes here."""

    def __init__(self, service: Service):
        self._service = service

    async def __call__(self, scope, receive, send) -> None:
        service = self._service
        try:
            service.expect_room()  # before a body is read for nothing
            body = await _body(scope, receive, service.limits.max_body)
            if body is None:
                return  # the client went
            parsed = partial(parse, body, model=service.model, texts=service.texts, limits=service.limits)
            # a tokenizer may take a second for a megabyte, which no stream shall wait for
            wanted = await asyncio.to_thread(parsed) if len(body) > 2**16 else parsed()
            service.expect_room(len(wanted.prompts))
            events: asyncio.Queue = asyncio.Queue()
            tickets = [
                Ticket(i, ids, wanted.options(i, secrets.randbits(63)), events) for i, ids in enumerate(wanted.prompts)
            ]
            service.submit(tickets)
        except Refusal as refusal:
            return await refuse(send, refusal)
        watch = asyncio.create_task(_watch(receive, events))
        scope.setdefault("state", {})["comments"] = wanted.stream  # a comment may be put between the events
        try:
            answer = _stream if wanted.stream else _whole
            await answer(send, events, tickets, service.writer(wanted), wanted.n)
        finally:
            watch.cancel()
            for ticket in tickets:
                service.engine_loop.abort(ticket)


async def _watch(receive, events: asyncio.Queue) -> None:
    """Put None among the events when the client goes."""
    while (await receive())["type"] != "http.disconnect":
        pass
    events.put_nowait(None)


async def _body(scope, receive, most: int) -> bytes | None:
    """The whole body; None when the client went. Refusal (413) of a longer one, as soon as that is known."""
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json":  # a page in a browser can send other kinds anywhere, without being asked
        raise Refusal(415, "Send the body as content-type: application/json.")
    too_long = Refusal(413, f"The body is longer than {most} bytes.", code="request_too_large")
    if int(headers.get(b"content-length", 0)) > most:  # h11 has checked that these are digits
        raise too_long
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            raise too_long
    return bytes(body)


async def _events(events: asyncio.Queue, tickets: list[Ticket]):
    """Lists of TokenEvents as they come, until all tickets have ended; None when the client went."""
    left = len(tickets)
    while left:
        batch: list[TokenEvent | None] = [await events.get()]
        while not events.empty():
            batch.append(events.get_nowait())
        if None in batch:
            yield None
            return
        left -= sum(bool(event.finish_reason) for event in batch)
        yield batch


def _usage(tickets: list[Ticket], n: int) -> Usage:
    """A prompt counts once, however many answers it gets."""
    once = tickets[::n]
    return Usage(
        sum(len(t.prompt) for t in once), sum(len(t.generated) for t in tickets), sum(t.cached or 0 for t in once)
    )


def _failure(event: TokenEvent) -> Refusal | None:
    """What is wrong with a ticket that ended without all its tokens."""
    status = {"error": 500, "unavailable": 503}.get(event.finish_reason)
    return Refusal(status, f"No answer: {event.error}.", code=f"engine_{event.finish_reason}") if status else None


async def _stream(send, events: asyncio.Queue, tickets: list[Ticket], writer: CompletionWriter, n: int) -> None:
    """An event for each token. After the failure of one prompt, those of the others still come."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM})
    failed = False
    async for batch in _events(events, tickets):
        if batch is None:
            return
        out = []
        for event in batch:
            if event.token is not None:
                out.append(writer.event(event.index, event.token, event.finish_reason))
            elif failure := _failure(event):
                out.append(failure.event())
                failed = True
        await send({"type": "http.response.body", "body": b"".join(out), "more_body": True})
    last = DONE if failed else writer.last_events(_usage(tickets, n))
    await send({"type": "http.response.body", "body": last, "more_body": False})


async def _whole(send, events: asyncio.Queue, tickets: list[Ticket], writer: CompletionWriter, n: int) -> None:
    reasons = [""] * len(tickets)
    async for batch in _events(events, tickets):
        if batch is None:
            return
        for event in batch:
            if failure := _failure(event):
                return await refuse(send, failure)
            reasons[event.index] = event.finish_reason
    body = writer.whole([t.generated for t in tickets], reasons, _usage(tickets, n))
    await send({"type": "http.response.start", "status": 200, "headers": [*JSON, length(body)]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def make_app(service: Service):
    """The ASGI application, which starts the engine's thread and ends it. UserError if Starlette is not installed."""
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise UserError('serving needs Starlette and uvicorn: pip install -e ".[serve]"') from None

    async def health(request):
        return JSONResponse(service.health(), 503 if service.engine_loop.why_dead else 200)

    async def list_models(request):
        body = models(service.model, service.root or service.model, int(service.started), service.limits.max_model_len)
        return Response(body, media_type="application/json")

    async def http_error(request, error):
        what = f"{error.detail}: {request.method} {request.url.path}"[:300]
        refusal = Refusal(error.status_code, what, headers=dict(error.headers or {}))
        return Response(refusal.body(), refusal.status, refusal.headers, "application/json")

    async def bug(request, error):
        log.error("a request ended in an error that is ours", exc_info=error)
        return Response(Refusal(500, "Internal error; see the server's log.").body(), 500, None, "application/json")

    @asynccontextmanager
    async def lifespan(app):
        service.engine_loop.start(asyncio.get_running_loop())
        yield
        service.engine_loop.stop()
        await asyncio.to_thread(service.engine_loop.join, LAST_STEP)

    routes = [
        Route("/v1/completions", Completions(service), methods=["POST"]),
        Route("/v1/models", list_models),
        Route("/health", health),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: http_error, Exception: bug}, lifespan=lifespan)
    app.router.redirect_slashes = False
    return KnownHosts(app, service.hosts)
