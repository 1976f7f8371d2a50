"""A grading run: whatever happens to it, each submission gets the grade it is worth, once, or none."""

import contextlib
import errno
import fcntl
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import classes
import pytest
from starting import ROOT, assert_refused

pytest.importorskip("nbgrader")

from autograder.course import make_course, open_gradebook
from autograder.grading import run
from autograder.grading.executors import Job, work
from autograder.grading.grade import Graded, Task
from autograder.grading.journal import Journal, key_of, version
from autograder.grading.rounds import Progress, Rounds
from autograder.grading.run import grade
from autograder.grading.sandbox import LEVELS, level
from autograder.grading.submissions import Submission
from course_lib.cli import UserError

LEVEL = level()
WORTH = {"02_mask": {"attend__logic": 1, "attend__bits": 2}}


def command(course, *options):
    line = ("grade", course, "-j", "2", "--accept-isolation", LEVEL if LEVEL in LEVELS[-2:] else LEVELS[-2])
    return [sys.executable, "-m", "autograder", *map(str, (*line, *options))]


def start(course, *options, **more):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(course, *options), cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more
    )


def finished(process):
    out, said = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, said)


def results(course):
    """All that a run leaves: files by their bytes, the gradebook (in which nbgrader draws its ids) by what it says."""
    found = {}
    for folder in ("reports", "autograded"):
        for path in sorted((course / folder).rglob("*")):
            if path.is_file():
                found[str(path.relative_to(course))] = path.read_bytes()
    with open_gradebook(course / "gradebook.db") as book:
        for sent in [sub for assignment in book.assignments for sub in assignment.submissions]:
            who, stem = sent.student.id, sent.assignment.name
            for part in sent.notebooks:
                grades = [(g.name, g.auto_score, g.manual_score, g.needs_manual_grade) for g in part.grades]
                found[f"{who}/{stem}"] = sorted(grades), sorted((c.name, c.auto_comment) for c in part.comments)
    return found


def workers_of(process):
    """Processes in which submissions are graded."""
    pid, found = process.pid, []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def lines_in(course):
    with contextlib.suppress(FileNotFoundError):
        return (course / ".grading_journal").read_bytes().count(b"\n")
    return 0


def grade_with_kills(course, rng, every):
    """Grade until it is done; whenever some more submissions are finished, a worker or all of it is killed."""
    killed = {"worker": 0, "parent": 0}
    for _ in range(200):
        process = start(course)
        next_kill = lines_in(course) + rng.integers(every)
        while process.poll() is None:
            if lines_in(course) >= next_kill:
                next_kill = lines_in(course) + rng.integers(every)
                workers = workers_of(process)
                if rng.random() < 0.4:
                    process.send_signal(signal.SIGKILL)
                    killed["parent"] += 1
                elif workers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(workers), signal.SIGKILL)
                        killed["worker"] += 1
            time.sleep(0.02)
        done = finished(process)
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode != -signal.SIGKILL:
            assert done.returncode == 0, done.stderr
            return killed
    raise AssertionError("it never came to an end")


class Random(random.Random):
    def integers(self, pair):
        return self.randint(*pair)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="/proc tells which processes are workers")
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_a_class_that_is_graded_among_kills_has_the_grades_of_one_that_is_not(tmp_path, count):
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    make_course(calm, seed=31)
    classes.hand_in(calm, count)
    shutil.copytree(calm, wild)
    done = finished(start(calm))
    assert done.returncode == 0 and f"{count} of {count} graded" in done.stderr, done.stderr
    killed = grade_with_kills(wild, Random(count), (3, 5) if count < 20 else (5, 30))
    assert killed["parent"] and killed["worker"], killed
    wanted = results(calm)
    assert results(wild) == wanted
    assert len(json.loads(wanted["reports/grades.json"])) == count
    scores = {(one["score"] > 0, one["score"] < one["max_score"]) for one in json.loads(wanted["reports/grades.json"])}
    assert len(scores) == 3  # full marks, some, none


# ---- what is graded again, and what is not


