"""Exercise 4.2, tiled_linear: a product whose rows do not depend on the cut."""

from __future__ import annotations

import numpy as np

from autograder.drivers import nb04
from autograder.exercise import Call
from autograder.exercises.nb04_kernels import ALIKE, TOKENS, cuts, kernel_call, kernel_groups, midpoints, same, values
from autograder.kit import draws, exercise

SOLUTION = "course_lib.lessons.nb04_bits:tiled_linear"
INNER, COLUMNS = 48, 20
WITHIN = {"float32": 5e-5, "bfloat16": 1e-2}  # of the largest number; rounding once to bfloat16 costs up to 4e-3


def oracle(call: Call) -> np.ndarray:
    """x @ w in float64."""
    return values(call.args[0]).astype(np.float64) @ values(call.args[1]).astype(np.float64)


def logic_cases(seed: int) -> list[Call]:
    """First and later chunks, inside a tile and across its edge, one token, whole tiles, other tiles, other widths."""
    rng, draw = np.random.default_rng(seed), draws(seed)
    first, calls = draw(18, 30), []
    for rows, start, inner, columns, dtype, *tile in (
        (first, 0, 24, 10, "float32"),
        (first, 0, 24, 10, "float32"),  # the same shapes, other numbers
        (draw(18, 30), draw(3, 15), 24, 10, "float32"),
        (5, 16 * draw(1, 9) + 13, 24, 10, "bfloat16"),
        (4, 16 * draw(1, 9) + 5, 24, 10, "float32"),
        (22, 16 * draw(1, 9) + 10, 24, 10, "float32"),  # up to a tile's end
        (1, draw(30, 90), 16, 7, "float32"),
        (1, 15, 16, 7, "bfloat16"),
        (1, 16, 16, 7, "float32"),
        (16, 32, 24, 10, "bfloat16"),
        (draw(11, 20), draw(20, 50), 12, 12, "float32", 8),
        (draw(11, 20), draw(20, 50), 5, 1, "float32", 7),
        (5, draw(20, 50), 1, 6, "bfloat16", 1),
        (draw(11, 20), 50, 12, 12, "float32", 64),
    ):
        x, w = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
        calls.append(kernel_call("tiled_linear", {"x": x, "w": w}, start, dtype, tile))
    return [*calls, kernel_call("tiled_linear", {"x": x, "w": w[:, ::-1]}, start, dtype, tile)]  # the same x, another w


def bits_cases(seed: int) -> list[Call]:
    """One pass and chunks of it, by the fickle product. At position 40 every sum in float32 is a midpoint."""
    rng, calls = np.random.default_rng(seed), []
    for dtype, *tile in (("float32",), ("bfloat16",), ("float32", 24)):
        x = rng.standard_normal((TOKENS, INNER)).astype(np.float32)
        w = rng.standard_normal((INNER, COLUMNS)).astype(np.float32)
        chunks = cuts(rng, dtype, tile)
        if dtype == "float32" and not tile:
            steps = rng.choice(INNER, 3, replace=False)
            x[40, steps] = 2.0**-6, 2.0**-20, 2.0**-36
            w = midpoints(x[40], w, steps)
            chunks += [(40, 41), (38, 45), (33, 50)]
        calls += [
            kernel_call("tiled_linear", {"x": x[a:b], "w": w}, a, dtype, tile, rows=(a, b), whole=b - a == TOKENS)
            for a, b in chunks
        ]
    return calls


ROUNDING = (
    "How many rows a product has, and in which slot a row stands, decides in which order its terms are added. Give "
    "every product exactly `tile` rows, and put every token into the slot position % tile."
)

