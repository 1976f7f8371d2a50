"""`simulate` and `sweep` as their contract says: the reference numbers, JSON keys, files, interruptions, refusals."""

import errno
import json
import sys

import pytest

from course_lib.commands import simulation
from course_lib.commands import sweep as sweep_command
from course_lib.commands.simulate import main as simulate_main
from course_lib.cost.linear import PRESETS, knee_chunk, sweep

SMALL = ("--rate", "20", "--requests", "40", "--prompts", "10-200", "--outputs", "20", "--max-num-seqs", "16")


def test_simulate_prints_the_reference_setting_to_the_microsecond(as_json):
    code, answer = as_json("simulate", "--preset", "reference")
    keys = ("worst_stall_us", "ttft_us", "steps_over_target", "decode_tok_per_s")
    assert code == 0 and [answer[key] for key in keys] == [23_624, 188_992, 0, 1_451]
    assert answer["baseline"] == {"mode": "mixed", "worst_stall_us": 152_648, "ttft_us": 152_648}
    assert len(answer["steps"]) == 8 + 5
    assert sum(row["prefill_tokens"] for row in answer["steps"]) == 8_192


def test_unchunked_simulate_is_the_baseline_that_was_named(as_json):
    for baseline, stall, ttft in (("mixed", 152_648, 152_648), ("exclusive", 155_248, 150_056)):
        _, answer = as_json("simulate", "--no-chunking", "--baseline", baseline)
        assert (answer["worst_stall_us"], answer["ttft_us"], answer["steps_over_target"]) == (stall, ttft, 1)
    assert as_json("simulate", "--no-chunking")[1]["worst_stall_us"] == 152_648, "mixed unless told otherwise"
    assert as_json("simulate", "--chunk", 8192)[1]["worst_stall_us"] == 152_648, "chunk = prompt is the mixed baseline"


def test_simulate_of_a_hit_is_the_cell_of_the_two_by_two(as_json):
    _, answer = as_json("simulate", "--prompt", 7000, "--users", 3, "--hit", 5000)
    assert (answer["ttft_us"], answer["worst_stall_us"]) == (41_848, 21_356)


def test_the_text_says_modelled_which_preset_and_what_the_baseline_is(command):
    code, out, err = command("simulate", "--prompt", 32_768, "--baseline", "exclusive")
    assert (code, err) == (0, "") and "Modelled, preset reference." in out
    assert "unchunked (exclusive): stall 597.6 ms, 25.30 times as long" in out
    assert "!" in command("simulate", "--no-chunking")[1].split("over the target")[1]


def test_a_workload_reports_waits_goodput_and_hits(as_json, command):
    code, answer = as_json("simulate", *SMALL, "--families", 2, "--prefix-tokens", 64)
    assert code == 0 and answer["num_finished"] == 40 and answer["itl_us"]["count"] == 40 * 19
    assert 0 < answer["hit_rate"] < 1 and answer["goodput_req_per_s"] > 0
    off = as_json("simulate", *SMALL, "--families", 2, "--prefix-tokens", 64, "--no-prefix-caching")[1]
    assert off["hit_rate"] == 0
    out = command("simulate", *SMALL)[1]
    assert "40 requests" in out and "P99" in out and "goodput" in out


@pytest.mark.parametrize("how", [("--disaggregated", "1:1"), ("--replicas", "2"), ("--profile", "sglang-mixed")])
def test_a_workload_can_be_served_otherwise(as_json, how):
    assert as_json("simulate", *SMALL, *how)[1]["num_finished"] == 40


def test_what_can_never_run_is_said(command):
    out = command("simulate", *SMALL, "--no-chunking", "--max-num-batched-tokens", 100)[1]
    assert "refused:" in out and "must fit into one step" in out


