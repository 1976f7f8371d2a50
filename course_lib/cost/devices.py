"""GPUs by their data sheets and models by their config.json: the numbers that a roofline is drawn from.

The vendor's papers are named with each device; they were read as public copies quote them, on 2026-11-30.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A GPU. Data sheets like to print the matmul rate with 2:4 sparsity, which these models do not have: halve it.

    matmul_flops         dense FLOP/s in bf16 (T4: fp16; it has no bf16), a multiply-add being two
    memory_bytes_per_s   peak bandwidth
    memory_bytes         1 GB = 10^9 bytes
    sms                  streaming multiprocessors: tiles of a matrix product that are computed at the same time
    source               where the numbers are from, and what was halved
    """

    name: str
    matmul_flops: int
    memory_bytes_per_s: int
    memory_bytes: int
    sms: int
    source: str


_TERA, _GIGA = 10**12, 10**9
DEVICES = {
    "t4": Device(
        "T4", 65 * _TERA, 300 * _GIGA, 16 * _GIGA, 40,
        "NVIDIA T4 Tensor Core GPU data sheet (951643): 65 TFLOPS fp16, dense (Turing has no sparsity), 300 GB/s "
        "(320 in other places), 16 GB; 2,560 CUDA cores, 64 in an SM.",
    ),
    "l4": Device(
        "L4", 121 * _TERA, 300 * _GIGA, 24 * _GIGA, 58,
        "NVIDIA L4 Tensor Core GPU data sheet (l4-gpu-datasheet): 242 TFLOPS bf16 with sparsity, halved; 300 GB/s, "
        "24 GB; 7,424 CUDA cores, 128 in an SM.",
    ),
    "a100": Device(
        "A100-80GB", 312 * _TERA, 2_039 * _GIGA, 80 * _GIGA, 108,
        "NVIDIA A100 Tensor Core GPU data sheet (2188504, May 2022), 80GB SXM: 312 TFLOPS bf16, dense (624 with "
        "sparsity), 2,039 GB/s. NVIDIA Ampere architecture white paper: 108 SMs.",
    ),
    "h100": Device(
        "H100", 989 * _TERA, 3_350 * _GIGA, 80 * _GIGA, 132,
        "NVIDIA H100 Tensor Core GPU data sheet (24306), SXM: 1,979 TFLOPS bf16 with sparsity, halved; 3.35 TB/s, "
        "80 GB. NVIDIA Hopper architecture white paper: 132 SMs.",
    ),
    "h200": Device(
        "H200", 989 * _TERA, 4_800 * _GIGA, 141 * _GIGA, 132,
        "NVIDIA H200 specifications (nvidia.com/en-us/data-center/h200), SXM: 1,979 TFLOPS bf16 with sparsity, halved; "
        "4.8 TB/s, 141 GB. The H100's processor, so 132 SMs.",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a Llama-shaped model that decide its cost; field names as in ModelConfig. A weight, and an element
    of the KV cache, takes `itemsize` bytes (2 in bf16 and fp16).
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    itemsize: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}, wanted a whole number, at least 1.")

    @classmethod
    def of(cls, model, itemsize: int = 2) -> ModelShape:
        """The sizes of a ModelConfig, or of anything that has its fields."""
        names = [name for name in cls.__dataclass_fields__ if name != "itemsize"]
        return cls(**{name: getattr(model, name) for name in names}, itemsize=itemsize)

    @property
    def gemms(self) -> dict[str, tuple[int, int]]:
        """The matrix products of one layer: name -> (inner, columns) of the weight."""
        heads, kv = self.q_heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (self.hidden_size, heads + 2 * kv),
            "o": (heads, self.hidden_size),
            "gate_up": (self.hidden_size, 2 * self.intermediate_size),
            "down": (self.intermediate_size, self.hidden_size),
        }

    @property
    def layer_weights(self) -> int:
        """Weights that multiply every token: the matrices of all layers."""
        return self.num_layers * sum(inner * columns for inner, columns in self.gemms.values())

    @property
    def head_weights(self) -> int:
        """Weights of lm_head, which multiply only tokens whose logits are wanted."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All weights: layers, lm_head, the embedding (as large, looked up, never multiplied) and the norms."""
        return self.layer_weights + 2 * self.head_weights + (2 * self.num_layers + 1) * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self.itemsize * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V in all layers."""
        return 2 * self.num_layers * self.kv_heads * self.head_dim * self.itemsize

    @property
    def linear_flops_per_token(self) -> int:
        """The usual rule, 2 x parameters (a multiply and an add for each): what papers compare attention with.

        It counts the embedding and lm_head for every token. Without them, 2 x layer_weights, it is 13% less (8B).
        """
        return 2 * self.parameters

    @property
    def attention_flops_per_pair(self) -> int:
        """One query meeting one key: in each layer and q head, head_dim multiply-adds for q.k, as many for p.v."""
        return 4 * self.num_layers * self.q_heads * self.head_dim


MODELS = {
    # config.json of meta-llama/Meta-Llama-3-8B on the Hugging Face Hub (April 2024)
    "8b": ModelShape(
        vocab_size=128_256, hidden_size=4_096, num_layers=32, q_heads=32, kv_heads=8, head_dim=128,
        intermediate_size=14_336,
    ),
    # config.json of meta-llama/Llama-2-7b-hf on the Hugging Face Hub (July 2023)
    "7b": ModelShape(
        vocab_size=32_000, hidden_size=4_096, num_layers=32, q_heads=32, kv_heads=32, head_dim=128,
        intermediate_size=11_008,
    ),
}  # fmt: skip
