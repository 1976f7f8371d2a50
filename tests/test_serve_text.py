"""A served model folder with a tokenizer: text in, text out, in whole characters, and refused where none is."""

import json
import sys

import numpy as np
import pytest
from serving import events, expect_error, httpx, openai, running, serve_process
from small_models import byte_tokenizer, sentencepiece_tokenizer, write_folder

from course_lib.commands import serve
from course_lib.engine import Engine
from course_lib.weights import load_model
from course_lib.weights.tokenizer import Tokenizer

pytest.importorskip("tokenizers")
GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
EMOJI = "\N{GRINNING FACE}"


class Scripted:
    """A model whose greedy answer to any prompt of `prompt_len` tokens is `answer`."""

    def __init__(self, model, prompt_len, answer):
        self._model, self._prompt_len, self._answer = model, prompt_len, answer

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, chunks, pool, wiring=None):
        ends = [c.start + len(c.token_ids) - self._prompt_len for c in chunks if c.wants_logits]
        logits = np.zeros((len(ends), self.config.vocab_size), dtype=np.float32)
        for row, place in zip(logits, ends):
            row[self._answer[place]] = 1
        return logits


@pytest.fixture(scope="module", params=[byte_tokenizer, sentencepiece_tokenizer], ids=["bytes", "words"])
def folder(request, tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("served") / "model", request.param())


@pytest.fixture(scope="module")
def server(folder):
    model = load_model(folder)
    texts = Tokenizer(folder, model.config.vocab_size)
    with running(Engine(model, num_blocks=64, max_num_batched_tokens=16), texts=texts, model="m") as it:
        yield it


def alone(folder, prompt, max_tokens, **options):
    engine = Engine(load_model(folder), num_blocks=64, enable_prefix_caching=False)
    request = engine.add_request(prompt, max_tokens=max_tokens, **options)
    engine.run()
    return request


def test_texts_are_answered_in_text_streamed_or_not(server, folder):
    texts, prompts = server.service.texts, ["the cat sat on the", f"Zoë {EMOJI}"]
    requests = [alone(folder, texts.encode(prompt), 12) for prompt in prompts]
    want = [texts.decode(texts.encode(p) + r.generated).removeprefix(p) for p, r in zip(prompts, requests)]
    ask = {"model": "m", "prompt": prompts, "max_tokens": 12, **GREEDY}
    whole = server.post(ask).json()
    assert [choice["token_ids"] for choice in whole["choices"]] == [r.generated for r in requests]
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [texts.encode(prompt) for prompt in prompts]
    assert whole["usage"]["completion_tokens"] == 24
    got, ids = ["", ""], [[], []]
    for event in events(server.post(ask | {"stream": True})):
        choice = event["choices"][0]
        got[choice["index"]] += choice["text"]
        ids[choice["index"]] += choice["token_ids"]
    assert ids == [r.generated for r in requests]
    assert got == [choice["text"] for choice in whole["choices"]]
    if not texts._tokenizer.token_to_id("<0xFF>"):  # a run of byte tokens may spoil what is out already
        assert got == want


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_client_sends_text_and_reads_text(server, folder, stream):
    got = server.client.completions.create(
        model="m", prompt="the cat", max_tokens=5, temperature=0, stream=stream, extra_body={"ignore_eos": True}
    )
    text = "".join(event.choices[0].text for event in got) if stream else got.choices[0].text
    texts = server.service.texts
    request = alone(folder, texts.encode("the cat"), 5)
    read = texts.reader(texts.encode("the cat"))
    assert text == "".join(read(token, place == 5) for place, token in enumerate(request.generated, 1))


def scripted(folder, prompt: str, answer_ids):
    model = load_model(folder)
    texts = Tokenizer(folder, model.config.vocab_size)
    model = Scripted(model, len(texts.encode(prompt)), answer_ids)
    return running(Engine(model, num_blocks=64, max_num_batched_tokens=16), texts=texts, model="m")


