"""Imports in a notebook's code that name things as they were called when it was handed out, and their repair.

Read token by token, so that strings and comments stay as they are, and a cell need not be valid as a whole.
"""

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from keyword import iskeyword

from course_lib.learner.cell_source import as_python
from course_lib.learner.moved import NAMES, import_today, module_today, name_today

PACKAGES = ("course_lib", "autograder")
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


def is_readable(text: str) -> bool:
    """Can `rewrite` read this cell? A cell of another language, and an empty one, count as readable."""
    return bool(_tokens(text))


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    """[] for a text that is not Python."""
    try:
        return list(tokenize.generate_tokens(io.StringIO(as_python(text)).readline))
    except (tokenize.TokenError, SyntaxError, ValueError, SystemError):
        return []  # from Python 3.12 on, some texts that are not Python end in the last two


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
    whole, changes = ".".join(names), []
    if _is(tokens, i - 1, "import", ",") and _is(tokens, places[-1] + 1, "as"):
        aliases[tokens[places[-1] + 2].string] = module_today(whole)
    old, today = name_today(whole) or ("", "")
    # A name that went to another module stays: nothing says that this module is imported.
    if old and (module_today(old) == today or _in_its_module(old, today)):
        start, end = _offsets(tokens[i], tokens[places[old.count(".")]], starts)
        changes.append(Change(start, end, today, f"{old} is now {today}"))
    return changes, places[-1] + 1


def _attribute(tokens: list, i: int, starts: list[int], aliases: dict[str, str]) -> list[Change]:
    """`library.PrefixCache`, where `library` is a module in which that was renamed, or a package of such a module."""
    places = list(_chain(tokens, i))
    here = aliases[tokens[i].string]
    old, today = name_today(".".join([here, *(tokens[p].string for p in places[1:])])) or ("", "")
    place = old.count(".") - here.count(".")
    if place < 1 or not _in_its_module(old, today):
        return []
    start, end = _offsets(tokens[places[place]], tokens[places[place]], starts)
    return [Change(start, end, today.rpartition(".")[2], f"{old} is now {today}")]


def _in_its_module(old: str, today: str) -> bool:
    """Is a name that was `old` and is `today` in the module in which it was, whatever that is called?"""
    return module_today(old.rpartition(".")[0]) == today.rpartition(".")[0] and module_today(old) != today


def _from_import(text: str, tokens: list, i: int, starts: list[int], aliases: dict[str, str]):
    """`from MODULE import NAME [as ALIAS], ...`: (changes, where to go on). One that Python would refuse stays."""
    if not _is(tokens, i + 1, *PACKAGES):
        return [], i + 1
    chain = list(_chain(tokens, i + 1))
    module, at = ".".join(tokens[p].string for p in chain), chain[-1] + 1
    if not _is(tokens, at, "import"):
        return [], at
    in_parentheses = _is(tokens, at + 1, "(")
    end = at + 1
    while tokens[end].type not in (tokenize.NEWLINE, tokenize.ENDMARKER) and tokens[end].string != ";":
        if tokens[end].type in SPACE and not in_parentheses:
            break
        end += 1
        if in_parentheses and _is(tokens, end - 1, ")"):
            in_parentheses = False  # what follows is a comment behind the statement
    body = [p for p in range(at + 1, end) if tokens[p].type not in SPACE]
    parts = _parts([tokens[p].string for p in body])  # (name, alias or "")
    comments = [token.string.rstrip() for token in tokens[at:end] if token.type == tokenize.COMMENT]
    moved = [import_today(module, name) for name, _ in parts]
    for (name, alias), (today, new) in zip(parts, moved):
        if name == "*":  # a name that was renamed is no longer bound
            aliases.update({old: f"{where}.{old}" for where, old in NAMES if module_today(where) == today})
        else:
            aliases[alias or name] = f"{today}.{new}"
    wanted = [(today, new, alias or (name if new != name else "")) for (name, alias), (today, new) in zip(parts, moved)]
    if not parts or all((module, *part) == want for part, want in zip(parts, wanted)):
        return [], end
    what = _in_words(module, parts, moved)
    if all(want[1:] == part for part, want in zip(parts, wanted)) and len({want[0] for want in wanted}) == 1:
        start, stop = _offsets(tokens[chain[0]], tokens[chain[-1]], starts)
        return [Change(start, stop, wanted[0][0], what)], end
    start, stop = _offsets(tokens[i], tokens[body[-1]], starts)
    line_start = text.rfind("\n", 0, start) + 1
    continued = text[:line_start].rstrip("\r\n").endswith("\\")
    alone = not continued and not text[line_start:start].strip()  # not behind a colon or a semicolon
    layout = text[line_start:start] if alone else None
    return [Change(start, stop, _statements(wanted, comments, layout, "\r\n" if "\r\n" in text else "\n"), what)], end


def _parts(words: list[str]) -> list[tuple[str, str]]:
    """(name, alias or "") of each part of what stands behind `import`; [] for what Python would refuse."""
    if words == ["*"]:
        return [("*", "")]
    if len(words) > 1 and words[0] == "(" and words[-1] == ")":
        words = words[1:-2] if words[-2] == "," else words[1:-1]
    parts = []
    for part in " ".join(words).split(" , "):
        name, *rest = part.split() or [""]
        alias = rest[1] if len(rest) == 2 and rest[0] == "as" else ""
        if not all(word.isidentifier() and not iskeyword(word) for word in (name, alias or name)) or rest and not alias:
            return []
        parts.append((name, alias))
    return parts


def _in_words(module: str, parts: list, moved: list) -> str:
    said = {}
    for (name, _), (today, new) in zip(parts, moved):
        whole, whole_today = f"{module}.{name}", f"{today}.{new}"
        if name == new and today == module_today(module):
            whole, whole_today = module, today
        if whole != whole_today:
            said[f"{whole} is now {whole_today}"] = None
    return "; ".join(said)


def _statements(wanted: list, comments: list[str], indent: str | None, line_end: str) -> str:
    """One import a module, each on a line of its own, with the comments above.

    indent   what stands before the statement on its line; None behind a colon or a semicolon, where all stays one
             line, and the comments stay in parentheses
    """
    modules, lines = list(dict.fromkeys(module for module, _, _ in wanted)), []
    for module in modules:
        names = [f"{new} as {alias}" if alias else new for where, new, alias in wanted if where == module]
        listed = ", ".join(names)
        if indent is None and comments and module == modules[0]:
            listed = line_end.join([f"(  {comments[0]}", *(f"    {c}" for c in comments[1:]), f"    {listed}", ")"])
        lines.append(f"from {module} import {listed}")
    return "; ".join(lines) if indent is None else f"{line_end}{indent}".join(comments + lines)
