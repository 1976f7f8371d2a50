"""Fitting a step cost: exact from clean steps, truthful about dirty ones, and clear about what was not measured."""

from fractions import Fraction
from statistics import mean, median

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from course_lib.cost.attention import AttentionCost
from course_lib.cost.fit import TERMS, FittedCost, count, fit_cost
from course_lib.cost.simulator import ServerConfig, simulate
from course_lib.cost.work import StepWork, work_of
from course_lib.cost.workload import Arrival

chunk = st.tuples(st.integers(0, 20_000), st.integers(1, 2_048)).map(lambda pair: (pair[0], pair[0] + pair[1]))
works = st.builds(work_of, st.lists(chunk, max_size=3), st.lists(st.integers(1, 5_000), max_size=8)).filter(
    lambda work: work.prefill_tokens + work.decodes > 0
)
designs = st.lists(works, min_size=8, max_size=25)
costs = st.fixed_dictionaries({term: st.integers(0, 5_000) for term in TERMS}).filter(lambda us: us["fixed"] > 0)
GRID = [  # vary everything: chunks of several sizes at several starts, with and without decodes at several contexts
    work_of([(start, start + size)] if size else [], [context] * decodes)
    for size, start in ((0, 0), (64, 0), (512, 0), (512, 4_096), (1_024, 8_192))
    for decodes, context in ((0, 1), (1, 900), (8, 500), (8, 4_000))
    if size or decodes
]


def samples_of(us: dict[str, float], design) -> list[tuple[StepWork, float]]:
    return [(work, sum(us[term] * count(work, term) for term in TERMS)) for work in design]


REFERENCE = {"fixed": 2_600, "prefill_tokens": 15, "decodes": 108, "prefill_pairs": 0.00074, "decode_context": 0.003}
EXACT = {term: Fraction(str(us)) for term, us in REFERENCE.items()}


# --- exact


@given(costs, designs, st.booleans())
@settings(max_examples=40)
def test_clean_steps_give_back_exactly_the_cost_that_made_them(us, design, relative):
    cost, report = fit_cost(samples_of(us, design), relative=relative)
    assume(not report.left_out)
    assert cost == FittedCost(**us)
    assert report.worst == 0
    assert report.r_squared == 1
    assert report.outliers == []


@given(costs, designs, st.sets(st.sampled_from(TERMS[1:])))
@settings(max_examples=30)
def test_terms_may_be_chosen_and_the_others_cost_nothing(us, design, chosen):
    us = {term: us[term] if term in {"fixed", *chosen} else 0 for term in TERMS}
    try:
        cost, report = fit_cost(samples_of(us, design), terms=[*chosen, "fixed"])
    except ValueError as error:  # only when the design cannot tell the terms apart
        assert "in every sample: measure" in str(error) or "no sample has any: measure" in str(error)
        assume(False)
    assert {term: getattr(cost, term) for term in TERMS} == us
    assert report.left_out == {}


def test_a_grid_of_19_steps_tells_all_five_terms_apart():
    cost, report = fit_cost(samples_of(EXACT, GRID))
    assert {term: getattr(cost, term) for term in TERMS} == EXACT
    assert (report.spare, report.left_out, cost.unseen) == (len(GRID) - 5, {}, ())


def test_whole_microseconds_as_a_preset_gives_them_come_back_within_a_microsecond():
    preset = AttentionCost()
    cost, report = fit_cost([(work, preset.work_us(work)) for work in GRID])
    assert report.worst < 0.001
    assert all(abs(cost.work_us(work) - preset.work_us(work)) <= 1 for work in GRID)


def test_floats_and_fractions_are_taken_as_they_are():
    halves = [(StepWork(prefill_tokens=n), 10 + n / 2) for n in (1, 2, 5)]
    assert fit_cost(halves).cost.prefill_tokens == Fraction(1, 2)
    assert fit_cost([(work, Fraction(us)) for work, us in halves]).cost == fit_cost(halves).cost


# --- dirty data


