"""The paged KV cache: one pool of slots for every request, reached through block tables.

A block is `block_size` slots in a row; a slot holds the key and the value of one token in every layer.
A request's block table lists its blocks in token order, so token p lives in slot
block_table[p // block_size] * block_size + p % block_size.
"""

from collections.abc import Sequence

import numpy as np

from course_lib.arithmetic.arrays import like


class KVPool:
    """Keys and values of all layers: k, v [layers, slots, kv_heads, head_dim].

    `fill` is what unwritten slots hold; NaN by default, so that reading one is seen.
    Empty arrays come from `empty`, a function (shape) -> array of the model's library, dtype and device.
    """

    def __init__(self, empty, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int, fill=np.nan):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks={num_blocks}, block_size={block_size}; both must be at least 1.")
        self.block_size, self.num_blocks = block_size, num_blocks
        self.k = empty((layers, num_blocks * block_size, kv_heads, head_dim))
        self.v = empty((layers, num_blocks * block_size, kv_heads, head_dim))
        self.k[...], self.v[...] = fill, fill

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    def slots(self, block_table: Sequence[int], start: int, stop: int) -> np.ndarray:
        """Slots of tokens start .. stop - 1 of the request that owns `block_table`: [stop - start] int64.

        Raises ValueError when the table is too short, or names a block that the pool does not have.
        """
        table = np.asarray(block_table, dtype=np.int64)
        if not 0 <= start <= stop <= len(table) * self.block_size:
            room = f"{len(table)} blocks of {self.block_size} = {len(table) * self.block_size} tokens"
            raise ValueError(f"tokens [{start}, {stop}) do not fit a block table of {room}. Allocate blocks first.")
        if table.size and not (0 <= table.min() and table.max() < self.num_blocks):
            raise ValueError(f"block table {table.tolist()} leaves the pool's blocks 0 .. {self.num_blocks - 1}.")
        token = np.arange(start, stop)
        return table[token // self.block_size] * self.block_size + token % self.block_size

    def check(self, slots: np.ndarray) -> np.ndarray:
        """`slots` if each exists and none repeats; ValueError otherwise. `write` relies on it."""
        slots = self._inside(slots)
        values, counts = np.unique(slots, return_counts=True)
        if (counts > 1).any():
            raise ValueError(f"slot {values[counts > 1][0]} would be written twice in one step: two tokens share it.")
        return slots

    def _inside(self, slots: np.ndarray) -> np.ndarray:
        """`slots` as [tokens] int64 if each exists: an index of -1 would quietly mean the last slot."""
        slots = np.asarray(slots)
        if slots.ndim != 1 or (slots.size and slots.dtype.kind not in "iu"):
            got = f"shape {slots.shape} and dtype {slots.dtype}"
            raise ValueError(f"slots have {got}, expected one dimension of integers.")
        if slots.size and not (0 <= slots.min() and slots.max() < self.num_slots):
            bad = slots[(slots < 0) | (slots >= self.num_slots)][0]
            raise ValueError(f"slot {bad} is not in the pool (0 .. {self.num_slots - 1}): check the block table.")
        return slots.astype(np.int64)

    def write(self, layer: int, slots: np.ndarray, k, v) -> None:
        """Store keys and values of this step's tokens in the slots reserved for them, in place.

        slots   [tokens] int64
        k, v    [tokens, kv_heads, head_dim], keys already rotated

        Refuses a wrong shape, a slot outside the pool and a repeated slot before it writes anything.
        """
        slots = self.check(slots)
        want = (len(slots), *self.k.shape[2:])
        for name, x in (("k", k), ("v", v)):
            if tuple(x.shape) != want:
                raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {want}: one row for each reserved slot.")
        index = like(self.k, slots)
        self.k[layer, index] = k
        self.v[layer, index] = v

    def gather(self, layer: int, slots: np.ndarray):
        """Keys and values in `slots`, in that order: two arrays [len(slots), kv_heads, head_dim], copies.

        Raises ValueError for a slot outside the pool.
        """
        index = like(self.k, self._inside(slots))
        return self.k[layer, index], self.v[layer, index]

    def copy_block(self, source: int, target: int) -> None:
        """Copy every layer's keys and values of one block over another (copy on write)."""
        if not (0 <= source < self.num_blocks and 0 <= target < self.num_blocks):
            raise ValueError(f"cannot copy block {source} to {target}: the pool has blocks 0 .. {self.num_blocks - 1}.")
        for x in (self.k, self.v):
            a, b = source * self.block_size, target * self.block_size
            x[:, b : b + self.block_size] = x[:, a : a + self.block_size]

    def kv_in(self, slots: np.ndarray):
        """Keys and values of every layer in `slots`, in that order: k, v [layers, len(slots), kv_heads, head_dim]."""
        index = like(self.k, self._inside(slots))
        return self.k[:, index], self.v[:, index]
