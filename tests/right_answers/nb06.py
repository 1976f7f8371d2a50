"""Right answers to the exercises of notebook 06."""

import numpy as np


def itl_1(gaps):
    def least(percent):
        for value in sorted(set(gaps)):
            if 100 * sum(gap <= value for gap in gaps) >= percent * len(gaps):
                return value

    return least(50), least(99), max(gaps)


def itl_2(gaps):
    return *np.percentile(gaps, [50, 99], method="inverted_cdf"), np.max(gaps)


def itl_3(gaps):
    import math

    ordered = sorted(gaps)
    return [ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99, 1.0)]
