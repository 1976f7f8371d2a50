"""One request to an OpenAI-compatible server, measured: when it was sent, and when each piece of the answer came."""

import asyncio
import email.utils
import json
import re
import time
from dataclasses import dataclass, field

from course_lib.cli import UserError
from course_lib.load.address import Endpoint, hidden
from course_lib.load.http import exchange
from course_lib.load.prompts import Job
from course_lib.load.sse import DONE, EventParser, RequestFailed, error_message, is_error, plain, read_piece

MOST_RETRIES = 3
MAX_ERROR = 1 << 16  # bytes kept of an answer that is no stream
# Why a whole answer ends: OpenAI's reasons, TGI's (eos_token, stop_sequence), vLLM's repetition. Others, such as abort,
# error and cancelled, say that it is not whole.
WHOLE = {
    "stop", "length", "tool_calls", "function_call", "content_filter", "eos", "eos_token", "stop_sequence", "repetition"
}  # fmt: skip
MAX_LIST = 1 << 24  # bytes of a list of models


@dataclass
class Record:
    """What happened to one job. Times are of time.perf_counter_ns.

    sent_ns       start of each try; the connection is made after it, so that setting it up is in the TTFT
    connected_ns  when each try had its connection
    event_ns      arrival of each event with a piece of the answer that is not empty
    state         "waiting", then "done", "failed" (see error), "stopped" by us when all was seen, or "interrupted"
    usage         (prompt tokens, completion tokens) as the server counted them, or None
    cached        prompt tokens that it found in its prefix cache, as far as it says so
    """

    job: Job
    sent_ns: list[int] = field(default_factory=list)
    connected_ns: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    event_ns: list[int] = field(default_factory=list)
    end_ns: int = 0
    state: str = "waiting"
    error: str = ""
    finish: str = ""
    usage: tuple[int, int] | None = None
    cached: int = 0
    note: str = ""


class StreamReceiver:
    """Receives the answer to one try and keeps the record. See http.Receiver.

    The timeout counts from the last piece of the answer; a comment that keeps the connection alive is none.
    """

    def __init__(self, record: Record, sent_ns: int, key: str = "") -> None:
        self.heard_ns = sent_ns
        self._key = key  # is taken out of all that the server says, before that is cut short
        self.status, self.headers = 0, {}
        self._record = record
        self._events = EventParser()
        self._done = self._any_event = False
        self._text = b""  # the body, as long as it is no stream
        self._most_events = 16 * record.job.max_tokens + 1_000

    def connected(self, at_ns: int) -> None:
        self._record.connected_ns.append(at_ns)

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        self._record.status.append(status)

    def body(self, data: bytes, at_ns: int) -> bool:
        record = self._record
        if not self._any_event and len(self._text) < MAX_ERROR:
            self._text += data
        if not 200 <= self.status < 300:
            return False
        if why := _compressed(self.headers):
            raise RequestFailed(why)
        for event in self._events.feed(data):
            self._any_event = True
            if self._key and self._key in event.data:
                event = event._replace(data=hidden(event.data, self._key))
            piece = read_piece(event)
            if piece.content:
                record.event_ns.append(at_ns)
                self.heard_ns = at_ns
            record.finish = piece.finish or record.finish
            record.usage = piece.usage or record.usage
            record.cached = piece.cached or record.cached
            if piece.done:
                self._done = True
                return True
        if len(record.event_ns) > self._most_events:
            raise RequestFailed(f"the server streams on after {len(record.event_ns):,} events, past max_tokens")
        return False

    def retry_after(self, tries: int) -> float | None:
        """Seconds to wait before the next try; None if there is to be none. RFC 9110: a number, or a date."""
        asked = self.headers.get("retry-after")
        if tries > MOST_RETRIES or not (self.status == 429 or (self.status == 503 and asked)):
            return None
        if asked and re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", asked):
            return float(asked)
        try:
            return max(0.0, email.utils.parsedate_to_datetime(asked).timestamp() - time.time())
        except (TypeError, ValueError, OverflowError):  # none, or no date
            return 2.0 ** (tries - 1)

    def finish(self) -> None:
        """RequestFailed unless the answer is whole and not empty."""
        compressed = _compressed(self.headers)
        text = compressed or hidden(self._text.decode("utf-8", "replace"), self._key)
        if 300 <= self.status < 400:
            to = plain(hidden(self.headers.get("location", "?"), self._key).partition("?")[0], 120)
            raise RequestFailed(f"HTTP {self.status}: redirected to {to}: give that address instead")
        if not 200 <= self.status < 300:
            raise RequestFailed(f"HTTP {self.status}: {error_message(text)}")
        if not self._done and not self._any_event and not self._events.rest().strip().endswith(DONE):
            raise RequestFailed(compressed or _no_stream(self.status, self.headers, text))
        self._expect_whole(self._record)

    def _expect_whole(self, record: Record) -> None:
        rest = self._events.rest().strip()
        done = self._done or rest.endswith(DONE)
        got = f"{len(record.event_ns):,} events of {record.job.max_tokens:,} tokens"
        if not record.finish and done:
            raise RequestFailed(f"the stream says [DONE] without a finish reason, after {got}")
        if not record.finish:
            where = "in the middle of an event" if rest else "without a finish reason or [DONE]"
            raise RequestFailed(f"the stream ended before the answer did, {where}")
        if record.finish not in WHOLE:
            raise RequestFailed(f"the answer ended with finish reason {record.finish!r}, after {got}")
        if not record.event_ns:
            raise RequestFailed(f"the answer is empty (finish reason: {record.finish})")
        record.note = "" if done else "ended without [DONE]"


