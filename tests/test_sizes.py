"""No number that can be typed takes the machine: each is refused in one line, at once, before anything is made."""

import os
import resource
import subprocess
import sys
import tracemalloc

import pytest
from starting import ROOT

from course_lib.commands import sizes

HUGE = "999999999999"
LONGEST = str(2**63 - 1)
SIMULATE, ONE = ("simulate", "--rate", "1", "--requests", "2"), ("simulate",)
SWEEP, SERVE = ("sweep", "--rate", "1"), ("serve", "--port", "0")
PREFILL, LOAD = ("prefill", "--prompt-len", "5", "--chunk", "1"), ("load", "http://127.0.0.1:9")
TOO_MUCH = [
    (*SIMULATE, "--replicas", "99999999"), (*SIMULATE, "--disaggregated", "99999999:1"),
    (*SIMULATE, "--disaggregated", "1:99999999"), (*SIMULATE, "--disaggregated", HUGE + ":1"),
    (*SIMULATE, "--disaggregated", "\u00b2:1"), (*SIMULATE, "--disaggregated", "9" * 5000 + ":1"),
    (*SIMULATE, "--prompts", HUGE), (*SIMULATE, "--prompts", "1-" + HUGE), (*SIMULATE, "--outputs", HUGE),
    (*SIMULATE, "--prompts", "lognormal:1024,1000,16384"), (*SIMULATE, "--prompts", "lognormal:1024,inf,16384"),
    (*SIMULATE, "--prompts", "lognormal:1024,nan,16384"), (*SIMULATE, "--prompts", "lognormal:1024,1e-400,16384x"),
    (*SIMULATE, "--prompts", "9" * 400), (*SIMULATE, "--outputs", "lognormal:1,99,4"),
    (*SIMULATE, "--families", "2", "--prefix-tokens", HUGE), (*SIMULATE, "--num-blocks", HUGE),
    (*SIMULATE, "--num-blocks", "30000000"), (*SIMULATE, "--replicas", "1000", "--num-blocks", "100000"),
    ("simulate", "--rate", "1", "--requests", HUGE), ("simulate", "--rate", "1", "--requests", "9000000", "--outputs",
     "16000000"), ("simulate", "--rate", "1e9", "--requests", "100000", "--num-blocks", "9000000", "--max-num-seqs",
     "100000", "--prompts", "90000"),
    ("simulate", "--rate", "1e-300"), ("simulate", "--rate", "5e-324"), ("simulate", "--rate", "nan"),
    ("simulate", "--rate", "inf"), ("simulate", "--rate", "-1"), ("simulate", "--rate", "x"),
    (*SIMULATE, "--seed", "9" * 5000), (*SIMULATE, "--families", "1" + "0" * 400, "--prefix-tokens", "1"),
    (*ONE, "--prompt", HUGE), (*ONE, "--users", HUGE), (*ONE, "--users", "300000"), (*ONE, "--prompt", LONGEST),
    (*ONE, "--preset", "8b-h100", "--context", HUGE), (*ONE, "--preset", "8b-h100", "--context", "4000000"),
    (*ONE, "--prompt", "4000000", "--chunk", "1"), (*ONE, "--target-ms", "9" * 4300), (*ONE, "--hit", HUGE),
    ("sweep", "-j", HUGE), ("sweep", "-j", "62"), ("sweep", "--prompt", HUGE), ("sweep", "--users", "99999999"),
    ("sweep", "--chunks", "1", "--prompt", "4000000"), ("sweep", "--chunks", "9" * 5000),
    (*SWEEP, "--replicas", "99999999"), (*SWEEP, "--requests", HUGE), (*SWEEP, "--num-blocks", HUGE),
    ("prefill", "--prompt-len", HUGE, "--chunk", "7"), ("prefill", "--prompt-len", "1048576", "--chunk", "7"),
    ("prefill", "--prompt-len", "400000", "--chunk", "400000,400000,400000"),
    ("prefill", "--prompt-len", "100000", "--chunk", ",".join(["1"] * 11)),
    (*PREFILL, "--hit", HUGE), (*PREFILL, "--block-size", HUGE),
    ("walkthrough", "--block-size", HUGE),
    (*SERVE, "--num-blocks", HUGE), (*SERVE, "--block-size", HUGE), (*SERVE, "--num-blocks", "1000000"),
    (*SERVE, "--max-model-len", HUGE), (*SERVE, "--max-num-seqs", HUGE), (*SERVE, "--max-chunk", HUGE),
    (*SERVE, "--max-tokens", HUGE), (*SERVE, "--max-requests", HUGE), (*SERVE, "--max-body", HUGE),
    (*SERVE, "--max-connections", HUGE), (*SERVE, "--client-timeout", HUGE), ("serve", "--port", HUGE),
    (*SERVE, "--max-num-batched-tokens", "9" * 5000),
    (*LOAD, "--users", "99999999"), (*LOAD, "--users", HUGE), (*LOAD, "--tokens", HUGE), (*LOAD, "--users", "9999",
     "--tokens", "99999"), (*LOAD, "--prompt-tokens", HUGE), (*LOAD, "--timeout", "1e300"), (*LOAD, "--timeout", "nan"),
    (*LOAD, "--token-ids", "--vocab", HUGE), (*LOAD, "--seed", "9" * 5000),
]  # fmt: skip


