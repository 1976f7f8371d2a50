"""Write course_lib/assets/golden.json: hashes of the models' KV in `exact`, the same on every machine.

Run by hand when a model or the arithmetic changes on purpose: python tests/make_golden.py
"""

import json
from pathlib import Path

from course_lib.commands.prefill import token_ids
from course_lib.ledger import ledger_model, prompts
from course_lib.prefill import one_pass
from course_lib.weights import seeded_model

PATH = Path(__file__).parents[1] / "course_lib" / "assets" / "golden.json"
LENGTH = 203
MODELS = ("tiny", "ledger")
DTYPES = ("float32", "bfloat16", "float16")


def model_and_prompt(name: str, backend: str, dtype: str, device: str = "cpu") -> tuple:
    """In `exact`: the seeded model `tiny` with 203 token ids, or the ledger model with 64 statements (194 ids)."""
    where = {"backend": backend, "arith": "exact", "dtype": dtype, "device": device}
    if name == "ledger":
        return ledger_model(**where), prompts(1, 64, seed=0)[0][0].tolist()
    model = seeded_model(name, **where)
    return model, token_ids(LENGTH, model.config.vocab_size)


def measure(name: str, backend: str, dtype: str, device: str = "cpu") -> dict:
    """The hashes of a one-pass prefill on the model `name`, with the model's own hash."""
    model, ids = model_and_prompt(name, backend, dtype, device)
    return {"model": model.sha256, **one_pass(model, ids).sha256()}


if __name__ == "__main__":
    golden = {name: {dtype: measure(name, "torch", dtype) for dtype in DTYPES} for name in MODELS}
    PATH.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
