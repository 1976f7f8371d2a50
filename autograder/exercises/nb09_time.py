"""Exercise 9.1, time_step: how long does a step take? On a device and with a clock that the driver plays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from autograder.compare import counted, first_trouble
from autograder.drivers import nb09
from autograder.exercise import Call, Callback, Group, Outcome, Returned, Verdict
from autograder.kit import draws, exercise, shown
from autograder.plain import array_of

SOLUTION = "course_lib.lessons.nb09_device:time_step"
US, SECONDS = 1, 1_000_000  # units of a clock


def cases(seed: int) -> list[Call]:
    """One repeat and several; a GPU that returns at once and a CPU; a clock in seconds; one repeat is disturbed."""
    draw = draws(seed)
    calls = []
    for repeats, asynchronous, unit in (
        (1, True, US), (5, True, US), (7, True, US), (5, False, US), (3, True, US), (1, False, US), (5, True, SECONDS)
    ):  # fmt: skip
        base = draw(2_000, 9_000)
        ascending = [base + 200 * (i + 1) + draw(0, 150) for i in range(repeats)]
        ascending[-1] += base * int(repeats > 1) * 4  # something else ran at the same time
        low = repeats // 2  # the first two of the ring are below the median: what spoils one of them moves it
        order = [*reversed(range(low)), *reversed(range(low, repeats))]
        steps = tuple(ascending[i] for i in order)
        busy = draw(1_000, 5_000) * asynchronous
        kind = "a device that returns at once" if asynchronous else "a CPU"
        clock = " and a clock in seconds" * (unit == SECONDS)
        label = f"time_step with {counted(repeats, 'repeat')} on {kind}{clock}"
        first, launch = draw(40_000, 90_000), draw(10, 60)
        device = Callback("device", (first, launch, asynchronous, busy, *steps))
        calls.append(Call((device, repeats, unit), label))
    return calls


def _number(value: object) -> float | None:
    """One real number, as a float; None for anything else."""
    array = array_of(value)
    return float(array) if array is not None and array.shape == () and array.dtype.kind in "iuf" else None


def _trouble(call: Call, result: tuple) -> str | None:
    device, _, unit = call.args
    _, launch, _, _, *steps = device.data
    measured, runs = result
    got, right_us = _number(measured), sorted(steps)[len(steps) // 2] + launch + nb09.SYNC_US
    if measured is None:
        return f"{call.label} returned None. Does your function end in a return line?"
    if got is None:
        return f"{call.label} returned {shown(measured)}, wanted one number."
    if not abs(got * unit - right_us) <= 1e-6 * right_us:
        of_them = f"the steps take {', '.join(f'{us:,}' for us in sorted(steps))} us, {launch} us to start and "
        of_them += f"{nb09.SYNC_US} to wait for."
        if unit == US:
            return f"{call.label} gives {got:,.1f} us, wanted {right_us:,.1f}: {of_them}"
        return f"{call.label} gives {got:,.6f}, wanted {right_us / unit:,.6f}, in the clock's unit: {of_them}"
    if runs <= len(steps):
        return f"{call.label} ran too few steps: one to warm up and {len(steps)} to measure are needed."
    return None


def judge(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    counted_runs = [
        replace(o, value=(o.value, sum(asked[-1] == nb09.RUN for asked in o.asked))) if isinstance(o, Returned) else o
        for o in outcomes
    ]
    return first_trouble(calls, counted_runs, _trouble, form=object) or Verdict(True, count=f"{len(calls)} devices")


def same(a: Outcome, b: Outcome) -> bool:
    """Both measured the same, or raised the same error in the same words."""
    if isinstance(a, Returned) and isinstance(b, Returned):
        x, y = _number(a.value), _number(b.value)
        return x is not None and y is not None and math.isclose(x, y, rel_tol=1e-9)
    return not isinstance(a, Returned) and not isinstance(b, Returned) and (a.type, a.message) == (b.type, b.message)


def make_device(marker: Callback) -> Callable[[int], float | None]:
    """The device of a call: it stays with the judge, so that an answer can only run steps and read the clock."""
    first, launch, asynchronous, busy, *steps = marker.data
    played = nb09.Device(steps, first, launch, asynchronous, busy)

    def device(what: int) -> float | None:
        return played.do(what)

    return device


MISTAKES = r"""
    first_run_counts
      | times = []
      | for _ in range(repeats):
      |     begin = clock()
      |     run()
      |     synchronize()
      |     times.append(clock() - begin)
      | return sorted(times)[repeats // 2]
    The first step is one of the measured ones. It loads code, reserves memory and chooses kernels: run one step, and
    wait for it, before the first measurement.

    no_synchronize
              synchronize()  ->
    The clock is read while the device still works. On a GPU run() only starts the step: this is how long starting
    takes. Synchronize before the clock is read for the second time.

    synchronize_first
              synchronize()  ->
      begin = clock()  ->  begin = clock()\nsynchronize()
    It synchronizes before the step instead of behind it. What has to be waited for is the step that is measured.

    warm_up_still_runs
      | run()
      | times = []
      | for _ in range(repeats):
      |     begin = clock()
      |     run()
      |     synchronize()
      |     times.append(clock() - begin)
      | return sorted(times)[repeats // 2]
    The warm-up is still running on the device when the clock is read for the first time, so the first measurement waits
    for it too. Synchronize behind the warm-up.

    begins_once
          begin = clock()  ->
      times = []  ->  times = []\nbegin = clock()
    The clock is read once, before the loop, so that each time holds all repeats before it as well. Read it anew for
    each repeat.

    mean
      sorted(times)[repeats // 2]  ->  sum(times) / repeats
    This is the mean. One repeat during which something else ran moves the mean; the median stays.

    fastest
      sorted(times)[repeats // 2]  ->  min(times)
    This is the fastest repeat: what the device can do when nothing is in its way. How long a step usually takes is the
    median.

    slowest
      sorted(times)[repeats // 2]  ->  max(times)
    This is the slowest repeat, the one during which something else ran. Take the median.

    sum
      sorted(times)[repeats // 2]  ->  sum(times)
    This is the time of all repeats together. One step is asked for.

    one_wait_for_all
      | run()
      | synchronize()
      | begin = clock()
      | for _ in range(repeats):
      |     run()
      | synchronize()
      | return (clock() - begin) / repeats
    All repeats are started and waited for once. That is a mean, and the host starts a step while the device still works
    on the one before: an engine cannot, it needs a step's tokens for the next. Wait for each step.

    in_milliseconds
      sorted(times)[repeats // 2]  ->  sorted(times)[repeats // 2] / 1e3
    This is a thousandth of the time. Return it in the clock's own unit.

    in_microseconds
      sorted(times)[repeats // 2]  ->  sorted(times)[repeats // 2] * 1e6
    This is a million times the time. Return it in the clock's own unit, whichever that is.

    last_repeat
      sorted(times)[repeats // 2]  ->  times[-1]
    This is the last repeat alone. Any one of them may be disturbed: take the median.

    by_order_of_time
      sorted(times)  ->  times
    This is the repeat in the middle of the list, in the order in which they ran. The median is in the middle of the
    sorted list.
"""

EXERCISE = exercise(
    SOLUTION,
    groups=[Group("values", cases, judge, form=object)],
    mistakes=MISTAKES,
    same=same,
    reread="Reread notebook 09, section 1.",
    driver=nb09.time_step,
    callbacks={"device": make_device},
)
