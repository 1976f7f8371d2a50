"""Where an OpenAI-compatible server is asked, from whatever form of its address a person has at hand."""

import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from course_lib.cli import UserError
from course_lib.load.sse import plain

NO_BLANKS = re.compile(r"[\x21-\x7e]*")
EXAMPLE = "wanted an address such as http://127.0.0.1:8000"


@dataclass(frozen=True)
class Endpoint:
    """Where completions are asked for, directly: no proxy of the environment is used.

    shown     the address without its query, which may hold a key
    api_key   sent with each request; "" for none. Nothing shows or saves it.
    """

    shown: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    path: str
    models_path: str
    api_key: str = field(default="", repr=False)

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of an HTTP/1.1 request, over a connection that serves only this one."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.tls else 80
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {name}" + ("" if self.port == default else f":{self.port}"),
            "User-Agent: course_lib-load",
            "Accept: text/event-stream, application/json",
            "Accept-Encoding: identity",  # a compressor holds events back until it has enough of them
            "Connection: close",
        ]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def hidden(text: str, key: str) -> str:
    """`text` without the key, should a server repeat it."""
    return text.replace(key, "[key]") if key else text


def endpoint_at(url: str, *, chat: bool, api_key: str = "") -> Endpoint:
    """The endpoint that `url` names: with or without /v1, or the whole path of the completions. UserError if none."""
    if not url or not NO_BLANKS.fullmatch(url):
        raise UserError(f"URL {plain(url, 80)!r} is empty or has a character that no URL has; {EXAMPLE}.")
    try:
        parts = urlsplit(url)
        port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise UserError(f"URL {plain(url, 80)!r}: {error}; {EXAMPLE}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"URL {plain(url, 80)!r} does not begin with http:// or https:// and a host; {EXAMPLE}.")
    if "@" in parts.netloc:
        raise UserError("the URL holds a user name or a password; leave it out and set OPENAI_API_KEY instead.")
    if not NO_BLANKS.fullmatch(api_key):
        raise UserError("the API key has a blank or a character outside ASCII; check OPENAI_API_KEY or --api-key.")
    root = _root(parts.path.rstrip("/"), chat)
    query = f"?{parts.query}" if parts.query else ""
    path = f"{root}{'/chat' if chat else ''}/completions"
    shown = f"{parts.scheme}://{parts.netloc}{path}"
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Endpoint(shown, parts.hostname, port, tls, path + query, f"{root}/models{query}", api_key)


def _root(path: str, chat: bool) -> str:
    found = re.fullmatch(r"(.*?)(/chat)?/completions", path)
    if not found:
        return path if path.endswith("/v1") else f"{path}/v1"
    if bool(found[2]) != chat:
        fix = "leave --chat out" if chat else "add --chat"
        raise UserError(f"{path} is for {'chat' if found[2] else 'plain'} completions: {fix}, or shorten the address.")
    return found[1]
