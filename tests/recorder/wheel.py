"""The Python part of a vLLM wheel, from PyPI: the scheduler and its cache are pure Python and run without a GPU."""

import subprocess
import sys
import zipfile
from pathlib import Path

SMALL = ("msgspec", "cachetools")  # what those modules really call; everything else that is missing is stood in for


def python_part(version: str, folder: Path) -> list[Path]:
    """Folders to put on sys.path for vLLM of that version: downloaded into `folder` unless they are there.

    The wheel has several hundred MB, of which 50 MB are kept. CalledProcessError if pip finds no such version.
    """
    code, needs = folder / f"vllm-{version}", folder / "needs"
    if not needs.exists():
        _pip("install", "--quiet", "--no-deps", "--target", str(needs), *SMALL)
    if not code.exists():
        _pip("download", "--no-deps", "--dest", str(folder), f"vllm=={version}")
        (wheel,) = folder.glob(f"vllm-{version}-*.whl")
        partly = code.with_suffix(".part")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(partly, [name for name in packed.namelist() if name.endswith((".py", "METADATA"))])
        partly.rename(code)
        wheel.unlink()
    return [code, needs]


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)
