"""Grading, beside untouched nbgrader: CPU and wall-clock time of a submission of each notebook, isolation on.

python3 course.py bench grading [NN ...] [--students N] [--nbgrader N] [--class N] [--json]. Linux, best on a
machine that does nothing else: CPU time is that of a group of processes where root may make one, else of the whole
machine, since nbgrader's kernels and our workers have many parents. Of five students three are right, one has a
known mistake and one a stub. What a run takes to start is shared by a class of 200. Behind the table stand the
memory of a worker that is its own, and a mixed class of 500 from files to grades, on one worker and on two (--class
0 leaves it out). Nothing here is asserted.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from autograder.build import ROOT, learner_notebook
from autograder.course import make_course
from autograder.exercises import EXERCISES
from autograder.grading.launch import fork_server
from autograder.grading.sandbox import Sandbox, level
from autograder.include import answer_of
from autograder.source import Lesson, read_lessons

CLASS = 200  # students that share the start
GRADER = [sys.executable, "-m", "autograder", "grade"]
NBGRADER = [sys.executable, "-m", "nbgrader"]
UNTOUCHED = "--Autograde.exporter_class=nbconvert.exporters.NotebookExporter"  # and not this course's engine
Cost = tuple[float, float]  # seconds: CPU, wall clock


CPUACCT = Path("/sys/fs/cgroup/cpuacct")


@contextlib.contextmanager
def counted() -> Iterator[tuple[Callable[[], None] | None, Callable[[], float]]]:
    """What a command calls before it begins, and CPU seconds so far.

    Where root may make a group of processes (cgroup v1), those of the command and of all that it starts; elsewhere
    those of the whole machine, which should then do nothing else.
    """
    group = CPUACCT / f"bench-grading-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None, machine_seconds
        return
    try:
        yield (
            lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None,
            lambda: int((group / "cpuacct.usage").read_text()) / 1e9,
        )
    finally:
        time.sleep(0.2)  # processes that are ending
        with contextlib.suppress(OSError):
            group.rmdir()


def machine_seconds() -> float:
    """CPU time of the whole machine since it started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    busy = sum(map(int, fields)) - int(fields[3]) - int(fields[4])  # without idle and iowait
    return busy / os.sysconf("SC_CLK_TCK")


def measured(command: list[str], folder: Path) -> Cost:
    """CPU and wall-clock seconds of a command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with counted() as (begin, seconds):
        cpu, wall = seconds(), time.monotonic()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, preexec_fn=begin)
        cost = seconds() - cpu, time.monotonic() - wall
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return cost


def handed_in(lesson: Lesson, number: int) -> str:
    """The notebook of a student: right, or with a known mistake, or with a stub, by the student's number."""
    made = learner_notebook(lesson, ROOT)
    names = [cell.solution for cell in lesson.cells if cell.solution]
    chosen, kind = names[number % len(names)], number % 5
    for cell in made["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id", "")
        if name not in names or (kind == 4 and name == chosen):
            continue
        wrong = EXERCISES[name].wrong_answers
        right = answer_of(lesson, lesson.solution(name), ROOT).solved()
        text = wrong[number % len(wrong)].source if kind == 3 and name == chosen else right
        cell["source"] = f"{EXERCISES[name].imports}\n\n\n{text}\n\nsubmitted_by = {number}\n"
    return json.dumps(made)


