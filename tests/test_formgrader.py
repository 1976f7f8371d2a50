"""formgrader in a browser: its pages show what this engine found, and its button grades with it."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
from right_answers import right_answers
from starting import ROOT

pytest.importorskip("nbgrader")
pytest.importorskip("playwright", reason="needs playwright (pip install playwright)")

from playwright.sync_api import sync_playwright

from autograder.build import learner_notebook
from autograder.course import make_course, open_gradebook
from autograder.exercises import EXERCISES
from autograder.grading.run import grade
from autograder.grading.sandbox import level
from autograder.source import read_lessons

pytestmark = [pytest.mark.browser, pytest.mark.slow]
STEM = "02_mask"
LESSON = next(lesson for lesson in read_lessons(ROOT) if lesson.stem == STEM)
MOST = sum(cell.points for cell in LESSON.cells if cell.check)
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MESSAGE = "<img src=x onerror=window.ran=1>"
WAIT = 120_000  # ms; a shared machine is slow at times


def answered(**answers):
    made = learner_notebook(LESSON, ROOT)
    for cell in made["cells"]:
        exercise = EXERCISES.get(cell["metadata"].get("nbgrader", {}).get("grade_id", ""))
        if exercise is not None:
            cell["source"] = f"{exercise.imports}\n\n\n{answers.get(exercise.name, right_answers(exercise)[-1])}"
    return json.dumps(made)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """ann is right, bob has one mistake, cyd's answer says HTML: all graded. dan is to be graded by the button."""
    course = tmp_path_factory.mktemp("formgrader") / "course"
    make_course(course, seed=5, notebooks=["02"])
    settings = course / "nbgrader_config.py"
    settings.write_text(settings.read_text() + f"\nc.SandboxedGrading.accept_isolation = {level()!r}\n")
    says = f'def chunk_attention_mask(*args):\n    raise ValueError("{MESSAGE}")\n'
    strict = EXERCISES["chunk_attention_mask"].wrong_answer("strict").source
    texts = {
        "ann": answered(),
        "bob": answered(chunk_attention_mask=strict),
        "cyd": answered(chunk_attention_mask=says),
    }
    for student, text in (texts | {"dan": answered()}).items():
        folder = course / "submitted" / student / STEM
        folder.mkdir(parents=True)
        (folder / f"{STEM}.ipynb").write_text(text)
        (folder / "timestamp.txt").write_text("2026-03-01 10:00:00 UTC")
    grade(course, accepted=level(), students=list(texts))
    return course


@pytest.fixture(scope="module")
def server(course):
    """The address of a Jupyter server with formgrader, started in the course as an instructor does."""
    home = course.parent / "home"
    home.mkdir()
    own = dict.fromkeys(
        ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"), str(home)
    )
    command = [
        sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--port=0",
        f"--ServerApp.root_dir={course}", "--IdentityProvider.token=", "--ServerApp.password=",
        "--ServerApp.jpserver_extensions={'nbgrader.server_extensions.formgrader': True}",
    ]  # fmt: skip
    log = (course.parent / "server.log").open("w+")
    started = subprocess.Popen(
        command, cwd=course, env=os.environ | own | {"PYTHONPATH": str(ROOT)}, stdout=log, stderr=subprocess.STDOUT
    )
    try:
        found, until = None, time.monotonic() + 120
        while found is None and started.poll() is None and time.monotonic() < until:
            time.sleep(0.3)
            found = re.search(r"http://(?:localhost|127\.0\.0\.1):(\d+)/", (course.parent / "server.log").read_text())
        assert found is not None, (course.parent / "server.log").read_text()
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        started.terminate()
        started.wait(30)
        log.close()


