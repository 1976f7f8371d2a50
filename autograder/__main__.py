"""The command line for authors and instructors: `python -m autograder build|new|course|grade|gradescope|level`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from course_lib.cli import Parser, UserError, file_to_write, not_negative, processes, run_command

PROG = "python -m autograder"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 `build --check` found a difference, 2 refused."""
    parser = Parser(
        prog=PROG,
        description="From solutions/ to notebooks, and to an nbgrader course.",
        example=f"{PROG} build --check",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="build|new|course|grade|gradescope|level")
    build = commands.add_parser(
        "build",
        prog=f"{PROG} build",
        description="Write notebooks/ and the exercise index from solutions/*.py.",
        help="solutions/*.py -> notebooks/*.ipynb",
        example=f"{PROG} build",
    )
    build.add_argument(
        "--check", action="store_true", help="only compare; exit 1 if a file differs or an exercise lacks something"
    )
    new = commands.add_parser(
        "new",
        prog=f"{PROG} new",
        description="Write the skeleton of an exercise: its check, its cells, its right answers. docs/CONTRIBUTING.md "
        "says how to go on.",
        help="the skeleton of an exercise",
        example=f"{PROG} new row_sums --notebook 02 --module course_lib.attention.mask",
    )
    new.add_argument("name", metavar="NAME", help="what the learner writes; the solution has this name")
    new.add_argument("--notebook", required=True, metavar="NN", help="the notebook that asks for it")
    new.add_argument("--module", required=True, metavar="course_lib.X", help="where the solution stands")
    course = commands.add_parser(
        "course",
        prog=f"{PROG} course",
        description="Make an nbgrader course, or bring its source/ up to date.",
        help="an nbgrader course with hidden checks",
        example=f"{PROG} course ../spring-course --notebooks 02,03,05 --points 02=10,03=5",
    )
    course.add_argument("directory", type=Path, metavar="DIR", help="a new or empty directory, or a course made before")
    course.add_argument("--seed", type=not_negative, help="chooses the hidden inputs; without it a secret one is drawn")
    course.add_argument("--notebooks", type=_words, metavar="NN,NN", help="only these (default: all, or as before)")
    course.add_argument("--points", type=_points, metavar="NN=P,NN=P", help="what notebooks are worth in this course")
    grade = commands.add_parser(
        "grade",
        prog=f"{PROG} grade",
        description="Grade submissions: a course, a folder of notebooks, or a zip of Moodle or Canvas. Answers run in "
        "a sandbox. Grades go into the course's gradebook; grades.json, grades.csv and pages go into reports/. What "
        "has not changed since it was graded is not graded again, and a run that was stopped goes on.",
        help="grade submissions",
        example=f"{PROG} grade ../spring-course -j 4",
    )
    grade.add_argument("where", type=Path, metavar="DIR", help="a course, a folder of submissions, or a zip")
    grade.add_argument("-j", dest="jobs", type=processes, default=1, metavar="N", help="processes at once (default 1)")
    grade.add_argument(
        "--accept-isolation", default="bubblewrap", choices=("namespaces", "bubblewrap", "process"), metavar="LEVEL",
        help="the least isolation to grade at: bubblewrap (default), namespaces, or process, for code that you trust",
    )  # fmt: skip
    grade.add_argument("--student", action="append", default=[], metavar="NAME", help="only this one (repeatable)")
    grade.add_argument("--assignment", action="append", default=[], metavar="NAME", help="only this one (repeatable)")
    grade.add_argument(
        "--json", type=file_to_write, metavar="FILE", help="where to write the grades (default reports/grades.json)"
    )
    grade.add_argument(
        "--scheduler", default="", metavar="ADDRESS", help="a Dask scheduler whose workers grade, as tcp://HOST:8786"
    )
    grade.add_argument(
        "--course", type=Path, metavar="COURSE", help="where the grades of a zip or folder go, with its points and seed"
    )
    grade.add_argument("--again", action="store_true", help="grade anew what has not changed, too")
    grade.add_argument("--dry-run", action="store_true", help="only list what would be graded")
    gradescope = commands.add_parser(
        "gradescope",
        prog=f"{PROG} gradescope",
        description="Write the autograder of one notebook as a zip for Gradescope. Keep the zip to yourself: it holds "
        "the seed of the inputs that learners do not see.",
        help="an autograder zip for Gradescope",
        example=f"{PROG} gradescope mask.zip --assignment 02_mask",
    )
    gradescope.add_argument("out", type=file_to_write, metavar="OUT.zip", help="the file to write")
    gradescope.add_argument("--assignment", required=True, metavar="NAME", help="the notebook, such as 02_mask")
    gradescope.add_argument("--seed", type=not_negative, help="chooses the hidden inputs; without it one is drawn")
    commands.add_parser(
        "level",
        prog=f"{PROG} level",
        description="Print how well this machine can isolate the code of strangers: namespaces, bubblewrap, "
        "or process.",
        help="how well answers can be isolated here",
        example=f"{PROG} level",
    )
    options = parser.parse_args(argv)
    # nbformat imports jsonschema 4.26, which builds a grammar of web addresses (1.1 s) that no notebook is checked by
    sys.modules.setdefault("rfc3987_syntax", None)

    def run(_: Sequence[str]) -> int:
        if options.command == "build":
            from autograder.build import ROOT
            from autograder.build import build as build_notebooks

            code = build_notebooks(check=options.check)
            try:
                from autograder.complete import lacking  # it reads the index, which build has just written
            except (SyntaxError, ValueError, ImportError, AttributeError) as error:
                raise UserError(
                    f"an exercise cannot be imported ({type(error).__name__}: {error}). Correct it."
                ) from None
            missing = lacking(ROOT)
            for line in missing:
                print(line)
            return 1 if options.check and missing else code
        if options.command == "new":
            from autograder.new import new_exercise

            return new_exercise(options.name, options.notebook, options.module)
        if options.command in ("grade", "level") and not hasattr(os, "fork"):
            raise UserError(
                "grading needs Linux or macOS, since answers run in forked processes. On Windows use WSL, or a "
                "container with Linux (docs/INSTRUCTORS.md)."
            )
        if options.command == "level":
            from autograder.grading.sandbox import level

            print(level())
            return 0
        if options.command == "gradescope":
            from autograder.grading.gradescope import make_zip

            return make_zip(options.out, options.assignment, options.seed)
        if options.command == "grade":
            from autograder.grading.run import grade

            return grade(
                options.where, jobs=options.jobs, accepted=options.accept_isolation, students=options.student,
                assignments=options.assignment, json_file=options.json and options.json.resolve(),
                dry_run=options.dry_run, scheduler=options.scheduler, again=options.again, course=options.course,
            )  # fmt: skip
        from autograder.course import make_course

        return make_course(options.directory, options.seed, notebooks=options.notebooks, points=options.points)

    return run_command(f"{PROG} {options.command}", run, [])


def _words(text: str) -> list[str]:
    """ "02,03" -> ["02", "03"]."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _points(text: str) -> dict[str, float]:
    """ "02=10,03=5" -> {"02": 10, "03": 5}."""
    try:
        found = {number.strip(): float(total) for number, _, total in (word.partition("=") for word in _words(text))}
    except ValueError:
        found = {}
    if not found or not all(0 < total < 1e6 for total in found.values()):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} does not say what notebooks are worth, as 02=10,03=5 does")
    return found


if __name__ == "__main__":
    sys.exit(main())