@given(st.lists(st.floats(0.7, 1.4), min_size=len(GRID), max_size=len(GRID)), st.booleans())
@settings(max_examples=30)
def test_the_errors_reported_are_those_of_the_cost_returned(noise, relative):
    samples = [(work, float(us) * factor) for (work, us), factor in zip(samples_of(EXACT, GRID), noise)]
    cost, report = fit_cost(samples, relative=relative)
    errors = [abs(float(cost.exact_us(work)) - us) / us for work, us in samples]
    assert report.median == pytest.approx(median(errors), abs=1e-12)
    assert report.worst == pytest.approx(max(errors), abs=1e-12)
    wrong = [float(cost.exact_us(work)) - us for work, us in samples]
    spread = [us - mean(us for _, us in samples) for _, us in samples]
    explained = 1 - sum(w * w for w in wrong) / sum(s * s for s in spread)
    assert report.r_squared == pytest.approx(explained, abs=1e-9)
    assert sum(e <= report.p90 + 1e-12 for e in errors) >= 0.9 * len(errors)
    assert sorted(m.number for m in report.misfits) == list(range(len(samples)))
    assert [abs(m.error) for m in report.misfits] == pytest.approx(sorted(errors, reverse=True), abs=1e-12)
    assert report.misfits[0].work == samples[report.misfits[0].number][0]
    assert all(getattr(cost, term) >= 0 for term in TERMS)


@given(st.lists(st.floats(0.7, 1.4), min_size=len(GRID), max_size=len(GRID)), st.sampled_from(TERMS), st.booleans())
@settings(max_examples=30)
def test_no_neighbouring_cost_has_smaller_squared_errors(noise, term, upwards):
    samples = [(work, float(us) * factor) for (work, us), factor in zip(samples_of(EXACT, GRID), noise)]
    cost = fit_cost(samples).cost
    nearby = {name: getattr(cost, name) for name in TERMS}
    nearby[term] = nearby[term] * Fraction(101 if upwards else 99, 100) or Fraction(REFERENCE[term]) / 100

    def squares(candidate: FittedCost) -> float:
        return sum((float(candidate.exact_us(work)) / us - 1) ** 2 for work, us in samples)

    assert squares(cost) <= squares(FittedCost(**nearby)) * (1 + 1e-9)


