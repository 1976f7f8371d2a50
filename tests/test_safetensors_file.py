"""safetensors files against the `safetensors` package, and against everything that is no such file."""

import json
import os
import socket
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import needs_torch

from course_lib.arithmetic.arrays import bfloat16_to_float32
from course_lib.cli import UserError
from course_lib.weights import safetensors_file
from course_lib.weights.safetensors_file import DTYPES, Tensor, read, read_header, write

safetensors = pytest.importorskip("safetensors", reason="the safetensors package is not installed")
package = pytest.importorskip("safetensors.numpy", reason="the safetensors package is not installed")

NUMPY_DTYPES = {name: code for name, code in DTYPES.items() if name != "BF16"}
SHAPES = [(), (1,), (7,), (3, 5), (0,), (2, 0, 3), (2, 3, 4, 5)]


def sample(dtype, shape, seed=0):
    array = np.random.default_rng(seed).standard_normal(shape) * 100
    return np.asarray(array > 0 if dtype == "BOOL" else np.abs(array) if dtype == "U8" else array).astype(DTYPES[dtype])


def tensors():
    """Every dtype in every shape, in an order that is not the alphabet's."""
    return {f"{dtype}.{len(shape)}.{i}": Tensor(sample(dtype, shape, i), dtype)
            for dtype in reversed(NUMPY_DTYPES) for i, shape in enumerate(SHAPES)}  # fmt: skip


def raw_file(path, header, data=b"", length=None):
    """A file with any header: JSON text, bytes, or what json.dumps takes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(begin, end, shape=None, dtype="U8"):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def refusal(path):
    with pytest.raises(UserError) as refused:
        read(path)
    message = str(refused.value)
    assert str(path) in message and "\n" not in message.replace(str(path), "")
    return message


# --- round trips


def test_what_we_write_the_package_reads(tmp_path):
    ours = tensors()
    write(tmp_path / "a.safetensors", ours, {"who": "me", "ünïcode": "日本"})
    theirs = package.load_file(tmp_path / "a.safetensors")
    assert theirs.keys() == ours.keys()
    for name, tensor in ours.items():
        assert theirs[name].dtype == tensor.array.dtype and theirs[name].shape == tensor.array.shape
        assert theirs[name].tobytes() == tensor.array.tobytes()


def test_what_the_package_writes_we_read(tmp_path):
    theirs = {name: tensor.array for name, tensor in tensors().items()}
    package.save_file(theirs, tmp_path / "a.safetensors", metadata={"format": "np"})
    ours, metadata = read(tmp_path / "a.safetensors")
    assert metadata == {"format": "np"}
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == name.partition(".")[0]
        assert tensor.array.shape == theirs[name].shape
        assert tensor.array.tobytes() == theirs[name].tobytes()


@needs_torch
def test_bfloat16_keeps_its_bits_and_its_values_both_ways(tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1e-40, 3.0, -1.0078125])
    theirs = torch.cat([special, torch.randn(1000, generator=torch.Generator().manual_seed(0))]).bfloat16()
    save_file({"x": theirs}, tmp_path / "a.safetensors")
    tensor = read(tmp_path / "a.safetensors")[0]["x"]
    assert tensor.dtype == "BF16"
    assert np.array_equal(bfloat16_to_float32(tensor.array), theirs.float().numpy())
    write(tmp_path / "b.safetensors", {"x": tensor}, {})
    back = load_file(tmp_path / "b.safetensors")["x"]
    assert back.dtype == torch.bfloat16
    assert torch.equal(back.view(torch.int16), theirs.view(torch.int16))


def test_arrays_in_any_order_of_memory_and_bytes_are_written_by_value(tmp_path):
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    odd = {"transposed": x.T, "strided": x[::2, ::3], "big-endian": x.astype(">f4"), "reversed": x[::-1]}
    write(tmp_path / "a", {name: Tensor(array, "F32") for name, array in odd.items()}, {})
    for name, array in package.load_file(tmp_path / "a").items():
        assert np.array_equal(array, odd[name])


def test_an_array_that_is_not_of_its_stated_dtype_is_never_written_as_if_it_were(tmp_path):
    with pytest.raises(TypeError):
        write(tmp_path / "a", {"x": Tensor(np.ones(4, np.float64), "F32")}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_data_begin_at_a_multiple_of_eight_bytes(tmp_path):
    for n in range(9):
        write(tmp_path / "a", {"x" * (n + 1): Tensor(np.ones(1, "<f8"), "F64")}, {})
        assert (os.path.getsize(tmp_path / "a") - 8) % 8 == 0


def test_a_file_without_tensors_or_metadata_is_a_file(tmp_path):
    write(tmp_path / "a", {}, {})
    assert read(tmp_path / "a") == ({}, {})
    assert read(raw_file(tmp_path / "b", {})) == ({}, {})
    assert read(raw_file(tmp_path / "c", {"__metadata__": None})) == ({}, {})


# --- writing that goes wrong


class Boom(np.ndarray):
    """An array whose bytes cannot be had: stands for a full disk, Ctrl-C, a killed process in the middle."""

    error: type[BaseException] = KeyboardInterrupt

    def astype(self, *args, **kwargs):
        raise self.error("in the middle")


@pytest.mark.parametrize("error, seen", [(KeyboardInterrupt, KeyboardInterrupt), (OSError, UserError)])
@pytest.mark.parametrize("before", [None, b"what was there"])
def test_an_interrupted_write_leaves_what_was_there_and_no_half_file(tmp_path, error, seen, before):
    path = tmp_path / "a.safetensors"
    if before is not None:
        path.write_bytes(before)
    bad = np.ones(5, np.float32).view(Boom)
    bad.error = error
    with pytest.raises(seen):
        write(path, {"good": Tensor(np.ones(10_000, np.float32), "F32"), "then": Tensor(bad, "F32")}, {})
    assert [p.name for p in tmp_path.iterdir()] == ([] if before is None else ["a.safetensors"])
    assert before is None or path.read_bytes() == before


def test_a_file_that_is_there_is_replaced_whole(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old" * 1000)
    (tmp_path / "a.part").write_bytes(b"somebody else's")
    write(path, {"x": Tensor(np.arange(3, dtype="<i8"), "I64")}, {})
    assert read(path)[0]["x"].array.tolist() == [0, 1, 2]
    assert (tmp_path / "a.part").read_bytes() == b"somebody else's"


@pytest.mark.parametrize("where", ["no/such/folder/a", "folder", "file/a", "x" * 300])
def test_a_place_that_cannot_be_written_is_said_in_one_line_and_nothing_is_left(tmp_path, where):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write "):
        write(tmp_path / where, {"x": Tensor(np.ones(3, np.float32), "F32")}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert not any((tmp_path / "folder").iterdir())


def node(path, kind):
    """Something at `path` that is not a regular file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # another /dev/null
        except PermissionError:
            pytest.skip("only root makes a device")
    return path


