"""Messages between a judge and a worker: plain data in frames, typed and capped. Nothing is ever unpickled.

A frame is a head (two lengths), a text in JSON, and the bytes of all arrays. In the JSON a tuple is a list, and what
JSON lacks is an object with one key: {"list": [...]}, {"bytes": base64}, {"array": [dtype, shape]},
{"other": [kind, text]}, {"function": [number, name]}.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.exercise import Callback
from autograder.plain import MAX_DEPTH, MAX_PARTS, Other

HEAD = struct.Struct(">II")
MAX_TEXT = 1 << 22  # bytes of the JSON
MAX_ARRAYS = 1 << 24  # bytes of all arrays of a frame
MAX_ALL = 1 << 25  # bytes of all that one answer says; right ones say some hundred kB
DTYPES = frozenset("|b1 |i1 <i2 <i4 <i8 |u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16".split())
MOST_MARKS = 4 * MAX_PARTS  # brackets and commas in the JSON
DEPTH = MAX_DEPTH + 4  # of a value within a message


class WireError(Exception):
    """What came is no frame, or announces more than a frame may hold."""


def encode(value: Any) -> bytes:
    """A frame that holds plain data, lists and Callbacks (whose data is one number). ValueError for anything else."""
    arrays: list[bytes] = []
    text = json.dumps(_to_json(value, arrays), separators=(",", ":")).encode()
    body = b"".join(arrays)
    if len(text) > MAX_TEXT or len(body) > MAX_ARRAYS:
        raise ValueError(
            f"a message of {len(text):,} and {len(body):,} bytes; {MAX_TEXT:,} and {MAX_ARRAYS:,} may travel"
        )
    return HEAD.pack(len(text), len(body)) + text + body


def receive(read: Callable[[int], bytes]) -> Any:
    """The value of the next frame; read(n) gives exactly n bytes, or raises. Nothing is read that is too long."""
    text_len, body_len = HEAD.unpack(read(HEAD.size))
    if text_len > MAX_TEXT or body_len > MAX_ARRAYS:
        raise WireError(f"a frame of {text_len:,} and {body_len:,} bytes is announced")
    return decode(read(text_len), read(body_len))


def decode(text: bytes, body: bytes) -> Any:
    """The value of a frame's two parts. WireError if they are not what `encode` makes."""
    if text.count(b"[") + text.count(b"{") + text.count(b",") > MOST_MARKS:
        raise WireError("too many parts")  # before they are made: each takes some 50 bytes
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {type(error).__name__}") from None
    reader = _Reader(body)
    value = reader.value(found, 0)
    if reader.at != len(body):
        raise WireError(f"{len(body) - reader.at} bytes of arrays too many")
    return value


def _to_json(value: Any, arrays: list[bytes]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (tuple, list)):
        parts = [_to_json(part, arrays) for part in value]
        return parts if isinstance(value, tuple) else {"list": parts}
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        if array.dtype.str not in DTYPES:
            raise ValueError(f"an array of {value.dtype} cannot travel")
        arrays.append(array.tobytes())
        return {"array": [array.dtype.str, list(value.shape)]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Other):
        return {"other": [value.kind, value.text]}
    if isinstance(value, Callback):
        return {"function": [value.data[0], value.name]}
    raise ValueError(f"a {type(value).__name__} cannot travel")


class _Reader:
    """Makes values of JSON, and arrays of the bytes behind it, counting both."""

    def __init__(self, body: bytes):
        self.body, self.at, self.parts = body, 0, 0

    def value(self, found: Any, depth: int) -> Any:
        self.parts += 1
        if depth > DEPTH or self.parts > 2 * MAX_PARTS:
            raise WireError("too deep, or too many parts")
        if isinstance(found, list):
            return tuple([self.value(part, depth + 1) for part in found])
        if not isinstance(found, dict):
            return found
        if len(found) != 1:
            raise WireError("an object needs one key")
        ((kind, content),) = found.items()
        made = {"list": self._list, "array": self._array, "bytes": _bytes, "other": _other, "function": _function}
        if kind not in made or not isinstance(content, str if kind == "bytes" else list):
            raise WireError(f"there is no {kind[:20]!r}")
        return made[kind](content, depth) if kind == "list" else made[kind](content)

    def _list(self, content: list, depth: int) -> list:
        return [self.value(part, depth + 1) for part in content]

    def _array(self, content: list) -> np.ndarray:
        if len(content) != 2 or not isinstance(content[1], list) or content[0] not in DTYPES:
            raise WireError("no array")
        shape = content[1]
        if len(shape) > 16 or not all(type(n) is int and 0 <= n <= MAX_ARRAYS for n in shape):
            raise WireError("no shape")
        dtype = np.dtype(content[0])
        size = math.prod(shape) * dtype.itemsize
        if size > len(self.body) - self.at:
            raise WireError("an array larger than what came")
        start, self.at = self.at, self.at + size
        return np.frombuffer(self.body[start : self.at], dtype=dtype).reshape(shape).copy()


def _bytes(content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except ValueError:
        raise WireError("no bytes") from None


def _other(content: list) -> Other:
    if len(content) != 2 or not all(isinstance(text, str) for text in content):
        raise WireError("no other")
    return Other(content[0][:80], content[1][:80])


def _function(content: list) -> Callback:
    if len(content) != 2 or type(content[0]) is not int or not isinstance(content[1], str):
        raise WireError("no function")
    return Callback(content[1], (content[0],))
