"""uvicorn, with what it lacks: clients that send or read too slowly are dropped, and streams end when it ends.

uvicorn 0.54.0 puts no limit on the time that a request may take to arrive (Kludex/uvicorn#157, closed). Headers of more
than 16 KiB are refused by h11 0.16.0 (DEFAULT_MAX_INCOMPLETE_EVENT_SIZE).
"""

import socket
from collections.abc import Callable

from course_lib.cli import UserError


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


def make_server(
    app, *, client_timeout: float, max_connections: int, on_ready: Callable[[], None], on_stop: Callable[[], None]
):
    """A uvicorn.Server for `app`; `run(sockets=[listening])` serves until a signal, or until should_exit is set.

    client_timeout    seconds that a client may take to send a request, and not read what is there for it
    max_connections   clients beyond that are answered 503 by uvicorn, in plain text
    on_ready, on_stop   called when it accepts connections, and before it waits for the clients that are left

    UserError when uvicorn is not installed.
    """
    try:
        import h11
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol
    except ImportError:
        raise UserError('serving needs Starlette and uvicorn: pip install -e ".[serve]"') from None

    class ImpatientProtocol(H11Protocol):
        """Ends a connection whose client has taken too long."""

        sending = reading = None  # timers

        def connection_made(self, transport):
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # what the system does not take at once is waiting to be read
            self.sending = self.loop.call_later(client_timeout, transport.abort)

        def data_received(self, data):
            super().data_received(data)
            arriving = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
            if self.sending and not arriving:
                self.sending.cancel()
                self.sending = None
            elif arriving and not self.sending:
                self.sending = self.loop.call_later(client_timeout, self.transport.abort)

        def pause_writing(self):
            super().pause_writing()
            self.reading = self.loop.call_later(client_timeout, self.transport.abort)

        def resume_writing(self):
            super().resume_writing()
            if self.reading:
                self.reading.cancel()

        def connection_lost(self, exc):
            for timer in (self.sending, self.reading):
                if timer:
                    timer.cancel()
            super().connection_lost(exc)

    class NotifyingServer(uvicorn.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets)
            if self.started:
                on_ready()

        async def shutdown(self, sockets=None):
            on_stop()
            await super().shutdown(sockets)

    return NotifyingServer(
        uvicorn.Config(
            app, http=ImpatientProtocol, ws="none", lifespan="on", log_config=None, log_level="critical",
            access_log=False, proxy_headers=False, server_header=False, limit_concurrency=max_connections,
            timeout_keep_alive=client_timeout, timeout_graceful_shutdown=5,
        )
    )  # fmt: skip
