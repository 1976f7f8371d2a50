"""What learners hand in is read whatever state it is in, none of it is run, and the right cell is taken."""

import json
import os
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.grading.intake import MAX_FILE, Refused, answer_to, read_notebook

STUB = 'def f(x):\n    """Say x."""\n    raise NotImplementedError("Exercise 1.1: write f, then run this cell again.")'
GOOD = "def f(x):\n    return x"
CHECK = 'check.f(f, group="values")'


def code(source, grade_id=None):
    metadata = {"nbgrader": {"grade_id": grade_id}} if grade_id else {}
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": [], "execution_count": None}


def notebook(*sources):
    cells = [source if isinstance(source, dict) else code(source) for source in sources]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def written(tmp_path, content, name="submitted.ipynb"):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return file


def taken(tmp_path, *sources, name="f"):
    return answer_to(name, read_notebook(written(tmp_path, notebook(*sources))))


def run(answer, name="f"):
    namespace = {}
    exec(answer.source, namespace)
    return namespace[name]


# Files


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_notebook_is_read_in_any_encoding_that_editors_write(tmp_path, encoding):
    file = written(tmp_path, json.dumps(notebook("x = 'ä'"), ensure_ascii=False).encode(encoding))
    assert read_notebook(file).cells[0].source == "x = 'ä'"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"), (b"  \n", "is empty"), (b"\xff\xfa\x00", "not written in UTF-8"), (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"), (b"[]", "no notebook"), (b"{}", "no cells"), (b'{"cells": 5}', "no cells"),
        (b'{"cells": [' + b",".join([b"{}"] * 6_000) + b"]}", "6,000 cells"),
        (notebook("x = 1\n" * 400_000), "characters of code"),
    ],
)  # fmt: skip
def test_what_is_no_notebook_is_refused_with_the_reason(tmp_path, content, says):
    with pytest.raises(Refused, match=says):
        read_notebook(written(tmp_path, content))


def test_links_devices_and_directories_are_not_followed(tmp_path):
    secret = written(tmp_path, notebook("secret"), "secret")
    link = tmp_path / "link.ipynb"
    link.symlink_to(secret)
    os.mkfifo(tmp_path / "fifo.ipynb")
    for path in (link, tmp_path / "fifo.ipynb", tmp_path, tmp_path / "missing.ipynb", "/dev/zero"):
        with pytest.raises(Refused):
            read_notebook(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    file = tmp_path / "large.ipynb"
    with file.open("wb") as f:
        f.truncate(MAX_FILE + 1)
    with pytest.raises(Refused, match="Clear the outputs"):
        read_notebook(file)


KEYS = st.sampled_from(["cells", "source", "cell_type", "metadata", "nbgrader", "grade_id", "worksheets", "input"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.just("code")


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_any_json_is_read_or_refused(tmp_path_factory, content):
    file = written(tmp_path_factory.getbasetemp(), content, "any.ipynb")
    try:
        answer_to("f", read_notebook(file))
    except Refused:
        pass


def test_format_3_and_lists_of_lines_are_read(tmp_path):
    old = {"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code", "input": ["def f(x):\n", "    return x"]}]}]}
    assert run(answer_to("f", read_notebook(written(tmp_path, old))))(3) == 3


def test_of_a_merge_conflict_the_second_version_is_taken(tmp_path):
    lines = json.dumps(notebook("x = 1", "y = 2"), indent=1).splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if "x = 1" in line)
    mine, theirs = lines[place], lines[place].replace("x = 1", "x = 9")
    lines[place] = f"<<<<<<< HEAD\n{mine}=======\n{theirs}>>>>>>> other\n"
    found = read_notebook(written(tmp_path, "".join(lines).encode()))
    assert found.cells[0].source == "x = 9" and "1 unresolved merge conflict" in found.notes[0]


# Which cell is the answer


def test_the_last_definition_above_its_check_is_taken(tmp_path):
    answer = taken(tmp_path, "def f(x):\n    return 0", GOOD, CHECK, "def f(x):\n    return 1")
    assert answer.cell == 2 and run(answer)(5) == 5 and "3 times" in answer.notes[0]