class Course:
    """An nbgrader course of one notebook in a temporary folder."""

    def __init__(self, folder: Path, lesson: Lesson):
        self.folder, self.lesson = folder, lesson
        with contextlib.redirect_stdout(io.StringIO()):
            make_course(folder, seed=1)
        measured([*NBGRADER, "generate_assignment", lesson.stem], folder)

    def submit(self, count: int) -> None:
        """Have so many students hand in, in place of those that did before."""
        for name in ("submitted", "autograded"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for number in range(count):
            file = self.folder / "submitted" / f"s{number:03}" / self.lesson.stem / f"{self.lesson.stem}.ipynb"
            file.parent.mkdir(parents=True)
            file.write_text(handed_in(self.lesson, number))

    def ours(self, count: int, jobs: int = 1) -> Cost:
        self.submit(count)
        return measured([*GRADER, str(self.folder), "-j", str(jobs), "--again"], self.folder)

    def nbgrader(self, count: int) -> Cost:
        self.submit(count)
        return measured([*NBGRADER, "autograde", self.lesson.stem, "--force", UNTOUCHED], self.folder)


def start_and_each(measure: Callable[[int], Cost], few: int, many: int) -> tuple[Cost, Cost]:
    """What the start costs, and each submission, from classes of two sizes."""
    small, large = measure(few), measure(many)
    each = tuple((b - a) / (many - few) for a, b in zip(small, large))
    return tuple(max(0.0, a - few * e) for a, e in zip(small, each)), each


def compare(lesson: Lesson, ours: int, nbgraders: int) -> dict:
    """One notebook: seconds of CPU and wall-clock time a submission in a class of CLASS, ours and nbgrader's."""
    with tempfile.TemporaryDirectory(prefix="bench-grading-") as folder:
        course = Course(Path(folder), lesson)
        row = {"notebook": lesson.stem}
        for who, measure, few, many in (
            ("ours", course.ours, max(1, ours // 5), ours),
            ("nbgrader", course.nbgrader, 1, nbgraders),
        ):
            start, each = start_and_each(measure, few, many)
            row[who] = {
                "start_cpu_s": start[0], "each_cpu_s": each[0], "each_wall_s": each[1],
                "class_cpu_s": start[0] / CLASS + each[0], "class_wall_s": start[1] / CLASS + each[1],
            }  # fmt: skip
    row["cpu_ratio"] = row["nbgrader"]["class_cpu_s"] / row["ours"]["class_cpu_s"]
    row["wall_ratio"] = row["nbgrader"]["class_wall_s"] / row["ours"]["class_wall_s"]
    return row


def whole_class(lessons: Sequence[Lesson], count: int) -> dict:
    """A mixed class from files to grades, on one worker and on two."""
    with tempfile.TemporaryDirectory(prefix="bench-grading-") as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            make_course(Path(folder), seed=1)
        for number in range(count):
            lesson = lessons[number % len(lessons)]
            file = Path(folder) / "submitted" / f"s{number:03}" / lesson.stem / f"{lesson.stem}.ipynb"
            file.parent.mkdir(parents=True)
            file.write_text(handed_in(lesson, number // len(lessons)))
        one, two = (measured([*GRADER, folder, "-j", jobs, "--again"], Path(folder)) for jobs in "12")
    return {"submissions": count, "one_worker_s": one[1], "two_workers_s": two[1], "speedup": one[1] / two[1]}


def private_megabytes() -> float | None:
    """Memory of a worker that is its own, in MB, with no answer running; None where it cannot be seen."""
    if level() != "namespaces":
        return None
    with Sandbox("namespaces"):
        server = fork_server(False).process.pid
        workers = [pid for pid in os.listdir("/proc") if pid.isdigit() and server in _ancestors(int(pid))]
        return sum(_private(int(pid)) for pid in workers) / 1e6


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        found.append(pid)
    return found


def _private(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", metavar="NN", help="such as 02; all without it")
    parser.add_argument("--students", type=int, default=25, help="of ours, a notebook (default 25)")
    parser.add_argument(
        "--nbgrader", type=int, default=3, help="submissions that nbgrader grades, a notebook (default 3)"
    )
    parser.add_argument("--class", dest="whole", type=int, default=500, help="size of the mixed class (default 500)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not Path("/proc/stat").exists() or args.students < 2 or args.nbgrader < 2:
        parser.error("this needs Linux, and classes of two at least.")
    lessons = [one for one in read_lessons(ROOT) if not args.notebooks or one.stem[:2] in args.notebooks]
    if not lessons:
        parser.error("there is no such notebook; give numbers such as 02.")
    rows = []
    if not args.json:
        print(f"isolation: {level()}; a class of {CLASS}; CPU and wall-clock time a submission\n")
        print(f"{'notebook':18}{'nbgrader':>20}{'ours':>22}{'ratio':>16}")
    for lesson in lessons:
        rows.append(row := compare(lesson, args.students, args.nbgrader))
        if not args.json:
            theirs, ours = row["nbgrader"], row["ours"]
            print(
                f"{row['notebook']:18}{theirs['class_cpu_s']:8.2f} s{theirs['class_wall_s']:8.2f} s"
                f"{1e3 * ours['class_cpu_s']:9.0f} ms{1e3 * ours['class_wall_s']:8.0f} ms"
                f"{row['cpu_ratio']:8.0f}x{row['wall_ratio']:6.0f}x",
                flush=True,
            )
    found = {"isolation": level(), "rows": rows, "private_mb": private_megabytes()}
    if args.whole:
        found["class"] = whole_class(lessons, args.whole)
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    print(f"{'mean of ratios':18}{sum(row['cpu_ratio'] for row in rows) / len(rows):58.0f}x")
    if found["private_mb"] is not None:
        print(f"memory of a worker without torch that is its own: {found['private_mb']:.0f} MB")
    if args.whole:
        whole = found["class"]
        print(
            f"{whole['submissions']} mixed submissions, from files to grades: {whole['one_worker_s']:.0f} s on one "
            f"worker, {whole['two_workers_s']:.0f} s on two ({whole['speedup']:.2f}x)"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
