"""Known mistakes of exercise 4.3: attention that is wrong, or right and not the same in every cut."""

from __future__ import annotations

from autograder.exercises.nb04_kernels import ALIKE

ROUNDING = (
    "Every product needs a shape that depends on the query's position alone: query rows in full tiles, keys in "
    "full blocks, both counted from position 0, with zeros where no token is."
)

# An online softmax with the cuts of queries and keys left open, (first, stop) of each. Masks go by positions.
_CUT = """\
stop, scale = start + len(q), math.sqrt(q.shape[1])
keys, values = (torch.cat([x, x.new_zeros(block, x.shape[1])]).float() for x in (k, v))
out = []
for a, z in {queries}:
    rows = q[a - start : z - start].float() / scale
    largest, total, mixed = torch.full((z - a, 1), -math.inf), 0, 0
    for b, e in {keys}:
        ahead = torch.arange(b, e)[None, :] > torch.arange(a, z)[:, None]
        scores = (rows @ keys[b:e].T).masked_fill(ahead, -math.inf)
        higher = torch.maximum(largest, scores.amax(1, keepdim=True))
        shrink, weights = torch.exp(largest - higher), torch.exp(scores - higher)
        total = total * shrink + weights.sum(1, keepdim=True)
        mixed = mixed * shrink + weights @ values[b:e]
        largest = higher
    out.append(mixed / total)
return torch.cat(out).to(q.dtype)"""
# Queries: all of the chunk at once, or cut where a block ends.
_ALL = "[(start, stop)]"
_ALIGNED = "zip((e := [start, *range((start // block + 1) * block, stop, block), stop]), e[1:])"
# Keys: blocks from position 0, full or up to the last key; blocks that start anew with the chunk; cached and own.
_FULL = "((b, b + block) for b in range(0, stop, block))"
_SHORT = "((b, min(b + block, stop)) for b in range(0, z, block))"
_ANEW = "zip((f := [*range(0, start, block), *range(start, stop, block), stop]), f[1:])"
_SEAM = "zip((f := sorted({0, start, stop})), f[1:])"


def _cut(queries: str, keys: str) -> str:
    """The lines of code of one way to cut, as they stand in MISTAKES."""
    return "\n      ".join(f"| {line}" for line in _CUT.format(queries=queries, keys=keys).splitlines())


