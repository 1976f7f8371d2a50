"""Attention of a ragged batch over the paged pool: each request reads its keys through its block table."""

from collections.abc import Sequence

from course_lib.arrays import namespace
from course_lib.attention import ATTEND


def attend_paged(q, pool, layer: int, read_slots: Sequence, starts: Sequence[int], masks: Sequence, backend: str):
    """Attention for several requests' chunks at once.

    q            [tokens, q_heads, head_dim]   the chunks' queries, one chunk after another
    pool         KVPool; this step's keys and values are already written
    read_slots   per chunk: slots of its request's tokens 0 .. stop - 1, in token order
    starts       per chunk: position of its first token
    masks        per chunk: a bool mask [chunk_len, stop], or None for causal
    backend      a name in ATTEND
    returns      [tokens, q_heads, head_dim]

    Reads the tokens before `stop` only: what lies behind them in the last block is never touched.
    """
    if backend not in ATTEND:
        raise ValueError(f"no attention backend {backend!r}; there are {sorted(ATTEND)}.")
    outputs, row = [], 0
    for slots, start, mask in zip(read_slots, starts, masks):
        chunk_len = len(slots) - start
        k, v = pool.gather(layer, slots)
        outputs.append(ATTEND[backend](q[row : row + chunk_len], k, v, start, mask))
        row += chunk_len
    return namespace(q).concatenate(outputs)
