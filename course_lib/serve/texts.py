"""What a prompt's text means in token ids, and the text of an answer's tokens.

The shipped models speak no language, so bytes are tokens. A client that wants exact prompts sends token ids, and asks
for `return_token_ids`. For a model folder with a tokenizer, weights.tokenizer.Tokenizer is the Texts.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from course_lib.weights.ledger import VOCABULARY


class Texts(Protocol):
    """vocab_size: token ids are below it; end: token ids that end an answer, unless a client asks for ignore_eos."""

    vocab_size: int
    end: Sequence[int]

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt's text. ValueError, with the reason, for a text that has none."""

    def reader(self, prompt: Sequence[int]) -> Callable[[int, bool], str]:
        """A function read(token, last) for the tokens of an answer, in order: what each adds to the answer's text."""


class _Pieces:
    """Each token has a text, pieces[token id], that is never empty, so that a client can time it."""

    pieces: Sequence[str]
    end = ()

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def reader(self, prompt: Sequence[int]) -> Callable[[int, bool], str]:
        return lambda token, last: self.pieces[token]


class ByteTexts(_Pieces):
    """Any text is its UTF-8 bytes; with a vocabulary below 256, byte b is token b % vocab_size.

    A token is shown as the printable ASCII character with its number, else as its number, such as "<200>": a
    control character on a terminal does things. So generated text is for looking at, and not the text of a next prompt.
    """

    def __init__(self, vocab_size: int):
        self.pieces = [chr(token) if 32 <= token <= 126 else f"<{token}>" for token in range(vocab_size)]

    def encode(self, text: str) -> list[int]:
        try:
            return [byte % len(self.pieces) for byte in text.encode()]
        except UnicodeEncodeError:
            raise ValueError("the text has half of a surrogate pair, so it has no UTF-8 bytes.") from None


class NoTexts(_Pieces):
    """For a model without a tokenizer: a text is refused, and a token is shown as its number, such as "<200>"."""

    def __init__(self, vocab_size: int, why: str):
        self.pieces, self._why = [f"<{token}>" for token in range(vocab_size)], why

    def encode(self, text: str) -> list[int]:
        raise ValueError(self._why)


class LedgerTexts(_Pieces):
    """The ledger's own words, separated by spaces: "c 3 ; a 7 ; ? c". An answer's text continues the prompt's."""

    pieces = [f" {word}" for word in VOCABULARY]

    def encode(self, text: str) -> list[int]:
        words = text.split()
        if unknown := [word for word in words if word not in VOCABULARY]:
            raise ValueError(
                f"{unknown[0][:40]!r} is no word of the ledger; its words are {' '.join(VOCABULARY)}, "
                "separated by spaces, as in 'c 3 ; a 7 ; ? c'."
            )
        return [VOCABULARY.index(word) for word in words]
