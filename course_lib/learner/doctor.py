"""`python -m course_lib doctor`: what is installed and whether it is well; with a notebook, what is wrong with that."""

import importlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from course_lib.cli import Parser, UserError, replace_file
from course_lib.learner.environment import Environment, has_nvidia_gpu, is_satisfied
from course_lib.learner.notebook_doctor import examine
from course_lib.learner.notebook_file import read_notebook, released_as

ROOT = Path(__file__).parents[2]
LISTED = ("numpy", "torch", "jupyterlab", "ipywidgets", "matplotlib", "safetensors", "nbgrader", "jupytext", "nbformat")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class Line:
    """One line of the report. `ill`: something is broken, and not just absent."""

    name: str
    found: str
    remedy: str = ""
    ill: bool = False


def main(argv: Sequence[str]) -> int:
    """0 if all that is there is well (or was repaired), 1 if something is wrong."""
    parser = Parser(
        "python -m course_lib doctor",
        description="Say what is installed and whether it is well: text to paste into a question. "
        "With a notebook: what is wrong with it.",
        example="python -m course_lib doctor work/02_mask.ipynb --fix",
    )
    parser.add_argument("notebook", nargs="?", type=Path, metavar="NOTEBOOK", help="a notebook to look at")
    parser.add_argument("--fix", action="store_true", help="repair it in place; NOTEBOOK.bak keeps it as it was")
    arguments = parser.parse_args(argv)
    if arguments.notebook:
        return notebook_report(arguments.notebook, arguments.fix)
    if arguments.fix:
        raise UserError("--fix repairs a notebook: name one, such as work/02_mask.ipynb")
    return environment_report()


# ---- the environment


def environment_report() -> int:
    lines = [*machine(), *packages(), *torch_and_gpu(), *self_tests()]
    for line in lines:
        remedy = f"   -> {line.remedy}" if line.remedy else ""
        print(f"{'!' if line.ill else ' '} {line.name:13} {line.found}{remedy}")
    ill = [line.name for line in lines if line.ill]
    print(f"Not well: {', '.join(ill)}." if ill else "All that is here is well.")
    return 1 if ill else 0


def machine() -> list[Line]:
    version, right = platform.python_version(), (3, 10) <= sys.version_info[:2] <= (3, 14)
    kind = "conda" if os.environ.get("CONDA_PREFIX") else "venv" if sys.prefix != sys.base_prefix else "system Python"
    place = sys.prefix.replace(str(Path.home()), "~")
    settings = ", ".join(f"{name}={os.environ[name]}" for name in THREADS if name in os.environ)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        Line("Python", version, "" if right else "use Python 3.10 to 3.14", ill=not right),
        Line("platform", f"{platform.platform()}, {platform.machine()}"),
        Line("environment", f"{kind}, {place}"),
        Line("threads", f"{cores} cores; {settings or 'no limit set'}"),
    ]


def packages() -> list[Line]:
    """A line for each package that the course uses; only NumPy has to be there."""
    wanted = {re.match(r"[\w.-]+", line)[0]: line for line in requirements()}
    lines = []
    for name in LISTED:
        must, remedy = name == "numpy", f'pip install "{wanted[name]}"'
        try:
            found, well = metadata.version(name), is_satisfied(wanted[name])
        except metadata.PackageNotFoundError:
            lines.append(Line(name, "not installed", remedy if must else f"optional: {remedy}", ill=must))
        else:
            lines.append(Line(name, found, "" if well else remedy, ill=not well))
    return lines


def requirements() -> list[str]:
    """From pyproject.toml, or, where the project was installed without its folder, from what pip noted."""
    try:
        return Environment(ROOT).requirements(["lab", "grade"])
    except OSError:
        noted = metadata.requires("chunked-prefill-course") or []
        return [line.partition(";")[0].strip() for line in noted]


def torch_and_gpu() -> list[Line]:
    state = _state("torch")
    if state == "not installed":
        return [Line("CUDA", "not asked: torch is not installed")]
    if state != "well":
        return [Line("CUDA", f"not asked: torch is {state}", "pip install --force-reinstall torch", ill=True)]
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        return [Line("CUDA", f"{torch.version.cuda}, {torch.cuda.get_device_name(0)}")]
    idle = has_nvidia_gpu() and not torch.version.cuda
    remedy = "this torch is a CPU build; to use the GPU: pip install --force-reinstall torch" if idle else ""
    return [Line("CUDA", f"none; torch runs on the CPU, {torch.get_num_threads()} threads", remedy)]


def self_tests() -> list[Line]:
    """What tile arithmetic assumes of this machine, measured, and the row counts that it uses here."""
    lines = []
    for backend in ("numpy", "torch"):
        state = _state(backend)
        if state != "well":
            lines.append(Line(f"tiles, {backend}", f"not tested: {backend} is {state}", ill=state != "not installed"))
            continue
        selftest = importlib.import_module("course_lib.arithmetic.selftest")
        problems = selftest.self_test(backend)
        remedy = "use --arith exact on this machine" if problems else ""
        lines.append(Line(f"tiles, {backend}", "; ".join(problems) or "well", remedy, ill=bool(problems)))
        for operation, counts in selftest.row_counts(backend).items() if not problems else ():
            lines.append(Line("rows", f"{operation}: {counts}"))
    return lines


def _state(module: str) -> str:
    """ "well", or why `module` cannot be imported."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        return "not installed" if error.name == module else f"broken: {error}"
    except Exception as error:  # a damaged binary raises OSError, ImportError and others
        return f"broken: {type(error).__name__}: {' '.join(str(error).split())[:100]}"
    return "well"


# ---- a notebook


def notebook_report(path: Path, fix: bool) -> int:
    notebook, findings = read_notebook(path)
    released = released_as(path, notebook, ROOT)
    more, repaired = examine(notebook, released)
    findings += more
    if not findings:
        graded = len(released.grade_ids)
        print(f"{path.name} is well: {len(notebook['cells'])} cells, {graded or 'no'} known to nbgrader.")
        return 0
    left = [finding for finding in findings if not finding.repair]
    backup = save(path, repaired) if fix and len(left) < len(findings) else None
    for finding in findings:
        print(f"- {finding.what}" + (f": {finding.repair if backup else 'can be repaired'}" if finding.repair else ""))
    if backup:
        kept = backup.name if backup.parent == path.parent else backup
        print(f"Repaired {path}; {kept} keeps it as it was. In Jupyter: File, Reload Notebook from Disk.")
    elif len(left) < len(findings):
        print(f"To repair: python -m course_lib doctor {path} --fix (it keeps a copy)")
    return 1 if left or not backup else 0


def save(path: Path, notebook: dict) -> Path:
    """Replace the file by `notebook` once a copy of it is safe; the copy's path. No earlier copy is overwritten.

    A link stays a link: the file that it points to is replaced, and copied beside itself.
    """
    text = (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()
    if path.is_symlink():
        path = path.resolve()
    names = (path.with_name(f"{path.name}.bak{n or ''}") for n in range(1000))
    backup = next(name for name in names if not os.path.lexists(name))
    shutil.copy2(path, backup)
    replace_file(path, [text])
    return backup
