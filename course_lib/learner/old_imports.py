"""Imports in a notebook's code that name things as they were called when it was handed out, and their repair.

Read token by token, so that strings and comments stay as they are, and a cell need not be valid as a whole.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.learner.moved import NAMES, import_today, module_today

PACKAGES = ("course_lib", "autograder")
NOT_PYTHON = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|prun\b)")  # cell magics whose body is something else
SPACE = (tokenize.NL, tokenize.COMMENT)


@dataclass
class Change:
    """text[start:end] becomes `new`; `what` says it in words ("course_lib.rope is now course_lib.positions")."""

    start: int
    end: int
    new: str
    what: str


def rewrite(text: str, aliases: dict[str, str]) -> tuple[str, list[str]]:
    """The source of a cell with today's names, and what was changed in it, in words.

    aliases   name -> the module (as it is called today) that it stands for in this notebook; imports in `text` add
              to it. An attribute of such a name is renamed as well: `library.PrefixCache` after
              `from course_lib.cache import prefix as library`.

    A text that cannot be split into tokens comes back as it is.
    """
    tokens, starts = _tokens(text), [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    changes, done = [], 0
    for i in range(len(tokens)):
        if i < done or tokens[i].type != tokenize.NAME:
            continue
        if tokens[i].string == "from" and _begins_statement(tokens, i):
            found, done = _from_import(text, tokens, i, starts, aliases)
        elif tokens[i].string in PACKAGES and not _is(tokens, i - 1, ".", "from"):
            found, done = _dotted(tokens, i, starts, aliases)
        elif tokens[i].string in aliases and not _is(tokens, i - 1, "."):
            found = _attribute(tokens, i, starts, aliases)
        else:
            found = []
        changes += found
    for change in reversed(changes):
        text = text[: change.start] + change.new + text[change.end :]
    return text, list(dict.fromkeys(change.what for change in changes))


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    """[] for a text that is not Python. Magics are left out, unless that is what makes it unreadable."""
    for readable in (_without_magics(text), text):
        try:
            return list(tokenize.generate_tokens(io.StringIO(readable).readline))
        except (tokenize.TokenError, SyntaxError):  # IndentationError is one
            pass
    return []


def unreadable_lines(text: str) -> list[str]:
    """The lines that import something by an old name in a cell that `rewrite` cannot read; [] if it can."""
    found = []
    if _tokens(text):
        return found
    for line in text.splitlines():
        words = re.match(r"\s*(?:from|import)\s+([\w.]+)(?:\s+import\s+(\w+))?", line)
        if words and import_today(words[1], words[2] or "") != (words[1], words[2] or ""):
            found.append(line.strip())
    return found


def _without_magics(text: str) -> str:
    """The text with IPython's magics, shell lines and questions as comments of the same length."""
    if NOT_PYTHON.match(text):
        return ""
    return re.sub(r"^([ \t]*)[%!?]", r"\1#", re.sub(r"^[^\n#'\"]*\?[ \t]*$", _as_comment, text, flags=re.M), flags=re.M)


def _as_comment(line: re.Match) -> str:
    return "#" + line[0][1:]


def _is(tokens: list, i: int, *strings: str) -> bool:
    return 0 <= i < len(tokens) and tokens[i].string in strings


def _begins_statement(tokens: list, i: int) -> bool:
    before = next((t for t in reversed(tokens[:i]) if t.type not in SPACE), None)
    layout = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return before is None or before.type in layout or before.string in (";", ":")


def _offsets(first, last, starts: list[int]) -> tuple[int, int]:
    return starts[first.start[0] - 1] + first.start[1], starts[last.end[0] - 1] + last.end[1]


def _chain(tokens: list, i: int) -> Iterator[int]:
    """Places of the names of a dotted name that begins at token i."""
    yield i
    while _is(tokens, i + 1, ".") and i + 2 < len(tokens) and tokens[i + 2].type == tokenize.NAME:
        i += 2
        yield i