def seen(path):
    of = os.lstat(path)
    return of.st_mode, of.st_ino, of.st_rdev


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="files of other kinds are a matter of Unix")
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_regular_file_stays_what_it_is_with_and_without_a_link_to_it(tmp_path, kind, linked):
    there = path = node(tmp_path / "node", kind)
    if linked:
        path = tmp_path / "link"
        path.symlink_to("node")
    before = seen(there), seen(path)
    with pytest.raises(UserError, match="it is a device, a pipe or a socket. Name a regular file"):
        write(path, {"x": Tensor(np.ones(3, np.float32), "F32")}, {})
    assert (seen(there), seen(path)) == before
    assert len(list(tmp_path.iterdir())) == 1 + linked


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link_and_its_file_is_written(tmp_path, there):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "a", tmp_path / "link"
    if there:
        target.write_bytes(b"old")
    link.symlink_to("folder/a")
    write(link, {"x": Tensor(np.arange(3, dtype="<i8"), "I64")}, {})
    assert os.readlink(link) == "folder/a" and not target.is_symlink()
    assert read(target)[0]["x"].array.tolist() == [0, 1, 2]
    assert [p.name for p in target.parent.iterdir()] == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_link_to_itself_or_into_no_folder_is_refused(tmp_path):
    for name, target in (("loop", "loop"), ("nowhere", "no/such/folder/a"), ("folder", ".")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(UserError, match="cannot write "):
            write(tmp_path / name, {}, {})
        assert os.readlink(tmp_path / name) == target


# --- files that are none


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="files of other kinds are a matter of Unix")
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, kind):
    path = node(tmp_path / "node", kind)
    (tmp_path / "link").symlink_to("node")
    for name in (path, tmp_path / "link"):
        assert f"cannot read {name}: it is a device, a pipe or a socket" in refusal(name)


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    write(tmp_path / "a", {"x": Tensor(np.arange(6, dtype=np.float32), "F32"), "y": Tensor(np.ones(3, "u1"), "U8")}, {})
    whole = (tmp_path / "a").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "b").write_bytes(whole[:length])
        assert "Was the download complete?" in refusal(tmp_path / "b")
    (tmp_path / "b").write_bytes(whole + b"\0")
    refusal(tmp_path / "b")