def test_a_character_is_streamed_whole_with_its_last_byte(folder):
    texts = Tokenizer(folder, 10**6)
    answer = texts.encode(f"the {EMOJI} cat")[len(texts.encode("the")) :]
    with scripted(folder, "the", answer) as server:
        ask = {"prompt": "the", "max_tokens": len(answer), "stream": True, **GREEDY}
        pieces = [event["choices"][0]["text"] for event in events(server.post(ask))]
        assert len(pieces) == len(answer), "an event for each token"
        assert "".join(pieces) == f" {EMOJI} cat" and "" in pieces
        cut = [event["choices"][0]["text"] for event in events(server.post(ask | {"max_tokens": 4}))]
        assert set(cut[-1]) <= {"\ufffd"} and "".join(cut).startswith(" ")


def test_an_answer_ends_at_the_folders_end_of_text_unless_the_client_says_otherwise(folder):
    texts = Tokenizer(folder, 10**6)
    the, cat = texts.encode("the cat")[-2:]
    with scripted(folder, "the", [cat, 1, the, the, the]) as server:
        ask = {"prompt": "the", "max_tokens": 4, "temperature": 0, "return_token_ids": True}
        ended = server.post(ask).json()["choices"][0]
        assert (ended["token_ids"], ended["finish_reason"]) == ([cat, 1], "stop")
        assert ended["text"] == texts.reader(texts.encode("the"))(cat, True), "the end has no text"
        on = server.post(ask | {"ignore_eos": True}).json()["choices"][0]
        assert (on["token_ids"], on["finish_reason"]) == ([cat, 1, the, the], "length")


def test_a_text_that_cannot_be_served_is_refused(server):
    expect_error(server.post({"prompt": "the " * 400}), 400, code="context_length_exceeded", param="prompt")
    surrogate = json.dumps({"prompt": "a \ud800"}).encode()
    expect_error(server.post(content=surrogate, headers={"content-type": "application/json"}), 400, param="prompt")
    with pytest.raises(openai.BadRequestError):
        server.client.completions.create(model="m", prompt=["the", "the " * 400], max_tokens=1)


@pytest.mark.parametrize("why", ["no file", "no package"])
def test_without_a_tokenizer_text_is_refused_by_name_and_token_ids_are_served(tmp_path, monkeypatch, why):
    folder = write_folder(tmp_path / "model", byte_tokenizer())
    if why == "no file":
        (folder / "tokenizer.json").unlink()
    else:
        monkeypatch.setitem(sys.modules, "tokenizers", None)
    args = serve.parser().parse_args(["--model", str(folder)])
    model, name, _, texts = serve._model(args)
    monkeypatch.undo()
    with running(Engine(model, num_blocks=16, max_num_batched_tokens=16), texts=texts, model=name) as server:
        error = expect_error(server.post({"prompt": "the"}), 400, param="prompt")
        says = "has no tokenizer.json" if why == "no file" else 'pip install -e ".[text]"'
        assert says in error["message"]
        answer = server.post({"prompt": [5, 6], "max_tokens": 2, **GREEDY}).json()["choices"][0]
        assert answer["text"] == "".join(f"<{token}>" for token in answer["token_ids"])


def test_a_served_folder_takes_text_and_holds_what_its_configuration_allows(folder):
    process, address = serve_process("--model", str(folder), "--num-blocks", "64")
    try:
        said = process.stdout.readline()
        assert "up to 256 tokens" in said
        answer = httpx.post(f"{address}/v1/completions", json={"prompt": "the cat", "max_tokens": 3}, timeout=60).json()
        assert answer["usage"]["prompt_tokens"] >= 2 and isinstance(answer["choices"][0]["text"], str)
        beyond = httpx.post(f"{address}/v1/completions", json={"prompt": [2] * 254, "max_tokens": 3}, timeout=60)
        assert beyond.status_code == 400 and "holds 256 tokens" in beyond.text
    finally:
        process.terminate()
        process.wait(60)
    assert process.returncode == 0


def test_max_model_len_beyond_the_configuration_is_refused(folder):
    args = serve.parser().parse_args(["--model", str(folder), "--max-model-len", "257"])
    with pytest.raises(serve.UserError, match=r"257 is more than 256: the model was made for 256 tokens"):
        serve._limits(args, serve._engine(args, load_model(folder)))
