"""Public faults of real engines, built into ours: the random workloads refuse every one within 500 tries."""

import re
from dataclasses import replace
from random import Random

import pytest
from museum import ELSEWHERE, FAULTS
from workload import Workload, random_knobs, random_work

TRIES = 500


def refusals(fault):
    """What each workload says of the faulty engine: what broke, or "" if it found nothing."""
    for seed in range(TRIES):
        rng = Random(seed)
        knobs = replace(random_knobs(rng, (fault.profile,)), **fault.knobs)
        try:
            random_work(rng, Workload(knobs, fault.make), rng.randint(5, 40))
        except Exception as error:  # an AssertionError of the workload, or the engine stumbling over itself
            yield f"{type(error).__name__}: {error}"
        else:
            yield ""


@pytest.mark.parametrize("number", FAULTS)
def test_a_public_fault_is_refused_within_500_workloads(number):
    fault = FAULTS[number]
    said = []
    for refusal in refusals(fault):
        if refusal and re.search(fault.says, refusal):
            return
        said.append(refusal)
    others = sorted({text[:100] for text in said if text})
    pytest.fail(f"{fault.where}, {fault.what}: nothing like {fault.says!r} in {TRIES} workloads; they said {others}")


def test_every_fault_of_the_museum_has_its_place():
    numbered = {int(n) for n in [*FAULTS, *ELSEWHERE] if n.isdigit()}
    assert numbered == set(range(1, 45))
    assert not FAULTS.keys() & ELSEWHERE.keys()