def test_a_folder_a_missing_file_and_a_name_with_nul_are_refused(tmp_path):
    assert "directory" in refusal(tmp_path).lower() or os.name == "nt"
    assert "No such file" in refusal(tmp_path / "missing")
    with pytest.raises(UserError, match="null"):
        read_header("a\0b")


@pytest.mark.parametrize("length", [0, 1, 3, 100, 2**31, 2**63, 2**64 - 1])
def test_a_header_length_that_lies_is_refused(tmp_path, length):
    refusal(raw_file(tmp_path / "a", {"x": entry(0, 4)}, b"1234", length))


WRONG_HEADERS = {
    "no JSON": b"{'x': 1}",
    "not UTF-8": b'{"\xff\xfe": {}}',
    "a UTF-8 byte order mark": b"\xef\xbb\xbf{}",
    "a list": [],
    "a number": b"12",
    "null": b"null",
    "half an object": b'{"x": {"dtype": "U8"',
    "deep JSON": b"[" * 100_000,
    "deep JSON in an entry": b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "a number of 5,000 digits": b'{"x": {"dtype": "U8", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 4]}}',
    "an entry that is a list": {"x": []},
    "an entry that is a text": {"x": "U8"},
    "an entry that is null": {"x": None},
    "an empty entry": {"x": {}},
    "no dtype": {"x": {"shape": [4], "data_offsets": [0, 4]}},
    "no shape": {"x": {"dtype": "U8", "data_offsets": [0, 4]}},
    "no offsets": {"x": {"dtype": "U8", "shape": [4]}},
    "a dtype that is a list": {"x": entry(0, 4) | {"dtype": ["U8"]}},
    "a shape that is a text": {"x": entry(0, 4) | {"shape": "4"}},
    "a shape that is an object": {"x": entry(0, 4) | {"shape": {"4": 4}}},
    "a shape in floats": {"x": entry(0, 4) | {"shape": [4.0]}},
    "a shape in bools": {"x": entry(0, 4) | {"shape": [True, 4]}},
    "two negative sizes": {"x": entry(0, 4) | {"shape": [-2, -2]}},
    "a size of minus one": {"x": entry(0, 4) | {"shape": [-1]}},
    "a shape too large": {"x": entry(0, 4) | {"shape": [2**62, 2**62]}},
    "a shape too small": {"x": entry(0, 4) | {"shape": [3]}},
    "an empty shape over data": {"x": entry(0, 4) | {"shape": [0]}},
    "a scalar of four bytes": {"x": entry(0, 4) | {"shape": []}},
    "offsets in floats": {"x": entry(0, 4) | {"data_offsets": [0.0, 4.0]}},
    "three offsets": {"x": entry(0, 4) | {"data_offsets": [0, 4, 8]}},
    "one offset": {"x": entry(0, 4) | {"data_offsets": [4]}},
    "offsets that are null": {"x": entry(0, 4) | {"data_offsets": None}},
    "negative offsets": {"x": entry(0, 4) | {"data_offsets": [-4, 0]}},
    "offsets backwards": {"x": entry(0, 4) | {"data_offsets": [4, 0]}},
    "offsets behind the end": {"x": entry(0, 8)},
    "offsets far behind the end": {"x": entry(2**70, 2**70 + 4)},
    "a hole at the beginning": {"x": entry(2, 4)},
    "a hole in the middle": {"x": entry(0, 1), "y": entry(2, 4)},
    "a hole at the end": {"x": entry(0, 3)},
    "overlapping tensors": {"x": entry(0, 3), "y": entry(1, 4)},
    "one tensor inside another": {"x": entry(0, 4), "y": entry(1, 2)},
    "two tensors in one place": {"x": entry(0, 4), "y": entry(0, 4)},
    "an overlap of a dtype that we have not": {"x": entry(0, 4, dtype="F8_E4M3"), "y": entry(2, 4)},
    "metadata that is a list": {"__metadata__": [], "x": entry(0, 4)},
    "metadata of numbers": {"__metadata__": {"a": 1}, "x": entry(0, 4)},
}


