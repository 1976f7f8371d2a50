"""The source of a notebook's cell as Python, and as code alone: IPython's magics, strings and comments told apart.

Read by a few patterns, so that it works on a cell that is not valid as a whole.
"""

import re
from collections.abc import Iterator

NOT_PYTHON = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|prun\b)")  # cell magics whose body is something else
PROSE = re.compile(r"\s*%%(?:markdown|html|latex|svg|javascript|js)\b", re.IGNORECASE)
# A magic, a shell line (which may go on behind a backslash) or a question; only where a statement begins.
MAGIC = re.compile(r"[ \t]*([%!?](?:[^\n]*\\\r?\n)*[^\n]*|[^\s#'\"][^\n#'\"]*\?[ \t\r]*(?=\n|\Z))")
PIECE = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>(?:(?<!\w)[rbuft]{1,2})?
            (?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
      | (?P<unclosed>["'][^\n]*)
      | (?P<open>[(\[{]) | (?P<close>[)\]}]) | (?P<continued>\\\r?\n) | (?P<newline>\n)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
RUNS_A_STRING = re.compile(r"\b(?:import_module|__import__|exec|eval|run_module)\(\s*\Z")


def as_python(text: str) -> str:
    """The text with IPython's magics, shell lines and questions as comments of the same length."""
    if NOT_PYTHON.match(text):
        return ""
    for kind, start, end in _pieces(text):
        if kind == "magic":
            comments = "\n".join("#" + line[1:] if line else "" for line in text[start:end].split("\n"))
            text = text[:start] + comments + text[end:]
    return text


def code_alone(text: str) -> str:
    """The text with blanks for comments and for strings, unless they are run: import_module("..."), exec("...").

    Magics stay, and of f-strings what stands in braces. "" for a cell that holds HTML or the like.
    """
    if PROSE.match(text):
        return ""
    code, done = [], 0
    for kind, start, end in _pieces(text):
        piece = text[start:end]
        if kind == "magic" or kind == "string" and RUNS_A_STRING.search(text, max(0, start - 60), start):
            continue
        in_braces = kind == "string" and "f" in re.match(r"\w*", piece)[0].lower()
        kept = [(m.start(), m.end()) for m in re.finditer(r"\{[^{}]*\}", piece)] if in_braces else []
        blanked = "".join(
            c if c == "\n" or any(first <= i < last for first, last in kept) else " " for i, c in enumerate(piece)
        )
        code += [text[done:start], blanked]
        done = end
    return "".join(code) + text[done:]


def _pieces(text: str) -> Iterator[tuple[str, int, int]]:
    """("magic", "comment" or "string", start, end) of each of these, in order."""
    at, depth, begins = 0, 0, True  # begins: a statement begins at `at`
    while True:
        if begins and (magic := MAGIC.match(text, at)):
            yield "magic", magic.start(1), magic.end()
            at = magic.end()
        piece = PIECE.search(text, at)
        if piece is None:
            return
        kind, at = piece.lastgroup, piece.end()
        depth = max(0, depth + (kind == "open") - (kind == "close"))
        begins = kind == "newline" and not depth
        if kind in ("comment", "string"):
            yield kind, piece.start(), piece.end()
