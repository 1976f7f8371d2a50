"""Is a learner's copy of a notebook still what the course hands out today, the answers aside?"""

from pathlib import Path

from course_lib.cli import UserError
from course_lib.learner.notebook_file import notes, read_notebook, source


def compared(copy: Path, original: Path) -> str:
    """How `copy` differs from the course's notebook in cells that are not the learner's to fill, in words; "" if not.

    Cells are matched by their ids. Solution cells, cells that the learner added, and outputs never count.
    """
    try:
        theirs = {cell.get("id"): source(cell) for cell in read_notebook(copy)[0]["cells"]}
    except UserError:
        return "it cannot be read as a notebook"
    ours = [cell for cell in read_notebook(original)[0]["cells"] if not notes(cell).get("solution")]
    changed = sum(cell["id"] in theirs and source(cell).strip() != theirs[cell["id"]].strip() for cell in ours)
    absent = sum(cell["id"] not in theirs for cell in ours)
    found = [f"{changed} of its cells differ from the course's of today"] * bool(changed)
    found += [f"{absent} of the course's are missing"] * bool(absent)
    return f"answers aside, {', '.join(found)}" if found else ""
