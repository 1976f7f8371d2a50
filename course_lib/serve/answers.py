"""Answers in the OpenAI completions protocol, pure: tokens become events, or one object.

Shapes as openai 3.57.0 reads them (types/completion.py, completion_usage.py); `token_ids` and `prompt_token_ids` as in
vLLM (vllm/entrypoints/openai/completion/protocol.py, read on 2026-11-30).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.serve.completions import Wanted
from course_lib.serve.texts import Texts

DONE = b"data: [DONE]\n\n"


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


class Answer:
    """Writes the answer to one Wanted: in events, or whole."""

    def __init__(self, wanted: Wanted, texts: Texts, *, id: str, created: int, model: str):
        self._wanted, self._texts = wanted, texts
        self._head = {"id": id, "object": "text_completion", "created": created, "model": model}
        self._start = f"data: {json.dumps(self._head)[:-1]}, " + '"choices": [{"index": '
        self._end = '], "usage": null}\n\n' if wanted.include_usage else "]}\n\n"
        self._shown: set[int] = set()  # whose prompt_token_ids were sent

    def event(self, index: int, token: int, finish_reason: str = "") -> bytes:
        """The event of one token of prompt `index`; put together by hand, because there is one for every token."""
        reason = f'"{finish_reason}"' if finish_reason else "null"
        ids = self._ids(index, token) if self._wanted.return_token_ids else ""
        text = json.dumps(self._texts.pieces[token])
        return (
            f'{self._start}{index}, "text": {text}, "logprobs": null, "finish_reason": {reason}{ids}}}{self._end}'
        ).encode()

    def _ids(self, index: int, token: int) -> str:
        prompt = ""
        if index not in self._shown:  # in the prompt's first event, as in vLLM
            self._shown.add(index)
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
            text = "".join(self._texts.pieces[token] for token in ids)
            choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
            if self._wanted.return_token_ids:
                choice |= {"prompt_token_ids": self._wanted.prompts[index], "token_ids": list(ids)}
            choices.append(choice)
        return json.dumps({**self._head, "choices": choices, "usage": usage.as_dict()}).encode()


def models(name: str, created: int, max_model_len: int) -> bytes:
    """The answer to GET /v1/models."""
    card = {"id": name, "object": "model", "created": created, "owned_by": "course_lib", "max_model_len": max_model_len}
    return json.dumps({"object": "list", "data": [card]}).encode()
