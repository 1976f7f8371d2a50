"""The sizes of a model."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a Llama-shaped model; the comments give Hugging Face's name where it differs."""

    vocab_size: int
    hidden_size: int
    num_layers: int  # num_hidden_layers
    q_heads: int  # num_attention_heads
    kv_heads: int  # num_key_value_heads
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "q_heads", "kv_heads", "head_dim", "intermediate_size")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least 1.")
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads={self.q_heads} is not a multiple of kv_heads={self.kv_heads}.")
        if not 0 <= self.rms_norm_eps < 1:
            raise ValueError(f"rms_norm_eps={self.rms_norm_eps}; it must be at least 0 and small, such as 1e-5.")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd, but RoPE turns pairs.")
        if not 1 <= self.rope_theta < math.inf:
            raise ValueError(f"rope_theta={self.rope_theta}; it must be a finite number of at least 1.")
