"""Reads a file of recorded scenarios and refuses a malformed one in one line that names the case and the field."""

import json
from collections.abc import Callable
from pathlib import Path

from course_lib.cli import UserError

MOST = 1_000_000  # of blocks, of tokens in a run: beyond any recorded case, and small enough to replay


class _Malformed(Exception):
    pass


def read_cases(path: Path) -> list[dict]:
    """The cases in `path`, each with the fields that its kind needs, of the right types.

    Raises UserError for a file that is not JSON, not a case file, or has a case that cannot be run.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, a number too long to read, too deep
        raise UserError(f"{path} is not a JSON file: {error}") from None
    cases = data.get("cases") if isinstance(data, dict) else None
    if not isinstance(cases, list) or not cases:
        raise UserError(f'{path} is not a case file: an object with a list "cases" of at least one case is expected.')
    seen = set()
    for number, case in enumerate(cases):
        name = case.get("id") if isinstance(case, dict) else None
        try:
            _is(case, dict, "the case")
            _is(name, str, "id")
            if name in seen:
                raise _Malformed("another case has the same id")
            kind = case.get("kind")
            if not isinstance(kind, str) or kind not in KINDS:
                raise _Malformed(f"kind {kind!r} is unknown; there are {', '.join(KINDS)}")
            expected = _field(case, "expected", dict)
            _field(expected, "system", str, "expected.")
            _field({"also_identical": [], **case}, "also_identical", list)
            for run in _field({"differs": {}, **case}, "differs", dict).values():
                _is(run, dict, "differs")
            KINDS[kind](case, expected)
        except _Malformed as error:
            raise UserError(f"{path}, case {name or number}: {error}.") from None
        seen.add(name)
    return cases


def _schedule(case: dict, expected: dict) -> None:
    config = _field(case, "config", dict)
    for key, least in (("block_size", 1), ("usable_blocks", 1), ("budget", 1), ("cap", 0), ("max_num_seqs", 1)):
        _whole(config.get(key), least, f"config.{key}", MOST)
    _field(config, "caching", bool, "config.")
    names, tokens = set(), 0
    for i, request in enumerate(_each(case, "requests")):
        where = f"requests[{i}]."
        names.add(_field(request, "id", str, where))
        _whole(request.get("arrival_step"), 0, f"{where}arrival_step")
        _whole(request.get("max_tokens"), 1, f"{where}max_tokens")
        _field({"salt": "", **request}, "salt", str, where)
        logprobs = request.get("prompt_logprobs")
        if logprobs is not None and type(logprobs) not in (bool, int):
            raise _Malformed(f"{where}prompt_logprobs should be a number, not {json.dumps(logprobs)[:40]}")
        runs = _field(request, "prompt", list, where)
        for run in runs:
            if not (isinstance(run, list) and len(run) == 2):
                raise _Malformed(f"{where}prompt: {run!r} is not a run [first token, number of tokens]")
            _whole(run[0], 0, f"{where}prompt, first token", 2**31)
            _whole(run[1], 1, f"{where}prompt, number of tokens", MOST)
            tokens += run[1]
            if tokens > MOST:
                raise _Malformed(f"{where}prompt: the prompts of a case have more than {MOST} tokens together")
        if not runs:
            raise _Malformed(f"{where}prompt has no tokens")
    if len(names) < len(case["requests"]):
        raise _Malformed("two requests have the same id")
    _field(expected, "steps", list, "expected.")
    for record in [expected, *case.get("differs", {}).values()]:
        _steps(record, names)


def _steps(record: dict, names: set[str]) -> None:
    if "steps" in record:
        for number, step in enumerate(_each(record, "steps", "expected.")):
            for chunk in _field(step, "slices", list, f"steps[{number}]."):
                good = isinstance(chunk, list) and len(chunk) == 3 and all(type(x) is int for x in chunk[1:])
                if not good or not isinstance(chunk[0], str) or chunk[0] not in names:
                    raise _Malformed(f"steps[{number}]: {chunk!r} is not a slice [request, start, end)")
            for key in ("sampled", "preempted"):
                for name in _field({key: [], **step}, key, list, f"steps[{number}]."):
                    if not isinstance(name, str) or name not in names:
                        raise _Malformed(f"steps[{number}].{key}: there is no request {name!r}")
    for key in ("first_slice_start", "end"):
        _field({key: {}, **record}, key, dict, "expected.")
    end = record.get("end", {})
    for key, kind in (("free_order", list), ("cached", list), ("refs", dict), ("tables", dict)):
        if key in end:
            _field(end, key, kind, "expected.end.")


def _trtllm_chunk(case: dict, expected: dict) -> None:
    given = _field(case, "input", dict)
    _whole(given.get("chunk_unit"), 1, "input.chunk_unit", MOST)
    for key in ("ctx_token_capacity", "max_context_length"):
        if given.get(key) is not None:
            _whole(given[key], 1, f"input.{key}", MOST)
    if "prompt_lengths" in given:
        for length in _field(given, "prompt_lengths", list, "input."):
            _whole(length, 1, "input.prompt_lengths", MOST)
        if sum(given["prompt_lengths"]) > MOST:
            raise _Malformed(f"input.prompt_lengths have more than {MOST} tokens together")
        if not {"FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"} & expected.keys():
            raise _Malformed("expected has neither FIRST_COME_FIRST_SERVED nor EQUAL_PROGRESS")
    else:
        _whole(given.get("start"), 0, "input.start", MOST)
        _whole(given.get("end"), given["start"] + 1, "input.end", MOST)
        _field(expected, "slices", list, "expected.")


KINDS: dict[str, Callable[[dict, dict], None]] = {"schedule": _schedule, "trtllm_chunk": _trtllm_chunk}


def _is(value, kind: type, where: str):
    if not isinstance(value, kind):
        names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
        raise _Malformed(f"{where} should be {names[kind]}, not {json.dumps(value)[:40]}")
    return value


def _field(holder: dict, key: str, kind: type, where: str = ""):
    return _is(holder.get(key), kind, where + key)


def _each(holder: dict, key: str, where: str = "") -> list[dict]:
    entries = _field(holder, key, list, where)
    for i, entry in enumerate(entries):
        _is(entry, dict, f"{where}{key}[{i}]")
    return entries


def _whole(value, least: int, where: str, most: int = 2**63 - 1) -> None:
    if type(value) is not int or not least <= value <= most:
        raise _Malformed(f"{where} should be a whole number from {least} to {most}, not {json.dumps(value)[:40]}")
