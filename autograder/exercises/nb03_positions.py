"""Exercise 3.1, positions: where in the request do the next tokens stand?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.compare import first_index, first_trouble, returned, wrong_shape
from autograder.drivers import nb03
from autograder.exercise import Call, Group, Outcome, Verdict
from autograder.exercises import kv
from autograder.kit import draws, exercise, found, values
from course_lib.positions import MAX_ANGLE

SOLUTION = "course_lib.positions:positions"


def chunks(seed: int) -> Iterator[tuple[int, int, int]]:
    """Nothing cached, nothing computed, neither, both; one token; equal chunks; ends of blocks; ragged."""
    draw = draws(seed)
    size = draw(5, 30)
    yield 0, 0, draw(2, 20)
    yield 0, size, size
    yield size, size, size
    yield 5, 3, 4
    yield 5_000, 1_024, 976
    yield 16 * draw(1, 9), 0, 16
    yield draw(17, 31), 0, draw(2, 30)
    yield draw(1, 40), draw(1, 40), 1
    yield 0, draw(50, 90), draw(2, 9)
    for _ in range(3):  # neither number is a multiple of the chunk's length
        take = draw(7, 60)
        yield take * draw(0, 5) + draw(1, take), take * draw(0, 5) + draw(1, take), take


def label(cached: int, computed: int, take: int) -> str:
    return f"positions({cached}, {computed}, {take})"


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    shape = wrong_shape(call, got, wanted.shape, "one position for each of the `take` tokens")
    if shape or got.dtype.kind not in "iu":
        return shape or f"{call.label} has dtype {got.dtype}, wanted int64: a position is a whole number."
    if np.array_equal(got, wanted):
        return None
    (at,) = first_index(got != wanted)
    return f"{call.label}[{at}] is {got[at]}, it should be {wanted[at]}."


def kv_cases(seed: int) -> list[Call]:
    calls = [((cut.hit, *chunk), cut) for cut in kv.three_cuts(seed) for chunk in cut.chunks()]
    return [Call(args, label(*args), {"cut": cut}) for args, cut in calls]


def judge_kv(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    def unusable(call: Call, got: np.ndarray) -> str | None:
        """What the model cannot run with. All other mistakes show in the KV cache."""
        fits = got.shape == (call.args[2],) and got.dtype.kind in "iu"
        if fits and (got >= 0).all() and (got < MAX_ANGLE).all():
            return None
        return trouble(call, got, found(SOLUTION)(*call.args))

    return first_trouble(calls, outcomes, unusable) or kv.judge_cuts(
        calls, returned(outcomes), lambda table: {"positions": lambda *args: table[args].astype(np.int64)}
    )


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

    longer_one
      cached + computed, cached + computed + take  ->  max(cached, computed), max(cached, computed) + take
    Only the larger of `cached` and `computed` is counted. `computed` begins at the end of the hit, so the tokens before
    the chunk are both together.

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

    one_too_many
      computed + take  ->  computed + take + 1
    There is one position too many. np.arange leaves out its end, so the end is cached + computed + take.

    whole_request
      cached + computed, cached + computed + take  ->  cached + computed + take
    These are the positions of the whole request so far. Only the next `take` tokens are computed: begin at cached +
    computed.

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

    one_buffer
      | def positions(cached, computed, take, buffer=np.zeros(8_192, dtype=np.int64)):
      |     buffer[:take] = np.arange(cached + computed, cached + computed + take)
      |     return buffer[:take]
    Every call returns a part of the same buffer, so the positions of one chunk change when the next is asked for.
    Return a new array.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        values("values", SOLUTION, chunks, label, trouble, driver=nb03.positions),
        Group("kv", kv_cases, judge_kv),
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 03, section 2.",
    driver=nb03.positions,
)
