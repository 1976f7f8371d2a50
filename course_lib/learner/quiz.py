"""The questions at the end of a notebook: an accessible widget, or plain text where there is none.

A right answer stays hidden until the learner has committed to one. The first answer counts; it is kept locally
(progress.py) and is not graded.
"""

import json
import os
from html import escape
from pathlib import Path

from course_lib.learner import progress

FILE = Path(__file__).parents[1] / "assets" / "questions.json"
LETTERS = "abcd"


def quiz(stem: str) -> "Quiz":
    """The questions of a notebook ("02_mask"); in a notebook they show themselves. ValueError for another name."""
    questions = json.loads(FILE.read_text(encoding="utf-8"))
    if stem not in questions:
        raise ValueError(f"there are no questions for {stem!r}; there are some for {', '.join(sorted(questions))}.")
    return Quiz(stem, questions[stem])


class Quiz:
    """Questions of one notebook; `answer` commits to an option and says why it is right or wrong."""

    def __init__(self, stem: str, questions: list[dict]):
        self.stem, self.questions = stem, questions
        self.first: dict[int, bool] = {}  # question number -> whether the first answer of this sitting was right

    def answer(self, number: int, letter: str) -> str:
        """Commit to option `letter` of question `number` (from 1). ValueError for one that does not exist."""
        if not 1 <= number <= len(self.questions):
            raise ValueError(f"question {number}; there are 1 .. {len(self.questions)}.")
        question = self.questions[number - 1]
        letters = LETTERS[: len(question["options"])]
        if letter not in tuple(letters):
            raise ValueError(f"option {letter!r}; question {number} has {', '.join(letters)}.")
        option = question["options"][letters.index(letter)]
        right = "right" in option
        self.first.setdefault(number, right)
        progress.record_answer(question["id"], letters.index(letter), right)
        where = f'Read again: "{question["section"]}"'
        where += "." if question["notebook"] == self.stem else f" in notebook {question['notebook']}."
        if right:
            return f"Right. {question['explanation']}"
        return f"Not so: this answer {option['misconception']}. {question['explanation']} {where}"

    @property
    def score(self) -> str:
        return f"{sum(self.first.values())} of {len(self.questions)} right at the first answer"

    def __str__(self) -> str:
        """All questions as plain text, without the answers."""
        lines = []
        for number, question in enumerate(self.questions, 1):
            lines.append(f"{number}. {question['question']}")
            lines += [f"   {letter}) {o['text']}" for letter, o in zip(LETTERS, question["options"])]
        example = f'print(quiz("{self.stem}").answer(1, "a"))'
        return "\n".join([*lines, f"Commit to an answer in a new cell, for instance: {example}"])

    __repr__ = __str__

    def _ipython_display_(self) -> None:
        from IPython.display import display

        view = None if "COURSE_GRADING" in os.environ else self.widget()
        print(self) if view is None else display(view)

    def widget(self):
        """Radio buttons and a button for each question, usable by keyboard; None where ipywidgets is not installed."""
        try:
            import ipywidgets as w
        except ImportError:
            return None
        score = w.HTML(value=_status(self.score))
        return w.VBox([*(self._box(w, number, score) for number in range(1, len(self.questions) + 1)), score])

    def _box(self, w, number: int, score):
        question = self.questions[number - 1]
        options = [f"{letter}) {option['text']}" for letter, option in zip(LETTERS, question["options"])]
        text = w.HTML(value=f"<p><b>{number}.</b> {escape(question['question'])}</p>")
        radio = w.RadioButtons(options=options, value=None, layout={"width": "auto"})
        commit = w.Button(description=f"Commit to answer {number}", disabled=True, layout={"width": "auto"})
        said = w.HTML(value=_status(""))

        def chosen(_):
            commit.disabled = radio.value is None

        def committed(_):
            said.value = _status(self.answer(number, radio.value[0]))
            score.value = _status(self.score)

        radio.observe(chosen, names="value")
        commit.on_click(committed)
        return w.VBox([text, radio, commit, said])


def _status(text: str) -> str:
    """Read out by a screen reader when it changes."""
    return f'<div role="status" aria-live="polite">{escape(text)}</div>'
