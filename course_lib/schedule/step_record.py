"""What happened in a step, as plain values: engine, simulator and replay write it, pictures and tests read it."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class StepRecord:
    """One step. Requests are named by id.

    chunks        (request, start, stop) in batch order: tokens [start, stop) were computed
    sampled       (request, token) for each request whose chunk ended at its newest token, in batch order
    hits          (request, tokens attached from the prefix cache) for each request admitted in this step
    preempted     requests that lost their blocks and wait again
    finished      requests that are done
    num_running, num_waiting, free_blocks   after the step
    duration_us   measured, or modelled by a simulator; None if neither
    """

    step: int
    chunks: tuple[tuple[int, int, int], ...] = ()
    sampled: tuple[tuple[int, int], ...] = ()
    hits: tuple[tuple[int, int], ...] = ()
    preempted: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    num_running: int = 0
    num_waiting: int = 0
    free_blocks: int = 0
    duration_us: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step: what the budget limits."""
        return sum(stop - start for _, start, stop in self.chunks)

    def as_dict(self) -> dict:
        """For JSON."""
        return asdict(self)