@pytest.mark.parametrize("wrong", WRONG_HEADERS)
def test_a_header_that_is_not_sound_is_refused_in_one_line(tmp_path, wrong):
    path = raw_file(tmp_path / "a.safetensors", WRONG_HEADERS[wrong], b"1234")
    assert "is not a safetensors file" in refusal(path)
    with pytest.raises(Exception):  # noqa: B017 - the package refuses each too, with an exception of its own
        package.load_file(path)


@pytest.mark.parametrize("shape", [[0, 10**30], [0, 2**62, 2**62], [1] * 70 + [4]])
def test_a_shape_that_fits_its_bytes_but_not_numpy_is_refused(tmp_path, shape):
    data = b"1234" if shape[-1] == 4 else b""
    assert "tensor x cannot be read" in refusal(raw_file(tmp_path / "a", {"x": entry(0, len(data), shape)}, data))


def test_a_dtype_that_we_have_not_is_refused_by_name_only_when_it_is_read(tmp_path):
    header = {"x": entry(0, 4, dtype="F8_E4M3"), "y": entry(4, 6, [1], "BF16")}
    path = raw_file(tmp_path / "a", header, b"123456")
    assert read_header(path) == header
    assert "tensor x has dtype F8_E4M3; wanted one of ['BF16'" in refusal(path)
    assert safetensors_file.read_tensor(path, "y", header["y"]).array.tolist() == [0x3635]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
sizes = st.integers(-2, 12) | st.sampled_from([2**31, 2**63, 2**70])
nearly_entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*DTYPES, "F8_E4M3", "f32", ""]) | json_values,
        "shape": st.lists(sizes, max_size=3) | json_values,
        "data_offsets": st.lists(sizes, min_size=2, max_size=2) | json_values,
        "extra": json_values,
    },
)
headers = st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__"]), nearly_entries | json_values, max_size=4)


@given(header=headers | json_values, data=st.binary(max_size=24), slack=st.sampled_from([0, 0, 0, -1, 1, 8]))
@settings(max_examples=300)
def test_whatever_the_header_says_a_file_is_read_as_the_package_reads_it_or_refused(
    tmp_path_factory, header, data, slack
):
    path = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    raw_file(path, header, data, max(0, len(json.dumps(header).encode()) + slack))
    try:
        ours, _ = read(path)
    except UserError as error:
        assert len(str(error)) < 2000
        return
    theirs = dict(safetensors.deserialize(path.read_bytes()))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert list(tensor.array.shape) == theirs[name]["shape"]
        assert tensor.array.tobytes() == bytes(theirs[name]["data"])


@given(
    tensors=st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 3), max_size=3)), max_size=5)
)
@settings(max_examples=100)
def test_a_sound_file_is_never_refused(tmp_path_factory, tensors):
    path = tmp_path_factory.getbasetemp() / "sound.safetensors"
    given_tensors = {str(i): Tensor(sample(dtype, tuple(shape), i), dtype) for i, (dtype, shape) in enumerate(tensors)}
    write(path, given_tensors, {})
    back, _ = read(path)
    assert back.keys() == given_tensors.keys()
    for name, tensor in given_tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].array.shape == tensor.array.shape
        assert back[name].array.tobytes() == tensor.array.tobytes()
    assert dict(safetensors.deserialize(path.read_bytes())).keys() == back.keys()


@given(content=st.binary(max_size=80))
@settings(max_examples=200)
def test_bytes_by_chance_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError):
        read(path)


@given(where=st.integers(0, 400), byte=st.integers(0, 255))
@settings(max_examples=200)
def test_a_flipped_byte_is_refused_or_changes_what_it_changes(tmp_path_factory, where, byte):
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    write(
        path, {"x": Tensor(np.arange(6, dtype="<f4"), "F32"), "y": Tensor(np.arange(3, dtype="<i8"), "I64")}, {"a": "b"}
    )
    content = bytearray(path.read_bytes())
    content[where % len(content)] = byte
    path.write_bytes(content)
    try:
        tensors, _ = read(path)
    except UserError:
        return
    assert sum(tensor.array.nbytes for tensor in tensors.values()) == 48
