"""Exercise 6.1, itl: P50, P99 and the longest of some waits, by nearest rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.compare import counted, wrong_shape
from autograder.drivers import nb06
from autograder.exercise import Call
from autograder.kit import draws, exercise, values

SOLUTION = "course_lib.lessons.nb06_tradeoff:itl"
NAMES = ("P50", "P99", "the longest")


def waits(seed: int) -> Iterator[tuple[list[int], str]]:
    """Few stalls among many gaps; counts at which ranks come out whole and at which not; equal gaps; gaps in order."""
    draw = draws(seed)
    short, stall = draw(3_000, 9_000), draw(90_000, 200_000)

    def unequal(count: int) -> list[int]:
        first, apart = draw(4_000, 9_000), draw(11, 200)
        return sorted((first + apart * place for place in range(count)), key=lambda _: draw(0, 2**60))

    yield [short, stall] + [short] * 117 + [stall - 7], "two stalls among 120 gaps"
    yield [short] * 60 + [stall] + [short] * 59, "one stall among 120 gaps"
    for stalls in (10, 11):
        yield [stall] * stalls + [short] * (1_000 - stalls), f"{stalls} stalls among 1,000 gaps"
    for count in (100, 300, 99, 101, 50, 51, 4, 3, 2, 1, draw(102, 199), draw(201, 280)):
        yield unequal(count), counted(count, "gap")
    yield sorted(unequal(110)), "110 gaps, from the shortest on"
    yield sorted(unequal(110), reverse=True), "110 gaps, from the longest on"
    yield [short] * 30, "30 equal gaps"
    yield [draw(1, 9) * 5_000 for _ in range(draw(101, 150))], "gaps of a few lengths"


def label(gaps: list[int], what: str) -> str:
    return f"itl(gaps), {what},"


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    shape = wrong_shape(call, got, (3,), "P50, P99 and the longest")
    if shape:
        return shape
    over = counted(len(call.args[0]), "gap")
    for name, value, right in zip(NAMES, got.tolist(), wanted.tolist()):
        if value != right:
            shown = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
            return f"{call.label} says that {name} of {over} is {shown} us, it should be {right:,} us."
    if got.dtype.kind not in "iu":
        return f"{call.label} has numbers of type {got.dtype}; wanted whole microseconds, as the gaps are."
    return None


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

    upper_middle
      return p50,  ->  return ordered[len(ordered) // 2],
    Your P50 of an even number of gaps is the upper one of the two in the middle. Half of the gaps do not exceed the
    lower one, so that is P50: its rank is half of the count, and its index one less.

    floats
      return p50, p99, ordered[-1]  ->  return tuple(map(float, (p50, p99, ordered[-1])))
    The numbers are right and their type is not: these are floats. Each is one of the gaps, which are whole.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, waits, label, trouble, count="lists of gaps", driver=nb06.itl)],
    mistakes=MISTAKES,
    reread="Reread notebook 06, section 2.",
    imports="import numpy as np\nfrom collections.abc import Sequence",
    library=("course_lib.cost.linear:percentile",),
    driver=nb06.itl,
)
