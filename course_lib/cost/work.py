"""What a step does, as five integers, and what every step cost offers: all that a modelled time may depend on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple


class StepWork(NamedTuple):
    """The work of one step, summed over its chunks. A decode counts as a decode only, never as a prompt token.

    prefill_tokens   prompt tokens computed
    decodes          requests that get one token each
    prefill_pairs    query-key pairs of the prompt tokens: token p attends to p + 1 keys
    prefill_cached   sum of the prefill chunks' starts: tokens whose K and V these chunks read back from memory
    decode_context   sum of the decodes' contexts, own token included: tokens whose K and V the decodes read
    """

    prefill_tokens: int = 0
    decodes: int = 0
    prefill_pairs: int = 0
    prefill_cached: int = 0
    decode_context: int = 0


def pairs(start: int, stop: int) -> int:
    """Query-key pairs of the tokens [start, stop): token p sees p + 1 keys."""
    return (stop * (stop + 1) - start * (start + 1)) // 2


def work_of(prefills: Iterable[tuple[int, int]], decode_stops: Iterable[int] = ()) -> StepWork:
    """The work of a step.

    prefills       (start, stop) of each chunk of a prompt
    decode_stops   context of each decode, its own token included
    """
    tokens = visible = cached = 0
    for start, stop in prefills:
        tokens += stop - start
        visible += pairs(start, stop)
        cached += start
    contexts = list(decode_stops)
    return StepWork(tokens, len(contexts), visible, cached, sum(contexts))


class StepCost(ABC):
    """Turns work into time: whole microseconds, at least 1 for a step that does anything."""

    @abstractmethod
    def work_us(self, work: StepWork) -> int:
        """Duration of a step."""

    def decode_run_us(self, decodes: int, context: int, steps: int) -> list[int]:
        """Durations of `steps` decode-only steps in a row; the first reads `context` tokens, each later one
        `decodes` more."""
        return [self.work_us(StepWork(decodes=decodes, decode_context=context + i * decodes)) for i in range(steps)]
