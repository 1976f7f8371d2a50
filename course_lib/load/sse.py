"""Server-sent events from any cut of the bytes, and what an OpenAI-compatible server says in one.

The format is the HTML standard's (html.spec.whatwg.org, "Server-sent events"): lines end with CR LF, LF or CR; a
blank line ends an event; a line that starts with a colon is a comment; several `data` lines of one event are joined
by LF; an event that no blank line has ended is dropped. One thing is read that the standard does not have: llama.cpp
wrote an error as a line `error: {...}` (tools/server, up to 2025), which counts here as data of an event "error".
"""

import json
import re
from typing import NamedTuple

LINE_END = re.compile(rb"\r\n|\r|\n")
MAX_EVENT = 1 << 20  # bytes: a token is a few hundred; a server that sends more than this does not send events
MAX_COUNT = 10**9  # tokens of one request: a server that says more has not counted
DONE = "[DONE]"


class RequestFailed(Exception):
    """Why one request gave no (whole) answer, in one line."""


class SseEvent(NamedTuple):
    name: str
    data: str


class EventParser:
    """Feed it the bytes of a stream as they come; it gives back the events that they complete."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0  # bytes held of the event that has not ended yet
        self._after_cr = False  # the last line ended with CR: an LF that follows belongs to it
        self._first = True

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that `data` completes, in order. RequestFailed if one is longer than MAX_EVENT bytes."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        events: list[SseEvent] = []
        *lines, rest = LINE_END.split(data)
        for line in lines:
            if self._line:
                line = b"".join(self._line) + line
                self._line = []
            self._read(line, events)
        if rest:
            self._line.append(rest)
        elif data.endswith(b"\r"):
            self._after_cr = True
        self._size = sum(map(len, self._data)) + len(rest) if lines else self._size + len(rest)
        if self._size > MAX_EVENT:
            raise RequestFailed(f"one event is longer than {MAX_EVENT:,} bytes")
        return events

    def rest(self) -> str:
        """What has come of an event that no blank line has ended; "" if nothing has."""
        return (b"\n".join(self._data) + b"".join(self._line)).decode("utf-8", "replace")

    def _read(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                data = b"\n".join(self._data).decode("utf-8", "replace")
                events.append(SseEvent(self._name.decode("utf-8", "replace"), data))
            self._data, self._name = [], b""
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"error":
            self._data.append(value.removeprefix(b" "))
            self._name = field
        elif field == b"event":
            self._name = value.removeprefix(b" ")


class Piece(NamedTuple):
    """What one event says.

    content   it carries a piece of the answer that is not empty: text, delta.content, or reasoning
    finish    the finish reason, "" if it has none
    usage     (prompt tokens, completion tokens) as the server counts them; None if it does not, or says what cannot be
    done      it is the end of the stream, [DONE]
    cached    prompt tokens that the server found in its prefix cache, as far as it says so
    """

    content: bool = False
    finish: str = ""
    usage: tuple[int, int] | None = None
    done: bool = False
    cached: int = 0


def read_piece(event: SseEvent) -> Piece:
    """What an event of /v1/completions or /v1/chat/completions says. RequestFailed: an error, or no such event.

    Reasoning comes as delta.reasoning_content (vLLM up to 0.9, DeepSeek) or delta.reasoning (newer vLLM).
    """
    if event.data.strip() == DONE:
        return Piece(done=True)
    try:
        chunk = json.loads(event.data)
    except (ValueError, RecursionError):
        chunk = None
    if event.name == "error" or is_error(chunk):
        raise RequestFailed(f"the server says in the stream: {error_message(event.data)}")
    if not isinstance(chunk, dict):
        raise RequestFailed(f"an event is not a JSON object: {plain(event.data, 60)}")
    content, finish = False, ""
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            content = content or any(
                (choice.get("text"), delta.get("content"), delta.get("reasoning_content"), delta.get("reasoning"))
            )
            finish = finish or plain(str(choice.get("finish_reason") or ""), 40)
    return Piece(content, finish, _usage(chunk.get("usage")), cached=_cached(chunk.get("usage")))


def is_error(said: object) -> bool:
    """Whether a JSON value is one of the ways in which servers tell an error.

    {"error": ...} (OpenAI, vLLM), {"object": "error", "message": ...} (older vLLM, SGLang), {"code": 500, "message":
    ...} and {"detail": ...} (gateways, FastAPI): the last two only if it has neither choices nor usage.
    """
    if not isinstance(said, dict):
        return False
    if said.get("error") or "error" in (said.get("object"), said.get("type")):
        return True
    answers = "choices" in said or "usage" in said
    return not answers and bool(said.get("message") or said.get("detail") or said.get("code"))


def error_message(body: str) -> str:
    """What an error's body says, short enough for one line: the usual JSON members, or else the text itself."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = body
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return plain(found if isinstance(found, str) else json.dumps(found), 200) or "(no message)"


def plain(text: str, most: int) -> str:
    """At most `most` characters in one line, and none that would move a terminal's cursor."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _usage(usage: object) -> tuple[int, int] | None:
    if not isinstance(usage, dict):
        return None
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens") or 0)
    return counts if all(type(n) is int and 0 <= n <= MAX_COUNT for n in counts) else None


def _cached(usage: object) -> int:
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return count if type(count) is int and 0 <= count <= MAX_COUNT else 0
