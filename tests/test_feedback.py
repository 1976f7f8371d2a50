"""A student reads on the page what the notebook would say, about their own cells and lines, and what to do next."""

import json
import re
from html.parser import HTMLParser

import pytest

from autograder import check
from autograder.exercises import EXERCISES
from autograder.grading import remote, report
from autograder.grading.grade import Graded, Task, grade_file
from autograder.grading.report import Row
from autograder.grading.sandbox import level

LEVEL = level()
HEAVY = ("prefill", "check_composition", "my_policy", "plan_step", "attend", "rope")  # a second or more each


def quick(place, exercise):
    """Of every third light exercise one mistake is graded in every run; all the others are slow."""
    names = list(EXERCISES)
    heavy = exercise.name in HEAVY or "torch" in exercise.imports
    return place == 0 and not heavy and names.index(exercise.name) % 3 == 0


MISTAKES = [
    pytest.param(e, w, id=f"{e.name}-{w.name}", marks=[] if quick(place, e) else [pytest.mark.slow])
    for e in EXERCISES.values()
    for place, w in enumerate(e.wrong_answers)
]


def graded(folder, name, *sources, groups=None, seed=5):
    """A notebook of these cells, graded in the groups of one exercise."""
    exercise = EXERCISES[name]
    cells = [{"cell_type": "code", "source": exercise.imports, "metadata": {}}]
    cells += [s if isinstance(s, dict) else {"cell_type": "code", "source": s, "metadata": {}} for s in sources]
    file = folder / "submitted.ipynb"
    file.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), "utf-8")
    worth = {f"{name}__{group.name}": 2.0 for group in exercise.groups if groups is None or group.name in groups}
    return grade_file(file, exercise.notebook, worth, seed, LEVEL)


def in_the_notebook(exercise, group, source):
    """What check.NAME says of an answer; "" if it passes."""
    try:
        getattr(check, exercise.name)(exercise.compile(source), group=group.name)
    except check.CheckFailed as failed:
        return str(failed)
    return ""


def with_cells(text, source, cell):
    """A message of a notebook's check with the places that feedback names: its (line 9) of the cell that holds it."""
    lines = source.split("\n")

    def there(found):
        return f"(cell {cell}, line {found[1]}: {lines[int(found[1]) - 1].strip()})"

    return re.sub(r"\(line (\d+)\)", there, text)


@pytest.mark.parametrize(("exercise", "wrong"), MISTAKES)
def test_a_kept_wrong_answer_is_named_in_the_feedback_as_in_the_notebook(exercise, wrong, tmp_path, capsys):
    found = graded(tmp_path, exercise.name, wrong.source)
    named = 0
    for task, group in zip(found.tasks, exercise.groups, strict=True):
        said = in_the_notebook(exercise, group, wrong.source)
        if not said:
            assert task.score or task.diagnosis.startswith("It passes on the inputs that you see")
            continue
        named += 1
        title = f"Exercise {exercise.number} {exercise.name}, {group.name}: "
        assert title + task.diagnosis == with_cells(said, wrong.source, cell=2)
        assert task.mistakes == (wrong.name,) and wrong.message in task.diagnosis and task.score == 0
    assert named


# Errors


