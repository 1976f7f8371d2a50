"""Which calls give a row the bits that it has in a call of 32 rows? Tried on this machine: no vendor promises it.

A library chooses its inner loops by shape, so a row may get other bits in a call of 7 rows than in one of 32. Which row
counts agree depends on the processor, the library, the weight and the number of threads, so no list can be shipped. But
it can be tried, with random rows, and two questions are asked in this order:

1. Does a row of a 32-row call keep its bits in every slot? Where it does not (OpenBLAS on many processors without
   AVX-512), a row has to stay in the slot that its position gives it, and only multiples of 32 rows may be tried.
2. Which of ROW_COUNTS, from 1 to 1,024 rows in a call, leave each row the bits of a 32-row call?

A trial is evidence and no proof: a kernel could do something else at a place in memory that was not tried. It does not
branch on values, so other rows behave as those that were tried.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from course_lib.arithmetic.arrays import cast, empty, like, namespace

TILE = 32  # rows; part of the contract: another number gives other bits
ROW_COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
OFFSETS = (0, 1, 5)  # elements: a trial at each, since kernels may look at where an operand begins in memory
MAGNITUDES = (1.0, 0.01, 20.0, 0.3)  # of the rows in a trial, in turn
MAX_WORK = 2**32  # row count times size of the weight: beyond it a larger call is no faster, and a trial would be slow
CALL = 20  # a call costs about as much as this many rows more in it: the weight is read


class Operation(NamedTuple):
    """One operation on rows, and how to try it.

    key      what the agreeing row counts may depend on: a name, shapes, strides
    run      run(*arrays, out): computes out [rows, ...] from arrays [rows, ...], each contiguous
    sample   sample(seed, offset) -> (run, arrays of TILE rows): random rows. What this `run` reads besides them is the
             same for a seed; where it varies from call to call, it begins `offset` elements behind an even place
    size     numbers that every call reads besides its rows, such as a weight's; bounds what is tried
    """

    key: tuple
    run: Callable
    sample: Callable
    size: int = 0


@dataclass(frozen=True)
class Allowed:
    """What was seen of an operation: whether a row's slot matters, and which row counts agree, 32 always among them."""

    slot_matters: bool
    counts: tuple[int, ...]

    def pieces(self, rows: int, at_most: int) -> list[tuple[int, int]]:
        """Cut rows into calls of agreeing row counts up to at_most (32 or more): (row count, rows of it used) each."""
        counts = [count for count in self.counts if count <= at_most]
        whole, rest = divmod(rows, counts[-1])
        plans = _plans(counts, rest)
        return [(counts[-1], counts[-1])] * whole + min(plans, key=lambda plan: sum(n + CALL for n, _ in plan))

    def __str__(self) -> str:
        counts = ", ".join(map(str, self.counts))
        return f"{counts} rows" + (", each row in its slot" if self.slot_matters else ", in any slot")


def _plans(counts: Sequence[int], rows: int) -> Iterator[list[tuple[int, int]]]:
    """Ways to cut fewer rows than counts[-1]: pad them all to the next count, or go on behind the next smaller one."""
    if not rows:
        yield []
        return
    yield [(min(count for count in counts if count >= rows), rows)]
    if fits := max((count for count in counts if count <= rows), default=0):
        yield from ([(fits, fits), *plan] for plan in _plans(counts, rows - fits))


