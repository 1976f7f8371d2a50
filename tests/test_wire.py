"""Whatever bytes come over the wire: plain data, or a WireError; and what goes in comes out."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.exercise import Callback
from autograder.grading.wire import DTYPES, HEAD, MAX_ARRAYS, MAX_TEXT, WireError, decode, encode, receive
from autograder.plain import Other, equal

NUMBERS = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats() | st.text() | st.binary()
SHAPES = st.lists(st.integers(0, 4), max_size=4)
ARRAYS = st.builds(
    lambda dtype, shape, byte: np.full(shape, byte, np.uint8).astype(dtype),
    st.sampled_from(sorted(DTYPES)), SHAPES, st.integers(0, 255),
)  # fmt: skip
VALUES = st.recursive(NUMBERS | ARRAYS, lambda inner: st.lists(inner, max_size=5).map(tuple), max_leaves=20)


def reader(frame):
    """read(n) on these bytes; EOFError behind their end, as of a pipe."""
    left = memoryview(frame)

    def read(count):
        nonlocal left
        if count > len(left):
            raise EOFError
        part, left = bytes(left[:count]), left[count:]
        return part

    return read


@given(VALUES)
def test_what_goes_in_comes_out(value):
    assert equal(receive(reader(encode(value))), value)


def test_lists_others_and_functions_come_out_as_they_went_in():
    value = ([1, [2.5]], Other("set", "{1}"), Callback("prefill_fn", (3,)), float("inf"))
    assert receive(reader(encode(value))) == value


@given(st.binary(max_size=300), st.binary(max_size=100))
def test_any_two_parts_are_a_value_or_a_wire_error(text, body):
    try:
        decode(text, body)
    except WireError:
        pass


KINDS = st.sampled_from(["list", "array", "bytes", "other", "function", "x", ""])
LEAVES = NUMBERS.filter(lambda x: not isinstance(x, bytes)) | st.sampled_from(
    ["<i8", "|O", "|b1", "<M8[s]", 10**30, -1, 2**40, 10**400]
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KINDS, inner, max_size=2), max_leaves=30
)


@given(TREES, st.binary(max_size=100))
def test_any_json_is_a_value_or_a_wire_error(tree, body):
    try:
        decode(json.dumps(tree).encode(), body)
    except WireError:
        pass


@given(VALUES, st.data())
def test_a_damaged_frame_is_a_value_or_a_wire_error_or_too_short(value, data):
    frame = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(frame) - 1))
        change = data.draw(st.sampled_from(["set", "delete", "insert"]))
        byte = data.draw(st.integers(0, 255))
        frame[at : at + (change != "insert")] = b"" if change == "delete" and len(frame) > 1 else bytes([byte])
    try:
        receive(reader(bytes(frame)))
    except (WireError, EOFError):
        pass


@pytest.mark.parametrize("sizes", [(MAX_TEXT + 1, 0), (0, MAX_ARRAYS + 1), (2**32 - 1, 2**32 - 1)])
def test_of_a_frame_that_is_too_large_nothing_is_read_but_its_head(sizes):
    with pytest.raises(WireError, match="is announced"):
        receive(reader(HEAD.pack(*sizes)))


@pytest.mark.parametrize(
    "text",
    [
        b'{"array":["<i8",[1048576,1048576]]}', b'{"array":["<i8",[0,1048576,1048576]]}', b"[" * 100_000,
        b'{"array":["|b1",' + b"[" * 50_000, b'{"list":' * 50_000, b"9" * 100_000, b"[" + b"0," * 1_000_000 + b"0]",
        b'{"array":["<c16",[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]]}', b'"' + b"\\ud800" * 1000, b'"\xff"',
        b"\xef\xbb\xbf0 0",
    ],
    ids=lambda text: f"{len(text)} bytes {text[:12]!r}",
)  # fmt: skip
def test_what_announces_much_takes_no_memory(text):
    tracemalloc.start()
    try:
        value = decode(text, b"")
        assert isinstance(value, np.ndarray) and value.size == 0
    except WireError:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 64 << 20
