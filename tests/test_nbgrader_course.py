"""The course under untouched nbgrader: what it releases, what it grades, and what a student gets back."""

import copy
import html
import json
import os
import re
import subprocess
import sys

import nbformat
import pytest
from right_answers import right_answers
from small_course import hidden_seeds

from autograder.build import ROOT, learner_notebook
from autograder.course import MARK, make_course
from autograder.exercises import EXERCISES
from autograder.include import answer_of
from autograder.source import read_lessons

pytestmark = pytest.mark.xdist_group("nbgrader")  # one course serves them all
GRADED = ("01_divisible",)  # in every run: it has a class to write, and functions
SLOWLY = (  # and these with --all
    "00_freeze", "02_mask", "03_positions", "04_bits", "05_budget", "06_tradeoff", "07_prefix_cache", "08_both",
    "09_production",
)  # fmt: skip
STUB_LINE = "# Your code goes here, in place of the next line."


def nbgrader(course, *arguments):
    """Run nbgrader as an instructor does, in the course's directory, away from this user's own settings.

    The setting by which this course's engine grades is off here (test_nbgrader_home.py has it on).
    """
    if arguments[0] == "autograde":
        arguments = (*arguments, "--Autograde.exporter_class=nbconvert.exporters.NotebookExporter")
    home = course.parent / "home"
    home.mkdir(exist_ok=True)
    clean = {"JUPYTER_CONFIG_DIR": str(home), "JUPYTER_DATA_DIR": str(home), "IPYTHONDIR": str(home)}
    environment = os.environ | clean | {"PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(run, capture_output=True, text=True, cwd=course, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# ---- what nbgrader releases


@pytest.fixture(scope="module", params=[GRADED, pytest.param(SLOWLY, marks=pytest.mark.slow)], ids=["some", "others"])
def real(request, tmp_path_factory):
    """A course from the real lessons, some of them released: (directory, those)."""
    course = tmp_path_factory.mktemp("nbgrader") / "course"
    make_course(course)
    every = read_lessons(ROOT)
    assert {lesson.stem for lesson in every} == {*GRADED, *SLOWLY}
    lessons = [lesson for lesson in every if lesson.stem in request.param]
    for lesson in lessons:
        nbgrader(course, "generate_assignment", lesson.stem)
    return course, lessons


def released(course, stem):
    return nbformat.read(course / "release" / stem / f"{stem}.ipynb", as_version=4)


def test_the_released_notebook_is_the_committed_one_cell_by_cell(real):
    """nbgrader's release has one line more in each hole: its stub text, the same for all exercises."""
    course, lessons = real
    for lesson in lessons:
        ours = learner_notebook(lesson, ROOT)
        theirs = released(course, lesson.stem)
        assert theirs.metadata == ours["metadata"]
        for cell, their in zip(ours["cells"], theirs.cells, strict=True):
            if "solution" in str(cell["metadata"]) and cell["metadata"]["nbgrader"]["solution"]:
                del cell["metadata"]["nbgrader"]["checksum"], their.metadata.nbgrader["checksum"]
                lines = their.source.split("\n")
                reminders = "".join(cell["source"]).count(
                    "raise NotImplementedError("
                )  # one for each method of a class
                assert sum(line.strip() == STUB_LINE for line in lines) == reminders > 0
                their.source = "\n".join(line for line in lines if line.strip() != STUB_LINE)
            assert (their.id, their.cell_type) == (cell["id"], cell["cell_type"])
            assert their.source == "".join(cell["source"])
            assert their.metadata == cell["metadata"]


def test_the_seed_of_a_course_is_drawn_and_long(real):
    assert json.loads((real[0] / MARK).read_text("utf-8"))["seed"].bit_length() > 90


def test_the_release_holds_no_answer_and_no_hidden_seed(real):
    course, lessons = real
    secrets = hidden_seeds(course)
    assert len(secrets) == sum(bool(cell.check) for lesson in read_lessons(ROOT) for cell in lesson.cells)
    text = "".join(file.read_text("utf-8") for file in (course / "release").rglob("*") if file.is_file())
    assert not [secret for secret in secrets if secret in text]
    assert "SOLUTION" not in text and "HIDDEN" not in text
    for lesson in lessons:
        sources = "\n".join(cell.source for cell in released(course, lesson.stem).cells)
        for cell in lesson.cells:
            if cell.solution:
                assert answer_of(lesson, cell, ROOT).hole.strip() not in sources


@pytest.mark.skipif(os.name == "nt", reason="Windows has no mode bits")
def test_students_can_read_the_release_and_neither_the_sources_nor_the_gradebook(real):
    course, lessons = real
    (course / "source" / lessons[0].stem / "data.txt").write_text("what a lesson may bring along")
    (course / "source" / lessons[0].stem / "data.txt").chmod(0o600)
    before = os.umask(0o022)
    try:
        nbgrader(course, "generate_assignment", "--force", lessons[0].stem)
    finally:
        os.umask(before)
        (course / "source" / lessons[0].stem / "data.txt").unlink()

    def readable(path):
        return path.stat().st_mode & (0o055 if path.is_dir() else 0o044)

    shown = [course / "release" / lessons[0].stem, *(course / "release" / lessons[0].stem).iterdir()]
    assert {path.name for path in shown[1:]} == {"data.txt", f"{lessons[0].stem}.ipynb"}
    assert all(readable(path) for path in [course, course / "release", *shown])
    for name in ("source", "autograded", "gradebook.db"):
        assert not [path for path in [course / name, *(course / name).rglob("*.ipynb")] if path.stat().st_mode & 0o077]


# ---- what nbgrader grades


def write_answers(notebook, answers):
    """Put the text of an answer into each exercise's cell, as a learner does; imports stand above it."""
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if name in answers:
            cell.source = f"{EXERCISES[name].imports}\n\n\n{answers[name]}"
    return notebook


def submit(course, student, stem, notebook, *, newline="\n"):
    folder = course / "submitted" / student / stem
    folder.mkdir(parents=True)
    (folder / f"{stem}.ipynb").write_bytes(nbformat.writes(notebook).replace("\n", newline).encode())


def right(lesson):
    """The answers of the course, as its author wrote them."""
    parts = {c.solution: answer_of(lesson, c, ROOT) for c in lesson.cells if c.solution}
    return {name: "\n".join(filter(None, (a.before, a.hole, a.after))) for name, a in parts.items()}


def other(lesson):
    """The last of each exercise's right answers: written otherwise than the course does."""
    return {name: right_answers(EXERCISES[name])[-1] for name in right(lesson)}


def wrong(lesson, number):
    """Each exercise's wrong answer of that number, where it has so many."""
    kept = {name: EXERCISES[name].wrong_answers for name in right(lesson)}
    return {name: answers[number].source for name, answers in kept.items() if number < len(answers)}


def grade(course, stem):
    """Autograde and make feedback: (student, grade id) -> points."""
    nbgrader(course, "autograde", stem)
    nbgrader(course, "generate_feedback", stem)
    return scores(course, stem)


def scores(course, stem):
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        submissions = gradebook.assignment_submissions(stem)
        assert not any(submission.needs_manual_grade for submission in submissions)
        return {(s.student.id, g.name): g.score for s in submissions for n in s.notebooks for g in n.grades}


def points(grades, student, lesson):
    """Points of each exercise, and what it is worth."""
    names = [cell.solution for cell in lesson.cells if cell.solution]
    got = {name: sum(grades[student, cell.grade_id] for cell in lesson.checks(name)) for name in names}
    worth = {name: sum(cell.points for cell in lesson.checks(name)) for name in names}
    return got, worth


def feedback(course, student, stem):
    return (course / "feedback" / student / stem / f"{stem}.html").read_text("utf-8")


NOISE = """\
import sys
import warnings


def noisy(answer):
    def wrapped(*args, **kwargs):
        print("hello " * 100)
        print("to stderr", file=sys.stderr)
        warnings.warn("a warning of the learner's")
        return answer(*args, **kwargs)

    return wrapped


"""


LOGGED = """\
import logging
import sys

logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)


def logged(answer):
    def wrapped(*args, **kwargs):
        logging.info("called")
        return answer(*args, **kwargs)

    return wrapped


"""


def without_checks(notebook):
    """All checks deleted, and with the last exercise its answer too."""
    graded = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade")]
    last = graded[-1].metadata.nbgrader.grade_id.partition("__")[0]
    notebook.cells = [
        c for c in notebook.cells if c not in graded and c.metadata.get("nbgrader", {}).get("grade_id") != last
    ]
    return notebook, last


def with_log_lines(notebook, lesson):
    """Each function logs to stderr when it is called, through a stream that it took before the check began."""
    for name, text in right(lesson).items():
        if f"def {name}(" in text:
            cell = next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == name)
            cell.source = LOGGED + cell.source.replace(f"def {name}(", f"@logged\ndef {name}(")
    return notebook