MASK = "chunk_attention_mask"
HEAD = f"def {MASK}(chunk_len, cached_len):\n"
TEXT = {"cell_type": "markdown", "source": "# 02", "metadata": {}}
STUB = 'def helper(c, k):\n    """Help."""\n    raise NotImplementedError("Exercise 2.0: write helper")'
SAID = {
    "a colon is missing": (
        [f"x = 1\n\ndef {MASK}(chunk_len, cached_len)\n    return 1"],
        f"Cell 3 is no Python, so nothing of it could be run. Line 3: expected ':'.\n"
        f"    def {MASK}(chunk_len, cached_len)\nMend that line",
    ),
    "an indented line too much": ([HEAD + "    m = 1\n      m = 2\n    return m"], "Line 3: unexpected indent."),
    "a line that only a loop may have": (
        [HEAD + "    break\n    return 1"],
        "raised SyntaxError: 'break' outside loop (cell 3, line 2: break).",
    ),
    "global too late": ([HEAD + "    y = 1\n    global y\n    return y"], "(cell 3, line 3: global y)"),
    "an error in the answer": (
        ["# mine\n\n" + HEAD + "    m = np.zeros(3)\n    m[chunk_len] = 1\n    return m"],
        f"{MASK}(3, 5) raised IndexError: index 3 is out of bounds for axis 0 with size 3 "
        "(cell 3, line 5: m[chunk_len] = 1). Reread",
    ),
    "an error in a helper of another cell": (
        [HEAD + "    return helper(1)", "y = 2\n\n\ndef helper(x):\n    return [][x]"],
        "(cell 4, line 5: return [][x])",
    ),
    "an error below a decorator and a magic": (
        ["\n%%time\nimport functools\n@functools.cache\n" + HEAD + "    return 1 / 0"],
        "(cell 3, line 6: return 1 / 0)",
    ),
    "a module that is not there": (
        ["import no_such_module as x", HEAD + "    return x.f(1)"],
        "No module named 'no_such_module' (cell 3, line 1: import no_such_module as x). That line stands outside of "
        "your function, so the error came up before the first call. Answers are graded with NumPy and Python's own "
        "library: write it without no_such_module.",
    ),
    "an import that was forgotten": (
        [HEAD + "    return math.floor(1)"],
        "Write import math in the cell of your answer.",
    ),
    "a name misspelled": (
        [HEAD + "    return np.ones((chunk_len, cache_len))"],
        "No cell of the notebook defines cache_len. Did you mean cached_len?",
    ),
    "a cell deleted": ([HEAD + "    return helper(1, 2)"], "helper: is it misspelled, or was its cell deleted?"),
    "a helper that is no Python": (
        ["def helper(a b):\n    return a", HEAD + "    return helper(1, 2)"],
        "Cell 3 would define helper, but it is no Python: mend it.",
    ),
    "a helper that is not written": ([STUB, HEAD + "    return helper(1, 2)"], "helper is not written yet (cell 3)"),
    "a name defined too late": (
        ["A = B + 1", "B = 5", HEAD + "    return A"],
        "Cell 4 defines B, but only after the line that needs it has run.",
    ),
    "parameters of another number": (
        [f"def {MASK}(chunk_len):\n    return 1"],
        f"takes 1 positional argument but 2 were given. It is called as {MASK}(chunk_len, cached_len).",
    ),
    "calls itself": ([HEAD + f"    return {MASK}(1, 2)"], "It calls itself without end"),
    "prints in place of returning": (
        [HEAD + "    print('here I am')"],
        "returned None. Does your function end in a return line?\nYour function printed:\nhere I am\n",
    ),
    "asks for input": ([HEAD + "    return int(input('n? '))"], "Nobody answers input()"),
    "reads a file": ([HEAD + "    return open('mask.txt').read()"], "without files and without a network"),
    "a variable that only one branch sets": (
        [HEAD + "    if chunk_len > 100:\n        m = 1\n    return m"],
        "No line has given m a value before",
    ),
    "yields": ([HEAD + "    yield 1"], f"<generator object {MASK}>, and not an array of numbers. A function"),
    "async": (["async " + HEAD + "    return 1"], "Write def in place of async def."),
    "no function": ([f"{MASK} = 5"], f"Cell 3 gives the name {MASK} to something else"),
    "ends Python": ([HEAD + "    import sys\n    sys.exit('bye')"], "raised SystemExit: bye (cell 3, line 3"),
    "a name of Jupyter's": ([HEAD + "    get_ipython()\n    return 1"], "Only notebooks have get_ipython"),
    "another name for the function": (
        [TEXT | {"cell_type": "code", "source": "def mask(c, k): pass", "metadata": {"nbgrader": {"grade_id": MASK}}}],
        f"no cell of the notebook defines {MASK}. Cell 3 defines mask: is that your answer? Then call it {MASK}.",
    ),
    "the function's name misspelled": (
        ["def chunk_atention_mask(c, k):\n    return 1"],
        "Cell 3 defines chunk_atention_mask: is that your answer?",
    ),
    "nothing": (["x = 1"], f"no cell of the notebook defines {MASK}. Copy its cell from a fresh notebook"),
    "a stub": ([STUB.replace("helper", MASK)], f"Exercise 2.1, {MASK}, is not written yet."),
    "a text of its own with a place in it": (
        [HEAD + "    raise ValueError('(line 1: nothing) (line 9) (line 99: x)')"],
        "ValueError: (line 1: nothing) (line 9) (line 99: x) (cell 3, line 2: raise",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_an_error_is_told_with_the_students_own_cell_and_line_and_with_what_to_do(name, tmp_path):
    sources, said = SAID[name]
    found = graded(tmp_path, MASK, TEXT, *sources, groups=["values"])
    assert found.score == 0 and said in found.tasks[0].diagnosis


PARTLY = """\
class KVCache:
    def __init__(self, num_layers, kv_heads, head_dim):
        self.k = []

    def append(self, layer, k, v):
        \"\"\"Keep them.\"\"\"
        raise NotImplementedError("Exercise 1.1: write KVCache, then run this cell again.")

    def view(self, layer):
        raise NotImplementedError("Exercise 1.1: write KVCache, then run this cell again.")
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (PARTLY, "is not written yet. Still to be written: append (cell 2, line 5), view (cell 2, line 9). Replace"),
        ("class KVCache:\n    def __init__(self):\n        pass", "It is called as KVCache(num_layers, kv_heads, head"),
        ("class KVCache:\n    pass", "raised TypeError: KVCache() takes no arguments. It is called as KVCache(num_lay"),
        ("KVCache = 3", "Cell 2 gives the name KVCache to something else: write a class."),
    ],
    ids=["partly written", "other parameters", "empty", "no class"],
)
def test_an_answer_that_is_a_class_is_explained_too(source, said, tmp_path):
    assert said in graded(tmp_path, "KVCache", source, groups=["views"]).tasks[0].diagnosis


def test_what_is_said_is_the_same_each_time(tmp_path):
    source = HEAD + "    return lambda: 1"
    first, again = (graded(tmp_path, MASK, source, groups=["values"]) for _ in range(2))
    assert first == again and " at 0x" not in first.tasks[0].diagnosis


def test_a_broken_cell_beside_an_older_answer_is_not_passed_over_in_silence(tmp_path):
    right = HEAD + "    return np.tri(chunk_len, chunk_len + cached_len, cached_len, dtype=bool)"
    found = graded(tmp_path, MASK, right, right.replace("):", ")"), groups=["values"])
    assert found.score == 2 and found.notes == (
        f"{MASK} is also in cell 3, which is no Python; the one in cell 2 was taken.",
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    while True:\n        pass", f"{MASK}(3, 5): your code took longer than 1 s and was stopped. Look for"),
        ("    import os\n    os._exit(0)", f"{MASK}(3, 5): your code ended the process, or used more memory"),
        ("    while chunk_len == 1: pass\n    return np.tri(chunk_len, chunk_len + cached_len, cached_len) > 0",
         f"{MASK}(1, 0): your code took longer than 1 s and was stopped."),
    ],
    ids=["never returns", "ends", "never returns from one call"],
)  # fmt: skip
def test_a_call_that_never_comes_back_is_named(body, said, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 1)
    found = graded(tmp_path, MASK, HEAD + body, groups=["values"])
    assert said in found.tasks[0].diagnosis and "raised" not in found.tasks[0].diagnosis


def test_a_cell_outside_of_the_answer_that_never_ends_is_not_told_as_a_call(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 1)
    endless = "N = sum(1 for _ in iter(int, 1))"
    said = graded(tmp_path, MASK, endless, HEAD + "    return N", groups=["values"]).tasks[0].diagnosis
    assert "your cells took longer than 1 s to run, before any call, and were stopped. Look for a loop" in said


class Fails:
    """An answer of which every call comes to the same outcome."""

    def __init__(self, kind, text):
        from autograder.exercise import Raised

        self.outcome = Raised(kind, text)

    def run(self, calls, *, apart=False):
        return [self.outcome] * len(calls)


GROUPS = [(e, g) for e in EXERCISES.values() for g in e.groups]


@pytest.mark.parametrize(("exercise", "group"), GROUPS, ids=lambda one: one.name)
def test_no_judge_says_that_an_answer_raised_what_a_sandbox_found(exercise, group):
    from autograder.judge import verdict_on

    found = verdict_on(exercise, group, Fails("Timeout", "your code took longer than 20 s and was stopped"), 2)
    assert not found.passed and not found.mistakes
    assert re.search(r"[\w)\]}]: your code took longer than 20 s and was stopped\.", found.what), found.what
    assert "raised" not in found.message and "Timeout" not in found.message


def fails_unseen(what):
    """An answer that knows the inputs of the notebook's check, and does `what` with all others."""
    exercise = EXERCISES[MASK]
    seen = {call.args for call in exercise.group("values").cases(check.PUBLIC_SEED)}
    return (
        f"SEEN = {seen!r}\n\n\n" + HEAD + f"    if (chunk_len, cached_len) not in SEEN:\n        {what}\n"
        "    return np.tri(chunk_len, chunk_len + cached_len, cached_len, dtype=bool)"
    )


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raise KeyError(chunk_len * 10**9 + cached_len)", "There it raises KeyError (cell 2, line 6: raise KeyError("),
        ("raise type('K%d' % chunk_len, (Exception,), {})", ""),
        ("import os; os._exit(chunk_len)", "There your code ended the process, or used more memory than there is."),
        ("return [chunk_len] * 3", ""),
        ("while True: pass", "There your code took too long, and was stopped."),
    ],
)
def test_of_inputs_that_are_not_seen_an_errors_kind_and_line_are_told_and_no_value(what, said, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 1)
    found = graded(tmp_path, MASK, fails_unseen(what), groups=["values"]).tasks[0]
    start = "It passes on the inputs that you see, and fails on others. "
    assert found.score == 0 and found.diagnosis.startswith(start + said)
    behind = found.diagnosis.removeprefix(start + said).removeprefix("chunk_len * 10**9 + cached_len)).")
    assert behind.strip() == "Reread notebook 02, section 2."


# What differs, in the judges' words, reaches the page


@pytest.mark.parametrize(
    ("name", "mistake", "group", "said"),
    [
        (MASK, "top_left", "kv", ("layer 1 K differs", "layer 0 is equal")),
        ("positions", "relative", "kv", ("layer 0 K differs", "layer 0 V is equal")),
        ("attend", "plain", "bits", ("other last bits",)),
    ],
)
def test_the_first_difference_that_a_judge_found_is_on_the_page(name, mistake, group, said, tmp_path):
    found = graded(tmp_path, name, EXERCISES[name].wrong_answer(mistake).source, groups=[group])
    page = report.as_html(Row("ann", found))
    assert all(words in page for words in said), page


# The page


VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in its order; keeps headings, tags, attributes and texts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.attributes, self.texts = [], [], [], {}
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        place = self.open[-1] if self.open else ""
        self.texts[place] = self.texts.get(place, "") + data


BAD = "<script>alert('x')</script></pre><img src=x onerror=alert(1)> & \" \u202e \x00 ä 漢 https://example.org/"
ENDLESS = (BAD * 40_000)[: 3 << 20]


def a_page(said, tasks=3, student="ann", code=""):
    name = "chunk_attention_mask"
    made = tuple(Task(f"{name}__g{n}", n % 2, 1, said, ("strict",)) for n in range(tasks))
    notes = (said,) * 50
    about = {name: said}
    return report.as_html(Row(student, Graded("02_mask", LEVEL, made, notes, {name: code or said}, about)))


@pytest.mark.parametrize("tasks", [1, 3, 40])
@pytest.mark.parametrize("said", ["", "fine", BAD, ENDLESS, "'" * 10**6, "漢" * 10**6, "\n" * 10**6, "&" * 10**6])
def test_a_page_is_small_and_whole_whatever_the_answer_holds(said, tasks):
    text = a_page(said, tasks, student=said or "ann")
    assert len(text.encode()) < report.MAX_PAGE
    page = Page(text)
    assert not {"script", "img", "iframe", "link", "object", "form"} & set(page.seen)
    assert not [a for a in page.attributes if a[1].startswith("on") or a[1] in ("src", "href", "style")]
    assert page.seen.count("html") == page.seen.count("title") == page.seen.count("main") == page.seen.count("h1") == 1


def test_a_page_can_be_read_by_everyone():
    text = a_page("wrong", tasks=2)
    page = Page(text)
    assert ("html", "lang", "en") in page.attributes and text.startswith("<!doctype html>")
    levels = [int(tag[1]) for tag in page.seen if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:]))
    assert "caption" in page.seen and ("th", "scope", "col") in page.attributes
    assert "summary" in page.seen and page.texts["summary"].strip()
    assert "color-scheme: light dark" in text and "prefers-color-scheme: dark" in text
    assert "passed, 1 of 1 points" in text and "failed, 0 of 1 points" in text  # not by color alone


