"""Where in a learner's code an error came up."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import traceback
from pathlib import Path

import numpy as np

NOT_THEIRS = tuple(  # code in files below these paths is a library's, or ours
    str(path)
    for path in (
        Path(__file__).resolve().parents[1],
        Path(__file__).resolve().parents[2] / "course_lib",
        Path(np.__file__).resolve().parent,
        *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(path for path in sys.path if path.endswith(("site-packages", "dist-packages"))),  # a worker's are there alone
    )
)


def line_of(error: BaseException) -> str:
    """The last line that is not a library's, "line 4: return mask"; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith(NOT_THEIRS)]
    if not theirs:
        return ""
    text = (theirs[-1].line or linecache.getline(theirs[-1].filename, theirs[-1].lineno or 0)).strip()
    return f"line {theirs[-1].lineno}" + (f": {text}" if text else "")
