"""One HTTP/1.1 request, and the moment when each piece of its answer arrives.

A piece's time is taken in the callback of asyncio's protocol, with no task switch in between, as soon as the event
loop has it. httptools (the parser of Node.js, in C; uvicorn uses it too) reads HTTP. Measured in 2026-12 on two shared
cores, CPU time of an event in all: httptools 48-57 us, a parser of ours in Python 52-59, aiohttp 56-60, h11 73, httpx
138 (then 64 streams of 100 events/s need most of a core). Of these httptools leaves the least code, and brings no other
package; aiohttp 3.14 brings nine, and takes an answer that was reset for one that ended, if it gave no length.
"""

import asyncio
import socket
import ssl
import time
from types import ModuleType
from typing import Protocol

from course_lib.cli import UserError
from course_lib.load.address import Endpoint
from course_lib.load.sse import RequestFailed, plain

MAX_BESIDE = 1 << 16  # bytes that may come without one of the body among them


def httptools_module() -> ModuleType:
    """httptools. UserError if it is not installed: call this before anything is sent."""
    try:
        import httptools
    except ImportError:
        raise UserError('measuring needs httptools: pip install -e ".[serve]"') from None
    return httptools


class Receiver(Protocol):
    """What is told of an answer as it arrives."""

    heard_ns: int  # when something last came that counts against the timeout

    def connected(self, at_ns: int) -> None: ...

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Names of headers are in lower case; of a repeated one the last."""

    def body(self, data: bytes, at_ns: int) -> bool:
        """Take the next bytes. True: that is enough, nothing after them is wanted. May raise RequestFailed."""


class Connection(asyncio.Protocol):
    """Reads one answer and hands it to the receiver.

    over   a future that has no result yet. It gets None once the answer is complete or enough, or the RequestFailed
           that says why there is no more of it.
    """

    def __init__(self, receiver: Receiver, over: asyncio.Future) -> None:
        self.over = over
        self._receiver = receiver
        self._httptools = httptools_module()
        self._parser = self._httptools.HttpResponseParser(self)  # calls the on_... methods below
        self._parser.set_dangerous_leniencies(  # some servers need them; on this connection nothing follows
            lenient_optional_cr_before_lf=True, lenient_chunked_length=True, lenient_spaces_after_chunk_size=True
        )
        self._status, self._headers, self._complete = 0, {}, False
        self._start = b""  # what came first, for messages
        self._beside = 0  # bytes since the last one of the body: of the head, a chunk's size or the trailers
        self._body: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        at_ns = time.perf_counter_ns()
        if self.over.done():
            return
        try:
            body = self._parse(data)
            enough = self._receiver.body(body, at_ns) if body else False
            if enough or self._complete:
                self.over.set_result(None)
        except RequestFailed as error:
            self.over.set_result(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.over.done():
            return
        chunked = "chunked" in self._headers.get("transfer-encoding", "").lower()
        if not self._status:
            seen = f" after {self._seen()}" if self._start else ""
            self.over.set_result(RequestFailed(f"the server closed the connection without an answer{seen}"))
        elif chunked or "content-length" in self._headers or exc:
            self.over.set_result(RequestFailed("the stream was cut: the connection closed in the middle of the answer"))
        else:  # such an answer ends with its connection
            self.over.set_result(None)

    def _parse(self, data: bytes) -> bytes:
        """The bytes of the body in `data`. RequestFailed if this is not HTTP, or too much of it is not the body."""
        self._start += data[: 40 - len(self._start)]
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
        except (self._httptools.HttpParserError, self._httptools.HttpParserUpgrade) as error:
            if not self._complete:  # what follows a complete answer is not looked at
                raise RequestFailed(f"not an HTTP answer: {error if self._status else self._seen()}") from None
        if self._beside > MAX_BESIDE and not self._complete:
            raise RequestFailed(f"not an HTTP answer: {MAX_BESIDE:,} bytes without one of the body")
        body, self._body = self._body, []
        return b"".join(body)

    def _seen(self) -> str:
        return repr(plain(self._start.decode("latin-1"), 40))

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("nothing may follow the answer")  # makes httptools stop

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # else it is a trailer
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue and the like: the answer's own head is still to come
            self._headers = {}
        else:
            self._status = status
            self._receiver.head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        self._beside = 0
        self._body.append(data)

    def on_message_complete(self) -> None:
        self._complete = bool(self._status)


async def exchange(endpoint: Endpoint, request: bytes, receiver: Receiver, timeout_s: float) -> None:
    """Send `request` over a new connection and hand the answer to `receiver`, until it is complete or enough.

    RequestFailed if there is no connection, no (whole) answer, or nothing that counts for timeout_s seconds.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(receiver, loop.create_future())
    connecting = loop.create_connection(lambda: connection, endpoint.host, endpoint.port, ssl=endpoint.tls)
    try:
        transport, _ = await asyncio.wait_for(connecting, timeout_s)
    except asyncio.TimeoutError:
        raise RequestFailed(f"no connection within {timeout_s:g} s") from None
    except (OSError, UnicodeError) as error:
        raise RequestFailed(_no_connection(error, endpoint.host, endpoint.port)) from None
    try:
        receiver.connected(time.perf_counter_ns())
        transport.write(request)
        while True:
            left = timeout_s - (time.perf_counter_ns() - receiver.heard_ns) / 1e9
            if left <= 0:
                raise RequestFailed(f"no answer: nothing came for {timeout_s:g} s (--timeout)")
            await asyncio.wait([connection.over], timeout=left)
            if connection.over.done():
                if connection.over.result():
                    raise connection.over.result()
                return
    finally:
        transport.abort()


def _no_connection(error: Exception, host: str, port: int) -> str:
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return f"no host {plain(host, 80)!r} is known ({plain(str(error), 80)})"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the certificate of {host} does not hold: {plain(error.verify_message, 80)} (see SSL_CERT_FILE)"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {plain(error.reason or str(error), 80)} (does {host}:{port} speak plain http?)"
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return f"connection refused: no server listens at {host}:{port}"
    return f"no connection to {host}:{port}: {plain(error.strerror or str(error), 80)}"
