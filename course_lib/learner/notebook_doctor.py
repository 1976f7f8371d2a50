"""What is wrong with a learner's notebook, in plain words, and a repair that loses nothing."""

import ast
import copy
import re
import uuid
from collections import Counter

from course_lib.cli import UserError
from course_lib.learner.cell_source import as_python
from course_lib.learner.notebook_file import Finding, Released, label, notes, set_source, source
from course_lib.learner.old_imports import is_readable, rewrite
from course_lib.learner.still_old import still_old

SCHEMA = 3  # nbgrader's format of its notes; it refuses newer ones, and older ones until they are upgraded
CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # nbformat 4.5


def examine(notebook: dict, released: Released) -> tuple[list[Finding], dict]:
    """What is wrong with `notebook`, and a repaired copy; the notebook itself is not changed.

    No source text is dropped. A cell that must not run (an untouched copy beside the answer) becomes a raw cell; an
    import of what has moved since gets its name of today. UserError if the notebook is nested too deeply to be copied.
    """
    try:
        repaired, findings = copy.deepcopy(notebook), []
    except RecursionError:
        what = "the notebook's outputs or metadata are nested too deeply"
        raise UserError(f"{what}. In Jupyter: Edit, Clear Outputs of All Cells; save it, then look again") from None
    cells = repaired["cells"]
    _old_imports(cells, findings)
    _damaged_notes(cells, released, findings)
    _copied_cells(cells, released, findings)
    _lost_notes(repaired, released, findings)
    _cell_ids(repaired, released, findings)
    widgets = repaired["metadata"].get("widgets")
    if isinstance(widgets, dict) and not all(isinstance(w, dict) and "state" in w for w in widgets.values()):
        what = "its widget notes lack their state (Colab saves them so), and nbconvert stops there"
        findings.append(Finding(what, "removed them; running the cells makes new ones"))
        del repaired["metadata"]["widgets"]
    return findings, repaired


def _old_imports(cells: list[dict], findings: list[Finding]) -> None:
    """Imports from the time when the notebook was handed out, of modules that have another name today."""
    aliases: dict[str, str] = {}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        text, changes = rewrite(source(cell), aliases)
        if changes:
            findings.append(Finding(f"{label(cell)} uses old names: {'; '.join(changes)}", "wrote the new ones"))
            set_source(cell, text)
        readable = is_readable(source(cell))
        todo = ": change" if readable else ". The cell cannot be read as Python: mend that and look again, or change"
        for use in still_old(source(cell), aliases):
            what = f"{label(cell)} still uses the old name {use.old} (`{use.line[:60]}`), which is {use.today} now"
            findings.append(Finding(f"{what}{todo} it yourself"))


def _damaged_notes(cells: list[dict], released: Released, findings: list[Finding]) -> None:
    """nbgrader's notes that name no cell, are of a wild version, or lack a field."""
    for cell in cells:
        if "nbgrader" not in cell["metadata"]:
            continue
        have = notes(cell)
        if not have:
            findings.append(Finding(f"{label(cell)} has empty nbgrader notes", "removed them"))
            del cell["metadata"]["nbgrader"]
            continue
        original = notes(released.cells.get(have["grade_id"], {}))
        right = {name: original.get(name, bool(have.get(name))) for name in ("grade", "solution", "locked", "task")}
        right["schema_version"] = SCHEMA
        if right["grade"] and type(have.get("points")) not in (int, float) and "points" in original:
            right["points"] = original["points"]
        wrong = [f"{k} {have.get(k)!r}" for k, v in right.items() if type(have.get(k)) is not type(v) or have[k] != v]
        if wrong:
            what = f"{label(cell)} has nbgrader notes that nbgrader cannot use ({', '.join(wrong)})"
            findings.append(Finding(what, "corrected them"))
            have.update(right)