MISTAKES = f"""
    top_of_tile
      out[before : before + len(x)]  ->  out[: len(x)]
    The first rows of the first tile are returned. The chunk's own rows begin in slot start % tile.

    padding_returned
      out[before : before + len(x)]  ->  out
    The padding is returned too. Cut it off: a row for each row of x.

    last_tile_lost
      x.new_empty  ->  x.new_zeros
      range(0, tiles * tile, tile)  ->  range(0, (before + len(x)) // tile * tile, tile)
    The rows behind the last full tile are never multiplied. Round the number of tiles up.

    tiles_without_slots
      -(-(before + len(x)) // tile)  ->  -(-len(x) // tile)
    The tiles are counted for the chunk's rows alone. The slots before its first row need room too: before + len(x).

    float32_pad
      x.new_zeros(tiles * tile, x.shape[1])  ->  torch.zeros(tiles * tile, x.shape[1])
    torch.zeros makes float32, whatever x is, and torch multiplies tensors of one dtype only. x.new_zeros has x's dtype.

    rounded_off
      | return torch.round(x.float() @ w.float(), decimals=2).to(x.dtype)
    The result is rounded to a few decimals so that small differences vanish. It is no longer x @ w, and where a number
    lies near the edge between two roundings the difference comes back larger.
    alike: 0.9

    bfloat16_inside
      | return (x.bfloat16() @ w.bfloat16()).to(x.dtype)
    float32 inputs are multiplied in bfloat16, in the hope that coarse numbers are equal more often. The result is off
    by far more than float32's rounding.
    alike: 0.9

    not_rounded
      x.new_empty  ->  w.float().new_empty
      padded[first : first + tile] @ w  ->  padded[first : first + tile].float() @ w.float()
    The sums are made in float32, which is good, and never rounded back. The result must have x's dtype.
    alike: 0.9

    chunk_aligned
      start % tile  ->  0
    The tiles are counted from the first row of the chunk. A token then changes its slot when the cut moves: its slot
    must be its absolute position mod tile.
    alike: {ALIKE}

    last_unpadded
      | edges = [start, *range((start // tile + 1) * tile, start + len(x), tile), start + len(x)]
      | return torch.cat([x[a - start : b - start] @ w for a, b in zip(edges, edges[1:])])
    The tiles are aligned, but those at the ends of the chunk are not filled up: fewer than `tile` rows are multiplied
    there.
    alike: {ALIKE}

    one_product
      x.new_empty(tiles * tile, w.shape[1])  ->  padded @ w
      for first in range(0, tiles * tile, tile):  ->
      out[first : first + tile] = padded[first : first + tile] @ w  ->
    The rows are padded and aligned, and then all tiles go through one product of k * tile rows. Its shape depends on
    the length of the chunk. One product for each tile.
    alike: {ALIKE}

    batched
      x.new_empty(tiles * tile, w.shape[1])  ->  torch.bmm(padded.view(tiles, tile, -1), w.expand(tiles, *w.shape))
      for first in range(0, tiles * tile, tile):  ->
      out[first : first + tile] = padded[first : first + tile] @ w  ->
      return out  ->  return out.flatten(0, 1)
    The rows are padded and aligned, and then all tiles go through one batched product, [tiles, tile, inner]. How many
    tiles there are depends on the length of the chunk, and may decide how each is multiplied. One product for each
    tile.
    alike: {ALIKE}

    slot_0
      | edges = [start, *range((start // tile + 1) * tile, start + len(x), tile), start + len(x)]
      | parts = []
      | for a, b in zip(edges, edges[1:]):
      |     rows = x.new_zeros(tile, x.shape[1])
      |     rows[: b - a] = x[a - start : b - start]
      |     parts.append((rows @ w)[: b - a])
      | return torch.cat(parts)
    The tiles are cut where they should be, but each begins in slot 0. A token belongs in slot position mod tile.
    alike: {ALIKE}

    chunk_aligned_unpadded
      | return torch.cat([part @ w for part in x.split(tile)])
    The tiles are counted from the chunk's first row, and the last is not filled up. Put every token into the slot
    position % tile, and fill every tile up to `tile` rows.
    alike: {ALIKE}

    float64
      | return (x.double() @ w.double()).to(x.dtype)
    A product in float64 that is rounded once at the end does exactly this: the order of the sums shows only where a
    number lies halfway between two float32 neighbours. That is rare, but it happens.
    alike: 0.9

    multiplied_and_added
      | return (x[:, :, None] * w).sum(1)
    This multiplies with broadcasting and adds up: an ordinary product of all rows, in another form. {ROUNDING}
    alike: {ALIKE}

    einsum
      | return torch.einsum("rk,kc->rc", x, w)
    An ordinary product of all rows, by einsum, does this. {ROUNDING}
    alike: {ALIKE}

    plain
      | return x @ w
    An ordinary product of all rows does this. {ROUNDING}
    alike: {ALIKE}
"""

EXERCISE = exercise(
    SOLUTION,
    groups=kernel_groups(
        logic_cases,
        bits_cases,
        oracle=oracle,
        limit=lambda wanted, dtype: WITHIN[dtype] * np.abs(wanted).max(),
        axes="a row for each row of x, a column for each column of w",
        whose="position",
        which=ROUNDING,
    ),
    mistakes=MISTAKES,
    same=same,
    reread="Reread notebook 04, section 3.",
    imports="import numpy as np\nimport torch",
    library=("course_lib.arithmetic.tile:matmul", "course_lib.arithmetic.tile:by_rows"),
    driver=nb04.tiled_linear,
)
