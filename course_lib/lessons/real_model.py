"""The model folder that the environment variable COURSE_MODEL names, for the optional cells of notebooks 01, 03, 09."""

import os
from pathlib import Path

from course_lib.cli import UserError
from course_lib.model import Model
from course_lib.weights import load_model
from course_lib.weights.config_json import read_config
from course_lib.weights.tokenizer import Tokenizer

VARIABLE = "COURSE_MODEL"
HOW = f'optional: "%env {VARIABLE}=FOLDER" in a cell above names the folder of a model (README: how to get one)'


def real_model(arith: str = "tile") -> tuple[Model, Tokenizer] | None:
    """The model and its tokenizer; None, after one line that says why, where there is no usable folder.

    arith   exact, tile or plain, as for weights.load_model

    While a notebook is graded there is none.
    """
    folder = os.environ.get(VARIABLE)
    if not folder or "COURSE_GRADING" in os.environ:
        print(HOW)
        return None
    try:
        tokenizer = Tokenizer(Path(folder), read_config(Path(folder)).vocab_size)
        return load_model(Path(folder), arith=arith), tokenizer
    except UserError as error:
        print("skipped:", error)
        return None
