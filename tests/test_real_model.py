"""The optional cells of notebooks 01, 03 and 09: a model runs on the learner's functions, or one line says how."""

import pytest
from small_models import byte_tokenizer, write_folder

from autograder.build import ROOT
from autograder.source import read_lessons
from course_lib.engine import Engine
from course_lib.lessons import nb01_divisible, nb09_capstone
from course_lib.lessons.real_model import HOW
from course_lib.positions import positions
from course_lib.prefill import cut
from course_lib.weights import load_model
from course_lib.weights.ledger import chunk_relative
from course_lib.weights.tokenizer import Tokenizer

pytest.importorskip("tokenizers")
CELLS = {lesson.stem[:2]: cell.text for lesson in read_lessons(ROOT) for cell in lesson.cells if cell.id == "real"}
NAMES = {  # what the notebook has defined by then
    "01": {"cut": cut, "prefill": nb01_divisible.prefill, "run_chunk": nb01_divisible.run_chunk},
    "03": {"positions": positions, "relative": chunk_relative},
    "09": {"my_policy": nb09_capstone.my_policy},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("real") / "model", byte_tokenizer(), max_position_embeddings=2048)


@pytest.fixture(autouse=True)
def not_graded(monkeypatch):
    monkeypatch.delenv("COURSE_GRADING", raising=False)
    monkeypatch.delenv("COURSE_MODEL", raising=False)


def run(number):
    exec(CELLS[number], dict(NAMES[number]))


def continued(folder, text, max_tokens):
    """Prompt and greedy answer of the library's engine, as text."""
    model = load_model(folder)
    tokenizer = Tokenizer(folder, model.config.vocab_size)
    engine = Engine(model, num_blocks=64, enable_chunked_prefill=False, max_num_batched_tokens=1024)
    request = engine.add_request(tokenizer.encode(text), max_tokens=max_tokens, stop_token_ids=tokenizer.end)
    engine.run()
    return tokenizer.decode(request.token_ids)


def test_three_notebooks_have_the_cell():
    assert CELLS.keys() == NAMES.keys()


@pytest.mark.parametrize("number", NAMES)
def test_without_a_folder_the_cell_prints_one_line(capsys, monkeypatch, folder, number):
    run(number)
    assert capsys.readouterr().out == HOW + "\n"
    monkeypatch.setenv("COURSE_MODEL", str(folder))
    monkeypatch.setenv("COURSE_GRADING", "1")
    run(number)
    assert capsys.readouterr().out == HOW + "\n"


@pytest.mark.parametrize("number", NAMES)
def test_with_a_folder_that_cannot_be_used_the_cell_says_why(capsys, monkeypatch, tmp_path, number):
    monkeypatch.setenv("COURSE_MODEL", str(tmp_path / "nowhere"))
    run(number)
    assert "skipped: cannot read" in (out := capsys.readouterr().out) and len(out.splitlines()) == 1
    monkeypatch.setenv("COURSE_MODEL", str(write_folder(tmp_path / "model")))
    run(number)
    assert "skipped:" in (out := capsys.readouterr().out) and "has no tokenizer.json" in out


def test_notebook_01_lets_the_model_go_on_behind_the_learners_prefill(capsys, monkeypatch, folder):
    monkeypatch.setenv("COURSE_MODEL", str(folder))
    run("01")
    text = "The capital of France is"
    assert capsys.readouterr().out == continued(folder, text, 12) + "\n"
    spoilt = nb01_divisible.prefill
    monkeypatch.setitem(NAMES["01"], "prefill", lambda model, ids, sizes: spoilt(model, ids[::-1], sizes))
    run("01")
    assert capsys.readouterr().out != continued(folder, text, 12) + "\n", "the learner's own function is not used"


def test_notebook_03_shows_what_positions_do_to_a_text(capsys, monkeypatch, folder):
    monkeypatch.setenv("COURSE_MODEL", str(folder))
    run("03")
    right, wrong = capsys.readouterr().out.splitlines()
    text = "Monday, Tuesday, Wednesday, Thursday, Friday,"
    assert right == f"your positions: {continued(folder, text, 16)!r}"
    assert wrong.startswith(f"chunk-relative: '{text}") and wrong.split(": ")[1] != right.split(": ")[1]


def test_notebook_09_serves_three_users_by_the_learners_policy(capsys, monkeypatch, folder):
    monkeypatch.setenv("COURSE_MODEL", str(folder))
    asked = []
    own = nb09_capstone.my_policy
    monkeypatch.setitem(NAMES["09"], "my_policy", lambda *args, **knobs: asked.append(1) or own(*args, **knobs))
    run("09")
    out = capsys.readouterr().out.splitlines()
    prompts = ["The capital of France is", "One, two, three, four," * 12, "Water boils when"]
    assert out[-3:] == [repr(continued(folder, prompt, 12)) for prompt in prompts]
    assert len(asked) == len(out) - 3 and out[0].startswith("step 0: tokens of each user {")
