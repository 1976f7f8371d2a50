"""Uses of old names that the repair of imports leaves to the learner: found by simple patterns, and named."""

import re
from dataclasses import dataclass

from course_lib.learner.cell_source import code_alone
from course_lib.learner.moved import name_today

DOTTED = re.compile(r"(?<![\w.])course_lib(?:\.[^\W\d]\w*)+")
FROM = re.compile(
    r"(?<![\w.])from[ \t]+(course_lib(?:\.\w+)*)[ \t]+import\b[ \t]*"
    r"(?:\(([\w\s,*\\]*)|((?:[\w \t,*]|\\\r?\n)*))"  # as far as it looks like names
)


@dataclass
class Use:
    """A line of a cell that still says `old`, which is called `today` now."""

    line: str
    old: str
    today: str


def still_old(text: str, aliases: dict[str, str]) -> list[Use]:
    """The lines of a cell that use something by an old name; at most one use a line.

    aliases   name -> what it stands for, as `rewrite` left it

    Comments and strings do not count, unless a string is run: exec("import course_lib.rope").
    """
    code = code_alone(text)
    found = []  # (where, dotted name)
    for match in FROM.finditer(code):
        for part in (match[2] or match[3] or "").split(","):
            words = part.replace("\\", " ").split()
            found += [(match.start(), f"{match[1]}.{words[0]}")] if words else []
    found += [(match.start(), match[0]) for match in DOTTED.finditer(code)]
    for name, stands_for in aliases.items():
        uses = re.finditer(rf"(?<![\w.]){re.escape(name)}\b((?:\.\w+)*)", code)
        found += [(match.start(), stands_for + match[1]) for match in uses]
    lines, uses = text.split("\n"), {}
    for where, dotted in found:
        today, number = name_today(dotted), text.count("\n", 0, where)
        if today and number not in uses:
            uses[number] = Use(lines[number].strip(), *today)
    return [uses[number] for number in sorted(uses)]