def _dotted(tokens: list, i: int, starts: list[int], aliases: dict[str, str]) -> tuple[list[Change], int]:
    """`course_lib.rope`, in `import course_lib.rope` or in use: (changes, where to go on)."""
    places = list(_chain(tokens, i))
    names = [tokens[p].string for p in places]
    changes, length = [], len(names)
    while length > 1 and module_today(".".join(names[:length])) == ".".join(names[:length]):
        length -= 1
    if length > 1:  # all that stands behind a module's name moves with it
        while length > 2 and module_today(".".join(names[: length - 1])) != ".".join(names[: length - 1]):
            length -= 1
        old = ".".join(names[:length])
        start, end = _offsets(tokens[i], tokens[places[length - 1]], starts)
        changes.append(Change(start, end, module_today(old), f"{old} is now {module_today(old)}"))
    whole = ".".join(names)
    if _is(tokens, i - 1, "import", ",") and _is(tokens, places[-1] + 1, "as"):
        aliases[tokens[places[-1] + 2].string] = module_today(whole)
    return changes, places[-1] + 1


def _attribute(tokens: list, i: int, starts: list[int], aliases: dict[str, str]) -> list[Change]:
    """`library.PrefixCache`, where `library` is a module in which that was renamed."""
    if not _is(tokens, i + 1, ".") or i + 2 >= len(tokens):
        return []
    for (module, name), (today, new) in NAMES.items():
        here = aliases[tokens[i].string]
        if here == module_today(module) == today and tokens[i + 2].string == name:
            start, end = _offsets(tokens[i + 2], tokens[i + 2], starts)
            return [Change(start, end, new, f"{module}.{name} is now {today}.{new}")]
    return []


def _from_import(text: str, tokens: list, i: int, starts: list[int], aliases: dict[str, str]):
    """`from MODULE import NAME [as ALIAS], ...`: (changes, where to go on)."""
    if not _is(tokens, i + 1, *PACKAGES):
        return [], i + 1
    chain = list(_chain(tokens, i + 1))
    module, at = ".".join(tokens[p].string for p in chain), chain[-1] + 1
    if not _is(tokens, at, "import"):
        return [], at
    in_parentheses = _is(tokens, at + 1, "(")
    at += 1 + in_parentheses
    parts, comments, last = [], [], at  # parts: (name, alias or "")
    while at < len(tokens):
        token = tokens[at]
        if token.type == tokenize.COMMENT and in_parentheses:
            comments.append(token.string)
        elif token.string == "*" or token.type == tokenize.NAME:
            has_alias = _is(tokens, at + 1, "as") and at + 2 < len(tokens)
            parts.append((token.string, tokens[at + 2].string if has_alias else ""))
            at += 2 * has_alias
            last = at
        elif token.string == ")":
            last = at
            break
        elif token.string != "," and token.type != tokenize.NL:
            break
        at += 1
    moved = [import_today(module, name) for name, _ in parts]
    for (name, alias), (today, new) in zip(parts, moved):
        aliases[alias or name] = f"{today}.{new}"
    wanted = [(today, new, alias or (name if new != name else "")) for (name, alias), (today, new) in zip(parts, moved)]
    if not parts or all((module, *part) == want for part, want in zip(parts, wanted)):
        return [], last + 1
    what = _in_words(module, parts, moved)
    if all(want[1:] == part for part, want in zip(parts, wanted)) and len({want[0] for want in wanted}) == 1:
        start, end = _offsets(tokens[chain[0]], tokens[chain[-1]], starts)
        return [Change(start, end, wanted[0][0], what)], last + 1
    start, end = _offsets(tokens[i], tokens[last], starts)
    return [Change(start, end, _statements(text, start, wanted, comments), what)], last + 1


def _in_words(module: str, parts: list, moved: list) -> str:
    said = {}
    for (name, _), (today, new) in zip(parts, moved):
        whole, whole_today = f"{module}.{name}", f"{today}.{new}"
        if name == new and today == module_today(module):
            whole, whole_today = module, today
        if whole != whole_today:
            said[f"{whole} is now {whole_today}"] = None
    return "; ".join(said)


def _statements(text: str, start: int, wanted: list, comments: list[str]) -> str:
    """One import a module, each on a line of its own where the old one began a line; comments go above."""
    lines = []
    for module in dict.fromkeys(module for module, _, _ in wanted):
        names = [f"{new} as {alias}" if alias else new for where, new, alias in wanted if where == module]
        lines.append(f"from {module} import {', '.join(names)}")
    indent = text[text.rfind("\n", 0, start) + 1 : start]
    if indent.strip():  # behind a colon or a semicolon
        return "; ".join(lines)
    return f"\n{indent}".join(comments + lines)
