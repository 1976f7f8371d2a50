"""Kept answers to exercise 4.3: attention that is wrong, or right and not the same in every cut, or right."""

from __future__ import annotations

from autograder.exercise import WrongAnswer
from autograder.exercises.nb04_kernels import ALIKE

ROUNDING = (
    "Every product needs a shape that depends on the query's position alone: query rows in full tiles, keys in "
    "full blocks, both counted from position 0, with zeros where no token is."
)


_RIGHT = """\
def block_attention(q, k, v, start, block=64):
    stop = start + len(q)
    first, last = start // block * block, -(-stop // block) * block
    queries = q.new_zeros(last - first, q.shape[1]).float()
    queries[start - first : stop - first] = q.float() / math.sqrt(q.shape[1])
    keys, values = queries.new_zeros(2, last, q.shape[1])
    keys[:stop], values[:stop] = k, v
    ahead = queries.new_ones(block, block).triu(1).bool()

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
            shrink = (largest - higher).exp()
            weights = (scores - higher).exp()
            total = total * shrink + weights.sum(1, keepdim=True)
            mixed = mixed * shrink + weights @ values[b : b + block]
            largest = higher
        out[rows] = mixed / total
    return out[start - first : stop - first].to(q.dtype)
"""

# The same, with the cuts into rows and into keys left to be filled in. Masks go by positions.
_CUT = """\
def block_attention(q, k, v, start, block=64):
    stop, scale = start + len(q), math.sqrt(q.shape[1])
    keys, values = k.float(), v.float()
    out = []
    for a, z in {rows}:
        queries = q[a - start : z - start].float() / scale
        largest, total, mixed = torch.full((z - a, 1), -math.inf), 0, 0
        for b, e in {keys}:
            ahead = torch.arange(b, e)[None, :] > torch.arange(a, z)[:, None]
            scores = (queries @ {key_block}.T).masked_fill(ahead, -math.inf)
            higher = torch.maximum(largest, scores.amax(1, keepdim=True))
            shrink, weights = torch.exp(largest - higher), torch.exp(scores - higher)
            total = total * shrink + weights.sum(1, keepdim=True)
            mixed = mixed * shrink + weights @ {value_block}
            largest = higher
        out.append(mixed / total)
    return torch.cat(out).to(q.dtype)
"""


def _wrong(name: str, message: str, *changes: tuple[str, str], alike: float = 0.0) -> WrongAnswer:
    """The right answer with some of its text changed."""
    source = _RIGHT
    for old, new in changes:
        assert old in source, (name, old)
        source = source.replace(old, new)
    return WrongAnswer(name, source, message, alike=alike)


def _cut(name: str, message: str, rows: str, keys: str, alike: float = ALIKE) -> WrongAnswer:
    source = _CUT.format(rows=rows, keys=keys, key_block="keys[b:e]", value_block="values[b:e]")
    return WrongAnswer(name, source, message, alike=alike)


_ALIGNED = "zip((e := [start, *range((start // block + 1) * block, stop, block), stop]), e[1:])"

