"""What a sandbox takes from an answer, on each level that this machine has, and which level is found on others."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from starting import ROOT

from autograder.exercise import Call, Returned
from autograder.exercises import EXERCISES
from autograder.grading import launch, remote
from autograder.grading.remote import Remote, Sandboxes
from autograder.grading.sandbox import LEVELS, NotStarted, Sandbox, works
from autograder.judge import judge

ISOLATING = [name for name in LEVELS[:-1] if works(name)]
each_level = pytest.mark.parametrize(
    "level", ISOLATING or [pytest.param("", marks=pytest.mark.skip("no isolation here"))]
)
linux = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


def outcomes(level, source, calls=1, seconds=60):
    """Of calls of `positions(1, 1, 1)`, which the cells `source` define."""
    boxes = Sandboxes(level)
    boxes.seconds_left = seconds
    answer = Remote(EXERCISES["positions"], source, boxes)
    try:
        return answer.run([Call((1, 1, 1), "")] * calls)
    finally:
        boxes.drop()


def ran(level, *lines):
    """What `positions` returns in a sandbox, its body being these lines."""
    (outcome,) = outcomes(level, "\n    ".join(["def positions(*args):", "import os", *lines]))
    assert hasattr(outcome, "value"), outcome
    return outcome.value


@each_level
def test_an_answer_has_the_bits_of_torch_that_it_has_outside_of_a_sandbox(level):
    torch = pytest.importorskip("torch")
    exercise = replace(EXERCISES["tiled_linear"], driver=None, library=())
    source = "import torch\ndef tiled_linear(x):\n    return torch.softmax(torch.from_numpy(x), 0).numpy()\n"
    x = np.random.default_rng(3).standard_normal(1_000).astype(np.float32)
    sandboxes = Sandboxes(level, torch=True)
    try:
        (came,) = Remote(exercise, source, sandboxes).run([Call((x,), "")])
    finally:
        sandboxes.drop()
    assert came.value.tobytes() == torch.softmax(torch.from_numpy(x), 0).numpy().tobytes()


@each_level
def test_an_answer_finds_no_file_that_it_can_change(level):
    found = ran(
        level,
        "made = []",
        "for folder, _, files in os.walk('/'):",
        "    for name in [os.path.join(folder, 'new'), *(os.path.join(folder, f) for f in files[:1])]:",
        "        try: os.close(os.open(name, os.O_WRONLY | os.O_CREAT)); made.append(name)",
        "        except OSError: pass",
        "return [name for name in made if not name.startswith('/dev/')]",
    )
    assert found == ()


@each_level
def test_an_answer_sees_the_interpreter_and_our_packages_and_no_more_of_the_course(level):
    assert set(ran(level, f"return os.listdir({str(ROOT)!r})")) <= {"autograder", "course_lib", ".venv"}
    assert (
        ran(level, "return [p for p in ('/etc/passwd', '/home', '/var', '/sys', '/proc/1') if os.path.exists(p)]") == ()
    )


@each_level
@pytest.mark.parametrize(
    "what",
    [
        "os.fork()",
        "os.posix_spawn('/usr/bin/env', ['env'], {})",
        "os.execv('/usr/bin/env', ['env'])",
        "__import__('socket').socket()",
        "os.kill(os.getppid(), 9)",
        "os.mkdir('/tmp/x')",
        "os.memfd_create('x')",
        "os.nice(1)",
        "__import__('resource').prlimit(os.getppid(), 2, (1 << 40, -1))",
        "os.posix_fadvise(0, 0, 0, os.POSIX_FADV_DONTNEED)",
        "os.chroot('/tmp')",
        "__import__('mmap').mmap(-1, 4096)",
        "os.fchmod(0, 0o666)",
        "os.chmod('/dev/null', 0o666)",
    ],
)
def test_an_answer_starts_no_process_opens_no_socket_and_leaves_nothing_for_the_next(level, what):
    assert ran(level, f"try: {what}", "except OSError as error: return error.errno in (1, 30)", "return False") == 1


@each_level
def test_an_answer_starts_no_thread(level):
    (outcome,) = outcomes(
        level, "import threading\ndef positions(*args):\n    threading.Thread(target=print).start()\n"
    )
    assert outcome.type == "RuntimeError" and "thread" in outcome.message


@each_level
def test_an_answer_is_nobody_and_has_no_capability(level):
    capabilities = "sum(ctypes.CDLL(None).prctl(23, c, 0, 0, 0) == 1 for c in range(41))"
    user, process, held = ran(level, "import ctypes", f"return os.getuid(), os.getpid(), {capabilities}")
    assert user == 65534 and process < 10 and held == 0


@each_level
def test_two_answers_of_a_submission_never_run_at_once(level):
    """A child that does not end by itself is gone before the next begins."""
    boxes = Sandboxes(level)
    stays = (
        "def positions(*args):\n    while True:\n        try: open('/nowhere')\n        except BaseException: pass\n"
    )
    first = Remote(EXERCISES["positions"], stays, boxes)
    first._begin()
    first.line.send(("call", (1, 1, 1), ()))
    first.close()
    counts = (
        "import os\ndef positions(*args):\n    found = 0\n    for p in range(2, 50):\n"
        "        try: os.sched_getscheduler(p); found += 1\n        except OSError: pass\n    return found\n"
    )
    (outcome,) = Remote(EXERCISES["positions"], counts, boxes).run([Call((1, 1, 1), "")])
    boxes.drop()
    assert outcome.value <= (1 if level == "namespaces" else 2)  # itself, and below bwrap the worker


@each_level
def test_all_calls_of_a_submission_together_have_a_limit_of_time(level):
    first, *_, last = outcomes(level, "import time\ndef positions(*args):\n    time.sleep(1)\n", calls=9, seconds=4)
    assert hasattr(first, "value") and last.type == "Timeout" and "in all" in last.message


@each_level
def test_cells_that_never_end_are_told_from_calls_that_never_end(level, monkeypatch):
    monkeypatch.setattr(remote, "SECONDS", 1)
    (cells,) = outcomes(level, "while True: pass\ndef positions(): pass\n")
    (call,) = outcomes(level, "def positions(*args):\n    while True: pass\n")
    assert cells.type == call.type == "Timeout"
    assert cells.message.startswith("your cells took") and call.message.startswith("your code took")


@each_level
def test_what_an_answer_displays_costs_nothing(level):
    assert ran(level, "display(3)", "return 4") == 4


# Levels


@linux
@pytest.mark.skipif("namespaces" not in ISOLATING, reason="no namespaces here")
def test_a_fork_server_that_has_ended_is_replaced():
    with Sandbox("namespaces"):
        server = launch.fork_server(False)
        server.process.kill()
    assert works("namespaces") and server.process.poll() is None


@linux
@pytest.mark.skipif("namespaces" not in ISOLATING, reason="no namespaces here")
def test_a_fork_server_ends_with_the_process_that_started_it():
    code = (
        "from autograder.grading import launch, sandbox\n"
        "sandbox.works('namespaces')\n"
        "print(launch.fork_server(False).process.pid)"
    )
    pid = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid.strip()}"):
            return
        subprocess.run(["sleep", "0.05"])
    pytest.fail("the fork server still runs")


LEVELS_THERE = """
import json, sys
from autograder.grading import sandbox, seccomp
seccomp.REFUSED["seccomp"] = (317, 277)
refused = sys.argv[1:]
if refused:
    seccomp.Filter(refused).apply()
