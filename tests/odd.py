"""Honest notebooks in odd states, by name: each holds a right `chunk_attention_mask` and earns all its points.

A notebook is made of `cells()`; what is done to it is a function of these cells, or of the file's bytes.
"""
# ruff: noqa: E501 (tables of code)

import copy
import importlib
import inspect
import json
import textwrap
from dataclasses import dataclass

from autograder.exercises import EXERCISES

RIGHT = """\
def chunk_attention_mask(chunk_len, cached_len):
    return np.tri(chunk_len, cached_len + chunk_len, cached_len, dtype=bool)"""
STUB = """\
def chunk_attention_mask(chunk_len, cached_len):
    raise NotImplementedError("Exercise 2.1: write chunk_attention_mask, then run this cell again.")"""
WRONG = RIGHT.replace("cached_len, dtype", "0, dtype")
CHECKS = ("values", "kv")
MASK = {"chunk_attention_mask__values": 3, "chunk_attention_mask__kv": 2}


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
    "cells out of order": lambda: as_bytes(
        [code("def chunk_attention_mask(chunk_len, cached_len):\n    return late(chunk_len, cached_len)"),
         *cells(STUB), code("def late(n, c):\n    return np.tri(n, c + n, c) > ZERO"), code("ZERO = 0")]
    ),
    "a merge conflict": lambda: b'<<<<<<< HEAD\n{\n=======\n' + as_bytes(cells()).rstrip()[:1] + b'\n>>>>>>> 1234567\n'
    + as_bytes(cells())[1:],
    "a merge conflict in an output": lambda: json.dumps(notebook(cells()), indent=1).encode().replace(
        b' "nbformat": 4,', b'<<<<<<< HEAD\n "nbformat": 4,\n=======\n "nbformat": 4,\n>>>>>>> x\n'),
    "a helper class in another cell": lambda: as_bytes(
        [*cells("def chunk_attention_mask(chunk_len, cached_len):\n    return Mask(chunk_len, cached_len).rows()"),
         code("class Base:\n    pass"), code("class Mask(Base):\n    def __init__(self, n, c):\n        self.n, self.c = n, c\n"
         "    def rows(self):\n        return np.tri(self.n, self.c + self.n, self.c, dtype=bool)")]
    ),
    "a dataclass helper": lambda: answered(
        "from dataclasses import dataclass\n@dataclass\nclass Size:\n    chunk: int\n    cached: int = 0\n"
        + RIGHT.replace("\n", "\n    size = Size(chunk_len, cached=cached_len)\n    cached_len = size.cached\n", 1)
    ),
    "line ends of an old Mac": lambda: answered(RIGHT.replace("\n", "\r")),
    "characters of no width in comments": lambda: answered(RIGHT + "  # \u200b\u200d\ufeff fine"),
    "a name in full width": lambda: answered(RIGHT.replace("\n", "\n    \uff4e = chunk_len\n    assert n == chunk_len\n", 1)),
    "a definition under if True": lambda: answered("if True:\n    " + RIGHT.replace("\n", "\n    ")),
    "one of two definitions": lambda: answered(
        "FAST = False\nif FAST:\n    " + WRONG.replace("\n", "\n    ") + "\nelse:\n    " + RIGHT.replace("\n", "\n    ")
    ),
    "an import that may fail": lambda: answered(
        "try:\n    import cupy as xp\nexcept ImportError:\n    import numpy as xp\n" + RIGHT.replace("np.", "xp.")
    ),
    "a definition in a try": lambda: answered(
        "try:\n    import numba\n    1 / 0\nexcept Exception:\n    " + RIGHT.replace("\n", "\n    ")
    ),
    "a type alias": lambda: answered(
        "from typing import Optional\nMaybe = Optional[int]\n" + RIGHT.replace("chunk_len, cached_len)", "chunk_len: Maybe, cached_len: Maybe = 0)", 1)
    ),
    "partial": lambda: answered(
        "from functools import partial\ndef masked(dtype, chunk_len, cached_len):\n"
        "    return np.tri(chunk_len, cached_len + chunk_len, cached_len, dtype=dtype)\n"
        "chunk_attention_mask = partial(masked, bool)"
    ),
    "nested functions": lambda: answered(
        "def chunk_attention_mask(chunk_len, cached_len):\n    def sees(i):\n        def one(j):\n"
        "            return j <= cached_len + i\n        return [one(j) for j in range(cached_len + chunk_len)]\n"
        "    return [sees(i) for i in range(chunk_len)]"
    ),
    "made by a function": lambda: answered("def make():\n    " + RIGHT.replace("\n", "\n    ")
        + "\n    return chunk_attention_mask\nchunk_attention_mask = make()"),
    "wrapped afterwards": lambda: answered("import functools\n" + RIGHT
        + "\nchunk_attention_mask = functools.lru_cache(chunk_attention_mask)"),
    "wrapped in a later cell": lambda: as_bytes([*cells()[:3], code("import functools\nchunk_attention_mask = "
        "functools.cache(chunk_attention_mask)"), *cells()[3:]]),
    "a counter on the function": lambda: answered(
        "chunk_attention_mask_calls = 0\n" + RIGHT.replace("\n", "\n    chunk_attention_mask.calls += 1\n", 1)
        + "\nchunk_attention_mask.calls = 0"
    ),
    "a counter in another cell": lambda: as_bytes(
        [code("calls = 0\ndef count():\n    global calls\n    calls += 1"),
         *cells(RIGHT.replace("\n", "\n    count()\n", 1))]
    ),
    "a walrus": lambda: answered(RIGHT.replace("cached_len + chunk_len", "(total := cached_len + chunk_len)")),
    "a walrus at the top": lambda: answered("(KIND := bool)\n" + RIGHT.replace("dtype=bool", "dtype=KIND")),
    "a value made by with": lambda: answered(
        "import contextlib\nwith contextlib.nullcontext(bool) as KIND:\n    pass\n" + RIGHT.replace("dtype=bool", "dtype=KIND")
    ),
    "a value made by a loop": lambda: answered("for KIND in (int, bool):\n    pass\n" + RIGHT.replace("dtype=bool", "dtype=KIND")),
    "names that are deleted": lambda: with_cell("x = [1]\nlist = x\ndel x, list"),
    "an async function beside": lambda: with_cell("async def fetch():\n    await x\nawait fetch()", 3),
    "settings of matplotlib": lambda: with_cell(
        "import matplotlib as mpl\nmpl.rcParams['figure.dpi'] = 150\nmpl.rc('font', size=14)\n%config InlineBackend.x = 1"
    ),
    "a helper of the library": lambda: answered(
        "from course_lib.arithmetic import exact\n" + RIGHT.replace("\n", "\n    assert exact.matmul\n", 1)
    ),
    "print under another name": lambda: as_bytes(
        [code("import builtins\ndef print(*a, **k):\n    builtins.print('>', *a, **k)"), *cells(says("print('here')"))]
    ),
    "warnings as errors": lambda: with_cell("import warnings\nwarnings.simplefilter('error')"),
    "a strange escape": lambda: answered(RIGHT.replace("\n", "\n    'C:\\data \\d'\n", 1)),
    "random seeds": lambda: with_cell("import random\nrandom.seed(0)\nnp.random.seed(0)"),
    "a bare annotation below": lambda: as_bytes([*cells()[:3], code("chunk_attention_mask: object"), *cells()[3:]]),
    "a sum of many terms": lambda: answered(RIGHT.replace("\n", "\n    assert " + "0+" * 700 + "1\n", 1)),
    "hundreds of magics": lambda: with_cell("%time\n" * 600),
    "a cell of a megabyte": lambda: with_cell("DATA = '" + "x" * 900_000 + "'"),
    "thousands of cells": lambda: as_bytes([*cells(), *[code(f"x{i} = {i}") for i in range(4_000)]]),
    "a type of their own": lambda: answered(
        "class Rows(np.ndarray):\n    pass\n" + RIGHT.replace("return ", "return (") + ").view(Rows)"
    ),
    "not a number in an output": lambda: as_bytes(cells()).replace(b'"outputs": []', b'"outputs": [NaN, Infinity]', 1),
    "a key twice": lambda: as_bytes(cells()).replace(b'"nbformat": 4', b'"nbformat": 3, "nbformat": 4'),
    "a wild schema version": lambda: as_bytes(cells()).replace(b'"schema_version": 3', b'"schema_version": 999'),
    "a surrogate in a comment elsewhere": lambda: with_cell("x = 1  # \ud800"),
    "jupytext's header": lambda: as_bytes(
        [{"cell_type": "raw", "source": "---\njupyter:\n  jupytext: {}\n---", "metadata": {}}, *cells()],
        metadata={"jupytext": {"formats": "ipynb,py:percent"}}),
}  # fmt: skip


