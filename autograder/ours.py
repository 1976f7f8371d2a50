"""Which code is the learner's, and whether an answer is, or calls, a function of the library that is no answer.

Looked at is what the answer refers to, never what it does: a copy of our text is an answer like any other.
"""

from __future__ import annotations

import dis
import functools
import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from autograder.drivers.lines import NOT_THEIRS


def is_theirs(value: Any) -> bool:
    """Whether a function or class was written in a notebook, and not in a library."""
    if isinstance(value, types.FunctionType):
        return not value.__code__.co_filename.startswith(NOT_THEIRS)
    if isinstance(value, type):
        file = getattr(sys.modules.get(value.__module__), "__file__", None)
        return value.__module__ not in sys.builtin_module_names and not (file or "").startswith(NOT_THEIRS)
    return False


def used(answer: Any, library: Sequence[str]) -> str:
    """The first of `library` ("module:name") that the answer is, holds, or calls by its name; "" if none."""
    forbidden: dict[int, str] = {}
    codes: dict[int, str] = {}
    for name in library:
        module, _, attribute = name.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        forbidden[id(function)] = name
        methods = vars(function).values() if isinstance(function, type) else [function]
        codes |= {id(method.__code__): name for method in methods if isinstance(method, types.FunctionType)}
    seen: set[int] = set()
    left = [answer]
    while left:
        value = left.pop()
        if id(value) in forbidden:
            return forbidden[id(value)]
        if id(getattr(value, "__code__", None)) in codes:
            return codes[id(value.__code__)]
        if id(value) not in seen:
            seen.add(id(value))
            left += _parts(value)
    return ""


def _parts(value: Any) -> Iterator[Any]:
    """What an answer is made of, and what its code names."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
        yield value.__func__
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, type) and is_theirs(value):
        yield from (*value.__bases__, *vars(value).values())
    elif isinstance(value, types.FunctionType) and is_theirs(value):
        yield getattr(value, "__wrapped__", None)
        yield from value.__defaults__ or ()
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # still empty
                pass
        yield from _named(value)
    elif not isinstance(value, (types.FunctionType, type, types.ModuleType)):
        yield getattr(value, "__wrapped__", None)  # functools.lru_cache and the like
        if is_theirs(type(value)):
            yield type(value)
            yield from vars(value).values() if hasattr(value, "__dict__") else ()


def _named(function: types.FunctionType) -> Iterator[Any]:
    """What the names in a function's code stand for: globals, attributes of modules, and what it imports itself."""
    names = names_in(function.__code__)
    modules = [sys.modules.get(name) for name in names]
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    modules += found.values()
    if not all(isinstance(value, types.ModuleType) for value in found.values()):
        read = _globals_in(function.__code__)  # np.percentile names no global percentile
        yield from (value for name, value in found.items() if name in read)
    for module in modules:
        if isinstance(module, types.ModuleType) and module.__name__.startswith("course_lib"):
            yield from (getattr(module, name, None) for name in names)
            modules += [found for n in names if isinstance(found := getattr(module, n, None), types.ModuleType)]


def _globals_in(code: types.CodeType) -> set[str]:
    """The global names that code reads, inner functions included."""
    reads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    names = {one.argval for one in dis.get_instructions(code) if one.opname in reads}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _globals_in(constant)
    return names


def names_in(code: types.CodeType) -> set[str]:
    """The global names, attributes and imported modules that code mentions, inner functions included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
    return names