class Pool:
    """Grades at once, as `answer(job, how often this content came before)` says: a Graded, or what is raised."""

    level, width = "bubblewrap", 3

    def __init__(self, answer):
        self.answer, self.jobs = answer, []

    def submit(self, job):
        future = Future()
        came = self.answer(job, sum(one.content == job.content for one in self.jobs))
        self.jobs.append(job)
        if isinstance(came, BaseException):
            future.set_exception(came)
        else:
            future.set_result(came)
        return future

    def is_lost(self, error):
        return isinstance(error, BrokenProcessPool)


def graded(job, score=3.0, said=""):
    half = score / 3
    return Graded(
        job.assignment, job.level, (Task("attend__logic", half, 1, said), Task("attend__bits", 2 * half, 2, ""))
    )


@pytest.fixture
def handed_in(tmp_path):
    def make(*contents):
        made = []
        for number, content in enumerate(contents):
            path = classes.write(tmp_path, f"student{number}", "02_mask", content)
            made.append(Submission(f"student{number}", "02_mask", path))
        return made

    return make


def rounds_of(tmp_path, pool, todo, *, seed=5, **more):
    with Journal(tmp_path / "journal", seed, **more) as kept:
        return {one.student: came for one, came in Rounds(pool, kept, WORTH, seed).run(todo)}


def test_what_was_graded_is_graded_again_only_when_something_has_changed(tmp_path, handed_in):
    pool = Pool(lambda job, before: (graded(job), False))
    todo = handed_in(b"a", b"b")
    first = rounds_of(tmp_path, pool, todo)
    assert rounds_of(tmp_path, pool, todo) == first and len(pool.jobs) == 2
    handed_in(b"a", b"c")
    assert rounds_of(tmp_path, pool, todo) == first and [job.content for job in pool.jobs[2:]] == [b"c"]
    assert rounds_of(tmp_path, pool, todo, again=True) == first and len(pool.jobs) == 5
    pool.level = "process"
    levels = {came.isolation for came in rounds_of(tmp_path, pool, todo).values()}
    assert levels == {"process"} and len(pool.jobs) == 7


def test_the_key_is_another_for_all_that_grades_depend_on(monkeypatch):
    same = (b"content", "02_mask", {"attend__bits": 2.0}, 5, "bubblewrap")
    others = [
        (b"Content", *same[1:]),
        (*same[:1], "03_positions", *same[2:]),
        (*same[:2], {"attend__bits": 1.0}, *same[3:]),
        (*same[:2], {"attend__logic": 2.0}, *same[3:]),
        (*same[:3], 6, same[4]),
        (*same[:4], "process"),
    ]
    assert len({key_of(*one) for one in (same, *others)}) == 7 and key_of(*same) == key_of(*same)
    before = key_of(*same)
    monkeypatch.setattr("autograder.grading.journal.version", lambda: "another")
    assert key_of(*same) != before


def test_the_very_same_file_is_graded_once_for_all_who_handed_it_in(tmp_path, handed_in):
    pool = Pool(lambda job, before: (graded(job), False))
    found = rounds_of(tmp_path, pool, handed_in(b"a", b"a", b"b", b"a", b"a", b"a"))
    assert len(found) == 6 and len(pool.jobs) == 2


def test_a_call_that_ran_out_of_time_is_tried_once_more_alone_and_that_counts(tmp_path, handed_in):
    def answer(job, before):
        slow = job.content in (b"slow once", b"slow always")
        right = not slow or before and job.content == b"slow once"
        return graded(job, 3.0 if right else 0.0, f"{before}"), not right

    pool = Pool(answer)
    found = rounds_of(tmp_path, pool, handed_in(b"slow once", b"right", b"slow always", b"right 2"))
    assert sorted(came.score for came in found.values()) == [0, 3, 3, 3] and len(found) == 4
    assert {who: came.score for who, came in found.items()}["student2"] == 0
    assert {job.content for job in pool.jobs[4:]} == {b"slow once", b"slow always"}
    rounds_of(tmp_path, pool, handed_in(b"slow once", b"right", b"slow always", b"right 2"))
    assert len(pool.jobs) == 6  # what was found the second time is kept


def test_a_lost_worker_costs_nobody_a_grade(tmp_path, handed_in):
    pool = Pool(lambda job, before: BrokenProcessPool("lost") if before < 2 else (graded(job), False))
    found = rounds_of(tmp_path, pool, handed_in(b"a", b"b", b"c"))
    assert {came.score for came in found.values()} == {3}


