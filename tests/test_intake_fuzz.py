"""Any file is read or refused, any cells have an answer or none, and code that is hard on a parser stops nobody."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_intake import CHECK, GOOD, STUB, notebook, run, taken, written

from autograder.grading.intake import Notebook, Refused, answer_to, defines, read_notebook
from autograder.grading.statements import MAX_CELL, Cell


def test_an_answer_that_is_made_of_itself_comes_whole(tmp_path):
    wrapped = "import functools\nf = functools.lru_cache(f)"
    for sources in ((GOOD, wrapped), (GOOD + "\n" + wrapped,), (STUB, GOOD, wrapped, CHECK)):
        assert run(taken(tmp_path, *sources))(5) == 5
    answer = taken(tmp_path, "def f(x):\n    f.calls += x\n    return f.calls\nf.calls = 3", CHECK, "f.calls = 100")
    assert run(answer)(5) == 8


BINDS = [
    "(n := 3)", "for n in (1, 3): pass", "with open('x') as n: pass", "n: int = 3", "n, *m = 3, 4", "import n",
    "if True:\n    n = 3", "try:\n    1 / 0\nexcept ZeroDivisionError as n:\n    pass", "match 3:\n    case n: pass",
]  # fmt: skip
BINDS_NOT = ["[n for n in (1,)]", "lambda: (n := 3)", "n: int", "def g():\n    n = 3", "del n"]


@pytest.mark.parametrize("statement", BINDS)
def test_a_name_is_bound_by_whatever_binds_names(statement, tmp_path):
    assert statement in taken(tmp_path, statement, "def f(x):\n    return n").source


@pytest.mark.parametrize("statement", BINDS_NOT)
def test_a_statement_that_binds_a_name_elsewhere_is_not_taken(statement, tmp_path):
    assert statement not in taken(tmp_path, "n = 2", statement, "def f(x):\n    return n").source


def test_what_only_the_compiler_refuses_is_left_to_the_sandbox(tmp_path):
    answer = taken(tmp_path, "n = 0\nm = 1", "def f(x):\n    print(n)\n    global n\n    return m")
    assert answer.cell == 2 and "m = 1" in answer.source


def test_a_statement_beside_a_semicolon_is_taken_as_it_is_written(tmp_path):
    answer = taken(tmp_path, "x = 'ä'; f = lambda x: 'ü' + x  # mine")
    assert run(answer)("b") == "üb" and "# mine" in answer.source and "'ä'" not in answer.source
    assert "raise" not in taken(tmp_path, "f = (lambda x: x +\n 1) ; raise Exception").source


# Text that is hard on a parser

CHAINS = {
    "dots": "x" + ".a" * 24_000, "sums": "x" + "+x" * 24_000, "calls": "x" + "()" * 24_000, "minus": "-" * 48_000 + "1",
    "brackets": "[" * 48_000, "parentheses": "(" * 24_000 + ")" * 24_000, "not": "not " * 12_000 + "1",
    "lambdas": "lambda:" * 6_000 + "1", "choices": "1 if 1 else " * 4_000 + "1", "powers": "2**" * 16_000 + "1",
    "comparisons": "1<" * 24_000 + "1", "texts": "f'{x}' " * 7_000, "digits": "9" * 48_000, "commas": "x," * 24_000,
    "500 terms": "x" + "+x" * 500, "a megabyte": "x" + ".a" * 200_000, "a zero byte": "1\0", "a surrogate": "'\ud800'",
}  # fmt: skip


@pytest.mark.parametrize("kind", CHAINS)
def test_an_expression_that_is_hard_on_a_parser_stops_nobody(kind, tmp_path):
    answer = taken(tmp_path, f"def f(x):\n    return {CHAINS[kind]}", "y = " + CHAINS[kind])
    assert answer.cell == 1 and answer.source
    assert run(taken(tmp_path, "y = " + CHAINS[kind], GOOD))(5) == 5


MEGABYTES = {
    "statements on a line": ["f = 1; " * 7_000] * 3,
    "definitions": ["def f(x):\n    return 1\n" * 10] * 3_000,
    "stars": ["from a import *\n" * 3_000] * 15 + [GOOD],
    "helpers of helpers": [f"def h{i}(x):\n    return h{i + 1}(x)" for i in range(4_900)] + ["def f(x): return h0(x)"],
    "magics": ["%a\n" * 600 + GOOD],
    "cells of magics": ["%a\n" * 300 + GOOD] * 500,
    "questions": ["f?\n" * 300],
    "branches": ["if 1:\n    f = 1\n" + "elif 1:\n    f = 2\n" * 400],
    "names of names": ["\n".join(f"n{i} = n{i + 1}" for i in range(3_000)) + "\nf = n0"],
}


@pytest.mark.parametrize("kind", MEGABYTES)
def test_a_megabyte_of_code_is_read_within_seconds(kind, tmp_path):
    """Time is not asserted: what this guards against are minutes, and errors that stop the grader."""
    answer = taken(tmp_path, *MEGABYTES[kind])
    assert answer.cell is None or answer.source


def test_a_cell_that_is_too_long_to_be_parsed_is_left_to_the_sandbox(tmp_path):
    answer = taken(tmp_path, GOOD + "\n" + "# x" * MAX_CELL)
    assert answer.cell == 1 and run(answer)(5) == 5


@pytest.mark.parametrize("line", ["<<<<<<< a\n", "=======\n", "<<<<<<< a\n=======\n", ">>>>>>> a\n"])
def test_conflicts_without_end_are_refused(line, tmp_path):
    with pytest.raises(Refused, match="no JSON"):
        read_notebook(written(tmp_path, (line * 300_000).encode()))


# The right cell, against an oracle that looks at all of them

PIECES = st.lists(
    st.sampled_from(["stub", "def", "lambda", "check", "other", "broken", "conditional"]), min_size=1, max_size=8
)


def source_of(piece, number):
    """A cell; its f, if it defines one, returns its number."""
    return {
        "stub": STUB, "def": f"def f(x):\n    return {number}", "check": CHECK,
        "lambda": f"x = 1; f = lambda x: {number}",
        "other": f"g = 1\nf.attribute = {number}", "broken": "def f(x:\n    return",
        "conditional": f"if True:\n    def f(x):\n        return {number}",
    }[piece]  # fmt: skip


@given(PIECES)
def test_of_cells_in_any_order_the_one_that_a_reader_would_take_is_taken(pieces):
    numbered = list(enumerate(pieces, start=1))
    found = Notebook(tuple(Cell(i, source_of(piece, i)) for i, piece in numbered))
    right = [i for i, piece in numbered if piece in ("def", "lambda", "conditional")]
    check = next((i for i, piece in numbered if piece == "check"), 0)
    broken = [i for i, piece in numbered if piece == "broken"]
    best = [i for i in right if i < check] or right or broken
    answer = answer_to("f", found)
    assert answer.cell == (best[-1] if best else None) and defines("f", found) == bool(best)
    if right:
        assert run(answer)(5) == best[-1]


# Anything

LINES = st.sampled_from(
    [
        "def f(x):", "    return x", "class f:", "f = ", "(", ")", "[", "'''", '"', "%time", "!ls", "f?", "\\", "\t",
        "if x:",
        "@f", "import f", "from f import *", "global f", "nonlocal f", "check.f(f)", "f.a = 1", "await f", "yield",
        "*f,",
        "\f", "lambda: f", "{f: f for f in f}", "match f:", "    case f:", "ä = ß", "del f", "f: int",
        "with f as f: pass",
        "#", ";", "try:", "except* f:", "async def f():", "%%time", "%%bash", "\0", "\ud800", "f = 1; g = f",
    ]
) | st.text(max_size=20)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.lists(LINES, max_size=8).map("\n".join), max_size=5))
def test_any_cells_have_an_answer_or_none(tmp_path_factory, sources):
    file = written(tmp_path_factory.getbasetemp(), notebook(*sources), "cells.ipynb")
    answer = answer_to("f", read_notebook(file))
    assert answer.cell is None or answer.source


@given(st.data())
def test_a_damaged_notebook_is_read_or_refused(tmp_path_factory, data):
    content = bytearray(json.dumps(notebook(STUB, GOOD, CHECK, "%time\nx = 1")).encode())
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    file = written(tmp_path_factory.getbasetemp(), bytes(content), "damaged.ipynb")
    try:
        answer_to("f", read_notebook(file))
    except Refused:
        pass


@given(st.binary(max_size=500))
def test_bytes_at_random_are_refused(tmp_path_factory, content):
    with pytest.raises(Refused):
        read_notebook(written(tmp_path_factory.getbasetemp(), content, "bytes.ipynb"))
