"""The OpenAI completions protocol, pure: a body becomes a Wanted or a Refusal; tokens become events or one object.

Fields, defaults and shapes are those of OpenAI's API (openai 3.57.0: types/completion_create_params.py, completion.py)
and, for what vLLM adds, of vllm/entrypoints/openai/completion/protocol.py (read on 2026-11-30). Unknown fields are
ignored, as both do.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.serve.texts import Texts

DONE = b"data: [DONE]\n\n"
_SEEDS = range(-(2**63), 2**63)  # vLLM's: a 64-bit integer

# Known fields that change an answer, and the only values that can be honoured here; null always can.
_ONLY: dict[str, tuple] = {
    "echo": (False,), "suffix": ("",), "logprobs": (), "prompt_logprobs": (),
    "top_p": (1,), "top_k": (0, -1), "min_p": (0,), "min_tokens": (0,), "use_beam_search": (False,),
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,), "length_penalty": (1,),
    "logit_bias": ({},), "allowed_token_ids": (), "bad_words": ([],), "stop": ("", []), "prompt_embeds": (),
    "truncate_prompt_tokens": (), "response_format": ({"type": "text"},), "structured_outputs": (), "priority": (0,),
}  # fmt: skip
_ADVICE = {"stop": " Give stop_token_ids."}


class Refusal(Exception):
    """An answer that is an error.

    status    of HTTP
    param     the field at fault
    code      for programs, such as context_length_exceeded
    headers   of HTTP, beside the usual ones
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers=None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers: dict[str, str] = headers or {}

    def body(self) -> bytes:
        """{"error": {"message", "type", "param", "code"}}"""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    def event(self) -> bytes:
        """The same for a stream that has begun, when no status can be sent any more."""
        return b"data: " + self.body() + b"\n\n"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may ask for.

    max_body        bytes of a request's body
    max_model_len   tokens of a prompt and its answer together
    max_tokens      tokens of an answer, which bounds what is kept for a client that does not read
    max_requests    prompts that are running or waiting, of all clients together
    """

    max_body: int
    max_model_len: int
    max_tokens: int
    max_requests: int


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A request that can be served: `prompts` in token ids, one answer for each.

    n      each prompt of the body stands there so often, one behind the other
    seed   None when the client gave none
    """

    prompts: list[list[int]]
    n: int
    max_tokens: int
    temperature: float
    seed: int | None
    stop_token_ids: list[int]
    cache_salt: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool

    def options(self, index: int, drawn_seed: int) -> dict:
        """Arguments of Engine.add_request for prompt `index`.

        drawn_seed   a seed that no other prompt has, for a client that gave none: equal prompts then get different
                     answers. With a seed they get equal ones, and of n answers the k-th has seed + k, as in vLLM.
        """
        seed = drawn_seed if self.seed is None else self.seed + index % self.n
        return {
            "max_tokens": self.max_tokens, "temperature": self.temperature, "seed": seed,
            "stop_token_ids": self.stop_token_ids, "salt": self.cache_salt,
        }  # fmt: skip