def test_what_takes_its_worker_with_it_again_and_again_gets_no_grade(tmp_path, handed_in):
    def answer(job, before):
        return BrokenProcessPool("lost") if job.content == b"bad" else (graded(job), False)

    pool = Pool(answer)
    found = rounds_of(tmp_path, pool, handed_in(b"a", b"bad", b"c"))
    assert "ended from outside" in found["student1"]
    assert found["student0"].score == found["student2"].score == 3
    assert sum(job.content == b"bad" for job in pool.jobs) == 6


def test_an_error_of_the_graders_own_is_tried_once_more_and_is_no_grade(tmp_path, handed_in):
    pool = Pool(lambda job, before: ZeroDivisionError("ours") if job.content == b"bad" else (graded(job), False))
    found = rounds_of(tmp_path, pool, handed_in(b"a", b"bad"))
    assert found["student1"] == "ZeroDivisionError: ours" and found["student0"].score == 3
    assert sum(job.content == b"bad" for job in pool.jobs) == 2


def test_a_worker_of_another_version_ends_the_run(tmp_path, handed_in):
    pool = Pool(lambda job, before: UserError("other sources"))
    with pytest.raises(UserError, match="other sources"):
        rounds_of(tmp_path, pool, handed_in(b"a"))


# ---- the journal


def kept(tmp_path, seed=5):
    with Journal(tmp_path / "journal", seed) as found:
        return dict(found.known)


@pytest.fixture
def filled(tmp_path, handed_in):
    rounds_of(tmp_path, Pool(lambda job, before: (graded(job), False)), handed_in(b"a", b"b", b"c"))
    assert len(kept(tmp_path)) == 3
    return tmp_path / "journal"


def test_a_torn_last_line_is_the_only_one_that_is_lost(filled, tmp_path):
    whole, before = filled.read_bytes(), kept(tmp_path)
    for end in (len(whole) - 1, len(whole) - 30, whole.rindex(b"\n", 0, -1) + 2):
        filled.write_bytes(whole[:end])
        assert list(kept(tmp_path).items()) == list(before.items())[:2]
        rounds_of(tmp_path, Pool(lambda job, before: (graded(job), False)), submissions(tmp_path))
        assert kept(tmp_path) == before  # behind what was torn, lines can be read again


def submissions(tmp_path):
    return [Submission(p.parts[-3], "02_mask", p) for p in sorted((tmp_path / "submitted").rglob("*.ipynb"))]


def test_a_line_that_was_changed_or_made_up_is_not_read(filled, tmp_path):
    lines = filled.read_bytes().splitlines(keepends=True)
    filled.write_bytes(
        lines[0].replace(b"1.0", b"0.0") + b"\x00" * 99 + b"\n" + b"{}\n \n\n" + lines[1] + b"ab cd {}\n"
    )
    assert len(kept(tmp_path)) == 1


def test_only_who_knows_the_seed_can_write_a_line(filled, tmp_path):
    assert kept(tmp_path, seed=6) == {}


def test_a_journal_of_another_version_counts_for_nothing(filled, tmp_path, monkeypatch):
    monkeypatch.setattr("autograder.grading.journal.version", lambda: "another")
    assert kept(tmp_path) == {}


def test_a_journal_that_is_full_of_what_cannot_be_used_is_written_anew(filled, tmp_path):
    before = kept(tmp_path)
    with open(filled, "ab") as file:
        file.write((b"x" * 999 + b"\n") * 3000)
    assert kept(tmp_path) == before
    assert filled.stat().st_size < 10_000 and kept(tmp_path) == before


def test_a_journal_that_is_not_ours_is_refused_and_left_as_it_is(tmp_path):
    other, file = tmp_path / "other", tmp_path / "journal"
    other.write_text("precious")
    for make in (lambda: file.symlink_to(other), lambda: os.link(other, file), file.mkdir, lambda: os.mkfifo(file)):
        make()
        with pytest.raises(UserError, match="journal"):
            Journal(file, 5)
        assert other.read_text() == "precious"
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
    file.write_text("")
    file.chmod(0o666)
    with pytest.raises(UserError, match="others may write it"):
        Journal(file, 5)
    file.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(file, 12345, -1)
        with pytest.raises(UserError, match="belongs to somebody else"):
            Journal(file, 5)


