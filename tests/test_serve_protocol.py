"""The completions protocol without a server: what a body means, what is refused and how, and what answers look like."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.serve.protocol import DONE, CompletionWriter, Limits, Refusal, Usage, parse
from course_lib.serve.texts import ByteTexts, LedgerTexts
from course_lib.weights import ledger

openai_types = pytest.importorskip("openai.types")  # what real clients read
Completion = openai_types.Completion
LIMITS = Limits(max_body=10_000, max_model_len=100, max_tokens=60, max_requests=3)
TEXTS = ByteTexts(128)
PROMPT = {"prompt": [1, 2, 3]}


def wanted(fields: dict, limits=LIMITS, texts=TEXTS):
    return parse(json.dumps(fields).encode(), model="tiny", texts=texts, limits=limits)


def refused(fields, **kwargs) -> dict:
    """The error object, after its form has been checked."""
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    with pytest.raises(Refusal) as caught:
        parse(body, **{"model": "tiny", "texts": TEXTS, "limits": LIMITS} | kwargs)
    assert 400 <= caught.value.status < 500
    error = json.loads(caught.value.body())["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and len(error["message"]) < 400
    assert json.loads(caught.value.event().removeprefix(b"data: ")) == {"error": error}
    return {**error, "status": caught.value.status}


# --- what a body means


def test_the_defaults_are_the_protocols():
    got = wanted(PROMPT)
    assert (got.prompts, got.max_tokens, got.temperature, got.seed) == ([[1, 2, 3]], 16, 1.0, 0)
    assert not (got.stream or got.include_usage or got.return_token_ids or got.stop_token_ids or got.cache_salt)


def test_null_means_the_default_in_every_field():
    params = openai_types.completion_create_params.CompletionCreateParamsBase.__annotations__
    names = [*params, "stream", "cache_salt", "stop_token_ids", "return_token_ids"]
    assert "best_of" in names
    assert wanted(dict.fromkeys(names) | PROMPT) == wanted(PROMPT)


def test_every_field_that_is_honoured_arrives():
    got = wanted(
        {
            "model": "tiny", "prompt": ["ab", "c"], "max_tokens": 60, "temperature": 0, "seed": -(2**63),
            "stream": True, "stream_options": {"include_usage": True}, "stop_token_ids": [0, 127],
            "cache_salt": "tenant 7", "return_token_ids": True, "ignore_eos": True, "user": "u",
        }
    )  # fmt: skip
    assert got.prompts == [[97, 98], [99]]
    assert got.options() == {
        "max_tokens": 60, "temperature": 0.0, "seed": -(2**63), "stop_token_ids": [0, 127], "salt": "tenant 7",
    }  # fmt: skip
    assert got.stream and got.include_usage and got.return_token_ids


def test_unknown_fields_are_ignored():
    assert wanted(PROMPT | {"no_such_field": [1], "extra": None}) == wanted(PROMPT)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1}, {"best_of": 1}, {"echo": False}, {"suffix": ""}, {"top_p": 1}, {"top_p": 1.0}, {"top_k": -1},
        {"presence_penalty": 0}, {"frequency_penalty": 0.0}, {"logit_bias": {}}, {"stop": []}, {"stop": ""},
        {"min_tokens": 0}, {"response_format": {"type": "text"}}, {"stream": False}, {"ignore_eos": False},
    ],
    ids=str,
)  # fmt: skip
def test_a_field_that_asks_for_nothing_special_is_accepted(fields):
    assert wanted(PROMPT | fields) == wanted(PROMPT)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2}, {"n": 0}, {"n": True}, {"best_of": 3}, {"echo": True}, {"echo": 0}, {"suffix": "x"}, {"logprobs": 0},
        {"logprobs": 5}, {"prompt_logprobs": 1}, {"top_p": 0.9}, {"top_k": 1}, {"min_p": 0.1}, {"min_tokens": 1},
        {"presence_penalty": 0.1}, {"frequency_penalty": -1}, {"repetition_penalty": 1.1}, {"logit_bias": {"1": 2}},
        {"stop": "x"}, {"stop": [";"]}, {"response_format": {"type": "json_object"}}, {"use_beam_search": True},
        {"allowed_token_ids": [1]}, {"bad_words": ["x"]}, {"structured_outputs": {}}, {"priority": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_known_field_that_cannot_be_honoured_is_refused_by_name(fields):
    error = refused(PROMPT | fields)
    (name,) = fields
    assert (error["status"], error["param"], error["code"]) == (400, name, "unsupported_value")
    assert name in error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": None}, {"prompt": ""}, {"prompt": []}, {"prompt": [[]]}, {"prompt": ["a", ""]}, {"prompt": [1, "a"]},
        {"prompt": ["a", 1]}, {"prompt": [True]}, {"prompt": [1.0]}, {"prompt": [-1]}, {"prompt": [128]},
        {"prompt": [[1], [128]]}, {"prompt": 7}, {"prompt": {"a": 1}}, {"prompt": "\ud800"}, {"prompt": ["a"] * 4},
        {"prompt": [[[1]]]}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 61}, {"max_tokens": 1.5},
        {"max_tokens": "5"}, {"max_tokens": True}, {"temperature": -0.1}, {"temperature": 2.1}, {"temperature": "0"},
        {"temperature": True}, {"temperature": float("nan")}, {"temperature": float("inf")}, {"temperature": 10**400},
        {"seed": 2**63}, {"seed": 0.5}, {"stream": 1}, {"stream": "true"}, {"return_token_ids": 1},
        {"stop_token_ids": 5}, {"stop_token_ids": [128]}, {"stop_token_ids": ["a"]}, {"cache_salt": ""},
        {"cache_salt": 7}, {"stream_options": {"include_usage": True}}, {"stream": True, "stream_options": 1},
        {"stream": True, "stream_options": {"include_usage": 1}},
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
    ],
    ids=lambda fields: str(fields)[:40],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused_and_its_field_named(fields):
    error = refused(PROMPT | fields)
    assert error["status"] == 400 and error["param"] in (list(fields)[-1], "include_usage", "continuous_usage_stats")


def test_prompt_and_answer_fit_exactly_into_the_context_and_not_one_token_more():
    assert len(wanted({"prompt": [1] * 84}).prompts[0]) == 84
    error = refused({"prompt": [1] * 85})
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert "100" in error["message"] and "85" in error["message"]
    assert refused({"prompt": ["a", "b" * 41], "max_tokens": 60})["code"] == "context_length_exceeded"


def test_another_model_is_404_as_openai_has_it():
    for name in ("gpt-4", 7, "\ud800", ["tiny"]):
        error = refused(PROMPT | {"model": name})
        assert (error["status"], error["param"], error["code"]) == (404, "model", "model_not_found")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"text"', b"7", b"{'prompt': 1}", b'{"prompt": "a",}', b"\xff\xfe", b'"\xc3"',
        b'{"prompt": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", b'{"seed": ' + b"1" * 9_000 + b', "prompt": [1]}',
        b'{"prompt": [1], "logit_bias": ' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}",
    ],
    ids=lambda body: str(body[:14]),
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(body):
    assert refused(body)["status"] == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["prompt", "model", "max_tokens", "temperature", "seed", "stream", "stream_options", "stop", "stop_token_ids", "n"]
    + ["logprobs", "logit_bias", "cache_salt", "return_token_ids", "response_format", "x"]
)


@given(st.dictionaries(names, json_values, max_size=5))
def test_whatever_the_fields_are_a_body_is_served_within_the_limits_or_refused(fields):
    try:
        got = wanted(fields)
    except Refusal:
        refused(fields)
        return
    assert 1 <= len(got.prompts) <= LIMITS.max_requests and 1 <= got.max_tokens <= LIMITS.max_tokens
    for ids in got.prompts:
        assert ids and all(0 <= i < 128 for i in ids) and len(ids) + got.max_tokens <= LIMITS.max_model_len


@given(st.binary(max_size=60))
def test_whatever_the_bytes_are_a_body_is_refused(body):
    refused(body)


# --- texts


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.integers(1, 600))
def test_bytes_are_tokens_whatever_the_text_and_the_vocabulary(text, vocab_size):
    ids = ByteTexts(vocab_size).encode(text)
    assert len(ids) == len(text.encode()) and all(0 <= i < vocab_size for i in ids)
    if vocab_size >= 256:
        assert bytes(ids).decode() == text


@pytest.mark.parametrize("texts", [ByteTexts(128), ByteTexts(512), LedgerTexts()], ids=["128", "512", "ledger"])
def test_every_token_has_a_text_that_a_client_can_time_and_a_terminal_can_show(texts):
    assert all(piece and piece.isprintable() and piece.isascii() for piece in texts.pieces)
    assert len(set(texts.pieces)) == len(texts.pieces), "two tokens look the same"


def test_printable_ascii_reads_back_as_itself():
    text = "".join(chr(c) for c in range(32, 127))
    texts = ByteTexts(128)
    assert "".join(texts.pieces[i] for i in texts.encode(text)) == text


def test_the_ledgers_texts_are_its_own_words_there_and_back():
    texts = LedgerTexts()
    ids = ledger.prompts(1, 4, seed=1)[0][0].tolist()
    assert texts.encode(ledger.text(ids)) == ids
    assert "".join(texts.pieces[i] for i in ids).strip() == ledger.text(ids)
    assert "'hello' is no word of the ledger" in refused({"prompt": "c 3 hello"}, texts=texts)["message"]


# --- answers


def answer(fields: dict, texts=TEXTS) -> CompletionWriter:
    return CompletionWriter(wanted(PROMPT | fields, texts=texts), texts, id="cmpl-1", created=7, model='t"i')


def object_of(event: bytes) -> dict:
    assert event.startswith(b"data: ") and event.endswith(b"}\n\n") and event.count(b"\n") == 2
    return json.loads(event[6:])


@pytest.mark.parametrize("token", [0, 10, 34, 92, 127])
@pytest.mark.parametrize("reason", ["", "length", "stop"])
def test_an_event_is_what_json_would_have_written(token, reason):
    choice = {"index": 2, "text": TEXTS.pieces[token], "logprobs": None, "finish_reason": reason or None}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": 't"i'}
    three = {"prompt": [[1], [2], [3]]}
    assert object_of(answer(three).event(2, token, reason)) == {**head, "choices": [choice]}
    with_usage = answer({**three, "stream": True, "stream_options": {"include_usage": True}})
    assert object_of(with_usage.event(2, token, reason)) == {**head, "choices": [choice], "usage": None}
    assert Completion.model_validate(object_of(with_usage.event(2, token, "length"))).choices[0].text


def test_token_ids_come_with_each_event_and_the_prompts_once():
    it = answer({"prompt": [[1], [2, 3]], "return_token_ids": True})
    first, second, other = (object_of(e)["choices"][0] for e in (it.event(1, 5), it.event(1, 6), it.event(0, 7)))
    assert (first["token_ids"], first["prompt_token_ids"]) == ([5], [2, 3])
    assert second["token_ids"] == [6] and "prompt_token_ids" not in second
    assert (other["token_ids"], other["prompt_token_ids"]) == ([7], [1])


def test_the_usage_comes_last_with_no_choices_and_only_if_asked_for():
    usage = Usage(prompt=5, completion=2, cached=4)
    assert answer({}).last_events(usage) == DONE
    last = answer({"stream": True, "stream_options": {"include_usage": True}}).last_events(usage)
    assert last.endswith(DONE)
    got = Completion.model_validate(object_of(last.removesuffix(DONE)))
    assert got.choices == [] and (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (
        5, 2, 7,
    )  # fmt: skip
    assert got.usage.prompt_tokens_details.cached_tokens == 4


def test_a_whole_answer_has_a_choice_for_each_prompt_in_order():
    it = answer({"prompt": [[1], [2, 3]], "return_token_ids": True})
    got = json.loads(it.whole([[72, 105], [0]], ["length", "stop"], Usage(3, 3, 0)))
    parsed = Completion.model_validate(got)
    assert [(c.index, c.text, c.finish_reason) for c in parsed.choices] == [(0, "Hi", "length"), (1, "<0>", "stop")]
    assert [c["token_ids"] for c in got["choices"]] == [[72, 105], [0]]
    assert [c["prompt_token_ids"] for c in got["choices"]] == [[1], [2, 3]]
    assert parsed.usage.total_tokens == 6


def test_errors_are_typed_by_their_status():
    kinds = {400: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_error", 500: "server_error"}
    for status, kind in kinds.items():
        assert json.loads(Refusal(status, "m").body())["error"]["type"] == kind