def test_noise_is_smaller_than_the_standard_errors_say_twice_over():
    noise = [1 + 0.02 * (-1) ** (i * i // 3) for i in range(len(GRID))]
    fit = fit_cost([(work, float(us) * factor) for (work, us), factor in zip(samples_of(EXACT, GRID), noise)])
    for term in ("fixed", "prefill_tokens", "prefill_pairs"):
        off = abs(float(getattr(fit.cost, term) - EXACT[term]))
        assert 0 < off < 2 * fit.report.standard_error[term] < 0.3 * REFERENCE[term]
    assert f"fixed: {float(fit.cost.fixed):,.6g} us, give or take " in str(fit)


def test_an_outlier_is_reported_and_not_hidden():
    samples = samples_of(EXACT, GRID)
    samples[7] = (samples[7][0], samples[7][1] * 3)
    fit = fit_cost(samples)
    assert [m.number for m in fit.report.outliers][0] == 7
    assert fit.report.misfits[0].measured_us == float(samples[7][1])
    assert fit.report.worst > 0.5
    assert "OUTLIER: sample 7, measured" in str(fit)


def test_a_sample_a_few_percent_off_is_no_outlier_however_good_the_others():
    samples = samples_of(EXACT, GRID)
    samples[7] = (samples[7][0], samples[7][1] * Fraction(105, 100))
    report = fit_cost(samples).report
    assert report.misfits[0].number == 7
    assert 5 * report.median < report.worst < 0.05
    assert report.outliers == []


def test_relative_errors_keep_short_steps_right_where_absolute_ones_give_them_up():
    crooked = [(work, us * (1 + Fraction(work.prefill_tokens, 4_096))) for work, us in samples_of(EXACT, GRID)]
    decodes_alone = [(work, us) for work, us in crooked if not work.prefill_tokens]

    def worst(relative: bool) -> float:
        cost = fit_cost(crooked, relative=relative).cost
        return max(abs(float(cost.exact_us(work) / us - 1)) for work, us in decodes_alone)

    assert worst(relative=True) < worst(relative=False) / 2


def test_a_cost_below_0_becomes_0_is_reported_and_the_rest_is_fitted_again():
    faster_with_decodes = [(StepWork(n, d), 1_000 + 10 * n - 5 * d) for n in (1, 50, 99) for d in (0, 4, 8)]
    cost, report = fit_cost(faster_with_decodes)
    assert cost.decodes == 0
    assert "negative" in report.left_out["decodes"]
    without = fit_cost(faster_with_decodes, terms=("fixed", "prefill_tokens")).cost
    assert (cost.fixed, cost.prefill_tokens) == (without.fixed, without.prefill_tokens)
    assert report.worst > 0


# --- what samples cannot say


def test_a_term_that_goes_with_others_is_left_out_and_says_with_which_and_what_to_measure():
    _, report = fit_cost([(StepWork(n, 24, n * 7, 0, 24_000), 500 + n) for n in (1, 5, 9, 30)])
    assert report.left_out.keys() == {"decodes", "prefill_pairs", "decode_context"}
    assert report.left_out["decodes"].startswith("it goes with fixed in every sample: measure ")
    assert report.left_out["prefill_pairs"].startswith("it goes with prefill_tokens in every sample: measure chunks")


def test_what_no_sample_had_has_no_cost_and_such_steps_are_refused():
    cost, report = fit_cost(
        [(StepWork(decodes=d, decode_context=c), 500 + d + c) for d, c in ((1, 9), (2, 9), (2, 50))]
    )
    assert report.left_out["prefill_tokens"].startswith("no sample has any: measure ")
    assert cost.work_us(StepWork(decodes=3, decode_context=1)) == 504
    with pytest.raises(ValueError, match="no sample of this fit had prefill_tokens"):
        cost.work_us(StepWork(prefill_tokens=1, decodes=1))


@given(st.lists(works, min_size=2, max_size=4, unique=True), costs)
@settings(max_examples=40)
def test_with_no_sample_to_spare_the_report_says_so(design, us):
    _, report = fit_cost(samples_of(us, design))
    assert report.spare + 5 - len(report.left_out) == len(design)
    assert bool(report.standard_error) == (report.spare > 0)
    assert f"{len(design)} samples, {report.spare} more than terms" in str(report)


@pytest.mark.parametrize(
    ("samples", "terms", "says"),
    [
        ([], None, "0 samples .* measure steps of other sizes"),
        ([(StepWork(5), 100)], None, "1 samples .* measure"),
        ([(StepWork(5), 100), (StepWork(5), 101)], None, "without two different steps"),
        ([(StepWork(5), 100), (StepWork(6), 101)], ["decodes"], "decodes: no sample has any: measure"),
        ([(StepWork(5, 1), 9), (StepWork(6, 1), 9)], ["fixed", "decodes"], "decodes: it goes with fixed"),
        ([(StepWork(5), 100), (StepWork(6), 101)], [], r"terms=\[\]"),
        ([(StepWork(5), 100), (StepWork(6), 101)], ["fixed", "fixed"], "each once"),
        ([(StepWork(5), 100), (StepWork(6), 101)], ["speed"], "wanted some of fixed, prefill_tokens"),
        ([(StepWork(5), 0), (StepWork(6), 101)], None, "a number above 0"),
        ([(StepWork(5), float("nan")), (StepWork(6), 101)], None, "a number above 0"),
        ([(StepWork(5), float("inf")), (StepWork(6), 101)], None, "a number above 0"),
        ([(StepWork(-5, 9), 100), (StepWork(6), 101)], None, "counts of 0 or more"),
        ([(StepWork(), 100), (StepWork(6), 101)], None, "a prompt token or a decode"),
    ],
)
def test_samples_that_say_nothing_are_refused_with_what_to_measure(samples, terms, says):
    with pytest.raises(ValueError, match=says):
        fit_cost(samples, terms=terms)


# --- in use


def test_a_step_takes_at_least_a_microsecond_and_nothing_is_no_step():
    free = FittedCost(prefill_tokens=Fraction(1, 10))
    assert free.work_us(StepWork(prefill_tokens=1)) == 1
    with pytest.raises(ValueError, match="not a step"):
        free.work_us(StepWork())


def test_the_simulator_runs_on_a_fitted_cost_as_on_the_cost_that_was_measured():
    preset = AttentionCost(pair_ps=0)
    fitted = fit_cost([(work, preset.work_us(work)) for work in GRID]).cost
    workload = [Arrival(i * 5_000, 300 + 40 * i, 6) for i in range(8)]
    runs = [simulate(workload, ServerConfig(num_blocks=400), cost) for cost in (preset, fitted)]
    assert runs[0].as_dict() == runs[1].as_dict()
