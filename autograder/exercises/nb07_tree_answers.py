"""Kept answers to exercise 7.5, RadixTree: wrong ones by name, and right ones."""

from __future__ import annotations

from autograder.exercise import WrongAnswer
from autograder.exercises.nb07_shared import changed

BASE = """\
class RadixTree:
    def __init__(self, block_size):
        self.block_size, self.root = block_size, Node()

    def match(self, token_ids):
        pages, node, found = pages_of(token_ids, self.block_size), self.root, []
        while len(found) < len(pages) and pages[len(found)] in node.children:
            node = node.children[pages[len(found)]]
            same = common(node.pages, pages[len(found) :])
            found += node.blocks[:same]
            if same < len(node.pages):
                break
        return found

    def insert(self, token_ids, blocks):
        pages, node, known = pages_of(token_ids, self.block_size), self.root, 0
        while known < len(pages) and pages[known] in node.children:
            node = node.children[pages[known]]
            same = common(node.pages, pages[known:])
            if same < len(node.pages):
                lower = Node(node.pages[same:], node.blocks[same:], node.children)
                node.pages, node.blocks, node.children = node.pages[:same], node.blocks[:same], {lower.pages[0]: lower}
            known += same
        if known < len(pages):
            node.children[pages[known]] = Node(pages[known:], list(blocks[known : len(pages)]))
        return known
"""
_CUT = "{lower.pages[0]: lower}"
_LAST = "            node.children[pages[known]] = Node(pages[known:], list(blocks[known : len(pages)]))\n"
_STOP = "            if same < len(node.pages):\n                break\n"
_CUTS = "            if same < len(node.pages):\n                lower"
_SPLIT = BASE[BASE.index(_CUTS) : BASE.index("            known += same")]

WRONG = tuple(
    WrongAnswer(name, changed(BASE, *changes), message)
    for name, changes, message in (
        (
            "whole_run_matched",
            [("found += node.blocks[:same]", "found += node.blocks")],
            "Match takes all blocks of the node in which the prompts part. Those behind the parting hold another "
            "text: take node.blocks[:same].",
        ),
        (
            "nothing_of_the_run",
            [("            found += node.blocks[:same]\n" + _STOP, _STOP + "            found += node.blocks\n")],
            "Match leaves out the node in which the prompts part. Its first `same` blocks are a hit.",
        ),
        (
            "never_cut",
            [(_SPLIT, "")],
            "The node in which the prompts part is not cut, so the new child hangs behind its end: as if its text came "
            "after all of the node's. Cut the node at the parting first.",
        ),
        (
            "lower_part_lost",
            [(_CUT, "{}")],
            "After a cut the lower part is in no node's children, and all that is below it is lost. It becomes a child "
            "of the upper part.",
        ),
        (
            "children_left_above",
            [("lower = Node(node.pages[same:], node.blocks[same:], node.children)",
             "lower = Node(node.pages[same:], node.blocks[same:])"), (_CUT, "{**node.children, lower.pages[0]: lower}")
             ],
            "After a cut the old children still hang on the upper part. They come behind the lower part's end, so they "
            "belong to it.",
        ),
        (
            "blocks_not_cut",
            [("node.pages[:same], node.blocks[:same], ", "node.pages[:same], node.blocks, ")],
            "After a cut the upper part keeps all blocks. Cut `blocks` where you cut `pages`.",
        ),
        (
            "cut_one_late",
            [("            if same < len(node.pages):\n                lower",
             "            if same + 1 < len(node.pages):\n                lower")],
            "A node is not cut when only its last block is left behind the parting. Cut whenever "
            "same < len(node.pages).",
        ),
        (
            "child_by_first_block_of_the_prompt",
            [("            node.children[pages[known]] = Node", "            node.children[pages[0]] = Node")],
            "The new child is filed under the prompt's first page. It is looked for under its own "
            "first page, pages[known].",
        ),
        (
            "blocks_from_the_front",
            [("list(blocks[known : len(pages)])", "list(blocks[: len(pages) - known])")],
            "The new node gets the first blocks of the table. Page i is in blocks[i]: the new ones begin at `known`.",
        ),
        (
            "all_of_the_prompt_again",
            [(_LAST, _LAST.replace("Node(pages[known:], list(blocks[known : len(pages)]))",
             "Node(list(pages), list(blocks[: len(pages)]))"))],
            "The new node holds the whole prompt, also what the nodes above it have. It holds what is behind them.",
        ),
        (
            "new_ones_counted",
            [("        return known", "        return len(pages) - known")],
            "Insert returns how many blocks are new. Wanted is how many were there already.",
        ),
        (
            "tokens_counted",
            [("        return known", "        return known * self.block_size")],
            "Insert returns tokens. Wanted is a number of blocks.",
        ),
        (
            "own_blocks_replaced",
            [("            known += same\n",
             "            node.blocks = list(blocks[known : known + same])\n            known += same\n")],
            "Insert replaces the tree's blocks by the caller's copies. Other requests' tables point at the tree's "
            "own: keep those.",
        ),
        (
            "left_over_as_a_block",
            [("        if known < len(pages):\n", "        if len(token_ids) % self.block_size:\n"
             "            pages = [*pages, tuple(token_ids[len(pages) * self.block_size :])]\n"
             "        if known < len(pages):\n")],
            "The tokens left over at the end are put in as a block. It is not full yet, and will be written again: "
            "whole blocks only.",
        ),
    )
)  # fmt: skip