def noisy(lesson):
    """Answers written otherwise than the course's, that print, warn and write to stderr whenever they are called."""
    return {
        name: f"{NOISE}{text.replace(f'def {name}(', f'@noisy{chr(10)}def {name}(')}"
        for name, text in other(lesson).items()
    }


@pytest.fixture(scope="module")
def graded(real):
    """One run over the students that every change of the course must get right: (lessons, grades)."""
    (course, lessons), grades = real, {}
    for lesson in lessons:
        submit(course, "otherwise", lesson.stem, write_answers(released(course, lesson.stem), noisy(lesson)))
        submit(course, "untouched", lesson.stem, released(course, lesson.stem))
        submit(course, "wrong", lesson.stem, write_answers(released(course, lesson.stem), wrong(lesson, 0)))
        answered = write_answers(released(course, lesson.stem), right(lesson))
        submit(course, "logs", lesson.stem, with_log_lines(copy.deepcopy(answered), lesson))
        submit(course, "deleted", lesson.stem, without_checks(answered)[0])
        grades |= grade(course, lesson.stem)
    return lessons, grades


@pytest.mark.parametrize("student", ["otherwise", "logs"])
def test_right_answers_earn_everything_however_written_and_however_loud(graded, student):
    lessons, grades = graded
    for lesson in lessons:
        got, worth = points(grades, student, lesson)
        assert got == worth


