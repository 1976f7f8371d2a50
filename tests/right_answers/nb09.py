"""Right answers to the exercises of notebook 09."""

import numpy as np


def time_step_1(run, synchronize, clock, repeats):
    marks = []
    for _ in range(repeats + 1):
        before = clock()
        run(), synchronize()
        marks.append((before, clock()))
    return np.median([after - before for before, after in marks[1:]])


def time_step_2(run, synchronize, clock, repeats):
    from statistics import median

    for _ in range(2):
        run()
    synchronize()
    stops = [clock()]
    for _ in range(repeats):
        run()
        synchronize()
        stops.append(clock())
    return median(b - a for a, b in zip(stops, stops[1:]))