WRONG = (
    _wrong("no_scale", "The scores are not divided by sqrt(head_dim): the softmax is too sharp.",
           (" / math.sqrt(q.shape[1])", "")),
    _wrong(
        "no_rescaling",
        "The running maximum is right, but what was summed before it rose is not shrunk: old weights count too "
        "much. Multiply the sums so far by exp(old maximum - new maximum).",
        ("shrink = (largest - higher).exp()", "shrink = 1"),
    ),
    _wrong(
        "only_mixed_shrinks",
        "The weighted sum of values is shrunk when the maximum rises, and the sum of the weights is not. Both "
        "are relative to the old maximum.",
        ("total = total * shrink", "total = total"),
    ),
    _wrong(
        "maximum_per_block",
        "Each block's weights are relative to that block's own maximum, and are then added as they are. Weights "
        "of different blocks must be relative to the same maximum.",
        ("higher = largest.maximum(scores.amax(1, keepdim=True))", "higher = scores.amax(1, keepdim=True)"),
        ("shrink = (largest - higher).exp()", "shrink = 1"),
    ),
    _wrong(
        "divided_per_block",
        "Each block is divided by its own sum, and the block's means are averaged. A block with large scores "
        "must weigh more: divide once, at the end.",
        ("higher = largest.maximum(scores.amax(1, keepdim=True))", "higher = scores.amax(1, keepdim=True)"),
        ("shrink = (largest - higher).exp()", "shrink = 1"),
        ("total = total * shrink + weights.sum(1, keepdim=True)", "total = total + 1"),
        ("weights @ values", "weights / weights.sum(1, keepdim=True) @ values"),
    ),
    _wrong("not_divided", "The weighted sum is never divided by the sum of the weights.", ("mixed / total", "mixed")),
    _wrong(
        "no_maximum",
        "No maximum is subtracted before exp. Large scores overflow to infinity, and inf / inf is NaN.",
        ("higher = largest.maximum(scores.amax(1, keepdim=True))", "higher = scores.new_zeros(block, 1)"),
        ("shrink = (largest - higher).exp()", "shrink = 1"),
        alike=0.9,
    ),
    _wrong(
        "strict",
        "Inside the block on the diagonal a query does not see its own key. It sees the keys up to and "
        "including its own.",
        ("triu(1)", "triu(0)"),
        ("out[rows] = mixed / total", "out[rows] = (mixed / total).nan_to_num()"),
    ),
    _wrong(
        "one_too_many",
        "Inside the block on the diagonal a query sees the key right behind its own.",
        ("triu(1)", "triu(2)"),
    ),
    _wrong(
        "no_mask",
        "The block on the diagonal is not masked: a query sees keys behind its own, and the zeros that fill "
        "up the block.",
        ("masked_fill(ahead, -math.inf)", "clone()"),
    ),
    _wrong(
        "mask_from_chunk",
        "The mask counts queries from the start of the chunk and keys from position 0. A query's row is its position.",
        ("queries[start - first : stop - first] =", "queries[: len(q)] ="),
        ("out[start - first : stop - first]", "out[: len(q)]"),
    ),
    WrongAnswer(
        "is_causal",
        """\
def block_attention(q, k, v, start, block=64):
    ahead = torch.ones(len(q), len(k)).triu(1).bool()
    scores = (q.float() @ k.float().T / math.sqrt(q.shape[1])).masked_fill(ahead, -math.inf)
    return (torch.softmax(scores, dim=1) @ v.float()).to(q.dtype)
""",
        "Row r sees keys 0 to r, what is_causal=True gives. The query in row r stands at start + r.",
    ),
    _wrong(
        "last_block_only",
        "Only the block on the diagonal is read. The keys of earlier blocks are visible to every query of this one.",
        ("range(0, tile + block, block)", "range(tile, tile + block, block)"),
    ),
    _cut(
        "blocks_from_chunk",
        "The blocks of keys start anew where the chunk starts. A key then changes its block when the cut moves: "
        "count blocks from position 0.",
        _ALIGNED,
        "zip((f := [*range(0, start, block), *range(start, stop, block), stop]), f[1:])",
    ),
    _cut(
        "last_block_short",
        "The last block ends with the last key of the chunk, and the tiles of queries end with the chunk. Fill "
        "both up with zeros: the padded keys are hidden by the mask, the padded queries are cut off.",
        _ALIGNED,
        "((b, min(b + block, stop)) for b in range(0, z, block))",
    ),
    _wrong(
        "tiles_from_chunk",
        "The tiles of queries are full, but are counted from the first query of the chunk. A query then changes "
        "its slot when the cut moves: its slot must be its position mod block.",
        ("first, last = start // block * block, -(-stop // block) * block",
         "first, last = start, start + -(-len(q) // block) * block"),
        ("queries.new_zeros(2, last, q.shape[1])", "queries.new_zeros(2, last + block, q.shape[1])"),
        ("            if b == tile:\n                scores = scores.masked_fill(ahead, -math.inf)\n",
         "            ahead = torch.arange(b, b + block)[None] > torch.arange(tile, tile + block)[:, None]\n"
         "            scores = scores.masked_fill(ahead, -math.inf)\n"),
        alike=ALIKE,
    ),
    _cut(
        "all_queries_at_once",
        "The keys come in full blocks from position 0, but all queries of the chunk are rows of one product. Its "
        "shape depends on the length of the chunk: cut the queries into tiles of `block` rows, aligned to position 0.",
        "[(start, stop)]",
        "((b, b + block) for b in range(0, stop, block))",
    ),
    _cut(
        "blocks_from_chunk_all_queries",
        "The blocks of keys start anew where the chunk starts, and all its queries are one product. Count blocks "
        "from position 0, and queries in tiles aligned to position 0.",
        "[(start, stop)]",
        "zip((f := [*range(0, start, block), *range(start, stop, block), stop]), f[1:])",
    ),
    _cut(
        "cached_and_own",
        "The keys are cut into what was cached and the chunk's own: the seam between them moves with the cut. Cut "
        "them into blocks counted from position 0, and the queries into tiles.",
        "[(start, stop)]",
        "zip((f := sorted({0, start, stop})), f[1:])",
    ),
    _cut(
        "last_block_short_all_queries",
        "The blocks of keys are counted from position 0, but the last one ends with the last key of the chunk, and "
        "all queries are one product. Fill the last block up with zeros, and cut the queries into full tiles.",
        "[(start, stop)]",
        "((b, min(b + block, stop)) for b in range(0, stop, block))",
    ),
    WrongAnswer(
        "float64",
        """\
def block_attention(q, k, v, start, block=64):
    q, k, v, dtype = q.double(), k.double(), v.double(), q.dtype
    ahead = torch.ones(len(q), len(k)).triu(start + 1).bool()
    scores = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(ahead, -math.inf)
    weights = (scores - scores.amax(1, keepdim=True)).exp()
    return (weights @ v / weights.sum(1, keepdim=True)).to(dtype)
""",
        "A computation in float64 that is rounded once at the end does exactly this: the order of the sums shows "
        "only where a number lies halfway between two float32 neighbours. That is rare, but it happens.",
        alike=0.9,
    ),
    WrongAnswer(
        "plain",
        """\
def block_attention(q, k, v, start, block=64):
    seen = torch.ones(len(q), len(k)).tril(start).bool()
    q, k, v = q[None, None], k[None, None], v[None, None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)[0, 0]
""",
        f"torch's scaled_dot_product_attention does this: it gets all queries and keys of a chunk at once. {ROUNDING}",
        alike=ALIKE,
    ),
    WrongAnswer(
        "formula_batched",
        """\
def block_attention(q, k, v, start, block=64):
    ahead = torch.ones(len(q), len(k)).triu(start + 1).bool()
    scores = torch.einsum("id,jd->ij", q.float(), k.float()) / math.sqrt(q.shape[1])
    weights = torch.softmax(scores.masked_fill(ahead, -math.inf), dim=1)
    return torch.einsum("ij,jd->id", weights, v.float()).to(q.dtype)
""",
        f"All scores at once, by einsum or with a batch axis, do this. {ROUNDING}",
        alike=ALIKE,
    ),
    WrongAnswer(
        "formula",
        """\
def block_attention(q, k, v, start, block=64):
    ahead = torch.ones(len(q), len(k)).triu(start + 1).bool()
    scores = (q.float() @ k.float().T / math.sqrt(q.shape[1])).masked_fill(ahead, -math.inf)
    return (torch.softmax(scores, dim=1) @ v.float()).to(q.dtype)
""",
        f"All scores at once, as in the formula, do this. {ROUNDING}",
        alike=ALIKE,
    ),
)  # fmt: skip
WRONG = tuple(
    WrongAnswer(w.name, w.source.replace("keys, values = k.float(), v.float()",
        "keys = torch.cat([k.float(), k.new_zeros(block, k.shape[1]).float()])\n"
        "    values = torch.cat([v.float(), v.new_zeros(block, v.shape[1]).float()])"), w.message, alike=w.alike)
    if w.name == "all_queries_at_once" else w
    for w in WRONG
)  # fmt: skip

