"""The exercises by the name of what the learner writes: every module nbNN_*.py here that has an EXERCISE."""

import importlib
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from types import MappingProxyType

from autograder.exercise import Exercise

INDEX = files("course_lib") / "assets" / "exercises.json"  # built from solutions/


def _find() -> list[Exercise]:
    """In the order of the notebooks. One that no notebook has (yet) stands last, without a number."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("nb"))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found = [module.EXERCISE for module in modules if hasattr(module, "EXERCISE")]
    index = {entry["name"]: entry for entry in json.loads(INDEX.read_text("utf-8"))}
    numbered = [
        replace(e, number=index[e.name]["number"], notebook=index[e.name]["notebook"]) if e.name in index else e
        for e in found
    ]
    return sorted(numbered, key=lambda e: [int(part) for part in e.number.split(".") if part] or [1000])


EXERCISES: Mapping[str, Exercise] = MappingProxyType({exercise.name: exercise for exercise in _find()})