RIGHT = (
    """\
class RadixTree:
    def __init__(self, block_size):
        self.size = block_size
        self.root = Node()

    def match(self, token_ids):
        def below(node, pages):
            child = node.children.get(pages[0]) if pages else None
            if child is None:
                return []
            same = common(child.pages, pages)
            more = below(child, pages[same:]) if same == len(child.pages) else []
            return child.blocks[:same] + more

        return below(self.root, pages_of(token_ids, self.size))

    def insert(self, token_ids, blocks):
        def below(node, pages, blocks):
            if not pages:
                return 0
            if pages[0] not in node.children:
                node.children[pages[0]] = Node(pages, blocks)
                return 0
            child = node.children[pages[0]]
            same = common(child.pages, pages)
            if same < len(child.pages):
                tail = Node(child.pages[same:], child.blocks[same:], dict(child.children))
                del child.pages[same:], child.blocks[same:]
                child.children = {tail.pages[0]: tail}
            return same + below(child, pages[same:], blocks[same:])

        pages = pages_of(token_ids, self.size)
        return below(self.root, pages, list(blocks)[: len(pages)])
""",
    """\
class RadixTree:
    # the node above is made anew, and the old object becomes the lower part
    def __init__(self, block_size):
        self.block_size, self.root = block_size, Node()

    def match(self, token_ids):
        node, rest, found = self.root, pages_of(token_ids, self.block_size), []
        while rest and rest[0] in node.children:
            node = node.children[rest[0]]
            for page, block in zip(node.pages, node.blocks):
                if not rest or rest[0] != page:
                    return found
                found.append(block)
                rest = rest[1:]
        return found

    def insert(self, token_ids, blocks):
        rest, parent = pages_of(token_ids, self.block_size), self.root
        have = len(self.match(token_ids))
        left = have
        while left:
            child = parent.children[rest[0]]
            if left < len(child.pages):
                upper = Node(child.pages[:left], child.blocks[:left])
                child.pages, child.blocks = child.pages[left:], child.blocks[left:]
                upper.children[child.pages[0]] = child
                parent.children[rest[0]] = child = upper
            left -= len(child.pages)
            rest, parent = rest[len(child.pages) :], child
        if rest:
            parent.children[rest[0]] = Node(rest, [*blocks[have : have + len(rest)]])
        return have
""",
)