MISTAKES = f"""
    no_scale
      q.float() / math.sqrt(q.shape[1])  ->  q.float()
    The scores are not divided by sqrt(head_dim): the softmax is too sharp.

    no_rescaling
      (largest - higher).exp()  ->  1
    The running maximum is right, but what was summed before it rose is not shrunk: old weights count too much. Multiply
    the sums so far by exp(old maximum - new maximum).

    largest_begins_at_0
      queries.new_full((block, 1), -math.inf)  ->  queries.new_zeros(block, 1)
    The running maximum begins at 0. Where all scores are far below 0, e to the power of each is 0, and 0 / 0 is NaN.
    Begin with minus infinity.
    alike: {ALIKE}

    maximum_over_hidden
      if b == tile:  ->  top = scores.amax(1, keepdim=True)\\nif b == tile:
      largest.maximum(scores.amax(1, keepdim=True))  ->  largest.maximum(top)
    The maximum is taken over hidden keys too, the zeros that fill up the block among them. Their number depends on the
    cut, and where all scores are far below 0 it leaves no weight at all. Hide first, then take the maximum.
    alike: {ALIKE}

    weights_in_bfloat16
      weights @ values[b : b + block]  ->  weights.to(q.dtype).float() @ values[b : b + block]
    The weights are rounded to q's dtype before they are multiplied with the values. Compute all of it in float32, and
    round once, at the end.
    alike: {ALIKE}

    scores_in_bfloat16
      if b == tile:  ->  scores = scores.to(q.dtype).float()\\nif b == tile:
    The scores are rounded to q's dtype before the softmax. Compute all of it in float32, and round once, at the end.
    alike: {ALIKE}

    sums_in_bfloat16
      largest = higher  ->  largest, total, mixed = higher, total.to(q.dtype).float(), mixed.to(q.dtype).float()
    The sums so far are kept in q's dtype, and rounded after each block. Keep them in float32, and round once, at the
    end.
    alike: {ALIKE}

    values_not_float
      values[b : b + block]  ->  values[b : b + block].to(v.dtype)
    The weights are float32 and the values have v's dtype. torch multiplies tensors of one dtype only: compute in
    float32, v.float().

    not_rounded
      .to(q.dtype)  ->
    The result stays float32. Round it to q's dtype, once, at the end.

    only_mixed_shrinks
      total * shrink  ->  total
    The weighted sum of values is shrunk when the maximum rises, and the sum of the weights is not. Both are relative to
    the old maximum.

    maximum_per_block
      largest.maximum(scores.amax(1, keepdim=True))  ->  scores.amax(1, keepdim=True)
      (largest - higher).exp()  ->  1
    Each block's weights are relative to that block's own maximum, and are then added as they are. Weights of different
    blocks must be relative to the same maximum.

    divided_per_block
      largest.maximum(scores.amax(1, keepdim=True))  ->  scores.amax(1, keepdim=True)
      (largest - higher).exp()  ->  1
      total * shrink + weights.sum(1, keepdim=True)  ->  total + 1
      weights @ values  ->  weights / weights.sum(1, keepdim=True) @ values
    Each block is divided by its own sum, and the block's means are averaged. A block with large scores must weigh more:
    divide once, at the end.

    not_divided
      mixed / total  ->  mixed
    The weighted sum is never divided by the sum of the weights.

    no_maximum
      largest.maximum(scores.amax(1, keepdim=True))  ->  scores.new_zeros(block, 1)
      (largest - higher).exp()  ->  1
    No maximum is subtracted before exp. Large scores overflow to infinity, and inf / inf is NaN.
    alike: 0.9

    strict
      triu(1)  ->  triu(0)
      mixed / total  ->  (mixed / total).nan_to_num()
    Inside the block on the diagonal a query does not see its own key. It sees the keys up to and including its own.

    one_too_many
      triu(1)  ->  triu(2)
    Inside the block on the diagonal a query sees the key right behind its own.

    no_mask
      scores.masked_fill(ahead, -math.inf)  ->  scores
    The block on the diagonal is not masked: a query sees keys behind its own, and the zeros that fill up the block.

    mask_from_chunk
      queries[start - first : stop - first]  ->  queries[: len(q)]
      out[start - first : stop - first]  ->  out[: len(q)]
    The mask counts queries from the start of the chunk and keys from position 0. A query's row is its position.

    is_causal
      | ahead = torch.ones(len(q), len(k)).triu(1).bool()
      | scores = (q.float() @ k.float().T / math.sqrt(q.shape[1])).masked_fill(ahead, -math.inf)
      | return (torch.softmax(scores, dim=1) @ v.float()).to(q.dtype)
    Row r sees keys 0 to r, what is_causal=True gives. The query in row r stands at start + r.

    last_block_only
      range(0, tile + block, block)  ->  range(tile, tile + block, block)
    Only the block on the diagonal counts. Either the earlier blocks are not read, though their keys are visible to
    every query of this one. Or the loop does not end in `largest = higher`: then each block shrinks what was summed
    before it to nothing, as if it were the first.

    blocks_from_chunk
      {_cut(_ALIGNED, _ANEW)}
    The blocks of keys start anew where the chunk starts. A key then changes its block when the cut moves: count blocks
    from position 0.
    alike: {ALIKE}

    last_block_short
      {_cut(_ALIGNED, _SHORT)}
    The last block ends with the last key of the chunk, and the tiles of queries end with the chunk. Fill both up with
    zeros: the padded keys are hidden by the mask, the padded queries are cut off.
    alike: {ALIKE}

    tiles_from_chunk
      start // block * block, -(-stop // block) * block  ->  start, start + -(-len(q) // block) * block
      queries.new_zeros(2, last, q.shape[1])  ->  queries.new_zeros(2, last + block, q.shape[1])
      if b == tile:  ->  if (ahead := torch.arange(b, b + block) > torch.arange(tile, tile + block)[:, None]).any():
    The tiles of queries are full, but are counted from the first query of the chunk. A query then changes its slot when
    the cut moves: its slot must be its position mod block.
    alike: {ALIKE}

    all_queries_at_once
      {_cut(_ALL, _FULL)}
    The keys come in full blocks from position 0, but all queries of the chunk are rows of one product. Its shape
    depends on the length of the chunk: cut the queries into tiles of `block` rows, aligned to position 0.
    alike: {ALIKE}

    blocks_from_chunk_all_queries
      {_cut(_ALL, _ANEW)}
    The blocks of keys start anew where the chunk starts, and all its queries are one product. Count blocks from
    position 0, and queries in tiles aligned to position 0.
    alike: {ALIKE}

    cached_and_own
      {_cut(_ALL, _SEAM)}
    The keys are cut into what was cached and the chunk's own: the seam between them moves with the cut. Cut them into
    blocks counted from position 0, and the queries into tiles.
    alike: {ALIKE}

    last_block_short_all_queries
      {_cut(_ALL, _SHORT)}
    The blocks of keys are counted from position 0, but the last one ends with the last key of the chunk, and all
    queries are one product. Fill the last block up with zeros, and cut the queries into full tiles.
    alike: {ALIKE}

    float64
      | q, k, v, dtype = q.double(), k.double(), v.double(), q.dtype
      | ahead = torch.ones(len(q), len(k)).triu(start + 1).bool()
      | scores = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(ahead, -math.inf)
      | weights = (scores - scores.amax(1, keepdim=True)).exp()
      | return (weights @ v / weights.sum(1, keepdim=True)).to(dtype)
    A computation in float64 that is rounded once at the end does exactly this: the order of the sums shows only where a
    number lies halfway between two float32 neighbours. That is rare, but it happens.
    alike: 0.9

    plain
      | seen = torch.ones(len(q), len(k)).tril(start).bool()
      | q, k, v = q[None, None], k[None, None], v[None, None]
      | return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)[0, 0]
    torch's scaled_dot_product_attention does this, and so do all scores at once by einsum or with a batch axis: each
    gets all queries and keys of a chunk at once. {ROUNDING}
    alike: {ALIKE}

    formula
      | ahead = torch.ones(len(q), len(k)).triu(start + 1).bool()
      | scores = (q.float() @ k.float().T / math.sqrt(q.shape[1])).masked_fill(ahead, -math.inf)
      | return (torch.softmax(scores, dim=1) @ v.float()).to(q.dtype)
    All scores at once, as in the formula, do this. {ROUNDING}
    alike: {ALIKE}
"""
