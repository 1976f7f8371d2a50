"""Imports point one way: the table, read from the sources, so that an import inside a function counts too."""

import ast
from pathlib import Path

import pytest
from starting import ROOT, run_python

# room -> the rooms and modules outside it that it may import; a name stands for itself and all inside it.
# A new room needs a row here: where does it stand? A module with a row of its own may import only what that says.
TABLE = {
    "course_lib": "",
    # what every command shares
    "course_lib.cli": "",
    # the four concepts: mask (in attention), positions, scheduler, cache
    "course_lib.arithmetic": "",
    "course_lib.attention": "arithmetic",
    "course_lib.positions": "arithmetic.arrays",
    "course_lib.cache": "",
    "course_lib.cache.pool": "arithmetic.arrays",
    "course_lib.cache.allocator": "",
    "course_lib.cache.prefix": "",
    "course_lib.cache.radix": "",
    "course_lib.schedule": "cache.manager cache.prefix cache.radix_manager",
    # the engine, bottom up
    "course_lib.model_config": "positions",
    "course_lib.model": "arithmetic attention cache.pool model_config positions",
    "course_lib.prefill": "arithmetic.arrays model",
    "course_lib.sampling": "",
    "course_lib.engine": "arithmetic.arrays model sampling schedule",
    "course_lib.weights": "arithmetic.arrays cli model model_config positions prefill",
    "course_lib.diagnosis": "model prefill",
    # the same scheduler on a clock: integers, no engine
    "course_lib.cost": "cli cache.manager cache.prefix schedule",
    # what notebooks build and show
    "course_lib.lessons": "arithmetic.arrays attention cli cost model positions schedule weights",
    "course_lib.widgets": "attention cost lessons model positions prefill schedule weights",
    "course_lib.learner": "cli",
    "course_lib.learner.doctor": "cli arithmetic.selftest learner",
    # the engine over HTTP; the load generator knows servers by their address only
    "course_lib.serve": "cli engine schedule weights.ledger",
    "course_lib.load": "cli",
    # commands may use every room; none imports them
    "course_lib.__main__": "cli",
    "course_lib.commands": "arithmetic.exact cache cli cost diagnosis engine load model positions prefill sampling "
    "schedule serve weights widgets",
    # what a learner's check needs, and nothing that needs nbgrader or jupytext
    "autograder": "",
    "autograder.plain": "course_lib.arithmetic.arrays",
    "autograder.exercise": "autograder.plain",
    # what runs beside an answer: a process for answers holds no judge and no known mistake
    "autograder.drivers": "course_lib.cache course_lib.cost course_lib.lessons course_lib.model course_lib.positions "
    "course_lib.prefill course_lib.schedule course_lib.weights",
    "autograder.ours": "autograder.drivers",
    "autograder.apart": "autograder.ours",
    "autograder.answers": "autograder.exercise autograder.plain autograder.apart autograder.drivers",
    "autograder.older": "autograder.answers",
    "autograder.compare": "autograder.exercise autograder.plain",
    "autograder.judge": "autograder.exercise autograder.plain autograder.answers",
    "autograder.kept": "autograder.exercise",
    "autograder.kit": "autograder.exercise autograder.plain autograder.answers autograder.compare autograder.drivers "
    "autograder.kept",
    "autograder.exercises": "autograder.exercise autograder.plain autograder.answers autograder.compare "
    "autograder.kept autograder.kit autograder.drivers "
    "course_lib.cache course_lib.cost course_lib.diagnosis course_lib.engine course_lib.lessons course_lib.model "
    "course_lib.model_config course_lib.positions course_lib.prefill course_lib.schedule course_lib.weights",
    "autograder.check": "autograder.seeds autograder.exercise autograder.answers autograder.judge "
    "autograder.exercises autograder.ours course_lib.learner.progress",
    # from solutions/ to notebooks and courses: knows no check
    "autograder.source": "course_lib.cli",
    "autograder.include": "autograder.source",
    "autograder.questions": "autograder.source course_lib.cli",
    "autograder.build": "autograder.source autograder.include autograder.questions",
    "autograder.complete": "autograder.source autograder.include autograder.exercises",
    "autograder.new": "autograder.source autograder.build course_lib.cli",
    "autograder.seeds": "",
    # grades submissions: what strangers wrote is read by intake, and run by a worker in a sandbox
    "autograder.grading": "",
    "autograder.grading.wire": "autograder.exercise autograder.plain",
    "autograder.grading.seccomp": "",
    "autograder.grading.namespaces": "autograder.grading",
    "autograder.grading.limits": "",
    "autograder.grading.worker": "autograder.answers autograder.drivers autograder.exercise autograder.ours "
    "autograder.plain autograder.grading",
    "autograder.grading.forkserver": "autograder.drivers autograder.grading course_lib.lessons",
    "autograder.grading.launch": "autograder.grading",
    "autograder.grading.sandbox": "autograder.grading",
    "autograder.grading.remote": "autograder.answers autograder.exercise autograder.plain autograder.grading",
    "autograder.grading.statements": "autograder.include",
    "autograder.grading.intake": "autograder.plain autograder.grading",
    "autograder.grading.memo": "autograder.exercise autograder.judge autograder.plain",
    "autograder.grading.journal": "autograder.plain autograder.grading course_lib.cli",
    "autograder.grading.executors": "autograder.grading course_lib.cli",
    "autograder.grading.rounds": "autograder.grading course_lib.cli",
    "autograder.grading.explain": "autograder.exercise autograder.grading",
    "autograder.grading.grade": "autograder.seeds autograder.judge autograder.exercise autograder.exercises "
    "autograder.plain autograder.grading",
    "autograder.grading.submissions": "autograder.grading course_lib.cli",
    "autograder.grading.report": "autograder.plain autograder.grading",
    "autograder.grading.autograded": "autograder.build autograder.include autograder.plain autograder.source "
    "autograder.grading",
    "autograder.grading.gradebook": "autograder.course autograder.source autograder.grading course_lib.cli",
    "autograder.grading.nbgrader_autograde": "autograder.build autograder.course autograder.source autograder.grading "
    "course_lib.cli",
    "autograder.grading.sample": "autograder.build autograder.course autograder.exercises autograder.include "
    "autograder.source autograder.grading",
    "autograder.grading.gradescope": "autograder.build autograder.exercises autograder.source autograder.grading "
    "course_lib.cli",
    "autograder.grading.run": "autograder.build autograder.course autograder.source autograder.grading course_lib.cli",
    "autograder.points": "course_lib.cli",
    "autograder.course": "autograder.seeds autograder.source autograder.include autograder.build autograder.points "
    "course_lib.cli",
    "autograder.nbgrader_config": "",
    "autograder.__main__": "autograder.grading autograder.build autograder.complete autograder.new autograder.course "
    "course_lib.cli",
}
NUMBERS_ONLY = {"course_lib.cost", "course_lib.cache", "course_lib.schedule"}
TENSORS = {"course_lib.cache.pool"}  # the one module of those rooms that moves keys and values
ROOMS_AT_MOST = 24
TORCH_AT_THE_TOP: set[str] = set()  # modules that need torch as soon as they are imported