def _copied_cells(cells: list[dict], released: Released, findings: list[Finding]) -> None:
    """Cells that carry one grade id: copies, since JupyterLab copies nbgrader's notes along."""
    counts = Counter(notes(cell)["grade_id"] for cell in cells if notes(cell))
    for grade_id in (g for g, n in counts.items() if n > 1):
        copies = [cell for cell in cells if notes(cell).get("grade_id") == grade_id]
        finding = Finding(f"the cell {grade_id} is there {len(copies)} times", "kept one as nbgrader's")
        if notes(copies[0]).get("solution"):
            keep = _choose_answer(cells, copies, released, grade_id, finding)
        else:
            keep = next((cell for cell in copies if is_untouched(cell, released, grade_id)), copies[0])
        for cell in copies:
            if cell is not keep:
                for name in ("nbgrader", "deletable", "editable"):
                    cell["metadata"].pop(name, None)
        findings.append(finding)


def _choose_answer(cells: list[dict], copies: list[dict], released: Released, name: str, finding: Finding) -> dict:
    """Which copy of a solution cell is the answer: untouched stubs aside, the one that runs last before its check.

    That is the one that counts when the notebook runs from top to bottom, so the repair changes no result.
    """
    place = {id(cell): i for i, cell in enumerate(cells)}
    call = re.compile(rf"\bcheck\.{re.escape(name)}\(")
    check = next((i for i, cell in enumerate(cells) if call.search(source(cell))), len(cells))
    answers = [cell for cell in copies if not is_untouched(cell, released, name)]
    above = [cell for cell in answers if place[id(cell)] < check]
    keep = above[-1] if above else (answers or copies)[0]
    if len({source(cell).strip() for cell in answers}) > 1:
        finding.what += f", with {len(answers)} different answers"
        finding.repair += (
            ". That is the one that runs last before the check, and so the one that counts; the others stay as "
            "ordinary cells. If you meant another one, move it down to just above the check"
        )
    for cell in copies if answers else []:
        if cell not in answers:
            # It would run too, and put the unanswered function in the place of the answer.
            cell["cell_type"] = "raw"
            cell.pop("outputs", None)
            cell.pop("execution_count", None)
            finding.repair += "; an untouched copy became a raw cell, which does not run"
    return keep


def _lost_notes(notebook: dict, released: Released, findings: list[Finding]) -> None:
    """Cells that nbgrader knew when the notebook was handed out, and finds no longer."""
    cells = notebook["cells"]
    present = {notes(cell)["grade_id"] for cell in cells if notes(cell)}
    for grade_id in (g for g in released.grade_ids if g not in present):
        original = released.cells.get(grade_id)
        looks = re.compile(_looks_like(grade_id), re.MULTILINE)
        found = [c for c in cells if not notes(c) and c["cell_type"] == "code" and looks.search(source(c))]
        if original is None:
            where = f"{label(found[-1])} has lost it" if found else "no such cell is left"
            todo = "The notebook as handed out is not here to restore it from: paste your answers into a fresh copy"
            findings.append(Finding(f"nbgrader's note {grade_id}: {where}. {todo}"))
        elif found:
            finding = Finding(f"{label(found[0])} has lost nbgrader's notes ({grade_id})", "restored them")
            keep = found[0] if "__" in grade_id else _choose_answer(cells, found, released, grade_id, finding)
            keep["metadata"].update(copy.deepcopy(original["metadata"]))
            findings.append(finding)
        else:
            findings.append(Finding(f"the cell {grade_id} is gone", "put it back as it was handed out"))
            cells.insert(place := _place(cells, original, released), copy.deepcopy(original))
            if _version(notebook) < [4, 5]:
                del cells[place]["id"]


def _looks_like(grade_id: str) -> str:
    """Pattern of the source of a cell with this grade id: NAME for the solution, NAME__GROUP for a check."""
    name, is_check, group = grade_id.partition("__")
    if not is_check:
        return rf"^(async )?(def|class) {re.escape(name)}\b"
    return rf"^check\.{re.escape(name)}\(" + ("" if group == "check" else rf".*['\"]{re.escape(group)}['\"]")


