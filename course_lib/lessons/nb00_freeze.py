"""A prompt in a step without decodes, as streaming users see it: the exclusive baseline, step by step."""

from collections.abc import Sequence

from course_lib.cost.linear import LinearCost


def one_shot_timeline(prompt: int, users: int, m: LinearCost) -> list[tuple[int, int, int, int]]:
    """Three steps, back to back from time 0: the users' decodes, the whole prompt alone, the users' decodes again.

    A step is a row (start_us, stop_us, prompt_tokens, decodes) of whole numbers; each call returns a new list. The
    prompt comes during the first step and wants one token of answer, so it does not decode afterwards. This is the
    exclusive baseline.

    prompt   tokens in the prompt, at least 1
    users    streaming users, at least 1
    m        what a step costs
    """
    rows, start = [], 0
    for prompt_tokens, decodes in [(0, users), (prompt, 0), (0, users)]:
        stop = start + m.step_us(prompt_tokens, decodes)
        rows.append((start, stop, prompt_tokens, decodes))
        start = stop
    return rows


def worst_gap(steps: Sequence[tuple[int, int, int, int]]) -> int:
    """Longest time, in whole us, between one token of a streaming user and that user's next.

    Every user gets a token at the end of each step that has decodes, and in no other step. `steps` stays as it is.

    steps   rows (start_us, stop_us, prompt_tokens, decodes), back to back from any time on; at least two have decodes
    """
    tokens = [stop for _, stop, _, decodes in steps if decodes]
    return max(after - before for before, after in zip(tokens, tokens[1:]))
