"""Every command refuses in one line on stderr with exit code 2, and never with a traceback."""

import errno
import os
import stat
import subprocess
import sys

import pytest
from starting import ROOT

from course_lib.cli import Parser, UserError, file_to_write, not_negative, positive, run_command, write_whole


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


# --- writing a file


def pieces_until_the_disk_is_full():
    yield b"one"
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_full_disk_leaves_what_was_there_and_the_file_is_named(tmp_path, before):
    path = tmp_path / "a"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(UserError) as error:
        write_whole(path, pieces_until_the_disk_is_full())
    assert str(error.value) == f"cannot write {path}: No space left on device."
    assert [p.name for p in tmp_path.iterdir()] == ([] if before is None else ["a"])
    assert before is None or path.read_bytes() == before


def test_a_file_is_written_in_one_go_beside_files_of_other_names(tmp_path):
    for content in (b"longer than the next", b"short"):
        write_whole(tmp_path / "a", [content[:3], content[3:]])
        assert (tmp_path / "a").read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_name_as_long_as_names_may_be_can_be_written(tmp_path):
    name = "x" * (255 if os.name != "nt" else 100)
    write_whole(tmp_path / name, [b"1"])
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(os.name == "nt", reason="modes are a matter of Unix")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_a_file_keeps_its_mode_and_a_new_one_has_that_of_the_umask(tmp_path, mode):
    (tmp_path / "old").write_bytes(b"")
    (tmp_path / "old").chmod(mode)
    (tmp_path / "link").symlink_to("old")
    umask = os.umask(0o027)
    try:
        for name in ("old", "new", "link"):
            write_whole(tmp_path / name, [b"1"])
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert os.readlink(tmp_path / "link") == "old"


def test_a_file_that_may_not_be_written_is_refused_though_its_folder_may(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"kept")
    monkeypatch.setattr("os.access", lambda file, mode: file != path)  # so that root, who may write all, sees it too
    with pytest.raises(UserError, match="it is there and may not be written"):
        write_whole(path, [b"1"])
    assert [p.name for p in tmp_path.iterdir()] == ["a"] and path.read_bytes() == b"kept"


@pytest.mark.skipif(os.name == "nt", reason="modes are a matter of Unix")
def test_a_read_only_file_is_refused_or_for_root_written_and_still_read_only(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"kept")
    path.chmod(0o444)
    if os.access(path, os.W_OK):
        write_whole(path, [b"new"])
        assert path.read_bytes() == b"new"
    else:
        with pytest.raises(UserError, match=f"cannot write {path}: it is there and may not be written"):
            write_whole(path, [b"new"])
        assert path.read_bytes() == b"kept"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("end", ["/", "//", "/.", "/.."])
def test_a_name_that_ends_as_a_folders_is_not_taken_for_a_file(tmp_path, end, there):
    if there:
        (tmp_path / "a").write_bytes(b"kept")
    with pytest.raises(UserError, match="cannot write "):
        file_to_write(f"{tmp_path}/a{end}")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no /dev/stdout")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/stderr", "out", "link"])
def test_the_file_that_stdout_or_stderr_goes_to_is_not_replaced(tmp_path, name):
    script = "import sys; from course_lib.cli import run_command, write_whole; from pathlib import Path\n"
    script += "def command(argv):\n print('the answer')\n write_whole(Path(argv[0]), [b'lost'])\n"
    script += "sys.exit(run_command('p', command, sys.argv[1:]))"
    path = tmp_path / name  # which is /dev/stdout itself where the name is that
    (tmp_path / "link").symlink_to("out")
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        line = [sys.executable, "-c", script, str(path)]
        assert subprocess.run(line, cwd=ROOT, stdout=out, stderr=err).returncode == 2
    stream = "stderr" if name == "/dev/stderr" else "stdout"
    assert (tmp_path / "out").read_text() == "the answer\n"
    assert (tmp_path / "err").read_text().startswith(f"p: cannot write {path}: {stream} is redirected into that file.")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["err", "link", "out"]


def test_with_stdout_and_stderr_closed_a_file_can_still_be_written(tmp_path):
    script = "import os; os.close(1); os.close(2); from course_lib.cli import write_whole; from pathlib import Path\n"
    script += f"write_whole(Path({str(tmp_path / 'a')!r}), [b'1']); write_whole(Path({str(tmp_path / 'a')!r}), [b'2'])"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.DEVNULL)
    assert (tmp_path / "a").read_bytes() == b"2"
