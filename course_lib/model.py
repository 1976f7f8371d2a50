"""A Llama-shaped language model over a paged KV cache: RMSNorm, RoPE, grouped-query attention, SwiGLU.

`forward` takes a ragged batch: chunks of any length from any number of requests; a decode is a chunk of
one. It knows no prefill phase and keeps no state: the keys and values of earlier tokens are in the pool.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from course_lib.arithmetic import Arithmetic, arithmetic
from course_lib.arithmetic.arrays import empty, like, namespace, zeros
from course_lib.arithmetic.exact import MAX_KEYS
from course_lib.arithmetic.selftest import check_matmul
from course_lib.attention import ATTEND
from course_lib.cache.pool import KVPool
from course_lib.model_config import ModelConfig
from course_lib.positions import MAX_ANGLE, RopeTable, positions, rotate


@dataclass(frozen=True)
class ChunkInput:
    """One request's part of a forward: its tokens [start, start + len(token_ids)), and where its KV lives."""

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    cached: int = 0  # of `start`, how many tokens came from the prefix cache
    wants_logits: bool = False  # of its last token: true when the chunk ends at the request's newest token


@dataclass(frozen=True)
class Wiring:
    """Replaceable parts of a forward: the places where chunked prefill can go wrong. None means the library's own
    function; a learner's function, or a known fault, takes its place.

    mask(chunk_len, cached_len)        bool [chunk_len, cached_len + chunk_len]
    positions(cached, computed, take)  int [take], given to RoPE for q and k
    key_positions(...)                 the same, for k alone
    write_slots(slots, start)          the slots in which the new tokens are stored, instead of `slots[start:]`
    read_slots(slots, cached)          the slots that attention reads instead of `slots`

    `slots` are those of the request's tokens 0, 1, ... in order. Slot 0 is free for writes that must go nowhere:
    block 0 (the null block, as in vLLM) is in no block table. The mask decides what attention reads, and never where
    K and V are written; where it is None, each kernel applies the causal rule of attention.mask by itself.
    """

    mask: Callable | None = None
    positions: Callable | None = None
    key_positions: Callable | None = None
    write_slots: Callable | None = None
    read_slots: Callable | None = None


DEFAULT_WIRING = Wiring()


