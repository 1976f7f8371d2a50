"""A pool of blocks while requests come and go: what each holds, the free order, and what a larger pool is worth."""

from dataclasses import dataclass
from functools import cache

from course_lib.lessons.nb07_prefix_cache import Allocator, PrefixCache, RequestCache
from course_lib.widgets.explorer import Choice, Explorer, Slider, explore

BLOCK = 4  # tokens in a block
TAIL, HEAD = "tail first", "head first"
SMALLEST, LARGEST = 8, 20
COLOURS = {"S": "#bbbbbb", "a": "#56b4e9", "b": "#f2c07a", "c": "#a8d8a0", "x": "#d9a6d9"}
# A letter is a block of text: S the system prompt that all share, a, b and c what three users say, x a stranger's text.
PROMPTS = (
    "SSa", "SSb", "SSaa", "SSc", "xxxxx", "SSbb", "SSaaa", "SScc", "SSbbb", "SSaaaa", "SSccc", "SSbbbb", "xxxxx",
    "SSaaaaa",
)  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """After a request was admitted and computed; `tables` of the running requests, the newest last."""

    contents: dict  # block -> the beginning that it holds and is found by
    refs: tuple
    free: tuple
    tables: tuple  # (prompt, its blocks)
    hit: int  # blocks of the newest request that were cached


class HeadFirst(Allocator):
    """The kept mistake: a table's blocks are freed in forward order."""

    def release(self, blocks) -> None:
        super().release(list(reversed(blocks)))


def explore_prefix_cache() -> Explorer:
    """The pool after each of 14 requests, at most two of them at once, and the hit rate by the size of the pool."""
    return explore(
        build,
        update,
        size=(10.5, 4.6),
        request=Slider("requests so far", 1, len(PROMPTS), 1),
        blocks=Slider("blocks in the pool", SMALLEST, LARGEST, 13),
        order=Choice("a request's blocks are freed", (TAIL, HEAD)),
    )


@cache
def history(num_blocks: int, order: str) -> tuple[Moment, ...]:
    """What happened, request by request: each begins when at most one other still runs."""
    allocator, prefix = (Allocator if order == TAIL else HeadFirst)(num_blocks), PrefixCache(num_blocks)
    requests, running, moments = RequestCache(allocator, prefix, BLOCK), [], []
    for prompt in PROMPTS:
        if len(running) == 2:
            allocator.release(running.pop(0)[1])
        names = [prompt[: i + 1] for i in range(len(prompt))]  # a block's name is its whole beginning, as its hash is
        num_tokens = BLOCK * len(prompt) + 1
        while (hit := len(prefix.match(names))) >= 0 and (table := requests.admit(num_tokens, names)) is None:
            allocator.release(running.pop(0)[1])  # no room: it begins when the other has ended
        requests.commit(table, names, 0, num_tokens)
        running.append((prompt, table))
        contents = {block: prefix.hashes[block] for block in range(1, num_blocks + 1) if block in prefix}
        tables = tuple((p, tuple(t)) for p, t in running)
        moments.append(Moment(contents, tuple(allocator.refs), tuple(allocator.free), tables, hit))
    return tuple(moments)


def hit_rate(num_blocks: int, order: str) -> float:
    """Share of all prompt tokens that came from the cache."""
    hits = sum(moment.hit for moment in history(num_blocks, order))
    return hits * BLOCK / sum(BLOCK * len(prompt) + 1 for prompt in PROMPTS)


def build(figure) -> dict:
    from matplotlib.patches import Rectangle

    pool, curve = figure.subplots(1, 2, width_ratios=[2.2, 1])
    pool.set(xlim=(-0.2, 10.2), ylim=(-2.6, 4.5), xticks=[], yticks=[])
    cells = []
    for i in range(LARGEST):
        x, y = i % 10, 3.2 - 1.6 * (i // 10)
        box = pool.add_patch(Rectangle((x + 0.05, y - 0.6), 0.9, 1.2, edgecolor="#333333", facecolor="white"))
        texts = [pool.text(x + 0.5, y + dy, "", ha="center", va="center", fontsize=8) for dy in (0.38, 0, -0.38)]
        cells.append((box, texts))
    free = pool.text(0, 0.35, "", va="top", fontsize=9)
    tables = pool.text(0, -0.75, "", va="top", fontsize=9)
    sizes = range(SMALLEST, LARGEST + 1)
    for order, style in ((TAIL, "o-"), (HEAD, "s--")):
        curve.plot(sizes, [100 * hit_rate(n, order) for n in sizes], style, markersize=4, label=order)
    (mark,) = curve.plot([], [], "o", markersize=11, fillstyle="none", color="black")
    curve.set(xlabel="blocks in the pool", ylabel="tokens that hit, in % (all 14 requests)", ylim=(0, 70))
    curve.legend(loc="lower right", fontsize=8)
    return {"pool": pool, "cells": cells, "free": free, "tables": tables, "mark": mark}


def update(artists, request: int, blocks: int, order: str) -> str:
    moment = history(blocks, order)[request - 1]
    for block, (box, texts) in enumerate(artists["cells"], 1):
        there, name = block <= blocks, moment.contents.get(block, "")
        box.set_visible(there)
        held = there and moment.refs[block]
        box.set_facecolor(COLOURS[name[-1]] if name else "white")
        box.set_linewidth(3 if held else 0.8)
        box.set_linestyle("-" if held else ":")
        said = (f"block {block}", name, f"held {moment.refs[block]}x" if held else "free") if there else ("", "", "")
        for text, words in zip(texts, said):
            text.set_text(words)
    free = ", ".join(map(str, moment.free)) or "none"
    artists["free"].set_text(f"free, the next to be allocated first: {free}")
    tables = "\n".join(f"block table of {prompt}: {list(table)}" for prompt, table in moment.tables)
    artists["tables"].set_text(tables)
    prompt, _ = moment.tables[-1]
    artists["pool"].set_title(f"after request {request}, {prompt}: a letter is a block of {BLOCK} tokens", fontsize=10)
    artists["mark"].set_data([blocks], [100 * hit_rate(blocks, order)])
    kept = sum(1 for block in moment.free if block in moment.contents)
    return (
        f"Request {request} is {prompt} and one token more: {moment.hit} of its {len(prompt)} full blocks were cached. "
        f"{kept} free blocks can still be found. Over all requests {100 * hit_rate(blocks, order):.0f}% of the tokens "
        f"hit, with {blocks} blocks, {order}."
    )
