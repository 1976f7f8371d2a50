"""uvicorn, with what it lacks: connections are capped, slow clients are dropped, and one that half-closes is answered.

uvicorn 0.54.0 puts no limit on the time that a request may take to arrive (Kludex/uvicorn#157, closed); its own cap
(limit_concurrency) counts connections that ask for nothing, and then answers nobody. Headers of more than 16 KiB are
refused by h11 0.16.0 (DEFAULT_MAX_INCOMPLETE_EVENT_SIZE).
"""

import errno
import logging
import math
import socket
import time
from collections.abc import Callable

from course_lib.cli import UserError
from course_lib.serve.guard import OneTooMany

log = logging.getLogger(__name__)
SPARE = 32  # connections beyond the cap that are kept, to be told so
AT_ONCE = 8  # connections that asyncio accepts in one go
OTHER_FILES = SPARE + 8 * AT_ONCE  # for those, for what is accepted and not yet counted, and for the process itself
QUEUE = 2048  # connections that the system keeps until they are accepted
LOST = 0.1  # seconds between two looks whether a client that half-closed has gone altogether


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. UserError, in one line, when there is none to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"cannot listen on {host} port {port}: {error.strerror or error}.") from None


def url(listening: socket.socket) -> str:
    """Where clients find it, for instance http://127.0.0.1:8000"""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def connections_that_fit(wanted: int) -> int:
    """`wanted` connections, or as many as this process may have open; its own limit is raised first where it may be."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    needed = wanted + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    try:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    except (ValueError, OSError):
        pass
    return max(min(wanted, soft - OTHER_FILES), 1)


def say_once_a_minute():
    """An exception handler for an event loop: that no connection can be accepted is one line a minute.

    asyncio's own tells it with a traceback, for every connection that waits, each second.
    """
    said = -math.inf

    def handle(loop, context) -> None:
        nonlocal said
        number = getattr(context.get("exception"), "errno", None)
        if number not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            loop.default_exception_handler(context)
        elif time.monotonic() - said > 60:
            said = time.monotonic()
            log.error("no more connections can be accepted: %s. Lower --max-connections.", context["exception"])

    return handle


def make_server(
    app, *, client_timeout: float, max_connections: int, on_ready: Callable[[], None], on_stop: Callable[[], None]
):
    """A uvicorn.Server for `app`; `run(sockets=[listening])` serves until a signal, or until should_exit is set.

    client_timeout    seconds that a client may take to send a request, and not read what is there for it
    max_connections   beyond that only GET /health is answered, and all else refused: see guard.OneTooMany. Of these
                      clients the last SPARE are kept
    on_ready, on_stop   called when it accepts connections, and before it waits for the clients that are left

    UserError when uvicorn is not installed.
    """
    try:
        import h11
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol
    except ImportError:
        raise UserError('serving needs Starlette and uvicorn: pip install -e ".[serve]"') from None
    spare: dict[H11Protocol, None] = {}  # connections beyond the cap, the oldest first

    class CourseProtocol(H11Protocol):
        """Ends a connection whose client has taken too long, and not one that has only sent all it has to send."""

        sending = reading = losing = None  # timers
        half_closed = False

        def connection_made(self, transport):
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # what the system does not take at once is waiting to be read
            self.sending = self.loop.call_later(client_timeout, transport.abort)
            if len(self.connections) - len(spare) > max_connections:
                self.app = OneTooMany(self.app, max_connections)
                spare[self] = None
                if len(spare) > SPARE:
                    oldest = next(iter(spare))
                    del spare[oldest]
                    oldest.transport.abort()

        def data_received(self, data):
            super().data_received(data)
            arriving = self._arriving()
            if self.sending and not arriving:
                self.sending.cancel()
                self.sending = None
            elif arriving and not self.sending:
                self.sending = self.loop.call_later(client_timeout, self.transport.abort)

        def _arriving(self) -> bool:
            """Whether a request has still to come, or the rest of one."""
            return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

        def eof_received(self):
            """The client sends nothing more. True keeps the connection open, until what it has asked is answered.

            A client that has hung up looks the same, but its system answers whatever we send with a reset. So we send
            what changes no answer: a comment between events, or 100 Continue before a head (RFC 9110, 15.2).
            """
            self.half_closed = True
            if self._arriving() or self.cycle is None or self.cycle.response_complete:
                return None
            if self.cycle.response_started and self.scope["state"].get("comments"):
                self.transport.write(self.conn.send(h11.Data(data=b": no more is read\n\n")))
            elif not self.cycle.response_started and self.scope["http_version"] == "1.1":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._look_whether_lost()
            return True

        def _look_whether_lost(self) -> None:
            if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.transport.abort()
            elif not self.transport.is_closing():
                self.losing = self.loop.call_later(LOST, self._look_whether_lost)

        def on_response_complete(self):
            super().on_response_complete()
            if self.half_closed and self.cycle.response_complete:  # and no request was behind this one
                self.transport.close()

        def pause_writing(self):
            super().pause_writing()
            self.reading = self.loop.call_later(client_timeout, self.transport.abort)

        def resume_writing(self):
            super().resume_writing()
            if self.reading:
                self.reading.cancel()

        def connection_lost(self, exc):
            spare.pop(self, None)
            for timer in (self.sending, self.reading, self.losing):
                if timer:
                    timer.cancel()
            super().connection_lost(exc)

    class NotifyingServer(uvicorn.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets)
            if self.started:
                self.servers[0].get_loop().set_exception_handler(say_once_a_minute())
                for listening in sockets:
                    listening.listen(QUEUE)
                on_ready()

        async def shutdown(self, sockets=None):
            on_stop()
            await super().shutdown(sockets)

    return NotifyingServer(
        uvicorn.Config(
            app, http=CourseProtocol, ws="none", lifespan="on", log_config=None, log_level="critical",
            access_log=False, proxy_headers=False, server_header=False, backlog=AT_ONCE,
            timeout_keep_alive=client_timeout, timeout_graceful_shutdown=3,
        )
    )  # fmt: skip
