"""The ledger: a task that only right positions can solve, and the small model that was trained on it.

A prompt is a list of statements and a query, such as `c 3 ; a 7 ; c 0 ; ? c`. A name is assigned many times;
the latest assignment wins, so the answer is 0. A model that cannot tell which statement came later must guess.
"""

from pathlib import Path

import numpy as np

from course_lib.model import Model
from course_lib.prefill import cut, prefill
from course_lib.weights import load_model

FOLDER = Path(__file__).parents[1] / "assets" / "ledger"
DIGITS, NAMES = 10, 8
VOCABULARY = (*"0123456789", *"abcdefgh", ";", "?")  # token id -> text; a digit's token id is the digit
FIRST_NAME = DIGITS
SEPARATOR, QUERY = DIGITS + NAMES, DIGITS + NAMES + 1
STATEMENT = 3  # tokens: name, digit, separator


def prompts(count: int, statements: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random prompts with their answers, the same for a seed on every machine.

    count        prompts
    statements   assignments in each prompt; the query asks for a name that one of them, taken at random, assigns
    seed         0 or more
    returns      prompts [count, 3 * statements + 2] int64 token ids; answers [count] int64 token ids

    Raises ValueError for a count or a number of statements below 1, or a negative seed.
    """
    if count < 1 or statements < 1:
        raise ValueError(f"{count} prompts of {statements} statements, wanted at least 1 of each.")
    if seed < 0:
        raise ValueError(f"seed={seed}, wanted 0 or more.")
    # NumPy promises PCG64's raw stream, not its distributions. Taking a remainder of 64 bits is as good as even.
    words = np.random.PCG64(seed).random_raw(count * (2 * statements + 1)).reshape(count, -1)
    ids = np.empty((count, STATEMENT * statements + 2), dtype=np.int64)
    ids[:, 0:-2:STATEMENT] = FIRST_NAME + words[:, :statements] % np.uint64(NAMES)
    ids[:, 1:-2:STATEMENT] = words[:, statements:-1] % np.uint64(DIGITS)
    ids[:, 2:-2:STATEMENT] = SEPARATOR
    ids[:, -2] = QUERY
    asked = (words[:, -1] % np.uint64(statements)).astype(np.int64)
    ids[:, -1] = ids[np.arange(count), STATEMENT * asked]
    return ids, held_before(ids)[:, -1]


def held_before(ids: np.ndarray) -> np.ndarray:
    """What each name held just before the token that names it.

    ids       [count, tokens] int64, as `prompts` gives them
    returns   [count, tokens] int64: at every name its latest digit, -1 if it has none yet and at all other tokens;
              in the last column the answers
    """
    rows = np.arange(len(ids))
    held = np.full((len(ids), NAMES), -1, dtype=np.int64)
    before = np.full(ids.shape, -1, dtype=np.int64)
    for at in range(0, ids.shape[1] - 2, STATEMENT):
        name = ids[:, at] - FIRST_NAME
        before[:, at] = held[rows, name]
        held[rows, name] = ids[:, at + 1]
    before[:, -1] = held[rows, ids[:, -1] - FIRST_NAME]
    return before


def text(ids) -> str:
    """Token ids as text, for instance "c 3 ; a 7 ; ? c". Raises ValueError for an id that the vocabulary lacks."""
    ids = [int(token) for token in ids]
    if wrong := [token for token in ids if not 0 <= token < len(VOCABULARY)]:
        raise ValueError(f"token id {wrong[0]}, wanted 0 .. {len(VOCABULARY) - 1}: is this a prompt of the ledger?")
    return " ".join(VOCABULARY[token] for token in ids)


def ledger_model(*, backend: str = "numpy", arith: str = "tile", dtype: str = "float32", device: str = "cpu") -> Model:
    """The trained model that comes with the course: 3 layers, width 96, RoPE (made by train_ledger).

    backend, arith, dtype, device   as for weights.load_model, which raises UserError for what cannot be run here
    """
    return load_model(FOLDER, backend=backend, arith=arith, dtype=dtype, device=device)


def chunk_relative(cached: int, computed: int, take: int) -> np.ndarray:
    """WRONG positions, for show: every chunk counts from 0 again.

    cached, computed, take   tokens, as for positions.positions
    returns                  [take] int64
    """
    return np.arange(take)


def answer(model: Model, prompt, chunk_size: int, positions=None) -> tuple[int, float]:
    """The model's answer to one prompt that is prefilled in chunks, and how sure it is.

    prompt       [tokens] token ids, the query last
    chunk_size   tokens; the last chunk is what is left
    positions    function (cached, computed, take) -> int [take] in place of positions.positions; None = absolute
    returns      the token with the largest logit, and its softmax probability, 0 to 1, among the whole vocabulary

    Raises ValueError for a chunk_size below 1, an empty prompt, and for ids or positions that the model refuses.
    """
    snapshot = prefill(model, prompt, cut(len(prompt), chunk_size), positions=positions)
    logits = snapshot.values("logits").astype(np.float64)
    return int(logits.argmax()), float(1 / np.exp(logits - logits.max()).sum())


def evaluate(model: Model, prompts, answers, chunk_size: int, positions=None) -> tuple[float, float]:
    """How often the model is right, and how sure it is, when prompts are prefilled in chunks.

    prompts     [count, tokens] token ids
    answers     [count] token ids
    chunk_size, positions   as for `answer`
    returns     accuracy, 0 to 1, and the mean probability that the model gives to its own answers, 0 to 1

    Raises ValueError when there is no prompt or not one answer for each, and as `answer` does.
    """
    if not len(prompts) or len(prompts) != len(answers):
        raise ValueError(
            f"{len(prompts)} prompts and {len(answers)} answers, wanted at least 1 and as many of each: "
            "pass both results of ledger.prompts."
        )
    given = [answer(model, prompt, chunk_size, positions) for prompt in prompts]
    right = [token == int(wanted) for (token, _), wanted in zip(given, answers)]
    return float(np.mean(right)), float(np.mean([confidence for _, confidence in given]))
