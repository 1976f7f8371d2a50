"""Files that attack a grader, by name: each is put into a student's folder, and holds nothing that earns a point.

A maker gets the folder submitted/STUDENT/03_positions, and the course.
"""
# ruff: noqa: E501 (tables of code)

import json
import os
import zipfile

WRONG = "def positions(cached, computed, take):\n    return []\n"
GRADED = "positions__values"


def cell(source, grade_id="", **more):
    about = {"nbgrader": {"grade_id": grade_id, "grade": True, "points": 100, "schema_version": 3}} if grade_id else {}
    return {"cell_type": "code", "source": source, "metadata": about, "outputs": [], "execution_count": None} | more


def text(*cells, **more):
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5} | more)


def file(content, name="03_positions.ipynb"):
    """A maker of a file with this content."""

    def make(folder, course):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))

    return make


def link(to):
    return lambda folder, course: (folder / "03_positions.ipynb").symlink_to(course / to)


def hard_link(folder, course):
    os.link(course / "gradebook.db", folder / "03_positions.ipynb")


def fifo(folder, course):
    os.mkfifo(folder / "03_positions.ipynb")


def device(folder, course):
    (folder / "03_positions.ipynb").symlink_to("/dev/zero")


def directory(folder, course):
    (folder / "03_positions.ipynb" / "inner.ipynb").mkdir(parents=True)


def sparse(folder, course):
    with (folder / "03_positions.ipynb").open("wb") as f:
        f.truncate(1 << 36)


def deep_folders(folder, course):
    at = folder
    for _ in range(200):
        at = at / "deeper"
        at.mkdir()
    (at / "03_positions.ipynb").write_text(text(cell(WRONG)))


def many_files(folder, course):
    for number in range(300):
        (folder / f"copy {number}.ipynb").write_text(text(cell(f"x = {number}")))


def said(expression):
    return text(cell(f"def positions(cached, computed, take):\n    raise ValueError({expression})\n"))


MAKERS = {
    "a link to a neighbour's file": link("submitted/ann/03_positions/03_positions.ipynb"),
    "a link to the gradebook": link("gradebook.db"),
    "a link to the hidden checks": link("source/03_positions/03_positions.ipynb"),
    "a hard link to the gradebook": hard_link,
    "a fifo": fifo,
    "a device": device,
    "a directory": directory,
    "a sparse file of 64 GiB": sparse,
    "folders in folders": deep_folders,
    "hundreds of files": many_files,
    "empty": file(""),
    "blanks": file(" \n" * 1000),
    "half a file": file(text(cell(WRONG))[:100]),
    "deep JSON": file("[" * 500_000),
    "deep objects": file('{"cells":' * 100_000),
    "not UTF-8": file(b'{"cells": "\xff\xfe\xfa"}'),
    "UTF-16 of half a character": file(b"\xff\xfe\x00\xd8"),
    "zeros": file(bytes(1 << 20)),
    "a million cells": file('{"cells":[' + "{}," * 999_999 + "{}]}"),
    "millions of lists": file('{"cells":[' + "[]," * 5_000_000 + "[]]}"),
    "a number of a million digits": file('{"cells": [], "nbformat": ' + "9" * 1_000_000 + "}"),
    "not a number": file('{"cells": NaN, "metadata": -Infinity}'),
    "keys twice": file('{"cells": 1, "cells": ' + json.dumps([cell(WRONG)]) + "}"),
    "worksheets of numbers": file('{"worksheets": [{"cells": 5}, 7, null, {"cells": {"a": 1}}]}'),
    "conflicts without end": file("<<<<<<< a\n=======\n" * 200_000),
    "conflicts that never part": file("<<<<<<< a\n" * 1_000_000),
    "a wild schema version": file(text(cell(WRONG, GRADED), nbformat=99).replace('version": 3', 'version": 1e999')),
    "grade ids twice": file(text(*[cell(WRONG, GRADED)] * 50)),
    "points as they like": file(text(cell("pass", GRADED, outputs=[{"output_type": "stream", "text": "Passed"}]))),
    "tests replaced": file(text(cell(WRONG), cell("from autograder import check\ncheck.positions = print", GRADED))),
    "cell types changed": file(text(cell(WRONG), cell("x", GRADED, cell_type="markdown"))),
    "ids of other kinds": file(text(cell(WRONG, metadata={"nbgrader": {"grade_id": [1], "points": -5}}))),
    "a cell of a megabyte": file(text(cell("positions = " + "-" * 1_000_000 + "1"))),
    "a sum without end": file(text(cell("positions = 0" + "+0" * 24_000))),
    "dots without end": file(text(cell("positions = x" + ".a" * 24_000))),
    "brackets without end": file(text(cell("positions = " + "[" * 40_000))),
    "magics without end": file(text(*[cell("%a\n" * 400 + WRONG)] * 100)),
    "a zero byte": file(text(cell(WRONG + "\0"))),
    "half a surrogate": file(text(cell(WRONG + "# \ud800"))),
    "half a surrogate in the answer's words": file(said("'\\ud800'")),
    "a zero byte in its words": file(said("'\\x00\\x1b[31m'")),
    "a formula in its words": file(said("'=HYPERLINK(1)'")),
    "a script in its words": file(said("'</pre><script>alert(1)</script>'")),
    "a line of log in its words": file(said("'x\\n{\"student\": \"ann\", \"score\": 0}'")),
    "the words of another's page": file(said("'../../ann/03_positions/index.html'")),
    "other exercises as well": file(text(cell(WRONG), *[cell(f"def {n}(*a):\n    return 0") for n in ("rope", "attend")])),
    "a name with a newline": file(text(cell(WRONG)), "03_positions\n.ipynb"),
    "a name in HTML": file(text(cell(WRONG)), "<img src=x onerror=alert(1)>.ipynb"),
    "a name that is a formula": file(text(cell(WRONG)), "=HYPERLINK(1).ipynb"),
    "a name of 250 characters": file(text(cell(WRONG)), "a" * 244 + ".ipynb"),
    "a name that is no UTF-8": lambda folder, course: file(text(cell(WRONG)), os.fsdecode(b"\xff\xfe.ipynb"))(folder, course),
    "a name with a colon and a backslash": file(text(cell(WRONG)), "..\\..\\ann:x.ipynb"),
}  # fmt: skip
STUDENTS = [
    "=cmd|' calc'!A1",
    "<b>mallory",
    "new\nline",
    "\u202eevil",
    os.fsdecode(b"m\xff\xfe"),
    "a" * 255,
    "%s%n",
    "'; drop --",
]
SLOW = {"magics without end", "deep JSON"}


def lms_zip(path, right, wrong):
    """A zip of Moodle in which mallory does what her names and files allow."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("Ann Other_17_assignsubmission_file_/03_positions.ipynb", right)
        made.writestr("Ann Other_99_assignsubmission_file_/03_positions.ipynb", wrong)  # another student of that name
        made.writestr("Bob_18_assignsubmission_file_/" + "x" * 300 + ".ipynb", right)
        made.writestr("Bob_19_assignsubmission_file_/03_positions.ipynb/inner.ipynb", wrong)
        made.writestr("Eve_20_assignsubmission_file_/<script>\n=1.ipynb", wrong)
        made.writestr("Mal_21_assignsubmission_file_/bomb.ipynb", bytes(200 << 20))
        made.writestr("Mal_21_assignsubmission_file_/./bomb.ipynb", wrong)
        for number in range(50):
            made.writestr(f"Many_22_assignsubmission_file_/{number}.ipynb", wrong)
