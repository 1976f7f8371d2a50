"""Exercise 4.2, tiled_linear: a product whose rows do not depend on the cut."""

from __future__ import annotations

import numpy as np

from autograder.exercise import Call, Exercise, Group, WrongAnswer
from autograder.exercises.fickle import on_fickle_tensors, tensor_arg, values
from autograder.exercises.nb04_kernels import ALIKE, TOKENS, cuts, judge_bits, judge_logic, logic, midpoints, same

AXES = "a row for each row of x, a column for each column of w"
INNER, COLUMNS = 48, 20


def _call(x: np.ndarray, w: np.ndarray, start: int, dtype: str, *tile: int, **facts) -> Call:
    args = (tensor_arg(x, dtype), tensor_arg(w, dtype), start, *tile)
    also = f", tile={tile[0]}" if tile else ""
    label = f"tiled_linear(x {list(x.shape)}, w {list(w.shape)}, start={start}{also}) in {dtype}"
    return Call(args, label, {"dtype": dtype, "start": start, **facts})


def oracle(call: Call) -> np.ndarray:
    """x @ w in float64."""
    return values(call.args[0]).astype(np.float64) @ values(call.args[1]).astype(np.float64)


def logic_cases(seed: int) -> list[Call]:
    """A first chunk, later ones on and off the grid, one token, exactly one tile, another tile, a square weight."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    calls = []
    for rows, start, inner, columns, tile, dtype in (
        (draw(18, 30), 0, 24, 10, (), "float32"),
        (draw(18, 30), draw(3, 15), 24, 10, (), "float32"),
        (draw(3, 9), 16 * draw(1, 9) + draw(10, 15), 24, 10, (), "bfloat16"),
        (1, draw(30, 90), 16, 7, (), "float32"),
        (16, 32, 24, 10, (), "bfloat16"),
        (draw(11, 20), draw(20, 50), 12, 12, (8,), "float32"),
    ):
        x, w = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
        calls.append(_call(x, w, start, dtype, *tile))
    return calls


def bits_cases(seed: int) -> list[Call]:
    """In both dtypes one pass and chunks of it, by the fickle product. At position 40 every sum is a midpoint."""
    rng = np.random.default_rng(seed)
    calls = []
    for dtype in ("float32", "bfloat16"):
        x = rng.standard_normal((TOKENS, INNER)).astype(np.float32)
        w = rng.standard_normal((INNER, COLUMNS)).astype(np.float32)
        chunks = [(0, TOKENS), *cuts(rng, dtype)]
        if dtype == "float32":
            steps = rng.choice(INNER, 3, replace=False)
            x[40, steps] = 2.0**-6, 2.0**-20, 2.0**-36
            w = midpoints(x[40], w, steps)
            chunks += [(40, 41), (38, 45), (33, 50)]
        calls += [_call(x[a:b], w, a, dtype, rows=(a, b)) for a, b in chunks]
    return calls


ROUNDING = (
    "How many rows a product has, and in which slot a row stands, decides in which order its terms are added. Give "
    "every product exactly `tile` rows, and put every token into the slot position % tile."
)
_logic = logic(oracle, AXES)

_BEFORE = "start % tile"
_PRODUCT = """\
    out = x.new_empty(tiles * tile, w.shape[1])
    for first in range(0, tiles * tile, tile):
        out[first : first + tile] = padded[first : first + tile] @ w
"""
_RETURN = "out[before : before + len(x)]"


def _wrong(name: str, message: str, alike: float = 0.0, **changes: str) -> WrongAnswer:
    """The library's lines with some of them wrong."""
    before, tiles = changes.get("before", _BEFORE), changes.get("tiles", "-(-(before + len(x)) // tile)")
    source = f"""\
def tiled_linear(x, w, start, tile=16):
    before = {before}
    tiles = {tiles}
    padded = x.new_zeros(tiles * tile, x.shape[1])
    padded[before : before + len(x)] = x
{changes.get("product", _PRODUCT)}    return {changes.get("result", _RETURN)}
"""
    return WrongAnswer(name, source, message, alike=alike)


def _short(name: str, message: str, body: str, alike: float = 0.0) -> WrongAnswer:
    return WrongAnswer(name, f"def tiled_linear(x, w, start, tile=16):\n{body}", message, alike=alike)


