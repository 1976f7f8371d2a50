"""The recorder without vLLM: our server plays a case as it was recorded, and nothing is stood in for unasked.

That vLLM's half works is seen when it is run (docs/CONTRIBUTING.md): it fetches a wheel, so no test does it.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from starting import ROOT

from course_lib.__main__ import main as course_lib

FOLDER = ROOT / "tests" / "recorder"
CASES = {c["id"]: c for c in json.loads((ROOT / "tests/data/cases.json").read_text("utf-8"))["cases"]}
EXECUTED = [name for name, case in CASES.items() if case["kind"] == "schedule"]


def module(name: str):
    spec = importlib.util.spec_from_file_location(f"recorder_{name}", FOLDER / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


ours, scenarios = module("ours"), module("scenarios")


@pytest.mark.parametrize("name", EXECUTED)
def test_our_server_plays_an_executed_case_as_it_was_recorded(name):
    case, wanted = CASES[name], CASES[name]["expected"]
    rows = list(scenarios.play(ours.Ours(case["config"], "vllm-0.33.0"), case, len(wanted["steps"])))
    assert [{key: row[key] for key in ("slices", "sampled", "preempted")} for row in rows] == wanted["steps"]
    assert {key: rows[-1]["state"][key] for key in wanted.get("end", {})} == wanted.get("end", {})


def test_replay_compares_the_preempted_of_a_step_as_a_set(tmp_path, capsys):
    """vLLM keeps them in one, and what was recorded is sorted by name."""
    for seed in range(1000):
        case = {**scenarios.random_case(seed), "aborts": {}, "resets": []}
        rows = list(scenarios.play(ours.Ours(case["config"], "vllm-0.33.0"), case, 80))
        if max(len(row["preempted"]) for row in rows) > 1:
            break
    for turned in (list, reversed):
        steps = [{**row, "preempted": list(turned(row["preempted"]))} for row in rows]
        recorded = {**case, "id": "R", "kind": "schedule", "expected": {"system": "vllm-0.33.0", "steps": steps}}
        (tmp_path / "cases.json").write_text(json.dumps({"cases": [recorded]}))
        assert course_lib(["replay", str(tmp_path / "cases.json")]) == 0, capsys.readouterr().out


def test_random_workloads_are_those_of_their_seed_and_reach_hits_preemptions_aborts_and_resets():
    hits = preemptions = resets = 0
    assert scenarios.random_case(5) == scenarios.random_case(5) != scenarios.random_case(6)
    for seed in range(60):
        case = scenarios.random_case(seed)
        rows = list(scenarios.play(ours.Ours(case["config"], "vllm-0.33.0"), case, 80))
        first = {name: start for row in reversed(rows) for name, start, _ in row["slices"]}
        hits += sum(start > 0 for start in first.values())
        preemptions += sum(len(row["preempted"]) for row in rows)
        resets += sum(row["reset"] is True for row in rows)
    assert min(hits, preemptions, resets) > 3, (hits, preemptions, resets)


def test_only_what_vllm_imports_and_its_wheel_names_is_stood_in_for(tmp_path):
    (tmp_path / "vllm-1.dist-info").mkdir()
    (tmp_path / "vllm-1.dist-info" / "METADATA").write_text("Requires-Dist: no-such-thing>=1\n")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(
        "import no_such_thing.inside as thing\n"
        "class Part(thing.Base): pass\n"
        "try:\n import no_such_chip\nexcept ImportError:\n chip = None\n"
    )
    script = (
        "import importlib.util, pathlib, stand_in\n"
        f"found = stand_in.install(pathlib.Path({str(tmp_path)!r}))\n"
        "try:\n import no_such_thing\n raise SystemExit('stood in for us')\nexcept ImportError: pass\n"
        "import vllm\n"
        "print(found.names, vllm.chip, vllm.Part.__mro__[1].__name__)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=FOLDER,
        env={"PYTHONPATH": f"{FOLDER}{os.pathsep}{tmp_path}", "PATH": ""},
    )  # fmt: skip
    assert said.stdout == "['no_such_thing'] None Anything\n", said.stderr
