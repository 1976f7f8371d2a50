"""`prefill` and `diff` as their contract says: flags, JSON keys, exit codes, and one line for whatever cannot be."""

import hashlib
import json
import os

import numpy as np
import pytest
from libraries import needs_torch
from starting import ROOT, run_python

from course_lib.__main__ import COMMANDS, main
from course_lib.cli import UserError
from course_lib.commands import prefill as prefill_command
from course_lib.commands import saved
from course_lib.diagnosis.faults import FAULTS
from course_lib.prefill import one_pass, ragged
from course_lib.weights import seeded_model
from course_lib.weights.huggingface import LAYER_TENSORS, SHARED_TENSORS
from course_lib.weights.safetensors_file import Tensor, read, write

CASE = ("--prompt-len", "60", "--hit", "37", "--block-size", "8")


# --- the way in


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_shows_an_example_and_exits_0(command, name):
    code, out, err = command(name, "--help")
    assert (code, err) == (0, "")
    assert f"example:\n  python -m course_lib {name}" in out


@pytest.mark.parametrize("argv", [(), ("-h",), ("--help",)])
def test_without_a_command_all_are_listed_with_an_example(command, argv):
    code, out, err = command(*argv)
    assert (code, err) == (0, "")
    assert all(name in out for name in COMMANDS)
    assert "example:\n  python -m course_lib demo" in out


@pytest.mark.parametrize("name", ["prefil", "", "--json", "Prefill", "course_lib.commands.prefill"])
def test_a_command_that_does_not_exist_is_refused_with_those_that_do(refused, name):
    line = refused(name)
    assert all(known in line for known in COMMANDS)


