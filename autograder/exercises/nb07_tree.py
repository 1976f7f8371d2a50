"""Exercise 7.5, RadixTree: beginnings kept in a tree of runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.drivers import nb07
from autograder.kit import Script, exercise, played, same_story

SOLUTION = "course_lib.lessons.nb07_prefix_cache:RadixTree"


class Trees(Script):
    """Prompts go into trees and are looked for; with `shape`, all nodes are seen after each call."""

    def __init__(self, size: int, shape: bool):
        super().__init__(SOLUTION)
        self.size, self.shape, self.spare = size, shape, 0

    def see(self, *line: object) -> object:
        came = self.do(*line)
        self.extend([(line[0], ".tree")] * self.shape)
        return came

    def insert(self, name: str, tokens: list[int], hit: bool = False) -> None:
        """Its block table descends, with a block for what is left over; with `hit` it begins with the tree's blocks."""
        count = -(-len(tokens) // self.size)
        known = self.see(name, "match", tokens)
        self.spare += count
        blocks = list(range(self.spare, self.spare - count, -1))
        self.see(name, "insert", tokens, [*known, *blocks[len(known) :]] if hit else blocks)
        self.do(name, "match", tokens)

    def edges(self, a: int, b: int) -> None:
        """Prompts part inside a page, inside a run at each place, between runs; they end there, and come twice."""
        size, one, two = self.size, [a] * self.size, [b] * self.size
        prompts = [[], [a] * (size - 1), 4 * one, 2 * one + 2 * two, 4 * one + two + [7], 4 * one, 3 * one, 3 * one]
        prompts += [3 * one + two, 2 * one + [a] * (size - 1) + [b], two + 2 * one, two + one + [a] * (size - 1), one]
        prompts += [two + 3 * one, [*range(100 + size, 100, -1), *two], [a] * (size - 1) + [b] + two + one]
        for name in ("tree", "other"):
            self.see(name, "new", size)
        self.see("wider", "new", size + 1)  # its pages are its own affair
        for tokens in prompts:
            self.insert("tree", tokens)
            self.see("tree", "match", one + 2 * two)
        for tokens in prompts:
            self.see("tree", "match", [*tokens, 5, 5, 5]), self.see("other", "match", tokens[:size])
        self.insert("other", 2 * one), self.do("other", "insert", 2 * two, [901, 900])
        for what, tokens in (("arguments", two), ("result", 2 * two), ("result", one), ("result", 2 * one)):
            self.do("other", "spoil", what), self.see("other", "match", tokens)
        self.see("tree", "match", 2 * one), self.insert("other", two + one)

    def some(self, rng: np.random.Generator, name: str, a: int, b: int) -> None:
        """Prompts of two tokens over few beginnings."""
        self.see(name, "new", self.size)
        for length in rng.integers(self.size, 6 * self.size, 7):
            self.insert(name, [b if bit else a for bit in rng.random(length) < 0.35], hit=rng.random() < 0.5)


def scripts(seed: int, shape: bool) -> Iterator[tuple[str, Trees]]:
    rng = np.random.default_rng(seed)
    for size in (1, 2, 3):
        a, script = int(rng.integers(10, 100)), Trees(size, shape)
        script.edges(a, a + 1)
        yield f"RadixTree({size})", script
        for _ in range(2):
            script = Trees(size, shape)
            script.some(rng, "tree", a, a + 1)
            yield f"RadixTree({size})", script


MISTAKES = r"""
    whole_run_matched
      found += node.blocks[:same]  ->  found += node.blocks
    Match takes all blocks of the node in which the prompts part. Those behind the parting hold another text: take
    node.blocks[:same].

    nothing_of_the_run
      found += node.blocks[:same]  ->  found += node.blocks if same == len(node.pages) else []
    Match leaves out the node in which the prompts part. Its first `same` blocks are a hit.

    never_cut
      lower = Node(node.pages[same:], node.blocks[same:], node.children)  ->  pass
      node.pages, node.blocks, node.children = node.pages[:same], node.blocks[:same], {lower.pages[0]: lower}  ->
    The node in which the prompts part is not cut, so the new child hangs behind its end: as if its text came after
    all of the node's. Cut the node at the parting first.

    lower_part_lost
      {lower.pages[0]: lower}  ->  {}
    After a cut the lower part is in no node's children, and all that is below it is lost. It becomes a child of the
    upper part.

    children_left_above
      node.blocks[same:], node.children  ->  node.blocks[same:]
      {lower.pages[0]: lower}  ->  {**node.children, lower.pages[0]: lower}
    After a cut the old children still hang on the upper part. They come behind the lower part's end, so they belong
    to it.

    blocks_not_cut
      node.pages[:same], node.blocks[:same]  ->  node.pages[:same], node.blocks
    After a cut the upper part keeps all blocks. Cut `blocks` where you cut `pages`.

    cut_one_late
      lower = Node(  ->  if same + 1 == len(node.pages):\n    known += same\n    continue\nlower = Node(
    A node is not cut when only its last block is left behind the parting. Cut whenever same < len(node.pages).

    child_by_first_block_of_the_prompt
      node.children[pages[known]] =  ->  node.children[pages[0]] =
    The new child is filed under the prompt's first page. It is looked for under its own first page, pages[known].

    blocks_from_the_front
      blocks[known : len(pages)]  ->  blocks[: len(pages) - known]
    The new node gets the first blocks of the table. Page i is in blocks[i]: the new ones begin at `known`.

    sorted_blocks
      return found  ->  return sorted(found)
    Match sorts the blocks by number. Block i must hold page i of the prompt: give them in the order of the text.

    match_cuts
      break  ->  self.insert(token_ids[: len(found) * self.block_size], found)\nbreak
    Match cuts the node in which the prompts part. It finds the right blocks, and the tree is another one after every
    look-up: matching changes nothing. Cut in insert alone.

    its_own_list
      found += node.blocks[:same]  ->  found = found + node.blocks[:same]
      return found  ->  return node.blocks if node.blocks == found else found
    Match gives a node's own list of blocks. The caller goes on with that list, as with any block table, and the node
    changes with it. Return a new list.

    shared_between_trees
      class RadixTree:  ->  class RadixTree:\n    root = Node()
      self.block_size, self.root = block_size, Node()  ->  self.block_size = block_size
    Two trees share one root: what is inserted into one is found in the other. What belongs to one object is made in
    __init__, as self.something; a variable of the class belongs to all objects.

    all_of_the_prompt_again
      Node(pages[known:], list(blocks[known : len(pages)]))  ->  Node(list(pages), list(blocks[: len(pages)]))
    The new node holds the whole prompt, also what the nodes above it have. It holds what is behind them.

    new_ones_counted
      return known  ->  return len(pages) - known
    Insert returns how many blocks are new. Wanted is how many were there already.

    tokens_counted
      return known  ->  return known * self.block_size
    Insert returns tokens. Wanted is a number of blocks.

    own_blocks_replaced
      known += same  ->  node.blocks = list(blocks[known : known + same])\nknown += same
    Insert replaces the tree's blocks by the caller's copies. Other requests' tables point at the tree's own: keep
    those.

    left_over_as_a_block
      if known <  ->  left_over = tuple(token_ids[len(pages) * self.block_size :])\nif known <
      if known  ->  pages += [left_over] if left_over else []\nif known
    The tokens left over at the end are put in as a block. It is not full yet, and will be written again: whole
    blocks only.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        played("values", SOLUTION, lambda seed: scripts(seed, shape=False), nb07.trees),
        played("nodes", SOLUTION, lambda seed: scripts(seed, shape=True), nb07.trees),
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 07, section 6.",
    imports="import numpy as np\nfrom course_lib.lessons.nb07_prefix_cache import Node, common, pages_of",
    library=("course_lib.cache.radix:RadixCache",),
    same=same_story,
    driver=nb07.trees,
)
