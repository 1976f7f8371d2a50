"""What an `# include` line and a marked hole become."""

import ast
import json
import re

import pytest
from small_course import FIXTURES, HALF, SETUP, TYPED, make_root
from starting import run_python

from autograder.build import ROOT
from autograder.include import answer_of
from autograder.source import read_lessons
from course_lib.cli import UserError

LIBRARY = (FIXTURES / "small_library.py").read_text("utf-8")


def answer(directory, lesson_text, name):
    root = make_root(directory, lesson_text)
    lesson = read_lessons(root)[0]
    return answer_of(lesson, lesson.solution(name), root)


def include(name, imports="", exercise="1.1"):
    return (
        f'{SETUP}\n# %% id="a" exercise="{exercise}" solution="{name}"\n{imports}# include course_lib.small:{name}\n\n'
        f'# %% id="b" check="{name}" points=1\ncheck.{name}({name})\n'
    )


def library_text(name):
    return ast.get_source_segment(LIBRARY, next(n for n in ast.parse(LIBRARY).body if getattr(n, "name", "") == name))


def test_an_included_function_is_the_librarys_text_to_the_letter(tmp_path):
    parts = answer(tmp_path, SETUP + HALF, "half")
    assert f"{parts.before}\n{parts.hole}" == library_text("half")
    assert parts.before.endswith('returns   x\'s shape\n    """')
    assert parts.hole.startswith("    # a comment that belongs to the body\n")


def test_the_stub_is_the_signature_the_docstring_and_one_line_that_raises(tmp_path):
    parts = answer(tmp_path, SETUP + HALF, "half")
    reminder = '    raise NotImplementedError("Exercise 1.1: write half, then run this cell again.")'
    assert parts.stub() == f"{parts.before}\n{reminder}"
    assert "inner" not in parts.stub()


def test_import_lines_above_an_include_stay_for_the_learner(tmp_path):
    imports = "from collections.abc import Sequence\n\nfrom course_lib.helper import triangle\n\n"
    stub = answer(tmp_path, include("keep", imports), "keep").stub()
    assert stub.startswith(imports + "\ndef keep(items: Sequence[int]) -> None:\n")


def test_an_answer_that_returns_nothing_never_reaches_the_reminder(tmp_path):
    namespace, items = {}, []
    exec(answer(tmp_path, SETUP + HALF + TYPED, "grow").solved(), namespace)
    assert namespace["grow"](items) is None and items == [1]


def test_lines_around_a_typed_hole_stay(tmp_path):
    typed = TYPED.replace("def grow", "START = 0\n\n\ndef grow")
    typed = typed.replace("### END SOLUTION\n", "### END SOLUTION\n\n\nGROWN = START + 1\n")
    stub = answer(tmp_path, SETUP + HALF + typed, "grow").stub()
    assert stub.startswith("START = 0\n\n\ndef grow") and stub.endswith("\n\n\nGROWN = START + 1")
    assert "    last = 1\n    raise NotImplementedError(" in stub and "append(last)" not in stub


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (include("scaled"), "scaled uses SCALE, which this cell does not import"),
        (include("keep"), "keep uses Sequence, triangle, which this cell does not import"),
        (include("bare"), "has no docstring"),
        (include("wrapped"), "an untouched wrapped would not raise"),
        (include("short"), "has no body below its docstring"),
        (include("twice"), "has 2 functions twice"),
        (include("missing"), "has 0 functions missing"),
        (include("half", "x = 1\n"), "something other than import lines"),
        (include("half").replace("small:half", "small:bare"), "it includes bare as the exercise half"),
        (include("half").replace("small:half", "nowhere:half"), "there is no module course_lib.nowhere"),
        (include("half").replace("course_lib.small:half", "numpy:half"), "is not one line of the form"),
        (include("half").replace("# include course_lib.small:half", "# include course_lib.small"), "is not one line"),
        (include("half").replace(":half\n", ":half\n# include course_lib.small:half\n"), "is not one line"),
        (include("half").replace("import numpy as np", "import numpy"), "uses np, which no cell above imports"),
        (SETUP + TYPED.replace("### END SOLUTION\n", ""), "it needs one '### BEGIN SOLUTION'"),
        (SETUP + TYPED.replace("    ### END SOLUTION\n", "    ### END SOLUTION\n    return last\n"), "is not the end"),
        (SETUP + TYPED.replace("def grow", "def shrink"), "it does not define one function grow"),
        (SETUP + TYPED.replace("def grow", "class grow").replace("(items)", ""), "does not define one function grow"),
        (SETUP + TYPED.replace("last = 1", "return"), "an untouched grow would not raise"),
        (SETUP + TYPED.replace("last = 1", "yield 1"), "an untouched grow would not raise"),
        (SETUP + TYPED.replace("def grow", "@print\ndef grow"), "an untouched grow would not raise"),
        (
            SETUP
            + TYPED.replace("    ### B", "    if items:\n        ### B").replace("    items.app", "        items.app"),
            "an untouched grow would not raise",
        ),
        (
            SETUP + TYPED.replace('    """Append 1.\n\n    items   a list\n    """\n', ""),
            "grow has no docstring above the hole",
        ),
    ],
)
def test_an_answer_that_cannot_become_an_exercise_is_refused_with_its_reason(tmp_path, text, complaint):
    name = "grow" if "grow" in text else text.partition('solution="')[2].partition('"')[0]
    with pytest.raises(UserError) as refusal:
        answer(tmp_path, text, name)
    assert complaint in str(refusal.value)
    assert str(refusal.value).startswith("solutions/01_small.py, cell ")


@pytest.fixture(scope="module")
def course_answers():
    """(cell, answer) of every exercise of the course."""
    return [
        (cell, answer_of(lesson, cell, ROOT)) for lesson in read_lessons(ROOT) for cell in lesson.cells if cell.solution
    ]


RUN_ALONE = """
import json, sys
import numpy as np
for name, solved, stub, reminder in json.load(sys.stdin):
    answers, untouched = {"np": np}, {"np": np}
    exec(solved, answers)
    assert callable(answers[name]), name
    exec(stub, untouched)
    holes = [untouched[name]]
    if isinstance(holes[0], type):
        holes = [method for method in vars(holes[0]).values() if callable(method)]
    for hole in holes:
        code = hole.__code__
        only_by_name = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        try:
            hole(*[None] * code.co_argcount, **dict.fromkeys(only_by_name))
        except NotImplementedError as error:
            assert str(error) == reminder, str(error)
        else:
            raise AssertionError(f"the stub of {name} did not raise")
"""


def test_every_answer_of_the_course_runs_alone_and_its_stub_raises(course_answers):
    """Each in a fresh namespace that holds NumPy under its usual name: the rest a cell imports itself."""
    cells = [
        (c.solution, a.solved(), a.stub(), f"Exercise {c.exercise}: write {c.solution}, then run this cell again.")
        for c, a in course_answers
    ]
    run = run_python("-c", RUN_ALONE, input=json.dumps(cells))
    assert run.returncode == 0, run.stderr


def test_what_the_course_includes_is_the_librarys_text_to_the_letter(course_answers):
    included = [(c, a) for c, a in course_answers if "# include" in c.text]
    assert included
    for cell, parts in included:
        module = re.search(r"# include ([\w.]+):", cell.text)[1]
        text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8")
        function = parts.before[re.search(rf"^(def|class) {cell.solution}\b", parts.before, re.MULTILINE).start() :]
        assert f"\n{function}\n{parts.hole}\n" in text
