"""What a step takes on a GPU, from first principles: arithmetic against bandwidth, whichever is slower.

    step = fixed
         + max(reading the weights, multiplying them with the tokens)
         + max(attention of the prompt tokens, reading the K and V that earlier chunks left)
         + reading the K and V of every decode's context

    reading the weights    weights of the layers and of lm_head x itemsize / bandwidth, once in a step with any tokens
    multiplying            2 FLOPs x (layer weights x tokens + lm_head weights x rows) / matmul rate; a decode is a
                           token; rows whose logits are computed: one for each decode, one for the prompt
    attention              FLOPs per pair x query-key pairs of the prompt tokens / matmul rate
    reading K and V        bytes per token x tokens read / bandwidth: each chunk reads what lies before it, each
                           decode its whole context (its few FLOPs per byte never matter)

Rates are the data sheet's times a percentage: an assumption, see Roofline. Left out, because small: the embedding
(a lookup), norms, RoPE and activations (9% of the matrix products at 4,096 tokens in the profile that staircase.py
names, for Llama 3 8B on an A100), writing the new K and V, sampling. Network and tokenizer are not in a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from course_lib.cost.devices import Device, ModelShape
from course_lib.cost.staircase import Staircase
from course_lib.cost.work import StepCost, StepWork


class StepParts(NamedTuple):
    """What a step's time is made of, in whole microseconds, each rounded up.

    linear   the matrix products: the larger of weights_read and matmul, or what the staircase says instead
    """

    fixed: int
    weights_read: int
    matmul: int
    linear: int
    attention: int
    chunk_kv_read: int
    decode_kv_read: int

    @property
    def total(self) -> int:
        return self.fixed + self.linear + max(self.attention, self.chunk_kv_read) + self.decode_kv_read


@dataclass(frozen=True, kw_only=True)
class Roofline(StepCost):
    """The cost of a model's steps on a device.

    model               a ModelShape, or anything with the fields of ModelConfig (then in bf16 or fp16)
    fixed_us            scheduling and launches of a step: assumed
    matmul_percent      of the peak rate that matrix products reach. In the profile that staircase.py names, 4,096
                        tokens reach 71% on an A100 and 76% on an H100
    attention_percent   of the peak rate that prefill attention reaches. FlashAttention-2: 50 to 73% on an A100
                        (arXiv 2307.08691, abstract)
    bandwidth_percent   of the peak bandwidth. In the same profile, reading the weights reaches 77% and 80%
    staircase           one of STAIRCASES, for the same device: takes the place of the roofline's two lines

    Raises ValueError for settings that mean nothing, and when the weights do not fit into the device's memory.
    """

    device: Device
    model: ModelShape
    fixed_us: int = 1_000
    matmul_percent: int = 70
    attention_percent: int = 50
    bandwidth_percent: int = 80
    staircase: Staircase | None = None

    def __post_init__(self) -> None:
        if type(self.fixed_us) is not int or self.fixed_us < 0:
            raise ValueError(f"fixed_us={self.fixed_us!r}, wanted whole microseconds, 0 or more.")
        for name in ("matmul_percent", "attention_percent", "bandwidth_percent"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 100:
                raise ValueError(f"{name}={value!r}, wanted a whole number from 1 to 100.")
        if self.staircase is not None and self.staircase.device != self.device:
            raise ValueError(f"a staircase of {self.staircase.device.name} says nothing of {self.device.name}.")
        shape = self.model if isinstance(self.model, ModelShape) else ModelShape.of(self.model)
        object.__setattr__(self, "model", shape)
        if shape.weight_bytes >= self.device.memory_bytes:
            raise ValueError(
                f"the weights are {shape.weight_bytes / 1e9:.2f} GB, and a {self.device.name} has "
                f"{self.device.memory_bytes / 1e9:.0f} GB: take a smaller model or a larger device."
            )

    def parts(self, work: StepWork) -> StepParts:
        """What a step's time is made of. Raises ValueError for a step without tokens."""
        tokens, shape = work.prefill_tokens + work.decodes, self.model
        if tokens < 1:
            raise ValueError(f"{work} is not a step: give it some work.")
        rows = work.decodes + (work.prefill_tokens > 0)
        weights_read = self._read_us(shape.itemsize * (shape.layer_weights + shape.head_weights))
        matmul = self._compute_us(2 * (shape.layer_weights * tokens + shape.head_weights * rows), self.matmul_percent)
        return StepParts(
            fixed=self.fixed_us,
            weights_read=weights_read,
            matmul=matmul,
            linear=_stairs_us(self.staircase, shape, tokens, rows) if self.staircase else max(weights_read, matmul),
            attention=self._compute_us(shape.attention_flops_per_pair * work.prefill_pairs, self.attention_percent),
            chunk_kv_read=self._read_us(shape.kv_bytes_per_token * work.prefill_cached),
            decode_kv_read=self._read_us(shape.kv_bytes_per_token * work.decode_context),
        )

    def work_us(self, work: StepWork) -> int:
        return self.parts(work).total

    def decode_run_us(self, decodes: int, context: int, steps: int) -> list[int]:
        same = self.work_us(StepWork(decodes=decodes))
        per_token = self.model.kv_bytes_per_token
        return [same + self._read_us(per_token * (context + i * decodes)) for i in range(steps)]

    def _compute_us(self, flops: int, percent: int) -> int:
        return -(-flops * 10**8 // (self.device.matmul_flops * percent))

    def _read_us(self, num_bytes: int) -> int:
        return -(-num_bytes * 10**8 // (self.device.memory_bytes_per_s * self.bandwidth_percent))


@lru_cache(maxsize=4096)  # steps of equal size come again and again, and this is the slow part of their price
def _stairs_us(stairs: Staircase, shape: ModelShape, tokens: int, rows: int) -> int:
    """Microseconds of all layers' matrix products for so many tokens, and of lm_head's for so many rows."""
    layer = sum(stairs.gemm_ns(tokens, *gemm, shape.itemsize) for gemm in shape.gemms.values())
    head = stairs.gemm_ns(rows, shape.hidden_size, shape.vocab_size, shape.itemsize)
    return -(-(shape.num_layers * layer + head) // 1000)
