"""From measured steps to a step cost: what does a step, a prompt token, a decode, a pair and a context token take?

Least squares, solved in exact fractions: clean data give back exactly the cost that made them, and whether
the samples can tell two terms apart is a fact instead of a threshold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import isfinite, prod, sqrt
from operator import index
from statistics import median
from typing import NamedTuple

from course_lib.cost.work import StepCost, StepWork

# term -> what to measure when samples cannot tell it from the others
MEASURE = {
    "fixed": "steps of other sizes",
    "prefill_tokens": "steps with other numbers of prompt tokens, all else equal",
    "decodes": "steps with other numbers of decodes, all else equal, and some with none",
    "prefill_pairs": "chunks of the same length at other places in the prompt",
    "decode_context": "as many decodes with other contexts",
}
TERMS = tuple(MEASURE)
RESOLUTION = 10**9  # costs are kept in 1e-9 us, so that a simulation does not drag long fractions along


@dataclass(frozen=True)
class FittedCost(StepCost):
    """Microseconds of a step, and of each prompt token, decode, query-key pair and context token in it.

    unseen   what no sample had any of: its cost is not known. work_us refuses prompt tokens and decodes if unseen
    """

    fixed: Fraction = Fraction(0)
    prefill_tokens: Fraction = Fraction(0)
    decodes: Fraction = Fraction(0)
    prefill_pairs: Fraction = Fraction(0)
    decode_context: Fraction = Fraction(0)
    unseen: tuple[str, ...] = ()

    def exact_us(self, work: StepWork) -> Fraction:
        """Duration of a step, before rounding."""
        return sum(getattr(self, term) * count(work, term) for term in TERMS)

    def work_us(self, work: StepWork) -> int:
        """Duration of a step to the nearest microsecond, at least 1."""
        if work.prefill_tokens + work.decodes < 1:
            raise ValueError(f"{work} is not a step: give it some work.")
        for term in ("prefill_tokens", "decodes"):
            if term in self.unseen and count(work, term):
                raise ValueError(f"no sample of this fit had {term}, so their cost is not known. Fit steps with some.")
        return max(round(self.exact_us(work)), 1)


def count(work: StepWork, term: str) -> int:
    """How often a step pays for a term."""
    return 1 if term == "fixed" else getattr(work, term)


class Misfit(NamedTuple):
    """One sample against the fit. error: (fitted - measured) / measured."""

    number: int
    work: StepWork
    measured_us: float
    fitted_us: float
    error: float


@dataclass(frozen=True)
class FitReport:
    """How far to trust a fit.

    misfits          every sample, the worst first
    spare            samples more than terms. With 0 the fit passes through each, and small errors prove nothing
    r_squared        share of the durations' variance that the fit explains, 1.0 for all of it
    left_out         term -> why it has no cost of its own
    standard_error   term -> us, by how much its cost would typically differ with other samples like these; empty
                     without spare samples
    """

    misfits: tuple[Misfit, ...]
    spare: int
    r_squared: float
    left_out: dict[str, str]
    standard_error: dict[str, float] = field(default_factory=dict)

    @property
    def errors(self) -> list[float]:
        """Sizes of the relative errors, ascending."""
        return [abs(m.error) for m in reversed(self.misfits)]

    @property
    def median(self) -> float:
        return median(self.errors)

    @property
    def p90(self) -> float:
        """Nearest rank: nine samples in ten are at least this close."""
        return self.errors[-(-9 * len(self.misfits) // 10) - 1]

    @property
    def worst(self) -> float:
        return self.errors[-1]

    @property
    def outliers(self) -> list[Misfit]:
        """Samples off by more than 10% and by more than 5 times the median error. They are in the fit all the same."""
        return [m for m in self.misfits if abs(m.error) > max(0.1, 5 * self.median)]

    def __str__(self) -> str:
        lines = [
            f"{len(self.misfits)} samples, {self.spare} more than terms: error median {self.median:.1%}, "
            f"P90 {self.p90:.1%}, worst {self.worst:.1%}; R^2 {self.r_squared:.4f}"
        ]
        lines += [f"no cost of its own: {term}, {why}" for term, why in self.left_out.items()]
        lines += [
            f"{'OUTLIER' if m in self.outliers else 'worst'}: sample {m.number}, measured {m.measured_us:,.1f} us, "
            f"fitted {m.fitted_us:,.1f} us ({m.error:+.1%}): {m.work}"
            for m in self.misfits[: max(3, len(self.outliers))]
            if m.error
        ]
        return "\n".join(lines)


class Fit(NamedTuple):
    """What fit_cost returns; str() is for people."""

    cost: FittedCost
    report: FitReport

    def __str__(self) -> str:
        lines = []
        for term in TERMS:
            if term not in self.report.left_out and (us := float(getattr(self.cost, term))):
                error = self.report.standard_error.get(term)
                lines.append(f"{term}: {us:,.6g} us" + (f", give or take {error:,.2g}" if error else ""))
        return "\n".join([*lines, str(self.report)])


def fit_cost(
    samples: Iterable[tuple[StepWork, float]], terms: Sequence[str] | None = None, relative: bool = True
) -> Fit:
    """The cost with the least squared errors of which no term is negative.

    samples    (work, measured us) of each step; us above 0: ints, fractions or floats
    terms      some of TERMS; by default all that the samples can tell apart, in that order
    relative   errors count relative to the measured time. Otherwise the steps with a chunk, ten times as long as
               those of decodes alone, decide everything, and ITL is made of both

    Raises ValueError, with what to measure, for samples that say nothing or cannot tell the given terms apart.
    """
    rows = [(_work(work), _us(us)) for work, us in samples]
    if terms is not None and (not terms or len(set(terms)) < len(terms) or set(terms) - set(TERMS)):
        raise ValueError(f"terms={list(terms)}, wanted some of {', '.join(TERMS)}, each once.")
    if len({work for work, _ in rows}) < 2:
        raise ValueError(f"{len(rows)} samples without two different steps say nothing: measure {MEASURE['fixed']}.")
    wanted = [term for term in TERMS if terms is None or term in terms]

    columns = {term: [count(work, term) for work, _ in rows] for term in wanted}
    times = [us for _, us in rows]
    longest, mean = max(times), sum(times) / len(times)
    # any weights give clean data back; whole numbers near 1 / us keep the fractions short
    weights = [int(longest / us * 2**20) ** 2 if relative else 1 for us in times]
    gram = {(a, b): _dot(weights, columns[a], columns[b]) for a in wanted for b in wanted}
    moment = {term: _dot(weights, columns[term], times) for term in wanted}

    told_apart, left_out = _told_apart(gram, columns)
    if terms is not None and left_out:
        raise ValueError("; ".join(f"{term}: {why}" for term, why in left_out.items()) + ".")
    best = _least_squares(gram, told_apart, moment)
    for term in told_apart:
        if term not in best:
            left_out[term] = "its cost would be negative: it is 0, and the others are fitted without it"
    costs = {term: Fraction(round(us * RESOLUTION), RESOLUTION) for term, us in best.items()}
    unseen = tuple(term for term in TERMS if not any(count(work, term) for work, _ in rows))
    cost = FittedCost(**costs, unseen=unseen)

    wrong, spread = [cost.exact_us(work) - us for work, us in rows], [us - mean for us in times]
    misfits = [
        Misfit(i, work, float(us), float(us + e), float(e / us)) for i, ((work, us), e) in enumerate(zip(rows, wrong))
    ]
    misfits.sort(key=lambda m: -abs(m.error))
    spare = len(rows) - len(best)
    unexplained, variance = _dot(wrong, wrong), _dot(spread, spread)
    r_squared = float(1 - unexplained / variance) if variance else float(unexplained == 0)
    standard_error = {}
    for term in best if spare else ():
        inverse = _solve(gram, list(best), {other: other == term for other in best})
        standard_error[term] = sqrt(_dot(weights, wrong, wrong) / spare * inverse[term])
    return Fit(cost, FitReport(tuple(misfits), spare, r_squared, left_out, standard_error))


def _told_apart(gram: dict, columns: dict[str, list[int]]) -> tuple[list[str], dict[str, str]]:
    """Terms whose columns are independent, the first ones kept; and why the others are left out."""
    kept: list[str] = []
    left_out = {}
    for term in columns:
        if not any(columns[term]):
            left_out[term] = f"no sample has any: measure {MEASURE[term]}"
        elif _solve(gram, [*kept, term], dict.fromkeys(columns, 0)) is not None:
            kept.append(term)
        else:
            shares = _solve(gram, kept, {other: gram[other, term] for other in kept})
            partners = " and ".join(other for other, share in shares.items() if share)
            left_out[term] = f"it goes with {partners} in every sample: measure {MEASURE[term]}"
    return kept, left_out


def _work(work: Sequence[int]) -> StepWork:
    work = StepWork(*map(index, work))
    if min(work) < 0 or work.prefill_tokens + work.decodes < 1:
        raise ValueError(f"{work} is not a step: wanted counts of 0 or more, and a prompt token or a decode.")
    return work


def _us(us: float) -> Fraction:
    if not (isfinite(us) and us > 0):
        raise ValueError(f"a step that took {us!r} us: wanted a number above 0.")
    return Fraction(us) if isinstance(us, (int, Fraction)) else Fraction(float(us))


def _dot(*columns: Sequence) -> Fraction:
    """Sum of the products, row by row."""
    return sum(prod(row) for row in zip(*columns))


def _solve(gram: dict, terms: Sequence[str], right: dict) -> dict[str, Fraction] | None:
    """x with gram x = right over these terms, by elimination; None if there is not exactly one.

    gram is X'WX, so its leading blocks are regular as long as the columns of X are independent: a pivot of 0 says
    that they are not, and no rows need to be swapped.
    """
    rows = [[Fraction(gram[a, b]) for b in terms] + [Fraction(right[a])] for a in terms]
    for i, row in enumerate(rows):
        if row[i] == 0:
            return None
        row[:] = [value / row[i] for value in row]
        for other in rows:
            if other is not row and other[i]:
                other[:] = [value - other[i] * mine for value, mine in zip(other, row)]
    return {term: row[-1] for term, row in zip(terms, rows)}


def _least_squares(gram: dict, terms: Sequence[str], moment: dict) -> dict[str, Fraction]:
    """The best solution without a negative cost: with all terms, or else with any of at most 30 choices of them."""
    costs = _solve(gram, terms, moment)
    if min(costs.values()) >= 0:
        return costs
    choices = [_solve(gram, some, moment) for size in range(1, len(terms)) for some in combinations(terms, size)]
    # the squared errors are a constant less this sum
    return max(
        (costs for costs in choices if min(costs.values()) >= 0),
        key=lambda costs: sum(us * moment[term] for term, us in costs.items()),
    )
