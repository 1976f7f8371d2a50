"""What runs beside the answers of notebook 07."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autograder.drivers.play import play
from course_lib.lessons.nb07_prefix_cache import Allocator, PrefixCache

PARTS = {"Allocator": Allocator, "PrefixCache": PrefixCache}  # what a RequestCache is given


def requests(answer: Callable, script: Sequence[tuple]) -> tuple:
    """`play` for RequestCache: its scripts make an Allocator and a PrefixCache, too."""
    return play(answer, script, PARTS)


def trees(answer: Callable, script: Sequence[tuple]) -> tuple:
    """`play` for RadixTree: `.tree` shows all nodes."""
    return play(answer, script, {"tree": drawn})


def drawn(tree: Any) -> str:
    """Every node's blocks, with its children in brackets behind: "[1, 2] then ([3], [7, 8])"."""
    root = list(tree.root.blocks)
    text = _children(tree.root) or "no nodes"
    return f"{root} in the root, then {text}" if root else text


def _children(node: Any) -> str:
    children = sorted(node.children.values(), key=lambda child: list(child.blocks))
    texts = [f"{[int(b) for b in child.blocks]} then ({_children(child)})" for child in children]
    return ", ".join(text.removesuffix(" then ()") for text in texts)
