"""Runs vLLM's own scheduler, from its public wheel and without a GPU: to record what it decides, and to compare.

    PYTHONPATH=. python tests/recorder record 0.33.0 [--out FILE]      the executed cases of tests/data/cases.json anew
    PYTHONPATH=. python tests/recorder compare 0.33.0 [--workloads N]  random workloads beside ours, block by block

On demand only: the first use of a version downloads its wheel from PyPI (0.3 GB or more; its Python files are kept).
Needs torch, pydantic and transformers; what else vLLM imports and is not here is stood in for, and named. Exit 1 when
a case or a workload differs.
"""

import importlib
import importlib.metadata
import json
import logging
import os
import platform
import sys
from pathlib import Path

from ours import Ours
from scenarios import play, random_case
from stand_in import install
from wheel import python_part

from course_lib.cli import Parser, not_negative, positive, run_command, write_whole
from course_lib.schedule.profiles import PROFILES

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "data" / "cases.json"
MOST_STEPS = 80  # of a random workload: some never end, because a request can't get its blocks
MOST_SHOWN = 3  # differing workloads that are printed whole


def main(argv) -> int:
    p = Parser(
        prog="python tests/recorder", description=__doc__, example="PYTHONPATH=. python tests/recorder compare 0.33.0"
    )
    p.add_argument("what", choices=("record", "compare"))
    p.add_argument("version", help="of vLLM, as on PyPI")
    p.add_argument("--cache", type=Path, default=ROOT / ".recorder", metavar="DIR", help="where wheels are kept")
    p.add_argument("--out", type=Path, metavar="FILE", help="record: write the cases as they were executed now")
    p.add_argument("--workloads", type=positive, default=1_000, metavar="N", help="compare: how many (1000)")
    p.add_argument("--seed", type=not_negative, default=0, metavar="S", help="compare: of the first workload (0)")
    p.add_argument("--profile", choices=PROFILES, help="compare: which of ours (that of the version, else the newest)")
    args = p.parse_args(argv)
    args.cache.mkdir(parents=True, exist_ok=True)
    code, needs = python_part(args.version, args.cache)
    sys.path[:0] = [str(code), str(needs)]
    missing = install(code).names
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.disable(logging.WARNING)  # vLLM warns of each reset that it refuses
    theirs = importlib.import_module("theirs")
    here = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "pydantic", "transformers"))
    print(f"vLLM {args.version} (Python files of its wheel); Python {platform.python_version()}, {here}")
    print(f"stood in for: {', '.join(sorted(missing)) or 'nothing'}")
    differ = record(args, theirs) if args.what == "record" else compare(args, theirs)
    print(f"settings that vLLM read and nobody gave, taken as None: {', '.join(sorted(theirs.NOT_GIVEN)) or 'none'}")
    return 1 if differ else 0


def record(args, theirs) -> int:
    """Execute every case that names a run of this system. Returns how many differ from the file."""
    system, data = f"vllm-{args.version}", json.loads(CASES.read_text("utf-8"))
    executed = differ = 0
    for case in data["cases"]:
        if case["kind"] != "schedule":
            continue
        executed += 1
        expected, known = case["expected"], _known(case, system)
        made = _record(theirs.Theirs(case["config"]), case, known or expected)
        if made != {key: known[key] for key in made} if known else True:
            differ += known is not None
            print(f"{case['id']}: {'differs from the file' if known else 'no run of this version is in the file'}")
        if system == expected["system"]:
            expected.update(made)
        else:
            case.setdefault("differs", {})[system] = made
            case["also_identical"] = [name for name in case["also_identical"] if name != system]
    print(f"{executed} cases executed, {differ} differ from {CASES.relative_to(ROOT)}")
    if args.out:
        write_whole(args.out, [(json.dumps(data) + "\n").encode()])
        print(f"wrote {args.out}: compare it with `python -m course_lib replay {args.out} --system {system}`")
    return differ


def _known(case: dict, system: str) -> dict | None:
    """The file's record of that system's run; None if there is none."""
    expected = case["expected"]
    if system == expected["system"] or system in case["also_identical"]:
        return expected
    return {**expected, **case["differs"][system]} if system in case.get("differs", {}) else None


def _record(server, case: dict, expected: dict) -> dict:
    """Steps, first slices and end state, in the form and over the length of `expected`."""
    rows = list(play(server, case, len(expected["steps"])))
    starts: dict[str, int] = {}
    for row in rows:
        for name, start, _ in row["slices"]:
            starts.setdefault(name, start)
    made = {"steps": [{key: row[key] for key in ("slices", "sampled", "preempted")} for row in rows]}
    if "first_slice_start" in expected:
        made["first_slice_start"] = {name: starts[name] for name in expected["first_slice_start"]}
    if "end" in expected:
        made["end"] = {key: rows[-1]["state"][key] for key in expected["end"]}
    return made


def compare(args, theirs) -> int:
    """Play random workloads on both. Returns how many differ."""
    short = ".".join(args.version.split(".")[:2])
    of_version = {"0.33": "vllm-0.33.0", "0.11": "vllm-0.11.0", "0.8": "vllm-0.11.0"}
    profile = args.profile or of_version.get(short, "vllm-0.33.0")
    differ = steps = preemptions = hits = resets = 0
    for seed in range(args.seed, args.seed + args.workloads):
        case = random_case(seed)
        real = list(play(theirs.Theirs(case["config"]), case, MOST_STEPS))
        mine = list(play(Ours(case["config"], profile), case, MOST_STEPS))
        steps += len(real)
        preemptions += sum(len(row["preempted"]) for row in real)
        resets += sum(bool(row["reset"]) for row in real)
        first = {name: start for row in reversed(real) for name, start, _ in row["slices"]}
        hits += sum(start > 0 for start in first.values())
        if real == mine:
            continue
        differ += 1
        if differ <= MOST_SHOWN:
            at = next((i for i, pair in enumerate(zip(real, mine)) if pair[0] != pair[1]), min(len(real), len(mine)))
            print(f"workload {seed} differs in step {at}: {json.dumps(case)}")
            print(f"  vLLM: {json.dumps(real[at : at + 1])}\n  ours: {json.dumps(mine[at : at + 1])}")
    print(
        f"{args.workloads} workloads beside profile {profile}: {steps} steps, {hits} hits, {preemptions} preemptions, "
        f"{resets} resets; {differ} differ in slices, tokens, preemptions, free order, cached blocks, references or "
        "tables"
    )
    return differ


if __name__ == "__main__":
    sys.exit(run_command("recorder", main, sys.argv[1:]))
