"""Setting up on a stranger's computer; what can go wrong there is tried here for real where it can be."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from starting import ROOT, assert_refused, start

from course_lib.cli import UserError
from course_lib.learner.environment import Environment, is_satisfied
from course_lib.learner.lock import locked
from course_lib.learner.pip_says import conflicts, explain

CLOSED_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "*"}


# ---- what is there


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [("numpy>=2.0,<3", True), ("numpy", True), ("numpy>=99", False), ("numpy<1.5", False), ("no-such-thing", False)],
)
def test_requirements_are_held_against_what_is_installed(requirement, holds):
    assert is_satisfied(requirement) is holds


@pytest.mark.parametrize(("installed", "holds"), [("2.13.0+cpu", True), ("2.6", True), ("2.5", False), ("3.0", False)])
def test_a_version_with_a_build_tag_is_compared_by_its_numbers(monkeypatch, installed, holds):
    monkeypatch.setattr("course_lib.learner.environment.metadata.version", lambda name: installed)
    assert is_satisfied("torch>=2.6,<3") is holds


def test_the_lists_of_pyproject_are_read_as_a_toml_reader_reads_them():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib to compare with")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core, extras = project["dependencies"], project["optional-dependencies"]
    here = Environment(ROOT)
    assert here.requirements([]) == core
    assert here.requirements(["lab"]) == core + extras["lab"]
    of_dev = [line for extra in ("lab", "grade", "serve", "text", "distributed") for line in extras[extra]]
    assert here.requirements(["dev"]) == core + extras["dev"][1:] + of_dev


# ---- setting up


class Recorder(Environment):
    """An environment whose steps are noted, not run; `answers` maps a word of the command to what it does."""

    def __init__(self, root, **answers):
        super().__init__(root)
        self.steps, self.answers = [], answers

    def missing(self, extras):
        return ["something"]

    def _step(self, what, command, missing_ok=False, conflict_ok=False):
        self.steps.append((what, command[1:]))
        if "venv" in command:
            self.venv_python.parent.mkdir(parents=True)
            self.venv_python.write_text("")
        for word, answer in self.answers.items():
            if any(word in part for part in command):
                if isinstance(answer, BaseException):
                    raise answer
                return answer
        return True


@pytest.fixture
def laptop(monkeypatch):
    """Linux, no NVIDIA GPU, PyTorch's index in reach."""
    monkeypatch.setattr("course_lib.learner.environment.sys.platform", "linux")
    monkeypatch.setattr("course_lib.learner.environment.has_nvidia_gpu", lambda: False)
    monkeypatch.setattr("course_lib.learner.environment.urllib.request.urlopen", lambda url, timeout: open(os.devnull))
    monkeypatch.setattr("course_lib.learner.environment.PLAIN_TORCH_MB", 3_000)


def test_the_second_start_installs_nothing(copy, laptop):
    first, second = Recorder(copy), Recorder(copy)
    assert first.python_for(["dev"]) == second.python_for(["dev"]) == second.python_for(["lab"])
    assert len(first.steps) == 3
    assert second.steps == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_list_of_packages_is_installed_into_the_same_environment(copy, laptop, name):
    Recorder(copy).python_for(["lab"])
    (copy / name).write_text((copy / name).read_text() + "\n# changed\n")
    again = Recorder(copy)
    again.python_for(["lab"])
    assert [command[-1] for _, command in again.steps] == [".[lab]"]


def test_an_environment_of_an_earlier_course_py_is_installed_into_again(copy, laptop):
    """Its stamp called the digest "of"."""
    before = Recorder(copy)
    before.python_for(["lab"])
    stamp = json.loads(before.stamp.read_text())
    stamp["of"] = stamp.pop("digest")
    before.stamp.write_text(json.dumps(stamp))
    again = Recorder(copy)
    assert not again.venv_has(["lab"])
    again.python_for(["lab"])
    assert [command[-1] for _, command in again.steps] == [".[lab]"]
    assert again.venv_has(["lab"])


def test_a_folder_that_was_moved_is_set_up_again(copy, laptop):
    Recorder(copy).python_for(["lab"])
    moved = copy.rename(copy.with_name("elsewhere"))
    assert not Recorder(moved).venv_has(["lab"])


