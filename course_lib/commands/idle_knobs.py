"""Knobs that would do nothing are refused: a flag that was given is believed to act."""

from __future__ import annotations

from course_lib.cli import UserError
from course_lib.schedule.profiles import PROFILES


def refuse_idle(flag: str, why: str) -> None:
    """UserError: `flag` would do nothing, because `why`."""
    raise UserError(f"{flag} would do nothing: {why}. Leave one of them out.")


def expect_server_knobs(
    *, profile: str, no_chunking: bool, no_prefix_caching: bool, max_chunk: int, budget: int,
    max_num_seqs: int | None, chunk_flag: str = "--max-chunk",
) -> None:  # fmt: skip
    """UserError for a knob of a server that another one makes idle.

    max_chunk      0 for none; budget: the step's max_num_batched_tokens
    max_num_seqs   None if it was not given
    """
    rules = PROFILES[profile]
    cap = f"{chunk_flag} {max_chunk}"
    if no_chunking and not rules.chunks_prompts:
        refuse_idle("--no-chunking", f"--profile {profile} runs every prompt in one step anyway")
    if no_prefix_caching and not rules.caches_prefixes:
        refuse_idle("--no-prefix-caching", f"--profile {profile} has no prefix cache")
    if max_chunk and no_chunking:
        refuse_idle(cap, "with --no-chunking every prompt runs in one step")
    if max_chunk and not rules.caps_chunks:
        refuse_idle(cap, f"--profile {profile} has no cap on a request's chunk")
    if max_chunk > budget:
        refuse_idle(cap, f"a step has {budget} tokens in all (--max-num-batched-tokens)")
    if max_num_seqs is not None and max_num_seqs > budget:
        why = f"a step has {budget} tokens in all (--max-num-batched-tokens), and each that runs may decode one"
        raise UserError(f"--max-num-seqs {max_num_seqs} is more than can run: {why}. Give at most {budget}.")
