"""The exercises by the name of what the learner writes: every module nbNN_*.py here that has an EXERCISE."""

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from autograder.exercise import Exercise


def _find() -> list[Exercise]:
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("nb"))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found = [module.EXERCISE for module in modules if hasattr(module, "EXERCISE")]
    return sorted(found, key=lambda e: tuple(map(int, e.number.split("."))))


EXERCISES: Mapping[str, Exercise] = MappingProxyType({exercise.name: exercise for exercise in _find()})