def test_what_was_installed_before_stays_usable_when_more_cannot_be_had(copy, laptop):
    Recorder(copy).python_for(["lab"])
    with pytest.raises(UserError, match="no network"):
        Recorder(copy, dev=UserError("no network")).python_for(["dev"])
    assert Recorder(copy).venv_has(["lab"])
    assert not Recorder(copy).venv_has(["dev"])


def test_more_extras_are_added_to_those_that_are_there(copy, laptop):
    Recorder(copy).python_for([])
    more = Recorder(copy)
    more.python_for(["lab"])
    assert not any("venv" in command for _, command in more.steps)
    assert more.venv_has([]) and more.venv_has(["lab"])


def test_a_set_up_that_was_killed_is_redone_from_nothing(copy, laptop):
    with pytest.raises(KeyboardInterrupt):
        Recorder(copy, constraints=KeyboardInterrupt()).python_for(["lab"])
    (copy / ".venv" / "half-installed").write_text("")
    again = Recorder(copy)
    again.python_for(["lab"])
    assert "venv" in again.steps[0][1]
    assert not (copy / ".venv" / "half-installed").exists()


def test_an_environment_that_is_not_ours_is_refused_and_left_alone(copy):
    (copy / ".venv").mkdir()
    (copy / ".venv" / "mine").write_text("precious")
    with pytest.raises(UserError, match="not made by course.py"):
        Recorder(copy).python_for(["lab"])
    assert [path.name for path in (copy / ".venv").iterdir()] == ["mine"]


def torch_steps(environment):
    environment.python_for(["lab"])
    return [(what, " ".join(command[3:])) for what, command in environment.steps if "pip" in command]


def test_without_a_gpu_torch_comes_as_the_cpu_build_from_wherever_pip_looks_anyway(copy, laptop):
    (_, first), (what, rest) = torch_steps(Recorder(copy))
    assert first.startswith("torch==") and first.endswith("+cpu")
    assert rest == "-c constraints.txt -e .[lab]"
    assert "100 MB" in what


def test_else_from_pytorchs_own_index(copy, laptop):
    class OnlyThere(Recorder):
        def _step(self, what, command, missing_ok=False, conflict_ok=False):
            return super()._step(what, command, missing_ok) and (not missing_ok or "--extra-index-url" in command)

    first, second, (what, _) = torch_steps(OnlyThere(copy))
    assert second[1] == first[1] + " --extra-index-url https://download.pytorch.org/whl/cpu"
    assert "100 MB" in what


def test_else_the_cuda_build_with_its_size_said_first(copy, laptop, monkeypatch, capsys):
    def unreachable(url, timeout):
        raise OSError("no route")

    monkeypatch.setattr("course_lib.learner.environment.urllib.request.urlopen", unreachable)
    first, (what, _) = torch_steps(Recorder(copy, **{"+cpu": False}))
    assert "torch" in what and "3 GB" in what
    assert "cannot be reached" in capsys.readouterr().out


@pytest.mark.parametrize(("platform", "gpu"), [("linux", True), ("darwin", False), ("win32", False)])
def test_elsewhere_torch_is_what_the_constraints_pin(copy, laptop, monkeypatch, platform, gpu):
    monkeypatch.setattr("course_lib.learner.environment.sys.platform", platform)
    monkeypatch.setattr("course_lib.learner.environment.has_nvidia_gpu", lambda: gpu)
    assert [command for _, command in torch_steps(Recorder(copy))] == ["-c constraints.txt -e .[lab]"]


def test_the_core_alone_brings_no_torch(copy, laptop):
    core = Recorder(copy)
    core.python_for([])
    assert [command[3:] for _, command in core.steps[1:]] == [["-c", "constraints.txt", "-e", "."]]


# ---- constraints of the user's own pip


