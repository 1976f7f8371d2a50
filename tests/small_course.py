"""A course of one lesson in a temporary directory, for the tests of the builder."""

import re
import shutil
from pathlib import Path

FIXTURES = Path(__file__).with_name("fixtures")

SETUP = """\
# %% id="setup"
import numpy as np

from autograder import check
"""
HALF = """\
# %% [markdown] id="half-text"
# ### Exercise 1.1: what is half of three?

# %% id="half-solution" exercise="1.1" solution="half" minutes=5 difficulty=1
# include course_lib.small:half

# %% id="half-check" check="half" group="values" points=2
check.half(half, group="values")
"""
TYPED = '''\
# %% id="grow-solution" exercise="1.2" solution="grow"
def grow(items):
    """Append 1.

    items   a list
    """
    last = 1
    ### BEGIN SOLUTION
    items.append(last)
    ### END SOLUTION

# %% id="grow-check" check="grow" group="values" points=1.5
check.grow(grow, group="values")
'''
LESSON = "\n".join([SETUP, HALF, TYPED])


def make_root(directory: Path, lessons: dict[str, str] | str = LESSON) -> Path:
    """A checkout with the small library and these lessons (a single text becomes solutions/01_small.py)."""
    lessons = {"01_small": lessons} if isinstance(lessons, str) else lessons
    for folder in ("solutions", "notebooks", "course_lib/assets"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(FIXTURES / "small_library.py", directory / "course_lib" / "small.py")
    for stem, text in lessons.items():
        (directory / "solutions" / f"{stem}.py").write_text(text, "utf-8")
    return directory


def hidden_seeds(course):
    """The seeds in the hidden checks of an nbgrader course."""
    return set(re.findall(r"seed=(\d+)", "".join(file.read_text("utf-8") for file in course.glob("source/*/*.ipynb"))))
