"""The demo runs where NumPy is all there is, says what it found, and fails when a bit differs."""

import json
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starting import ROOT

from course_lib.commands import demo
from course_lib.cost.linear import PRESETS

pytestmark = pytest.mark.xdist_group("demo")  # one run of it serves them all
COST = PRESETS["reference"]


@pytest.fixture(scope="session")
def numpy_alone(tmp_path_factory):
    """A folder that holds NumPy and nothing else, for a Python that holds nothing."""
    folder, site = tmp_path_factory.mktemp("numpy alone"), Path(np.__file__).parents[1]
    for part in (path for path in site.iterdir() if path.name in ("numpy", "numpy.libs")):
        try:
            os.symlink(part, folder / part.name)
        except OSError:  # Windows, without the right to
            shutil.copytree(part, folder / part.name)
    return folder


@pytest.fixture(scope="session")
def start(bare_python, numpy_alone):
    def run(*arguments):
        path = os.pathsep.join([str(ROOT), str(numpy_alone)])
        command = [bare_python, "-m", "course_lib", "demo", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})

    return run


@pytest.fixture(scope="session")
def result(start, bare_python, numpy_alone):
    probe = "import numpy, importlib.util as u; print([u.find_spec(name) for name in ('torch', 'pytest')])"
    env = os.environ | {"PYTHONPATH": str(numpy_alone)}
    absent = subprocess.run([bare_python, "-c", probe], capture_output=True, text=True, env=env)
    assert absent.stdout.strip() == "[None, None]", absent
    done = start("--json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


def test_every_cut_of_the_short_and_of_the_long_prompt_equals_one_pass(result):
    short = [check for check in result["bit_identity"] if check["prompt_len"] < 1_100]
    long = [check for check in result["bit_identity"] if check["prompt_len"] >= 1_100]
    assert [check["chunk"] for check in short] == list(range(1, 65))
    assert [check["chunk"] for check in long] == [1, 7, 64, 100, 1_024, "ragged", 100]
    assert long[-1]["hit"] == 496 and long[-1]["decodes_beside"] == 3
    assert all(check["equal"] is True for check in result["bit_identity"])
    assert result["ok"] is True and result["control"]["seen"] is True


def test_the_reference_setting_and_32k_are_the_published_numbers(result):
    assert result["reference"] == {
        "worst_stall_us": 23_624,
        "ttft_us": 188_992,
        "steps_over_target": 0,
        "decode_tok_per_s": 1_451,
    }
    assert result["worst_itl_ratio_32k"] == {"mixed": 25.19, "exclusive": 25.30}
    assert result["knee_chunk"] == 2_489


def test_chunking_cuts_off_the_long_gaps_and_the_long_prompt_pays(result):
    unchunked, chunked = result["itl_us"]["unchunked"], result["itl_us"]["chunked"]
    assert set(unchunked) == set(chunked) == {"p50", "p99", "max"}
    assert chunked["p50"] <= unchunked["p50"]
    assert chunked["p99"] * 3 < unchunked["p99"]
    assert chunked["max"] * 6 < unchunked["max"]
    first = result["ttft_us"]
    assert first["chunked"]["longest"] > first["unchunked"]["longest"]
    assert first["chunked"]["shortest"] < first["unchunked"]["shortest"]


def test_the_sweep_trades_the_longest_wait_against_the_first_token(result):
    assert [set(point) for point in result["sweep"]] == 7 * [
        {"chunk", "ttft_us", "worst_itl_us", "p99_itl_us", "prefill_tok_per_s"}
    ]
    for small, large in pairwise(result["sweep"]):
        assert small["chunk"] * 2 == large["chunk"]
        assert small["worst_itl_us"] < large["worst_itl_us"] and small["ttft_us"] > large["ttft_us"]


# ---- a failure must be seen


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(demo, "LONG", 90)
    monkeypatch.setattr(demo, "HIT", 31)


def test_the_text_says_what_is_measured_and_what_is_modelled(quick, capsys):
    assert demo.main([]) == 0
    text = capsys.readouterr().out
    assert "64 of 64 equal" in text and "DIFFERENT" not in text and "NOT SEEN" not in text
    assert text.count("Measured") == 1 and text.count("Modelled") == 3
    assert text.isascii() and max(map(len, text.splitlines())) <= 120
    assert text.rstrip().endswith("Every bit check holds.")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_one_wrong_bit_is_exit_code_1(quick, monkeypatch, capsys, flags):
    def prefill(model, ids, sizes, **options):
        snapshot = right(model, ids, sizes, **options)
        if sizes == [7] * 10:
            snapshot.logits[5] = np.nextafter(snapshot.logits[5], np.float32(np.inf))
        return snapshot

    right = demo.prefill
    monkeypatch.setattr(demo, "prefill", prefill)
    assert demo.main(flags) == 1
    text = capsys.readouterr().out
    assert ("63 of 64" in text and "A BIT CHECK FAILED" in text) if not flags else json.loads(text)["ok"] is False


def test_a_comparison_that_cannot_see_a_mistake_is_exit_code_1(quick, monkeypatch, capsys):
    monkeypatch.setattr(demo, "control", lambda model: {"fault": "none", "seen": False, "first": "None"})
    assert demo.main([]) == 1
    assert "NOT SEEN" in capsys.readouterr().out


def test_bad_flags_get_one_line_and_help_an_example(start):
    for flags in (["--jsn"], ["extra"], ["--json=3"]):
        done = start(*flags)
        assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done
    done = start("--help")
    assert done.returncode == 0 and "python -m course_lib demo --json" in done.stdout


# ---- the mixed workload, against a plain loop that knows neither scheduler nor cache


@dataclass
class Served:
    """A prompt, and when its tokens came."""

    arrival_us: int
    prompt_len: int
    max_tokens: int
    computed: int = 0
    token_us: list[int] = field(default_factory=list)


def plain_loop(requests, budget, chunking):
    """Run all requests to their end. A step: decodes first, then prompts in order; returns (prompt tokens, decodes)."""
    now, steps = 0, []
    while running := [r for r in requests if len(r.token_us) < r.max_tokens]:
        here = [r for r in running if r.arrival_us <= now]
        if not here:
            now = min(r.arrival_us for r in running)
            continue
        decodes = [r for r in here if r.computed == r.prompt_len]
        left, slices = budget - len(decodes), []
        for r in here:
            rest = r.prompt_len - r.computed
            take = min(rest, left) if chunking or rest <= left else 0
            if rest and not take:
                break  # the first that does not fit holds back those behind it
            slices += [(r, take)] if take else []
            left -= take
        steps.append((sum(take for _, take in slices), len(decodes)))
        now += COST.step_us(*steps[-1])
        for r, take in slices:
            r.computed += take
        for r in decodes + [r for r, _ in slices if r.computed == r.prompt_len]:
            r.token_us.append(now)
    return steps


def compare_with_the_plain_loop(chunking):
    report = demo.mixed_workload(chunking)
    users = [Served(0, 1, 400, computed=1, token_us=[0]) for _ in range(demo.USERS)]
    served = users + [Served(at, tokens, 100) for at, tokens in demo.ARRIVALS]
    room = demo.USERS + len(demo.ARRIVALS) + (demo.CHUNK if chunking else demo.PROMPT)
    steps = plain_loop(served, room, chunking)
    assert report.steps.counts == Counter(COST.step_us(*step) for step in steps)
    assert {r.id: (r.arrival_us, r.ttft_us, r.gaps_us) for r in report.requests} == {
        i: (r.arrival_us, r.token_us[0] - r.arrival_us, tuple(b - a for a, b in pairwise(r.token_us)))
        for i, r in enumerate(served)
    }
    return report


@pytest.mark.parametrize("chunking", [True, False])
def test_the_demos_waits_are_those_of_a_plain_loop_to_the_microsecond(chunking):
    report = compare_with_the_plain_loop(chunking)
    assert report.num_finished == demo.USERS + len(demo.ARRIVALS)
    assert report.num_refused == report.num_starved == report.num_preemptions == 0


arrivals = st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 600)), min_size=1, max_size=6)


@settings(max_examples=30)
@given(arrivals, st.integers(0, 3), st.integers(1, 700), st.booleans())
def test_so_they_are_for_any_other_prompts_users_and_chunk(prompts, users, chunk, chunking):
    with mock.patch.multiple(demo, ARRIVALS=sorted(prompts), USERS=users, CHUNK=chunk, PROMPT=600):
        compare_with_the_plain_loop(chunking)