def test_the_journal_is_for_its_owner_alone(filled):
    assert filled.stat().st_mode & 0o777 == 0o600


def test_a_second_grader_is_refused(filled):
    with Journal(filled, 5), pytest.raises(UserError, match="another grader is at work"):
        Journal(filled, 5)
    with open(filled) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock ends with the context


def test_grades_from_the_journal_are_those_that_were_written_down(tmp_path):
    task = Task("attend__bits", 0, 2, "half a character \ud800, a line\n", ("plain", "strict"))
    came = Graded("02_mask", "process", (task,), ("a note",), {"attend": "def attend():\n    pass\n"})
    with Journal(tmp_path / "journal", 5) as kept:
        at_once = kept.add("key", came)
    with Journal(tmp_path / "journal", 5) as kept:
        assert kept.get("key") == at_once
    assert at_once == Graded(
        "02_mask", "process", (Task("attend__bits", 0, 2, "half a character \ufffd, a line\n", task.mistakes),),
        came.notes, came.answers,
    )  # fmt: skip


# ---- a course


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course") / "course"
    make_course(folder, seed=9)
    for who, stem, number in (("ann", "02_mask", 0), ("bob", "02_mask", 2), ("ann", "03_positions", 3)):
        classes.write(folder, who, stem, classes.one(number, stem, who), when=1000)
    assert grade(folder, accepted=LEVEL) == 0
    return folder


@pytest.fixture
def copy(course, tmp_path):
    shutil.copytree(course, tmp_path / "course")
    return tmp_path / "course"


def rows(folder):
    found = json.loads((folder / "reports" / "grades.json").read_text("utf-8"))
    return {(one["student"], one["assignment"]): one for one in found}


def never(*_):
    raise AssertionError("nothing was to be graded")


def test_grading_again_grades_nothing_and_changes_nothing(copy, monkeypatch):
    before = results(copy)
    monkeypatch.setattr("autograder.grading.executors.Local.submit", never)
    assert grade(copy, accepted=LEVEL) == 0
    assert results(copy) == before


def test_what_was_lost_of_the_results_is_written_again(copy, monkeypatch):
    before = results(copy)
    shutil.rmtree(copy / "reports")
    shutil.rmtree(copy / "autograded")
    (copy / "gradebook.db").unlink()
    monkeypatch.setattr("autograder.grading.executors.Local.submit", never)
    assert grade(copy, accepted=LEVEL) == 0
    assert results(copy) == before


def test_what_a_killed_run_left_half_written_is_swept_away(copy):
    page = next((copy / "reports" / "pages").rglob("*.html"))
    left = [page.with_name(f".{page.name}.ab12_xyz"), copy / "autograded" / ".x.ipynb.ab12_xyz"]
    own = page.with_name(".hidden")
    for path in (*left, own):
        path.write_text("half")
    grade(copy, accepted=LEVEL)
    assert own.exists() and not any(path.exists() for path in left)


def test_grading_some_keeps_the_rows_of_the_others(copy):
    before, table = rows(copy), (copy / "reports" / "grades.csv").read_text()
    classes.write(copy, "bob", "02_mask", classes.one(0, "02_mask", "bob"), when=2000)
    assert grade(copy, accepted=LEVEL, students=["bob"]) == 0
    after = rows(copy)
    assert after["bob", "02_mask"]["score"] > before["bob", "02_mask"]["score"]
    assert {key: row for key, row in after.items() if key[0] == "ann"} == {
        key: row for key, row in before.items() if key[0] == "ann"
    }
    assert len(after) == 3 and len((copy / "reports" / "grades.csv").read_text().splitlines()) == len(
        table.splitlines()
    )
    (copy / ".grading_journal").unlink()  # the rows do not hang on it
    assert grade(copy, accepted=LEVEL, assignments=["03_positions"]) == 0
    assert rows(copy) == after


