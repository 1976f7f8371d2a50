"""Who is answered at all: ASGI around the application, for names that it is not known by and for one client too many.

A page on the web can have its own name point at 127.0.0.1 (DNS rebinding) and then read what a server there answers, as
if it were its own. The browser sends the page's name in the Host header: so a server answers only to names of its own.
"""

import ipaddress
import json
from collections.abc import Iterable

from course_lib.serve.protocol import Refusal

JSON = [(b"content-type", b"application/json")]
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY = "*"


async def refuse(send, refusal: Refusal) -> None:
    """Answer a request with an error."""
    body = refusal.body()
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": [*JSON, length(body), *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", str(len(body)).encode()


def host_name(host: str) -> str:
    """The name or address in a Host header, in one form: without port, brackets or a last dot, in lower case."""
    name, colon, port = host.strip().rpartition(":")
    if not colon or not (port.isdigit() or not port) or (":" in name and not name.endswith("]")):
        name = host.strip()
    name = name.removeprefix("[").removesuffix("]").lower().removesuffix(".")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


class KnownHosts:
    """`app` for requests to a host of LOOPBACK, to one of `names`, or to the address that the client has connected to.

    names   as in a Host header, with or without a port; ANY among them allows all
    A request without a Host header (HTTP/1.0) does not come from a page, and is answered.
    """

    def __init__(self, app, names: Iterable[str] = ()):
        self._app = app
        self._names = {ANY if name == ANY else host_name(name) for name in (*LOOPBACK, *names)}

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            return await refuse(send, refusal)
        await self._app(scope, receive, send)

    def _refusal(self, scope) -> Refusal | None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        name = host_name(host)
        if not name or ANY in self._names or name in self._names:
            return None
        if scope.get("server") and name == host_name(scope["server"][0]):
            return None
        known = ", ".join(sorted(self._names))
        what = (
            f"The Host header is {json.dumps(host):.80}; this server answers to {known}, so that no page on the web "
            "reaches it under another name. Use one of these, or start it with --allow-host NAME."
        )
        return Refusal(403, what, code="host_not_allowed")


class OneTooMany:
    """`app` for a connection beyond the `most` that are answered: GET /health works, and all else is 503.

    Either way the connection is closed after its answer.
    """

    def __init__(self, app, most: int):
        self._app, self._most = app, most

    async def __call__(self, scope, receive, send) -> None:
        if scope["path"] == "/health":
            return await self._app(scope, receive, _closing(send))
        what = f"{self._most} connections are open, and this server takes no more. Close some, or try again later."
        await refuse(
            send,
            Refusal(503, what, code="too_many_connections", headers={"retry-after": "1", "connection": "close"}),
        )


def _closing(send):
    async def send_and_close(message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return send_and_close
