"""Public faults of real engines, built into ours: the random workloads refuse every one within 500 tries."""

from random import Random

import pytest
from museum import ELSEWHERE, FAULTS
from workload import Workload, random_knobs, random_work

TRIES = 500


def first_refusal(make, profile: str) -> tuple[int, str] | None:
    for seed in range(TRIES):
        rng = Random(seed)
        work = None
        try:
            work = Workload(random_knobs(rng, (profile,)), make)
            random_work(rng, work, rng.randint(5, 40))
        except Exception as error:  # an AssertionError of the workload, or the engine stumbling over itself
            return seed, f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("number", FAULTS)
def test_a_public_fault_is_refused_within_500_workloads(number):
    fault = FAULTS[number]
    assert first_refusal(fault.make, fault.profile), f"{fault.where}: {fault.what}: {TRIES} workloads found nothing"


def test_every_fault_of_the_museum_has_its_place():
    numbered = {int(n) for n in [*FAULTS, *ELSEWHERE] if n.isdigit()}
    assert numbered == set(range(1, 45))
    assert not FAULTS.keys() & ELSEWHERE.keys()
