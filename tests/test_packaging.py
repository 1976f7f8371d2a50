"""What pyproject.toml, the constraints, the README and CI say of the project holds."""

import os
import re

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from starting import ROOT, run_python

import course
from course_lib.learner.environment import Environment

HERE = Environment(ROOT)
COLAB = {"torch": "2.11.0", "numpy": "2.1.3", "ipywidgets": "7.7.1"}  # on Python 3.12
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def ranges():
    return {r.name: r.specifier for r in map(Requirement, HERE.requirements(["dev"]))}


def pins(python):
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    found = [Requirement(line) for line in lines]
    assert all(str(r.specifier).startswith("==") for r in found)
    here = [r for r in found if not r.marker or r.marker.evaluate({"python_version": python})]
    return {r.name: str(r.specifier)[2:] for r in here}


@pytest.mark.parametrize("name", COLAB)
def test_the_ranges_admit_what_colab_brings(name):
    assert COLAB[name] in ranges()[name]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_pins_lie_in_the_ranges(python):
    pinned = pins(python)
    for name, specifier in ranges().items():
        assert name not in pinned or pinned[name] in specifier, name
    assert pinned["torch"] == "2.13.0"


@pytest.mark.parametrize("python", PYTHONS[1:])
def test_every_package_that_the_tests_use_is_pinned(python):
    assert ranges().keys() <= pins(python).keys()


def test_no_pin_is_for_python_3_10_that_its_release_does_not_support():
    """Holds for the versions that are installed here: their own metadata says which Pythons they support."""
    from importlib import metadata

    compared = 0
    for name, version in pins("3.10").items():
        try:
            found = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        if found["Version"].partition("+")[0] == version:
            assert "3.10.13" in SpecifierSet(found["Requires-Python"] or ""), name
            compared += 1
    if not compared:
        pytest.skip("none of the pinned versions is installed here")


def test_course_py_can_read_every_requirement():
    for line in HERE.requirements(["dev"]):
        assert re.fullmatch(r"[\w.-]+((>=|<)[\d.]+(,(>=|<)[\d.]+)*)?", line), line
        assert str(Requirement(line).specifier)


def test_the_supported_pythons_are_the_same_everywhere():
    assert 'requires-python = ">=3.10,<3.15"' in read("pyproject.toml")
    assert "(3, 10) <= sys.version_info[:2] <= (3, 14)" in read("course.py")
    assert "Python 3.10 to 3.14" in read("README.md")
    assert "3.10 to 3.14" in read("course.py") and "3.10 to 3.14" in read("course_lib/learner/doctor.py")


def test_every_folder_with_modules_is_a_package():
    """setuptools leaves out a folder without __init__.py, and an editable install hides that."""
    for top in ("course_lib", "autograder"):
        for folder in {path.parent for path in (ROOT / top).rglob("*.py")}:
            assert (folder / "__init__.py").is_file(), folder


def test_conda_has_no_list_of_its_own():
    text = read("environment.yml")
    assert re.findall(r"^ +- (.*)$", text, re.MULTILINE) == [
        "conda-forge", "python=3.11", "pip", "pip:", "-e .[lab,grade,serve]",
    ]  # fmt: skip


def test_the_licence_is_apache_2_0():
    assert 'license = "Apache-2.0"' in read("pyproject.toml")
    assert "Apache License" in read("LICENSE") and "Version 2.0, January 2004" in read("LICENSE")
    assert "END OF TERMS AND CONDITIONS" in read("LICENSE")


# ---- the README names only what there is


def commands(text):
    """What the README's code spans and blocks start: [(program, first word)]."""
    found = re.findall(r"(python3 course\.py|-m course_lib|-m autograder) ([a-z-]+)", text)
    assert len(found) >= 8
    return found


def help_of(*arguments):
    done = run_python("-m", *arguments, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_in_the_readme_exists():
    lists = {"-m course_lib": help_of("course_lib"), "-m autograder": help_of("autograder")}
    for program, word in commands(read("README.md")):
        if program == "python3 course.py":
            assert word in course.COMMANDS, word
        else:
            assert re.search(rf"\b{word}\b", lists[program]) or word == "--help", (program, word)


def test_the_prefill_command_in_the_readme_runs_and_finds_no_difference():
    line = re.search(r"`python3 -m course_lib (prefill [^`]*)`", read("README.md"))[1]
    done = run_python("-m", "course_lib", *line.split())
    assert done.returncode == 0 and '"equal": true' in done.stdout, done.stderr


def test_every_notebook_named_in_the_readme_exists_and_every_notebook_is_named():
    named = set(re.findall(r"\b(\d\d_\w+)\.ipynb", read("README.md")))
    assert named == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_every_file_named_in_the_readme_exists():
    for name in ("course.py", "environment.yml", "solutions", "notebooks"):
        assert name in read("README.md") and (ROOT / name).exists()


def test_the_readme_is_one_screen():
    assert len(read("README.md").splitlines()) <= 60


def test_ci_runs_the_readmes_test_command():
    script = read(".ci/run")
    assert "set -euo pipefail" in script and re.search(r"^python3 course\.py test$", script, re.MULTILINE)
    assert "python3 course.py test" in read("README.md")
    if os.name != "nt":
        assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_importing_what_course_py_needs_imports_no_package():
    script = "import sys, course; print(sorted({'numpy', 'torch', 'pytest', 'nbformat'} & sys.modules.keys()))"
    done = run_python("-c", script)
    assert done.stdout.strip() == "[]", done


def test_every_path_that_the_contributors_page_names_exists():
    text = read("docs/CONTRIBUTING.md")
    named = set(re.findall(r"`([\w./]+/[\w./]*|\w+\.(?:py|json))`", text))
    assert len(named) > 30
    places = (ROOT, ROOT / "course_lib", ROOT / "course_lib" / "assets")
    absent = [
        name
        for name in sorted(named)
        if not re.search(r"\bNN_|nbNN|NAME", name) and not any((place / name).exists() for place in places)
    ]
    assert not absent
