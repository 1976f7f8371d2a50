"""Public faults of real engines, built into ours: the random workloads refuse every one within 500 tries."""

import re
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from museum import ELSEWHERE, FAULTS, build_in
from workload import Workload, random_knobs, random_work

from course_lib.attention.mask import chunk_attention_mask
from course_lib.engine import Engine
from course_lib.positions import positions

TRIES = 500

# The oracle model counts positions itself unless it is given functions: here it gets those that a fault may change.
new_engine = partial(Engine, mask=chunk_attention_mask, positions=positions)


def refusals(profile, knobs=(), tries=TRIES):
    """What each workload says of the engine as it now is: what broke, or "" if it found nothing."""
    for seed in range(tries):
        rng = Random(seed)
        work = Workload(replace(random_knobs(rng, (profile,)), **dict(knobs)), new_engine)
        try:
            random_work(rng, work, rng.randint(5, 40))
        except Exception as error:  # an AssertionError of the workload, or the engine stumbling over itself
            yield f"{type(error).__name__}: {error}"
        else:
            yield ""


@pytest.mark.parametrize("number", FAULTS)
def test_a_public_fault_is_refused_within_500_workloads(number, monkeypatch):
    fault = FAULTS[number]
    build_in(fault, monkeypatch)
    said = []
    for refusal in refusals(fault.profile, fault.knobs):
        if refusal and re.search(fault.says, refusal):
            return
        said.append(refusal)
    others = sorted({text[:100] for text in said if text})
    pytest.fail(f"{fault.record}: {fault.what} Nothing like {fault.says!r} in {TRIES} workloads; they said {others}")


@pytest.mark.parametrize("profile", sorted({fault.profile for fault in FAULTS.values()}))
def test_without_a_fault_the_same_workloads_find_nothing(profile):
    assert not any(refusals(profile, tries=20))


def test_every_fault_of_the_museum_has_its_place():
    numbered = {int(n) for n in [*FAULTS, *ELSEWHERE] if n.isdigit()}
    assert numbered == set(range(1, 45))
    assert not FAULTS.keys() & ELSEWHERE.keys()