def _compressed(headers: dict[str, str]) -> str:
    """What is wrong with an answer that is compressed, although none was asked for; "" if it is not."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return ""
    return (
        f"the answer is compressed ({plain(encoding, 20)}), although this client asks for none: switch that off at the "
        "server, or at the proxy before it. A compressor holds events back"
    )


def _no_stream(status: int, headers: dict[str, str], text: str) -> str:
    kind = plain(headers.get("content-type", "no content type"), 40)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if is_error(found):
        return f"HTTP {status}, but an error: {error_message(text)}"
    if isinstance(found, dict) and "choices" in found:
        return f"answered in one piece ({kind}): the server does not stream"
    return f"not a stream of events ({kind}): {plain(text, 60) or 'nothing in it'}"


async def ask(endpoint: Endpoint, record: Record, body: bytes, timeout_s: float) -> None:
    """Send one request and keep its record. Raises nothing but a cancellation.

    timeout_s   how long to wait for each piece of the answer, the first one too
    A server that is too busy (429, or 503 with Retry-After) is asked again, up to MOST_RETRIES times.
    """
    request = endpoint.request("POST", endpoint.path, body)
    answer = None
    try:
        while True:
            sent_ns = time.perf_counter_ns()
            record.sent_ns.append(sent_ns)
            answer = StreamReceiver(record, sent_ns, endpoint.api_key)
            await exchange(endpoint, request, answer, timeout_s)
            wait_s = answer.retry_after(len(record.sent_ns))
            if wait_s is None:
                break
            if wait_s > timeout_s:
                raise RequestFailed(f"HTTP {answer.status}: busy for another {wait_s:.0f} s, longer than --timeout")
            await asyncio.sleep(wait_s)
        answer.finish()
        record.state = "done"
    except RequestFailed as error:
        status = f"HTTP {answer.status}, then " if answer and answer.status >= 300 else ""
        why = str(error) if str(error).startswith("HTTP ") else f"{status}{error}"
        record.state, record.error = "failed", why
    except asyncio.CancelledError:
        record.state = "interrupted" if record.state == "waiting" else record.state
        raise
    finally:
        record.end_ns = time.perf_counter_ns()


class _WholeReceiver:
    """Receives an answer that is wanted whole."""

    def __init__(self) -> None:
        self.heard_ns = time.perf_counter_ns()
        self.status, self.headers, self.text = 0, {}, b""

    def connected(self, at_ns: int) -> None:
        self.heard_ns = at_ns

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers

    def body(self, data: bytes, at_ns: int) -> bool:
        self.heard_ns = at_ns
        self.text += data
        return len(self.text) > MAX_LIST


async def first_model(endpoint: Endpoint, timeout_s: float) -> str:
    """The id of the first model that the server lists. UserError if it lists none."""
    answer = _WholeReceiver()
    try:
        await exchange(endpoint, endpoint.request("GET", endpoint.models_path), answer, timeout_s)
        if why := _compressed(answer.headers):
            raise RequestFailed(why)
        if not 200 <= answer.status < 300:
            text = hidden(answer.text.decode("utf-8", "replace"), endpoint.api_key)
            raise RequestFailed(f"HTTP {answer.status}: {error_message(text)}")
        found = json.loads(answer.text)["data"][0]["id"]
        if isinstance(found, str) and found:
            return found
        why = "the answer lists no model"
    except RequestFailed as error:
        why = str(error)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        why = "the answer lists no model"
    where = endpoint.shown.removesuffix("/completions").removesuffix("/chat")
    raise UserError(f"{where}/models should list the server's models: {why}. Check the address, or give --model NAME.")
