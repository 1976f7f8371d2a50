"""The ledger: the later assignment wins, and the shipped model is right in every cut, or wrong and sure of itself."""

import hashlib
import inspect

import numpy as np
import pytest
from libraries import needs_torch
from starting import ROOT, run_python

from course_lib.cli import UserError
from course_lib.positions import positions
from course_lib.prefill import cut, one_pass, prefill
from course_lib.weights import ledger, load_model, train_ledger
from course_lib.weights.ledger import DIGITS, FIRST_NAME, NAMES, QUERY, SEPARATOR, VOCABULARY

COUNTS = {16: 50, 32: 50, 64: 100}  # statements -> prompts
SETS = {statements: ledger.prompts(count, statements, seed=1) for statements, count in COUNTS.items()}


@pytest.fixture(scope="module")
def model():
    return ledger.ledger_model()


def statements_of(prompt):
    """[(name, digit)] in order, and the name that is asked for, read token by token."""
    *body, query, asked = prompt.tolist()
    assert query == QUERY and len(body) % 3 == 0 and set(body[2::3]) == {SEPARATOR}
    return list(zip(body[0::3], body[1::3])), asked


# ---- the task


def test_the_answer_is_what_a_dictionary_holds_after_all_assignments():
    for ids, answers in SETS.values():
        for prompt, answer in zip(ids, answers):
            assigned, asked = statements_of(prompt)
            assert answer == dict(assigned)[asked]


def test_every_name_is_told_what_a_dictionary_held_before_it():
    for prompt, before in zip(SETS[32][0], ledger.held_before(SETS[32][0])):
        assigned, asked = statements_of(prompt)
        want, held = [], {}
        for name, digit in assigned:
            want += [held.get(name, -1), -1, -1]
            held[name] = digit
        assert before.tolist() == [*want, -1, held[asked]]


def test_statements_without_their_order_do_not_give_the_answer():
    """The most frequent, the first and the last but one value of the name asked for are all poor guesses."""
    guesses = {"most": lambda v: max(v, key=v.count), "first": lambda v: v[0], "last but one": lambda v: v[-2]}
    ids, answers = ledger.prompts(400, 64, seed=2)
    right = dict.fromkeys(guesses, 0)
    for prompt, answer in zip(ids, answers):
        assigned, asked = statements_of(prompt)
        values = [digit for name, digit in assigned if name == asked]
        for name, guess in guesses.items():
            right[name] += guess(values if len(values) > 1 else values * 2) == answer
    assert all(count < 0.5 * len(ids) for count in right.values()), right


def test_names_and_digits_are_spread_evenly():
    ids, answers = ledger.prompts(2000, 16, seed=3)
    for column, count in ((ids[:, 0:-2:3] - FIRST_NAME, NAMES), (ids[:, 1:-2:3], DIGITS), (answers[:, None], DIGITS)):
        shares = np.bincount(column.ravel(), minlength=count) / column.size
        assert len(shares) == count and abs(shares - 1 / count).max() < 0.03


def test_a_seed_gives_the_same_prompts_on_every_machine_and_another_seed_others():
    ids, answers = ledger.prompts(20, 32, seed=5)
    assert (ids.dtype, answers.dtype, ids.shape, answers.shape) == (np.int64, np.int64, (20, 98), (20,))
    digest = hashlib.sha256(ids.astype("<i8").tobytes() + answers.astype("<i8").tobytes()).hexdigest()
    assert digest == "4427e213940412de67120f1ea3ae70d2ed753597401ce5770e2cb3238e8dbaf9"
    again, other = ledger.prompts(20, 32, seed=5), ledger.prompts(20, 32, seed=6)
    assert np.array_equal(ids, again[0]) and not np.array_equal(ids, other[0])


def test_a_prompt_reads_as_text():
    assert ledger.text([12, 3, 18, 10, 7, 18, 19, 12]) == "c 3 ; a 7 ; ? c"
    with pytest.raises(ValueError, match="token id 20, wanted 0 .. 19"):
        ledger.text([12, 20])


