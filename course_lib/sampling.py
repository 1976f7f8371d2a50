"""The next token from logits: greedy, or drawn with a seed. It keeps no state that an earlier chunk could change."""

import hashlib

import numpy as np


def sample(logits: np.ndarray, *, temperature: float = 0.0, seed: int = 0, index: int = 0) -> int:
    """The token that follows.

    logits        [vocab_size], finite
    temperature   0: the token with the largest logit, the first of equal ones; above 0: drawn from
                  softmax(logits / temperature)
    seed, index   the draw for the token at `index` of its request depends on nothing else: not on how often or in
                  what order sample was called, so neither chunks nor a preemption change what is drawn

    Raises ValueError for a negative temperature, or logits that are not finite.
    """
    logits = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(logits).all():
        raise ValueError("the logits are not all finite: no token can be sampled. Was an unwritten slot read?")
    if not 0 <= temperature < np.inf:
        raise ValueError(f"temperature={temperature}; give 0 for greedy, or a positive number.")
    if temperature == 0:
        return int(np.argmax(logits))
    weights = np.exp((logits - logits.max()) / temperature)
    edges = np.cumsum(weights)
    return int(np.searchsorted(edges, uniform(seed, index) * edges[-1], side="right").clip(0, len(logits) - 1))


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1), the same for (seed, index) on every machine: 53 bits of SHA-256."""
    digest = hashlib.sha256(f"{seed},{index}".encode()).digest()
    return int.from_bytes(digest[:7], "big") % 2**53 / 2**53
