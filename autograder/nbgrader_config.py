"""nbgrader's settings for this course. `python -m autograder course DIR` puts a copy into DIR; edit that copy.

The machine that grades needs the course installed (pip install -e .[grade]): the check cells import it.
"""

import json
import os
import re

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader.plugins import CsvExportPlugin
from nbgrader.preprocessors import (
    CheckCellMetadata,
    ClearOutput,
    DeduplicateIds,
    GetGrades,
    NbGraderPreprocessor,
    OverwriteCells,
    OverwriteKernelspec,
)
from traitlets import List

c = get_config()  # noqa: F821  (nbgrader defines it when it reads this file)

c.CourseDirectory.course_id = "chunked-prefill"

# `nbgrader autograde`, and formgrader's button, grade with this course's engine: answers run in a sandbox. Without the
# next line nbgrader runs learners' notebooks under your account: they can read the hidden tests and change grades.
c.Autograde.exporter_class = "autograder.grading.nbgrader_autograde.SandboxedGrading"
# Processes at once:
c.SandboxedGrading.jobs = 1
# Where the engine refuses because this machine cannot isolate answers, and you trust those who wrote them:
# c.SandboxedGrading.accept_isolation = "process"

# Feedback pages are made anew each time: without a timestamp nbgrader takes an old page for that of a new submission.
c.GenerateFeedback.force = True

# A gradebook that nbgrader makes anew, and what it exports, hold the grades of all: for their owner alone.
os.close(os.open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gradebook.db"), os.O_CREAT, 0o600))


class ClosedExport(CsvExportPlugin):
    """nbgrader's table of grades, in a file for its owner alone."""

    def export(self, gradebook):
        self.to = self.to or "grades.csv"
        os.close(os.open(self.to, os.O_CREAT, 0o600))
        os.chmod(self.to, 0o600)
        super().export(gradebook)


c.ExportApp.plugin_class = ClosedExport

# While nbgrader runs notebooks itself, widgets are inert and no progress is written.
os.environ.setdefault("COURSE_GRADING", "1")

# Time, in seconds. A check takes under 5 on two cores; the first cell that imports torch may take 20 on a cold disk.
c.Execute.timeout = 120
c.Execute.startup_timeout = 120
c.Execute.iopub_timeout = 30

# What replaces a solution in the learners' version. Below every solution region of this course stands
# `raise NotImplementedError("Exercise 2.1: ...")`, so this line need not raise. An exercise that you add yourself
# needs such a line too, or an untouched cell defines a function that returns None.
c.ClearSolutions.code_stub = {"python": "# Your code goes here, in place of the next line."}


class TidySubmission(DeduplicateIds):
    """Two things that happen to honest notebooks, and that nbgrader 0.9.6 stops at.

    A copied cell takes its nbgrader metadata along. nbgrader leaves an empty entry on all but the last copy, takes
    that for an old format and stops: all submissions after this one stay ungraded. Leave no entry.
    Colab saves widgets without their state, and no feedback page can be made. The outputs are cleared; forget them.
    """

    def preprocess(self, nb, resources):
        nb, resources = super().preprocess(nb, resources)
        nb.metadata.pop("widgets", None)
        for cell in nb.cells:
            if cell.metadata.get("nbgrader") == {}:
                del cell.metadata["nbgrader"]
        return nb, resources


class RestoreChecks(OverwriteCells):
    """A check that a learner deleted comes back behind the answer (or at the end), so that the answer is graded.

    nbgrader's own way to do so stops at a submission in which the answer is deleted as well.
    """

    add_missing_cells = True

    def add_missing_grade_cells(self, nb, resources):
        handed_out = self.gradebook.find_notebook(self.notebook_id, self.assignment_id)
        originals = {cell.name: cell for cell in handed_out.source_cells}
        solutions = {cell.name for cell in handed_out.solution_cells}
        for check in handed_out.grade_cells:
            ids = [cell.metadata.get("nbgrader", {}).get("grade_id", "") for cell in nb.cells]
            if check.name not in ids:
                exercise = check.name.partition("__")[0]
                near = [place for place, name in enumerate(ids) if name.partition("__")[0] == exercise]
                cell = self.missing_cell_transform(originals[check.name], check.max_score, check.name in solutions)
                nb.cells.insert(near[-1] + 1 if near else len(nb.cells), cell)
        return nb, resources


# nbgrader's own list, with TidySubmission in the place of DeduplicateIds and RestoreChecks in that of OverwriteCells.
c.Autograde.sanitize_preprocessors = [
    ClearOutput,
    TidySubmission,
    OverwriteKernelspec,
    RestoreChecks,
    CheckCellMetadata,
]

# nbgrader gives 0 points to a check that wrote to stderr, be it a warning or a log line of the learner's, although the
# check passed. Leave all such outputs out; an exception is an output of another type and costs the points as before.
c.IgnorePattern.enabled = True
c.IgnorePattern.pattern = "^"  # found in every text


class HideHiddenTests(NbGraderPreprocessor):
    """Leave the hidden tests, and their seeds wherever an output repeats them, out of the feedback pages.

    nbgrader shows the graded notebook as it ran, hidden tests included; with the seed a learner can make the
    hidden inputs. A pattern and not nbgrader's own ClearHiddenTests, which stops at a region in any other cell.
    """

    display_data_priority = List(config=True)  # HTMLExporter sets it on every preprocessor and warns without it
    region = re.compile(r"^[^\n]*BEGIN HIDDEN TESTS.*?END HIDDEN TESTS[^\n]*\n?", re.DOTALL | re.MULTILINE)

    quoted = re.compile(r"^[^\n]*(?:HIDDEN TESTS|\(hidden\))[^\n]*\n?", re.MULTILINE)

    def preprocess(self, nb, resources):
        code = [cell for cell in nb.cells if cell.cell_type == "code"]
        hidden = "".join(text for cell in code for text in self.region.findall(cell.source))
        seeds = re.findall(r"seed=(\d{10,})", hidden)
        for cell in code:
            cell.source = self.region.sub("# (hidden tests ran here)\n", cell.source).rstrip("\n")
            shown = json.dumps(cell.outputs)
            for seed in seeds:
                shown = shown.replace(seed, "(hidden)")
            cell.outputs = [type(cell)(output) for output in json.loads(shown)]
            for output in cell.outputs:  # IPython's tracebacks quote the lines around the call
                if output.output_type == "error":
                    output.traceback = [self.quoted.sub("", text) for text in output.traceback]
        return nb, resources


c.GenerateFeedback.preprocessors = [GetGrades, HideHiddenTests, CSSHTMLHeaderPreprocessor]