def test_an_interruption_is_one_line(refused, monkeypatch):
    monkeypatch.setattr(prefill_command, "one_pass", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    assert "interrupted" in refused("prefill", "--prompt-len", "5", "--chunk", "1")


def test_want_of_memory_is_one_line(refused, monkeypatch):
    monkeypatch.setattr(prefill_command, "one_pass", lambda *a, **k: np.empty(2**58))
    assert "not enough memory" in refused("prefill", "--prompt-len", "5", "--chunk", "1")


# --- prefill: what it answers


@pytest.mark.parametrize("arith", ["tile", "exact"])
@pytest.mark.parametrize(
    "case",
    [
        "--prompt-len 1 --chunk 1",
        "--prompt-len 50 --chunk 1,7,16,17,50,51,1000",
        "--prompt-len 40 --hit 39 --chunk 1,ragged",
        "--prompt-len 40 --hit 1 --chunk 3,ragged",
        "--prompt-len 70 --hit 32 --block-size 16 --chunk 5,ragged",
        "--prompt-len 70 --hit 33 --block-size 1 --chunk 5,ragged",
        "--prompt-len 70 --hit 33 --block-size 256 --chunk 5,ragged",
        "--prompt-len 9 --block-size 65536 --chunk 2",
        "--prompt-len 10 --chunk 100000000000000000000000000",
    ],
)
def test_any_cut_any_hit_and_any_block_size_equal_one_pass(as_json, case, arith):
    code, answer = as_json("prefill", *case.split(), "--arith", arith)
    assert code == 0
    assert answer["equal"] is True
    assert all(run["equal"] is True and run["first_divergence"] is None for run in answer["runs"])


def test_the_json_has_the_keys_of_the_contract_and_a_run_for_each_chunk_in_order(as_json):
    code, answer = as_json("prefill", *CASE, "--chunk", "7, 3,ragged,007,7", "--fault", "mask one ahead")
    assert code == 1
    assert set(answer) == {"equal", "runs", "sha256"}
    assert answer["equal"] is False
    assert [run["chunk"] for run in answer["runs"]] == [7, 3, "ragged", 7, 7]
    for run in answer["runs"]:
        assert set(run) == {"chunk", "equal", "first_divergence"}
        d = run["first_divergence"]
        assert set(d) == {"layer", "tensor", "position", "ulps"}
        assert (d["layer"], d["tensor"]) == (1, "K")
        assert d["position"] >= 37 and type(d["ulps"]) is int and d["ulps"] > 0
    assert set(answer["sha256"]) == {"k", "v", "logits"}


@pytest.mark.parametrize("arith", ["tile", "exact"])
def test_the_hashes_are_of_the_one_pass_bytes_in_the_order_that_is_documented(as_json, arith):
    _, answer = as_json("prefill", *CASE, "--chunk", "7", "--arith", arith)
    ids = prefill_command.token_ids(60, 128)
    run = one_pass(seeded_model(arith=arith), ids)
    assert run.k.shape == (3, 60, 2, 16)  # [layer, token, kv_head, dim]
    for name in ("k", "v", "logits"):
        values = np.ascontiguousarray(getattr(run, name), dtype="<f4") + np.float32(0)
        assert answer["sha256"][name] == hashlib.sha256(values.tobytes()).hexdigest()
    wrong = as_json("prefill", *CASE, "--chunk", "7", "--arith", arith, "--fault", "positions from 1")
    assert wrong[1]["sha256"] == answer["sha256"]  # of one pass, whatever the chunks did


def test_the_prompt_is_the_same_on_every_machine():
    words = np.random.PCG64(7).random_raw(1000)
    assert prefill_command.token_ids(1000, 128) == [int(w) % 128 for w in words.tolist()]
    assert prefill_command.token_ids(5, 128) == prefill_command.token_ids(1000, 128)[:5] == [11, 21, 98, 66, 69]


def test_ragged_is_really_ragged():
    sizes = ragged(1000)
    assert sum(sizes) == 1000 and len(set(sizes)) > 5 and 1 <= min(sizes) <= max(sizes) <= 100


def test_the_text_says_what_ran_and_what_came_out(command):
    code, out, err = command("prefill", *CASE, "--chunk", "7,ragged", "--arith", "exact")
    assert (code, err) == (0, "")
    assert "60 tokens, 37 of them attached, exact arithmetic, numpy float32 on cpu" in out
    assert out.count("equal to one pass, bit for bit") == 2
    code, out, _ = command("prefill", *CASE, "--chunk", "7", "--fault", "last write dropped")
    assert code == 1
    assert "first difference: layer 0 K at position 43" in out  # the end of the first chunk behind the hit


@needs_torch
@pytest.mark.parametrize("arith", ["tile", "exact"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_has_three_dtypes_in_both_arithmetics(as_json, arith, dtype):
    argv = ("prefill", *CASE, "--chunk", "7,ragged", "--backend", "torch", "--dtype", dtype, "--arith", arith)
    code, answer = as_json(*argv)
    assert (code, answer["equal"]) == (0, True)
    if (arith, dtype) == ("exact", "float32"):
        assert answer["sha256"] == as_json("prefill", *CASE, "--chunk", "7", "--arith", "exact")[1]["sha256"]


@pytest.mark.parametrize("name", FAULTS)
def test_every_known_fault_can_be_wired_in_and_ends_in_exit_1(as_json, name):
    argv = ("prefill", "--prompt-len", "200", "--hit", "37", "--chunk", "ragged", "--fault", name)
    code, answer = as_json(*argv)
    assert code == 1
    assert answer["runs"][0]["equal"] is False


def test_one_differing_run_among_equal_ones_ends_in_exit_1(as_json):
    """A chunk index times its size is right where all chunks are of one size."""
    argv = ("prefill", "--prompt-len", "200", "--hit", "37")
    code, answer = as_json(*argv, "--chunk", "7,ragged,163", "--fault", "chunk index times chunk size")
    assert code == 1
    assert answer["equal"] is False
    assert [run["equal"] for run in answer["runs"]] == [True, False, True]


# --- prefill: what it refuses

WRONG = {
    "no flags": ([], "--prompt-len --text"),
    "no prompt": (["--chunk", "5"], "--prompt-len --text"),
    "two prompts": (["--prompt-len", "5", "--text", "a"], "--text: not allowed with argument --prompt-len"),
    "a text for the seeded model": (["--text", "a"], "needs a model folder with a tokenizer.json"),
    "two model folders": (["a", "--model", "b", "--prompt-len", "5"], "two model folders, a and --model b"),
    "an unknown flag": (["--prompt-len", "5", "--chunk", "1", "--chunks", "2"], "arguments: --chunks"),
    "a flag cut short": (["--prompt", "5", "--chunk", "1"], "--prompt"),
    "a word too many": (["x", "y", "--prompt-len", "5", "--chunk", "1"], "unrecognized arguments: y"),
    "another arithmetic": (["--prompt-len", "5", "--chunk", "1", "--arith", "plain"], "'plain'"),
    "another backend": (["--prompt-len", "5", "--chunk", "1", "--backend", "jax"], "'jax'"),
    "another dtype": (["--prompt-len", "5", "--chunk", "1", "--dtype", "float64"], "'float64'"),
    "another device": (["--prompt-len", "5", "--chunk", "1", "--device", "mps"], "'mps'"),
    "another fault": (["--prompt-len", "5", "--chunk", "1", "--fault", "bad luck"], "'bad luck'"),
    "bfloat16 in NumPy": (["--prompt-len", "5", "--chunk", "1", "--dtype", "bfloat16"], "float32 on the CPU only"),
    "float16 in NumPy": (["--prompt-len", "5", "--chunk", "1", "--dtype", "float16"], "Use --backend torch"),
    "NumPy on CUDA": (["--prompt-len", "5", "--chunk", "1", "--device", "cuda"], "not float32 on cuda"),
    "a prompt too long": (["--prompt-len", "1048577", "--chunk", "1"], "1048576 positions"),
    "a prompt far too long": (["--prompt-len", "1" + "0" * 40, "--chunk", "1"], "is too large: at most"),
    "a block too large": (["--prompt-len", "5", "--chunk", "1", "--block-size", "65537"], "at most 65536"),
    "a hit of the whole prompt": (["--prompt-len", "5", "--chunk", "1", "--hit", "5"], "covers the whole prompt of 5"),
    "a hit beyond the prompt": (["--prompt-len", "5", "--chunk", "1", "--hit", "10000"], "at least one token"),
    "a hit of a prompt of one": (["--prompt-len", "1", "--chunk", "1", "--hit", "1"], "covers the whole prompt"),
    "more keys than exact holds": (["--prompt-len", "8323", "--chunk", "9", "--arith", "exact"], "up to 8322"),
    "a fault that needs a hit": (["--prompt-len", "50", "--chunk", "9", "--fault", "stale block"], "cannot occur"),
    "a fault that needs two blocks": (
        ["--prompt-len", "50", "--chunk", "9", "--hit", "31", "--fault", "visible blocks swapped"],
        "no two whole blocks of 16",
    ),
    "a model folder that is not there": (["--prompt-len", "5", "--chunk", "1", "--model", "no/such"], "no/such"),
    "a folder behind the flags": (["--prompt-len", "5", "--chunk", "1", "no/such"], "no/such"),
    "a model folder that is a file": (["--prompt-len", "5", "--chunk", "1", "--model", __file__], "test_commands.py"),
    "a file to save in no folder": (["--prompt-len", "5", "--chunk", "1", "--save", "no/such/file"], "no/such/file"),
    "a file to save that is a folder": (["--prompt-len", "5", "--chunk", "1", "--save", str(ROOT)], "cannot write"),
    "a file to save with a slash": (["--prompt-len", "5", "--chunk", "1", "--save", "x/"], "cannot write x/: such"),
    "a file to save without a name": (["--prompt-len", "5", "--chunk", "1", "--save", ""], "cannot write"),
}
for flag, wrong_values in {
    "--prompt-len": ("0", "-1", "1.5", "", "x", "1e3", "9" * 5000),
    "--hit": ("-1", "0.0", "", "all"),
    "--block-size": ("0", "-16", "16.0", "", "None"),
}.items():
    for value in wrong_values:
        others = {"--prompt-len": "5", "--chunk": "1"} | {flag: value}
        WRONG[f"{flag} {value[:9]!r}"] = ([f"{name}={given}" for name, given in others.items()], flag)
for value in ("", ",", "0", "-1", "1.5", "1,,2", "1,", "x", "Ragged", "rag ged", "1;2", "+3", "1_000", "٣", "²", "0x10",
              "1e3", "None", "7,0", "ragged,-2", "\n", "9" * 5000):  # fmt: skip
    WRONG[f"--chunk {value[:9]!r}"] = (["--prompt-len", "5", f"--chunk={value}"], "nor 'ragged'")


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_written(refused, tmp_path, monkeypatch, wrong):
    argv, says = WRONG[wrong]
    monkeypatch.chdir(tmp_path)
    if "--save" not in argv:
        argv = [*argv, "--save", "run.safetensors"]
    assert says in refused("prefill", *argv)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused_before_the_work(refused, tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot write" in refused("prefill", *CASE, "--chunk", "9", "--save", tmp_path / "a")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are a matter of Unix")
@pytest.mark.parametrize("name", ["pipe", "link to the pipe", "link to a device"])
def test_a_save_over_what_is_no_regular_file_is_refused_before_the_work(refused, tmp_path, monkeypatch, name):
    monkeypatch.setattr(prefill_command, "seeded_model", None)  # the work would begin with it
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to the pipe").symlink_to("pipe")
    (tmp_path / "link to a device").symlink_to(os.devnull)
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}
    said = refused("prefill", *CASE, "--chunk", "9", "--save", tmp_path / name)
    assert f"cannot write {tmp_path / name}: it is a device, a pipe or a socket" in said
    assert {path.name: path.lstat() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are a matter of Unix")
@pytest.mark.parametrize("argv", [("sweep", "--out"), ("load", "http://127.0.0.1:9", "--json"),
                                  ("load", "http://127.0.0.1:9", "--png"), ("serve", "--trace")])  # fmt: skip
def test_other_commands_write_no_file_over_a_pipe_either(refused, tmp_path, argv):
    os.mkfifo(tmp_path / "pipe.json")
    assert "it is a device, a pipe or a socket" in refused(*argv, tmp_path / "pipe.json")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_save_through_a_link_writes_the_file_and_leaves_the_link(command, tmp_path):
    (tmp_path / "link").symlink_to("run")
    save(command, tmp_path / "link", "--chunk", "9")
    assert (tmp_path / "link").is_symlink() and not (tmp_path / "run").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "run"]
    assert command("diff", tmp_path / "link", tmp_path / "run")[0] == 0


def test_a_save_that_fails_after_the_work_does_not_cost_the_answer(command, tmp_path, monkeypatch):
    def full(*args):
        raise UserError("cannot write: No space left on device.")

    monkeypatch.setattr(saved, "write_file", full)
    code, out, err = command("prefill", *CASE, "--chunk", "9", "--json", "--save", tmp_path / "a")
    assert code == 2
    assert json.loads(out)["equal"] is True
    assert "No space left" in err and len(err.splitlines()) == 1


WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from course_lib.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_torch_numpy_works_and_torch_is_one_line():
    works = run_python("-c", WITHOUT_TORCH, "prefill", *CASE, "--chunk", "7", "--arith", "exact", "--json")
    assert (works.returncode, works.stderr) == (0, "")
    assert json.loads(works.stdout)["equal"] is True
    refusal = run_python("-c", WITHOUT_TORCH, "prefill", *CASE, "--chunk", "7", "--backend", "torch")
    assert (refusal.returncode, refusal.stdout) == (2, "")
    assert "PyTorch, which is not installed" in refusal.stderr and len(refusal.stderr.splitlines()) == 1


def test_as_a_program_it_prints_json_alone_and_its_exit_code_is_the_answer():
    for more, code in (([], 0), (["--fault", "positions from 1"], 1), (["--hit", "60"], 2)):
        done = run_python("-m", "course_lib", "prefill", *CASE, "--chunk", "9", "--json", *more)
        assert done.returncode == code
        assert (json.loads(done.stdout)["equal"] is (code == 0)) if code < 2 else done.stdout == ""
        assert len(done.stderr.splitlines()) == (code == 2)


@pytest.mark.slow
@pytest.mark.parametrize("arith", ["tile", "exact"])
def test_a_thousand_tokens_behind_a_hit_equal_one_pass(as_json, arith):
    case = "--prompt-len 1003 --chunk 1,7,64,1000 --hit 496 --block-size 16".split()
    assert as_json("prefill", *case, "--arith", arith)[0] == 0


# --- model folders


def model_folder(folder, layers=2, scale=1.0, **changes):
    """A small Llama folder written by NumPy alone."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 24,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | changes))
    shapes = dict.fromkeys(SHARED_TENSORS.values(), (40, 16)) | {SHARED_TENSORS["final_norm"]: (16,)}
    one_layer = {
        "attention_norm": [(16,)], "qkv": [(24, 16), (12, 16), (12, 16)], "o": [(16, 24)], "mlp_norm": [(16,)],
        "gate_up": [(24, 16), (24, 16)], "down": [(16, 24)],
    }  # fmt: skip
    for layer in range(layers):
        for key, parts in one_layer.items():
            names = (f"model.layers.{layer}.{name}.weight" for name in LAYER_TENSORS[key])
            shapes.update(zip(names, parts))
    rng = np.random.default_rng(0)
    tensors = {
        name: Tensor((scale * rng.standard_normal(shape)).astype(np.float32), "F32") for name, shape in shapes.items()
    }
    write(folder / "model.safetensors", tensors, {})
    return folder


def test_a_model_folder_is_run_and_its_last_layers_attention_shows_in_the_logits_alone(as_json, tmp_path):
    folder = model_folder(tmp_path / "model", layers=1)
    argv = ("prefill", *CASE, "--chunk", "7", "--model", folder)
    assert as_json(*argv)[0] == 0
    code, answer = as_json(*argv, "--fault", "cached keys missing")
    assert code == 1
    d = answer["runs"][0]["first_divergence"]
    assert (d["layer"], d["tensor"], d["position"]) == (None, "logits", 59)


@pytest.mark.parametrize("arith", ["tile", "exact"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_model_whose_numbers_are_not_finite_is_not_called_equal(refused, tmp_path, arith):
    folder = model_folder(tmp_path / "model")
    tensors, _ = read(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    array = tensors[name].array.copy()
    array[3, 3] = np.nan
    write(folder / "model.safetensors", tensors | {name: Tensor(array, "F32")}, {})
    line = refused("prefill", *CASE, "--chunk", "7", "--model", folder, "--arith", arith)
    assert "not finite" in line


def test_values_that_exact_sums_do_not_hold_are_refused_with_the_way_out(refused, as_json, tmp_path):
    folder = model_folder(tmp_path / "model", scale=30.0)
    assert "Use arith='tile'" in refused("prefill", *CASE, "--chunk", "7", "--model", folder, "--arith", "exact")
    assert as_json("prefill", *CASE, "--chunk", "7", "--model", folder)[0] == 0


# --- save and diff


def save(command, path, *argv):
    code, _, err = command("prefill", *CASE, *argv, "--save", path)
    assert code in (0, 1) and err == ""
    return path


def test_what_is_saved_is_the_last_run_with_all_that_is_needed_to_run_it_again(command, tmp_path):
    path = save(command, tmp_path / "a.safetensors", "--chunk", "60,5", "--arith", "exact")
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    tensors, metadata = read(path)
    assert tensors["token_ids"].array.tolist() == prefill_command.token_ids(60, 128)
    assert tensors["chunks"].array.tolist() == [5, 5, 5, 5, 3]
    model = seeded_model(arith="exact")
    assert json.loads(metadata["run"]) == {
        "hit": 37, "block_size": 8, "arith": "exact", "backend": "numpy", "device": "cpu", "model": "seeded",
        "model_sha256": model.sha256,
    }  # fmt: skip
    run = one_pass(model, tensors["token_ids"].array)
    assert all(np.array_equal(tensors[name].array, getattr(run, name)) for name in ("k", "v", "logits"))


@pytest.mark.parametrize("arith", ["tile", "exact"])
def test_equal_runs_of_different_cuts_have_no_difference(command, tmp_path, arith):
    a = save(command, tmp_path / "a", "--chunk", "60", "--hit", "0", "--arith", arith)
    b = save(command, tmp_path / "b", "--chunk", "ragged", "--block-size", "3", "--arith", arith)
    assert command("diff", a, b) == (0, "equal: K and V of every layer, and the logits, bit for bit\n", "")


WAYS = [
    pytest.param("numpy", "tile", "float32"),
    pytest.param("numpy", "exact", "float32"),
    pytest.param("torch", "tile", "float32", marks=needs_torch),
    pytest.param("torch", "tile", "bfloat16", marks=needs_torch),
    pytest.param("torch", "exact", "float16", marks=needs_torch),
]


@pytest.mark.parametrize("backend, arith, dtype", WAYS)
@pytest.mark.parametrize("name", ["mask hides the last cached key", "last write dropped"])
def test_diff_names_the_fault_whatever_it_ran_in(command, tmp_path, backend, arith, dtype, name):
    where = ("--chunk", "7", "--backend", backend, "--arith", arith, "--dtype", dtype)
    a = save(command, tmp_path / "a", *where)
    b = save(command, tmp_path / "b", *where, "--fault", name)
    code, out, err = command("diff", a, b)
    assert (code, err) == (1, "")
    assert f"exactly this KV is left by '{name}'" in out
    assert "first difference: layer " in out and "pattern: " in out


def test_diff_calls_another_kernel_no_mistake_of_logic(command, tmp_path):
    a = save(command, tmp_path / "a", "--chunk", "7")
    b = save(command, tmp_path / "b", "--chunk", "7", "--fault", "another kernel")
    code, out, _ = command("diff", a, b)
    assert code == 1
    assert "not a mistake of logic" in out and "'another kernel'" in out


def test_diff_of_two_arithmetics_says_that_nothing_is_promised_between_them(command, tmp_path):
    a = save(command, tmp_path / "a", "--chunk", "7", "--arith", "exact")
    b = save(command, tmp_path / "b", "--chunk", "7", "--arith", "tile")
    code, out, _ = command("diff", a, b)
    assert code == 1
    assert "A ran in exact arithmetic, B in tile" in out and "not a mistake of logic" in out


def test_a_difference_that_no_fault_explains_is_said_to_be_one(command, tmp_path):
    a = save(command, tmp_path / "a", "--chunk", "7")
    tensors, metadata = read(a)
    v = tensors["v"].array.copy()
    v[2, 50, 1, 3] += 1
    write(tmp_path / "b", tensors | {"v": Tensor(v, "F32")}, metadata)
    code, out, _ = command("diff", a, tmp_path / "b")
    assert code == 1
    assert "first difference: layer 2 V at position 50" in out
    assert "no known fault leaves exactly this KV" in out


def test_a_model_that_has_moved_is_found_with_its_flag_and_missed_without(command, tmp_path):
    folder = model_folder(tmp_path / "model")
    argv = ("--chunk", "7", "--model", folder)
    a = save(command, tmp_path / "a", *argv)
    b = save(command, tmp_path / "b", *argv, "--fault", "cached keys missing")
    folder.rename(tmp_path / "moved")
    code, out, _ = command("diff", a, b)
    assert code == 1
    assert "replay: not possible" in out
    code, out, _ = command("diff", a, b, "--model", tmp_path / "moved")
    assert code == 1
    assert "is left by 'cached keys missing'" in out
    model_folder(tmp_path / "other", scale=0.5)
    assert "the model at hand is another one" in command("diff", a, b, "--model", tmp_path / "other")[1]


def test_runs_that_answer_different_questions_are_refused(command, refused, tmp_path):
    a = save(command, tmp_path / "a", "--chunk", "7")
    other_prompt = save(command, tmp_path / "prompt", "--chunk", "7", "--prompt-len", "61")
    other_model = save(command, tmp_path / "model", "--chunk", "7", "--model", model_folder(tmp_path / "m"))
    assert "different prompts (60 and 61 tokens)" in refused("diff", a, other_prompt)
    assert "different models" in refused("diff", a, other_model)


@needs_torch
def test_runs_of_different_dtypes_are_refused(command, refused, tmp_path):
    a = save(command, tmp_path / "a", "--chunk", "7")
    b = save(command, tmp_path / "b", "--chunk", "7", "--backend", "torch", "--dtype", "bfloat16")
    line = refused("diff", a, b)
    assert "float32" in line and "bfloat16" in line


@pytest.mark.parametrize("argv", [(), ("a",), ("a", "b", "c"), ("a", "b", "--models", "x")])
def test_diff_takes_two_files(refused, argv):
    refused("diff", *argv)


def reshaped(name, change):
    def spoil(tensors, run):
        tensors[name] = Tensor(np.ascontiguousarray(change(tensors[name].array)), tensors[name].dtype)

    return spoil


def retyped(name, dtype, code):
    def spoil(tensors, run):
        tensors[name] = Tensor(tensors[name].array.astype(code), dtype)

    return spoil


def without(name):
    return lambda tensors, run: tensors.pop(name, None) or run.pop(name)


def with_run(**changes):
    return lambda tensors, run: run.update(changes)


SPOILT = {
    f"no {name}": without(name) for name in ("k", "v", "logits", "token_ids", "chunks", "hit", "arith", "backend")
}
SPOILT |= {
    "k in three axes": reshaped("k", lambda x: x[0]),
    "v of fewer tokens": reshaped("v", lambda x: x[:, :-1]),
    "k and v of no layers": lambda t, run: [reshaped(n, lambda x: x[:0])(t, run) for n in ("k", "v")],
    "logits in two axes": reshaped("logits", lambda x: x[None]),
    "no logits in logits": reshaped("logits", lambda x: x[:0]),
    "fewer token ids": reshaped("token_ids", lambda x: x[:-1]),
    "token ids in two axes": reshaped("token_ids", lambda x: x[None]),
    "one token id": reshaped("token_ids", lambda x: x[0]),
    "token ids below zero": reshaped("token_ids", lambda x: -1 - x),
    "token ids beyond the vocabulary": reshaped("token_ids", lambda x: x + 128),
    "token ids in floats": retyped("token_ids", "F32", np.float32),
    "chunks that do not add up": reshaped("chunks", lambda x: x + 1),
    "chunks below one": reshaped("chunks", lambda x: np.append(x, [5, -5])),
    "chunks in two axes": reshaped("chunks", lambda x: x[:, None]),
    "chunks in bools": retyped("chunks", "BOOL", bool),
    "no chunks in chunks": reshaped("chunks", lambda x: x[:0]),
    "k of another dtype": retyped("k", "F16", np.float16),
    "a dtype that no run has": lambda t, run: [retyped(n, "F64", np.float64)(t, run) for n in ("k", "v", "logits")],
    "a hit below zero": with_run(hit=-1),
    "a hit below zero that adds up": lambda tensors, run: [
        with_run(hit=-1)(tensors, run), reshaped("chunks", lambda x: np.array([61]))(tensors, run)
    ],
    "a hit of the whole prompt": with_run(hit=60),
    "a hit in floats": with_run(hit=37.0),
    "a hit without end": with_run(hit=float("inf")),
    "a hit that is null": with_run(hit=None),
    "blocks of nothing": with_run(block_size=0),
    "blocks below nothing": with_run(block_size=-8),
    "blocks larger than the memory": with_run(block_size=10**12),
    "blocks that are true": with_run(block_size=True),
    "another arithmetic": with_run(arith="plain"),
    "an arithmetic that is a list": with_run(arith=["tile"]),
    "a model that is a number": with_run(model=5),
    "a key too many": with_run(colour="red"),
}  # fmt: skip


@pytest.fixture(scope="module")
def good_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "good"
    assert main(["prefill", *CASE, "--chunk", "7", "--save", str(path)]) == 0
    return path


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_saved_run_that_does_not_fit_together_is_refused_and_never_replayed(refused, good_run, tmp_path, spoilt):
    tensors, metadata = read(good_run)
    run = json.loads(metadata["run"])
    SPOILT[spoilt](tensors, run)
    write(tmp_path / "bad", tensors, {"run": json.dumps(run)})
    for pair in ((good_run, tmp_path / "bad"), (tmp_path / "bad", good_run)):
        line = refused("diff", *pair)
        assert "bad was not written by" in line


@pytest.mark.parametrize(
    "metadata",
    [{}, {"run": ""}, {"run": "{"}, {"run": "[]"}, {"run": "5"}, {"run": "null"}, {"run": "[" * 100_000},
     {"run": '{"hit": ' + "9" * 5000 + "}"}],
    ids=["none", "empty", "half", "list", "number", "null", "deep", "5,000 digits"],
)  # fmt: skip
def test_a_saved_run_without_a_record_of_the_run_is_refused(refused, good_run, tmp_path, metadata):
    write(tmp_path / "bad", read(good_run)[0], metadata)
    assert "bad was not written by" in refused("diff", good_run, tmp_path / "bad")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are a matter of Unix")
def test_diff_does_not_wait_for_a_pipe(refused, good_run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for pair in ((good_run, tmp_path / "pipe"), (tmp_path / "pipe", good_run)):
        assert "pipe: it is a device, a pipe or a socket" in refused("diff", *pair)


def test_files_that_are_no_saved_runs_are_refused(refused, good_run, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "half").write_bytes(good_run.read_bytes()[:-100])
    write(tmp_path / "weights", {"x": Tensor(np.ones(3, np.float32), "F32")}, {})
    for name in ("empty", "half", "weights", "missing", "."):
        assert str(tmp_path / name) in refused("diff", good_run, tmp_path / name)