@pytest.mark.parametrize("arguments", [(0, 16, 0), (4, 0, 0), (4, 16, -1)])
def test_prompts_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError, match="wanted"):
        ledger.prompts(*arguments)


# ---- the model


@pytest.mark.parametrize("statements", SETS)
def test_absolute_positions_are_right_whatever_the_chunk_and_leave_the_same_logits(model, statements):
    ids, answers = SETS[statements]
    tokens = ids.shape[1]
    reference = [ledger.answer(model, prompt, tokens) for prompt in ids]  # one pass
    assert np.mean([token == answer for (token, _), answer in zip(reference, answers)]) >= 0.99
    assert [ledger.answer(model, prompt, 64) for prompt in ids] == reference  # confidences too, to the last bit
    for size in (1, 7, 32, 100):
        few = slice(0, 1 if size == 1 else 2)
        assert [ledger.answer(model, prompt, size) for prompt in ids[few]] == reference[few], size


@pytest.mark.parametrize(("statements", "size"), [(16, 16), (32, 64), (64, 64), (64, 32)])
def test_chunk_relative_positions_are_wrong_and_confident(model, statements, size):
    ids, answers = (x[:30] for x in SETS[statements])
    assert ids.shape[1] > size and 0 < ids.shape[1] % size  # several chunks, the query in the last
    accuracy, confidence = ledger.evaluate(model, ids, answers, size, ledger.chunk_relative)
    assert accuracy < 0.7 and confidence > 0.85


def test_a_long_prompt_has_its_query_alone_in_the_last_chunk_of_64():
    assert cut(SETS[64][0].shape[1], 64) == [64, 64, 64, 2]


def test_chunk_relative_positions_do_no_harm_in_one_chunk(model):
    ids, answers = (x[:20] for x in SETS[32])
    one = ledger.evaluate(model, ids, answers, 98)
    assert ledger.evaluate(model, ids, answers, 98, ledger.chunk_relative) == one
    assert ledger.evaluate(model, ids, answers, 98, positions) == one


def test_chunk_relative_positions_take_what_rope_positions_takes():
    assert inspect.signature(ledger.chunk_relative) == inspect.signature(positions)
    assert ledger.chunk_relative(16, 48, 3).tolist() == [0, 1, 2] and positions(16, 48, 3).tolist() == [64, 65, 66]


def test_exact_arithmetic_is_right_too_and_chunks_leave_its_bits():
    model = ledger.ledger_model(arith="exact")
    ids, answers = (x[:5] for x in SETS[64])
    assert ledger.evaluate(model, ids, answers, 64)[0] == 1
    assert prefill(model, ids[0], cut(194, 64)).sha256() == one_pass(model, ids[0]).sha256()


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_is_right_in_every_dtype(dtype):
    ids, answers = (x[:5] for x in SETS[64])
    model = ledger.ledger_model(backend="torch", dtype=dtype)
    assert ledger.evaluate(model, ids, answers, 64)[0] == 1


def test_the_confidence_is_the_softmax_of_the_top_answer(model):
    prompt = SETS[16][0][0]
    logits = one_pass(model, prompt).logits.astype(np.float64)
    token, confidence = ledger.answer(model, prompt, 50)
    assert token == logits.argmax() and confidence == pytest.approx((np.exp(logits) / np.exp(logits).sum()).max())


def test_what_cannot_be_evaluated_is_refused(model):
    ids, answers = SETS[16]
    with pytest.raises(ValueError, match="50 prompts and 49 answers"):
        ledger.evaluate(model, ids, answers[1:], 64)
    with pytest.raises(ValueError, match="0 prompts"):
        ledger.evaluate(model, [], [], 64)
    with pytest.raises(ValueError, match="chunks of 0"):
        ledger.evaluate(model, ids, answers, 0)
    with pytest.raises(UserError, match="NumPy backend has float32"):
        ledger.ledger_model(dtype="bfloat16")


def test_the_model_is_the_one_described_and_small_enough_to_ship(model):
    c = model.config
    assert c == train_ledger.CONFIG and (c.num_layers, c.hidden_size, c.vocab_size) == (3, 96, len(VOCABULARY))
    assert (ledger.FOLDER / "model.safetensors").stat().st_size < 700_000
    assert '"assets/*/*"' in (ROOT / "pyproject.toml").read_text("utf-8")  # or an installed package would lack it


