"""The exercises, each in a module of its own, by the name of the function that the learner writes."""

from collections.abc import Mapping
from types import MappingProxyType

from autograder.exercise import Exercise
from autograder.exercises import nb02_attend, nb02_mask, nb02_ragged, nb03_check, nb03_positions, nb03_rope

EXERCISES: Mapping[str, Exercise] = MappingProxyType(
    {
        module.EXERCISE.name: module.EXERCISE
        for module in (nb02_mask, nb02_ragged, nb02_attend, nb03_positions, nb03_rope, nb03_check)
    }
)
