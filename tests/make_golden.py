"""Write course_lib/assets/golden.json: hashes of the seeded model's KV in `exact`, the same on every machine.

Run by hand when the model or the arithmetic changes on purpose: python tests/make_golden.py
"""

import json
from pathlib import Path

from course_lib.commands.prefill import token_ids
from course_lib.prefill import one_pass
from course_lib.weights import seeded_model

PATH = Path(__file__).parents[1] / "course_lib" / "assets" / "golden.json"
LENGTH = 203


def measure(backend: str, dtype: str, device: str = "cpu") -> dict:
    """The hashes of a one-pass prefill of 203 tokens on the seeded model `tiny`, with the model's own hash."""
    model = seeded_model("tiny", backend=backend, arith="exact", dtype=dtype, device=device)
    hashes = one_pass(model, token_ids(LENGTH, model.config.vocab_size)).sha256()
    return {"model": model.sha256, **hashes}


if __name__ == "__main__":
    golden = {dtype: measure("torch", dtype) for dtype in ("float32", "bfloat16", "float16")}
    PATH.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
