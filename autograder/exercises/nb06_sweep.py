"""Exercise 6.2, sweep: what each chunk size gives and takes."""

from __future__ import annotations

from collections.abc import Iterator

from autograder.drivers import nb00
from autograder.exercises.nb00_cost import IMPORTS, REFERENCE, by_numbers, cost, written, wrong_rows
from autograder.kit import draws, exercise, values

SOLUTION = "course_lib.lessons.nb06_tradeoff:sweep"
COLUMNS = ("chunk", "steps", "ttft_us", "worst_gap_us", "prefill_tok_per_s")


def sweeps(seed: int) -> Iterator[tuple]:
    """Chunks that divide the prompt, that leave one token, as long as it, longer; ones; equal ones; out of order."""
    draw = draws(seed)
    for m in (REFERENCE, cost(draw)):
        for prompt, users in ((8_192, 24), (8_192, 25), (8_000, 24)):
            yield [1_024, 128, 8_192], prompt, users, m
        yield [512, 1_024, 64], 8_192, 24, m
        yield [3, 4, 11, 12, 13, 4, 1], 12, 1, m
        yield [2, 1], 1, 3, m
    yield [8_192, 4_096], 8_192, 1, [0, 1, 1]
    prompt = draw(3_000, 9_000)
    sizes = [draw(700, 900), draw(100, 300), prompt, prompt + draw(50, 900), prompt - 1, prompt + 1]
    yield sizes, prompt, draw(2, 60), cost(draw)
    yield [draw(500, 2_000)], draw(9_000, 30_000), 1, cost(draw)
    yield [5, 2, 1], draw(5, 12), draw(2, 9), cost(draw)
    yield [draw(100, 4_000) for _ in range(5)], draw(5_000, 20_000), draw(2, 60), cost(draw)


trouble = wrong_rows(
    "a row for each chunk size", COLUMNS, lambda call, row: f"the row of chunk {call.args[0][row]:,} has"
)


MISTAKES = """
    rest_left_out
      range(0, prompt, chunk)  ->  range(0, prompt - prompt % chunk or prompt, chunk)
    What is left over when the chunks do not divide the prompt is never computed, and it holds the prompt's last token:
    without it there is no first token of the answer.

    last_chunk_full
      min(chunk, prompt - start)  ->  chunk
    The last step is counted as a full chunk. It computes what is left of the prompt.

    no_decodes
      prompt - start), users)  ->  prompt - start), 0)
    No step has a decode in it. Every user gets a token in each step, and pays m.decode_us for it.

    one_decode
      prompt - start), users)  ->  prompt - start), 1)
    Each step has one decode. All users decode in each step, one token each.

    budget_as_chunk
      min(chunk, prompt - start)  ->  min(chunk - users, prompt - start)
      range(0, prompt, chunk)  ->  range(0, prompt, chunk - users)
    The decodes are taken off the chunk, as if it were the budget that they share. Here `chunk` is the prompt's own part
    of a step, and the decodes come on top.

    fixed_once
      sum(steps)  ->  sum(steps) - m.fixed_us * (len(steps) - 1)
    The fixed part is counted for the first step only. Every step pays it: that is the price of small chunks.

    one_step_more
      sum(steps)  ->  sum(steps) + m.step_us(0, users)
    Your TTFT goes on for one step of decodes. The prompt's first token comes at the end of the step that holds its last
    token.

    first_chunk_only
      sum(steps)  ->  steps[0]
    Your TTFT ends with the first chunk. The first token comes out of the prompt's last token, in the last chunk.

    exclusive_gap
      max(steps)  ->  max(steps) + m.step_us(0, users)
    A step of decodes is added to the gap. That belongs to a prompt that runs alone; here the decodes are in the
    prompt's own steps, and a gap is one step long.

    last_gap
      max(steps)  ->  steps[-1]
    Your worst gap is the last step's. The last chunk may be short: take the longest.

    mean_gap
      max(steps)  ->  sum(steps) // len(steps)
    Your worst gap is the mean step. Take the longest.

    whole_freeze
      max(steps)  ->  ttft
    Your worst gap is the whole time until the first token. The users get a token at the end of each step.

    decodes_counted
      prompt * 1_000_000  ->  (prompt + users * len(steps)) * 1_000_000
    The users' tokens are counted in the throughput too. Prefill throughput counts prompt tokens.

    rounded_rate
      prompt * 1_000_000 // ttft  ->  (prompt * 2_000_000 + ttft) // (2 * ttft)
    The throughput is rounded to the nearest number. It is rounded down.

    per_millisecond
      1_000_000  ->  1_000
    The throughput is in tokens per millisecond. A second has 1,000,000 microseconds.

    sorted_rows
      in chunks  ->  in sorted(chunks)
    The rows are sorted by chunk. They should come in the order in which the chunk sizes were given.

    gap_before_ttft
      ttft, max(steps)  ->  max(steps), ttft
    Two columns are swapped: first the TTFT, then the worst gap.

    empty_last_step
      range(0, prompt, chunk)  ->  range(0, prompt + 1, chunk)
    When the chunks divide the prompt, you add one step more, with nothing of the prompt in it. The prompt is done
    before.

    full_chunk_gap
      max(steps)  ->  m.step_us(chunk, users)
    Your worst gap is the step of a full chunk, also when the prompt is shorter than the chunk. A step has no more
    tokens than are left.

    not_rounded
      1_000_000 // ttft  ->  1_000_000 / ttft
    The throughput is a float. It is rounded down to a whole number: divide with // instead of /.

    equal_sizes_once
      in chunks  ->  in dict.fromkeys(chunks)
    A chunk size that is given twice has one row only. Each of the given sizes has a row.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, sweeps, written("sweep"), trouble, count="sweeps", driver=by_numbers)],
    mistakes=MISTAKES,
    reread="Reread notebook 06, section 3.",
    imports=IMPORTS,
    library=(
        "course_lib.cost.linear:sweep",
        "course_lib.cost.linear:chunked",
        "course_lib.cost.one_prompt:sweep_point",
    ),
    driver=nb00.with_cost,
)