@pytest.fixture(scope="module")
def browser():
    import shutil

    path = next(filter(None, map(shutil.which, NAMES)))
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, server):
    """A page of formgrader; at the end no script on it may have failed."""
    opened = browser.new_page(base_url=server)
    opened.set_default_timeout(WAIT)
    errors = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    # nbgrader's pages take MathJax from the network, which a test does without.
    opened.route(lambda address: not address.startswith(server), lambda route: route.abort())
    opened.add_init_script("window.MathJax = {Hub: {Config() {}, Queue() {}, Startup: {signal: {Interest() {}}}}}")
    yield opened
    opened.close()
    assert errors == []


def row_of(page, text):
    """The cells of the table's row with that text."""
    line = page.locator("tbody tr", has_text=text).first
    line.wait_for()
    return " ".join(line.inner_text().split())


def test_the_assignment_is_listed_with_its_submissions(page):
    page.goto("/formgrader/manage_assignments")
    assert re.search(rf"{STEM} .* 4\b", row_of(page, STEM))


def test_the_submissions_have_their_points(page):
    page.goto(f"/formgrader/manage_submissions/{STEM}")
    assert f"{MOST} / {MOST}" in row_of(page, "ann")
    assert f" / {MOST}" in row_of(page, "bob") and f"{MOST} / {MOST}" not in row_of(page, "bob")
    assert "needs autograding" in row_of(page, "dan") and "needs autograding" not in row_of(page, "ann")


def test_the_gradebook_adds_them_up(page, course):
    with open_gradebook(course / "gradebook.db") as book:
        scores = [one.score for one in book.assignment_submissions(STEM)]
    page.goto("/formgrader/gradebook")
    assert f"{round(sum(scores) / 3, 2):g} / {MOST}" in row_of(page, STEM) and len(scores) == 3
    page.goto("/formgrader/manage_students")
    assert f"{MOST} / {MOST}" in row_of(page, "ann")


def submission(course, student):
    with open_gradebook(course / "gradebook.db") as book:
        return book.find_submission_notebook(STEM, STEM, student).id


def test_a_submission_shows_what_was_found_and_runs_nothing_of_the_learners(page, course):
    for student, words in (("bob", "Each query misses its own key"), ("cyd", MESSAGE)):
        page.goto(f"/formgrader/submissions/{submission(course, student)}/")
        box = page.locator("#chunk_attention_mask-comment")
        box.wait_for(state="attached")
        page.wait_for_function(
            "words => document.querySelector('#chunk_attention_mask-comment').placeholder.includes(words)"
            " || document.querySelector('#chunk_attention_mask-comment').value.includes(words)",
            arg=words,
        )
        assert words in page.locator("body").inner_text()
        assert page.evaluate("window.ran") is None


def test_a_grade_given_by_hand_is_kept_when_the_button_grades_again(page, course):
    page.goto(f"/formgrader/submissions/{submission(course, 'bob')}/")
    field = page.locator("#chunk_attention_mask__values").first
    field.wait_for()
    field.fill("0.5")
    with page.expect_response(lambda response: "/api/grade/" in response.url and response.request.method == "PUT"):
        field.press("Tab")
    press_autograde(page, "bob")
    with open_gradebook(course / "gradebook.db") as book:
        assert book.find_grade("chunk_attention_mask__values", STEM, STEM, "bob").score == 0.5


def press_autograde(page, student):
    page.goto(f"/formgrader/manage_submissions/{STEM}")
    line = page.locator("tbody tr", has_text=student).first
    line.wait_for()
    with page.expect_response(lambda response: "/autograde" in response.url, timeout=WAIT) as answered:
        line.locator("td.autograde a").click()
    result = answered.value.json()
    assert result["success"], result
    assert f"{student} " in result["log"]


def test_the_button_grades_with_this_engine(page, course):
    press_autograde(page, "dan")
    page.goto(f"/formgrader/manage_submissions/{STEM}")
    assert f"{MOST} / {MOST}" in row_of(page, "dan")
    text = (course / "autograded" / "dan" / STEM / f"{STEM}.ipynb").read_text()
    assert "Passed: " in text and 'execution_count": 1' not in text, "no kernel ran it"
