"""Exercise 9.3, recommend: the chunk and the budget that keep every step within a target."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.drivers import nb09
from autograder.exercise import Call
from autograder.kit import draws, exercise, shown, values
from course_lib.cost.work import work_of

SOLUTION = "course_lib.lessons.nb09_device:recommend"
LESSON = ("attention", 2_600, 15, 108, 740)


def last_us(chunk: int, users: int, longest: int, cost: tuple) -> int:
    """The step with the prompt's last `chunk` tokens and all decodes, in us."""
    return nb09.cost_of(*cost).work_us(work_of([(longest - chunk, longest)], [longest] * users))


def settings(seed: int) -> Iterator[tuple]:
    """Costs without and with a term for decodes' contexts, and a preset; targets met exactly, missed by 1 us, never."""
    draw = draws(seed)
    yield 50_000, 24, 8_192, LESSON
    yield 50_000, 24, 32_768, LESSON
    for number in range(4):
        attention = ("attention", draw(900, 4_000), draw(6, 30), draw(40, 200), draw(100, 2_000))
        terms = [draw(900, 4_000) * 10**6, draw(6, 30) * 10**6, draw(40, 200) * 10**6, draw(100, 2_000)]
        for cost in (attention, ("fitted", *terms, draw(2_000, 60_000)), ("8b-h100",)):
            users, longest = draw(2, 40), draw(2_000, 9_000)
            chunk = (draw(20, longest - 20), draw(20, longest - 20), 1, longest)[number]
            exact = last_us(chunk, users, longest, cost)
            yield exact - number % 2, users, longest, cost
    yield 400_000, draw(1, 9), draw(300, 900), ("attention", draw(900, 4_000), 10, 100, 500)  # the whole prompt
    yield 2_000, draw(8, 30), 8_192, ("attention", draw(2_100, 4_000), 15, 108, 740)  # not even the fixed part
    users = draw(5, 50)
    decodes = 1_000 + 100 * users
    for spare in (0, 19, 20):  # the decodes alone take all, nearly all; one token fits exactly
        yield decodes + spare, users, 4_096, ("attention", 1_000, 20, 100, 0)
    yield 50_000, 1, 1, LESSON
    yield 2_700, 1, 1, LESSON


def label(target_us: int, users: int, longest: int, cost: tuple) -> str:
    return f"recommend({target_us:,}, {users}, {longest:,}, cost)"


def _cost_in_words(kind: str, *numbers: int) -> str:
    if kind == "attention":
        return "The cost is {:,} us, {} per prompt token, {} per decode, {} ps per pair.".format(*numbers)
    if kind == "fitted":
        fixed, token, decode, pair, context = (ps / 10**6 for ps in numbers)
        text = (
            f"The cost is {fixed:,.0f} us, {token:.0f} per prompt token, {decode:.0f} per decode, {pair:g} per pair, "
        )
        return text + f"{context:g} per token of a decode's context."
    return f"The cost is the preset {kind}."


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    if got.shape != (2,) or got.dtype.kind not in "iu":
        return f"{call.label} gives {shown(got)}, wanted two whole numbers: max_chunk, max_num_batched_tokens."
    if np.array_equal(got, wanted):
        return None
    _, users, longest, cost = call.args
    (chunk, budget), right = got.tolist(), tuple(wanted.tolist())
    what = f"{call.label} gives {(chunk, budget)}, wanted {right}. {_cost_in_words(*cost)}"
    if 0 < chunk <= longest:
        what += f" With your chunk the longest step takes {last_us(chunk, users, longest, cost):,} us."
    return what


MISTAKES = r"""
    no_decodes
      [longest] * users  ->  []
    The decodes of the users who stream are left out of the step. Each has one token in every step, and takes time.

    one_decode
      [longest] * users  ->  [longest]
    One decode is counted for all users together. Each user who streams has one in every step.

    short_contexts
      [longest] * users  ->  [1] * users
    Your decodes have next to no context. Where a cost counts the keys and values that decodes read, as a GPU's does,
    they then cost too little: take `longest` for every user.

    first_chunk
      (longest - chunk, longest)  ->  (0, chunk)
    This is right for the prompt's first chunk. A later one has more keys before it, so attention takes longer, and the
    last takes the longest.

    budget_is_the_chunk
      fits + users  ->  fits
    The budget is the chunk. Decodes come out of the budget first, so they take their tokens from the chunk: the budget
    must hold both.

    four_chunks
      fits + users  ->  4 * fits + users
    The budget holds several chunks. When several prompts wait, a step is then filled with a chunk of each and takes
    several times as long: it is the budget that bounds a step.

    one_too_many
      return (fits, fits + users) if fits else (0, 0)  ->  return fits + 1, fits + 1 + users
    This chunk is one token too large: the smallest that misses the target, and not the largest that meets it.

    strictly_below
      <= target_us  ->  < target_us
    A step that takes exactly the target meets it. This one stops below.

    never_whole
      longest + 1  ->  longest
    The chunk is never the whole prompt: the search ends one token before `longest`.

    power_of_two
      return (fits  ->  fits = 2 ** fits.bit_length() // 2\nreturn (fits
    The chunk is rounded down to a power of two. Nothing asks for that, and up to half of what fits is given away.

    decodes_off_the_chunk
      return (fits, fits + users) if fits else (0, 0)  ->  return fits - users, fits
    The users' tokens are taken off the chunk as if they were prompt tokens. Their time is in work_us already; the
    budget grows by them.

    prompt_alone
      [longest] * users  ->  []
      fits + users  ->  fits
    This answer has no streaming users: it fits the chunk alone into the target, and into the budget.

    none_that_fits
      return (fits  ->  fits = max(fits, 1)\nreturn (fits
    Where not even one token fits, this still recommends a chunk of 1. No knob can make the decodes themselves faster:
    say (0, 0).

    budget_without_chunk
      if fits else (0, 0)  ->
    Where not even one token fits, this recommends a chunk of 0 with a budget for the decodes. A max_chunk of 0 means
    that there is no cap: say (0, 0).

    longer_than_the_prompt
      longest + 1  ->  1 << 20
      (longest - chunk, longest)  ->  (max(longest - chunk, 0), max(longest, chunk))
    The chunk is longer than the longest prompt. There is no such chunk: stop at `longest`.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, settings, label, trouble, count="settings", driver=nb09.recommend)],
    mistakes=MISTAKES,
    reread="Reread notebook 09, section 3.",
    imports="import numpy as np\nfrom course_lib.cost.work import work_of",
    driver=nb09.recommend,
)