def test_an_answer_below_its_check_is_found(tmp_path):
    answer = taken(tmp_path, STUB, CHECK, GOOD)
    assert answer.cell == 3 and run(answer)(5) == 5 and "below its check" in answer.notes[0]


def test_a_stub_that_was_put_back_is_passed_over(tmp_path):
    for sources in (
        (GOOD, STUB, CHECK),
        (STUB, GOOD, CHECK),
        (code(STUB, "f"), code(GOOD, "f"), code(CHECK, "f__values")),
    ):
        assert run(taken(tmp_path, *sources))(5) == 5
    assert taken(tmp_path, STUB, CHECK).cell is None


def test_an_answer_may_be_a_class_a_lambda_or_decorated(tmp_path):
    assert run(taken(tmp_path, "class f:\n    def __call__(self, x):\n        return x"))()(3) == 3
    assert run(taken(tmp_path, "f = lambda x: x"))(3) == 3
    assert run(taken(tmp_path, "import functools\n@functools.lru_cache\ndef f(x):\n    return x"))(3) == 3
    assert run(taken(tmp_path, "g = 1; f = lambda x: x + g"))(3) == 4


def test_a_class_whose_methods_are_stubs_is_a_stub(tmp_path):
    stub = "class f:\n    def go(self):\n        raise NotImplementedError('x')"
    assert taken(tmp_path, stub).cell is None
    assert taken(tmp_path, stub + "\n    def more(self):\n        return 1").cell == 1


def test_what_the_answer_needs_comes_with_it_and_nothing_else(tmp_path):
    answer = taken(
        tmp_path,
        "import math as m, sys\nprint('hello')\nopen('/tmp/evil', 'w')",
        "TABLE = {}\nTABLE[1] = 2\nunused = open('/nowhere')",
        "def helper(x):\n    return m.floor(x) + TABLE[1] + late()",
        "def f(x):\n    return helper(x)",
        CHECK,
        "def late():\n    return 100",
    )
    assert run(answer)(3.5) == 105
    assert "print" not in answer.source and "open" not in answer.source and "check" not in answer.source


def test_a_local_name_takes_nothing_of_the_notebook_along(tmp_path):
    answer = taken(tmp_path, "rows = open('/nowhere')", "def f(x):\n    rows = x\n    return [rows for rows in [x]][0]")
    assert run(answer)(7) == 7 and "open" not in answer.source


def test_of_a_helper_defined_twice_the_last_counts_as_in_a_notebook(tmp_path):
    answer = taken(tmp_path, "def h():\n    return 1", "def f(x):\n    return h()", "def h():\n    return 2")
    assert run(answer)(0) == 2


def test_magics_and_shell_lines_do_no_harm(tmp_path):
    cell = "%matplotlib inline\n!pip install x\nfiles = !ls\nint?\ndef f(x):\n    return (x\n        % 3)"
    assert run(taken(tmp_path, cell))(5) == 2
    assert run(taken(tmp_path, "def f(x):\n    return (x\n        % 3)"))(5) == 2
    assert run(taken(tmp_path, "%%time\ndef f(x):\n    return x"))(5) == 5
    assert taken(tmp_path, "%%bash\ndef f(x):\n    return x").cell is None
    assert run(taken(tmp_path, "%load_ext autoreload\nimport math", "def f(x):\n    return math.floor(x)"))(5.5) == 5


def test_a_syntax_error_elsewhere_does_no_harm_and_in_the_answer_it_is_kept(tmp_path):
    assert run(taken(tmp_path, "def g(:", GOOD))(5) == 5
    answer = taken(tmp_path, "def f(x)\n    return x", CHECK)
    assert answer.cell == 1 and "def f(x)\n" in answer.source


def test_nothing_of_a_check_is_run(tmp_path):
    answer = taken(tmp_path, "result = check.f(f)", "def f(x):\n    return result")
    assert "check" not in answer.source


def test_decorators_and_comments_of_the_answer_stay_with_it(tmp_path):
    cell = textwrap.dedent(
        """
        def twice(fn):
            return lambda x: 2 * fn(x)  # outside

        @twice
        def f(x):
            # inside
            return x
        """
    )
    answer = taken(tmp_path, cell)
    assert run(answer)(4) == 8 and "# inside" in answer.source
