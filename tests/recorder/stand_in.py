"""Stands in for what vLLM imports and this machine lacks: kernels, tokenizers, web servers; nothing a schedule asks."""

import re
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

# Modules whose names are not those of the distributions that have them.
NAMED_OTHERWISE = {"openai_harmony", "uvloop", "cv2", "cpuinfo", "flashinfer", "lmformatenforcer"}
IMPORTING = (
    "importlib",
    "importlib._bootstrap",
    "importlib._bootstrap_external",
)  # not importlib.util, which only asks


class _AnythingType(type):
    """So that a class that stands in has every attribute, and can be part of an annotation."""

    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Anything(metaclass=_AnythingType):
    """Base class, decorator, type of an annotation, and function that gives its first argument back."""

    def __init__(self, *args, **kwargs):
        pass

    def __init_subclass__(cls, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if args else self

    def __class_getitem__(cls, item):
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        from pydantic_core.core_schema import any_schema

        return any_schema()


class _Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class StandIns(MetaPathFinder, Loader):
    """The last finder: it answers an import statement of vLLM's that no other could, and no other question.

    Only for what the wheel says it needs: what vLLM tries to import to learn about the machine is not there.
    """

    def __init__(self, needed: set[str]) -> None:
        self.needed, self.names = needed | NAMED_OTHERWISE, []

    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in IMPORTING:
            frame = frame.f_back
        importer = frame.f_globals.get("__name__", "") if frame is not None else ""
        top = name.partition(".")[0]
        if top not in self.names and not (top in self.needed and importer.partition(".")[0] == "vllm"):
            return None
        if top not in self.names:
            self.names.append(top)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def install(code: Path) -> StandIns:
    """From now on, for the wheel in `code`. `names` of what is returned fills with the packages that were missing."""
    (metadata,) = code.glob("vllm-*.dist-info/METADATA")
    needed = re.findall(r"^Requires-Dist: ([A-Za-z0-9._-]+)", metadata.read_text("utf-8"), re.MULTILINE)
    finder = StandIns({name.lower().replace("-", "_") for name in needed})
    sys.meta_path.append(finder)
    return finder