# --- other exercises


@dataclass(frozen=True)
class Other:
    """A right answer to another exercise, in an odd state."""

    exercise: str
    source: str

    @property
    def assignment(self):
        return EXERCISES[self.exercise].notebook

    @property
    def worth(self):
        return {f"{self.exercise}__{group.name}": 1 for group in EXERCISES[self.exercise].groups}


def library(name):
    """Our own answer, as text."""
    module, _, function = EXERCISES[name].solution.partition(":")
    return textwrap.dedent(inspect.getsource(getattr(importlib.import_module(module), function)))


def renamed(name, new, more):
    """Our own answer under another name, and an answer that is made of it."""
    return library(name).replace(name, new) + "\n" + more


OTHERS = {
    "a kernel that is typed, decorated and times itself": Other(
        "tiled_linear", "import functools, time\ndef timed(fn):\n    @functools.wraps(fn)\n    def inner(*a, **k):\n"
        "        begin = time.perf_counter()\n        try:\n            return fn(*a, **k)\n        finally:\n"
        "            print(time.perf_counter() - begin)\n    return inner\n@timed\n" + library("tiled_linear")),
    "a kernel without gradients": Other(
        "tiled_linear", "import torch\n@torch.no_grad()\n" + library("tiled_linear")),
    "a report that imports torch again": Other(
        "bit_report", "import torch as T\nfrom torch import nn\n" + library("bit_report")),
    "a test with helpers": Other(
        "check_positions", renamed("check_positions", "inner", "def check_positions(prefill_fn, reference):\n"
        "    print('testing')\n    inner(prefill_fn=prefill_fn, reference=reference)")),
    "a test that is a lambda": Other(
        "check_positions", renamed("check_positions", "inner", "check_positions = lambda p, r: inner(p, r)")),
    "a class with a base class and a counter": Other(
        "Allocator", renamed("Allocator", "Base", "class Allocator(Base):\n    made = 0\n    def __init__(self, n):\n"
        "        super().__init__(n)\n        type(self).made += 1\n    def __repr__(self):\n        return 'Allocator'")),
    "a class of which a method is put in afterwards": Other(
        "Allocator", library("Allocator") + "\ndef show(self):\n    return self.free\nAllocator.show = show\n"
        "pool = Allocator(3)\nassert pool.show() == [1, 2, 3]"),
    "a radix tree with slots and types": Other(
        "RadixTree", "from __future__ import annotations\nfrom typing import *\n" + library("RadixTree")
        if "RadixTree" in EXERCISES else ""),
    "a policy with keywords only": Other(
        "my_policy", renamed("my_policy", "inner", "def my_policy(requests, *, max_num_batched_tokens, max_chunk, "
        "max_num_seqs):\n    return list(inner(requests, max_num_batched_tokens, max_chunk, max_num_seqs))")),
    "a policy that is an object": Other(
        "my_policy", renamed("my_policy", "inner", "class Policy:\n    def __call__(self, requests, "
        "max_num_batched_tokens, max_chunk, max_num_seqs):\n        yield from inner(requests, max_num_batched_tokens, "
        "max_chunk, max_num_seqs)\nmy_policy = Policy()")),
    "a clock that is read through a helper": Other(
        "time_step", "import statistics\ndef once(run, synchronize, clock):\n    begin = clock()\n    run(); synchronize()\n"
        "    return clock() - begin\ndef time_step(run, synchronize, clock, repeats):\n    once(run, synchronize, clock)\n"
        "    return statistics.median(once(run, synchronize, clock) for _ in range(repeats))"),
    "positions as a range": Other(
        "positions", "positions = lambda cached, computed, take: range(cached + computed, cached + computed + take)"),
    "positions, and a variable of that name below the check": Other(
        "positions", "def positions(cached, computed, take):\n    print(cached)\n    return np.arange(take) + cached + computed\n"
        "check.positions(positions)"),
}  # fmt: skip
