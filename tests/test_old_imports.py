"""A learner's copy from before modules moved: each import of it works after the repair, and nothing else is touched."""

import ast
import importlib
import json
from pathlib import Path

import pytest

from course_lib.learner.moved import MODULES, NAMES, import_today, module_today
from course_lib.learner.old_imports import rewrite, unreadable_lines

OLD = json.loads((Path(__file__).parent / "data" / "old_imports.json").read_text(encoding="utf-8"))


def there(module, name=None):
    """Whether `import module`, or `from module import name`, works today."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    return name is None or hasattr(found, name) or there(f"{module}.{name}")


# A rename may reach the table before the library.
AHEAD = {new for new in NAMES.values() if not there(*new)}


# ---- the table


@pytest.mark.parametrize("old", MODULES)
def test_a_module_in_the_table_is_gone_and_its_new_place_is_there(old):
    assert not there(old) and there(MODULES[old])


@pytest.mark.parametrize("old", [old for old in NAMES if NAMES[old] not in AHEAD], ids=".".join)
def test_a_name_in_the_table_is_gone_and_its_new_one_is_there(old):
    assert not there(*old) and there(*NAMES[old])


@pytest.mark.parametrize(
    ("module", "name", "today"),
    [
        ("course_lib", "masks", "course_lib.attention.mask"),
        ("course_lib.masks", "chunk_attention_mask", "course_lib.attention.mask.chunk_attention_mask"),
        ("course_lib", "invariant", "course_lib.arithmetic"),
        ("course_lib.invariant", "exact", "course_lib.arithmetic.exact"),
        ("course_lib.invariant.exact", "matmul", "course_lib.arithmetic.exact.matmul"),
        ("course_lib.schedule", "limits", "course_lib.schedule.refusals"),
        ("course_lib.trace", "StepRecord", "course_lib.schedule.step_record.StepRecord"),
        ("course_lib.trace_file", "read", "course_lib.load.arrivals_csv.read"),
        ("course_lib.cache.radix", "RadixTree", "course_lib.cache.radix.RadixCache"),
        ("course_lib.engine", "Engine", "course_lib.engine.Engine"),
        ("numpy", "masks", "numpy.masks"),
    ],
)
def test_where_a_name_is_today(module, name, today):
    assert ".".join(import_today(module, name)) == today


def test_a_module_that_did_not_move_keeps_its_name():
    assert module_today("course_lib.tracer") == "course_lib.tracer"
    assert module_today("course_lib.rope.inner") == "course_lib.positions.inner"


# ---- every import that was handed out


@pytest.mark.parametrize(
    "statement", dict.fromkeys(s for statements in OLD["statements"].values() for s in statements)
)
def test_an_import_that_was_handed_out_works_after_the_repair_and_binds_the_same_names(statement):
    new, _ = rewrite(statement, {})
    parts = [node for node in ast.parse(new).body if isinstance(node, ast.ImportFrom)]
    if any((part.module, alias.name) in AHEAD for part in parts for alias in part.names):
        pytest.skip("its new name is in the table and not yet in the library")
    scope = {}
    exec(new, scope)
    names = {alias.asname or alias.name for node in ast.parse(statement).body for alias in node.names}
    assert names == scope.keys() - {"__builtins__"}
    assert rewrite(new, {}) == (new, []), "a second repair finds nothing"


@pytest.mark.parametrize("stem", OLD["cells"])
def test_the_importing_cells_of_an_old_copy_run_one_after_another_after_the_repair(stem, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_GRADING", "1")
    aliases, scope, changed = {}, {}, 0
    new = [rewrite(text, aliases) for text in OLD["cells"][stem]]
    for text, changes in new:
        ahead = [name for _, name in AHEAD if f"import {name}" in text]
        for name in ahead:  # today still under its old name
            old = next(old for (_, old), there in NAMES.items() if there[1] == name)
            text = text.replace(f"import {name}", f"import {old}")
        exec(compile(text, stem, "exec"), scope)
        changed += len(changes)
    assert changed >= 3
    with pytest.raises(ImportError):
        for text in OLD["cells"][stem]:
            exec(compile(text, stem, "exec"), {})


# ---- how it is written in all its shapes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from course_lib.masks import a  # why", "from course_lib.attention.mask import a  # why"),
        ("from course_lib.masks import *", "from course_lib.attention.mask import *"),
        ("from course_lib import masks", "from course_lib.attention import mask as masks"),
        ("from course_lib import masks as m", "from course_lib.attention import mask as m"),
        ("from course_lib.invariant import exact", "from course_lib.arithmetic import exact"),
        ("from course_lib.rope import \\\n    a, b", "from course_lib.positions import \\\n    a, b"),
        ("from course_lib.rope import (\n    a,  # one\n    b as c,\n)\nx = 1",
         "from course_lib.positions import (\n    a,  # one\n    b as c,\n)\nx = 1"),
        ("from course_lib import engine, lesson_tradeoff as lesson",
         "from course_lib import engine\nfrom course_lib.lessons import nb06_tradeoff as lesson"),
        ("def f():\n    from course_lib import (  # first\n        demo,\n        quiz,  # second\n    )\n"
         "    return demo",
         "def f():\n    # first\n    # second\n    from course_lib.commands import demo\n"
         "    from course_lib.learner import quiz\n    return demo"),
        ("if x: from course_lib import demo, quiz; f()",
         "if x: from course_lib.commands import demo; from course_lib.learner import quiz; f()"),
        ("import course_lib.rope\ncourse_lib.rope.turn(1)",
         "import course_lib.positions\ncourse_lib.positions.turn(1)"),
        ("import os, course_lib.kv_diff as kv", "import os, course_lib.diagnosis.kv_diff as kv"),
        ("from course_lib.cache.radix import RadixTree", "from course_lib.cache.radix import RadixCache as RadixTree"),
        ("from course_lib.cache.radix import RadixTree as T", "from course_lib.cache.radix import RadixCache as T"),
        ("from course_lib.cache import prefix as library\nlibrary.PrefixCache(), mine.library.PrefixCache",
         "from course_lib.cache import prefix as library\nlibrary.PrefixIndex(), mine.library.PrefixCache"),
        ("import course_lib.cache.prefix as p\np.PrefixCache()",
         "import course_lib.cache.prefix as p\np.PrefixIndex()"),
        ("%matplotlib inline\n!ls 'it\nhelp?\nfrom course_lib.masks import a",
         "%matplotlib inline\n!ls 'it\nhelp?\nfrom course_lib.attention.mask import a"),
        ("%%time\nfrom course_lib.masks import a", "%%time\nfrom course_lib.attention.mask import a"),
        ("x = (7\n% 3)\nfrom course_lib.masks import a", "x = (7\n% 3)\nfrom course_lib.attention.mask import a"),
        ("\u00e4 = 'f\u00fcr'; from course_lib.masks import a",
         "\u00e4 = 'f\u00fcr'; from course_lib.attention.mask import a"),
        ("x\r\nfrom course_lib.masks import a\r\ny", "x\r\nfrom course_lib.attention.mask import a\r\ny"),
    ],
)  # fmt: skip
def test_a_statement_gets_its_name_of_today_and_keeps_its_shape(old, new):
    assert rewrite(old, {})[0] == new


@pytest.mark.parametrize(
    "text",
    [
        "from course_lib.engine import Engine",
        "from course_lib import cli, engine",
        "s = 'from course_lib.masks import a'  # from course_lib import masks",
        '"""\nfrom course_lib.masks import a\n"""',
        "def f():\n    yield from course_lib.positions.all()",
        "raise x from course_lib",
        "from .course_lib.masks import a",
        "mine.course_lib.rope",
        "rope = masks = trace = 1\nrope.masks",
        "%%bash\nfrom course_lib.masks import a",
        "%%writefile x.py\nfrom course_lib.masks import a",
        "from course_lib.masks import",
        "from course_lib",
        "def f(:\n    from course_lib.masks import a",
        "'''\nfrom course_lib.masks import a",
        "",
        "\\",
    ],
)
def test_what_is_no_old_import_stays_as_it_is(text):
    assert rewrite(text, {}) == (text, [])


def test_an_old_import_in_a_cell_that_cannot_be_read_is_found_all_the_same():
    broken = "def f(:\n    from course_lib.masks import a\nimport numpy\nfrom course_lib import engine"
    assert unreadable_lines(broken) == ["from course_lib.masks import a"]
    assert unreadable_lines("from course_lib.masks import a") == [], "this one can be repaired"


def test_what_changed_is_said_once_in_words():
    _, said = rewrite("from course_lib.masks import a, b\nfrom course_lib.masks import c", {})
    assert said == ["course_lib.masks is now course_lib.attention.mask"]
    _, said = rewrite("from course_lib import masks", {})
    assert said == ["course_lib.masks is now course_lib.attention.mask"]
    _, said = rewrite("from course_lib.cache.radix import RadixTree, common", {})
    assert said == ["course_lib.cache.radix.RadixTree is now course_lib.cache.radix.RadixCache"]