def test_a_newer_submission_takes_the_place_of_the_older_one(copy):
    assert rows(copy)["bob", "02_mask"]["score"] < rows(copy)["bob", "02_mask"]["max_score"]
    right = classes.one(0, "02_mask", "bob")
    classes.write(copy, "bob", "02_mask", right, when=2000, name="02_mask (2).ipynb")
    assert grade(copy, accepted=LEVEL) == 0
    assert rows(copy)["bob", "02_mask"]["score"] == rows(copy)["bob", "02_mask"]["max_score"]
    assert any("2 notebooks were handed in" in note for note in rows(copy)["bob", "02_mask"]["notes"])
    (copy / "submitted" / "bob" / "02_mask" / "02_mask (2).ipynb").unlink()
    assert grade(copy, accepted=LEVEL) == 0
    assert rows(copy)["bob", "02_mask"]["score"] < rows(copy)["bob", "02_mask"]["max_score"]


def test_a_zip_is_graded_into_a_course_with_its_points_beside_those_who_are_not_in_it(copy, capsys):
    before = rows(copy)
    zipped = copy.parent / "moodle.zip"
    with zipfile.ZipFile(zipped, "w") as made:
        made.writestr("Carl_17_assignsubmission_file_/02_mask.ipynb", classes.one(0, "02_mask", "carl"))
        made.writestr("bob_18_assignsubmission_file_/mine.ipynb", classes.one(0, "02_mask", "bob"))
    assert_refused(finished(start(zipped, "--course", copy.parent)), "is no course")
    assert grade(zipped, accepted=LEVEL, course=copy) == 0
    after = rows(copy)
    assert after.keys() == before.keys() | {("Carl", "02_mask")}
    for student in ("Carl", "bob"):
        assert after[student, "02_mask"]["score"] == after[student, "02_mask"]["max_score"]
    assert {key: row for key, row in after.items() if key[0] == "ann"} == {
        key: row for key, row in before.items() if key[0] == "ann"
    }
    with open_gradebook(copy / "gradebook.db") as book:
        assert book.find_submission("02_mask", "Carl").score == after["Carl", "02_mask"]["score"]
    assert (copy / "autograded" / "Carl" / "02_mask" / "02_mask.ipynb").is_file()
    assert not zipped.with_name("moodle-reports").exists()


def test_what_an_instructor_should_know_of_a_time_and_of_a_score_is_told(copy, capsys):
    classes.write(copy, "bob", "02_mask", classes.one(0, "02_mask", "bob"), when=2000)
    (copy / "submitted" / "bob" / "02_mask" / "timestamp.txt").write_text("last Tuesday")
    with open_gradebook(copy / "gradebook.db") as book:
        for found in book.find_submission_notebook("02_mask", "02_mask", "bob").grades:
            found.manual_score = 1
        book.db.commit()
    assert grade(copy, accepted=LEVEL) == 0
    said = capsys.readouterr().err
    assert "bob, 02_mask: timestamp.txt holds no time ('last Tuesday')" in said
    assert "bob, 02_mask: a person scored" in said


def test_what_could_not_be_graded_keeps_its_older_grade_and_the_exit_code_says_so(copy, monkeypatch, capsys):
    class Broken(Pool):
        def __init__(self, jobs):
            super().__init__(lambda job, before: BrokenProcessPool("lost"))
            self.level = LEVEL

        def close(self):
            pass

    before = results(copy)
    classes.write(copy, "bob", "02_mask", classes.one(0, "02_mask", "bob"), when=2000)
    classes.write(copy, "new", "02_mask", classes.one(0, "02_mask", "new"), when=2000)
    monkeypatch.setattr(run, "Local", Broken)
    assert grade(copy, accepted=LEVEL) == 1
    said = capsys.readouterr().err
    assert "02_mask of bob could not be graded, no fault of the answer" in said and "02_mask of new" in said
    assert results(copy) == before  # no 0 for bob, and nothing at all for new


def test_a_second_grader_on_one_course_is_refused_in_one_line(copy):
    with Journal(copy / ".grading_journal", 9):
        assert_refused(finished(start(copy)), "another grader is at work")


