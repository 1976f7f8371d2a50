"""Honest notebooks in odd states, by name: each holds a right `chunk_attention_mask` and earns all its points.

A notebook is made of `cells()`; what is done to it is a function of these cells, or of the file's bytes.
"""

import copy
import json

RIGHT = """\
def chunk_attention_mask(chunk_len, cached_len):
    return np.tri(chunk_len, cached_len + chunk_len, cached_len, dtype=bool)"""
STUB = """\
def chunk_attention_mask(chunk_len, cached_len):
    raise NotImplementedError("Exercise 2.1: write chunk_attention_mask, then run this cell again.")"""
WRONG = RIGHT.replace("cached_len, dtype", "0, dtype")
CHECKS = ("values", "kv")


def code(source, grade_id=""):
    """A code cell; with a grade id it has all that nbgrader asks of an answer's cell, or of a check's."""
    graded = "__" in grade_id
    fields = {"grade": graded, "grade_id": grade_id, "locked": graded, "schema_version": 3, "solution": not graded}
    about = {"nbgrader": fields | {"task": False} | ({"points": 1} if graded else {})} if grade_id else {}
    return {"cell_type": "code", "source": source, "metadata": about, "outputs": [], "execution_count": None}


def cells(answer=RIGHT):
    checks = [code(f'check.chunk_attention_mask(chunk_attention_mask, group="{g}")', f"chunk_attention_mask__{g}")
              for g in CHECKS]  # fmt: skip
    setup = code("import numpy as np\n\nfrom autograder import check")
    return [
        setup,
        {"cell_type": "markdown", "source": "# 02", "metadata": {}},
        code(answer, "chunk_attention_mask"),
        *checks,
    ]


def notebook(made, **more):
    return {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5} | more


def as_bytes(made, **more):
    return json.dumps(notebook(made, **more)).encode()


def answered(text):
    return as_bytes(cells(text))


def with_cell(source, place=1):
    made = cells()
    made.insert(place, code(source))
    return as_bytes(made)


def without_metadata():
    made = cells()
    for cell in made:
        cell["metadata"] = {}
    return as_bytes(made)


def without_checks():
    return as_bytes(cells()[:3])


def below():
    made = cells(STUB)
    return as_bytes([*made, code(RIGHT)])


def above():
    made = cells(STUB)
    made.insert(2, code(RIGHT))
    return as_bytes(made)


def copied():
    """JupyterLab keeps the metadata of a copied cell."""
    made = cells()
    made.insert(2, copy.deepcopy(made[2]) | {"source": WRONG})
    return as_bytes(made)


def old_copy_below():
    return as_bytes([*cells(), code(WRONG)])


def colab():
    made = cells()
    made[0]["metadata"] = {"colab": {"base_uri": "x"}, "id": "abc"}
    about = {"widgets": {"application/vnd.jupyter.widget-state+json": {"x": {}}}, "colab": {"provenance": []}}
    return as_bytes(made, metadata=about, nbformat_minor=0)


def large_outputs():
    made = cells()
    made[0]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x" * 50_000_000}]
    return as_bytes(made)


def lines_in_lists():
    made = cells()
    for cell in made:
        cell["source"] = cell["source"].splitlines(keepends=True)
    return as_bytes(made)


def format_3():
    old = [
        {"cell_type": "code", "input": c["source"], "outputs": [], "language": "python"}
        for c in cells()
        if "outputs" in c
    ]
    return json.dumps({"worksheets": [{"cells": old}], "nbformat": 3, "nbformat_minor": 0, "metadata": {}}).encode()


def says(statement):
    return RIGHT.replace("\n", f"\n    {statement}\n", 1)


