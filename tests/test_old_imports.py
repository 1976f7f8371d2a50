"""A learner's copy from before modules moved: each import of it works after the repair, and nothing else is touched."""

import ast
import importlib
import io
import json
import tokenize
from pathlib import Path

import pytest

from course_lib.learner.moved import MODULES, NAMES, import_today, module_today
from course_lib.learner.old_imports import is_readable, rewrite
from course_lib.learner.still_old import still_old

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
        ("print(\n    '%d'\n    % course_lib.masks.N\n)", "print(\n    '%d'\n    % course_lib.attention.mask.N\n)"),
        ("x = 7 \\\n    % course_lib.masks.N", "x = 7 \\\n    % course_lib.attention.mask.N"),
        ("!ls \\\n  'it\nfrom course_lib.masks import a",
         "!ls \\\n  'it\nfrom course_lib.attention.mask import a"),
        ("import numpy as np, course_lib.rope", "import numpy as np, course_lib.positions"),
        ("import course_lib.cache.prefix\ncourse_lib.cache.prefix.PrefixCache()",
         "import course_lib.cache.prefix\ncourse_lib.cache.prefix.PrefixIndex()"),
        ("from course_lib import cache; cache.prefix.PrefixCache",
         "from course_lib import cache; cache.prefix.PrefixIndex"),
        ("import course_lib.walkthrough; course_lib.walkthrough.Setting.x",
         "import course_lib.commands.walkthrough; course_lib.commands.walkthrough.Knobs.x"),
        ("from course_lib import walkthrough as w; w.Setting",
         "from course_lib.commands import walkthrough as w; w.Knobs"),
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
        'f\'{    )#"""import (} ,course_lib.masks.\n }',  # Python 3.13.0's tokenizer raises SystemError
        "\r\u00e4'%%time\n\x00%%time\n\n\x0c%%time\nf'{\n;",  # and here, from 3.12 on, UnicodeDecodeError
        "",
        "\\",
    ],
)
def test_what_is_no_old_import_stays_as_it_is(text):
    assert rewrite(text, {}) == (text, [])


@pytest.mark.parametrize(
    "old",
    [
        "if x: from course_lib import (rope,  # the angles\n    masks)",
        "x = 1; from course_lib import (  # one\n    rope,  # two\n    masks,\n    # three\n); y = 2  # four",
        "if True: \\\n    from course_lib import rope, masks",
        "if True:\n    \\\n    from course_lib import rope, masks",
        "if x: from course_lib import (rope,  # the angles\r\n    masks)\r\n",
        "from course_lib import (rope\n    as r,  # the angles\n    masks)  # both",
    ],
)
def test_a_repaired_import_is_python_binds_the_same_names_and_keeps_every_comment(old):
    new, _ = rewrite(old, {})
    imports = [[a.asname or a.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) for a in n.names]
               for text in (old, new)]
    assert sorted(imports[0]) == sorted(imports[1]) and rewrite(new, {}) == (new, [])
    comments = [[t.string.strip() for t in tokenize.generate_tokens(io.StringIO(text).readline)
                 if t.type == tokenize.COMMENT] for text in (old, new)]
    assert comments[0] == comments[1] and new != old
    assert new.count("\r\n") == new.count("\n") or "\r" not in old


# ---- what is left to the learner, and named


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("def f(:\n    import numpy as np, course_lib.rope", "course_lib.rope"),
        ("def f(:\nfrom course_lib import cost, rope", "course_lib.rope"),
        ("def f(:\nfrom course_lib import (\n    cost,\n    rope\n)", "course_lib.rope"),
        ("def f(:\n    return course_lib.cache.radix.RadixTree()", "course_lib.cache.radix.RadixTree"),
        ("'''\nfrom course_lib.masks import a", "course_lib.masks"),
        ('importlib.import_module("course_lib.rope")', "course_lib.rope"),
        ("__import__('course_lib.rope.inner')", "course_lib.rope"),
        ("exec('''\nfrom course_lib import engine, rope\n''')", "course_lib.rope"),
        ("%time import course_lib.rope", "course_lib.rope"),
        ("!python -m course_lib.rope", "course_lib.rope"),
        ("%%writefile x.py\nfrom course_lib.masks import a", "course_lib.masks"),
        ("from course_lib import rope as, masks", "course_lib.rope"),
        ("from course_lib import rope, masks if x else y", "course_lib.rope"),
        ("from course_lib import rope,", "course_lib.rope"),
        ("from course_lib.masks import", "course_lib.masks"),
        ("import course_lib.environment\ncourse_lib.environment.explain('x')", "course_lib.environment.explain"),
        ("from course_lib import weights\nweights.converter()", "course_lib.weights.converter"),
        ("from course_lib import cost\ncost.one_shot.seconds()", "course_lib.cost.one_shot"),
        ("from course_lib.walkthrough import *\nSetting(1)", "course_lib.walkthrough.Setting"),
    ],
)
def test_what_the_repair_leaves_is_named_with_its_line(text, old):
    aliases = {}
    new, _ = rewrite(text, aliases)
    (use,) = still_old(new, aliases)
    assert use.old == old and use.today == ".".join(import_today(*old.rpartition(".")[::2]))
    assert use.line in new and use.line in text.splitlines()[-1] + text  # as the learner wrote it
    assert rewrite(new, aliases)[0] == new


@pytest.mark.parametrize(
    "text",
    [
        "s = 'import course_lib.rope'  # from course_lib import masks",
        '"""Once\nfrom course_lib.masks import a\n"""',
        "print(f'course_lib.rope {x}')",
        "def f(:\n    # import course_lib.rope\n    'course_lib.rope'",
        "%%markdown\nfrom course_lib.masks import a",
        "from course_lib import cache, cost\ncache.prefix.PrefixIndex(), mine.cache.prefix.PrefixCache, cost.model",
        "rope = masks = 1\nrope.masks, mine.course_lib.rope",
        "f(Setting)",
        "",
    ],
)
def test_prose_and_names_of_today_are_not_taken_for_old_uses(text):
    aliases = {}
    new, changes = rewrite(text, aliases)
    assert (new, changes) == (text, []) and still_old(new, aliases) == []


def test_nothing_that_is_handed_out_today_is_taken_for_an_old_use():
    aliases = {}
    for path in (Path(__file__).parents[1] / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "code":
                assert rewrite(text, aliases) == (text, []) and still_old(text, aliases) == []


def test_a_cell_that_is_no_python_is_known():
    assert is_readable("%time x\nfrom course_lib.masks import a") and is_readable("") and is_readable("%%bash\nls 'x")
    assert not is_readable("def f(:\n    x = (1")


def test_what_changed_is_said_once_in_words():
    _, said = rewrite("from course_lib.masks import a, b\nfrom course_lib.masks import c", {})
    assert said == ["course_lib.masks is now course_lib.attention.mask"]
    _, said = rewrite("from course_lib import masks", {})
    assert said == ["course_lib.masks is now course_lib.attention.mask"]
    _, said = rewrite("from course_lib.cache.radix import RadixTree, common", {})
    assert said == ["course_lib.cache.radix.RadixTree is now course_lib.cache.radix.RadixCache"]
