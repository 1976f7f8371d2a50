"""The demo runs where NumPy is all there is, says what it found, and fails when a bit differs."""

import json
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.commands import demo
from course_lib.cost.linear import PRESETS

pytestmark = pytest.mark.xdist_group("demo")  # one run of it serves them all
ROOT = Path(__file__).parents[1]
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


# ---- the mixed workload

requests = st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 600), st.integers(1, 8)), min_size=1, max_size=6)


class Watched:
    """The cost, noting every step."""

    def __init__(self):
        self.steps = []

    def step_us(self, prefill_tokens, decodes):
        self.steps.append((prefill_tokens, decodes))
        return COST.step_us(prefill_tokens, decodes)


def run(specs, budget, chunking):
    served, cost = [demo.Request(*spec) for spec in specs], Watched()
    demo.serve(served, cost, budget, chunking)
    return served, cost.steps


@given(requests, st.integers(1, 700))
def test_with_chunking_every_request_ends_and_no_step_exceeds_the_budget(specs, budget):
    served, steps = run(specs, budget, chunking=True)
    assert [len(r.token_us) for r in served] == [tokens for _, _, tokens in specs]
    assert all(0 < prefill + decodes <= budget for prefill, decodes in steps)
    assert sum(prefill for prefill, _ in steps) == sum(tokens for _, tokens, _ in specs)
    assert all(a < b for r in served for a, b in pairwise([r.arrival_us, *r.token_us]))


@given(requests)
def test_without_chunking_a_prompt_takes_one_step(specs):
    served, steps = run(specs, 4_000, chunking=False)
    whole = [prefill for prefill, _ in steps if prefill]
    assert len(whole) <= len(specs) and sum(whole) == sum(tokens for _, tokens, _ in specs)
    assert [len(r.token_us) for r in served] == [tokens for _, _, tokens in specs]


def test_decodes_come_first_and_the_prompt_gets_what_is_left():
    streaming = demo.Request(0, 1, 5, computed=1)
    demo.serve([demo.Request(0, 10, 1), streaming], cost := Watched(), budget=4, chunking=True)
    assert cost.steps == [(3, 1), (3, 1), (3, 1), (1, 1), (0, 1)]


def test_a_whole_prompt_above_the_budget_can_never_run_and_in_chunks_it_does():
    with pytest.raises(ValueError, match="not a step"):
        run([(0, 100, 1)], 99, chunking=False)
    assert run([(0, 100, 1)], 99, chunking=True)[1] == [(99, 0), (1, 0)]
