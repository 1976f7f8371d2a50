"""Exercise 7.4, RequestCache: hits first, then new blocks; published when they are computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.drivers import nb07
from autograder.kit import Script, exercise, played, same_story

SOLUTION = "course_lib.lessons.nb07_prefix_cache:RequestCache"


class Server:
    """Writes into a script what requests do with an Allocator, a PrefixCache and a RequestCache, and looks after each.

    A prompt is given as letters, each a full block, and the number of tokens behind them.
    """

    def __init__(self, script: Script, number: int, num_blocks: int, block_size: int, salt: int):
        self.do, self.objects = script.do, script.stage.objects
        self.num_blocks, self.size, self.salt = num_blocks, block_size, salt
        self.pool, self.prefix, self.cache = (f"{name}{number}" for name in ("pool", "prefix", "cache"))
        self.running: list[tuple] = []  # (block table, hashes, tokens) of each request
        self.do(self.pool, "new Allocator", num_blocks)
        self.do(self.prefix, "new PrefixCache", num_blocks)
        self.do(self.pool, "allocate", 1), self.do(self.prefix, "publish", *self.hashes("Z"), 1)  # in use already
        self.do(self.cache, "new", self.pool, self.prefix, block_size)

    def hashes(self, letters: str) -> list[bytes]:
        """One for each beginning, called by its letters."""
        return [b"%s%d" % (letters[: i + 1].encode(), self.salt) for i in range(len(letters))]

    def see(self) -> None:
        blocks = range(1, self.num_blocks + 1)
        self.do(self.pool, ".refs", *blocks), self.do(self.pool, ".free"), self.do(self.prefix, ".in", *blocks)

    def admit(self, letters: str, more: int = 0, *, computed: bool = False) -> int:
        """Returns how many tokens hit. A request that is admitted is running; it may be computed at once."""
        letters, more = letters + "y" * (more // self.size), more % self.size
        total, hashes = len(letters) * self.size + more, self.hashes(letters)
        hit = len(self.objects[self.prefix].match(hashes[: (total - 1) // self.size])) * self.size
        table = self.do(self.cache, "admit", total, hashes)
        self.see()
        if table:
            self.running.append((table, hashes, total))
            self.commit(hit, *[total] * computed)
        return hit

    def commit(self, *stops: int, place: int = -1) -> None:
        """A running request computes its tokens up to each of `stops` in turn, from the first one on."""
        table, hashes, _ = self.running[place]
        for start, stop in zip(stops, stops[1:]):
            self.do(self.cache, "commit", table, hashes, start, stop), self.see()

    def end(self, place: int = 0) -> None:
        self.do(self.pool, "release", self.running.pop(place)[0]), self.see()

    def end_all(self) -> None:
        while self.running:
            self.end()

    def edges(self) -> None:
        """Chunks that end everywhere, copies, prompts that are cached as a whole, of one block and of one token."""
        size, commit = self.size, self.commit
        self.admit("ABC", 2), commit(0, 1, size, 2 * size - 1, 2 * size, 2 * size, 3 * size + 1, 3 * size + 2)
        self.admit("Z", 1), self.admit("ABC", computed=True), self.admit("ABC", 1), self.admit("ABG", 1)
        self.end(0), self.end(-1), self.admit("", 1), self.admit("AB"), self.admit("A", computed=True), self.end(2)
        self.admit("EF"), self.admit("EF"), commit(0, size), commit(0, 2 * size, place=-2), commit(size, 2 * size)
        self.admit("EF", computed=True), self.end(-3), self.admit("EF", 1), self.end_all()
        self.admit("ABC", 2, computed=True), self.do(self.cache, "spoil", "arguments"), self.admit("ABC", 2)
        self.do(self.cache, "spoil", "result"), self.admit("ABC", 2), self.end_all()
        for block in self.objects[self.prefix].blocks[self.hashes("A")[0]][:]:  # as when a step has failed
            self.do(self.prefix, "forget", block)
        self.admit("ABC", 1, computed=True), self.admit("ABC", 1), self.end_all()
        self.admit("R" * (self.num_blocks - 1)), self.end_all()  # everything else is evicted

    def tight_edges(self) -> None:
        """Room for exactly what is needed, or for less; hits that are free, held, and both, in front of `free`."""
        most = self.num_blocks - 1  # one is in use for good
        serve = lambda *prompt: (self.admit(*prompt, computed=True), self.end(-1))  # noqa: E731
        fill = lambda blocks: self.admit("Q" * blocks)  # noqa: E731
        # a hit that is free: room for it and one block more, then for it alone
        serve("ABC", 1), fill(most - 4), self.admit("ABC", 1), self.admit("", 1), self.end_all()
        fill(most - 3), self.admit("ABC", 1), self.admit("ABC"), self.commit(0, 3 * self.size), self.end_all()
        # a hit in front of `free`, and new blocks behind it: one too many, then as many as there are
        serve("AB", 1), fill(most - 3), self.end(), self.admit("ABDEFGHIJ"[:most], 1)
        self.admit("ABDEFGHIJ"[:most]), self.end_all()
        # a hit of which one block is held and one is free
        serve("UV", 1), self.admit("U", 1), fill(most - 4), self.admit("UV", 1), self.admit("", 1), self.end_all()
        # more than the pool has; a hit that is held, with no room behind it
        self.admit("ABCDEFGHIJ"[: most + 1]), self.admit("Z", 1), fill(most - 1), self.admit("Z", 1), self.end_all()
        # every block evicted; then all but one, which is a hit
        serve("R" * most), self.admit("S" * (most - 1), computed=True), self.admit("R", 1), self.end_all()

    def step(self, rng: np.random.Generator, most: int) -> None:
        """Some requests end, and one comes: over few beginnings, some of them whole blocks, computed in two chunks."""
        while self.running and (len(self.running) > most or rng.random() < 0.4):
            self.end(int(rng.integers(0, len(self.running))))
        depth, before = int(rng.integers(1, 6 - most)), len(self.running)
        letters = "AB" + "".join(rng.choice(list("CD"), 3)) if rng.random() < 0.75 else "EFGHI"
        hit = self.admit(letters[:depth], int(rng.integers(0, self.size)))
        if len(self.running) > before and rng.random() < 0.9:
            total = self.running[-1][2]
            self.commit(int(rng.choice([0, hit])), int(rng.integers(hit + 1, total + 1)), total)


def traces(seed: int) -> Iterator[tuple[str, Script]]:
    rng, script = np.random.default_rng(seed), Script(SOLUTION, nb07.PARTS)
    salt = int(rng.integers(1, 10_000))
    servers = [Server(script, 1, 25, 4, salt), Server(script, 2, 26, 3, salt)]
    for server in servers:
        server.edges()
    for _ in range(24):
        servers[rng.integers(2)].step(rng, 2)
    yield "RequestCache", script


def tight(seed: int) -> Iterator[tuple[str, Script]]:
    """A small pool: hits among the free blocks, evictions, and requests that do not fit."""
    rng = np.random.default_rng(seed)
    for num_blocks, size in ((7, 4), (8, 3), (6, 1)):
        script = Script(SOLUTION, nb07.PARTS)
        server = Server(script, 1, num_blocks, size, int(rng.integers(1, 10_000)))
        server.tight_edges()
        for _ in range(12):
            server.step(rng, 1)
        yield f"RequestCache over {num_blocks} blocks of {size}", script


MISTAKES = r"""
    nothing_left
      hashes[: (num_tokens - 1) // self.block_size]  ->  hashes
    When the whole prompt is cached, all of it is attached and nothing is left to compute: no logits, and so no
    first token, ever. Leave at least one token: match (num_tokens - 1) // block_size hashes.

    always_one_block_less
      (num_tokens - 1) // self.block_size  ->  max(num_tokens // self.block_size - 1, 0)
    A block is held back even where a token is left over behind the last full block. Hold back only what is needed:
    (num_tokens - 1) // block_size hashes may hit.

    touch_after_allocate
      self.allocator.touch(hit)  ->
      *self.allocator.allocate(new)]  ->  *self.allocator.allocate(new)]\nself.allocator.touch(hit)
    The new blocks are allocated before the hit is touched. A hit block that is free can then be allocated as a new
    one: the request evicts its own hit, and has the same block twice in its table. Touch first.

    revived_not_counted
      new + revived > len  ->  new > len
    Hit blocks that are free are counted as room for the new ones. Touching takes them out of `free`: add them to
    what is needed.

    held_hit_counted
      self.allocator.refs[block] == 0 for block in hit  ->  True for block in hit
    All blocks of the hit are counted as leaving `free`. Those that another request holds are not in it: a request that
    fits is refused.

    one_must_stay
      new + revived > len  ->  new + revived >= len
    The last free block is never allocated: a request may take all free blocks, so use >.

    leak_on_refusal
      self.allocator.touch(hit)  ->
      if new + revived > len  ->  self.allocator.touch(hit)\nif new > len
    A refused request keeps its hold on the hit: those blocks leak, and are never free again. Look whether there is
    room before you touch.

    touched_and_released
      self.allocator.touch(hit)  ->
      if new + revived > len  ->  self.allocator.touch(hit)\nif new > len
      return None  ->  self.allocator.release(hit)\nreturn None
    A refused request touches its hit and releases it again, which moves it to the end of `free`. Refusing changes
    nothing: look whether there is room before you touch.

    revived_is_forgotten
      table[len(hit) :]  ->  table
    A hit block that is revived loses its hash, so the next request with this beginning does not find it. It keeps
    its content, so it keeps its hash.

    not_forgotten
      self.prefix.forget(block)  ->  pass
    A new block is still found by what it held before. The new request overwrites that, and a request that then
    finds the block is served another text. Forget each new block that can be found.

    published_early
      return table  ->  self.commit(table, hashes, 0, num_tokens)\nreturn table
    Blocks are published when they are allocated, before anything is written into them. A request that finds one
    attends to keys that are not there yet. Publish in commit.

    part_of_a_block
      stop // self.block_size  ->  min(-(-stop // self.block_size), len(hashes))
    The block in which `stop` falls is published before it is full. Only whole blocks: stop // block_size.

    whole_prompt_published
      stop // self.block_size  ->  len(hashes)
    Commit publishes all blocks of the prompt after its first chunk. Publish the blocks up to `stop`.

    straddling_block_missed
      start // self.block_size  ->  -(-start // self.block_size)
    A block that one chunk began and the next one filled is never published. It is filled now, so begin at start //
    block_size.

    new_not_rounded_up
      -(-num_tokens // self.block_size)  ->  num_tokens // self.block_size
    The tokens behind the last full block have no block. Round the number of blocks up.

    hit_not_held
      self.allocator.touch(hit)  ->
    The hit is attached and not touched, so this request is not counted as a holder: the blocks can be allocated to
    others while it reads them. Touch them.

    shared_between_caches
      self.allocator, self.prefix, self.block_size =  ->  c = type(self)\nc.allocator, c.prefix, c.block_size =
    Two RequestCaches share their parts: the first one uses the allocator of the second. What belongs to one object is
    kept as self.something; a variable of the class belongs to all objects.

    everything_new
      self.prefix.match(hashes[: (num_tokens - 1) // self.block_size])  ->  []
    The cache is never asked: every block is a new one.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[
        played("trace", SOLUTION, traces, nb07.requests),
        played("tight", SOLUTION, tight, nb07.requests),
    ],
    mistakes=MISTAKES,
    reread="Reread notebook 07, section 5.",
    same=same_story,
    driver=nb07.requests,
)
