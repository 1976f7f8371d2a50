"""Known mistakes as an author writes them: the solution with a place changed, and what to say to a learner.

    strict
      key <= query  ->  key < query
    Each query misses its own key: < where <= belongs. A token sees itself.

    example_only
      | return np.tril(np.ones((3, 8), dtype=bool), k=5)
    This is the mask of the worked example, whatever the arguments are.

A name; then changes, each a text that stands once in the solution (docstrings and annotations aside), two blanks, an
arrow, and what takes its place (a \\n in it begins a line), nothing for a line that is left out; or, where no change
makes the mistake, lines of code: a body, or the whole function or class. Then the message. A last line `reread: ...`
says where to look, if not where the exercise says, and `alike: 0.9` how many of the returned numbers must be equal in
every bit.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap

from autograder.exercise import WrongAnswer


def known_mistakes(solution: str, text: str) -> tuple[WrongAnswer, ...]:
    """The wrong answers that `text` describes, in its order.

    solution   "module:name" of the function or class that the exercise asks for
    Raises ValueError, with the mistake's name, for a change whose old text does not stand once in the solution.
    """
    source = solution_text(solution)
    if not text.strip():
        return ()
    blocks = re.split(r"\n[ \t]*\n", textwrap.dedent(text).strip("\n"))
    return tuple(_read(block, source) for block in blocks)


def solution_text(solution: str) -> str:
    """The source of "module:name" without docstrings and annotations, which a learner may leave out."""
    module, _, name = solution.partition(":")
    source = textwrap.dedent(inspect.getsource(getattr(importlib.import_module(module), name)))
    cuts = []  # (start, stop) in the text
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def place(line: int, column: int) -> int:
        return lines[line - 1] + len(source.splitlines()[line - 1].encode()[:column].decode())

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            doc = node.body[0]
            cuts.append((lines[doc.lineno - 1], lines[doc.end_lineno]))  # whole lines
        if isinstance(node, ast.arg) and node.annotation is not None:
            after_name = place(node.lineno, node.col_offset) + len(node.arg)
            cuts.append((after_name, place(node.annotation.end_lineno, node.annotation.end_col_offset)))
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            stop = place(node.returns.end_lineno, node.returns.end_col_offset)
            cuts.append((source.rindex("->", 0, place(node.returns.lineno, node.returns.col_offset)) - 1, stop))
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            target, stop = node.target, node.annotation
            after_target = place(target.end_lineno, target.end_col_offset)
            cuts.append((after_target, place(stop.end_lineno, stop.end_col_offset)))
    for start, stop in sorted(cuts, reverse=True):
        source = source[:start] + source[stop:]
    return re.sub(r"\n{2,}", "\n\n", source)


def _read(block: str, solution: str) -> WrongAnswer:
    name, *rest = block.splitlines()
    made = [line[2:] for line in rest if line.startswith("  ")]
    said = [line for line in rest if not line.startswith("  ")]
    options = dict(line.split(": ", 1) for line in said if line.startswith(("reread: ", "alike: ")))
    message = " ".join(line for line in said if not line.startswith(("reread: ", "alike: ")))
    if not re.fullmatch(r"\w+", name) or not made or not message:
        raise ValueError(f"a known mistake needs a name, what makes it and a message; this is {block[:60]!r}.")
    code = [line[1:].removeprefix(" ") for line in made if line.startswith("|")]
    if code and len(code) < len(made):
        raise ValueError(f"{name} has changes and lines of code: give one of them.")
    source = _whole(code, solution) if code else _changed(name, made, solution)
    return WrongAnswer(name, source, message, options.get("reread", ""), float(options.get("alike", 0)))


def _whole(code: list[str], solution: str) -> str:
    """Lines of code that are the whole answer, or the body of the solution's function."""
    text = "\n".join(code) + "\n"
    answer = ast.parse(solution).body[0]
    if re.match(rf"(?:@.*\n)*(?:def|class) {answer.name}\b", text):
        return text
    head = solution[: solution.index(":\n") + 2]
    return head + textwrap.indent(text, "    ")


def _changed(name: str, changes: list[str], solution: str) -> str:
    source = solution
    for change in changes:
        old, arrow, new = _split(change)
        if not arrow:
            raise ValueError(
                f"{name}: a change is OLD  -> NEW, with two blanks before the arrow, and this is {change!r}."
            )
        if solution.count(old) != 1 or source.count(old) != 1:
            raise ValueError(f"{name}: {old!r} stands {solution.count(old)} times in the solution, wanted once.")
        start = source.index(old)
        line_start, line_stop = source.rfind("\n", 0, start) + 1, source.find("\n", start)
        if not new and source[line_start:line_stop].strip() == old:
            source = source[:line_start] + source[line_stop + 1 :]
        else:
            indent = re.match(r" *", source[line_start:])[0]
            source = source.replace(old, new.replace("\\n", "\n" + indent))
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"{name}: the changed solution is no Python: {error}.") from None
    return source


def _split(change: str) -> tuple[str, str, str]:
    """Old text, arrow, new text; the arrow has two blanks on its left, since code may hold a ->."""
    old, arrow, new = change.partition("  ->")
    return old.rstrip(), arrow, new.strip()