BODIES = {
    "as it should be": lambda: as_bytes(cells()),
    "a warning": lambda: answered(says("import warnings; warnings.warn('careful')")),
    "lines on stderr": lambda: answered(says("import sys; print('here', file=sys.stderr)")),
    "a logger": lambda: answered(says("import logging; logging.warning('here')")),
    "prints a lot": lambda: answered(says("print('row ' * 10_000)")),
    "slow": lambda: answered(says("import time; time.sleep(0.05)")),
    "a docstring and annotations": lambda: answered(
        RIGHT.replace("chunk_len, cached_len)", "chunk_len: int, cached_len: int) -> 'np.ndarray'", 1)
    ),
    "returns lists": lambda: answered(RIGHT + ".tolist()"),
    "returns tuples": lambda: answered(RIGHT.replace("return ", "return tuple(map(tuple, ") + "))"),
    "returns Fortran order": lambda: answered(RIGHT.replace("return ", "return np.asfortranarray(") + ")"),
    "returns a view": lambda: answered(RIGHT.replace("return ", "return np.flip(np.flip(") + "))"),
    "returns bytes of 0 and 1": lambda: answered(RIGHT.replace("dtype=bool", "dtype=np.uint8")),
    "NumPy imported by another name": lambda: answered("import numpy\n" + RIGHT.replace("np.", "numpy.")),
    "imports inside": lambda: answered(RIGHT.replace("\n", "\n    import numpy as np\n", 1)),
    "a lambda": lambda: answered(
        "chunk_attention_mask = lambda chunk_len, cached_len: np.tri(chunk_len, cached_len + chunk_len, cached_len) > 0"
    ),
    "a helper in another cell": lambda: as_bytes(
        [*cells("def chunk_attention_mask(chunk_len, cached_len):\n    return helper(chunk_len, cached_len)"),
         code(RIGHT.replace("chunk_attention_mask", "helper"))]
    ),
    "a constant in another cell": lambda: as_bytes(
        [code("KIND = bool"), *cells(RIGHT.replace("dtype=bool", "dtype=KIND"))]
    ),
    "a decorated answer": lambda: answered("import functools\n@functools.lru_cache\n" + RIGHT),
    "defined twice in a cell": lambda: answered(WRONG + "\n\n" + RIGHT),
    "all metadata lost": without_metadata,
    "checks deleted": without_checks,
    "answer below its check": below,
    "answer above the stub": above,
    "copied cell": copied,
    "an old copy left below": old_copy_below,
    "saved by Colab": colab,
    "outputs of 50 MB": large_outputs,
    "lines in lists": lines_in_lists,
    "format 3": format_3,
    "Windows line ends": lambda: answered(RIGHT.replace("\n", "\r\n")),
    "a byte order mark": lambda: b"\xef\xbb\xbf" + as_bytes(cells()),
    "UTF-16": lambda: as_bytes(cells()).decode().encode("utf-16"),
    "a syntax error in another cell": lambda: with_cell("def broken(:"),
    "exit() in a cell": lambda: with_cell("exit()"),
    "a cell that never ends": lambda: with_cell("while True: pass"),
    "an error in another cell": lambda: with_cell("1 / 0"),
    "a variable called check": lambda: with_cell("check = 3", 3),
    "input in a cell": lambda: with_cell("name = input('who? ')"),
    "magics": lambda: with_cell("%matplotlib inline\n%load_ext autoreload"),
    "shell lines": lambda: with_cell("!pip install numpy\nfiles = !ls"),
    "a cell of another language": lambda: with_cell("%%bash\necho hello"),
    "a magic in the answer's cell": lambda: answered("%time 1\n" + RIGHT),
    "a cell magic on the answer": lambda: answered("%%time\n" + RIGHT),
    "a plot": lambda: with_cell("import matplotlib.pyplot as plt\nplt.plot([1, 2])"),
    "a widget": lambda: with_cell("import ipywidgets\nipywidgets.IntSlider()"),
    "a print below the answer": lambda: answered(RIGHT + "\n\nprint(chunk_attention_mask(3, 5))"),
    "a test of their own": lambda: answered(RIGHT + "\n\nassert chunk_attention_mask(1, 0).all()"),
    "comments only at the end": lambda: answered(RIGHT + "\n# done\n\n\n"),
    "tabs": lambda: answered(RIGHT.replace("    ", "\t")),
    "names in other alphabets": lambda: answered(RIGHT.replace("\n", "\n    größe = chunk_len\n", 1)),
    "a global that they set": lambda: answered(
        "calls = 0\n" + RIGHT.replace("\n", "\n    global calls\n    calls += 1\n", 1)
    ),
    "a cache of their own": lambda: answered(
        "seen = {}\n" + RIGHT.replace("\n", "\n    seen[chunk_len] = cached_len\n", 1)
    ),
    "matrices": lambda: answered(RIGHT.replace("return ", "return np.matrix(") + ")"),
    "a future import": lambda: answered("from __future__ import annotations\n" + RIGHT),
    "a star import": lambda: answered("from numpy import *\n" + RIGHT.replace("np.tri", "tri")),
    "cells without ids": lambda: as_bytes(cells(), nbformat_minor=2),
    "cells with attachments": lambda: as_bytes([{**c, "attachments": {}, "id": "x"} for c in cells()]),
    "raw cells": lambda: as_bytes([{"cell_type": "raw", "source": "x", "metadata": {}}, *cells()]),
    "no nbformat": lambda: json.dumps({"cells": cells()}).encode(),
    "wild metadata": lambda: as_bytes([{**c, "metadata": {"nbgrader": {"grade_id": None}}} for c in cells()]),
}  # fmt: skip

MASK = {"chunk_attention_mask__values": 3, "chunk_attention_mask__kv": 2}
OTHERS = {}
