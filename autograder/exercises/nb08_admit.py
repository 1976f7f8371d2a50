"""Exercise 8.1, admit: how many tokens of a prompt are attached from the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.exercise import Call
from autograder.kit import draws, exercise, shown, values

SOLUTION = "course_lib.lessons.nb08_both:admit"


def prompts(seed: int) -> Iterator[tuple[int, int, int]]:
    """Hits that end inside a block and at its end, prompts cached from end to end, nothing cached, blocks of 1."""
    draw = draws(seed)
    yield from ((7_000, 5_000, 16), (7_000, 5_000, 256), (7_000, 5_000, 8), (5_008, 5_008, 16))
    for prompt in (1, 2, 15, 16, 17, 31, 32, 33):  # about one block, and about two
        for shared in sorted({0, 1, prompt - 1, prompt, min(prompt, 16)}):
            yield prompt, shared, 16
    for size in (draw(3, 8), draw(9, 40), 1):
        whole = draw(3, 9) * size
        for shared in (whole, whole + size - 1, whole + size // 3, whole + 2 * size // 3):
            yield shared + draw(size, 9 * size), shared, size
            yield shared + 1, shared, size
            yield shared, shared, size
        yield whole + 1, whole + 1, size
        yield whole + 2, whole + 1, size
    yield from ((draw(50, 90), 0, 16), (draw(50, 90), draw(1, 16), 16), (1, 1, 1), (2, 2, 1), (9_000, 9_000, 512))
    yield draw(8_000, 20_000), draw(6_000, 7_900), draw(8, 300)
    yield 7_000, 5_000, 16  # the first once more: it has the same hit


def label(prompt: int, shared: int, size: int) -> str:
    return f"admit(prompt={prompt}, shared={shared}, block_size={size})"


def trouble(call: Call, got: np.ndarray, wanted: np.ndarray) -> str | None:
    prompt, _, size = call.args
    if got.shape != () or got.dtype.kind not in "iu":
        return f"{call.label} is {shown(got)}, wanted one whole number."
    if got == wanted:
        return None
    why = "leaves nothing to compute" if got >= prompt else f"should be {wanted}"
    blocks = "" if got % size == 0 else f", which is no whole number of blocks of {size}"
    return f"{call.label} is {got}{blocks}. It {why}."


MISTAKES = """
    no_cap
      min(shared, prompt - 1)  ->  shared
    A prompt that is cached from end to end is attached as a whole, and nothing is left to compute. The first answer
    token comes from the logits of the last prompt token, so that one must be computed.

    single_tokens
      prompt - 1) // block_size * block_size  ->  prompt - 1)
    This attaches single tokens. The cache finds whole blocks: round down to a multiple of block_size.

    round_then_cap
      min(shared, prompt - 1) // block_size * block_size  ->  min(shared // block_size * block_size, prompt - 1)
    This rounds first and leaves out one token afterwards, so a full hit ends inside a block. Take the last token out
    first, then round down.

    last_block_always
      min(shared, prompt - 1) // block_size  ->  max(shared // block_size - 1, 0)
    The last cached block is always given up. That is needed only where nothing else would be left to compute.

    shared_minus_one
      min(shared, prompt - 1)  ->  max(shared - 1, 0)
    The last shared token is taken out although the prompt goes on behind it. It is the prompt's last token that must be
    left.

    rounds_up
      min(shared, prompt - 1) // block_size  ->  min(-(-shared // block_size), (prompt - 1) // block_size)
    This rounds up. The last of these blocks is shared in part only: its other tokens are another prompt's.

    all_of_the_prompt
      min(shared, prompt - 1)  ->  (prompt - 1)
    This does not look at `shared`: it attaches every whole block of the prompt, computed or not.

    number_of_blocks
      // block_size * block_size  ->  // block_size
    This is how many blocks are attached. How many tokens is block_size times that.

    the_tail
      return min  ->  return prompt - min
    This is the tail, what is left to compute. The hit is the part before it.

    full_hit_is_no_hit
      min(shared, prompt - 1)  ->  (shared if shared < prompt else 0)
    A prompt that is cached from end to end gets nothing at all. All of its blocks but the last can be attached.

    full_hit_gives_up_a_block
      min(shared, prompt - 1) // block_size  ->  (shared // block_size - (shared == prompt))
    Of a prompt that is cached from end to end the last block is given up, also where the prompt ends inside a block.
    There the rounding has left tokens to compute already.

    cap_by_a_block
      min(shared,  ->  max(0, min(shared // block_size * block_size,
      prompt - 1) // block_size * block_size  ->  prompt - block_size))
    This leaves a whole block's worth of tokens, and then the hit need not be in whole blocks. One token is enough to
    leave; rounding down does the rest.

    nearest_block
      min(shared, prompt - 1)  ->  min(shared + block_size // 2, prompt - 1)
    This rounds to the nearest block. A block of which more than half is shared still holds tokens that are not.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, prompts, label, trouble, count="prompts")],
    mistakes=MISTAKES,
    reread="Reread notebook 08, section 2.",
)
