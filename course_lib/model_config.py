"""The sizes of a model."""

import math
from dataclasses import dataclass

from course_lib.positions import Llama3Scaling


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a Llama-shaped model, and the options of its relatives; the comments give Hugging Face's name where it
    differs, or who has it.
    """

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
    qkv_bias: bool = False  # Qwen2 and Qwen2.5
    qk_norm: bool = False  # Qwen3: RMSNorm of each head's query and key
    rope_scaling: Llama3Scaling | None = None  # Llama 3.1 and 3.2
    max_position_embeddings: int | None = None  # the longest request that the model was made for; None: not said

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
        if self.max_position_embeddings is not None and self.max_position_embeddings < 1:
            raise ValueError(f"max_position_embeddings={self.max_position_embeddings}; it must be at least 1.")
        if s := self.rope_scaling:
            if not 1 <= s.factor < math.inf or not 0 < s.low_freq_factor < s.high_freq_factor < math.inf:
                raise ValueError(f"{s}; wanted factor >= 1 and 0 < low_freq_factor < high_freq_factor.")
            if s.original < 1:
                raise ValueError(f"{s}; original_max_position_embeddings must be at least 1.")
