"""`python -m course_lib replay`: our planner and cache against what real servers did, or assert in their tests."""

import json
from collections.abc import Sequence
from pathlib import Path

from course_lib.cache.manager import CacheManager
from course_lib.cli import Parser, UserError
from course_lib.commands.case_file import read_cases
from course_lib.schedule.policies import plan_whole_blocks
from course_lib.schedule.profiles import PROFILES
from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler

# The profile that stands for each recorded system.
PROFILE_OF = {
    "vllm-0.33.0": "vllm-0.33.0",
    "vllm-0.11.0": "vllm-0.11.0",
    "vllm-0.8.5": "vllm-0.11.0",
    "sarathi-serve@96f9911": "sarathi",
    "TensorRT-LLM": "tensorrt-llm",
    "TensorRT-LLM FCFS rule": "tensorrt-llm",
}
GENERATED = 900_000  # the case files' rule: a generated token at index p has id GENERATED + p


class _Differs(Exception):
    """What a system did and what we did, for a person to read."""

    def __init__(self, what: str, system: str, theirs, ours):
        super().__init__(f"{what}\n  {system}: {json.dumps(theirs)}\n  ours: {json.dumps(ours)}")


def parser() -> Parser:
    p = Parser(
        prog="python -m course_lib replay",
        description="Run recorded scenarios through our planner and cache, and compare every step with the record.\n"
        "Of the 51 in tests/data/cases.json 41 were executed on vLLM (tests/recorder does it again), 6 are test\n"
        "assertions of TensorRT-LLM, and 4 are derived from its rule. Exit 1 if any differs.",
        example="python -m course_lib replay tests/data/cases.json",
    )
    p.add_argument("cases", type=Path, metavar="CASES.json")
    p.add_argument("--system", metavar="NAME", help="compare with this system's record, where a case has one")
    p.add_argument("--json", action="store_true", help="print one JSON object: passed, failed, notes")
    return p


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    if args.system and args.system not in PROFILE_OF:
        raise UserError(f"no profile for a system {args.system!r}; there are {', '.join(PROFILE_OF)}.")
    passed, failed, notes = [], [], []
    for case in read_cases(args.cases):
        record = _record(case, args.system)
        if record is None:
            notes.append({"id": case["id"], "note": f"no record of {args.system}"})
            continue
        if record["system"] not in PROFILE_OF:
            raise UserError(f"case {case['id']}: no profile for {record['system']!r}; there are {sorted(PROFILE_OF)}.")
        try:
            note = KINDS[case["kind"]](case, record)
        except _Differs as error:
            failed.append({"id": case["id"], "why": str(error)})
            continue
        passed.append(case["id"])
        if note:
            notes.append({"id": case["id"], "note": note})
    if not passed and not failed:
        raise UserError(f"none of the {len(notes)} cases in {args.cases} has a record of {args.system}.")
    if args.json:
        print(json.dumps({"passed": passed, "failed": failed, "notes": notes}, indent=1))
    else:
        for entry in failed:
            print(f"{_plain(entry['id'])} differs: {entry['why']}\n")
        for entry in notes:
            print(f"{_plain(entry['id'])}: {entry['note']}")
        print(f"{len(passed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _plain(name: str) -> str:
    """A case's id on any terminal: a lone surrogate in it cannot be printed."""
    return name.encode("utf-8", "backslashreplace").decode()


def _record(case: dict, system: str | None) -> dict | None:
    """What `system` did in this case (None: what the case itself names). "any_order": batch order is not recorded."""
    expected = case["expected"]
    if system in (None, expected["system"]):
        return expected
    same = {**expected, "system": system, "any_order": True}
    if system in case.get("also_identical", ()):
        return same
    return {**same, **case["differs"][system]} if system in case.get("differs", {}) else None


# --- whole schedules


def _schedule(case: dict, record: dict) -> str:
    """Run the case for as many steps as are recorded. Returns a note, or ""; raises _Differs."""
    system, knobs = record["system"], case["config"]
    names = [r["id"] for r in case["requests"]]
    profile = PROFILES[PROFILE_OF[system]]
    cache = profile.new_cache(knobs["usable_blocks"], knobs["block_size"], enable_prefix_caching=knobs["caching"])
    scheduler = Scheduler(
        cache, profile, max_num_batched_tokens=knobs["budget"], max_chunk=knobs["cap"],
        max_num_seqs=min(knobs["max_num_seqs"], knobs["budget"]), refuse_stuck=False,
    )  # fmt: skip
    requests = [_request(number, given) for number, given in enumerate(case["requests"])]
    hits: dict[str, int] = {}
    note = ""
    for number, wanted in enumerate(record["steps"]):
        for request in requests:
            if request.arrival == number:
                scheduler.add(request)
        step = _step(scheduler)
        for request, tokens in step.hits:
            hits.setdefault(names[request], tokens)
        if not step.chunks and scheduler.requests and not note:
            note = f"no progress in step {number}, although {len(scheduler.requests)} are not done"
        ours = {
            "slices": [[names[i], start, stop] for i, start, stop in step.chunks],
            "sampled": [names[i] for i, _ in step.sampled],
            "preempted": [names[i] for i in step.preempted],
        }
        for key, value in ours.items():
            arrange = sorted if key == "preempted" or record.get("any_order") else list  # `preempted` is a set
            if arrange(value) != arrange(wanted.get(key, [])):
                raise _Differs(f"step {number}, {key}", system, wanted.get(key, []), value)
    for name, tokens in record.get("first_slice_start", {}).items():
        if hits.get(name) != tokens:
            raise _Differs(f"tokens that {name} finds in the prefix cache", system, tokens, hits.get(name))
    _compare_end(record, cache, {name: request.block_table for name, request in zip(names, requests)})
    return note


def _request(number: int, given: dict) -> Request:
    return Request(
        id=number,
        token_ids=[base + i for base, count in given["prompt"] for i in range(count)],
        max_tokens=given["max_tokens"],
        arrival=given["arrival_step"],
        salt=given.get("salt", ""),
        read_cache=not given.get("prompt_logprobs"),
    )


def _step(scheduler: Scheduler):
    step = scheduler.schedule()
    return scheduler.commit(step, {i: GENERATED + step.chunks[i].stop for i in scheduler.ends(step)})


def _compare_end(record: dict, cache: CacheManager, tables: dict[str, list[int]]) -> None:
    blocks = range(1, cache.num_blocks + 1)
    ours = {
        "free_order": cache.allocator.free_order,
        "cached": [b for b in blocks if cache.prefix is not None and b in cache.prefix],
        "refs": {str(b): cache.allocator.refs[b] for b in blocks if cache.allocator.refs[b]},
        "tables": {name: table for name, table in tables.items() if table},
    }
    for key, theirs in record.get("end", {}).items():
        if key in ours and theirs != ours[key]:
            raise _Differs(f"at the end, {key}", record["system"], theirs, ours[key])


# --- chunk sizes alone: TensorRT-LLM's policies


def _trtllm_chunk(case: dict, record: dict) -> str:
    given = case["input"]
    if "prompt_lengths" not in given:
        ours = _cursors(given, [given["start"]], [given["end"]], len(record["slices"]), equal_progress=False)
        starts = [given["start"], *(cursor for (cursor,) in ours)]
        slices = [list(pair) for pair in zip(starts, starts[1:])]
        if slices != record["slices"]:
            raise _Differs("slices of the tail", record["system"], record["slices"], slices)
        return ""
    note = ""
    for policy in ("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"):
        if policy in record:
            lengths = given["prompt_lengths"]
            most, equal_progress = len(record[policy]), policy == "EQUAL_PROGRESS"
            ours = _cursors(given, [0] * len(lengths), lengths, most, equal_progress=equal_progress)
            if ours != record[policy]:
                raise _Differs(f"{policy}, cursors after each step", record["system"], record[policy], ours)
            if ours[-1] != lengths:
                note = f"no progress: the prompts stay at {ours[-1]} of {lengths} tokens"
    return note


def _cursors(given: dict, starts: list[int], stops: list[int], most: int, equal_progress: bool) -> list[list[int]]:
    """How far each prompt is after each step, until all are done, nothing moves, or it takes more than `most` steps."""
    ends = enumerate(zip(starts, stops))
    requests = [Request(id=i, token_ids=[0] * stop, num_computed=start) for i, (start, stop) in ends]
    capacity, rows = given.get("ctx_token_capacity") or sum(stops), []
    while True:
        plan = plan_whole_blocks(
            requests, max_num_batched_tokens=capacity, max_chunk=given.get("max_context_length") or 0,
            max_num_seqs=len(requests), block_size=given["chunk_unit"], equal_progress=equal_progress,
        )  # fmt: skip
        for chunk in plan:
            requests[chunk.request_id].num_computed = chunk.stop
        if plan or not rows:
            rows.append([r.num_computed for r in requests])
        if not plan or rows[-1] == stops or len(rows) > most:
            return rows


KINDS = {"schedule": _schedule, "trtllm_chunk": _trtllm_chunk}
