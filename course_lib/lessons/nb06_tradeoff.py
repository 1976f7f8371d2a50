"""What notebook 06 builds: a sweep of chunk sizes, percentiles of waits, the knee, and a roofline of a single step.

Everything is modelled, in microseconds. The library's own, larger versions are cost.linear, cost.metrics and
cost.roofline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.cost.devices import Device, ModelShape
from course_lib.cost.linear import LinearCost


def itl(gaps: Sequence[int]) -> tuple[int, int, int]:
    """P50, P99 and the longest of some waits. Each is one of the waits: nearest rank, no interpolation.

    P99 is the smallest of the gaps that at least 99 in a hundred of them do not exceed; P50 likewise.

    gaps      times between one token and the next, in whole us, in any order; at least one. They stay as they are
    returns   (p50, p99, longest), whole numbers as well
    """
    ordered = sorted(gaps)
    p50, p99 = (ordered[-(-percent * len(ordered) // 100) - 1] for percent in (50, 99))
    return p50, p99, ordered[-1]


def sweep(chunks: Sequence[int], prompt: int, users: int, m: LinearCost) -> list[tuple[int, int, int, int, int]]:
    """What each chunk size gives and takes, for one prompt among streaming users.

    Each step computes `chunk` tokens of the prompt, the last step what is left, and decodes one token for every user.

    chunks    chunk sizes, in any order; a size may come twice. They stay as they are
    prompt    tokens in the prompt
    users     streaming users, at least 1
    m         what a step costs: m.step_us(prompt_tokens, decodes)
    returns   a new list with a row for each chunk size, in the order given, of whole numbers:
              (chunk, steps, ttft_us, worst_gap_us, prefill_tok_per_s)

    ttft_us              from the start of the prompt's first step to its first token, at the end of its last
    worst_gap_us         longest time from one token of a streaming user to the next
    prefill_tok_per_s    prompt tokens per second of that time, rounded down
    """
    rows = []
    for chunk in chunks:
        steps = [m.step_us(min(chunk, prompt - start), users) for start in range(0, prompt, chunk)]
        ttft = sum(steps)
        rows.append((chunk, len(steps), ttft, max(steps), prompt * 1_000_000 // ttft))
    return rows


def pick_chunk(target_us: int, users: int, m: LinearCost) -> int:
    """The largest chunk whose step, with a decode for each user in it, takes at most target_us; 0 if none does.

    target_us   the longest step that is allowed, in us
    users       streaming users, at least 1
    m           the cost: m.fixed_us, m.prefill_us_per_token (at least 1) and m.decode_us, whole microseconds each
    """
    left = target_us - m.fixed_us - m.decode_us * users
    return max(left // m.prefill_us_per_token, 0)


@dataclass(frozen=True)
class Hardware:
    """A GPU with a model on it, in five whole numbers; rates are per microsecond.

    weight_bytes         read from memory once in each step, whatever is in it
    flops_per_token      arithmetic of the matrix products for one token: a multiply and an add for each weight
    kv_bytes_per_token   K and V of one token, in all layers
    bytes_per_us         what memory delivers
    flops_per_us         what the processor computes
    """

    weight_bytes: int
    flops_per_token: int
    kv_bytes_per_token: int
    bytes_per_us: int
    flops_per_us: int

    @classmethod
    def of(
        cls, device: Device, model: ModelShape, *, bandwidth_percent: int = 80, matmul_percent: int = 70
    ) -> Hardware:
        """The numbers of a data sheet, times the share of them that is assumed to be reached (see cost.roofline).

        lm_head is among the weights that are read; its arithmetic is left out, since it is for a few tokens only.
        """
        return cls(
            weight_bytes=model.itemsize * (model.layer_weights + model.head_weights),
            flops_per_token=2 * model.layer_weights,
            kv_bytes_per_token=model.kv_bytes_per_token,
            bytes_per_us=device.memory_bytes_per_s * bandwidth_percent // 10**8,
            flops_per_us=device.matmul_flops * matmul_percent // 10**8,
        )


def roofline(prefill: int, decodes: int, context: int, hw: Hardware) -> float:
    """How long one step takes on a GPU, in microseconds, from bytes and arithmetic alone.

    The matrix products read every weight once and do their arithmetic for every token of the step, a decode being one
    token. Reading and arithmetic run at the same time, so the slower one counts. After that each decode reads the K
    and V of its context, which takes more time.

    prefill   prompt tokens in the step, 0 or more
    decodes   users who get one token each, 0 or more
    context   tokens whose K and V each decode reads
    hw        hw.weight_bytes, hw.flops_per_token, hw.kv_bytes_per_token, hw.bytes_per_us, hw.flops_per_us
    """
    read = hw.weight_bytes / hw.bytes_per_us
    multiply = hw.flops_per_token * (prefill + decodes) / hw.flops_per_us
    kv_read = hw.kv_bytes_per_token * decodes * context / hw.bytes_per_us
    return max(read, multiply) + kv_read
