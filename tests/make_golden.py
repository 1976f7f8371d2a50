"""Write course_lib/assets/golden.json: hashes of the models' KV in `exact`, the same on every machine.

Run by hand when a model or the arithmetic changes on purpose: python tests/make_golden.py
"""

import json

from course_lib.weights.golden import DTYPES, MODELS, PATH, measured_hashes

if __name__ == "__main__":
    golden = {n: {t: measured_hashes(n, backend="torch", dtype=t) for t in DTYPES} for n in MODELS}
    PATH.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