@pytest.mark.slow
def test_without_the_setting_log_lines_would_cost_points(real):
    """Else "logs" above would say nothing: these lines do reach the checks' outputs."""
    course, lesson = real[0], real[1][0]
    answered = write_answers(released(course, lesson.stem), right(lesson))
    submit(course, "loud", lesson.stem, with_log_lines(answered, lesson))
    nbgrader(course, "autograde", lesson.stem, "--student", "loud", "--IgnorePattern.enabled=False")
    got, worth = points(scores(course, lesson.stem), "loud", lesson)
    assert any(got[name] < worth[name] for name in worth)


def test_a_deleted_check_comes_back_and_an_answer_that_is_gone_as_well_costs_its_own_points_only(real, graded):
    course, (lessons, grades) = real[0], graded
    for lesson in lessons:
        gone = without_checks(released(course, lesson.stem))[1]
        got, worth = points(grades, "deleted", lesson)
        assert got == worth | {gone: 0}
        assert "was missing from the submission" in feedback(course, "deleted", lesson.stem)


def test_an_untouched_notebook_earns_nothing_and_its_feedback_names_the_exercises(real, graded):
    course, (lessons, grades) = real[0], graded
    for lesson in lessons:
        got, worth = points(grades, "untouched", lesson)
        assert got == dict.fromkeys(worth, 0)
        page = feedback(course, "untouched", lesson.stem)
        for cell in lesson.cells:
            assert not cell.solution or f"Exercise {cell.exercise}" in page


def test_a_wrong_answer_loses_points_and_the_feedback_says_which_mistake_it_is(real, graded):
    course, (lessons, grades) = real[0], graded
    for lesson in lessons:
        got, worth = points(grades, "wrong", lesson)
        assert all(got[name] < worth[name] for name in worth), got
        words = " ".join(html.unescape(re.sub("<[^>]*>", "", feedback(course, "wrong", lesson.stem))).split())
        for name in worth:
            assert " ".join(EXERCISES[name].wrong_answers[0].message.split()) in words


