"""Exercise 6.1, itl: P50, P99 and the longest of some waits, by nearest rank."""

from __future__ import annotations

import numpy as np

from autograder.compare import counted, first_trouble, same_integers, wrong_shape
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.kept import known_mistakes

NAMES = ("P50", "P99", "the longest")


def value_cases(seed: int) -> list[Call]:
    """One stall among many gaps, and two; counts at which ranks come out whole and at which they do not; one gap."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    short, stall = draw(3_000, 9_000), draw(90_000, 200_000)
    cases = [
        ([short] * 60 + [stall] + [short] * 59, "one stall among 120 gaps"),
        ([short, stall] + [short] * 117 + [stall - 7], "two stalls among 120 gaps"),
        ([draw(4_000, 90_000) for _ in range(100)], "100 gaps"),
        ([draw(4_000, 90_000) for _ in range(300)], "300 gaps"),
        ([draw(4_000, 90_000) for _ in range(2)], "2 gaps"),
        ([draw(4_000, 90_000)], "1 gap"),
        ([draw(4_000, 90_000) for _ in range(draw(201, 280))], "gaps of all lengths"),
        ([draw(1, 9) * 5_000 for _ in range(draw(101, 150))], "gaps of a few lengths"),
    ]
    return [Call((gaps,), f"itl(gaps), {what},") for gaps, what in cases]


def _wanted(gaps: list[int]) -> list[int]:
    """By counting, as the words say it, instead of by rank."""
    least = lambda percent: min(g for g in gaps if 100 * sum(x <= g for x in gaps) >= percent * len(gaps))  # noqa: E731
    return [least(50), least(99), max(gaps)]


def _trouble(call: Call, got: np.ndarray) -> str | None:
    shape = wrong_shape(call, got, (3,), "P50, P99 and the longest")
    if shape:
        return shape
    (gaps,) = call.args
    for name, value, right in zip(NAMES, got.tolist(), _wanted(gaps)):
        if value != right:
            shown = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
            over = counted(len(gaps), "gap")
            return f"{call.label} says that {name} of {over} is {shown} us, it should be {right:,} us."
    return None


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} lists of gaps")


SOLUTION = "course_lib.lessons.nb06_tradeoff:itl"

MISTAKES = """
    one_rank_too_high
      -(-percent * len(ordered) // 100) - 1  ->  percent * len(ordered) // 100
    Your rank is one too high where it comes out whole: P99 of 100 gaps is the 99th when they are sorted, and that has
    index 98.

    rank_rounded_down
      -(-percent * len(ordered) // 100) - 1  ->  percent * len(ordered) // 100 - 1
    Your rank is rounded down. P99 of 120 gaps is the 119th: 118 of them are only 98 in a hundred. Round up.

    rank_of_the_last_index
      -(-percent * len(ordered) // 100) - 1  ->  round(percent / 100 * (len(ordered) - 1))
    Your rank is a share of the last index, rounded. Nearest rank takes a share of the number of gaps, rounded up.

    between_two_gaps
      (ordered[-(-percent * len(ordered) // 100) - 1] for percent in (50, 99))  ->  np.percentile(gaps, [50, 99])
    This lies between two gaps: np.percentile and np.quantile mix neighbours by default. Nearest rank gives a gap that a
    user really waited.

    not_sorted
      sorted(gaps)  ->  list(gaps)
      ordered[-1]  ->  max(gaps)
    The gaps are taken as they come. Ranks are places in the sorted list.

    from_the_long_end
      sorted(gaps)  ->  sorted(gaps, reverse=True)
      ordered[-1]  ->  max(gaps)
    The gaps are sorted from the longest down, so your P99 is the gap that 99 in a hundred exceed.

    each_value_once
      sorted(gaps)  ->  sorted(set(gaps))
    Every length is counted once, however often it came. A wait that 110 of 120 gaps had must count 110 times.

    longest_as_p99
      p50, p99, ordered[-1]  ->  p50, ordered[-1], ordered[-1]
    Your P99 is the longest gap. One gap in a hundred may be longer than P99, that is why both are reported.

    p99_as_longest
      p50, p99, ordered[-1]  ->  p50, p99, p99
    Your longest gap is P99 again. The longest is the largest of all, and one stall among 120 gaps shows in nothing
    else.

    share_of_the_longest
      ordered[-(-percent * len(ordered) // 100) - 1]  ->  ordered[-1] * percent // 100
    Your percentiles are shares of the longest gap. P99 asks how many gaps are shorter, and not how long the longest is.

    mean_as_p50
      return p50  ->  return sum(gaps) // len(gaps)
    Your P50 is the mean. One stall moves a mean; the middle gap stays where it is.

    stalls_dropped
      sorted(gaps)  ->  sorted(gaps)[: max(len(gaps) - 1, 1)]
    The longest gap is left out before you count, as if it were an error of measurement. A user waited that long.

    longest_first
      p50, p99, ordered[-1]  ->  ordered[-1], p99, p50
    The three numbers are right and in another order: P50, then P99, then the longest.
"""

EXERCISE = Exercise(
    name="itl",
    groups=(Group("values", value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 06, section 2.",
    imports="import numpy as np\nfrom collections.abc import Sequence",
    solution=SOLUTION,
    library=("course_lib.cost.linear:percentile",),
)