def parse(body: bytes, *, model: str, texts: Texts, limits: Limits) -> Wanted:
    """What a body of POST /v1/completions asks for. Refusal, naming the field, for what cannot be had."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of 5,000 digits; nested too deep
        raise Refusal(400, f"The body is not JSON: {error}"[:200]) from None
    if not isinstance(fields, dict):
        raise Refusal(400, f"The body is a JSON {type(fields).__name__}, expected an object.")
    _expect_model(fields.get("model"), model)
    for name, values in _ONLY.items():
        _expect_one_of(fields.get(name), name, values)
    stream, (include_usage, continuous_usage) = _flag(fields, "stream"), _usage_options(fields)
    n = _whole(fields, "n", 1, range(1, limits.max_requests + 1))
    _expect_one_of(fields.get("best_of"), "best_of", (n,))
    temperature = fields.get("temperature")
    if temperature is None:
        temperature = 1
    elif type(temperature) not in (int, float) or not 0 <= temperature <= 2:
        raise _wrong("temperature", temperature, "a number from 0 (greedy) to 2")
    salt = fields.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and salt):
        raise _wrong("cache_salt", salt, "a text that is not empty")
    max_tokens = _whole(fields, "max_tokens", 16, range(1, limits.max_tokens + 1))
    return Wanted(
        prompts=_prompts(fields.get("prompt"), n, texts, limits, max_tokens),
        n=n,
        max_tokens=max_tokens,
        temperature=float(temperature),
        seed=_whole(fields, "seed", None, _SEEDS),
        stop_token_ids=[
            *_stop_token_ids(fields.get("stop_token_ids"), texts),
            *(() if _flag(fields, "ignore_eos") else texts.end),
        ],
        cache_salt=salt or "",
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        return_token_ids=_flag(fields, "return_token_ids"),
    )


def _show(value) -> str:
    """A JSON value for a message: short, however long and deep it is."""
    if isinstance(value, (list, dict)):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    return f"{json.dumps(value):.60}"


def _wrong(name: str, value, wanted: str) -> Refusal:
    return Refusal(400, f"{name} is {_show(value)}, expected {wanted}.", param=name)


def _expect_model(asked, model: str) -> None:
    if asked is not None and asked != model:
        what = f"The model {_show(asked)} does not exist here; there is {json.dumps(model)}."
        raise Refusal(404, what, param="model", code="model_not_found")


def _expect_one_of(value, name: str, values: tuple) -> None:
    for honoured in (None, *values):
        if value == honoured and isinstance(value, bool) == isinstance(honoured, bool):  # in Python, True == 1
            return
    only = " or ".join(json.dumps(v) for v in values) or "null"
    what = f"{name} is {_show(value)}; this server supports only {only} here.{_ADVICE.get(name, '')}"
    raise Refusal(400, what, param=name, code="unsupported_value")


def _flag(fields: dict, name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return bool(value)


def _whole(fields: dict, name: str, default: int | None, allowed: range) -> int | None:
    value = fields.get(name)
    if value is None:
        return default if default is None else min(default, allowed[-1])
    if type(value) is not int or value not in allowed:
        raise _wrong(name, value, f"a whole number from {allowed[0]} to {allowed[-1]}")
    return value


def _usage_options(fields: dict) -> tuple[bool, bool]:
    """Whether the usage comes last, and whether it comes with every event; vLLM wants the first for the second."""
    options = fields.get("stream_options")
    if options is None:
        return False, False
    if not isinstance(options, dict):
        raise _wrong("stream_options", options, "an object")
    if not fields.get("stream"):
        raise Refusal(400, "stream_options are only for stream=true.", param="stream_options")
    last, continuous = _flag(options, "include_usage"), _flag(options, "continuous_usage_stats")
    return last, last and continuous


def _stop_token_ids(value, texts: Texts) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong("stop_token_ids", value, f"a list of token ids from 0 to {texts.vocab_size - 1}")
    return _token_ids(value, "stop_token_ids", texts)


def _token_ids(value: list, name: str, texts: Texts) -> list[int]:
    """The list itself. Refusal, which names the first that is no token id."""
    last = texts.vocab_size - 1
    for place, token in enumerate(value):
        if type(token) is not int or not 0 <= token <= last:
            what = f"{name}[{place}] is {_show(token)}, expected a token id from 0 to {last}."
            raise Refusal(400, what, param=name.partition("[")[0])
    return value


def _prompts(value, n: int, texts: Texts, limits: Limits, max_tokens: int) -> list[list[int]]:
    """One prompt, or a list of several, in token ids; each n times."""
    if value is None:
        raise Refusal(400, "There is no prompt: give a text or a list of token ids.", param="prompt")
    several = isinstance(value, list) and value and isinstance(value[0], (str, list))
    given = value if several else [value]
    if len(given) * n > limits.max_requests:
        times = f" with n={n}" if n > 1 else ""
        what = (
            f"{len(given)} prompts{times} in one request; this server takes {limits.max_requests} at most, of all "
            "clients."
        )
        raise Refusal(400, what, param="n" if n > 1 else "prompt")
    names = [f"prompt[{place}]" for place in range(len(given))] if several else ["prompt"]
    read = [_prompt(prompt, name, texts, limits, max_tokens) for prompt, name in zip(given, names)]
    return [ids for ids in read for _ in range(n)]


def _prompt(value, name: str, texts: Texts, limits: Limits, max_tokens: int) -> list[int]:
    if isinstance(value, str):
        try:
            ids = texts.encode(value)
        except ValueError as error:
            raise Refusal(400, f"The prompt cannot be read: {error}", param="prompt") from None
    elif isinstance(value, list):
        ids = _token_ids(value, name, texts)
    else:
        last = texts.vocab_size - 1
        what = (
            f"{name} is {_show(value)}, expected a text, a list of token ids from 0 to {last}, or a list of several "
            "of either."
        )
        raise Refusal(400, what, param="prompt")
    if not ids:
        raise Refusal(400, "The prompt is empty: at least one token is needed.", param="prompt")
    if len(ids) + max_tokens > limits.max_model_len:
        what = (
            f"This server's context holds {limits.max_model_len} tokens; the prompt has {len(ids)} and max_tokens is "
            f"{max_tokens}, {len(ids) + max_tokens} together. Shorten the prompt, or ask for fewer."
        )
        raise Refusal(400, what, param="prompt", code="context_length_exceeded")
    return ids


@dataclass(frozen=True)
class Usage:
    """Tokens: of all prompts, generated, and of the prompts found in the prefix cache."""

    prompt: int
    completion: int
    cached: int

    def as_dict(self) -> dict:
        return {
            "prompt_tokens": self.prompt, "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion, "prompt_tokens_details": {"cached_tokens": self.cached},
        }  # fmt: skip


class CompletionWriter:
    """Writes the answer to one Wanted: in events, or whole."""

    def __init__(self, wanted: Wanted, texts: Texts, *, id: str, created: int, model: str):
        self._wanted, self._texts = wanted, texts
        self._read = [texts.reader(prompt) for prompt in wanted.prompts]
        self._head = {"id": id, "object": "text_completion", "created": created, "model": model}
        self._start = f"data: {json.dumps(self._head)[:-1]}, " + '"choices": [{"index": '
        self._end = '], "usage": null}\n\n' if wanted.include_usage else "]}\n\n"
        self._sent = [0] * len(wanted.prompts)  # tokens of each answer

    def event(self, index: int, token: int, finish_reason: str = "") -> bytes:
        """The event of one token of prompt `index`; put together by hand, because there is one for every token."""
        self._sent[index] += 1
        reason = f'"{finish_reason}"' if finish_reason else "null"
        ids = self._ids(index, token) if self._wanted.return_token_ids else ""
        text = json.dumps(self._read[index](token, bool(finish_reason)))
        end = self._end
        if self._wanted.continuous_usage:
            end = f'], "usage": {json.dumps(self._usage(index))}}}\n\n'
        return (
            f'{self._start}{index}, "text": {text}, "logprobs": null, "finish_reason": {reason}{ids}}}{end}'
        ).encode()

    def _usage(self, index: int) -> dict:
        """Of one prompt, so far; vLLM's has no details here either."""
        prompt, completion = len(self._wanted.prompts[index]), self._sent[index]
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _ids(self, index: int, token: int) -> str:
        prompt = ""
        if self._sent[index] == 1:  # in the prompt's first event, as in vLLM
            prompt = f', "prompt_token_ids": {self._wanted.prompts[index]}'
        return f'{prompt}, "token_ids": [{token}]'

    def last_events(self, usage: Usage) -> bytes:
        """The usage, if asked for, and the mark that ends a stream."""
        if not self._wanted.include_usage:
            return DONE
        return f"data: {json.dumps({**self._head, 'choices': [], 'usage': usage.as_dict()})}\n\n".encode() + DONE

    def whole(self, tokens: Sequence[Sequence[int]], finish_reasons: Sequence[str], usage: Usage) -> bytes:
        """The answer that is not streamed: tokens and why they end, for each prompt."""
        choices = []
        for index, (ids, reason) in enumerate(zip(tokens, finish_reasons)):
            read = self._texts.reader(self._wanted.prompts[index])
            text = "".join(read(token, place == len(ids)) for place, token in enumerate(ids, 1))
            choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
            if self._wanted.return_token_ids:
                choice |= {"prompt_token_ids": self._wanted.prompts[index], "token_ids": list(ids)}
            choices.append(choice)
        return json.dumps({**self._head, "choices": choices, "usage": usage.as_dict()}).encode()


def models(name: str, root: str, created: int, max_model_len: int) -> bytes:
    """The answer to GET /v1/models. `root` is vLLM's: where a client finds the tokenizer, if there is one."""
    card = {
        "id": name, "object": "model", "created": created, "owned_by": "course_lib", "root": root, "parent": None,
        "max_model_len": max_model_len, "permission": [],
    }  # fmt: skip
    return json.dumps({"object": "list", "data": [card]}).encode()
