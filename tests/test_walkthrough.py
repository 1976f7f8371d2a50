"""The walk-through's numbers, from planner and cache; and the same plans on a real model."""

import json

import pytest

from course_lib.__main__ import main as course_lib
from course_lib.commands.walkthrough import CELLS, OWN_CAP, SHARED_BUDGET, tell


def sizes(story):
    return [stop - start for start, stop in story.chunks]


@pytest.mark.parametrize(
    ("block_size", "hit", "own_cap", "shared"),
    [
        (1, 5000, [1024, 976], [1021, 979]),
        (8, 5000, [1024, 976], [1021, 979]),
        (16, 4992, [1024, 984], [1021, 987]),
        (128, 4992, [1024, 984], [1021, 987]),
        (256, 4864, [1024, 1024, 88], [1021, 1021, 94]),
        (512, 4608, [1024, 1024, 344], [1021, 1021, 350]),
    ],
)
def test_hit_and_chunks_follow_from_the_block_size(block_size, hit, own_cap, shared):
    for setting, want in ((OWN_CAP, own_cap), (SHARED_BUDGET, shared)):
        story = tell(setting, block_size)
        assert story.hit == hit and sizes(story) == want
        assert story.chunks[0][0] == hit and story.chunks[-1][1] == 7000


def test_every_iteration_serves_the_three_users_and_the_last_chunk_yields_the_first_token():
    story = tell(OWN_CAP, 1)
    for number, step in enumerate(story.steps):
        assert [i for i, *_ in step.chunks] == [0, 1, 2, 4]
        assert [i for i, _ in step.sampled] == ([0, 1, 2] if number == 0 else [0, 1, 2, 4])
    assert [chunk[1:] for step in story.steps for chunk in step.chunks if chunk[0] == 4] == [
        (5000, 6024), (6024, 7000), (7000, 7001),
    ]  # fmt: skip
    assert [step.num_tokens for step in story.steps] == [1027, 979, 4]


def test_the_two_by_two_of_the_reference_preset():
    stories = {setting.name: tell(setting, 1) for setting in CELLS}
    assert {name: story.ttft_us for name, story in stories.items()} == {
        "neither": 128_600, "chunking only": 146_468, "caching only": 38_600, "both": 41_848,
    }  # fmt: skip
    assert stories["both"].worst_gap_us == stories["chunking only"].worst_gap_us == 21_356
    # The users wait for the exclusive step and for the one after it, in which A decodes too.
    assert stories["neither"].worst_gap_us == 128_600 + 2_600 + 4 * 108


@pytest.mark.parametrize("block_size", [1, 8, 16, 128, 256])
def test_the_command_says_the_same_to_people_and_to_programs(block_size, capsys):
    assert course_lib(["walkthrough", "--block-size", str(block_size), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [r["budget"] for r in answer["readings"]] == [1027, 1024] and answer["lookup_ms"] > 0
    assert course_lib(["walkthrough", "--block-size", str(block_size)]) == 0
    out = capsys.readouterr().out
    first = answer["readings"][0]
    assert f"hit {first['hit']:,} tokens, tail {first['tail']:,}." in out
    assert " + ".join(f"{b - a:,}" for a, b in first["chunks"]) in out
    assert f"first token {answer['cells'][3]['ttft_us']:>8,} us" in out
    assert "modelled" in out and "measured here" in out


@pytest.mark.parametrize("size", ["0", "1025", "x"])
def test_a_block_size_that_makes_no_sense_is_one_line(size, capsys):
    try:
        code = course_lib(["walkthrough", "--block-size", size])
    except SystemExit as stopped:
        code = stopped.code
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and err.count("\n") == 1


@pytest.mark.slow
def test_the_four_cells_leave_one_kv_on_the_real_engine(capsys):
    """tests/test_engine.py does it in every run, with torch; this is the command, with NumPy."""
    assert course_lib(["walkthrough", "--engine", "--json", "--block-size", "16"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["kv_equal"] == dict.fromkeys(("neither", "chunking only", "caching only", "both"), True)
    assert answer["plans_equal"]
