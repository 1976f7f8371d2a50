"""A new exercise begins as a skeleton, and `build --check` says what it lacks until it is whole."""

import re
import shutil

import pytest
from starting import ROOT, run_python

from autograder.new import new_exercise
from course_lib.cli import UserError

SOLUTION = '''

def row_sums(chunk_len: int, cached_len: int) -> list[int]:
    """How many keys each query of a chunk sees: chunk_len numbers."""
    return [cached_len + row + 1 for row in range(chunk_len)]
'''
NEW = ("new", "row_sums", "--notebook", "02", "--module", "course_lib.attention.mask")
MISTAKES = '''
MISTAKES = """
    from_zero
      cached_len + row + 1  ->  cached_len + row
    A query sees its own key as well: one more than the keys before it.

    cache_forgotten
      cached_len + row + 1  ->  row + 1
    The cached keys are not counted.

    all_keys
      cached_len + row + 1  ->  cached_len + chunk_len
    Every query is said to see all keys, those after it too.

    chunk_for_cache
      cached_len + row + 1  ->  chunk_len + row + 1
    The chunk's length is added where the number of cached keys belongs.

    one_row_short
      range(chunk_len)  ->  range(chunk_len - 1)
    The last query is missing.
"""
'''
RIGHT = """

def row_sums_1(chunk_len, cached_len):
    return list(range(cached_len + 1, cached_len + chunk_len + 1))


def row_sums_2(chunk_len, cached_len):
    return (np.arange(chunk_len) + cached_len + 1).tolist()
"""


def copied(folder):
    for name in ("autograder", "course_lib", "solutions", "notebooks", "tests/right_answers"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def copy(tmp_path):
    return copied(tmp_path)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """One copy for the tests in which nothing is written."""
    return copied(tmp_path_factory.mktemp("course"))


def autograder(folder, *arguments):
    return run_python("-m", "autograder", *arguments, cwd=folder, env={"PYTHONPATH": str(folder)})


def append(file, text):
    file.write_text(file.read_text("utf-8") + text, "utf-8")


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*.py"))}


def test_from_a_function_to_an_exercise_that_build_accepts(copy):
    append(copy / "course_lib" / "attention" / "mask.py", SOLUTION)
    done = autograder(copy, *NEW)
    assert done.returncode == 0 and "nb02_row_sums.py: written" in done.stdout, done.stderr
    assert autograder(copy, "build").returncode == 0
    lacks = autograder(copy, "build", "--check")
    assert lacks.returncode == 1
    said = lacks.stdout
    for what in ("0 of 5 known mistakes", "0 of 2 right answers", "group values has no case", "still says TODO"):
        assert f"row_sums: {what}" in said or what in said, said

    check = copy / "autograder" / "exercises" / "nb02_row_sums.py"
    text = check.read_text("utf-8")
    text = re.sub(r'\n# TODO at least.*?\n"""\n', MISTAKES, text, flags=re.S)
    text = re.sub(r"    yield from .*", "    yield 3, 5\n    yield 1, 0\n    yield draw(2, 20), draw(2, 20)", text)
    check.write_text("broken(", "utf-8")
    broken = autograder(copy, "build")
    assert broken.returncode == 2 and len(broken.stderr.splitlines()) == 1 and "nb02_row_sums.py" in broken.stderr
    check.write_text(re.sub(r"  # TODO.*|TODO ", "", text), "utf-8")
    right = copy / "tests" / "right_answers" / "nb02.py"
    right.write_text(right.read_text("utf-8").partition("\n\ndef row_sums_1")[0] + RIGHT, "utf-8")
    lesson = copy / "solutions" / "02_mask.py"
    lesson.write_text(lesson.read_text("utf-8").replace("TODO", "What"), "utf-8")
    assert autograder(copy, "build").returncode == 0
    whole = autograder(copy, "build", "--check")
    assert whole.returncode == 0, whole.stdout + whole.stderr

    code = """
from autograder import check
check.row_sums(lambda chunk_len, cached_len: list(range(cached_len + 1, cached_len + chunk_len + 1)))
try:
    check.row_sums(lambda chunk_len, cached_len: list(range(1, chunk_len + 1)))
except check.CheckFailed as error:
    print(error)
"""
    checked = run_python("-c", code, cwd=copy, env={"PYTHONPATH": str(copy)})
    assert "Exercise 2.4 row_sums: values (3 cases) passes." in checked.stdout, checked.stderr
    assert "row_sums(3, 5): number 0 is 1, it should be 6. The cached keys are not counted." in checked.stdout


@pytest.mark.parametrize(
    "name, notebook, module, says",
    [
        ("row_sums", "02", "course_lib.attention.mask", "Write the solution first"),
        ("ragged_mask", "02", "course_lib.attention.mask", "an exercise ragged_mask"),
        ("ragged_mask", "12", "course_lib.attention.mask", "no notebook '12'"),
        ("ragged mask", "02", "course_lib.attention.mask", "no name of a function"),
        ("class", "02", "course_lib.attention.mask", "no name of a function"),
        ("ndarray", "02", "numpy", "no module of course_lib"),
        ("row_sums", "02", "course_lib.nowhere", "Write the solution first"),
        ("Model", "02", "course_lib.model", "no function with a docstring"),
        ("CLOSE", "2", "autograder.compare", "no module of course_lib"),
        ("MODULES", "3", "course_lib.learner.moved", "no function with a docstring"),
    ],
)
def test_what_cannot_become_an_exercise_is_refused_and_nothing_is_written(unchanged, name, notebook, module, says):
    before = contents(unchanged)
    with pytest.raises(UserError, match=says):
        new_exercise(name, notebook, module, unchanged)
    assert contents(unchanged) == before


def test_a_file_that_is_there_already_is_kept(copy):
    there = copy / "autograder" / "exercises" / "nb02_attend_tiled.py"
    there.write_text("# kept\n", "utf-8")
    before = contents(copy)
    with pytest.raises(UserError, match="exists already"):
        new_exercise("attend_tiled", "02", "course_lib.attention.tiled", copy)
    assert contents(copy) == before


def test_on_the_command_line_a_refusal_is_one_line():
    for arguments in (NEW, NEW[:4], ("new",)):
        done = autograder(ROOT, *arguments)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
