"""The course has one word for one thing: words that blur which thing is meant stay out of its text.

Text is comments, docstrings, all other strings, and the questions; names in the code are not looked at.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("autograder", "course_lib", "solutions", "course.py")
RULED_OUT = {  # a pattern -> what to write instead
    r"whom?ever": "the request, the caller or the learner, by name",
    r"let(?:s|ting)?\s+in": "admit",
    r"lent|lend(?:s|ing|ers?)?": "allocate, allocator",
    r"seats?": "max_num_seqs",
    r"sen(?:ds?|t)\s+back": "preempt a request, return data",
    r"of\s+one's\s+own": "its own, the learner's own",
    r"everybody": "all requests, all users",
    r"those\s+whom": "the requests that",
}
CELL_ID = re.compile(r'(?:\bid=|"anchor": )"[^"]*"')  # a name, by which learners' copies of a cell are known
PATTERNS = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): instead for word, instead in RULED_OUT.items()}


def texts(source: str) -> Iterator[tuple[int, str]]:
    """(first line, text) of each string, and of each run of comments on lines that follow one another."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    run, start, last = [], 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and run:
                yield start, "\n".join(run)
                run = []
            start, last = (start if run else token.start[0]), token.start[0]
            run.append(token.string.lstrip("#"))
    if run:
        yield start, "\n".join(run)


def ruled_out(name: str, pieces: Iterable[tuple[int, str]]) -> list[str]:
    """One line for each ruled-out word: file:line, the word, and what to write instead."""
    found = {}  # by line and word, so that a word is named once for each line
    for line, text in pieces:
        text = CELL_ID.sub("", text)
        for pattern, instead in PATTERNS.items():
            for match in pattern.finditer(text):
                at = line + text.count("\n", 0, match.start())
                word = " ".join(match[0].split())
                found[at, word] = f"{name}:{at}: {word!r}; write: {instead}"
    return [found[key] for key in sorted(found)]


def files(place: str) -> list[Path]:
    """The Python files and the questions there (course_lib's questions.json is made from those of solutions/)."""
    path = ROOT / place
    return [path] if path.is_file() else sorted([*path.rglob("*.py"), *path.glob("*.questions.json")])


@pytest.mark.parametrize("place", PLACES)
def test_a_ruled_out_word_stands_nowhere(place):
    assert files(place)
    found = []
    for file in files(place):
        text = file.read_text("utf-8")
        found += ruled_out(str(file.relative_to(ROOT)), texts(text) if file.suffix == ".py" else [(1, text)])
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source, line, word",
    [
        ("x = 1  # whoever has a chunk\n", 1, "whoever"),
        ("# Two requests are let\n# in by the step.\n", 1, "let in"),
        ('def f():\n    """Give it.\n\n    A block is lent.\n    """\n', 4, "lent"),
        ('raise ValueError("every seat "\n    "is taken")\n', 1, "seat"),
        ('x = f"{y} is sent back"\n', 1, "sent back"),
        ('x = "a policy of one\'s own"\n', 1, "of one's own"),
        ("\n# Everybody's chunks\n", 2, "Everybody"),
        ("# those whom the step admitted\n", 1, "those whom"),
    ],
)
def test_a_ruled_out_word_is_found_with_its_line(source, line, word):
    (found,) = ruled_out("a.py", texts(source))
    assert found.startswith(f"a.py:{line}: {word!r}; write: ")


def test_names_in_the_code_and_longer_words_are_left_alone():
    source = 'seats = lent = 3  # a silent calendar, and what is let into it\nprint("let it in", seats)\n'
    source += '# %% id="lend-text" exercise="7.3"\n'
    assert ruled_out("a.py", texts(source)) == []
