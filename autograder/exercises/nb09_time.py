"""Exercise 9.1, time_step: how long does a step take? On a device and with a clock that the driver plays."""

from __future__ import annotations

import numpy as np

from autograder.compare import counted, first_far_index, first_trouble, same_floats
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict
from autograder.kept import known_mistakes

SYNC_US = 3  # host time of asking the device whether it is done


class Device:
    """A host clock and a device that works through what was started, in us. `steps`: how long each takes, in a ring.

    first_us   what the first step takes on top
    launch_us  what starting a step takes the host; on a device that is not `asynchronous` the whole step as well
    """

    def __init__(self, steps: list[int], first_us: int, launch_us: int, asynchronous: bool, busy_us: int):
        self.steps, self.first_us, self.launch_us, self.asynchronous = steps, first_us, launch_us, asynchronous
        self.now, self.free, self.count = 1_000_000, 1_000_000 + busy_us, 0

    def run(self):
        takes = self.steps[self.count % len(self.steps)] + (self.first_us if self.count == 0 else 0)
        self.count += 1
        self.now += self.launch_us
        self.free = max(self.free, self.now) + takes
        if not self.asynchronous:
            self.now = self.free

    def synchronize(self):
        self.now = max(self.now, self.free) + SYNC_US

    def clock(self):
        return float(self.now)


def drive(answer, steps: list[int], first_us: int, launch_us: int, asynchronous: int, busy_us: int):
    """What the answer measures, with one repeat for each step of the ring."""
    device = Device(steps, first_us, launch_us, bool(asynchronous), busy_us)
    return answer(device.run, device.synchronize, device.clock, len(steps))


def value_cases(seed: int) -> list[Call]:
    """One repeat and several; a GPU that returns at once and a CPU; one repeat disturbed by other work."""
    rng = np.random.default_rng(seed)
    calls = []
    for repeats, asynchronous in ((1, True), (5, True), (7, True), (5, False), (3, True)):
        base = int(rng.integers(2_000, 9_000))
        ascending = np.cumsum(rng.integers(60, 400, repeats)) + base
        ascending[-1] += base * int(repeats > 1) * 4  # something else ran at the same time
        low = repeats // 2  # the first two of the ring are below the median: what spoils one of them moves it
        order = [*reversed(range(low)), *reversed(range(low, repeats))]
        steps = [int(ascending[i]) for i in order]
        first, launch = int(rng.integers(40_000, 90_000)), int(rng.integers(10, 60))
        busy = int(rng.integers(1_000, 5_000)) * int(asynchronous)
        device = "a device that returns at once" if asynchronous else "a CPU"
        calls.append(
            Call(
                (steps, first, launch, int(asynchronous), busy),
                f"time_step with {counted(repeats, 'repeat')} on {device}",
            )
        )
    return calls


def _trouble(call: Call, got: np.ndarray) -> str | None:
    steps, _, launch, *_ = call.args
    wanted = np.array(float(sorted(steps)[len(steps) // 2] + launch + SYNC_US))
    if got.shape != ():
        return f"{call.label} returned an array of shape {list(got.shape)}, wanted one number."
    if first_far_index(got.astype(np.float64), wanted) is None:
        return None
    return (
        f"{call.label} gives {float(got):,.1f} us, wanted {float(wanted):,.1f}: the steps take "
        f"{', '.join(f'{us:,}' for us in sorted(steps))} us, {launch} us to start and {SYNC_US} to wait for."
    )


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} devices")


SOLUTION = "course_lib.lessons.nb09_device:time_step"

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

    last_repeat
      sorted(times)[repeats // 2]  ->  times[-1]
    This is the last repeat alone. Any one of them may be disturbed: take the median.

    by_order_of_time
      sorted(times)  ->  times
    This is the repeat in the middle of the list, in the order in which they ran. The median is in the middle of the
    sorted list.
"""

EXERCISE = Exercise(
    name="time_step",
    groups=(Group("values", value_cases, judge_values),),
    same=same_floats,
    wrong_answers=known_mistakes(SOLUTION, MISTAKES),
    reread="Reread notebook 09, section 1.",
    solution=SOLUTION,
    driver=drive,
)