@pytest.mark.parametrize("argv", TOO_MUCH, ids=lambda argv: " ".join(argv)[:70])
def test_a_number_that_would_take_the_machine_is_one_line_and_takes_no_memory(refused, argv):
    if argv[0] == "serve":
        pytest.importorskip("uvicorn")
    if argv[0] == "load":
        pytest.importorskip("httptools")
    tracemalloc.start()
    try:
        assert len(refused(*argv)) < 600
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("row", ["0,999999999,1", "0,1,999999999"])
def test_a_row_of_a_trace_that_is_far_too_long_is_counted_as_refused_and_its_tokens_are_not_made(
    as_json, tmp_path, row
):
    (tmp_path / "a.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n0,64,3\n{row}\n")
    tracemalloc.start()
    code, answer = as_json("simulate", "--csv", tmp_path / "a.csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code == 0 and (answer["num_finished"], answer["num_refused"]) == (1, 1) and peak < 60e6


@pytest.mark.parametrize("speed", ["1e-300", "nan", "inf", "0"])
def test_a_speed_at_which_the_clock_ends_is_refused(refused, tmp_path, speed):
    (tmp_path / "a.csv").write_text("arrival_s,prompt_tokens,output_tokens\n9,64,3\n")
    refused("simulate", "--csv", tmp_path / "a.csv", "--speed", speed)


@pytest.mark.parametrize(
    "argv",
    [
        (*SIMULATE, "--replicas", "64"), (*SIMULATE, "--disaggregated", "8:8"), (*SIMULATE, "--num-blocks", "1000000"),
        (*SIMULATE, "--prompts", "lognormal:1024,20,16384"), ("simulate", "--rate", "1e-3", "--requests", "2"),
        ("simulate", "--rate", "1e300", "--requests", "2"), ("simulate", "--users", "2000", "--prompt", "2048"),
        (*SIMULATE, "--target-ms", LONGEST),
    ],
)  # fmt: skip
def test_what_is_large_and_possible_is_not_refused(command, argv):
    code, out, err = command(*argv)
    assert (code, err) == (0, "") and out


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="the limit of a process's memory is a matter of Unix")
def test_a_refusal_needs_no_more_memory_than_the_command_itself():
    """A process that may take 2 GB answers in its own words, and is not killed."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); import runpy, sys; sys.argv = "
    )
    script += (
        f"{['course_lib', *SIMULATE, '--replicas', '99999999']}; runpy.run_module('course_lib', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2 and done.stderr.startswith(
        "course_lib simulate: servers: 99,999,999, and at most 1,024"
    )


def test_a_prefill_of_a_wider_model_may_be_shorter():
    from course_lib.weights.seeded import SEEDED

    knobs = {"hit": 0, "chunks": [100_000], "block_size": 16, "tokens": 300_000}
    sizes.expect_prefill(config=SEEDED["tiny"], **knobs)
    with pytest.raises(sizes.UserError, match="GiB"):
        sizes.expect_prefill(config=SEEDED["small"], **knobs)
