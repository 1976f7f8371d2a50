"""A server of OpenAI's protocol that is as odd as a test wants: plain sockets, in a thread, on loopback.

A test gives `answer(request, peer)`, a coroutine that writes what it likes, or `says(...)` for fixed pieces.
"""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

DONE = b"data: [DONE]\n\n"


@dataclass
class ReceivedRequest:
    """What a client sent; `number` counts the requests that are not for /v1/models, from 0."""

    number: int
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict:
        return json.loads(self.raw)

    @property
    def is_long(self) -> bool:
        return len(self.raw) > 2_000


class Peer:
    """The connection's other end."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, data: bytes, wait_s: float = 0.0) -> None:
        """Send `data` at once, then wait."""
        self._writer.write(data)
        await self._writer.drain()
        await asyncio.sleep(wait_s)

    async def head(self, status: int = 200, *lines: str, kind: str = "text/event-stream") -> None:
        head = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {kind}", "Connection: close", *lines, "", ""]
        await self.send("\r\n".join(head).encode())

    async def reset(self) -> None:
        """Close the connection as a crash does: what the client has not read yet may be lost with it."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()


Answering = Callable[[ReceivedRequest, Peer], Awaitable[None]]


def event(chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def text_event(text: str, finish: str | None = None) -> bytes:
    """An event of /v1/completions."""
    return event({"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]})


def chat_event(finish: str | None = None, **delta) -> bytes:
    """An event of /v1/chat/completions."""
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage_event(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def says(*pieces: bytes, status: int = 200, head: Sequence[str] = (), kind: str = "text/event-stream") -> Answering:
    """An answer of these pieces, a millisecond apart, whatever is asked."""

    async def answer(request: ReceivedRequest, peer: Peer) -> None:
        await peer.head(status, *head, kind=kind)
        for piece in pieces:
            await peer.send(piece, 0.001)

    return answer


def says_json(value: object, status: int = 200, head: Sequence[str] = ()) -> Answering:
    return says(json.dumps(value).encode(), status=status, head=head, kind="application/json")


async def proper(request: ReceivedRequest, peer: Peer) -> None:
    """A token in each event, then usage and [DONE]."""
    body, chat = request.body, "messages" in request.body
    await peer.head()
    for i in range(body["max_tokens"]):
        finish = "length" if i == body["max_tokens"] - 1 else None
        await peer.send(chat_event(finish, content=f" w{i}") if chat else text_event(f" w{i}", finish), 0.002)
    await peer.send(usage_event(len(body.get("prompt", "")), body["max_tokens"]) + DONE)


class OddServer:
    """with OddServer(answer) as server: server.url, server.requests, server.paths.

    models     ids that GET /v1/models lists, or its whole body
    greeting   sent to each client in place of any answer
    models_answer   the answer to GET /v1/models, in place of `models`
    """

    def __init__(
        self, answer: Answering = proper, models: Sequence[str] | bytes = ("odd",), greeting: bytes = b"",
        models_answer: Answering | None = None,
    ):  # fmt: skip
        self.requests: list[ReceivedRequest] = []
        self.paths: list[str] = []
        if not isinstance(models, bytes):
            models = json.dumps({"data": [{"id": name} for name in models]}).encode()
        self._answer, self._models, self._greeting = answer, models, greeting
        self._models_answer = models_answer
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "OddServer":
        self._thread.start()
        assert self._ready.wait(20), "the odd server does not start"
        return self

    def __exit__(self, *_) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        tasks = set()

        async def on_connection(reader, writer):
            tasks.add(asyncio.current_task())
            try:
                await self._one(reader, Peer(writer))
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass  # the client has gone, or the test is over
            finally:
                writer.close()

        server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, reader: asyncio.StreamReader, peer: Peer) -> None:
        if self._greeting:
            await peer.send(self._greeting)
            return
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        self.paths.append(path)
        if method == "GET" and path.partition("?")[0] == "/v1/models":
            if self._models_answer:
                return await self._models_answer(ReceivedRequest(0, path, headers, raw), peer)
            await peer.head(kind="application/json")
            await peer.send(self._models)
            return
        self.requests.append(ReceivedRequest(len(self.requests), path, headers, raw))
        await self._answer(self.requests[-1], peer)
