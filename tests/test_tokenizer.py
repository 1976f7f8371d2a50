"""Text for a model folder: encoded and decoded as the tokenizers package does, and never cut inside a character."""

import json
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from small_models import WORDS, byte_tokenizer, sentencepiece_tokenizer, write_folder

from course_lib.__main__ import main
from course_lib.cli import UserError
from course_lib.commands.prefill import parser
from course_lib.prefill import one_pass
from course_lib.sampling import sample
from course_lib.weights import load_model
from course_lib.weights.tokenizer import HELD, NoTokenizer, Tokenizer

pytest.importorskip("tokenizers")
KINDS = {
    "bytes": byte_tokenizer,
    "bytes after <s>": lambda: byte_tokenizer(bos=True),
    "words, and bytes for the rest": sentencepiece_tokenizer,
}
EMOJI = "\N{GRINNING FACE}"


@pytest.fixture(scope="module", params=KINDS)
def theirs(request):
    return KINDS[request.param]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, theirs):
    return write_folder(tmp_path_factory.mktemp("text") / "model", theirs)


@pytest.fixture(scope="module")
def ours(folder, theirs):
    return Tokenizer(folder, theirs.get_vocab_size() + 5)


def pieces(tokenizer, prompt, answer):
    read = tokenizer.reader(prompt)
    return [read(token, place == len(answer)) for place, token in enumerate(answer, 1)]


# --- encode and decode


@pytest.mark.parametrize("text", [WORDS, "", " ", "the  cat\n", f"Zoë {EMOJI}{EMOJI}", "a</s>b", "\0", "日本語"])
def test_a_text_has_the_ids_of_the_tokenizers_package_and_comes_back(ours, theirs, text):
    assert ours.encode(text) == theirs.encode(text).ids
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text).ids)


def test_no_text_is_cut_or_padded_as_the_file_may_ask(folder, theirs, tmp_path):
    theirs.enable_truncation(3)
    theirs.enable_padding(length=50)
    try:
        theirs.save(str(tmp_path / "tokenizer.json"))
    finally:
        theirs.no_truncation()
        theirs.no_padding()
    assert Tokenizer(tmp_path, 1000).encode(WORDS) == theirs.encode(WORDS).ids


def test_a_text_without_bytes_or_with_a_token_that_the_model_lacks_is_refused(ours, folder):
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        ours.encode("a \ud800")
    small = Tokenizer(folder, 5)
    with pytest.raises(ValueError, match=r"token \d+, but the model's vocabulary ends at 4"):
        small.encode(WORDS)


# --- piece by piece


@pytest.mark.parametrize("text", [f" the{EMOJI} cat", EMOJI * 3, "é日", " on the mat", "."])
def test_a_character_comes_whole_with_its_last_byte(ours, theirs, text):
    prompt, both = theirs.encode("the cat").ids, theirs.encode("the cat" + text).ids
    assert both[: len(prompt)] == prompt
    came = pieces(ours, prompt, both[len(prompt) :])
    assert "".join(came) == text
    assert not any("\ufffd" in piece for piece in came)
    if EMOJI * 3 == text:
        assert came.count("") == 9 and came.count(EMOJI) == 3, "four bytes each, and no merge holds them"


@given(data=st.data())
def test_the_pieces_of_any_answer_make_its_text_behind_that_of_the_prompt(ours, theirs, data):
    """Any tokens at all: half characters, special tokens, and ids that the tokenizer lacks.

    But where bytes are tokens beside words, the package decodes a run of them whole, and half a character at its end
    changes what stands before it: there are no such runs here.
    """
    first = 258 if theirs.token_to_id("<0xFF>") else 0
    some = st.sampled_from([0, 1, *range(first, ours.vocab_size)])
    prompt = theirs.encode(data.draw(st.text(alphabet="the ca\n.", max_size=8))).ids
    answer = data.draw(st.lists(some, min_size=1, max_size=30))
    came = pieces(ours, prompt, answer)
    runs = "".join(" " if piece else "|" for piece in came).split()
    assume(max(map(len, runs), default=0) < HELD - 2)
    assert ours.decode(prompt) + "".join(came) == ours.decode([*prompt, *answer])


@pytest.mark.parametrize("token", ["half", "</s>", "beyond"])
def test_tokens_that_never_make_a_character_are_not_held_for_ever(ours, theirs, token):
    half = theirs.encode(EMOJI).ids[-1]
    token = {"half": half, "</s>": 1, "beyond": ours.vocab_size - 1}[token]
    came = pieces(ours, theirs.encode("the").ids, [token] * 100)
    if token != half:
        assert set(came) == {""}
    else:
        assert set("".join(came)) == {"\ufffd"} and sum(map(bool, came)) >= 100 // HELD


def test_an_answer_that_ends_inside_a_character_says_so_at_its_end(ours, theirs):
    prompt, answer = theirs.encode("the").ids, theirs.encode(f"the{EMOJI}").ids[-4:-1]
    came = pieces(ours, prompt, answer)
    assert came[:-1] == ["", ""] and set(came[-1]) == {"\ufffd"}


