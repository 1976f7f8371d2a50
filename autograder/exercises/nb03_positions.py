"""Exercise 3.1, positions: where in the request do the next tokens stand?"""

from __future__ import annotations

import numpy as np

from autograder.compare import first_index, first_trouble, returned, same_integers, wrong_shape
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises import kv
from autograder.kept import known_mistakes
from course_lib.positions import MAX_ANGLE


def _call(cached: int, computed: int, take: int, **facts) -> Call:
    return Call((cached, computed, take), f"positions({cached}, {computed}, {take})", facts)


def _wanted(cached: int, computed: int, take: int) -> list[int]:
    return [cached + computed + i for i in range(take)]


def _trouble(call: Call, got: np.ndarray) -> str | None:
    wanted = np.array(_wanted(*call.args))
    shape = wrong_shape(call, got, wanted.shape, "one position for each of the `take` tokens")
    if shape or got.dtype.kind not in "iu":
        return shape or f"{call.label} has dtype {got.dtype}, wanted int64: a position is a whole number."
    if np.array_equal(got, wanted):
        return None
    (at,) = first_index(got != wanted)
    return f"{call.label}[{at}] is {got[at]}, it should be {wanted[at]}."


def value_cases(seed: int) -> list[Call]:
    """Hits and chunks of all kinds: nothing cached, nothing computed, both; one token; ends of blocks; ragged."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    chunk = draw(5, 30)
    calls = [(0, 0, draw(2, 20)), (0, chunk, chunk), (5, 3, 4), (5_000, 1_024, 976), (16 * draw(1, 9), 0, 16)]
    calls += [(draw(1, 40), draw(1, 40), 1), (0, draw(50, 90), draw(2, 9)), (draw(17, 31), 0, draw(2, 30))]
    while len(calls) < 12:
        cached, computed, take = draw(1, 300), draw(1, 300), draw(2, 60)
        if cached != computed and computed % take and cached % take:
            calls.append((cached, computed, take))
    return [_call(*args) for args in calls]


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} cases")


def kv_cases(seed: int) -> list[Call]:
    return [_call(cut.hit, computed, take, cut=cut) for cut in kv.three_cuts(seed) for computed, take in cut.chunks()]


def judge_kv(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    def usable(call: Call, got: np.ndarray) -> str | None:
        """What the model cannot run with. All other mistakes show in the KV cache."""
        if (
            got.shape != (call.args[2],)
            or got.dtype.kind not in "iu"
            or not ((got >= 0) & (got.astype(np.float64) < MAX_ANGLE)).all()
        ):
            return _trouble(call, got)
        return None

    trouble = first_trouble(calls, outcomes, usable)
    return trouble or kv.judge_cuts(
        calls, returned(outcomes), lambda table: {"positions": lambda *args: table[args].astype(np.int64)}
    )


SOLUTION = "course_lib.positions:positions"

MISTAKES = """
    relative
      np.arange(cached + computed, cached + computed + take)  ->  np.arange(take)
    Positions restart at 0 in every chunk: chunk-relative positions. To RoPE each chunk then looks like the beginning of
    the document.

    no_cached
      cached + computed, cached + computed + take  ->  computed, computed + take
    The cached tokens are not counted: positions restart at the end of the prefix hit. `computed` counts only what was
    computed since the hit.

    no_computed
      cached + computed, cached + computed + take  ->  cached, cached + take
    The tokens of earlier chunks are not counted: every chunk starts right behind the prefix hit.

    one_based
      cached + computed, cached + computed + take  ->  cached + computed + 1, cached + computed + take + 1
    Every position is one too large: this counts from 1. The first token of a request stands at position 0.

    one_too_few
      cached + computed, cached + computed + take  ->  cached + computed - 1, cached + computed + take - 1
    Every position is one too small. The position of the chunk's first token is the number of tokens before it.

    chunk_grid
      np.arange(cached + computed, cached + computed + take)  ->  cached + computed // take * take + np.arange(take)
    This is the chunk's index times its length, which supposes that all chunks before it were as long as this one.
    Chunks are ragged: the last one is what was left, and others shrink when the budget is short.

    grid_no_cached
      np.arange(cached + computed, cached + computed + take)  ->  computed // take * take + np.arange(take)
    Index times length, and the hit is forgotten.

    inclusive_end
      computed + take  ->  computed + take - 1
    One position is missing: np.arange leaves out its end, so the end is cached + computed + take.

    stop_is_take
      , cached + computed + take  ->  , take
    The end of the range is `take`, a length, where a position belongs: it is right only for the first chunk of a
    request without a hit.

    one_position
      np.arange(cached + computed, cached + computed + take)  ->  np.full(take, cached + computed)
    All tokens of the chunk get the position of its first token.

    from_the_end
      np.arange(cached + computed, cached + computed + take)  ->  np.arange(cached + computed + take)[::-1][:take]
    The order is reversed: token i of the chunk stands i places after its first.

    floats
      np.arange(  ->  np.linspace(
      computed + take)  ->  computed + take - 1, take)
    The numbers are right and the dtype is not: these are floats, and a position is used as an index too. np.arange
    gives int64.
"""

EXERCISE = Exercise(
    name="positions",
    groups=(Group("values", value_cases, judge_values), Group("kv", kv_cases, judge_kv)),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 03, section 2.",
    solution=SOLUTION,
)
