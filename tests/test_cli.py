"""Every command refuses in one line on stderr with exit code 2, and never with a traceback."""

import subprocess
import sys

import pytest
from starting import ROOT

from course_lib.cli import Parser, UserError, not_negative, positive, run_command


def raises(error):
    def command(argv):
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("no such\n  thing"), "prog: no such thing"),
        (FileNotFoundError(2, "No such file or directory", "a b.json"), "prog: No such file or directory: a b.json"),
        (PermissionError(13, "Permission denied", "x"), "prog: Permission denied: x"),
        (OSError("odd"), "prog: odd"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_2(error, line, capsys):
    assert run_command("prog", raises(error), []) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", line + "\n")


def test_our_own_mistake_is_not_dressed_up_as_the_users():
    with pytest.raises(AssertionError):
        run_command("prog", raises(AssertionError("a bug")), [])


def test_the_exit_code_is_the_commands():
    assert run_command("prog", lambda argv: len(argv), ["a", "b", "c"]) == 3


def test_a_reader_who_leaves_early_gets_no_traceback():
    script = "import sys; from course_lib.cli import run_command\n"
    script += "sys.exit(run_command('p', lambda argv: [print('x' * 999) for _ in range(9999)] and 0, []))"
    child = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait() == 141
    child.stderr.close()


@pytest.mark.parametrize("argv", [["--bad"], ["--n", "0"], ["--n", "x"], ["--n", "1.5"], ["--m", "-1"], ["--n"], ["a"]])
def test_a_bad_flag_is_one_line_that_points_to_help(argv, capsys):
    parser = Parser("prog", example="prog --n 3")
    parser.add_argument("--n", type=positive)
    parser.add_argument("--m", type=not_negative)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(argv)
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == ""
    assert len(err.splitlines()) == 1 and err.startswith("prog: ") and "prog --help" in err


def test_help_shows_the_example_and_flags_are_not_guessed(capsys):
    parser = Parser("prog", example="prog --number 3")
    parser.add_argument("--number", type=positive)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["--help"])
    assert stop.value.code == 0 and "example:\n  prog --number 3" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parser.parse_args(["--num", "3"])