def wheel(folder, name, version, needs=()):
    """A wheel of nothing, and the page by which an index offers it."""
    made = folder / name / f"{name}-{version}-py3-none-any.whl"
    made.parent.mkdir(parents=True, exist_ok=True)
    info, requires = f"{name}-{version}.dist-info", "".join(f"Requires-Dist: {line}\n" for line in needs)
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    links = "".join(f'<a href="{w.name.replace("+", "%2B")}">{w.name}</a>\n' for w in made.parent.glob("*.whl"))
    (made.parent / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


class RealPip(Environment):
    """Resolves for real, with the running Python's pip and an index on disk; installs nothing."""

    def __init__(self, root, index):
        super().__init__(root)
        self.venv_python, self.index, self.said = Path(sys.executable), index, []
        self.venv.mkdir()

    def _pip(self, *arguments):
        words = ["project" if word.startswith(".[") else word for word in arguments if word != "-e"]
        index = [] if "--index-url" in words else ["--index-url", self.index.as_uri()]
        return [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", *index, *words]

    def torch(self):
        """The version of torch that each resolution that came out well would have installed."""
        return re.findall(r"^Would install .*\btorch-(\S+)", self.log.read_text(), re.MULTILINE)


@pytest.fixture
def constrained(copy, laptop, tmp_path, monkeypatch):
    """constrained(line, *CPU builds) -> an environment whose pip has that constraint; torch 2.5 to 2.14 are on offer.

    by   what tells pip of it: the variable PIP_CONSTRAINT, a pip.conf, or nothing
    """

    def make(line, *cpu_builds, by="PIP_CONSTRAINT"):
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        index, cpu = tmp_path / "index", tmp_path / "cpu"
        for version in ("2.5.0", "2.11.0", "2.13.0", "2.14.1"):
            wheel(index, "torch", version)
        for version in ("2.3.0", "2.4.6"):
            wheel(index, "numpy", version)
        wheel(index, "project", "1.0", ["torch>=2.6,<3", "numpy>=2.0,<3"])
        for version in cpu_builds:
            wheel(cpu, "torch", version)
        monkeypatch.setattr("course_lib.learner.environment.CPU_INDEX", cpu.as_uri())
        (tmp_path / "theirs.txt").write_text(f"# ours\n{line}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # no pip.conf of this machine counts
        if by == "PIP_CONSTRAINT":
            monkeypatch.setenv(by, str(tmp_path / "theirs.txt"))
        if by == "pip.conf":
            (tmp_path / by).write_text(f"[global]\nconstraint = {tmp_path / 'theirs.txt'}\n")
            monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / by))
        return RealPip(copy, index)

    return make


@pytest.mark.parametrize(
    ("line", "cpu_builds", "torch"),
    [
        # excludes nothing: the tested version, from wherever it is
        pytest.param("torch<=2.14.1", (), ["2.13.0"], marks=pytest.mark.slow),
        # (nothing is installed in between here)
        pytest.param("torch<=2.14.1", ("2.13.0+cpu",), ["2.13.0+cpu", "2.13.0"], marks=pytest.mark.slow),
        pytest.param("torch==2.11.0", (), ["2.11.0"], marks=pytest.mark.slow),
        ("torch==2.11.0", ("2.11.0+cpu", "2.13.0+cpu"), ["2.11.0+cpu", "2.11.0"]),
        pytest.param("torch<2.12\nnumpy<2.4", (), ["2.11.0"], marks=pytest.mark.slow),
    ],
)
def test_a_constraint_of_the_users_pip_that_the_course_can_live_with_is_obeyed(constrained, line, cpu_builds, torch):
    here = constrained(line, *cpu_builds)
    here._install({"lab"}, fetch_torch=True)
    assert here.torch() == torch
    numpy = re.findall(r"^Would install .*\bnumpy-(\S+)", here.log.read_text(), re.MULTILINE)
    assert numpy == (["2.3.0"] if "numpy" in line else ["2.4.6"])
    pins = (ROOT / "constraints.txt").read_text()
    assert (here.root / "constraints.txt").read_text() == pins, "the project's own file stays as it is"
    if (looser := here.venv / "constraints.txt").exists():
        left_out = set(pins.splitlines()) - set(looser.read_text().splitlines())
        assert {re.match(r"\w+", pin)[0] for pin in left_out} == {re.match(r"\w+", one)[0] for one in line.split("\n")}


@pytest.mark.slow
@pytest.mark.parametrize("by", ["PIP_CONSTRAINT", "pip.conf"])
def test_a_constraint_that_excludes_what_the_course_needs_is_named(constrained, tmp_path, by, monkeypatch):
    here = constrained("torch<2.6", by=by)
    with pytest.raises(UserError) as refused:
        here._install({"lab"}, fetch_torch=True)
    said = str(refused.value)
    assert f"held to torch<2.6 by {tmp_path / 'theirs.txt'} (" in said and "the course needs torch>=2.6,<3" in said
    assert "PIP_CONSTRAINT=constraints.txt" in said and "\n" not in said and str(here.log) in said
    assert ("(PIP_CONSTRAINT)" in said) is (by == "PIP_CONSTRAINT")
    monkeypatch.setenv("PIP_CONSTRAINT", "constraints.txt")  # what the sentence says to do
    here._install({"lab"}, fetch_torch=True)
    assert here.torch() == ["2.13.0"]


def test_a_pin_of_the_course_that_is_not_on_offer_is_no_constraint_of_the_users(constrained):
    here = constrained("numpy", by="nothing")
    (here.root / "constraints.txt").write_text("torch==2.99.0\n")
    with pytest.raises(UserError, match=r"nothing that fits torch==2.99.0 is on offer for Python 3\.\d+ on this"):
        here._install({"lab"}, fetch_torch=True)


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("    The user requested torch==2.13.0+cpu\n    The user requested (constraint) torch<=2.14.1\n",
         {"torch": "torch<=2.14.1"}),
        ("    The user requested (constraint) Jupyter_Server==1,==2.20\n",
         {"jupyter-server": "Jupyter_Server==1,==2.20"}),
        ("Failed to establish: ConnectionError\n    The user requested (constraint) torch<=2.14.1\n", {}),
        ("ERROR: No matching distribution found for torch==2.13.0", {}),
    ],
)  # fmt: skip
def test_the_constraints_in_pips_words_are_found_unless_something_else_is_wrong(output, names):
    assert conflicts(output) == names