def test_an_answer_completes_the_character_that_its_prompt_has_begun():
    theirs = byte_tokenizer()
    *begun, last = theirs.encode(f"the{EMOJI}").ids
    reader = Tokenizer.__new__(Tokenizer)
    reader._tokenizer = theirs
    assert pieces(reader, begun, [last]) == [EMOJI]


# --- what ends a text


@pytest.mark.parametrize(
    "files, end",
    [
        ({"config.json": {"eos_token_id": 1}}, [1]),
        ({"config.json": {"eos_token_id": [1, 7]}}, [1, 7]),
        ({"config.json": {"eos_token_id": 1}, "generation_config.json": {"eos_token_id": [2, 3]}}, [2, 3]),
        ({"config.json": {"eos_token_id": 1}, "generation_config.json": {"eos_token_id": None}}, [1]),
        ({"config.json": {"eos_token_id": None}}, []),
        ({"config.json": {"eos_token_id": ["x", True, -1, 10**9, 4]}}, [4]),
        ({}, []),
    ],
)
def test_the_tokens_that_end_a_text_are_those_of_the_folder(tmp_path, files, end):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer(tmp_path, 300).end == end


# --- folders without a usable one


def test_a_folder_without_a_tokenizer_and_a_missing_package_are_told_apart(folder, tmp_path, monkeypatch):
    with pytest.raises(NoTokenizer, match="has no tokenizer.json"):
        Tokenizer(tmp_path, 300)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(NoTokenizer, match=r'pip install -e "\.\[text\]"'):
        Tokenizer(folder, 300)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b"\xff\xfe", b'{"model": {"type": "Nonsense"}}'])
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*tokenizer\.json") as caught:
        Tokenizer(tmp_path, 300)
    assert not isinstance(caught.value, NoTokenizer) and len(str(caught.value)) < 500


# --- python -m course_lib prefill FOLDER --text


def prefill(capsys, *argv):
    code = main(["prefill", *map(str, argv)])
    return code, *capsys.readouterr()


def test_a_text_is_prefilled_and_the_next_token_is_shown_as_text(folder, ours, capsys):
    ids = ours.encode(f"the {EMOJI}")
    snapshot = one_pass(load_model(folder), ids)
    token = sample(snapshot.logits)
    code, out, err = prefill(capsys, folder, "--text", f"the {EMOJI}")
    assert (code, err) == (0, "") and out.startswith(f"{len(ids)} tokens, 0 of them attached")
    assert out.count("equal to one pass, bit for bit") == len(parser().get_default("chunk").split(","))
    assert out.splitlines()[-1] == f"  next token {token}: {ours.reader(ids)(token, True)!r}"
    code, out, _ = prefill(capsys, "--text", f"the {EMOJI}", "--json", "--model", folder)
    answer = json.loads(out)
    assert answer["next_token"] == {"id": token, "text": ours.reader(ids)(token, True)}
    assert answer["sha256"] == snapshot.sha256() and answer["equal"]


def test_a_text_as_long_as_the_model_allows_is_prefilled_and_a_longer_one_is_refused(folder, ours, capsys):
    text = "the" + " the" * 255
    assert (length := len(ours.encode(text))) in (256, 257)
    short = text if length == 256 else text[:-4]
    assert prefill(capsys, folder, "--chunk", "100", "--text", short)[0] == 0
    code, _, err = prefill(capsys, folder, "--text", short + " the")
    assert code == 2 and "a prompt of 257 tokens is too long: the model was made for 256 tokens" in err


def test_a_text_that_cannot_be_had_is_refused_in_one_line(folder, tmp_path, capsys):
    bare = write_folder(tmp_path / "bare")
    for argv, says in (
        ((bare, "--text", "a"), "has no tokenizer.json"),
        ((folder, "--text", "a \ud800"), "surrogate"),
        ((tmp_path / "nowhere", "--text", "a"), "config.json"),
        ((folder, "--text", "the cat", "--hit", "100"), "covers the whole prompt"),
    ):
        code, out, err = prefill(capsys, *argv)
        assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1


def test_an_empty_text_is_a_prompt_only_if_the_tokenizer_begins_it(folder, ours, capsys):
    code, _, err = prefill(capsys, folder, "--text", "")
    assert (code == 0) == bool(ours.encode("")) and (code == 0 or "--text is empty" in err)


def test_a_next_token_that_the_terminal_cannot_show_is_written_as_its_number(monkeypatch):
    from course_lib.commands import prefill as command

    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr(command.sys, "stdout", Ascii())
    assert command._printable("é\n") == r"'\xe9\n'"


def test_weights_of_the_small_folder_are_finite_and_differ_by_seed(tmp_path):
    a, b = (load_model(write_folder(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    assert a.sha256 != b.sha256 and np.isfinite(one_pass(a, [1, 2, 3]).logits).all()
