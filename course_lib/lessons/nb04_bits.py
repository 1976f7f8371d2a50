"""Bits that do not depend on the cut: how to compare them, and two small kernels that keep them (torch).

What notebook 04 builds. The engine's own are arithmetic/tile.py and attention/tiled.py: the same idea for many
heads and requests, for NumPy and torch.
"""

import math


def bit_report(a, b) -> tuple[int, int, int, int]:
    """Compare two tensors bit by bit.

    a, b      tensors of one shape, both float32 or both bfloat16; they stay as they are
    returns   four whole numbers:
              how many elements differ; +0 and -0 count as equal, and so do two NaNs
              the largest distance in ulps among them; an element that is NaN on one side has none,
              and infinity is one ulp beyond the largest finite number
              the index of the first that differs, counted as in a.flatten(); -1 if none does
              how many are NaN on one side only
    """
    import torch

    a, b = a.flatten(), b.flatten()
    one_nan = a.isnan() != b.isnan()
    differs = (a != b) & ~(a.isnan() & b.isnan())

    def place(x):
        """Where x stands among all numbers of its format, in order: an int64, 0 for both zeros."""
        bits = x.view(torch.int32 if x.element_size() == 4 else torch.int16).long()
        lowest = -(2 ** (8 * x.element_size() - 1))  # the sign bit alone: -0
        return torch.where(bits < 0, lowest - bits, bits)

    distances = (place(a) - place(b)).abs()[differs & ~one_nan]
    first = differs.nonzero()
    return (
        int(differs.sum()),
        int(distances.max()) if len(distances) else 0,
        int(first[0]) if len(first) else -1,
        int(one_nan.sum()),
    )


def tiled_linear(x, w, start: int, tile: int = 16):
    """x @ w for the rows of a chunk; a row's bits do not depend on where the prompt was cut.

    x         [rows, inner] tensor; row 0 is the token at position `start`
    w         [inner, columns] tensor of x's dtype
    tile      rows of every product; the token at position p sits in slot p % tile, and slots without one are 0
    returns   [rows, columns], a new tensor of x's dtype; x and w stay as they are

    Multiplies with torch: the check sees no product of NumPy's.
    """
    before = start % tile
    tiles = -(-(before + len(x)) // tile)
    padded = x.new_zeros(tiles * tile, x.shape[1])
    padded[before : before + len(x)] = x
    out = x.new_empty(tiles * tile, w.shape[1])
    for first in range(0, tiles * tile, tile):
        out[first : first + tile] = padded[first : first + tile] @ w
    return out[before : before + len(x)]


def block_attention(q, k, v, start: int, block: int = 64):
    """Causal attention of one head over blocks of keys; a query's bits do not depend on the cut.

    A score is q @ k / sqrt(head_dim); the result is the mean of the values, weighted by e to the power of the scores.

    q         [rows, head_dim] tensor; row 0 is the query at position `start`
    k, v      [start + rows, head_dim] tensors, from position 0 on
    block     keys in a block, and queries in a tile; both are counted from position 0
    returns   [rows, head_dim], a new tensor of q's dtype; q, k and v stay as they are

    Computes in float32, with torch, and rounds to q's dtype once, at the end.
    """
    stop = start + len(q)
    first, last = start // block * block, -(-stop // block) * block
    queries = q.new_zeros(last - first, q.shape[1]).float()
    queries[start - first : stop - first] = q.float() / math.sqrt(q.shape[1])
    keys, values = queries.new_zeros(2, last, q.shape[1])
    keys[:stop], values[:stop] = k, v
    ahead = queries.new_ones(block, block).triu(1).bool()  # in the block on the diagonal: keys behind the query

    out = queries.new_empty(queries.shape)
    for tile in range(first, last, block):
        rows = slice(tile - first, tile - first + block)
        largest = queries.new_full((block, 1), -math.inf)
        total, mixed = queries.new_zeros(block, 1), queries.new_zeros(block, q.shape[1])
        for b in range(0, tile + block, block):
            scores = queries[rows] @ keys[b : b + block].T
            if b == tile:
                scores = scores.masked_fill(ahead, -math.inf)
            higher = largest.maximum(scores.amax(1, keepdim=True))
            shrink = (largest - higher).exp()  # what is summed so far was relative to `largest`
            weights = (scores - higher).exp()
            total = total * shrink + weights.sum(1, keepdim=True)
            mixed = mixed * shrink + weights @ values[b : b + block]
            largest = higher
        out[rows] = mixed / total
    return out[start - first : stop - first].to(q.dtype)