def _luminance(color):
    parts = [int(c * 2 if len(color) == 3 else color[2 * i : 2 * i + 2], 16) / 255 for i, c in enumerate(color[:3])]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_stands_out_from_what_is_behind_it_in_both_themes():
    """Contrast of at least 7 to 1 (WCAG 2.2, 1.4.6)."""
    light, dark = report.START.split("@media")
    for part in (light, dark):
        text = re.search(r" color: #(\w+)", part)[1]
        for behind in re.findall(r"background: #(\w+)", part):
            low, high = sorted([_luminance(text), _luminance(behind)])
            assert (high + 0.05) / (low + 0.05) >= 7, (text, behind)


def test_a_page_says_what_was_taken_from_where_at_which_level_and_shows_the_code(tmp_path):
    source = HEAD + "    return helper(chunk_len, cached_len) < 2"
    found = graded(tmp_path, MASK, TEXT, "def helper(c, k):\n    return np.ones((c, c + k))", source)
    text = report.as_html(Row("ann", found))
    page = Page(text)
    assert "Your answer was taken from cell 4, with what it uses of cells 1 and 3." in page.texts["p"]
    assert f"at the isolation level {LEVEL}." in page.texts["p"]
    assert "return helper(chunk_len, cached_len) < 2" in page.texts["code"]
    assert "failed, 0 of 2 points" in page.texts["td"]


def test_a_giant_message_and_a_giant_output_are_cut(tmp_path):
    source = HEAD + "    print('y' * 10**6)\n    raise ValueError('x' * 10**6)  # " + " raised (line 1: x." * 10**4
    found = graded(tmp_path, MASK, source, groups=["values"])
    assert len(found.tasks[0].diagnosis) <= 4_000
    assert len(report.as_html(Row("ann", found)).encode()) < 40_000