class RowTable:
    """For each operation that was needed so far, what this machine allows. One table belongs to one arithmetic.

    counts    the row counts to try; 32 is always allowed, because it is the contract
    aligned   True: do as if slots mattered, whatever the trial would say
    """

    def __init__(self, counts: Sequence[int] = ROW_COUNTS, aligned: bool = False):
        self._counts, self._aligned = sorted({*counts, TILE}), aligned
        self.seen: dict[tuple, Allowed] = {}  # by operation, dtype, device and threads

    def allowed(self, operation: Operation, out, at_most: int) -> Allowed:
        """What is known of `operation`, whose results are rows like those of `out`; tried at the first question."""
        key = (*operation.key, (str(out.dtype), *_where(out)))
        if key not in self.seen:
            self.seen[key] = self._try(operation, out, at_most)
        return self.seen[key]

    def _try(self, operation: Operation, out, at_most: int) -> Allowed:
        counts = [n for n in self._counts if n != TILE and n <= at_most and n * operation.size <= MAX_WORK]
        if not counts:
            return Allowed(self._aligned, (TILE,))
        trials = [_Trial(operation, out, seed, offset) for seed, offset in enumerate(OFFSETS)]
        aligned = self._aligned or any(trial.slot_matters() for trial in trials)
        if aligned:
            counts = [n for n in counts if n % TILE == 0]
        agreeing = [n for n in counts if all(trial.agrees(n) for trial in trials)]
        return Allowed(aligned, tuple(sorted([TILE, *agreeing])))

    def in_words(self) -> dict[str, str]:
        """Operation -> the row counts that agree; shapes with the same answer share a line."""
        lines: dict[tuple[str, str], list[str]] = {}
        for (name, *shape), allowed in self.seen.items():
            sizes = "x".join(str(n) for n in shape if isinstance(n, int))
            lines.setdefault((name, str(allowed)), []).append(sizes)
        return {f"{name} {', '.join(dict.fromkeys(sizes))}": words for (name, words), sizes in lines.items()}


class _Trial:
    """A tile of 32 random rows and what one call makes of it; the same rows in other calls, elsewhere in memory."""

    def __init__(self, operation: Operation, out, seed: int, offset: int):
        self._out = out
        run, self._arrays = operation.sample(seed, 0)
        self._right = self._call(run, self._arrays, 0)
        self._run, self._offset = operation.sample(seed, offset)[0], offset

    def slot_matters(self) -> bool:
        """Does a row change its bits when it fills other slots of a 32-row call, among other neighbours?"""
        return not all(self._keep_their_bits(np.full(TILE, row)) for row in (0, TILE - 1))

    def agrees(self, count: int) -> bool:
        """Do rows keep their bits in calls of `count` rows, in each slot? (Of calls below 32 rows, two are tried.)"""
        calls = [np.arange(count), TILE - count + np.arange(count)] if count < TILE else [np.arange(count) % TILE]
        return all(map(self._keep_their_bits, calls))

    def _keep_their_bits(self, rows: np.ndarray) -> bool:
        """Rows of the tile, given by number, in one call."""
        index = like(self._out, rows)
        got = self._call(
            self._run, [x[rows if isinstance(x, np.ndarray) else index] for x in self._arrays], self._offset
        )
        return bool((got == self._right[index]).all())

    def _call(self, run: Callable, arrays: Sequence, offset: int):
        out = at_offset(empty(self._out, (len(arrays[0]), *self._out.shape[1:])), offset)
        run(*(at_offset(x, offset) for x in arrays), out=out)
        return out


def random_rows(x, shape: Sequence[int], seed: int):
    """Random rows of x's kind, dtype and device, of several magnitudes."""
    words = np.random.PCG64(seed).random_raw(int(np.prod(shape))).astype("<u8")
    values = ((words >> np.uint64(40)).astype(np.float32) / 2**23 - 1).reshape(shape)
    magnitudes = np.resize(np.array(MAGNITUDES, dtype=np.float32), shape[0])
    return cast(like(x, values * magnitudes.reshape(-1, *[1] * (len(shape) - 1))), x.dtype)


def at_offset(x, offset: int):
    """x, or a copy of it that begins `offset` elements behind an even place in memory."""
    if not offset:
        return x
    size = int(np.prod(x.shape))
    room = empty(x, (size + offset,))[offset:].reshape(x.shape)
    room[...] = x
    return room


def _where(x) -> tuple:
    """Device and threads. NumPy's threads are set before it starts; torch's may change."""
    if isinstance(x, np.ndarray):
        return ("numpy",)
    return (str(x.device), namespace(x).get_num_threads())
