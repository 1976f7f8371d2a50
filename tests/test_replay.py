"""Our planner and cache decide as the recorded servers did, and a broken case file is refused in one line."""

import copy
import json
from pathlib import Path

import pytest

from course_lib.__main__ import main as course_lib
from course_lib.commands import replay
from course_lib.commands.case_file import read_cases

PATH = Path(__file__).parent / "data" / "cases.json"
CASES = {case["id"]: case for case in read_cases(PATH)}


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_case_is_decided_the_same_way(name):
    replay.KINDS[CASES[name]["kind"]](CASES[name], CASES[name]["expected"])


@pytest.mark.parametrize(
    ("system", "cases"),
    [("vllm-0.33.0", 41), ("vllm-0.11.0", 41), ("vllm-0.8.5", 40), ("TensorRT-LLM", 6)],
)
def test_a_system_is_replayed_in_every_case_that_records_it(system, cases, capsys):
    assert course_lib(["replay", str(PATH), "--system", system, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["passed"]) == cases and answer["failed"] == []


def test_sarathi_differs_from_ours_only_by_a_token_it_was_not_asked_for(capsys):
    """C07: after its preemption Sarathi-Serve gives B a seventh token; B asked for six."""
    assert course_lib(["replay", str(PATH), "--system", "sarathi-serve@96f9911", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["passed"]) == 8 and [entry["id"] for entry in answer["failed"]] == ["C07"]
    assert 'step 11, slices\n  sarathi-serve@96f9911: [["B", 13, 14]]\n  ours: []' in answer["failed"][0]["why"]


def test_all_51_pass_and_zero_progress_is_reported_not_refused(capsys):
    assert course_lib(["replay", str(PATH)]) == 0
    out = capsys.readouterr().out
    assert "T02: no progress: the prompts stay at [0, 0] of [25, 25] tokens" in out
    assert out.endswith("51 passed, 0 failed\n")


@pytest.fixture
def replayed(tmp_path, capsys):
    """Replay a case after a change: (exit code, stdout, stderr)."""

    def run(name, change, *flags):
        case = copy.deepcopy(CASES[name])
        change(case)
        file = tmp_path / "cases.json"
        file.write_text(json.dumps({"cases": [case]}))
        code = course_lib(["replay", str(file), *flags])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("A03", lambda c: c["expected"]["steps"][2]["slices"][2].__setitem__(2, 13), ["step 2, slices", "12]", "13]"]),
        ("A03", lambda c: c["expected"]["steps"][0]["sampled"].remove("C"), ["step 0, sampled", '["B"]', '["B", "C"]']),
        ("C07", lambda c: c["expected"]["steps"][1].update(preempted=[]), ["step 1, preempted", '["B"]']),
        ("B05", lambda c: c["expected"]["first_slice_start"].update(B=12), ["B finds in the prefix cache", "12", "16"]),
        ("C01", lambda c: c["expected"]["end"]["free_order"].reverse(), ["at the end, free_order", "[4, 5, 6"]),
        ("C04", lambda c: c["expected"]["end"]["refs"].update({"1": 2}), ["at the end, refs"]),
        ("C06", lambda c: c["expected"]["end"]["tables"].update(A=[1, 2, 9]), ["at the end, tables"]),
        ("T04", lambda c: c["expected"]["EQUAL_PROGRESS"][0].reverse() or c["expected"].update(EQUAL_PROGRESS=[[1, 1]]),
         ["EQUAL_PROGRESS, cursors after each step"]),
        ("T11", lambda c: c["expected"]["slices"].pop(), ["slices of the tail"]),
    ],
)  # fmt: skip
def test_a_difference_exits_1_and_shows_both_sides(replayed, name, change, says):
    code, out, err = replayed(name, change)
    assert code == 1 and err == ""
    assert f"{name} differs" in out and "ours: " in out and "0 passed, 1 failed" in out
    for text in says:
        assert text in out
    code, out, _ = replayed(name, change, "--json")
    assert code == 1 and json.loads(out)["failed"][0]["id"] == name


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("A01", lambda c: c["config"].pop("budget"), "A01: config.budget should be a whole number from 1 to"),
        ("A01", lambda c: c["config"].update(budget=True), "config.budget"),
        ("A01", lambda c: c["config"].update(caching="no"), 'config.caching should be true or false, not "no"'),
        ("A01", lambda c: c.pop("id"), "case 0: id should be a text, not null"),
        ("A01", lambda c: c.update(kind="shedule"), "kind 'shedule' is unknown; there are schedule, trtllm_chunk"),
        ("A01", lambda c: c.pop("expected"), "expected should be an object"),
        ("A01", lambda c: c["requests"][0].update(prompt=[[0]]), "prompt: [0] is not a run"),
        ("A01", lambda c: c["requests"][0].update(prompt=[]), "prompt has no tokens"),
        ("A01", lambda c: c["requests"][0].update(max_tokens=0), "requests[0].max_tokens"),
        ("A01", lambda c: c["requests"].append(c["requests"][0]), "two requests have the same id"),
        ("A01", lambda c: c["expected"]["steps"][0].update(slices=[["B", 0, 8]]), "['B', 0, 8] is not a slice"),
        ("A01", lambda c: c["expected"]["steps"][0].update(sampled=["B"]), "there is no request 'B'"),
        ("A01", lambda c: c["expected"].update(system="vllm-9"), "no profile for 'vllm-9'"),
        ("A01", lambda c: c["expected"].pop("steps"), "expected.steps should be a list"),
        ("T01", lambda c: c["input"].update(chunk_unit=0), "input.chunk_unit"),
        ("T01", lambda c: [c["expected"].pop(k) for k in ("EQUAL_PROGRESS", "FIRST_COME_FIRST_SERVED")], "neither"),
        ("T11", lambda c: c["input"].update(end="x"), "input.end"),
        ("T11", lambda c: c["input"].update(end=10**30), "input.end"),
        ("T11", lambda c: c.update(differs=5), "differs should be an object, not 5"),
        ("T11", lambda c: c.update(differs={"vllm-0.11.0": 3}), "differs should be an object, not 3"),
        ("T11", lambda c: c.update(also_identical=None), "also_identical should be a list, not null"),
        ("T01", lambda c: c["input"].update(prompt_lengths=[10**30]), "input.prompt_lengths"),
        ("A01", lambda c: c.update(kind=[]), "kind [] is unknown"),
        ("A01", lambda c: c["expected"]["steps"][0].update(slices=[[[], 0, 8]]), "is not a slice"),
        ("A01", lambda c: c["expected"]["steps"][0].update(sampled=[[1]]), "there is no request [1]"),
        ("A01", lambda c: c["config"].update(usable_blocks=10**30), "config.usable_blocks"),
        ("A01", lambda c: c["requests"][0].update(prompt=[[10**30, 2]]), "first token"),
        ("A01", lambda c: c["requests"][0].update(prompt=[[0, 10**30]]), "number of tokens"),
        ("A01", lambda c: c["requests"][0].update(salt=[1]), "requests[0].salt should be a text"),
        ("A01", lambda c: c["requests"][0].update(prompt_logprobs="no"), "requests[0].prompt_logprobs"),
    ],
)  # fmt: skip
def test_a_malformed_case_is_one_line_that_names_it(replayed, name, change, says):
    code, out, err = replayed(name, change)
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and says in err, err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a JSON file"), ("[1]", "is not a case file"), ('{"cases": []}', "is not a case file"),
        ('{"cases": [3]}', "case 0: the case should be an object"), ("\xff", "is not a JSON file"),
        ("[" * 100_000, "is not a JSON file"), ('{"cases": [' + "1" * 5000 + "]}", "case"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_case_file_is_one_line(tmp_path, capsys, text, says):
    file = tmp_path / "x.json"
    file.write_bytes(text.encode("latin-1"))
    assert course_lib(["replay", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err


def test_a_missing_file_and_an_unknown_system_are_one_line(tmp_path, capsys):
    assert course_lib(["replay", str(tmp_path / "none.json")]) == 2
    assert course_lib(["replay", str(PATH), "--system", "nano-vllm"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 2 and "none.json" in err and "no profile for a system 'nano-vllm'; there are" in err


def test_a_file_without_a_record_of_the_system_is_refused(replayed):
    code, out, err = replayed("T01", lambda c: None, "--system", "vllm-0.11.0")
    assert code == 2 and out == "" and "none of the 1 cases" in err


def test_an_id_that_no_terminal_can_show_is_shown_all_the_same(replayed):
    code, out, _ = replayed("A01", lambda c: c.update(id="\ud800") or c["expected"]["steps"].pop(0))
    assert code == 1 and "\\ud800 differs" in out