class Model:
    """Weights in one arithmetic, on one device. `weights`: see weights.build.expected_shapes; [inner, columns] each."""

    def __init__(self, config: ModelConfig, weights: dict, arith: str = "tile", sha256: str = ""):
        self.config, self.sha256 = config, sha256
        self.arith: Arithmetic = arithmetic(arith)
        self._weights = weights
        self.embedding = weights["embedding"]
        self.final_norm = weights["final_norm"]
        head = self.embedding.T if config.tie_word_embeddings else weights["lm_head"]
        self.lm_head = self.arith.prepare(head)
        self.layers = []
        for layer in weights["layers"]:
            matrices = {name: self.arith.prepare(w) for name, w in layer.items() if w.ndim == 2}
            self.layers.append({**layer, **matrices})
        for name in ("qkv", "o", "gate_up", "down") if arith == "tile" else ():
            for problem in check_matmul(self.layers[0][name]):
                warnings.warn(f"tile arithmetic is not bit-identical here. {problem}", stacklevel=2)
        self._rope = RopeTable(config.head_dim, config.rope_theta, self.embedding, config.rope_scaling)

    @property
    def max_model_len(self) -> int:
        """Tokens of one request at most: what the model was made for, and its arithmetic and the RoPE table cover."""
        covered = MAX_KEYS if self.arith.name == "exact" else int(MAX_ANGLE)
        return min(covered, self.config.max_position_embeddings or covered)

    @property
    def why_no_longer(self) -> str:
        """Where max_model_len comes from, in a sentence."""
        if self.max_model_len == self.config.max_position_embeddings:
            return f"the model was made for {self.max_model_len} tokens (max_position_embeddings in its config.json)."
        return f"the model, in {self.arith.name} arithmetic, attends over {self.max_model_len} tokens at most."

    def with_arithmetic(self, name: str) -> "Model":
        """The same weights in another arithmetic."""
        return Model(self.config, self._weights, name, sha256=self.sha256)

    def new_pool(self, num_blocks: int, block_size: int, fill: float = np.nan) -> KVPool:
        """An empty pool of this model's dtype, on its device."""
        c = self.config
        return KVPool(
            lambda shape: empty(self.embedding, shape),
            c.num_layers, num_blocks, block_size, c.kv_heads, c.head_dim, fill,
        )  # fmt: skip

    def forward(self, chunks: Sequence[ChunkInput], pool: KVPool, wiring: Wiring = DEFAULT_WIRING):
        """Compute the chunks' tokens. In each layer their K and V are written to the pool before attention reads it.

        returns   logits [chunks that want them, vocab_size] of each such chunk's last token, in batch order

        Raises ValueError before the pool changes when a slot, a mask or a position is not usable.
        """
        batch = _Batch(chunks, pool, wiring)
        ids = np.concatenate([np.asarray(chunk.token_ids, dtype=np.int64) for chunk in chunks])
        if not 0 <= ids.min() <= ids.max() < self.config.vocab_size:
            raise ValueError(
                f"token ids reach {ids.min()} .. {ids.max()}; the vocabulary is 0 .. {self.config.vocab_size - 1}."
            )

        def attend(layer: int, q, k, v):
            pool.write(layer, batch.write_slots, k, v)
            return attend_paged(q, pool, layer, batch.read_slots, batch.starts, batch.masks, self.arith)

        x = self.embedding[like(self.embedding, ids)]
        rotate_by = (batch.q_positions, batch.key_positions)
        return self.run_layers(x, batch.positions, attend, batch.last_rows, rotate_by)

    def run_layers(self, x, positions: np.ndarray, attend: Callable, last_rows: np.ndarray, rotate_by=None):
        """From embeddings to logits: every layer, then the head.

        x           [tokens, hidden_size], the tokens' rows of `embedding`
        positions   [tokens] int64, the place of each token in its request
        attend      attend(layer, q, k, v), which stores k and v of this layer and reads them; see `layer`
        last_rows   [n] int64, the rows of x whose logits are wanted
        rotate_by   the positions that RoPE is given, for queries and for keys; `positions` for both if left out
        returns     logits [n, vocab_size]
        """
        rotations = [self._rope(p) for p in rotate_by or (positions, positions)]
        for number, w in enumerate(self.layers):
            x = self.layer(w, x, positions, rotations, partial(attend, number))
        if not len(last_rows):
            return zeros(x, (0, self.config.vocab_size))

        x, positions = x[like(x, last_rows)], positions[last_rows]
        return self.arith.matmul(self._norm(x, self.final_norm, positions), self.lm_head, positions)

    def layer(self, w: dict, x, positions: np.ndarray, rotations: Sequence, attend: Callable):
        """One transformer layer: attention, then the MLP; each reads a norm of x and adds its result to x.

        w           the layer's weights, one of `layers`
        x           [tokens, hidden_size]
        positions   [tokens] int64
        rotations   (cos, sin) for the queries and (cos, sin) for the keys, as RopeTable gives them
        attend      attend(q, k, v) stores k and v, and returns what each query reads: [tokens, q_heads, head_dim].
                    q is [tokens, q_heads, head_dim], k and v are [tokens, kv_heads, head_dim]
        returns     [tokens, hidden_size]
        """
        c, matmul = self.config, self.arith.matmul
        q_end, k_end = c.q_heads * c.head_dim, (c.q_heads + c.kv_heads) * c.head_dim
        qkv = matmul(self._norm(x, w["attention_norm"], positions), w["qkv"], positions)
        if c.qkv_bias:
            qkv = qkv + w["qkv_bias"]
        q = qkv[:, :q_end].reshape(-1, c.q_heads, c.head_dim)
        k = qkv[:, q_end:k_end].reshape(-1, c.kv_heads, c.head_dim)
        v = qkv[:, k_end:].reshape(-1, c.kv_heads, c.head_dim)
        if c.qk_norm:
            q, k = self._norm(q, w["q_norm"], positions), self._norm(k, w["k_norm"], positions)
        q, k = rotate(q, *rotations[0]), rotate(k, *rotations[1])
        x = x + matmul(attend(q, k, v).reshape(len(x), q_end), w["o"], positions)
        both = matmul(self._norm(x, w["mlp_norm"], positions), w["gate_up"], positions)
        gate, up = both[:, : c.intermediate_size], both[:, c.intermediate_size :]
        return x + matmul(self.arith.silu_mul(gate, up, positions), w["down"], positions)

    def _norm(self, x, gain, positions: np.ndarray):
        return self.arith.rms_norm(x, gain, self.config.rms_norm_eps, positions)


