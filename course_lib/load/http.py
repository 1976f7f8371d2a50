"""One HTTP/1.1 request (RFC 9112), and the moment when each piece of its answer arrives. Standard library alone.

The answer is parsed in the callback of asyncio's protocol, with no task switch in between, so that a piece's time is
taken as soon as the event loop has it. With httpx 0.28.1 a read took 175 to 290 us here (64 streams of 100 events/s
on two shared cores: more than one core can do, and the client's own lag looked like stalls of 80 ms); this takes
about 65 us, most of it the system's.
"""

import asyncio
import re
import socket
import ssl
import time
from typing import Protocol

from course_lib.load.sse import RequestFailed, plain

MAX_HEAD = 1 << 16
HEAD_END = re.compile(rb"\r?\n\r?\n")


class Receiver(Protocol):
    """Who is told what comes."""

    heard_ns: int  # when something last came that counts against the timeout

    def connected(self, at_ns: int) -> None: ...

    def head(self, status: int, headers: dict[str, str]) -> None: ...

    def body(self, data: bytes, at_ns: int) -> bool:
        """Take the next bytes. True: that is enough, nothing after them is wanted. May raise RequestFailed."""


class ResponseParser:
    """Feed it the bytes of an answer as they come; it gives back those of the body.

    status    0 until the head is complete
    headers   names in lower case; of a repeated one the last
    done      the body is complete
    """

    def __init__(self) -> None:
        self.status, self.headers, self.done = 0, {}, False
        self._rest = b""
        self._left = 0  # bytes that are still to come, of the body or of a chunk
        self._state = self._read_head

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body in `data`. RequestFailed if this is not HTTP."""
        self._rest += data
        body: list[bytes] = []
        while self._rest and not self.done and self._state(body):
            pass
        return b"".join(body)

    def end(self, lost: Exception | None = None) -> None:
        """The connection is closed (`lost`: not properly). RequestFailed unless the answer was complete."""
        if self.done or (self._state == self._read_to_the_end and lost is None):
            self.done = True
        elif self._state == self._read_head:
            seen = f" after {plain(self._rest.decode('latin-1'), 40)!r}" if self._rest else ""
            raise RequestFailed(f"the server closed the connection without an answer{seen}")
        else:
            raise RequestFailed("the stream was cut: the connection closed in the middle of the answer")

    def _read_head(self, body: list[bytes]) -> bool:
        if not self._rest.startswith(b"HTTP/1."[: len(self._rest)]):
            raise RequestFailed(f"not an HTTP answer: {plain(self._rest[:40].decode('latin-1'), 40)!r}")
        end = HEAD_END.search(self._rest)
        if end is None:
            if len(self._rest) > MAX_HEAD:
                raise RequestFailed(f"the answer's head is longer than {MAX_HEAD:,} bytes")
            return False
        first, *lines = self._rest[: end.start()].decode("latin-1").split("\n")
        self._rest = self._rest[end.end() :]
        words = first.split(None, 2)
        if len(words) < 2 or not re.fullmatch(r"[1-5][0-9][0-9]", words[1]):
            raise RequestFailed(f"not an HTTP answer: {plain(first, 40)!r}")
        if words[1].startswith("1"):  # 100 Continue and the like: the answer's own head is still to come
            return True
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        self.status = int(words[1])
        self._begin_body()
        return True

    def _begin_body(self) -> None:
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self.done = True
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state = self._read_chunk_size
        elif length is None:
            self._state = self._read_to_the_end
        elif not re.fullmatch(r"[0-9]{1,15}", length):
            raise RequestFailed(f"not an HTTP answer: Content-Length is {plain(length, 20)!r}")
        else:
            self._left, self._state = int(length), self._read_length
            self.done = self._left == 0

    def _read_to_the_end(self, body: list[bytes]) -> bool:
        body.append(self._rest)
        self._rest = b""
        return False

    def _read_length(self, body: list[bytes]) -> bool:
        self._take(body)
        self.done = self._left == 0
        return False

    def _read_chunk_size(self, body: list[bytes]) -> bool:
        line, found, rest = self._rest.partition(b"\n")
        if not found and len(line) <= MAX_HEAD:
            return False
        size = re.fullmatch(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;.*)?\r?", line)
        if not size:
            raise RequestFailed(f"not an HTTP answer: a chunk begins {plain(line[:20].decode('latin-1'), 20)!r}")
        self._rest, self._left = rest, int(size[1], 16)
        self._state = self._read_chunk if self._left else self._read_trailers
        return True

    def _read_chunk(self, body: list[bytes]) -> bool:
        self._take(body)
        if self._left:
            return False
        self._state = self._read_chunk_end
        return True

    def _read_chunk_end(self, body: list[bytes]) -> bool:
        end = self._rest[:2]
        if end == b"\r":
            return False
        if not end.startswith((b"\r\n", b"\n")):
            raise RequestFailed("not an HTTP answer: a chunk is longer than it says")
        self._rest = self._rest[2 if end == b"\r\n" else 1 :]
        self._state = self._read_chunk_size
        return True

    def _read_trailers(self, body: list[bytes]) -> bool:
        line, found, rest = self._rest.partition(b"\n")
        if not found:
            if len(line) > MAX_HEAD:
                raise RequestFailed("not an HTTP answer: what follows the last chunk does not end")
            return False
        self._rest = rest
        self.done = line in (b"", b"\r")
        return True

    def _take(self, body: list[bytes]) -> None:
        body.append(self._rest[: self._left])
        self._rest = self._rest[self._left :]
        self._left -= len(body[-1])


class _Connection(asyncio.Protocol):
    """Hands what comes to the receiver; `over` becomes None, or the RequestFailed that ended it."""

    def __init__(self, receiver: Receiver) -> None:
        self.over: asyncio.Future = asyncio.get_running_loop().create_future()
        self._receiver = receiver
        self._parser = ResponseParser()
        self._told = False

    def data_received(self, data: bytes) -> None:
        at_ns = time.perf_counter_ns()
        if self.over.done():
            return
        parser = self._parser
        try:
            body = parser.feed(data)
            if parser.status and not self._told:
                self._told = True
                self._receiver.head(parser.status, parser.headers)
            enough = self._receiver.body(body, at_ns) if body else False
            if enough or parser.done:
                self.over.set_result(None)
        except RequestFailed as error:
            self.over.set_result(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.over.done():
            return
        try:
            self._parser.end(exc)
            self.over.set_result(None)
        except RequestFailed as error:
            self.over.set_result(error)


async def exchange(
    host: str, port: int, tls: ssl.SSLContext | None, request: bytes, receiver: Receiver, timeout_s: float
) -> None:
    """Send `request` over a connection of its own and hand the answer to `receiver`, until it is complete or enough.

    RequestFailed if there is no connection, no (whole) answer, or nothing that counts for timeout_s seconds.
    """
    loop = asyncio.get_running_loop()
    connecting = loop.create_connection(lambda: _Connection(receiver), host, port, ssl=tls)
    try:
        transport, connection = await asyncio.wait_for(connecting, timeout_s)
    except asyncio.TimeoutError:
        raise RequestFailed(f"no connection within {timeout_s:g} s") from None
    except (OSError, UnicodeError) as error:
        raise RequestFailed(_no_connection(error, host, port)) from None
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
