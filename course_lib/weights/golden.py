"""Golden hashes: what a prefill leaves in `exact` arithmetic is the same on every machine, so its hash is kept.

assets/golden.json holds, for two models and three dtypes, the SHA-256 of K, V and logits of one prompt.
tests/make_golden.py writes it when a model or the arithmetic changes on purpose.
"""

import json
from pathlib import Path

from course_lib.prefill import one_pass, token_ids
from course_lib.weights import seeded_model
from course_lib.weights.ledger import ledger_model, prompts

PATH = Path(__file__).parents[1] / "assets" / "golden.json"
LENGTH = 203
MODELS = ("tiny", "ledger")
DTYPES = ("float32", "bfloat16", "float16")


def golden_hashes(name: str = "ledger", dtype: str = "float32") -> dict[str, str]:
    """The kept hashes of a model ("tiny" or "ledger") in a dtype: of the model itself, k, v and logits."""
    return json.loads(PATH.read_text(encoding="utf-8"))[name][dtype]


def measured_hashes(
    name: str = "ledger", *, backend: str = "numpy", dtype: str = "float32", device: str = "cpu"
) -> dict[str, str]:
    """The same, computed here and now by a one-pass prefill in `exact`."""
    model, ids = model_and_prompt(name, backend=backend, dtype=dtype, device=device)
    return {"model": model.sha256, **one_pass(model, ids).sha256()}


def model_and_prompt(name: str, *, backend: str = "numpy", dtype: str = "float32", device: str = "cpu") -> tuple:
    """In `exact`: the seeded model `tiny` with 203 token ids, or the ledger model with 64 statements (194 ids)."""
    where = {"backend": backend, "arith": "exact", "dtype": dtype, "device": device}
    if name == "ledger":
        return ledger_model(**where), prompts(1, 64, seed=0)[0][0].tolist()
    model = seeded_model(name, **where)
    return model, token_ids(LENGTH, model.config.vocab_size)
