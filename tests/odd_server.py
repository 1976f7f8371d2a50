"""A server of OpenAI's protocol that is as odd as a test wants: plain sockets, in a thread, on loopback.

A test gives `answer(request, peer)`, a coroutine that writes whatever it likes; GET /v1/models is answered here.
"""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass
class Request:
    number: int  # counts the requests that are not for /v1/models, from 0
    method: str
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


def text_event(text: str, finish: str | None = None, **more) -> bytes:
    """An event of /v1/completions."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return event({"object": "text_completion", "choices": [choice], **more})


def chat_event(finish: str | None = None, **delta) -> bytes:
    """An event of /v1/chat/completions."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice]})


def event(chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def usage_event(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


DONE = b"data: [DONE]\n\n"
Answering = Callable[[Request, Peer], Awaitable[None]]


async def well(request: Request, peer: Peer, *, wait_s: float = 0.002) -> None:
    """As a proper server: a token in each event, then usage and [DONE]."""
    body = request.body
    await peer.head()
    for i in range(body["max_tokens"]):
        last = i == body["max_tokens"] - 1
        make = chat_event(content=f" w{i}", finish="length" if last else None) if "messages" in body else None
        await peer.send(make or text_event(f" w{i}", "length" if last else None), wait_s)
    await peer.send(usage_event(len(body.get("prompt", "")), body["max_tokens"]) + DONE)


class OddServer:
    """with OddServer(answer) as server: server.url, server.requests."""

    def __init__(self, answer: Answering, models: Sequence[str] = ("odd",)) -> None:
        self.requests: list[Request] = []
        self.paths: list[str] = []
        self._answer, self._models = answer, models
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
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, reader: asyncio.StreamReader, peer: Peer) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        self.paths.append(path)
        if method == "GET" and path.partition("?")[0] == "/v1/models":
            await peer.head(kind="application/json")
            await peer.send(json.dumps({"data": [{"id": name} for name in self._models]}).encode())
            return
        self.requests.append(Request(len(self.requests), method, path, headers, raw))
        await self._answer(self.requests[-1], peer)
