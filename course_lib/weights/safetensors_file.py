"""Reading and writing .safetensors files with NumPy alone, so that neither torch nor the package is needed.

Format (github.com/huggingface/safetensors, README, read 2026): 8 bytes little-endian header length, a JSON
header {name: {dtype, shape, data_offsets}, "__metadata__": {str: str}}, then the tensors' bytes.
bfloat16, which NumPy lacks, is carried as its bits in uint16; `arrays.bfloat16_to_float32` widens them.
"""

import json
import math
import os
import stat
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from course_lib.cli import UserError, write_whole

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
MAX_HEADER = 100_000_000  # bytes; the format's own limit


class Tensor(NamedTuple):
    """A tensor as it lies in a file: `array` has the bits (BF16 as uint16), `dtype` is the file's name for them."""

    array: np.ndarray
    dtype: str


def read_header(path: Path) -> dict:
    """The JSON header of a file. Raises UserError, in one line, for anything that is no whole safetensors file.

    A device, a pipe or a socket is refused before it is opened: reading a pipe could wait for ever.
    """
    try:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # what a folder is, the system's own error says
            raise UserError(f"cannot read {path}: it is a device, a pipe or a socket. Name a regular file.")
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER, os.path.getsize(path) - 8):
                raise ValueError("header length out of range")
            header = json.loads(file.read(length).decode("utf-8"))
        _check_header(header, os.path.getsize(path) - 8 - length)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a safetensors file ({error}). Was the download complete?") from None
    return header


def _check_header(header, data_bytes: int) -> None:
    """ValueError unless the tensors fill the data from its first byte to its last, as the format asks."""
    if not isinstance(header, dict):
        raise ValueError(f"the header is a {type(header).__name__}, wanted an object")
    metadata = {} if header.get("__metadata__") is None else header["__metadata__"]
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("__metadata__ is not an object of strings")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    filled = 0
    for begin, end, name in sorted((*_offsets(name, entry), name) for name, entry in entries.items()):
        if begin != filled:
            raise ValueError(f"tensor {name} begins at byte {begin} of the data, wanted {filled}: no gap, no overlap")
        filled = end
    if filled != data_bytes:
        raise ValueError(f"the tensors end at byte {filled} of {data_bytes} bytes of data")


def _offsets(name: str, entry) -> tuple[int, int]:
    """First byte of a tensor and the byte behind its last, once its entry is known to be sound."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(field) for field in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _whole_numbers(shape) and _whole_numbers(offsets) and len(offsets) == 2):
        raise ValueError(f"tensor {name} lacks a dtype, a shape or two data_offsets")
    begin, end = offsets
    size = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize if dtype in DTYPES else end - begin
    if begin > end or size != end - begin:
        raise ValueError(f"the offsets of tensor {name} do not match its shape")
    return begin, end


def _whole_numbers(x) -> bool:
    return isinstance(x, list) and all(type(n) is int and n >= 0 for n in x)  # a bool is no number here


def read_tensor(path: Path, name: str, entry: dict) -> Tensor:
    """One tensor, read from the file at its offsets; a copy. `entry` comes from `read_header`."""
    if entry["dtype"] not in DTYPES:
        raise UserError(f"{path}: tensor {name} has dtype {entry['dtype']}; wanted one of {sorted(DTYPES)}.")
    try:
        with open(path, "rb") as file:
            begin, end = entry["data_offsets"]
            file.seek(8 + int.from_bytes(file.read(8), "little") + begin)
            array = np.frombuffer(file.read(end - begin), dtype=DTYPES[entry["dtype"]])
        return Tensor(array.reshape(entry["shape"]), entry["dtype"])
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from None
    except (ValueError, OverflowError) as error:  # more axes than NumPy has, or an empty tensor of endless width
        raise UserError(f"{path}: tensor {name} cannot be read ({error}).") from None


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, and its metadata."""
    header = read_header(path)
    metadata = header.pop("__metadata__", None) or {}
    return {name: read_tensor(path, name, entry) for name, entry in header.items()}, metadata


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a file whole or not at all, as `cli.write_whole` does, with its UserError."""
    header, offset = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        size = tensor.array.nbytes
        shape = list(tensor.array.shape)
        header[name] = {"dtype": tensor.dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    # "equiv": the bytes may be swapped, the values must not change, or the header would lie
    data = (t.array.astype(DTYPES[t.dtype], casting="equiv", copy=False).tobytes() for t in tensors.values())
    write_whole(path, chain([len(text).to_bytes(8, "little") + text], data))