def test_where_nothing_may_be_written_the_older_grades_stay_whole(copy, monkeypatch):
    before = results(copy)
    classes.write(copy, "bob", "02_mask", classes.one(0, "02_mask", "bob"), when=2000)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "grades.json")

    def full_journal(handle, data, write=os.write):
        name = os.readlink(f"/proc/self/fd/{handle}") if Path("/proc/self/fd").is_dir() else "journal"
        return full() if name.endswith("journal") else write(handle, data)

    places = {"journal.os.write": full_journal, "run.write_atomically": full, "autograded.write_atomically": full}
    for name, fails in places.items():
        with monkeypatch.context() as patched:
            patched.setattr(f"autograder.grading.{name}", fails)
            with pytest.raises(UserError, match="cannot write .*No space left on device"):
                grade(copy, accepted=LEVEL, again=True)
        found = results(copy)
        assert found.keys() == before.keys()
        if name != "autograded.write_atomically":  # when autograded/ comes, all else is written
            assert found == before, name
    assert grade(copy, accepted=LEVEL) == 0
    assert rows(copy)["bob", "02_mask"]["score"] == rows(copy)["bob", "02_mask"]["max_score"]


@pytest.mark.parametrize("room", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_on_a_disk_that_is_full_one_line_says_so(copy, tmp_path, room):
    """room   kB beside what was handed in: for no journal, or for the journal and some reports"""
    small = tmp_path / "small"
    small.mkdir()
    files = [path for path in (copy / "submitted").rglob("*") if path.is_file()]
    size = 4 * sum(-(-path.stat().st_size // 4096) for path in files) + room
    line = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    mount = f"mount -t tmpfs -o size={size}k none {small}"
    if not shutil.which("unshare") or subprocess.run([*line, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    words = " ".join(f"'{word}'" for word in command(small))
    script = f"{mount} && cp -r {copy}/submitted {small} && exec {words}"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*line, script], cwd=ROOT, env=env, text=True, capture_output=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert re.search("cannot (write|use) .*(No space left|disk is full|disk I/O)", done.stderr.splitlines()[-1]), (
        done.stderr
    )


def test_grades_that_are_none_are_not_overwritten_by_a_part(copy):
    (copy / "reports" / "grades.json").write_text("[1, 2]")
    with pytest.raises(UserError, match="holds no grades"):
        grade(copy, accepted=LEVEL, students=["bob"])


def test_a_folder_of_submissions_has_its_journal_beside_it(tmp_path, course):
    shutil.copytree(course / "submitted" / "ann", tmp_path / "in" / "ann")
    assert grade(tmp_path / "in", accepted=LEVEL) == 0
    assert (tmp_path / ".in.grading_journal").is_file()
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["ann", "reports"]
    assert (tmp_path / "in" / "reports").stat().st_mode & 0o777 == 0o700


def test_a_dry_run_writes_nothing(tmp_path, course, capsys):
    shutil.copytree(course / "submitted" / "ann", tmp_path / "in" / "ann")
    assert grade(tmp_path / "in", dry_run=True) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["in"] and "02_mask" in capsys.readouterr().out


def test_no_student_can_take_the_place_of_the_grades(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("grades.csv_02_mask.ipynb", "grades.json_02_mask.ipynb", "pages_02_mask.ipynb"):
        (tmp_path / "in" / name).write_bytes(classes.one(0, "02_mask", "x"))
    assert grade(tmp_path / "in", accepted=LEVEL) == 0
    assert {who for who, _ in rows(tmp_path / "in")} == {"grades.csv", "grades.json", "pages"}


def test_a_call_that_took_too_long_is_noticed(monkeypatch):
    monkeypatch.setattr("autograder.grading.remote.SECONDS", 5)
    loops = {"chunk_attention_mask": "def chunk_attention_mask(*args):\n    while True:\n        pass\n"}
    for answers, cut_short in (({}, False), (loops, True)):
        content = json.dumps(classes.notebook("02_mask", answers)).encode()
        job = Job(content, "02_mask", {"chunk_attention_mask__values": 2}, 5, LEVEL, version())
        came, noticed = work(job)
        assert noticed == cut_short and came.score == (0 if cut_short else 2)


def running(pids):
    """Those that have not ended; one that has ended and nobody has asked about is a zombie."""
    return [
        pid
        for pid in pids
        if Path(f"/proc/{pid}/stat").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    ]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="/proc tells which processes are workers")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_the_grader(copy, sent):
    before = results(copy)
    process = start(copy, "--again", start_new_session=True)
    while not (workers := workers_of(process)):
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(sent) if sent == signal.SIGKILL else os.killpg(process.pid, sent)
    done = finished(process)
    until = time.monotonic() + 60
    while running(workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert not running(workers)
    if sent == signal.SIGINT:
        assert_refused(done, "the same command goes on")
    assert results(copy) == before


# ---- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(out, total):
    clock = iter(range(0, 1000, 2))
    progress = Progress(total, out, lambda: next(clock))
    for _ in range(total):
        progress.one()
    return out.getvalue()


def test_a_terminal_shows_count_rate_and_time_left_in_one_line():
    text = shown(Terminal(), 3)
    assert text.count("\n") == 1 and text.endswith("\n") and text.count("\r") == 3
    assert "1 of 3 graded, 0.5 a second, 4 s left" in text and "3 of 3 graded, 0.5 a second" in text


def test_without_a_terminal_there_is_a_line_for_each_fifty():
    lines = shown(io.StringIO(), 120).splitlines()
    assert [line.split()[0] for line in lines] == ["50", "100", "120"]


# ---- a cluster


def test_without_dask_one_line_says_what_to_install(copy, tmp_path):
    (tmp_path / "none" / "distributed").mkdir(parents=True)
    (tmp_path / "none" / "distributed" / "__init__.py").write_text("raise ImportError('no Dask')")
    path = os.pathsep.join([str(tmp_path / "none"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    line = [*command(copy), "--scheduler", "tcp://127.0.0.1:1"]
    done = subprocess.run(line, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, text=True, capture_output=True)
    assert_refused(done, "pip install -e .[distributed]")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "no such host"])
def test_where_no_scheduler_answers_one_line_says_so(copy, address):
    pytest.importorskip("distributed")
    assert_refused(finished(start(copy, "--scheduler", address)), "no Dask scheduler answers")


@pytest.fixture
def cluster(monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, silence_logs=50
    ) as made:
        yield made


def test_a_cluster_gives_the_grades_of_this_machine(copy, cluster):
    before = results(copy)
    (copy / ".grading_journal").unlink()
    shutil.rmtree(copy / "reports")
    done = finished(start(copy, "--scheduler", cluster.scheduler_address))
    assert done.returncode == 0, done.stderr
    assert results(copy) == before


@pytest.mark.slow
def test_a_worker_that_is_lost_on_a_cluster_costs_nobody_a_grade(tmp_path, cluster):
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    make_course(calm, seed=31)
    classes.hand_in(calm, 12)
    shutil.copytree(calm, wild)
    assert finished(start(calm)).returncode == 0
    process = start(wild, "--scheduler", cluster.scheduler_address)
    killed = 0
    while process.poll() is None:
        if lines_in(wild) >= 3 * (killed + 1) and killed < 2:
            os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
            killed += 1
        time.sleep(0.05)
    done = finished(process)
    assert done.returncode == 0 and killed, done.stderr
    assert results(wild) == results(calm)


@pytest.mark.slow
def test_workers_without_the_course_are_refused_in_one_line(copy, tmp_path):
    distributed = pytest.importorskip("distributed")
    packages = str(Path(distributed.__file__).parents[1])
    (tmp_path / "autograder").mkdir()  # before one that may be installed
    (tmp_path / "autograder" / "__init__.py").write_text("raise ModuleNotFoundError('there is no autograder')")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"PYTHONPATH": os.pathsep.join([str(tmp_path), packages])}
    with distributed.LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address=None) as made:
        line = [sys.executable, "-m", "distributed.cli.dask_worker", made.scheduler_address, "--no-dashboard"]
        worker = subprocess.Popen(
            [*line, "--local-directory", str(tmp_path)], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL
        )
        try:
            with distributed.Client(made.scheduler_address) as client:
                client.wait_for_workers(1, timeout=60)
            done = finished(start(copy, "--scheduler", made.scheduler_address))
        finally:
            worker.terminate()
            worker.wait()
    assert_refused(done, "install this course where they run")


def test_a_scheduler_without_workers_is_refused_in_one_line(copy):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address=None) as made:
        assert_refused(finished(start(copy, "--scheduler", made.scheduler_address)), "has no worker")
