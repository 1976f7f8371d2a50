"""A flag that would change nothing is refused, in one line that names what makes it idle."""

import pytest

from course_lib.schedule.profiles import PROFILES, profile_named
from course_lib.schedule.scheduler import Scheduler

MANY = ("simulate", "--rate", "1", "--requests", "2")
TRACE = ("simulate", "--csv", "a.csv")
LOAD = ("load", "http://127.0.0.1:9")
IDLE = [
    (("serve", "--no-chunking", "--max-chunk", "4"), "--no-chunking"),
    (("serve", "--profile", "sarathi", "--max-chunk", "4"), "--profile sarathi"),
    (("serve", "--profile", "whole-prompt", "--max-chunk", "4"), "--profile whole-prompt"),
    (("serve", "--profile", "whole-prompt", "--no-chunking"), "--no-chunking"),
    (("serve", "--profile", "sarathi", "--no-prefix-caching"), "no prefix cache"),
    (("serve", "--max-chunk", "129"), "128 tokens in all"),
    (("serve", "--max-num-batched-tokens", "16", "--max-num-seqs", "17"), "at most 16"),
    (("serve", "--max-requests", "4", "--max-num-seqs", "5"), "--max-requests admits 4"),
    (("serve", "--port", "0", "--max-model-len", "50", "--max-tokens", "50"), "limit nothing"),
    ((*MANY, "--profile", "sarathi", "--chunk", "4"), "--profile sarathi"),
    ((*MANY, "--profile", "whole-prompt", "--chunk", "4"), "--profile whole-prompt"),
    ((*MANY, "--profile", "whole-prompt", "--no-chunking"), "--no-chunking"),
    ((*MANY, "--profile", "sarathi", "--no-prefix-caching"), "no prefix cache"),
    ((*MANY, "--chunk", "2049"), "2048 tokens in all"),
    ((*MANY, "--max-num-batched-tokens", "100", "--max-num-seqs", "101"), "at most 100"),
    ((*MANY, "--disaggregated", "1:1", "--replicas", "2"), "--disaggregated"),
    ((*MANY, "--speed", "2"), "--speed"),
    *(((*TRACE, flag, value), flag) for flag, value in (
        ("--requests", "5"), ("--prompts", "5"), ("--outputs", "5"), ("--families", "2"), ("--prefix-tokens", "5"),
        ("--seed", "1"))),
    (("simulate", "--context", "500"), "the same time in any context"),
    (("sweep", "--context", "500"), "the same time in any context"),
    (("simulate", "--preset", "8b-h100", "--users", "0", "--context", "500"), "--users 0"),
    (("sweep", "--rate", "1", "--disaggregated", "1:1", "--replicas", "2"), "--disaggregated"),
    ((*LOAD, "--vocab", "99"), "--token-ids"),
    ((*LOAD, "--ignore-eos", "--extra", '{"ignore_eos": false}'), "--extra sets ignore_eos"),
    ((*LOAD, "--model", "a", "--extra", '{"model": "b"}'), "--extra sets model"),
    ((*LOAD, "--tokens", "5", "--extra", '{"max_tokens": 6}'), "--extra sets max_tokens"),
]  # fmt: skip


@pytest.mark.parametrize("argv, why", IDLE, ids=[" ".join(argv) for argv, _ in IDLE])
def test_a_knob_that_would_do_nothing_is_refused(refused, argv, why, tmp_path, monkeypatch):
    if argv[0] == "serve":
        pytest.importorskip("uvicorn")
    if argv[0] == "load":
        pytest.importorskip("httptools")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,64,3\n")
    assert why in refused(*argv)


def test_the_same_knobs_are_taken_where_they_act(command, tmp_path):
    (tmp_path / "a.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,64,3\n")
    for argv in (
        (*MANY, "--chunk", "2048"), (*MANY, "--profile", "sglang-mixed", "--chunk", "64"),
        (*MANY, "--no-prefix-caching"), (*MANY, "--max-num-batched-tokens", "100"),
        ("simulate", "--csv", tmp_path / "a.csv", "--speed", "2"),
        ("simulate", "--preset", "8b-h100", "--context", "500"),
    ):  # fmt: skip
        assert command(*argv)[0] == 0, argv


def test_diff_takes_no_folder_for_the_seeded_model(command, refused, tmp_path):
    for name, chunk in (("a", "5"), ("b", "3")):
        command("prefill", "--prompt-len", "9", "--chunk", chunk, "--save", tmp_path / name)
    assert "--model would do nothing" in refused("diff", tmp_path / "a", tmp_path / "b", "--model", tmp_path)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("chunking", [True, False])
def test_a_scheduler_takes_max_chunk_exactly_where_its_policy_reads_it(profile, chunking):
    rules = profile_named(profile)
    knobs = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "enable_chunked_prefill": chunking}
    reads = chunking and profile not in ("sarathi", "whole-prompt")
    if reads:
        assert Scheduler(rules.new_cache(9, 4), rules, max_chunk=4, **knobs).max_chunk == 4
    else:
        with pytest.raises(ValueError, match="max_chunk=4 would do nothing"):
            Scheduler(rules.new_cache(9, 4), rules, max_chunk=4, **knobs)
    assert Scheduler(rules.new_cache(9, 4), rules, max_chunk=0, **knobs).max_chunk == 0