def test_a_trace_is_played_and_shared_prefixes_hit(as_json, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,prefix_id\n0,64,3,a\n2,96,3,a\n3,50,1,\n")
    _, answer = as_json("simulate", "--csv", trace)
    assert answer["num_finished"] == 3 and answer["hit_rate"] == 64 / 210
    fast = as_json("simulate", "--csv", trace, "--speed", 1000)[1]
    assert fast["duration_us"] < answer["duration_us"] / 10


def test_a_malformed_row_is_named_by_its_line(refused, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,64,3\n1,many,3\n")
    assert "line 3" in refused("simulate", "--csv", trace)


# --- sweep


def test_sweep_finds_the_knee_of_the_reference_setting(as_json):
    code, answer = as_json("sweep")
    chunks = [row["chunk"] for row in answer["points"]]
    assert code == 0 and answer["knee_chunk"] == 2_489
    assert (chunks[0], chunks[-1]) == (128, 8192)
    assert answer["points"] == sweep(PRESETS["reference"], 8192, 24, chunks)


def test_sweep_of_another_setting_is_that_of_the_formula(as_json):
    _, answer = as_json("sweep", "--prompt", 3000, "--users", 5, "--hit", 1000, "--chunks", "700,64", "--target-ms", 20)
    assert answer["points"] == sweep(PRESETS["reference"], 3000, 5, [64, 700], hit=1000)
    assert answer["knee_chunk"] == knee_chunk(PRESETS["reference"], 20_000, 5)


def test_a_knee_that_no_chunk_reaches_is_none(command):
    assert "knee for 3 ms: none" in command("sweep", "--target-ms", 3, "--chunks", "128")[1]


def test_a_sweep_of_a_workload_takes_the_chunk_as_budget(as_json):
    _, answer = as_json("sweep", *SMALL, "--chunks", "16,64,2000")
    itl = [row["worst_itl_us"] for row in answer["points"]]
    assert itl[0] < itl[1] < itl[2] and answer["knee_chunk"] == 2000
    assert {"p99_ttft_us", "goodput_req_per_s", "attainment"} < answer["points"][0].keys()


def test_two_processes_find_the_same_points(as_json):
    assert as_json("sweep", "--chunks", "500,1000", "-j", 2)[1] == as_json("sweep", "--chunks", "500,1000")[1]


def test_files_are_written_in_the_format_of_their_name(command, tmp_path):
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"sweep.{kind}" for kind in ("png", "svg", "json")]
    outs = [word for file in files for word in ("--out", file)]
    code, out, err = command("sweep", "--chunks", "512,4096", *outs)
    assert (code, err) == (0, "")
    assert files[0].read_bytes().startswith(b"\x89PNG") and b"<svg" in files[1].read_bytes()
    assert json.loads(files[2].read_text())["knee_chunk"] == 2_489


@pytest.mark.parametrize("kind", ["png", "svg", "json"])
def test_a_disk_that_is_full_costs_neither_the_answer_nor_the_file_that_was_there(command, monkeypatch, tmp_path, kind):
    if kind != "json":
        pytest.importorskip("matplotlib")
    old, new = tmp_path / f"old.{kind}", tmp_path / f"new.{kind}"
    old.write_bytes(b"old")

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", source)

    monkeypatch.setattr("os.replace", full)
    for file in (old, new):
        code, out, err = command("sweep", "--chunks", "512", "--json", "--out", file)
        assert code == 2 and json.loads(out)["knee_chunk"] == 2_489
        assert err == f"course_lib sweep: cannot write {file}: No space left on device.\n"
    assert list(tmp_path.iterdir()) == [old] and old.read_bytes() == b"old"


def test_a_picture_without_matplotlib_is_refused_before_the_work(refused, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sweep_command, "sweep_point", None)  # the work would begin with it
    assert 'needs matplotlib: pip install -e ".[lab]"' in refused("sweep", "--out", tmp_path / "a.svg")


def test_an_interrupted_sweep_keeps_the_points_that_are_done(command, monkeypatch, tmp_path):
    real = sweep_command.sweep_point

    def point(setting, cost):
        if setting.chunk == 1000:
            raise KeyboardInterrupt
        return real(setting, cost)

    monkeypatch.setattr(sweep_command, "sweep_point", point)
    file = tmp_path / "kept.json"
    code, out, _ = command("sweep", "--chunks", "500,700,1000,2000", "--json", "--out", file)
    answer = json.loads(out)
    assert code == 130 and answer["interrupted"] and [row["chunk"] for row in answer["points"]] == [500, 700]
    assert json.loads(file.read_text()) == answer
    code, _, err = command("sweep", "--chunks", "1000")
    assert code == 2 and "before the first point" in err


def test_progress_is_drawn_on_a_terminal_only(command, monkeypatch, capsys):
    assert command("sweep", "--chunks", "512,1024")[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(sweep_command.sys, "stderr", Terminal())
    command("sweep", "--chunks", "512,1024")
    assert "2 of 2" in sweep_command.sys.stderr.said


class Terminal:
    said = ""

    def isatty(self):
        return True

    def write(self, text):
        self.said += text

    def flush(self):
        pass


# --- refusals


@pytest.mark.parametrize(
    "argv, why",
    [
        (("simulate", "--preset", "b200"), "there are reference"),
        (("simulate", "--rate", "1", "--users", "3"), "--users belongs to one prompt"),
        (("simulate", "--rate", "1", "--baseline", "mixed"), "--baseline belongs to one prompt"),
        (("simulate", "--families", "3"), "--families belongs to a workload"),
        (("simulate", "--max-num-batched-tokens", "3"), "--max-num-batched-tokens belongs to a workload"),
        (("simulate", "--rate", "1", "--csv", "x"), "give one of them"),
        (("simulate", "--rate", "0"), "rate above 0"),
        (("simulate", "--rate", "1", "--families", "2"), "give both"),
        (("simulate", "--rate", "1", "--prompts", "9-1"), "no length"),
        (("simulate", "--rate", "1", "--disaggregated", "one"), "P:D"),
        (("simulate", "--rate", "1", "--disaggregated", "0:1"), "at least 1 of each"),
        (("simulate", "--hit", "8192"), "at least the last token"),
        (("simulate", "--context", "1"), "context=1"),
        (("simulate", "--prompt", "4000000", "--chunk", "1"), "too much for one timeline"),
        (("simulate", "--chunk", "5", "--no-chunking"), "not allowed with"),
        (("simulate", "--csv", "no-such-file.csv"), "no-such-file.csv"),
        (("sweep", "--chunks", "0"), "at least 1"),
        (("sweep", "--chunks", "5,x"), "whole number"),
        (("sweep", "--rate", "1", "--chunks", "64"), "at least 128"),
        (("sweep", "--out", "x.pdf"), ".png, .svg, .json"),
        (("sweep", "--out", "x.json/"), "cannot write x.json/: such a name is that of a folder"),
        (("sweep", "--out", "no/such/folder.json"), "folder.json"),
    ],
)
def test_what_cannot_be_is_one_line(refused, argv, why):
    assert why in refused(*argv)


def test_every_argument_of_a_workload_has_a_default_and_the_other_way_round():
    from course_lib.cli import Parser

    p = Parser()
    simulation.add_arguments(p)
    arguments = set(vars(p.parse_args([])))
    assert arguments - {"preset", "target_ms", "json"} == {*simulation.ONE_PROMPT, *simulation.WORKLOAD}
    assert simulate_main(["--users", "0", "--prompt", "5"]) == 0, "nobody streams, and that is no error"