levels = {name: sandbox.works(name) for name in sandbox.LEVELS[:-1]}
print(json.dumps([levels, sandbox.level()]))
"""


ORDINARY = """
import os, stat, sys
from pathlib import Path
from autograder.grading import namespaces
needed = {Path(path) for path in (sys.prefix, sys.base_prefix, os.getcwd())}
namespaces._unshare(namespaces.NEWNS)
namespaces._mount(None, "/", None, namespaces.REC | namespaces.PRIVATE)
closed = {p for path in needed for p in path.parents if not p.stat().st_mode & stat.S_IXOTH}
for folder in sorted(closed):  # folders that only root can enter: in their place one with what is needed
    inside = {path: os.open(path, os.O_PATH) for path in needed if folder in path.parents and path.exists()}
    namespaces._mount("tmpfs", str(folder), "tmpfs", 0)
    folder.chmod(0o755)
    for path, source in inside.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        namespaces._bind(source, str(path))
os.chdir(os.getcwd())
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def levels_without(*refused, ordinary=False):
    """Which levels work, and the best, where the kernel refuses some calls; ordinary: for a user who is not root."""
    start = [sys.executable, "-c", ORDINARY] if ordinary else [sys.executable]
    command = [*start, "-W", "ignore", "-c", LEVELS_THERE, *refused]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@linux
@pytest.mark.skipif(len(ISOLATING) < 2, reason="needs namespaces and bubblewrap")
@pytest.mark.parametrize(
    "refused, has",
    [
        ("unshare", set()),
        ("seccomp", set()),  # an answer could start processes without end
        ("mount", set()),
        ("pivot_root", set()),
        ("socket", {"namespaces"}),  # bwrap configures the loopback device
        ("setns", {"namespaces", "bubblewrap"}),
    ],
)
def test_where_the_kernel_refuses_one_part_the_next_safe_level_is_found(refused, has):
    levels, best = levels_without(refused)
    assert {name for name, there in levels.items() if there} == has
    assert best == next((name for name in LEVELS if name in has), "process")


@linux
@pytest.mark.skipif(not ISOLATING or os.geteuid() != 0, reason="only root can become an ordinary user")
def test_isolation_needs_no_privilege():
    assert {name for name, there in levels_without(ordinary=True)[0].items() if there} == set(ISOLATING)


def test_a_level_that_cannot_be_had_is_an_error_and_no_other_level(monkeypatch):
    monkeypatch.setattr(launch.shutil, "which", lambda _: None)
    with pytest.raises((OSError, NotStarted)):
        Sandbox("bubblewrap")


@each_level
def test_an_answer_that_says_more_than_a_judge_should_hold_is_not_read(level):
    large = "import numpy as np\ndef positions(*args):\n    return np.zeros(1 << 20)\n"  # 8 MiB: one may travel
    first, *_, last = outcomes(level, large, calls=5)
    assert first.value.size == 1 << 20 and last.type == "Unreadable"


def test_a_verdict_on_a_huge_result_is_short():
    exercise = EXERCISES["admit"]
    calls = exercise.groups[0].cases(2)
    verdict = judge(exercise, exercise.groups[0], calls, [Returned(np.full(1 << 22, 0.5))] * len(calls))
    assert not verdict.passed and len(verdict.message) < 2_000


@each_level
def test_a_question_that_is_too_long_is_not_answered(level):
    asks = "def check_positions(prefill_fn, reference):\n    reference(list(range(100_000)))\n"
    exercise, boxes = EXERCISES["check_positions"], Sandboxes(level)
    (outcome,) = Remote(exercise, asks, boxes).run(exercise.groups[0].cases(2)[:1])
    boxes.drop()
    assert outcome.type == "Unreadable"
