"""Exercise 7.5, RadixTree: beginnings kept in a tree of runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.exercises.nb01_cache import same
from autograder.exercises.nb07_shared import Told, flat, judge_told, parsed
from autograder.kept import known_mistakes

MATCH, INSERT = range(2)
IMPORTS = "import numpy as np\nfrom course_lib.lessons.nb07_prefix_cache import Node, common, pages_of"


def drive(make, block_size: int, operations: list[int], shape: int) -> list[int]:
    """Each operation: match, or insert with the blocks first. With `shape`, also every node after an insert."""
    tree, seen, names = make(block_size), [], []
    for kind, given in parsed(operations):
        if kind == MATCH:
            seen.append(tree.match(list(given)))
            names.append("what match gives")
        else:
            blocks, tokens = given[1 : 1 + given[0]], given[1 + given[0] :]
            seen.append([tree.insert(list(tokens), list(blocks))])
            names.append("what insert gives")
            if shape:
                seen.append(_nodes(tree.root))
                names.append("a node's blocks")
    return flat(seen, names)


def _nodes(root) -> list[int]:
    """-1 before each node's blocks and -2 behind its children; nodes in the order of their blocks."""
    numbers = [-1, *root.blocks]
    for child in sorted(root.children.values(), key=lambda node: list(node.blocks)):
        numbers += _nodes(child)
    return [*numbers, -2]


def _cases(seed: int, shape: bool) -> list[Call]:
    """Prompts of few tokens over few beginnings: they part inside blocks, inside runs and between them."""
    rng = np.random.default_rng(seed)
    calls = []
    for size in (1, 2, 3):
        first = int(rng.integers(10, 100))
        alphabet = [first, first + 1]
        operations, spare = [], 1
        prompts = [[alphabet[0]] * (4 * size), [alphabet[0]] * (2 * size) + [alphabet[1]] * (2 * size)]
        prompts += [[*prompts[0], *[alphabet[1]] * size, *[7]], prompts[0][: 3 * size]]
        prompts += [[*prompts[0][: 3 * size], *[alphabet[1]] * size], [*prompts[0][: 2 * size], alphabet[1]]]
        for _ in range(14):
            length = int(rng.integers(0, 8 * size))
            prompts.append([alphabet[int(bit)] for bit in (rng.random(length) < 0.35)])
        for tokens in prompts:
            operations += [MATCH, len(tokens), *tokens]
            count = -(-len(tokens) // size)  # the table of a request has a block for what is left over, too
            blocks = list(range(spare, spare + count))
            spare += count
            operations += [INSERT, 1 + count + len(tokens), count, *blocks, *tokens]
            operations += [MATCH, len(tokens), *tokens]
        for tokens in prompts[:8]:
            longer = [*tokens, 5, 5, 5]
            operations += [MATCH, len(longer), *longer]
        calls.append(Call((size, operations, int(shape)), f"RadixTree({size})"))
    return calls


def value_cases(seed: int) -> list[Call]:
    return _cases(seed, shape=False)


def node_cases(seed: int) -> list[Call]:
    return _cases(seed, shape=True)


class _Oracle:
    """One entry for each cached block, under the whole beginning that ends with it; and where a run was cut."""

    def __init__(self, size: int):
        self.size = size
        self.block: dict[tuple, int] = {}
        self.ends: set[tuple] = set()

    def match(self, tokens: Sequence[int]) -> list[int]:
        found, at = [], self.size
        while at <= len(tokens) and tuple(tokens[:at]) in self.block:
            found.append(self.block[tuple(tokens[:at])])
            at += self.size
        return found

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> int:
        known, whole = len(self.match(tokens)), len(tokens) // self.size
        for i in range(known, whole):
            self.block[tuple(tokens[: (i + 1) * self.size])] = blocks[i]
        self.ends |= {tuple(tokens[: n * self.size]) for n in (known, whole) if n}
        return known

    def nodes(self, above: tuple = ()) -> list[int]:
        """As `_nodes`: a run goes on to the next end."""
        parts, numbers = [], []
        for begin in self.block:
            if len(begin) == len(above) + self.size and begin[: len(above)] == above:
                run = begin
                while run not in self.ends:
                    (run,) = (p for p in self.block if len(p) == len(run) + self.size and p[: len(run)] == run)
                steps = range(len(begin), len(run) + 1, self.size)
                parts.append(([self.block[run[:n]] for n in steps], run))
        for blocks, run in sorted(parts):
            numbers += [-1, *blocks, *self.nodes(run), -2]
        return numbers


def _told(call: Call) -> list[Told]:
    size, operations, shape = call.args
    oracle, story = _Oracle(size), []
    for kind, given in parsed(operations):
        if kind == MATCH:
            story.append((f"match({given})", oracle.match(given)))
        else:
            blocks, tokens = given[1 : 1 + given[0]], given[1 + given[0] :]
            story.append((f"insert({tokens}, {blocks})", [oracle.insert(tokens, blocks)]))
            if shape:
                story.append((f"insert({tokens}, {blocks}): the tree behind it", [-1, *oracle.nodes(), -2]))
    return story


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return judge_told(calls, outcomes, _told)


def judge_nodes(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    verdict = judge_told(calls, outcomes, _told)
    how = "In the lists of a tree, -1 begins a node, its blocks follow, then its children, and -2 ends it."
    return Verdict(False, what=f"{verdict.what} {how}") if "the tree behind it" in verdict.what else verdict


SOLUTION = "course_lib.lessons.nb07_prefix_cache:RadixTree"

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

EXERCISE = Exercise(
    name="RadixTree",
    groups=(Group("values", value_cases, judge_values), Group("nodes", node_cases, judge_nodes)),
    same=same,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 07, section 6.",
    imports=IMPORTS,
    solution=SOLUTION,
    library=("course_lib.cache.radix:RadixCache",),
    driver=drive,
)