# ---- two at once


@pytest.fixture
def slow_setup(copy, bare_python, clean_env, tmp_path):
    """slow_setup(seconds) -> starts course.py whose set-up takes that long and installs nothing; and what it notes."""
    if os.name == "nt":
        pytest.skip("the stand-in for a virtual environment's Python is a shell script")
    events = tmp_path / "events"
    script = f"""#!/bin/sh
if [ "$2" = pip ]; then
    echo "pip begins" >> "{events}"; sleep "$COURSE_TEST_SECONDS"; echo "pip ends" >> "{events}"; exit 0
fi
exec "{bare_python}" "$@"
"""
    (tmp_path / "venv.py").write_text(
        f"import pathlib, sys\nwith open({str(events)!r}, 'a') as file: file.write('venv\\n')\n"
        f"python = pathlib.Path(sys.argv[1], 'bin', 'python')\npython.parent.mkdir()\n"
        f"python.write_text({script!r})\npython.chmod(0o755)\n"
    )

    def begin(seconds):
        env = clean_env | {"PYTHONPATH": str(tmp_path), "COURSE_TEST_SECONDS": str(seconds), "PYTHONUNBUFFERED": "1"}
        command = [str(bare_python), str(copy / "course.py"), "demo"]
        return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def seen():
        return events.read_text().splitlines() if events.exists() else []

    return begin, seen


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_of_two_that_start_at_once_one_sets_up_and_both_run(copy, slow_setup):
    begin, seen = slow_setup
    both = [begin(2), begin(2)]
    said = [child.communicate(timeout=60) for child in both]
    assert [(child.returncode, err) for child, (_, err) in zip(both, said)] == [(0, ""), (0, "")]
    assert seen() == ["venv", "pip begins", "pip ends"]
    assert sum("Another course.py is setting up .venv; waiting for it\n" in out for out, _ in said) == 1
    assert all(json.loads(out.splitlines()[-1])[1] == ["demo"] for out, _ in said)
    assert Environment(copy).venv_has([])


def test_a_set_up_whose_parent_was_killed_is_waited_for_and_then_redone(copy, slow_setup):
    """Its pip goes on writing into .venv: to delete that under its hands would leave a mixture."""
    begin, seen = slow_setup
    first = begin(3)
    wait_for(lambda: "pip begins" in seen())
    first.kill()
    first.wait()
    second = begin(0)
    out, err = second.communicate(timeout=60)
    assert (second.returncode, err) == (0, "")
    assert "waiting for it" in out and "the last set-up was not finished: starting over" in out
    assert seen() == ["venv", "pip begins", "pip ends", "venv", "pip begins", "pip ends"]
    first.stdout.close(), first.stderr.close()


