"""What is sent: requests, with prompts that share no prefix unless they are meant to."""

import json
import random
from typing import NamedTuple

from course_lib.cli import UserError
from course_lib.load.arrivals_csv import TraceRow

# Common short English words: in the byte-pair vocabularies of today's models each is about one token with its space.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend"
).split()
FIRST_ID = 3  # ids 0, 1, 2 are special tokens in many vocabularies (Llama 2: unknown, begin, end)
MOST_TOKENS = 20_000_000  # of all prompts together: they are built before anything is sent, and held


class Job(NamedTuple):
    """One request to send.

    role           "user": streams and is watched; "prompt": the long prompt that is sent into their streams
    prompt_tokens  exact for token ids, about right for text
    arrival_us     when to send it, from the start (traces)
    prefix_id      not empty: its prompt begins as that of every other job with this id
    """

    name: str
    role: str
    prompt_tokens: int
    max_tokens: int
    arrival_us: int = 0
    prefix_id: str = ""


def freeze_jobs(users: int, tokens: int, prompt_tokens: int, *, user_prompt: int = 16, answer: int = 4) -> list[Job]:
    """`users` short prompts with answers of `tokens`, then one of prompt_tokens with an answer of a few."""
    streams = [Job(f"user {i}", "user", user_prompt, tokens) for i in range(users)]
    return [*streams, Job("prompt", "prompt", prompt_tokens, answer)]


def trace_jobs(rows: list[TraceRow]) -> list[Job]:
    """One job for each row, named by its place in the order of arrival, from 0."""
    return [
        Job(f"row {i}", "user", row.prompt_tokens, row.output_tokens, row.arrival_us, row.prefix_id)
        for i, row in enumerate(rows)
    ]


def bodies(jobs: list[Job], *, model: str, chat: bool, vocab: int | None, seed: int, extra: dict) -> list[bytes]:
    """The JSON body of each job's request.

    vocab   None: prompts are words, about one token each. Else lists of token ids from FIRST_ID to vocab - 1.
    extra   members that are set on top; a member given None is left out
    """
    total = sum(job.prompt_tokens for job in jobs)
    if total > MOST_TOKENS:
        raise UserError(f"the prompts have {total:,} tokens together; at most {MOST_TOKENS:,} can be prepared.")
    made = []
    for job in jobs:
        # random.Random(str) and random() are the same in every Python since 3.2
        draw = random.Random(f"{seed}/prefix/{job.prefix_id}" if job.prefix_id else f"{seed}/{job.name}")
        if vocab is None:
            prompt = " ".join(draw.choices(WORDS, k=job.prompt_tokens))
        else:
            prompt = draw.choices(range(FIRST_ID, vocab), k=job.prompt_tokens)
        body = {
            "model": model,
            **({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}),
            "max_tokens": job.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        kept = {name: value for name, value in {**body, **extra}.items() if value is not None}
        made.append(json.dumps(kept, separators=(",", ":")).encode())
    return made