def test_logits_agree_with_transformers(model):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from test_transformers_oracle import close

    transformers.utils.logging.disable_progress_bar()
    oracle = transformers.LlamaForCausalLM.from_pretrained(
        ledger.FOLDER, dtype=torch.float32, attn_implementation="eager"
    )
    for statements, (ids, answers) in SETS.items():
        with torch.no_grad():
            want = oracle(torch.from_numpy(ids[:5])).logits[:, -1].numpy()
        assert np.array_equal(want.argmax(axis=1), answers[:5])
        for prompt, expected in zip(ids[:5], want):
            off = abs(one_pass(model, prompt).logits - expected).max() / abs(expected).max()
            assert off < close("tile"), (statements, off)


# ---- how it was trained


def test_lessons_grow_and_share_no_seed_with_questions(monkeypatch):
    seeds = []
    monkeypatch.setattr(train_ledger, "prompts", lambda *a: seeds.append(a[2]) or ledger.prompts(*a))
    lengths = [ids.shape[1] for ids, _ in train_ledger.lessons(15, seed=0)]
    assert lengths == sorted(lengths) and lengths.count(50) == 5 and lengths.count(98) == 4 and lengths.count(194) == 6
    assert len(set(seeds)) == 15 and min(seeds) >= 2**32
    assert [ids.shape[1] for ids, _ in train_ledger.lessons(train_ledger.STEPS, 0)].count(50) == 500


@needs_torch
def test_what_training_computes_is_what_the_engine_computes_from_its_folder(tmp_path):
    import torch

    weights = train_ledger.initial_weights(train_ledger.CONFIG, seed=3)
    with torch.no_grad():  # as the file will hold them
        for w in [weights["embedding"], weights["lm_head"], *(w for d in weights["layers"] for w in d.values())]:
            w.copy_(w.half())
        train_ledger.save(weights, train_ledger.CONFIG, tmp_path / "new" / "folder")
        prompt = SETS[32][0][0]
        want = train_ledger.logits(weights, train_ledger.CONFIG, torch.from_numpy(prompt[None]))[0, -1].numpy()
    config = (tmp_path / "new" / "folder" / "config.json").read_text(encoding="utf-8")
    assert config == (ledger.FOLDER / "config.json").read_text(encoding="utf-8")
    got = one_pass(load_model(tmp_path / "new" / "folder"), prompt).logits
    np.testing.assert_allclose(got, want, atol=1e-5 * abs(want).max(), rtol=0)


@needs_torch
@pytest.mark.slow
def test_a_few_steps_lower_the_loss_and_write_a_folder_that_loads(tmp_path, capsys):
    weights, losses = train_ledger.train(60, seed=0)
    assert len(losses) == 60 and np.mean(losses[-10:]) < losses[0] - 0.5
    assert train_ledger.main([str(tmp_path / "out"), "--steps", "3", "--threads", "1"]) == 0
    assert "step     3  loss" in capsys.readouterr().out
    model = load_model(tmp_path / "out")
    assert model.config == train_ledger.CONFIG
    assert 0 <= ledger.evaluate(model, SETS[16][0][:2], SETS[16][1][:2], 16)[0] <= 1


def command(*arguments):
    return run_python("-m", "course_lib.weights.train_ledger", *arguments)


def test_the_command_has_help_with_an_example():
    done = command("--help")
    assert done.returncode == 0 and "example:\n  python -m course_lib.weights.train_ledger" in done.stdout


def test_the_command_never_writes_over_a_model_or_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for folder, words in ((ledger.FOLDER, "holds a model already"), (tmp_path / "file", "is a file, wanted a folder")):
        done = command(folder)
        assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


@needs_torch
def test_a_place_where_the_model_cannot_be_written_is_refused_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(train_ledger, "train", None)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UserError, match="config.json: it is a folder"):
        train_ledger.main([str(tmp_path)])
