"""What notebook 03 builds beside positions.py: a test that tells right prefills from wrong ones."""

import numpy as np


def check_positions(prefill_fn, reference):
    """Raise AssertionError if prefill_fn does not return what one correct pass returns.

    prefill_fn(token_ids, sizes, hit)   to be tested; returns k, v, logits
    reference(token_ids)                one correct pass; returns k, v, logits

    k, v      [layers, tokens, kv_heads, head_dim]   float32
    logits    [vocab_size] of the last token         float32

    Both return new arrays on each call, always of these shapes: a wrong prefill differs in numbers only, in some cases
    in the last bit of a single one.
    """
    token_ids = [(7 * i * i + 3 * i) % 128 for i in range(40)]
    wanted = reference(token_ids)
    for sizes, hit in [([5, 20, 15], 0), ([3, 19], 18)]:
        for name, got, want in zip(("k", "v", "logits"), prefill_fn(token_ids, sizes, hit), wanted):
            assert np.array_equal(got, want), f"{name} differs for chunks {sizes} after a hit of {hit}"
