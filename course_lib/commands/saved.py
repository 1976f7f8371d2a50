"""A prefill on disk: K, V and logits as safetensors, with all that is needed to run it again."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from course_lib.cli import UserError
from course_lib.faults import Scenario
from course_lib.prefill import KVSnapshot
from course_lib.safetensors_file import Tensor, read
from course_lib.safetensors_file import write as write_file

_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class SavedRun:
    """A KVSnapshot read from a file, with its prompt, its cut and the model it came from."""

    snapshot: KVSnapshot
    token_ids: list[int]
    sizes: list[int]
    hit: int
    block_size: int
    arith: str
    model: str  # "seeded", or the folder it was loaded from
    model_sha256: str


def write(path: Path, snapshot: KVSnapshot, scenario: Scenario, arith: str, model: str) -> None:
    """Save a run. Raises UserError when the file cannot be written."""
    code = _CODES[snapshot.dtype]
    tensors = {name: Tensor(getattr(snapshot, name), code) for name in ("k", "v", "logits")}
    tensors["token_ids"] = Tensor(np.array(scenario.token_ids, dtype=np.int64), "I64")
    tensors["chunks"] = Tensor(np.array(scenario.sizes, dtype=np.int64), "I64")
    run = {"hit": scenario.hit, "block_size": scenario.block_size, "arith": arith, "model": model}
    write_file(path, tensors, {"run": json.dumps({**run, "model_sha256": scenario.model.sha256})})


def load(path: Path) -> SavedRun:
    """Read a run that `write` made. Raises UserError for any other file."""
    tensors, metadata = read(path)
    try:
        run = json.loads(metadata["run"])
        arrays = {name: tensors[name] for name in ("k", "v", "logits")}
        dtype = {code: name for name, code in _CODES.items()}[arrays["k"].dtype]
        if {t.dtype for t in arrays.values()} != {arrays["k"].dtype} or arrays["k"].array.ndim != 4:
            raise KeyError("k, v and logits of one dtype")
        return SavedRun(
            KVSnapshot(*(t.array for t in arrays.values()), dtype=dtype),
            tensors["token_ids"].array.tolist(), tensors["chunks"].array.tolist(),
            int(run["hit"]), int(run["block_size"]), str(run["arith"]), str(run["model"]), str(run["model_sha256"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} was not written by `prefill --save` (missing: {error}).") from None
