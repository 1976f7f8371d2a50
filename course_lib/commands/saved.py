"""A prefill on disk: K, V and logits as safetensors, with all that is needed to run it again."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from course_lib.cli import UserError
from course_lib.diagnosis.faults import Scenario
from course_lib.prefill import KVSnapshot
from course_lib.weights.safetensors_file import Tensor, read
from course_lib.weights.safetensors_file import write as write_file

_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
MAX_BLOCK_SIZE = 2**16  # slots: a pool of larger blocks would fill the memory for nothing


@dataclass(frozen=True)
class SavedRun:
    """A KVSnapshot read from a file, with its prompt, its cut and the model it came from."""

    snapshot: KVSnapshot
    token_ids: list[int]
    sizes: list[int]
    hit: int
    block_size: int
    arith: str
    backend: str
    device: str
    model: str  # "seeded", or the folder it was loaded from
    model_sha256: str


def write(path: Path, snapshot: KVSnapshot, scenario: Scenario, where: dict[str, str], model: str) -> None:
    """Save a run. `where`: arith, backend, device. Raises UserError when the file cannot be written."""
    code = _CODES[snapshot.dtype]
    tensors = {name: Tensor(getattr(snapshot, name), code) for name in ("k", "v", "logits")}
    tensors["token_ids"] = Tensor(np.array(scenario.token_ids, dtype=np.int64), "I64")
    tensors["chunks"] = Tensor(np.array(scenario.sizes, dtype=np.int64), "I64")
    run = {"hit": scenario.hit, "block_size": scenario.block_size, "model": model}
    run |= {name: where[name] for name in ("arith", "backend", "device")}
    write_file(path, tensors, {"run": json.dumps({**run, "model_sha256": scenario.model.sha256})})


def load(path: Path) -> SavedRun:
    """Read a run that `write` made. Raises UserError for any other file."""
    tensors, metadata = read(path)
    try:
        k, v, logits, token_ids, chunks = (tensors[name] for name in ("k", "v", "logits", "token_ids", "chunks"))
        dtype = {code: name for name, code in _CODES.items()}.get(k.dtype, k.dtype)
        run = SavedRun(
            KVSnapshot(k.array, v.array, logits.array, dtype),
            token_ids.array.tolist(), chunks.array.tolist(), **json.loads(metadata["run"]),
        )  # fmt: skip
        if problem := _problem(run, [t.dtype for t in (k, v, logits, token_ids, chunks)]):
            raise ValueError(problem)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{path} was not written by this version of `prefill --save` ({error}).") from None
    return run


def _problem(run: SavedRun, dtypes: list[str]) -> str:
    """What does not fit together in a saved run; empty if all does."""
    k, v, logits = run.snapshot.k, run.snapshot.v, run.snapshot.logits
    tokens = len(run.token_ids) if isinstance(run.token_ids, list) else 0
    if run.snapshot.dtype not in _CODES or dtypes != [*[dtypes[0]] * 3, "I64", "I64"]:
        return f"the tensors have dtypes {dtypes}"
    if k.ndim != 4 or k.shape != v.shape or logits.ndim != 1 or not k.size or not logits.size or k.shape[1] != tokens:
        return f"k, v and logits have shapes {k.shape}, {v.shape}, {logits.shape} for {tokens} tokens"
    if not all(type(t) is int and 0 <= t < logits.size for t in run.token_ids):
        return "token_ids leave the vocabulary"
    if type(run.hit) is not int or type(run.block_size) is not int or not 1 <= run.block_size <= MAX_BLOCK_SIZE:
        return f"hit={str(run.hit)[:40]}, block_size={str(run.block_size)[:40]}"
    if not isinstance(run.sizes, list) or not all(type(n) is int and n > 0 for n in run.sizes):
        return "chunks are not whole numbers of at least 1"
    if run.hit < 0 or run.hit + sum(run.sizes) != tokens:
        return f"a hit of {run.hit} and the chunks do not add up to {tokens} tokens"
    texts = (run.arith, run.backend, run.device, run.model, run.model_sha256)
    if run.arith not in ("tile", "exact") or not all(isinstance(text, str) for text in texts):
        return f"arith={str(run.arith)[:40]}"
    return ""