def modules() -> dict[str, Path]:
    """Dotted name -> file, of every module of ours."""
    found = {}
    for package in ("course_lib", "autograder"):
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


def imports(name: str, *, everywhere: bool = True) -> set[str]:
    """Dotted names that a module imports: anywhere in it, or only when it is itself imported."""
    tree = ast.parse(MODULES[name].read_text("utf-8"))
    found = set()
    nodes = list(ast.walk(tree)) if everywhere else _run_on_import(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import; write the module's full name"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inside & MODULES.keys()) | ({node.module} if inside - MODULES.keys() else set())
    return found


def _run_on_import(node: ast.AST) -> list[ast.AST]:
    children = [c for c in ast.iter_child_nodes(node) if not isinstance(c, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [*children, *(found for child in children for found in _run_on_import(child))]


def row(name: str) -> str | None:
    """The table's row for a module: its own, or that of the nearest package with one."""
    while name and name not in TABLE:
        name = name.rpartition(".")[0]
    return name if name not in ("", "course_lib", "autograder") else None


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked in this test", name=name)

sys.meta_path.insert(0, Absent())
"""


def test_every_module_has_a_row_and_every_row_a_module():
    unplaced = [name for name in MODULES if name not in TABLE and row(name) is None]
    assert not unplaced, f"give {', '.join(unplaced)} a row in the table of tests/test_imports.py"
    unused = [name for name in TABLE if name not in MODULES]
    assert not unused, f"rows for modules that do not exist: {', '.join(unused)}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_what_its_row_allows(name):
    own_row = name if name in TABLE else row(name)
    package = own_row.partition(".")[0]
    allowed = [
        word if word.startswith(("course_lib", "autograder")) else f"{package}.{word}"
        for word in TABLE[own_row].split()
    ]
    if own_row.count(".") == 1:  # a room's row says what lies outside it
        allowed.append(own_row)
    ours = {found for found in imports(name) if found.partition(".")[0] in ("course_lib", "autograder")}
    forbidden = {found for found in ours if not any(is_in(found, package) for package in allowed)}
    assert not forbidden, f"{name} may import {TABLE[own_row] or 'nothing of ours'}, and imports {sorted(forbidden)}"


def test_the_engine_never_imports_the_grader():
    for name in MODULES:
        if is_in(name, "course_lib"):
            assert not any(is_in(found, "autograder") for found in imports(name)), name


@pytest.mark.parametrize("level", ["modules", "rooms"])
def test_imports_make_no_cycle(level):
    def place(name):
        return name if level == "modules" else ".".join(name.split(".")[:2])

    wanted = {}
    for name in MODULES:
        # what an import inside a function reaches counts too: a cycle is a cycle
        wanted.setdefault(place(name), set()).update(place(f) for f in imports(name) if f in MODULES)
    for name in wanted:
        wanted[name] -= {name}
    while leaves := [name for name, needs in wanted.items() if not needs & wanted.keys()]:
        for name in leaves:
            del wanted[name]
    assert not wanted, f"these {level} import each other in a circle: {sorted(wanted)}"


def test_the_top_of_course_lib_can_be_taken_in_at_a_glance():
    rooms = {name.split(".")[1] for name in MODULES if name.startswith("course_lib.")}
    assert len(rooms) <= ROOMS_AT_MOST, sorted(rooms)


def test_planner_cost_and_allocator_meet_no_tensor():
    for name in MODULES.keys() - TENSORS:
        if any(is_in(name, package) for package in NUMBERS_ONLY):
            assert not {"numpy", "torch"} & {found.partition(".")[0] for found in imports(name)}, name


def test_torch_is_imported_only_where_it_is_asked_for():
    at_top = {name for name in MODULES if "torch" in {f.partition(".")[0] for f in imports(name, everywhere=False)}}
    assert at_top == TORCH_AT_THE_TOP


def test_a_learners_check_needs_neither_nbgrader_nor_jupytext():
    absent = ("nbgrader", "jupytext", "nbformat", "nbconvert", "pytest", "traitlets")
    script = "from autograder import check\nassert not sys.modules.keys() & {'torch'}"
    done = run_python("-c", BLOCK.format(absent=absent) + script)
    assert done.returncode == 0, done.stderr


def test_the_engine_and_the_demo_need_numpy_alone():
    names = [name for name in MODULES if is_in(name, "course_lib") and name != "course_lib.__main__"]
    script = "import importlib\n" + "".join(f"importlib.import_module({name!r})\n" for name in names)
    absent = (
        "torch", "safetensors", "matplotlib", "ipywidgets", "transformers", "tokenizers", "nbgrader", "jupytext",
        "pytest", "starlette", "uvicorn", "httptools", "httpx", "openai",
    )  # fmt: skip
    done = run_python("-c", BLOCK.format(absent=absent) + script)
    assert done.returncode == 0, done.stderr


def test_the_imports_of_a_module_are_really_found(tmp_path, monkeypatch):
    """The table is only as good as the reader: lazy imports, `from package import module` and aliases count."""
    file = tmp_path / "m.py"
    file.write_text(
        "import numpy as np\nfrom course_lib.cli import Parser\n"
        "def f():\n    from course_lib import positions\n    import torch.nn\n"
    )
    monkeypatch.setitem(MODULES, "course_lib.m", file)
    assert imports("course_lib.m") == {"numpy", "course_lib.positions", "torch.nn", "course_lib.cli"}
    assert imports("course_lib.m", everywhere=False) == {"numpy", "course_lib.cli"}
