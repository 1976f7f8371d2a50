"""Exercise 7.1, block_hash: what a block is found by."""

from __future__ import annotations

import hashlib

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.kept import known_mistakes

IMPORTS = "import hashlib\nfrom struct import pack\nimport numpy as np"


def drive(block_hash, parent: list[int], tokens: list[int]) -> list[int]:
    """The hash as a list of its bytes."""
    value = block_hash(bytes(parent), tokens)
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"it returned something of type {type(value).__name__}, wanted bytes: .digest() gives them")
    return list(value)


def value_cases(seed: int) -> list[Call]:
    """Chains: equal blocks behind different parents, tokens that look alike when they are run together, large ids."""
    rng = np.random.default_rng(seed)
    parent = lambda: rng.integers(0, 256, 32).tolist()  # noqa: E731
    tokens = lambda n: rng.integers(0, 150_000, n).tolist()  # noqa: E731
    same, one = tokens(16), parent()
    a, b = (int(x) for x in rng.integers(1, 9, 2))
    cases = [(parent(), same), (parent(), same), (one, tokens(4)), (one, tokens(4)), (one, tokens(16)[::-1])]
    cases += [(one, [a, 10 * b + a]), (one, [10 * a + b, a]), (one, [a]), (one, [a + 256]), (one, [a + 2**32])]
    cases += [(one, [b, a, 9]), (one, [9, a, b])]
    return [Call(case, f"block_hash(parent, {_shown(case[1])})") for case in cases]


def _shown(tokens: list[int]) -> str:
    return str(tokens) if len(tokens) <= 4 else f"[{', '.join(map(str, tokens[:3]))}, ... {len(tokens)} tokens]"


def _wanted(parent: list[int], tokens: list[int]) -> list[int]:
    text = bytes(parent) + b"".join(token.to_bytes(8, "little") for token in tokens)
    return list(hashlib.sha256(text).digest())


def _trouble(call: Call, got: np.ndarray) -> str | None:
    wanted = _wanted(*call.args)
    if got.tolist() == wanted:
        return None
    if got.size != 32:
        return f"{call.label} has {got.size} bytes, wanted the 32 of SHA-256."
    shown = [bytes(x[:4]).hex() for x in (got.astype(int).tolist(), wanted)]
    return f"{call.label} begins with the bytes {shown[0]}, wanted {shown[1]}."


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} blocks")


SOLUTION = "course_lib.cache.prefix:block_hash"

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

    xor_with_parent
      return hashlib.sha256(parent + pack  ->  own = hashlib.sha256(pack
      .digest()  ->  .digest()\nreturn bytes(a ^ b for a, b in zip(parent, own))
    The parent is mixed in by XOR behind the hash. Then two blocks that change places give the same hash at the end.
    Put the parent into what is hashed.
"""

EXERCISE = Exercise(
    name="block_hash",
    groups=(Group("values", value_cases, judge_values),),
    same=same_integers,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 07, section 2.",
    imports=IMPORTS,
    solution=SOLUTION,
    driver=drive,
)
