"""Questions: the data keep their rules, an answer is hidden until one commits, and nothing needs a mouse."""

import json

import pytest
from small_course import LESSON, make_root

from autograder.build import ROOT
from autograder.questions import ASSET, questions_of
from autograder.source import read_lessons
from course_lib.cli import UserError
from course_lib.learner import progress
from course_lib.learner.quiz import FILE, LETTERS, quiz

QUESTIONS = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "p.json"))
    monkeypatch.delenv("COURSE_GRADING", raising=False)


def test_the_asset_is_what_the_sources_say():
    assert questions_of(read_lessons(ROOT), ROOT) == QUESTIONS and ROOT / ASSET == FILE


def test_every_notebook_has_questions_and_asks_them():
    for lesson in read_lessons(ROOT):
        assert len(QUESTIONS[lesson.stem]) >= 8
        code = "\n".join(cell.text for cell in lesson.cells if cell.kind == "code")
        assert f'quiz("{lesson.stem}")' in code


def test_the_right_option_is_not_given_away_by_its_place_or_its_length():
    every = [q for questions in QUESTIONS.values() for q in questions]
    places = [next(i for i, o in enumerate(q["options"]) if "right" in o) for q in every]
    longest = [max(q["options"], key=lambda o: len(o["text"])).get("right", False) for q in every]
    for place in range(4):
        assert places.count(place) < 0.6 * len(every), f"option {LETTERS[place]} is right too often"
    assert sum(longest) < 0.6 * len(every), "the longest option is the right one too often"


def test_an_answer_says_why_and_where_to_read_again_and_only_the_first_counts(kept):
    q = quiz("02_mask")
    right = [LETTERS[next(i for i, o in enumerate(x["options"]) if "right" in o)] for x in q.questions]
    wrong = next(letter for letter in LETTERS if letter != right[0])
    said = q.answer(1, wrong)
    assert said.startswith("Not so: this answer ") and 'Read again: "2. The mask of one chunk".' in said
    assert q.answer(1, right[0]).startswith("Right. ")
    assert q.score == "0 of 8 right at the first answer"
    q.answer(2, right[1])
    assert q.score == "1 of 8 right at the first answer"
    assert progress.load()["questions"]["nb02-q1"]["first_right"] is False
    spaced = next(i for i, x in enumerate(q.questions, 1) if "spaced" in x)
    assert "in notebook" in q.answer(spaced, next(c for c in "abc" if c != right[spaced - 1]))


def test_the_text_shows_all_options_and_no_answer(kept):
    q = quiz("03_positions")
    text = str(q)
    for question in q.questions:
        assert question["question"] in text and question["explanation"] not in text
        assert all(f") {o['text']}" in text for o in question["options"])
        assert not any(o["misconception"] in text for o in question["options"] if "misconception" in o)
    assert 'print(quiz("03_positions").answer(1, "a"))' in text


@pytest.mark.parametrize(("number", "letter", "says"), [(0, "a", "1 .. 8"), (9, "a", "1 .. 8"), (1, "e", "a, b, c, d")])
def test_an_answer_that_does_not_exist_is_refused(kept, number, letter, says):
    with pytest.raises(ValueError, match=says):
        quiz("02_mask").answer(number, letter)


def test_an_unknown_notebook_is_refused_by_name():
    with pytest.raises(ValueError, match="there are no questions for '2'; there are some for .*02_mask"):
        quiz("2")


def test_the_widget_hides_the_answer_until_one_commits(kept):
    pytest.importorskip("ipywidgets")
    q = quiz("02_mask")
    *boxes, score = q.widget().children
    assert len(boxes) == 8
    _, radio, commit, said = boxes[0].children
    assert commit.disabled and radio.value is None
    radio.value = radio.options[1]
    assert not commit.disabled and q.questions[0]["explanation"] not in said.value
    commit.click()
    assert "Right." in said.value and 'role="status"' in said.value and "1 of 8" in score.value


def test_while_grading_the_questions_are_plain_text(kept, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_GRADING", "1")
    quiz("02_mask")._ipython_display_()
    assert capsys.readouterr().out.startswith("1. ")


# --- the rules of the data


def good(number: int) -> dict:
    options = [{"text": "yes", "right": True}, {"text": "no", "misconception": "thinks no"},
               {"text": "never", "misconception": "thinks never"}]  # fmt: skip
    return {"id": f"nb01-q{number}", "question": "?", "options": options, "explanation": "so", "anchor": "half-text"}


def changed(**fields) -> list[dict]:
    spaced = [{**good(n), "anchor": "01_small#half-text", "spaced": "01_small"} for n in (7, 8)]
    questions = [*(good(n) for n in range(1, 7)), *spaced]
    questions[2] = {**questions[2], **fields}
    return questions


RIGHT, WRONG = {"text": "x", "right": True}, {"text": "y", "misconception": "thinks y"}


@pytest.mark.parametrize(
    ("questions", "says"),
    [
        ({}, "is not a list of objects"),
        (changed()[1:], "has 5 questions of its own and 2 spaced"),
        (changed(id="q3"), "the id is not nbNN-qK"),
        (changed(id="nb01-q1"), "has this id already"),
        (changed(question=""), "question is missing"),
        (changed(explanation=None), "explanation is missing"),
        (changed(hint="no"), "it has hint, which mean nothing here"),
        (changed(options=[RIGHT, WRONG]), "three or four"),
        (changed(options=[RIGHT, RIGHT | {"text": "z"}, WRONG]), "not exactly one option is right"),
        (changed(options=[WRONG, *({"text": t, "misconception": t} for t in "ab")]), "not exactly one option"),
        (changed(options=[RIGHT, WRONG, WRONG | {"text": "z"}]), "two options have the same misconception"),
        (changed(options=[RIGHT, WRONG, {"text": "y", "misconception": "m"}]), "two options have the same text"),
        (changed(options=[RIGHT, WRONG, {"text": "z"}]), "is neither right nor a mistake"),
        (changed(anchor="nowhere"), "there is no cell 'nowhere'"),
        (changed(anchor="02_other#x", spaced="02_other"), "there is no cell 'x' in notebook '02_other'"),
        (changed(anchor="01_small#half-text"), "do not fit"),
    ],
)
def test_a_question_that_breaks_a_rule_is_refused_by_name(tmp_path, questions, says):
    root = make_root(tmp_path, LESSON)
    (root / "solutions" / "01_small.questions.json").write_text(json.dumps(questions), encoding="utf-8")
    with pytest.raises(UserError, match=says) as error:
        questions_of(read_lessons(root), root)
    assert "01_small.questions.json" in str(error.value)


def test_a_good_file_gets_the_section_to_read_again(tmp_path):
    root = make_root(tmp_path, LESSON)
    (root / "solutions" / "01_small.questions.json").write_text(json.dumps(changed()), encoding="utf-8")
    made = questions_of(read_lessons(root), root)["01_small"]
    assert {q["section"] for q in made} == {"Exercise 1.1: what is half of three?"}
    (root / "solutions" / "01_small.questions.json").write_text("[", encoding="utf-8")
    with pytest.raises(UserError, match="is not JSON"):
        questions_of(read_lessons(root), root)
