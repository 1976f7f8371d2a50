"""A learner's notebook, and the same one as it was handed out.

Read as JSON, not with nbformat: a damaged notebook is the point here, and nbformat may be missing.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.cli import UserError


@dataclass
class Finding:
    """Something wrong, and what the repair does about it ("" when only the learner can)."""

    what: str
    repair: str = ""


@dataclass
class Released:
    """What is known of the notebook as it was handed out.

    cells       grade id -> its cell in the released notebook; empty when that is not at hand
    order       ids of all its cells, in order
    grade_ids   ids of the cells that nbgrader knows, from the released notebook or else the exercise index
    """

    cells: dict[str, dict] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    grade_ids: list[str] = field(default_factory=list)


def read_notebook(path: Path) -> tuple[dict, list[Finding]]:
    """The notebook in `path`, and what was odd about the file itself. UserError, in one line, if it is no notebook."""
    if not path.is_file():
        raise UserError(f"there is no file {path}. Name a notebook, such as work/02_mask.ipynb")
    data, findings = path.read_bytes(), []
    older = path.parent / ".ipynb_checkpoints" / f"{path.stem}-checkpoint.ipynb"
    again = f"Take {f'the older copy {older}' if older.is_file() else 'a backup'}, or a fresh notebook for your answers"
    if not data.strip():
        raise UserError(f"{path} is empty. {again}")
    if data.startswith(b"\xef\xbb\xbf"):
        findings.append(Finding("the file begins with a byte order mark, which Jupyter cannot read", "removed it"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): another program saved it. {again}") from None
    if re.search(r"^(<<<<<<<|>>>>>>>) ", text, re.MULTILINE):
        raise UserError(f"{path} holds git's conflict marks (<<<<<<<). Run: git checkout --ours {path.name}")
    try:
        notebook = json.loads(text)
        if re.search(r"\\u[dD][89a-fA-F]", text):  # perhaps half of a pair, which JSON can hold and UTF-8 cannot
            notebook, lost = _without_half_characters(notebook)
            what = "the file holds half of a two-part character, which Jupyter cannot save"
            findings += [Finding(what, "wrote the mark of a lost character (U+FFFD) in its place")] * lost
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): it was cut short or edited by hand. {again}") from None
    if isinstance(notebook, dict) and "worksheets" in notebook:
        raise UserError(f"{path} is of format 3. Run: jupyter nbconvert --to notebook --inplace {path.name}")
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise UserError(f"{path} is JSON but no notebook: it has no list of cells. {again}")
    if not all(isinstance(cell, dict) and isinstance(cell.get("cell_type"), str) for cell in notebook["cells"]):
        raise UserError(f"{path} has things among its cells that are no cells. {again}")
    if not isinstance(notebook.get("metadata"), dict):
        findings.append(Finding("the notebook has no metadata", "gave it empty metadata"))
        notebook["metadata"] = {}
    for cell in notebook["cells"]:
        if not isinstance(cell.get("metadata"), dict):
            findings.append(Finding(f"{label(cell)} has no metadata", "gave it empty metadata"))
            cell["metadata"] = {}
    return notebook, findings


def _without_half_characters(notebook: object) -> tuple[object, bool]:
    """The same JSON with U+FFFD for each surrogate that lacks its other half, and whether there were any."""
    text, lost = re.subn("[\ud800-\udfff]", "\ufffd", json.dumps(notebook, ensure_ascii=False))
    return (json.loads(text), True) if lost else (notebook, False)


def released_as(path: Path, notebook: dict, root: Path) -> Released:
    """Looks `notebook` up in the exercise index and the released notebooks of `root`; each of them may be missing.

    The notebook says where it comes from; if that is lost, the functions it defines do, and at last its file name.
    """
    index_file = root / "course_lib" / "assets" / "exercises.json"
    index = json.loads(index_file.read_text(encoding="utf-8")) if index_file.is_file() else []
    defined = set(re.findall(r"^(?:def|class) (\w+)", "\n".join(map(source, notebook["cells"])), re.MULTILINE))
    votes = Counter(entry["notebook"] for entry in index if entry["name"] in defined)
    origin = notebook["metadata"].get("chunked_prefill_course")
    stems = [Path(str(origin.get("source", ""))).stem] if isinstance(origin, dict) else []
    stems += [stem for stem, _ in votes.most_common(1)] + [path.stem]
    known = {entry["notebook"] for entry in index} | {file.stem for file in (root / "notebooks").glob("*.ipynb")}
    stem = next((stem for stem in stems if stem in known), path.stem)
    original = root / "notebooks" / f"{stem}.ipynb"
    if not original.is_file():
        entries = [entry for entry in index if entry["notebook"] == stem]
        return Released(grade_ids=[g for entry in entries for g in (entry["name"], *entry["grade_ids"])])
    cells = json.loads(original.read_text(encoding="utf-8"))["cells"]
    graded = {notes(cell)["grade_id"]: cell for cell in cells if notes(cell)}
    return Released(graded, [cell["id"] for cell in cells], list(graded))


def notes(cell: dict) -> dict:
    """nbgrader's notes on a cell; {} if there are none that name it."""
    have = cell.get("metadata", {}).get("nbgrader")
    return have if isinstance(have, dict) and isinstance(have.get("grade_id"), str) else {}


def source(cell: dict) -> str:
    text = cell.get("source", "")
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def set_source(cell: dict, text: str) -> None:
    """Put `text` into the cell, as a list of lines if that is how its text was kept."""
    cell["source"] = text.splitlines(keepends=True) if isinstance(cell.get("source"), list) else text


def label(cell: dict) -> str:
    """How a cell is named to its owner: by its first telling line."""
    lines = [line.strip() for line in source(cell).splitlines() if line.strip()]
    telling = next((line for line in lines if line.startswith(("def ", "class ", "check."))), lines[0] if lines else "")
    return f"the cell `{telling[:50]}`" if telling else "an empty cell"
