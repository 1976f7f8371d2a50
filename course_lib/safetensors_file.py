"""Reading and writing .safetensors files with NumPy alone, so that neither torch nor the package is needed.

Format (github.com/huggingface/safetensors, README, read 2026): 8 bytes little-endian header length, a JSON
header {name: {dtype, shape, data_offsets}, "__metadata__": {str: str}}, then the tensors' bytes.
bfloat16, which NumPy lacks, is carried as its bits in uint16; `arrays.bfloat16_to_float32` widens them.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from course_lib.cli import UserError

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
MAX_HEADER = 100_000_000  # bytes; the format's own limit


class Tensor(NamedTuple):
    """A tensor as it lies in a file: `array` has the bits (BF16 as uint16), `dtype` is the file's name for them."""

    array: np.ndarray
    dtype: str


def read_header(path: Path) -> dict:
    """The JSON header of a file. Raises UserError, in one line, for anything that is no safetensors file."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER, os.path.getsize(path) - 8):
                raise ValueError("header length out of range")
            header = json.loads(file.read(length).decode("utf-8"))
        for name, entry in header.items():
            if name != "__metadata__":
                _check_entry(entry, os.path.getsize(path) - 8 - length)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a safetensors file ({error}). Was the download complete?") from None
    return header


def _check_entry(entry: dict, data_bytes: int) -> None:
    begin, end = entry["data_offsets"]
    size = np.dtype(DTYPES[entry["dtype"]]).itemsize if entry["dtype"] in DTYPES else None
    for n in entry["shape"]:
        size = size and size * n
    if not 0 <= begin <= end <= data_bytes or (size is not None and size != end - begin):
        raise ValueError("a tensor's offsets do not match its shape")


def read_tensor(path: Path, name: str, entry: dict) -> Tensor:
    """One tensor, read from the file at its offsets; a copy."""
    if entry["dtype"] not in DTYPES:
        raise UserError(f"{path}: tensor {name} has dtype {entry['dtype']}; wanted one of {sorted(DTYPES)}.")
    with open(path, "rb") as file:
        begin, end = entry["data_offsets"]
        file.seek(8 + int.from_bytes(file.read(8), "little") + begin)
        array = np.frombuffer(file.read(end - begin), dtype=DTYPES[entry["dtype"]])
    return Tensor(array.reshape(entry["shape"]), entry["dtype"])


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, and its metadata."""
    header = read_header(path)
    metadata = header.pop("__metadata__", {})
    return {name: read_tensor(path, name, entry) for name, entry in header.items()}, metadata


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a file, under another name first, so that an interrupted write leaves no half file."""
    header, offset = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        size = tensor.array.nbytes
        shape = list(tensor.array.shape)
        header[name] = {"dtype": tensor.dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    temporary = Path(f"{path}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                file.write(np.ascontiguousarray(tensor.array, dtype=DTYPES[tensor.dtype]).tobytes())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from None
