"""The command line for authors and instructors: `python -m autograder build|course`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from course_lib.cli import Parser, not_negative, run_command

PROG = "python -m autograder"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 `build --check` found a difference, 2 refused."""
    parser = Parser(
        prog=PROG,
        description="From solutions/ to notebooks, and to an nbgrader course.",
        example=f"{PROG} build --check",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="build|course")
    build = commands.add_parser(
        "build",
        prog=f"{PROG} build",
        description="Write notebooks/ and the exercise index from solutions/*.py.",
        help="solutions/*.py -> notebooks/*.ipynb",
        example=f"{PROG} build",
    )
    build.add_argument("--check", action="store_true", help="only compare; exit 1 and name the files that differ")
    course = commands.add_parser(
        "course",
        prog=f"{PROG} course",
        description="Make an nbgrader course, or bring its source/ up to date.",
        help="an nbgrader course with hidden checks",
        example=f"{PROG} course ../spring-course",
    )
    course.add_argument("directory", type=Path, metavar="DIR", help="a new or empty directory, or a course made before")
    course.add_argument("--seed", type=not_negative, help="chooses the hidden inputs; without it a secret one is drawn")
    options = parser.parse_args(argv)

    def run(_: Sequence[str]) -> int:
        if options.command == "build":
            from autograder.build import build as build_notebooks

            return build_notebooks(check=options.check)
        from autograder.course import make_course

        return make_course(options.directory, options.seed)

    return run_command(f"{PROG} {options.command}", run, [])


if __name__ == "__main__":
    sys.exit(main())
