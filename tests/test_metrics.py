"""Counted statistics say what the list of all values says, in memory that does not grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cost.linear import percentile
from course_lib.cost.metrics import MOST_VALUES, Histogram, Report, Targets
from course_lib.cost.simulator import SimRequest


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=60), st.integers(0, 100))
def test_a_histogram_gives_the_percentiles_of_the_list(values, percent):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    assert histogram.percentile(percent) == percentile(values, percent)
    assert (histogram.count, histogram.total, histogram.max) == (len(values), sum(values), max(values))
    assert histogram.above(values[0]) == sum(value > values[0] for value in values)


@given(st.dictionaries(st.integers(0, 1000), st.integers(1, 9), max_size=20))
def test_adding_many_at_once_is_adding_them_one_by_one(counts):
    at_once, one_by_one = Histogram(), Histogram()
    at_once.update(counts)
    for value, times in counts.items():
        for _ in range(times):
            one_by_one.add(value)
    assert vars(at_once) == vars(one_by_one)


def test_with_too_many_values_percentiles_are_at_most_a_thousandth_too_long_and_the_maximum_stays_exact():
    histogram, values = Histogram(), [i * 997 for i in range(MOST_VALUES + 20_000)]
    for value in values:
        histogram.add(value)
    assert not histogram.exact and len(histogram.counts) < MOST_VALUES
    for percent in (1, 50, 90, 99):
        exact = percentile(values, percent)
        assert exact <= histogram.percentile(percent) <= exact * 1.001
    assert histogram.percentile(100) == histogram.max == values[-1]
    assert histogram.total == sum(values) and histogram.count == len(values)


def test_an_empty_histogram_is_all_zeros_and_a_wrong_percentile_is_refused():
    assert Histogram().as_dict() == {"p50": 0, "p90": 0, "p99": 0, "max": 0, "mean": 0, "count": 0}
    with pytest.raises(ValueError, match="wanted 0 to 100"):
        Histogram().percentile(101)


@pytest.mark.parametrize(
    "first, worst, good", [(100, 50, 1), (101, 50, 0), (100, 51, 0), (100, 0, 1)], ids=["both", "ttft", "itl", "one"]
)
def test_a_request_is_good_only_within_both_targets(first, worst, good):
    report = Report(Targets(ttft_us=70, itl_us=50))
    report.begin_us = 30
    request = SimRequest(0, [1, 2, 3, 4], prompt_len=2, arrival=30, first_us=first, last_us=1030, worst_us=worst)
    report.finish(request)
    assert report.num_good == good and report.attainment == good and report.goodput == good * 1000.0
    assert report.per_second(report.output_tokens) == 2000.0
