"""Known mistakes in exercise 7.4, RequestCache."""

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

    leak_on_refusal
      self.allocator.touch(hit)  ->
      if new + revived > len  ->  self.allocator.touch(hit)\nif new > len
    A refused request keeps its hold on the hit: those blocks leak, and are never free again. Look whether there is
    room before you touch.

    touched_and_let_go
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

    everything_new
      self.prefix.match(hashes[: (num_tokens - 1) // self.block_size])  ->  []
    The cache is never asked: every block is a new one.
"""