def attend_paged(q, pool, layer: int, read_slots: Sequence, starts: Sequence[int], masks: Sequence, arith: Arithmetic):
    """Attention for several requests' chunks at once.

    q            [tokens, q_heads, head_dim]   the chunks' queries, one chunk after another
    pool         KVPool; this step's keys and values are already written
    read_slots   per chunk: slots of its request's tokens 0 .. stop - 1, in token order
    starts       per chunk: position of its first token
    masks        per chunk: a bool mask [chunk_len, stop], or None for causal
    arith        the arithmetic; its name is a key of ATTEND
    returns      [tokens, q_heads, head_dim]

    Reads the tokens before `stop` only: the rest of the last block is never touched.
    """
    attend = partial(ATTEND[arith.name], **({"rows": arith.rows} if arith.rows else {}))
    outputs, row = [], 0
    for slots, start, mask in zip(read_slots, starts, masks):
        chunk_len = len(slots) - start
        k, v = pool.gather(layer, slots)
        outputs.append(attend(q[row : row + chunk_len], k, v, start, mask))
        row += chunk_len
    return namespace(q).concatenate(outputs)


class _Batch:
    """What a forward needs to know of its chunks, in integers, checked before anything is written."""

    def __init__(self, chunks: Sequence[ChunkInput], pool: KVPool, wiring: Wiring):
        if not chunks:
            raise ValueError("a forward needs at least one chunk.")
        token_positions, q_positions, key_positions, write_slots, last_rows = [], [], [], [], []
        self.starts, self.masks, self.read_slots = [], [], []
        for chunk in chunks:
            take, stop = len(chunk.token_ids), chunk.start + len(chunk.token_ids)
            if take < 1 or not 0 <= chunk.cached <= chunk.start:
                raise ValueError(
                    f"a chunk has {take} tokens from {chunk.start} on, {chunk.cached} before it from the cache; "
                    f"wanted at least 1 token, and 0 to {chunk.start} from the cache."
                )
            slots = pool.slots(chunk.block_table, 0, stop)
            call = (chunk.cached, chunk.start - chunk.cached, take)
            token_positions.append(np.arange(chunk.start, stop))
            q_positions.append(_positions(wiring.positions or positions, call))
            key_positions.append(_positions(wiring.key_positions or wiring.positions or positions, call))
            new = slots[chunk.start :]
            write_slots.append(new if wiring.write_slots is None else wiring.write_slots(slots, chunk.start))
            self.read_slots.append(slots if wiring.read_slots is None else wiring.read_slots(slots, chunk.cached))
            self.starts.append(chunk.start)
            self.masks.append(None if wiring.mask is None else _mask(wiring.mask, take, chunk.start))
            if chunk.wants_logits:
                last_rows.append(sum(map(len, token_positions)) - 1)
        self.positions = np.concatenate(token_positions)
        self.q_positions, self.key_positions = np.concatenate(q_positions), np.concatenate(key_positions)
        self.write_slots = pool.check(np.concatenate(write_slots))
        self.last_rows = np.array(last_rows, dtype=np.int64)


def _mask(function, chunk_len: int, cached_len: int) -> np.ndarray:
    mask = np.array(function(chunk_len, cached_len))
    want = (chunk_len, cached_len + chunk_len)
    if mask.shape != want:
        raise ValueError(f"the mask has shape {mask.shape}, expected {want}: a row per new token, a column per key.")
    if mask.dtype != bool:
        raise ValueError(f"the mask has dtype {mask.dtype}, expected bool: True where a query sees a key.")
    if not mask.any(axis=1).all():
        row = int(np.argmin(mask.any(axis=1)))
        raise ValueError(f"row {row} of mask({chunk_len}, {cached_len}) sees no key. A token always sees itself.")
    return mask


def _positions(function, call: tuple[int, int, int]) -> np.ndarray:
    positions = np.asarray(function(*call))
    if positions.shape != (call[2],) or positions.dtype.kind not in "iu":
        got = f"shape {positions.shape} and dtype {positions.dtype}"
        raise ValueError(f"positions{call} has {got}, expected ({call[2]},) integers: one for each new token.")
    return positions.astype(np.int64)
