"""Exercise 9.3, recommend: the chunk and the budget that keep every step within a target."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.kept import known_mistakes
from course_lib.cost.attention import AttentionCost


def drive(answer, target_us: int, users: int, longest: int, cost: list[int]):
    """The cost is four numbers: fixed us, us per prompt token, us per decode, ps per query-key pair."""
    return answer(target_us, users, longest, AttentionCost(*cost))


def value_cases(seed: int) -> list[Call]:
    """Settings that fit, one in which the longest prompt fits whole, and some in which nothing does."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    rows = [(50_000, 24, 8_192, [2_600, 15, 108, 740]), (50_000, 24, 32_768, [2_600, 15, 108, 740])]
    for _ in range(6):
        cost = [draw(900, 4_000), draw(6, 30), draw(40, 200), draw(100, 2_000)]
        rows.append((draw(20_000, 90_000), draw(1, 60), draw(6_000, 60_000), cost))
    rows.append((400_000, draw(1, 9), draw(300, 900), [draw(900, 4_000), 10, 100, 500]))
    rows.append((2_000, draw(8, 30), 8_192, [draw(2_100, 4_000), 15, 108, 740]))
    users = draw(5, 50)
    rows.append((1_000 + 100 * users + 20, users, 4_096, [1_000, 20, 100, 0]))  # one token fits exactly
    return [Call((t, u, longest, c), f"recommend({t:,}, {u}, {longest:,}, cost)") for t, u, longest, c in rows]


def last_chunk_us(chunk: int, users: int, longest: int, cost: list[int]) -> int:
    """The step with the prompt's last `chunk` tokens and all decodes, in us, from the formula."""
    fixed, token, decode, pair_ps = cost
    keys = chunk * (2 * longest - chunk + 1) // 2
    return fixed + token * chunk + decode * users + pair_ps * keys // 1_000_000


def wanted(target_us: int, users: int, longest: int, cost: list[int]) -> tuple[int, int]:
    chunk = 0
    for step in (4_096, 512, 64, 8, 1):
        while chunk + step <= longest and last_chunk_us(chunk + step, users, longest, cost) <= target_us:
            chunk += step
    return (chunk, chunk + users) if chunk else (0, 0)


def _trouble(call: Call, got: np.ndarray) -> str | None:
    if got.shape != (2,) or got.dtype.kind not in "biu":
        return f"{call.label} gives {got.tolist()!r:.60}, wanted two whole numbers: max_chunk, max_num_batched_tokens."
    target, users, longest, cost = call.args
    (chunk, budget), right = got.tolist(), wanted(*call.args)
    if (chunk, budget) == right:
        return None
    what = f"{call.label} gives {(chunk, budget)}, wanted {right}. "
    what += "The cost is {:,} us, {} per prompt token, {} per decode, {} ps per pair.".format(*cost)
    if 0 < chunk <= longest:
        what += f" With your chunk the longest step takes {last_chunk_us(chunk, users, longest, cost):,} us."
    return what


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} settings")


SOLUTION = "course_lib.lessons.nb09_device:recommend"

MISTAKES = r"""
    no_decodes
      [longest] * users  ->  []
    The decodes of the users who stream are left out of the step. Each has one token in every step, and takes time.

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

    longer_than_the_prompt
      longest + 1  ->  1 << 20
      (longest - chunk, longest)  ->  (max(longest - chunk, 0), max(longest, chunk))
    The chunk is longer than the longest prompt. There is no such chunk: stop at `longest`.

    one_decode
      [longest] * users  ->  [longest] * min(users, 1)
    One decode is counted for all users together. Each user who streams has one in every step.
"""

EXERCISE = Exercise(
    name="recommend",
    groups=(Group("values", value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 09, section 3.",
    imports="import numpy as np\nfrom course_lib.cost.work import work_of",
    solution=SOLUTION,
    driver=drive,
)
