"""Exercise 7.1, block_hash: what a block is found by."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder.exercise import Call
from autograder.kit import exercise, shown, values
from autograder.plain import Other

SOLUTION = "course_lib.cache.prefix:block_hash"


def blocks(seed: int) -> Iterator[tuple[bytes, list[int] | tuple[int, ...]]]:
    """Equal blocks behind different parents; tokens that look alike when run together, zeros, copies, large ids."""
    rng = np.random.default_rng(seed)
    parents = [rng.bytes(32), b"\0" + rng.bytes(30) + b"\0", bytes(32)]
    tokens = lambda n: rng.integers(0, 150_000, n).tolist()  # noqa: E731
    same, one = tokens(16), rng.bytes(32)
    a, b = (int(x) for x in rng.integers(1, 9, 2))
    yield from ((parent, same) for parent in parents)
    yield from ((one, given) for given in (tokens(4), tuple(tokens(4)), same[::-1], tokens(40), tuple(tokens(1))))
    yield from ((one, [a, 10 * b + a]), (one, [10 * a + b, a]), (one, [a]), (one, [a + 256]), (one, [a + 2**32]))
    yield from ((one, [b, a, 9]), (one, [9, a, b]), (one, (9, a, b, a, 9)), (one, [b, b]), (one, [a, a, a, a]))
    yield from ((one, [0]), (one, [0, a]), (one, [a, 0]), (bytes(32), [0, 0, 0]), (one, [2**62 + b]))


def label(parent: bytes, tokens: list[int] | tuple[int, ...]) -> str:
    text = shown(tokens) if len(tokens) <= 5 else f"[{', '.join(map(str, tokens[:3]))}, ... {len(tokens)} tokens]"
    return f"block_hash({'a root of 32 zeros' if parent == bytes(32) else 'parent'}, {text})"


def trouble(call: Call, got: object, wanted: bytes) -> str | None:
    if not isinstance(got, bytes):
        what = f"of type {got.kind if isinstance(got, Other) else type(got).__name__}"
        return f"{call.label} returned {'None' if got is None else 'something ' + what}, wanted bytes: .digest()."
    if len(got) != 32:
        return f"{call.label} has {len(got)} bytes, wanted the 32 of SHA-256."
    same = got == wanted
    return None if same else f"{call.label} begins with the bytes {got[:4].hex()}, wanted {wanted[:4].hex()}."


MISTAKES = r"""
    no_parent
      parent + pack  ->  pack
    The parent's hash is left out. Then equal tokens behind another beginning are taken for the same block, and a
    request is served keys and values that were computed from another user's text.

    parent_behind
      parent + pack(f"<{len(token_ids)}q", *token_ids)  ->  pack(f"<{len(token_ids)}q", *token_ids) + parent
    The parent's hash stands behind the tokens. Any fixed order separates blocks, but every look-up must use the
    same one: parent first.

    tokens_run_together
      pack(f"<{len(token_ids)}q", *token_ids)  ->  "".join(map(str, token_ids)).encode()
    The tokens' digits are run together: tokens 1, 23 and 12, 3 have the same hash. Give each token 8 bytes.

    text_of_the_list
      pack(f"<{len(token_ids)}q", *token_ids)  ->  str(list(token_ids)).encode()
    This hashes how Python writes the list. The docstring wants each token's 8 bytes: pack(f'<{n}q', *tokens).

    one_byte_each
      pack(f"<{len(token_ids)}q", *token_ids)  ->  bytes(token % 256 for token in token_ids)
    One byte a token is too small: tokens 7 and 263 become the same. Each token has 8 bytes.

    four_bytes_each
      pack(f"<{len(token_ids)}q", *token_ids)  ->  np.array(token_ids).astype("<u4").tobytes()
    Each token has 4 bytes here, and the docstring says 8.

    big_endian
      "<{len(token_ids)}q"  ->  ">{len(token_ids)}q"
    The bytes of each token stand in the other order: '<' in pack means little-endian, '>' means big-endian.

    sorted_tokens
      *token_ids  ->  *sorted(token_ids)
    The tokens are sorted first, so a block has the same hash in any order of its tokens. The order matters.

    first_token_only
      pack(f"<{len(token_ids)}q", *token_ids)  ->  pack("<q", token_ids[0])
    Only the first token goes in. Two blocks that begin alike would be taken for the same one.

    hex_text
      digest()  ->  hexdigest().encode()
    This is the hash as text, 64 letters. .digest() gives its 32 bytes.

    short_parent
      parent +  ->  parent[:8] +
    Only 8 bytes of the parent's hash go in. All 32 do: a short hash can be made to collide.

    each_token_once
      pack(f"<{len(token_ids)}q", *token_ids)  ->  pack(f"<{len(set(token_ids))}q", *dict.fromkeys(token_ids))
    A token that occurs a second time is left out. A block of 16 tokens has 16 numbers in its text, equal or not.

    sixteen_tokens
      pack(f"<{len(token_ids)}q", *token_ids)  ->  pack(f"<{len(token_ids[:16])}q", *token_ids[:16])
    Only the first 16 tokens go in. A block may have any length: all of its tokens do.

    remembered_by_tokens
      | def block_hash(parent, token_ids, seen={}):
      |     key = tuple(token_ids)
      |     if key not in seen:
      |         seen[key] = hashlib.sha256(parent + pack(f"<{len(key)}q", *key)).digest()
      |     return seen[key]
    The hash is remembered by the tokens alone, so the same tokens behind another parent get the first one's hash.

    xor_with_parent
      return hashlib.sha256(parent + pack  ->  own = hashlib.sha256(pack
      .digest()  ->  .digest()\nreturn bytes(a ^ b for a, b in zip(parent, own))
    The parent is mixed in by XOR behind the hash. Then two blocks that change places give the same hash at the end.
    Put the parent into what is hashed.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[values("values", SOLUTION, blocks, label, trouble, count="blocks", form=object)],
    mistakes=MISTAKES,
    reread="Reread notebook 07, section 2.",
    imports="import hashlib\nfrom struct import pack\nimport numpy as np",
)