def test_a_lock_whose_holder_was_killed_is_free(tmp_path):
    hold = "import sys, pathlib, time; sys.path.insert(0, sys.argv[2])\nfrom course_lib.learner.lock import locked\n"
    hold += "with locked(pathlib.Path(sys.argv[1]), lambda: None):\n    print('held', flush=True); time.sleep(60)\n"
    file, waited = tmp_path / "lock", []
    holder = subprocess.Popen([sys.executable, "-c", hold, file, ROOT], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    threading.Timer(0.5, holder.kill).start()
    with locked(file, lambda: waited.append(True)):
        assert waited == [True] and holder.wait(timeout=10) != 0
    with locked(file, lambda: waited.append(True)):
        assert waited == [True]
    holder.stdout.close()


# ---- set-ups that fail, for real


def test_no_network_is_said_in_one_line_after_the_size(copy, bare_python, clean_env):
    done = start(copy, "demo", python=bare_python, env=clean_env | CLOSED_INDEX)
    assert_refused(done, "cannot reach the package index", "HTTPS_PROXY", ".venv.log")
    assert "30 MB to download" in done.stdout
    assert "Connection refused" in (copy / ".venv.log").read_text() or os.name == "nt"
    assert not Environment(copy).venv_has([])


DEBIAN = """\
The virtual environment was not created successfully because ensurepip is not
available.  On Debian/Ubuntu systems, you need to install the python3-venv
package using the following command.

    apt install python3.11-venv
"""


@pytest.mark.parametrize(
    "venv_module",
    [
        f"print({DEBIAN!r}); raise SystemExit(1)",
        "raise ModuleNotFoundError(\"No module named 'ensurepip'\")",
        "raise SystemExit('/usr/bin/python3: No module named venv')",
    ],
)
def test_a_python_without_venv_is_told_the_package_to_install(copy, bare_python, clean_env, tmp_path, venv_module):
    (tmp_path / "venv.py").write_text(venv_module)
    done = start(copy, "demo", python=bare_python, env=clean_env | {"PYTHONPATH": str(tmp_path)})
    assert_refused(done, "sudo apt install python3-venv")


def test_a_folder_that_cannot_be_written_is_said_in_one_line(copy, bare_python, clean_env):
    if os.name == "nt":
        pytest.skip("Windows has no read-only folders in this sense")
    prefix = []
    if os.geteuid() == 0:  # root may write anywhere, but not to a read-only mount
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        prefix = ["unshare", "-m", "sh", "-c", mount, str(copy)]
        if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode:
            pytest.skip("root can write to any folder, and unshare cannot make a read-only mount here")
    copy.chmod(0o555)
    try:
        done = start(copy, "demo", python=bare_python, env=clean_env, prefix=prefix)
    finally:
        copy.chmod(0o755)
    assert_refused(done, "cannot be written", "Move the project")


@pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")
def test_ctrl_c_during_the_set_up_ends_it_in_one_line(copy, bare_python, clean_env, tmp_path):
    (tmp_path / "venv.py").write_text("import time; time.sleep(60)")
    env = clean_env | {"PYTHONPATH": str(tmp_path)}
    child = subprocess.Popen(
        [bare_python, copy / "course.py", "demo"], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while "virtual environment" not in child.stdout.readline():
        assert child.poll() is None
    time.sleep(0.5)  # the step is starting; a Ctrl-C before that ends it just as well
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err.strip() == "course.py: stopped; run it again to go on"


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: 'x'", "cannot be written"),
        ("[WinError 5] Access is denied: 'C:\\\\x'", "cannot be written"),
        ("NewConnectionError('<...>: Failed to establish a new connection: [Errno 111] Connection refused')\n"
         "ERROR: No matching distribution found for numpy", "cannot reach the package index"),
        ("NameResolutionError: [Errno 11001] getaddrinfo failed", "cannot reach the package index"),
        ("ReadTimeoutError(\"HTTPSConnectionPool(host='x', port=443): Read timed out.\")", "cannot reach"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...'))", "PIP_CERT"),
        ("ERROR: Could not find a version\nERROR: No matching distribution found for torch==2.13.0", "torch==2.13.0"),
        ("some words\nerror: a new kind of trouble\n\n", "a new kind of trouble"),
        ("", "nothing"),
    ],
)  # fmt: skip
def test_what_pip_says_is_explained_with_a_remedy(output, says):
    assert says in explain(output)
    assert "\n" not in explain(output)
