"""What the checks of a course are worth: read from a source notebook, or shared out from a total."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from course_lib.cli import UserError

Points = dict[str, int | float]  # by grade id
UNIT = 4  # parts of a point: quarters are exact in binary, so that sums of them are exact as well


def points_in(file: Path) -> Points:
    """The points of each graded cell in a source notebook, by grade id. UserError if they cannot be read."""
    try:
        cells = json.loads(file.read_text("utf-8"))["cells"]
        fields = [cell.get("metadata", {}).get("nbgrader", {}) for cell in cells]
        found = {about["grade_id"]: about["points"] for about in fields if about.get("grade")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} holds no points ({type(error).__name__}). Move it away, and run python -m autograder course again."
        ) from None
    for name, value in found.items():
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise UserError(f"{file} gives {name} {value!r} points. Give it a number from 0.")
    return {name: _short(value) for name, value in found.items()}


def shared_out(total: float, weights: Mapping[str, float], of: str) -> Points:
    """`total` points in quarters, over the names in proportion to their weights; the sum is `total` exactly.

    of   whose points they are, for the message of the UserError that refuses a total
    """
    parts = total * UNIT
    if parts != int(parts) or parts < len(weights):
        raise UserError(
            f"{total:g} points cannot be shared out over the {len(weights)} checks of {of}. "
            f"Give a whole or quarter number, {len(weights) / UNIT:g} at the least."
        )
    whole = sum(map(Fraction, weights.values()))
    exact = {name: int(parts) * Fraction(weight) / whole for name, weight in weights.items()}
    shares = {name: max(1, math.floor(value)) for name, value in exact.items()}
    while rest := int(parts) - sum(shares.values()):  # to or from the one that is farthest from its exact share
        step = 1 if rest > 0 else -1
        may = [name for name, share in shares.items() if share + step > 0]
        shares[max(may, key=lambda name: step * (exact[name] - shares[name]))] += step
    return {name: _short(share / UNIT) for name, share in shares.items()}


def _short(value: int | float) -> int | float:
    """2 rather than 2.0, as notebooks have it."""
    return int(value) if value == int(value) else value
