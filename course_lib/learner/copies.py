"""Is a learner's copy of a notebook still what the course hands out today, the answers aside?"""

from collections import defaultdict
from pathlib import Path

from course_lib.cli import UserError
from course_lib.learner.notebook_file import notes, read_notebook, source


def compared(copy: Path, original: Path) -> str:
    """How `copy` differs from the course's notebook in cells that are not the learner's to fill, in words; "" if not.

    Cells are matched by their ids, or else (Colab saves cells without ids, or gives them new ones) by nbgrader's
    notes and by their text. Solution cells, cells that the learner added, line ends, and outputs never count.
    UserError, in a few words, if `copy` cannot be read as a notebook.
    """
    try:
        theirs = read_notebook(copy)[0]["cells"]
    except OSError:
        raise UserError("it cannot be read") from None
    except UserError:
        raise UserError("it cannot be read as a notebook") from None
    ours = [cell for cell in read_notebook(original)[0]["cells"] if not notes(cell).get("solution")]
    known = {cell["id"] for cell in ours}
    texts, loose, same_ids = defaultdict(set), set(), False  # texts: cell id or (grade id,) -> texts of such cells
    for cell in theirs:
        name, text = cell.get("id"), _text(cell)
        if isinstance(name, str) and name in known:
            texts[name].add(text)
            same_ids = True
        else:
            loose.add(text)
        if notes(cell):
            texts[(notes(cell)["grade_id"],)].add(text)
    changed = absent = 0
    for cell in ours:
        there = texts.get(cell["id"]) or (texts.get((notes(cell)["grade_id"],)) if notes(cell) else None)
        if there:
            changed += _text(cell) not in there
        else:
            absent += _text(cell) not in loose
    found = [f"{changed} of its cells differ from the course's of today"] * bool(changed)
    # Without ids, a cell that was changed looks like one that is gone.
    found += [f"{absent} of the course's are missing{'' if same_ids else ' or differ'}"] * bool(absent)
    return f"answers aside, {', '.join(found)}" if found else ""


def _text(cell: dict) -> str:
    return source(cell).replace("\r\n", "\n").replace("\r", "\n").strip()