def test_feedback_shows_no_hidden_test_and_no_seed(real, graded):
    course = real[0]
    secrets = hidden_seeds(course)
    pages = list((course / "feedback").rglob("*.html"))
    assert len(pages) >= 4 * len(graded[0])
    for page in pages:
        text = page.read_text("utf-8")
        assert "HIDDEN TESTS" not in text and not [secret for secret in secrets if secret in text], page


@pytest.mark.slow
def test_every_wrong_answer_loses_points(real):
    course, lessons = real
    for lesson in lessons:
        names = list(right(lesson))
        rounds = max(len(EXERCISES[name].wrong_answers) for name in names)
        for number in range(1, rounds):
            answers = right(lesson) | wrong(lesson, number)
            submit(course, f"wrong{number}", lesson.stem, write_answers(released(course, lesson.stem), answers))
        grades = grade(course, lesson.stem)
        for number in range(1, rounds):
            got, worth = points(grades, f"wrong{number}", lesson)
            unpunished = [n for n in wrong(lesson, number) if got[n] == worth[n]]
            assert not unpunished, [EXERCISES[n].wrong_answers[number].name for n in unpunished]
            assert all(got[n] == worth[n] for n in names if n not in wrong(lesson, number))


# ---- what else happens to a notebook on its way


def by_colab(notebook):
    """Saved by Colab: no language in the kernelspec, ids in the metadata, widgets without their state."""
    for cell in notebook.cells:
        cell.metadata["id"] = cell.pop("id")
    widgets = {"application/vnd.jupyter.widget-state+json": {"0": {"model_name": "HBoxModel", "state": {}}}}
    notebook.metadata = nbformat.from_dict({
        "colab": {"provenance": []}, "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python"}, "widgets": widgets,
    })  # fmt: skip
    notebook.nbformat_minor = 0
    return notebook


def by_windows(notebook):
    for cell in notebook.cells:
        cell.source = cell.source.replace("\n", "\r\n")
    return notebook


def with_copies(notebook):
    """An answer and a check copied with their metadata, as JupyterLab copies a cell."""
    for kind in ("solution", "grade"):
        place = next(i for i, cell in enumerate(notebook.cells) if cell.metadata.get("nbgrader", {}).get(kind))
        copied = nbformat.from_dict(notebook.cells[place] | {"id": f"copy-of-{kind}"})
        notebook.cells.insert(place + 1, copied)
    return notebook


def with_extra_cells(notebook):
    """A magic, warnings and a broken cell between ours, outputs kept, and cells run in another order."""
    for text in ("%matplotlib inline", "import warnings\nwarnings.warn('mine')", "this is not Python"):
        notebook.cells.insert(3, nbformat.v4.new_code_cell(text))
    for number, cell in enumerate(reversed([cell for cell in notebook.cells if cell.cell_type == "code"])):
        cell.execution_count = number + 1
        cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="old\n" * 1000)]
    return notebook


ODDITIES = {"colab": by_colab, "windows": by_windows, "copies": with_copies, "extra": with_extra_cells}


@pytest.mark.slow
def test_what_happens_to_an_honest_notebook_on_its_way_costs_no_points(real):
    course, lessons = real
    for lesson in lessons:
        for name, change in ODDITIES.items():
            notebook = change(write_answers(released(course, lesson.stem), right(lesson)))
            submit(course, name, lesson.stem, notebook, newline="\r\n" if name == "windows" else "\n")
        grades = grade(course, lesson.stem)
        for name in ODDITIES:
            got, worth = points(grades, name, lesson)
            assert got == worth, name
            assert feedback(course, name, lesson.stem)


@pytest.mark.slow
def test_validate_tells_a_student_that_an_answer_passes_or_which_exercise_is_missing(real):
    course, lessons = real
    stem = lessons[0].stem
    solved, untouched = course / "solved.ipynb", course / "untouched.ipynb"
    nbformat.write(write_answers(released(course, stem), right(lessons[0])), solved)
    nbformat.write(released(course, stem), untouched)
    assert "Success! Your notebook passes all the tests." in nbgrader(course, "validate", str(solved))
    said = nbgrader(course, "validate", str(untouched))
    assert "VALIDATION FAILED" in said
    assert all(f"Exercise {cell.exercise}" in said for cell in lessons[0].cells if cell.solution)
