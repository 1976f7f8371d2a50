"""Popular claims about chunked prefill that need care: each is asked about by a question of the course."""

import json

import pytest
from starting import ROOT

# what people say -> the questions whose answer says when it is not so, each with a word that it must contain
CLAIMS = {
    "a hit is as long as what is shared": {"nb07-q1": "1,000", "nb08-q1": "7,000"},
    "chunk size and token budget are two words for one thing": {"nb05-q2": "max_chunk", "nb08-q5": "no cap"},
    "a prompt that is cached completely costs nothing": {"nb07-q3": "cached completely"},
    "with chunks any prompt can be scheduled": {"nb05-q1": "never be served"},
    "a request with nothing to compute can be passed over": {"nb05-q3": "continue"},
    "computed may advance as soon as the step is planned": {"nb05-q4": "planner"},
    "after a preemption the prompt is computed again": {"nb05-q5": "preempted"},
    "every chunk gives a token": {"nb01-q4": "first token", "nb05-q5": "tokens has its answer"},
    "cutting never changes a bit": {"nb01-q5": "2e-6", "nb04-q2": "bfloat16", "nb04-q1": "float64"},
    "comparing the KV cache catches every mistake": {"nb02-q2": "ONE layer"},
    "equal chunks are test enough": {"nb03-q3": "cuts every prompt into chunks of 64"},
    "the total work is the same": {"nb06-q5": "same total work", "nb09-q2": "128 chunks"},
    "a step's time is constant": {"nb06-q6": "attention"},
    "25 times better, and close to a second": {"nb00-q6": "25 times"},
    "a cached token is free": {"nb08-q2": "pairs"},
    "decodes ride along for nothing": {"nb06-q4": "not pay for"},
    "chunk = prompt is the unchunked server": {"nb06-q3": "alone while decodes wait", "nb00-q5": "longest prompt"},
    "the chunk bounds the gap": {"nb05-q6": "max_num_batched_tokens", "nb09-q6": "budget"},
    "P99 shows a stall": {"nb00-q8": "P99", "nb06-q1": "P99", "nb09-q7": "155 ms"},
    "the largest chunk under the target is the best": {"nb06-q2": "knee"},
    "chunks that are cached are skipped": {"nb08-q3": "multiples of 1,024"},
    "both are always better than either": {"nb08-q4": "earliest first token"},
    "the same tokens hit wherever they stand": {"nb07-q2": "XBCDE"},
    "a free block has lost its content": {"nb07-q4": "reference count", "nb07-q6": "touches"},
    "8,192 is vLLM's default": {"nb09-q3": "8,192"},
    "all servers mix chunks and decodes": {"nb09-q4": "SGLang"},
    "SARATHI and Sarathi-Serve are one paper": {"nb09-q5": "stall-free"},
    "token 5,001 stands at position 5,001": {"nb07-q5": "counted from 0"},
    "is_causal=True is the mask of a chunk": {"nb02-q3": "is_causal=True"},
    "a mask costs nothing": {"nb04-q9": "How large is the mask"},
}
QUESTIONS = {
    question["id"]: question
    for file in sorted((ROOT / "solutions").glob("*.questions.json"))
    for question in json.loads(file.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_that_needs_care_is_asked_about(claim):
    for name, word in CLAIMS[claim].items():
        assert word in QUESTIONS[name]["question"], (name, QUESTIONS[name]["question"])


def test_there_are_eighty_questions_and_more():
    assert len(QUESTIONS) >= 80 and len(CLAIMS) == 30
