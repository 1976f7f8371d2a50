"""Exercise 5.4, pack_ragged: all chunks of a step as one batch."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.kept import known_mistakes
from autograder.packing import pack, unpack
from course_lib.schedule.request import Chunk

NAMES = ("ids", "positions", "cu_q", "cu_k")
BATCHES = 30


def drive(pack_ragged, chunks: list[int], lengths: list[int]) -> np.ndarray:
    """The four lists. `chunks` has three numbers a chunk; request i has lengths[i] tokens."""
    plan = tuple(Chunk(*chunks[at : at + 3]) for at in range(0, len(chunks), 3))
    tokens = {i: tokens_of(i, n) for i, n in enumerate(lengths)}
    result = pack_ragged(plan, tokens)
    if not isinstance(result, (tuple, list)) or len(result) != 4:
        what = "None" if result is None else f"something of type {type(result).__name__}"
        raise TypeError(f"it returned {what}, wanted four lists: ids, positions, cu_q, cu_k")
    return pack(result, NAMES)


def tokens_of(request: int, length: int) -> list[int]:
    """Tokens that tell one request from another, and one place from another."""
    return [1_000 * (request + 1) + 7 * place % 997 for place in range(length)]


def _call(chunks: list[tuple[int, int, int]], lengths: list[int]) -> Call:
    shown = ", ".join(f"Chunk({i}, {start}, {stop})" for i, start, stop in chunks)
    return Call(([n for chunk in chunks for n in chunk], lengths), f"pack_ragged(({shown}), ...)", {"chunks": chunks})


def cases(seed: int) -> list[Call]:
    """The lesson's batch, one chunk alone, decodes alone, chunks that end before their request; then random ones."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    calls = [
        _call([(1, 3, 4), (2, 5, 8), (0, 0, 2)], [6, 4, 8]),
        _call([(1, 0, 5)], [3, 5]),
        _call([(2, 6, 7), (0, 4, 5), (1, 1, 2)], [5, 2, 7]),
        _call([(0, 2, 3), (3, 0, 9)], [3, 1, 1, 40]),
    ]
    for _ in range(BATCHES):
        lengths = [draw(3, 25) for _ in range(draw(2, 7))]
        ids = rng.permutation(len(lengths))[: draw(1, len(lengths) + 1)].tolist()
        chunks = []
        for i in ids:
            start = int(rng.choice([0, lengths[i] - 1, draw(0, lengths[i])]))
            chunks.append((i, start, draw(start + 1, lengths[i] + 1)))
        calls.append(_call(chunks, lengths))
    return calls


def wanted(call: Call) -> list[list[int]]:
    chunks, lengths = call.facts["chunks"], call.args[1]
    rows = [(i, p) for i, start, stop in chunks for p in range(start, stop)]
    news, keys = [c[2] - c[1] for c in chunks], [c[2] for c in chunks]
    return [
        [tokens_of(i, lengths[i])[p] for i, p in rows],
        [p for _, p in rows],
        np.cumsum([0, *news]).tolist(),
        np.cumsum([0, *keys]).tolist(),
    ]


def _trouble(call: Call, got: np.ndarray) -> str | None:
    for name, mine, right in zip(NAMES, unpack(got), wanted(call)):
        if mine.ndim != 1 or mine.dtype.kind not in "iu":
            return f"{call.label}: {name} is {mine.tolist()}, wanted a list of whole numbers."
        if mine.tolist() != right:
            return f"{call.label}: {name} is {_short(mine.tolist())}, it should be {_short(right)}."
    return None


def _short(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) <= 24 else f"{str(numbers[:24])[:-1]}, ...] ({len(numbers)} numbers)"


def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} batches")


SOLUTION = "course_lib.lessons.nb05_budget:pack_ragged"

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

EXERCISE = Exercise(
    name="pack_ragged",
    groups=(Group("values", cases, judge),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 05, section 5.",
    imports="import numpy as np\nfrom collections.abc import Mapping, Sequence\n"
    "from course_lib.schedule.request import Chunk",
    solution=SOLUTION,
    driver=drive,
)