WRONG = (
    _wrong(
        "top_of_tile",
        "The first rows of the first tile are returned. The chunk's own rows begin in slot start % tile.",
        result="out[: len(x)]",
    ),
    _wrong("padding_returned", "The padding is returned too. Cut it off: a row for each row of x.", result="out"),
    _short(
        "last_tile_lost",
        "The rows behind the last full tile are never multiplied. Round the number of tiles up.",
        """\
    before = start % tile
    padded = x.new_zeros(before + len(x) + tile, x.shape[1])
    padded[before : before + len(x)] = x
    out = x.new_zeros(len(padded), w.shape[1])
    for i in range((before + len(x)) // tile):
        out[i * tile : (i + 1) * tile] = padded[i * tile : (i + 1) * tile] @ w
    return out[before : before + len(x)]
""",
    ),
    _short(
        "rounded_off",
        "The result is rounded to a few decimals so that small differences vanish. It is no longer x @ w, and "
        "where a number lies near the edge between two roundings the difference comes back larger.",
        "    return torch.round(x.float() @ w.float(), decimals=2).to(x.dtype)\n",
        alike=0.5,
    ),
    _short(
        "bfloat16_inside",
        "float32 inputs are multiplied in bfloat16, in the hope that coarse numbers are equal more often. The "
        "result is off by far more than float32's rounding.",
        "    return (x.bfloat16() @ w.bfloat16()).to(x.dtype)\n",
        alike=0.5,
    ),
    _wrong(
        "not_rounded",
        "The sums are made in float32, which is good, and never rounded back. The result must have x's dtype.",
        product=_PRODUCT.replace("x.new_empty", "w.float().new_empty").replace(
            "+ tile] @ w", "+ tile].float() @ w.float()"
        ),
        alike=0.9,
    ),
    _wrong(
        "chunk_aligned",
        "The tiles are counted from the first row of the chunk. A token then changes its slot when the cut "
        "moves: its slot must be its absolute position mod tile.",
        before="0",
        alike=ALIKE,
    ),
    _short(
        "last_unpadded",
        "The tiles are aligned, but those at the ends of the chunk are not filled up: fewer than `tile` rows "
        "are multiplied there.",
        """\
    edges = [start, *range((start // tile + 1) * tile, start + len(x), tile), start + len(x)]
    return torch.cat([x[a - start : b - start] @ w for a, b in zip(edges, edges[1:])])
""",
        alike=ALIKE,
    ),
    _wrong(
        "one_product",
        "The rows are padded and aligned, and then all tiles go through one product of k * tile rows. "
        "Its shape depends on the length of the chunk. One product for each tile.",
        product="    out = padded @ w\n",
        alike=ALIKE,
    ),
    _wrong(
        "batched",
        "The rows are padded and aligned, and then all tiles go through one batched product, [tiles, tile, inner]. "
        "How many tiles there are depends on the length of the chunk, and may decide how each is multiplied. One "
        "product for each tile.",
        product="    out = torch.bmm(padded.view(tiles, tile, -1), w.expand(tiles, *w.shape)).flatten(0, 1)\n",
        alike=ALIKE,
    ),
    _short(
        "slot_0",
        "The tiles are cut where they should be, but each begins in slot 0. A token belongs in slot position mod tile.",
        """\
    edges = [start, *range((start // tile + 1) * tile, start + len(x), tile), start + len(x)]
    parts = []
    for a, b in zip(edges, edges[1:]):
        rows = x.new_zeros(tile, x.shape[1])
        rows[: b - a] = x[a - start : b - start]
        parts.append((rows @ w)[: b - a])
    return torch.cat(parts)
""",
        alike=ALIKE,
    ),
    _short(
        "chunk_aligned_unpadded",
        "The tiles are counted from the chunk's first row, and the last is not filled up. Put every token into the "
        "slot position % tile, and fill every tile up to `tile` rows.",
        "    return torch.cat([part @ w for part in x.split(tile)])\n",
        alike=ALIKE,
    ),
    _short(
        "float64",
        "A product in float64 that is rounded once at the end does exactly this: the order of the sums shows only "
        "where a number lies halfway between two float32 neighbours. That is rare, but it happens.",
        "    return (x.double() @ w.double()).to(x.dtype)\n",
        alike=0.9,
    ),
    _short(
        "einsum",
        f"An ordinary product of all rows, by einsum, does this. {ROUNDING}",
        '    return torch.einsum("rk,kc->rc", x, w)\n',
        alike=ALIKE,
    ),
    _short("plain", f"An ordinary product of all rows does this. {ROUNDING}", "    return x @ w\n", alike=ALIKE),
)

RIGHT = (
    """\
def tiled_linear(x, w, start, tile=16):
    out = torch.zeros(len(x), w.shape[1], dtype=x.dtype)
    row = 0
    while row < len(x):
        slot = (start + row) % tile
        take = min(tile - slot, len(x) - row)
        block = torch.zeros(tile, x.shape[1], dtype=x.dtype)
        block[slot : slot + take] = x[row : row + take]
        out[row : row + take] = torch.matmul(block, w)[slot : slot + take]
        row += take
    return out
""",
    """\
def tiled_linear(x, w, start, tile=16):
    return torch.cat([x[i : i + 1] @ w for i in range(len(x))])  # a tile of one row: the same shape for every token
""",
    """\
def tiled_linear(x, w, start, tile=16):
    before, after = start % tile, -(start + len(x)) % tile
    padded = torch.nn.functional.pad(x, (0, 0, before, after))
    parts = [torch.nn.functional.linear(part, w.T.contiguous()) for part in padded.split(tile)]
    return torch.cat(parts)[before : before + len(x)]
""",
    """\
def tiled_linear(x, w, start, tile=16):
    from course_lib.arithmetic import exact
    product = exact.matmul(np.asarray(x.float()), np.asarray(w.float()))  # no sum rounds, so no order matters
    return torch.from_numpy(product).to(x.dtype)
""",
)

EXERCISE = Exercise(
    name="tiled_linear",
    number="4.2",
    title="A product in tiles",
    notebook="04_bits",
    mode="kernel",
    groups=(
        Group("logic", 2, logic_cases, judge_logic(_logic)),
        Group("bits", 3, bits_cases, judge_bits(_logic, "position", ROUNDING)),
    ),
    same=same,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 04, section 3.",
    imports="import numpy as np\nimport torch",
    library=(
        "course_lib.lessons.nb04_bits:tiled_linear",
        "course_lib.arithmetic.tile:matmul",
        "course_lib.arithmetic.tile:by_tiles",
    ),
    driver=on_fickle_tensors,
)
