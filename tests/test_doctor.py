"""The doctor's report on an environment: what is there, what is broken, what to do."""

import subprocess
import types

import pytest
from starting import run_python

from course_lib.cli import UserError, run_command
from course_lib.learner import doctor


@pytest.mark.parametrize("argv", [["no such file.ipynb"], ["."], ["--fix"], ["--fxi"], ["a", "b"]])
def test_bad_arguments_get_one_line_and_exit_2(argv, capsys):
    try:
        code = run_command("doctor", doctor.main, argv)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and len(err.splitlines()) == 1


def test_the_report_names_every_package_and_is_well_here(capsys):
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    for name in ("Python", "platform", "threads", "CUDA", "tiles, numpy", "tiles, torch", *doctor.LISTED):
        assert name in text
    assert text.rstrip().endswith("All that is here is well.")


def test_on_a_python_with_nothing_it_says_what_to_install(bare_python, clean_env):
    env = clean_env | {"PYTHONPATH": str(doctor.ROOT)}
    done = subprocess.run([bare_python, "-m", "course_lib", "doctor"], capture_output=True, text=True, env=env)
    assert done.returncode == 1 and done.stderr == "", done.stderr
    assert 'pip install "numpy' in done.stdout and "Not well: numpy" in done.stdout
    assert 'optional: pip install "torch' in done.stdout


def test_a_broken_torch_is_told_from_an_absent_one(monkeypatch, capsys):
    def broken(name, package=None):
        if name == "torch":
            raise OSError("libtorch_cpu.so: cannot open\nshared object file")
        return real(name, package)

    real = doctor.importlib.import_module
    monkeypatch.setattr(doctor, "importlib", types.SimpleNamespace(import_module=broken))
    assert doctor.main([]) == 1
    assert "libtorch_cpu.so: cannot open shared object file" in capsys.readouterr().out


def test_a_machine_on_which_tiles_do_not_hold_is_told_so(monkeypatch, capsys):
    selftest = doctor.importlib.import_module("course_lib.arithmetic.selftest")
    monkeypatch.setattr(selftest, "self_test", lambda backend: ["rows differ"] if backend == "numpy" else [])
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "rows differ" in text and "--arith exact" in text and "Not well: tiles, numpy." in text
    numpy_part = text.split("tiles, numpy")[1].split("tiles, torch")[0]
    assert "rows in" not in numpy_part  # no row count is claimed where tiles do not hold


def test_the_row_counts_that_agree_here_are_shown(capsys):
    doctor.main([])
    for part in capsys.readouterr().out.split("  tiles, ")[1:]:
        lines = [line for line in part.splitlines() if line.startswith("  rows")]
        for operation in ("matmul 64x192", "RMSNorm 64", "activation 64"):
            (line,) = [line for line in lines if operation in line]
            assert "32" in line and ("in any slot" in line or "each row in its slot" in line)


def test_an_old_version_is_named_with_what_is_wanted(monkeypatch):
    real = doctor.metadata.version
    old = types.SimpleNamespace(
        version=lambda name: "1.26.4" if name == "numpy" else real(name),
        PackageNotFoundError=doctor.metadata.PackageNotFoundError,
    )
    monkeypatch.setattr(doctor, "metadata", old)
    monkeypatch.setattr("course_lib.learner.environment.metadata", old)
    (line,) = [line for line in doctor.packages() if line.name == "numpy"]
    assert line.ill and line.found == "1.26.4" and ">=2.0" in line.remedy


def test_help_shows_an_example():
    done = run_python("-m", "course_lib", "doctor", "--help")
    assert done.returncode == 0 and "doctor work/02_mask.ipynb --fix" in done.stdout


def test_fix_without_a_notebook_is_refused():
    with pytest.raises(UserError, match="name one"):
        doctor.main(["--fix"])
