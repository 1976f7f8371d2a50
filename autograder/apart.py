"""A copy of an answer that shares no state with it, so that calls can run apart from each other in one process.

What an answer remembers between calls lives in its closure, its defaults, its attributes, or in lists, dicts, arrays
and objects of its notebook. The copy has all of these anew. (Graded answers run apart in processes of their own.)
"""

from __future__ import annotations

import collections
import copy
import functools
import types
from typing import Any

import numpy as np

from autograder.ours import is_theirs, names_in

_HOLDERS = (list, dict, set, bytearray, collections.deque, np.ndarray)


def fresh(answer: Any) -> Any:
    """A copy of a function or class, down to the functions that it uses; anything else comes back as it is."""
    return _fresh(answer, {})


def _fresh(value: Any, made: dict[int, Any]) -> Any:
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, types.FunctionType) and is_theirs(value):
        return _function(value, made)
    if isinstance(value, functools.partial):
        made[id(value)] = functools.partial(
            _fresh(value.func, made),
            *[_fresh(arg, made) for arg in value.args],
            **{key: _fresh(arg, made) for key, arg in value.keywords.items()},
        )
    elif hasattr(value, "cache_parameters"):  # functools.lru_cache and functools.cache
        wrapper = functools.lru_cache(**value.cache_parameters())
        made[id(value)] = wrapper(_fresh(value.__wrapped__, made))
    elif isinstance(value, type) and is_theirs(value):
        own = ("__dict__", "__weakref__", "__slots__")  # made with the class, as is the descriptor of each slot
        parts = {k: v for k, v in vars(value).items() if k not in own and not isinstance(v, types.MemberDescriptorType)}
        slots = {key: vars(value)[key] for key in own[2:] if key in vars(value)}
        try:
            bases = tuple(_fresh(base, made) for base in value.__bases__)
            new = made[id(value)] = type(value)(value.__name__, bases, slots)
            for name, part in parts.items():
                setattr(new, name, _fresh(part, made))
        except Exception:  # a metaclass of its own: then the class itself
            made[id(value)] = value
    elif isinstance(value, (staticmethod, classmethod)):
        made[id(value)] = type(value)(_fresh(value.__func__, made))
    elif isinstance(value, types.MethodType):
        made[id(value)] = types.MethodType(_fresh(value.__func__, made), _fresh(value.__self__, made))
    elif is_theirs(type(value)) and hasattr(value, "__dict__"):
        new = made[id(value)] = copy.copy(value)
        new.__class__ = _fresh(type(value), made)
        vars(new).update({key: _fresh(part, made) for key, part in vars(value).items()})
    elif isinstance(value, _HOLDERS) or _is_object(value):
        try:
            made[id(value)] = copy.deepcopy(value)
        except Exception:  # it holds something that has no copy
            made[id(value)] = copy.copy(value)
    else:
        return value
    return made[id(value)]


def _is_object(value: Any) -> bool:
    """Whether it is an object with attributes or slots that may remember something."""
    if isinstance(value, (type, types.ModuleType)) or callable(value):
        return False
    return hasattr(value, "__dict__") or is_theirs(type(value))


def _function(function: types.FunctionType, made: dict[int, Any]) -> types.FunctionType:
    names = made.setdefault(id(function.__globals__), dict(function.__globals__))
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    new = made[id(function)] = types.FunctionType(function.__code__, names, function.__name__, None, cells)
    for name in names_in(function.__code__) & function.__globals__.keys():
        names[name] = _fresh(function.__globals__[name], made)
    for cell, old in zip(cells, function.__closure__ or ()):
        try:
            cell.cell_contents = _fresh(old.cell_contents, made)
        except ValueError:  # a cell that is still empty
            pass
    new.__defaults__ = _fresh_all(function.__defaults__, made)
    if function.__kwdefaults__:
        new.__kwdefaults__ = {key: _fresh(value, made) for key, value in function.__kwdefaults__.items()}
    new.__dict__.update({key: _fresh(value, made) for key, value in vars(function).items()})
    return new


def _fresh_all(values: tuple | None, made: dict[int, Any]) -> tuple | None:
    return None if values is None else tuple(_fresh(value, made) for value in values)
