"""Text for a model folder that has a tokenizer.json, through the `tokenizers` package (the extra "text")."""

from collections.abc import Callable, Sequence
from pathlib import Path

from course_lib.cli import UserError
from course_lib.weights.config_json import read_json

HELD = 12  # tokens without text in a row; a character has 4 bytes at most, so that what is held longer is none
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what bytes decode to that are no whole character


class NoTokenizer(UserError):
    """The folder has no tokenizer.json, or the package that reads it is not installed."""


class Tokenizer:
    """The tokenizer of a model folder.

    vocab_size    of the model; a text with a token beyond it is refused
    end           token ids that end a text: eos_token_id in generation_config.json, or else in config.json

    Raises NoTokenizer when there is none here, and UserError for a file that cannot be read.
    """

    def __init__(self, folder: Path, vocab_size: int):
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise NoTokenizer(f"{folder} has no tokenizer.json, so text means nothing to this model: give token ids.")
        try:
            import tokenizers
        except ImportError:
            hint = 'pip install -e ".[text]", or give token ids.'
            raise NoTokenizer(f"text needs the tokenizers package, which is not installed: {hint}") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises Exception itself
            raise UserError(f"cannot read {path}: {str(error)[:200]}. Was the download complete?") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size, self.end = vocab_size, _end(folder, vocab_size)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with those that the tokenizer puts around it, such as a first <s>.

        ValueError, with the reason, for a text that has none.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text has half of a surrogate pair, so it has no UTF-8 bytes.") from None
        ids = self._tokenizer.encode_batch_fast([text])[0].ids  # unlike `encode`, it leaves other threads running
        if beyond := [token for token in ids if token >= self.vocab_size]:
            raise ValueError(
                f"the tokenizer gives token {beyond[0]}, but the model's vocabulary ends at {self.vocab_size - 1}. Do "
                "tokenizer.json and config.json belong together?"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens, such as </s>, and ids that the tokenizer lacks have none."""
        return self._tokenizer.decode([int(token) for token in ids])

    def reader(self, prompt: Sequence[int]) -> Callable[[int, bool], str]:
        """A function read(token, last) for the tokens of an answer, in order: the text that each adds to the prompt's.

        A character whose bytes span several tokens comes with the last of them, and before that there is no text. What
        is no character at the end of the answer (`last`), or after HELD tokens, comes as U+FFFD.
        """
        ids, start, known = list(prompt), 0, len(prompt)  # the text of all before `known` is out

        def read(token: int, last: bool) -> str:
            nonlocal start, known
            ids.append(token)
            # Decoded from `start` on, with some tokens whose text is out: whether a word has a space in front may
            # depend on them.
            before = self.decode(ids[start:known]).rstrip(_UNFINISHED)
            now = self.decode(ids[start:])
            if now == before != "":  # a token without text changes nothing behind it either
                ids.pop()
            if now == before or (now.endswith(_UNFINISHED) and not last and len(ids) - known < HELD):
                return ""
            start, known = known, len(ids)
            return now[len(before) :]

        return read


def _end(folder: Path, vocab_size: int) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            given = read_json(folder / name, "It should hold settings of the model.").get("eos_token_id")
            if given is not None:
                ids = given if isinstance(given, list) else [given]
                return [token for token in ids if type(token) is int and 0 <= token < vocab_size]
    return []