RIGHT = (
    """\
def block_attention(q, k, v, start, block=64):
    # one query at a time: a tile of one row
    stop = start + len(q)
    padded = -(-stop // block) * block
    pad = lambda x: torch.nn.functional.pad(x.float(), (0, 0, 0, padded - stop)).split(block)
    out = []
    for i, query in enumerate(q.float()):
        m, z, acc = -math.inf, torch.zeros(1), torch.zeros(q.shape[1])
        for b, (kb, vb) in enumerate(zip(pad(k), pad(v))):
            if b * block > start + i:
                break
            s = torch.matmul(kb, query[:, None])[:, 0] / math.sqrt(len(query))
            s[torch.arange(b * block, (b + 1) * block) > start + i] = -math.inf
            new = max(m, s.max().item())
            p = torch.exp(s - new)
            z = z * math.exp(m - new) + p.sum()
            acc = acc * math.exp(m - new) + torch.matmul(p[None], vb)[0]
            m = new
        out.append(acc / z)
    return torch.stack(out).to(q.dtype)
""",
    """\
def block_attention(q, k, v, start, block=64):
    # tiles of 16 queries; a full row of scores over keys that are padded to the tile's end
    stop, tile, out = start + len(q), 16, []
    for t in range(start // tile * tile, stop, tile):
        a, z = max(t, start), min(t + tile, stop)
        rows = torch.zeros(tile, q.shape[1])
        rows[a - t : z - t] = q[a - start : z - start]
        keys, values = torch.zeros(t + tile, q.shape[1]), torch.zeros(t + tile, q.shape[1])
        keys[: min(t + tile, stop)] = k[: t + tile]
        values[: min(t + tile, stop)] = v[: t + tile]
        scores = torch.einsum("id,jd->ij", rows, keys) / math.sqrt(q.shape[1])
        visible = torch.ones(tile, t + tile).tril(t).bool()
        weights = torch.where(visible, scores, -math.inf).softmax(-1)
        out.append((weights @ values)[a - t : z - t])
    return torch.cat(out).to(q.dtype)
""",
)