def _place(cells: list[dict], original: dict, released: Released) -> int:
    """Where a lost cell goes: beside the nearest cell of those handed out that is still there, or else at the end.

    Of two that are equally near, the one that stood before it. A cell is known by its id, or else as nbgrader's.
    """
    at = {cell["id"]: i for i, cell in enumerate(cells) if isinstance(cell.get("id"), str)}
    for grade_id, handed_out in released.cells.items():
        looks = re.compile(_looks_like(grade_id), re.MULTILINE)
        same = [i for i, cell in enumerate(cells) if notes(cell).get("grade_id") == grade_id]
        unnoted = [i for i, cell in enumerate(cells) if cell["cell_type"] == "code" and not notes(cell)]
        same += [i for i in unnoted if looks.search(source(cells[i]))]
        if same:
            at.setdefault(handed_out["id"], same[0])
    here, last = released.order.index(original["id"]), len(released.order)
    for distance in range(1, last):
        for there, step in ((here - distance, 1), (here + distance, 0)):
            if 0 <= there < last and released.order[there] in at:
                return at[released.order[there]] + step
    return len(cells)


def _version(notebook: dict) -> list[int]:
    """Major and minor number of the notebook's format; [4, 5], which the repair writes, if they are no numbers."""
    version = [notebook.get("nbformat"), notebook.get("nbformat_minor")]
    return version if all(type(number) is int for number in version) else [4, 5]


def _cell_ids(notebook: dict, released: Released, findings: list[Finding]) -> None:
    """Missing, malformed and repeated cell ids; of several, the graded cell keeps it, or else the first."""
    major, minor = said = [notebook.get("nbformat"), notebook.get("nbformat_minor")]
    version = _version(notebook)
    if said != version:
        findings.append(Finding(f"its format number is {major!r}.{minor!r}", "made it 4.5"))
        notebook["nbformat"], notebook["nbformat_minor"] = version
    if version < [4, 5]:  # such a notebook has no cell ids
        with_id = [cell for cell in notebook["cells"] if cell.pop("id", None) is not None]
        if with_id:
            what = f"{len(with_id)} of its cells have an id, which format {version[0]}.{version[1]} does not know"
            findings.append(Finding(what, "removed it"))
        return
    owners: dict[str, dict] = {}
    graded = {cell["id"]: grade_id for grade_id, cell in released.cells.items()}
    for cell in notebook["cells"]:
        name = cell.get("id")
        if isinstance(name, str) and CELL_ID.fullmatch(name):
            if name not in owners or notes(cell).get("grade_id", "") == graded.get(name):
                owners[name] = cell
    rightful = {id(cell) for cell in owners.values()}
    for cell in notebook["cells"]:
        if id(cell) not in rightful:
            name = cell.get("id")
            shared = isinstance(name, str) and name in owners
            what = f"shares its cell id {name!r} with another" if shared else "has no usable cell id"
            findings.append(Finding(f"{label(cell)} {what}", "gave it a new id"))
            cell["id"] = uuid.uuid4().hex[:8]


def is_untouched(cell: dict, released: Released, grade_id: str) -> bool:
    """Is this still what was handed out? Without the released notebook: is the reminder all that each function does?

    So a class is untouched if all of its methods are, and an answer as soon as one is written.
    """
    if grade_id in released.cells:
        return source(cell).strip() == source(released.cells[grade_id]).strip()
    try:
        tree = ast.parse(as_python(source(cell)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # nobody hands that out: it was written in
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return bool(functions) and all(map(_only_raises, functions))


def _only_raises(function: ast.FunctionDef) -> bool:
    """Whether nothing stands in a function, or method, but its docstring and the reminder."""
    *above, last = function.body
    is_reminder = isinstance(last, ast.Raise) and "NotImplementedError(" in ast.unparse(last)
    return is_reminder and all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in above)
