"""Exercise 5.4, pack_ragged: all chunks of a step as one batch."""

from __future__ import annotations

from collections.abc import Iterator

from autograder.drivers import nb05
from autograder.exercise import Call
from autograder.kit import draws, exercise, values
from autograder.plain import short

SOLUTION = "course_lib.lessons.nb05_budget:pack_ragged"
NAMES = ("ids", "positions", "cu_q", "cu_k")


def batches(seed: int) -> Iterator[tuple[tuple, tuple, int]]:
    """(chunks, (id, tokens) of all requests, which text); the same chunks of another text come at the end."""
    made = list(_batches(seed))
    yield from ((*batch, 0) for batch in made)
    yield from ((*batch, 5) for batch in made[:3])


def _batches(seed: int) -> Iterator[tuple[tuple, tuple]]:
    """The lesson's; one chunk alone; decodes; a long batch; random ones."""
    draw = draws(seed)
    yield ((1, 3, 4), (2, 5, 8), (0, 0, 2)), ((0, 6), (1, 4), (2, 8))
    yield ((1, 0, 5),), ((0, 3), (1, 5))
    yield ((4, 6, 7),), ((4, 7),)
    yield ((4, 2, 3),), ((4, 7),)
    yield ((9, 0, 1),), ((9, 1), (3, 2))
    yield ((2, 6, 7), (0, 4, 5), (1, 1, 2)), ((0, 5), (1, 2), (2, 7))
    yield ((0, 2, 3), (3, 0, 9)), ((0, 3), (1, 1), (2, 1), (3, 40))
    yield ((5, 1, 3), (8, 1, 3), (2, 1, 3)), ((2, 3), (8, 3), (5, 3))  # equal lengths
    yield (*((i, 2_999, 3_000) for i in range(11, 0, -1)), (0, 1_000, 1_400)), tuple((i, 3_000) for i in range(12))
    for _ in range(30):
        ids = sorted(range(20), key=lambda _: draw(0, 1_000))[: draw(2, 7)]
        lengths = tuple((i, draw(3, 25)) for i in ids)
        chunks = []
        for i, length in sorted(lengths, key=lambda _: draw(0, 1_000))[: draw(1, len(ids) + 1)]:
            start = (0, length - 1, draw(0, length))[draw(0, 3)]
            chunks.append((i, start, draw(start + 1, length + 1)))
        yield tuple(chunks), lengths


def label(chunks: tuple, lengths: tuple, text: int) -> str:
    return f"pack_ragged(({', '.join(f'Chunk({i}, {start}, {stop})' for i, start, stop in chunks)}), ...)"


def trouble(call: Call, got: tuple, wanted: tuple) -> str | None:
    for name, mine, right in zip(NAMES, got, wanted):
        if mine != right:
            return f"{call.label}: {name} is {_shown(mine)}, it should be {_shown(right)}."
    return None


def _shown(numbers: tuple) -> str:
    return short(str(list(numbers)), 150) + f" ({len(numbers)} numbers)" * (len(numbers) > 24)


MISTAKES = """
    positions_from_the_chunk
      range(chunk.start, chunk.stop)  ->  range(chunk.num_tokens)
    The positions begin again at 0 in every chunk. A chunk's first token stands at chunk.start of its request.

    positions_in_the_batch
      range(chunk.start, chunk.stop)  ->  range(len(positions), len(ids))
    The positions count the rows of the batch. A token's position is its place in its own request.

    keys_of_the_chunk
      cu_k[-1] + chunk.stop  ->  cu_k[-1] + chunk.num_tokens
    cu_k counts the chunk's own keys only. A query also needs the keys of its request's tokens before the chunk:
    chunk.stop of them in all.

    keys_before_the_chunk
      cu_k[-1] + chunk.stop  ->  cu_k[-1] + chunk.start
    cu_k leaves out the chunk's own keys. A token sees itself: there are chunk.stop keys.

    keys_of_the_whole_request
      cu_k[-1] + chunk.stop  ->  cu_k[-1] + len(tokens[chunk.request_id])
    cu_k counts all tokens of the request. The tokens behind the chunk have no keys yet: attention would read slots that
    were never written.

    lengths
      len(ids)  ->  chunk.num_tokens
      cu_k[-1] + chunk.stop  ->  chunk.stop
    cu_q and cu_k hold each chunk's length. Add them up: each number is where the next chunk begins.

    without_the_zero
      return ids, positions, cu_q, cu_k  ->  return ids, positions, cu_q[1:], cu_k[1:]
    The 0 at the beginning is missing: the list has one number more than there are chunks. It says where each chunk
    begins, and where the last one ends.

    without_the_end
      return ids, positions, cu_q, cu_k  ->  return ids, positions, cu_q[:-1], cu_k[:-1]
    The last number is missing: the list has one number more than there are chunks. It says where the last chunk ends.

    tokens_by_place
      tokens[chunk.request_id]  ->  list(tokens.values())[len(cu_q) - 1]
    You take the tokens by the chunk's place in the batch. `tokens` has them by request id.

    newest_tokens
      [chunk.start : chunk.stop]  ->  [-chunk.num_tokens :]
    You take the last tokens of the request. A chunk in the middle of a prompt has others: from start to stop.

    all_tokens
      [chunk.start : chunk.stop]  ->  [: chunk.stop]
      len(ids)  ->  cu_q[-1] + chunk.num_tokens
    The tokens before the chunk are in the batch again. Their keys and values are in the cache; only the chunk's own
    tokens run.

    first_tokens
      [chunk.start : chunk.stop]  ->  [: chunk.num_tokens]
    Every chunk gets the first tokens of its request. Take those from chunk.start to chunk.stop - 1.

    sorted_by_request
      in chunks  ->  in sorted(chunks, key=lambda c: c.request_id)
    You sort the chunks. The batch has the order of the plan, and the code that reads its result relies on that.

    q_and_k_exchanged
      return ids, positions, cu_q, cu_k  ->  return ids, positions, cu_k, cu_q
    cu_q and cu_k are exchanged: q counts the new tokens, k the keys.

    positions_from_one
      range(chunk.start, chunk.stop)  ->  range(chunk.start + 1, chunk.stop + 1)
    The positions count from 1. The first token of a prompt stands at position 0.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        values("values", SOLUTION, batches, label, trouble, count="batches", driver=nb05.pack_ragged, form=([int],) * 4)
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 05, section 5.",
    imports="import numpy as np\nfrom collections.abc import Mapping, Sequence\n"
    "from course_lib.schedule.request import Chunk",
    driver=nb05.pack_ragged,
)
