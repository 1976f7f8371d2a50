"""A model folder is loaded right or refused in one line that names what came and what was wanted."""

import json
import shutil

import numpy as np
import pytest

from course_lib.__main__ import main
from course_lib.cli import UserError
from course_lib.engine import Engine
from course_lib.positions import Llama3Scaling
from course_lib.weights import load_model
from course_lib.weights.config_json import read_config
from course_lib.weights.huggingface import Checkpoint
from course_lib.weights.safetensors_file import Tensor, read, write

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
SHAPES = {"model.embed_tokens.weight": (48, 24), "model.norm.weight": (24,), "lm_head.weight": (48, 24)}
for layer in range(2):
    SHAPES |= {
        f"model.layers.{layer}.{name}.weight": shape
        for name, shape in {
            "input_layernorm": (24,), "post_attention_layernorm": (24,),
            "self_attn.q_proj": (32, 24), "self_attn.k_proj": (16, 24), "self_attn.v_proj": (16, 24),
            "self_attn.o_proj": (24, 32), "mlp.gate_proj": (40, 24), "mlp.up_proj": (40, 24), "mlp.down_proj": (24, 40),
        }.items()
    }  # fmt: skip


def tensors(seed=0):
    rng = np.random.default_rng(seed)
    return {name: Tensor(rng.standard_normal(shape).astype(np.float32), "F32") for name, shape in SHAPES.items()}


@pytest.fixture
def folder(tmp_path):
    """A right folder, to be spoilt."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_config(folder)
    write(folder / "model.safetensors", tensors(), {"format": "pt"})
    return folder


def write_config(folder, **changes):
    config = {name: value for name, value in (CONFIG | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))


def into_shards(folder, split=7):
    """model.safetensors as two shards with an index."""
    whole, _ = read(folder / "model.safetensors")
    names = sorted(whole)
    files = {name: f"model-0000{1 + (i >= split)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        write(folder / file, {name: whole[name] for name in names if files[name] == file}, {"format": "pt"})
    (folder / "model.safetensors").unlink()
    write_index(folder, {"metadata": {"total_size": 1}, "weight_map": files})
    return files


def write_index(folder, index):
    (folder / "model.safetensors.index.json").write_text(index if isinstance(index, str) else json.dumps(index))


def refusal(folder, capsys):
    """The one line with which the command refuses the folder."""
    code = main(["prefill", "--prompt-len", "5", "--chunk", "2", "--model", str(folder)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("course_lib prefill: ") and len(err.splitlines()) == 1 and len(err) < 1500
    with pytest.raises(UserError):
        load_model(folder)
    return err


# --- what is right is loaded


def test_a_right_folder_runs(folder, capsys):
    assert main(["prefill", "--prompt-len", "5", "--chunk", "2", "--model", str(folder)]) == 0
    assert "equal to one pass" in capsys.readouterr().out


def test_shards_hold_the_same_model_as_one_file(folder):
    whole = load_model(folder).sha256
    into_shards(folder)
    assert load_model(folder).sha256 == whole


def test_every_weight_and_every_number_of_the_configuration_counts_in_the_models_hash(folder):
    seen = {load_model(folder).sha256}
    for name in SHAPES:
        changed = tensors()
        changed[name].array.reshape(-1)[3] += 1
        write(folder / "model.safetensors", changed, {})
        seen.add(load_model(folder).sha256)
    write(folder / "model.safetensors", tensors(), {})
    changes = ({"rms_norm_eps": 1e-5}, {"rope_theta": 500.0}, {"rope_scaling": LLAMA3})
    for change in (*changes, *({"rope_scaling": LLAMA3 | {name: 3}} for name in LLAMA3 if name != "rope_type")):
        write_config(folder, **change)
        seen.add(load_model(folder).sha256)
    write_config(folder, tie_word_embeddings=True)
    write(folder / "model.safetensors", {n: t for n, t in tensors().items() if n != "lm_head.weight"}, {})
    seen.add(load_model(folder).sha256)
    assert len(seen) == 1 + len(SHAPES) + 3 + 4 + 1


def test_the_longest_request_that_a_configuration_names_is_no_part_of_the_models_hash(folder):
    before = load_model(folder)
    write_config(folder, max_position_embeddings=99)
    after = load_model(folder)
    assert after.sha256 == before.sha256 and after.max_model_len == 99 < before.max_model_len


QWEN2, QWEN3, MISTRAL = (
    {"architectures": [f"{name}ForCausalLM"], "model_type": name.lower()} for name in ("Qwen2", "Qwen3", "Mistral")
)
ALSO_RIGHT = {
    "no architectures, but a model type": ({"architectures": ...}, {}),
    "null for what has a default": ({"num_key_value_heads": 2, "attention_bias": None, "rope_scaling": None}, {}),
    "transformers 5": ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
                       {"rope_theta": 777.0}),
    "rope_parameters win": ({"rope_parameters": {"rope_theta": 777.0}}, {"rope_theta": 777.0}),
    "null in rope_parameters": ({"rope_theta": 500.0, "rope_parameters": {"rope_theta": None}}, {"rope_theta": 500.0}),
    "a base in whole numbers": ({"rope_theta": 500000}, {"rope_theta": 500000.0}),
    "no base": ({"rope_theta": ...}, {"rope_theta": 10000.0}),
    "no epsilon": ({"rms_norm_eps": ...}, {"rms_norm_eps": 1e-6}),
    "RoPE scaling of the default kind": ({"rope_scaling": {"type": "default"}}, {}),
    "all of head_dim is rotated": ({"partial_rotary_factor": 1.0}, {}),
    "no word on tying": ({"tie_word_embeddings": ...}, {"tie_word_embeddings": False}),
    "no head_dim": ({"head_dim": ..., "hidden_size": 32}, {"head_dim": 8}),
    "no kv heads": ({"num_key_value_heads": ...}, {"kv_heads": 4}),
    "Llama 3.1": ({"rope_scaling": LLAMA3}, {"rope_scaling": Llama3Scaling(8, 1, 4, 8192)}),
    "Llama 3.1 in the first spelling": (
        {"rope_scaling": {"type": "llama3"} | {n: v for n, v in LLAMA3.items() if n != "rope_type"}},
        {"rope_scaling": Llama3Scaling(8, 1, 4, 8192), "rope_theta": 10000.0},
    ),
    "Llama 3.1 in transformers 5": (
        {"rope_theta": ..., "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        {"rope_scaling": Llama3Scaling(8, 1, 4, 8192), "rope_theta": 5e5},
    ),
    "a longest request": ({"max_position_embeddings": 2048}, {"max_position_embeddings": 2048}),
    "no longest request": ({"max_position_embeddings": None}, {"max_position_embeddings": None}),
    "Qwen2": (QWEN2, {"qkv_bias": True, "qk_norm": False, "head_dim": 8}),
    "Qwen2 by its model type": ({"architectures": ..., "model_type": "qwen2"}, {"qkv_bias": True}),
    "Qwen2 without head_dim": (QWEN2 | {"head_dim": ..., "hidden_size": 32}, {"head_dim": 8}),
    "Qwen2 with a window that is off": (
        QWEN2 | {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0}, {"qkv_bias": True}
    ),
    "Qwen2 with a window in layers that it has not": (
        QWEN2 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, {"qkv_bias": True}
    ),
    "Qwen3": (QWEN3, {"qkv_bias": False, "qk_norm": True}),
    "Qwen3 without head_dim": (QWEN3 | {"head_dim": ...}, {"head_dim": 128}),
    "Mistral": (MISTRAL | {"sliding_window": None}, {"qkv_bias": False, "qk_norm": False, "kv_heads": 2}),
    "Mistral with a window as long as the longest request": (
        MISTRAL | {"sliding_window": 64, "max_position_embeddings": 64}, {"max_position_embeddings": 64}
    ),
    "Mistral with its default window and shorter requests": (
        MISTRAL | {"max_position_embeddings": 4096}, {"max_position_embeddings": 4096}
    ),
    "null is a kv head for each head in every family": (QWEN2 | {"num_key_value_heads": None}, {"kv_heads": 4}),
    "names that we do not know": ({"torch_dtype": "bfloat16", "bos_token_id": [1, 2], "pretraining_tp": 1}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", ALSO_RIGHT)
def test_a_configuration_written_otherwise_means_what_it_says(tmp_path, case):
    changes, wanted = ALSO_RIGHT[case]
    write_config(tmp_path, **changes)
    config = read_config(tmp_path)
    for name, value in wanted.items():
        assert getattr(config, name) == value
    assert (config.vocab_size, config.num_layers, config.q_heads) == (48, 2, 4)


# --- configurations that are refused

WRONG_CONFIGS = {
    "another architecture": ({"architectures": ["GemmaForCausalLM"]}, ["GemmaForCausalLM", "LlamaForCausalLM"]),
    "a model without a language head": ({"architectures": ["LlamaModel"]}, ["LlamaModel"]),
    "two architectures": ({"architectures": ["LlamaForCausalLM", "X"]}, ["'X'", "runs LlamaForCausalLM"]),
    "architectures as a text": ({"architectures": "LlamaForCausalLM"}, ["architecture LlamaForCausalLM"]),
    "no architecture at all": ({"architectures": ..., "model_type": ...}, ["none named", "LlamaForCausalLM"]),
    "another model type": ({"architectures": None, "model_type": "qwen2_moe"}, ["qwen2_moe", "Qwen3ForCausalLM"]),
    "scaling as transformers 4 wrote it": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["scaling 'linear'"]),
    "scaling of two kinds": ({"rope_scaling": LLAMA3 | {"type": "linear"}}, ["'linear'"]),
    "a factor below 1": ({"rope_scaling": LLAMA3 | {"factor": 0.5}}, ["factor=0.5", "factor >= 1"]),
    "frequency factors that are equal": ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4}}, ["low_freq_factor=4"]),
    "a frequency factor of zero": ({"rope_scaling": LLAMA3 | {"low_freq_factor": 0}}, ["low_freq_factor=0"]),
    "a frequency factor in words": ({"rope_scaling": LLAMA3 | {"high_freq_factor": "4"}}, ["high_freq_factor=4"]),
    "a factor that is not a number": ({"rope_scaling": LLAMA3 | {"factor": float("nan")}}, ["factor=nan"]),
    "an option that llama3 has not": ({"rope_scaling": LLAMA3 | {"beta_fast": 32}}, ["RoPE options ['beta_fast']"]),
    "no request at all": ({"max_position_embeddings": 0}, ["max_position_embeddings=0"]),
    "a longest request in words": ({"max_position_embeddings": "2048"}, ["max_position_embeddings=2048", "whole"]),
    "a longest request that is false": ({"max_position_embeddings": False}, ["max_position_embeddings=False"]),
    "a window shorter than a request": (
        MISTRAL | {"sliding_window": 63, "max_position_embeddings": 64},
        ["sliding window of 63 tokens", "64 here"],
    ),
    "Mistral's default window": (MISTRAL | {"max_position_embeddings": 4097}, ["window of 4096 tokens", "4097 here"]),
    "a window and no longest request": (MISTRAL | {"sliding_window": 10**6}, ["window of 1000000", "not given here"]),
    "a window of Qwen2": (
        QWEN2 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        ["window of 8 tokens"],
    ),
    "a window of Qwen3 by kind of layer": (
        QWEN3 | {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
        ["window of 4096 tokens"],
    ),
    "a window in words": (MISTRAL | {"sliding_window": "none", "max_position_embeddings": 9}, ["sliding_window=none"]),
    "a bias of Qwen3": (QWEN3 | {"attention_bias": True}, ["attention_bias=True"]),
    "scaling as transformers 5 writes it": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, ["'yarn'"]),
    "scaling beside default parameters": (
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        ["'dynamic'"],
    ),
    "a factor without a kind": ({"rope_scaling": {"factor": 2.0}}, ["RoPE options ['factor']"]),
    "parameters by kind of layer": ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ["full_attention"]),
    "scaling as a text": ({"rope_scaling": "linear"}, ["rope_scaling=linear"]),
    "scaling as a list": ({"rope_parameters": [1, 2]}, ["rope_parameters=[1, 2]"]),
    "a kind that is a list": ({"rope_scaling": {"type": ["linear"]}}, ["linear"]),
    "half of head_dim rotated": ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
    "none of head_dim rotated": ({"partial_rotary_factor": 0}, ["partial_rotary_factor"]),
    "a rotated part in transformers 5": ({"rope_parameters": {"partial_rotary_factor": 0.25}}, ["partial_rotary"]),
    "a rotated part that is a text": ({"partial_rotary_factor": "all"}, ["partial_rotary_factor"]),
    "a bias in attention": ({"attention_bias": True}, ["attention_bias=True", "attention_bias=False"]),
    "a bias in the MLP": ({"mlp_bias": True}, ["mlp_bias=True"]),
    "another activation": ({"hidden_act": "gelu"}, ["hidden_act=gelu", "hidden_act=silu"]),
    "quantised weights": ({"quantization_config": {"bits": 4}}, ["quantization_config", "None"]),
    "a base of zero": ({"rope_theta": 0}, ["rope_theta=0", "at least 1"]),
    "a base below zero": ({"rope_theta": -10000.0}, ["rope_theta=-10000"]),
    "a base that is not a number": ({"rope_theta": float("nan")}, ["rope_theta=nan"]),
    "a base without end": ({"rope_theta": float("inf")}, ["rope_theta=inf"]),
    "a base of 400 digits": ({"rope_theta": 10**400}, ["rope_theta=1000000", "wanted a number"]),
    "a base in words": ({"rope_theta": "1e4"}, ["rope_theta=1e4", "wanted a number"]),
    "an epsilon below zero": ({"rms_norm_eps": -1e-6}, ["rms_norm_eps=-1e-06"]),
    "an epsilon that is not a number": ({"rms_norm_eps": float("nan")}, ["rms_norm_eps=nan"]),
    "an epsilon that is true": ({"rms_norm_eps": True}, ["rms_norm_eps=True"]),
    "tying in words": ({"tie_word_embeddings": "false"}, ["tie_word_embeddings=false", "true or false"]),
    "tying as a number": ({"tie_word_embeddings": 1}, ["tie_word_embeddings=1"]),
    "heads that do not divide": ({"num_key_value_heads": 3}, ["q_heads=4 is not a multiple of kv_heads=3"]),
    "more kv heads than heads": ({"num_key_value_heads": 8}, ["kv_heads=8"]),
    "an odd head_dim": ({"head_dim": 7}, ["head_dim=7 is odd"]),
}
for name in sorted(LLAMA3.keys() - {"rope_type"}):
    without = {option: value for option, value in LLAMA3.items() if option != name}
    WRONG_CONFIGS[f"llama3 without {name}"] = ({"rope_scaling": without}, [name])
for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
    WRONG_CONFIGS[f"no {name}"] = ({name: ...}, [f"{name} is missing"])
for name in (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
):
    for value in (0, -1, 2.5, 8.0, "8", True, [8], 2**31, 10**30, float("inf"), float("nan")):
        WRONG_CONFIGS[f"{name}={value!r}"] = ({name: value}, [f"{name}={value}"[:40], "wanted a whole number"])
for name in ("vocab_size", "hidden_size", "num_attention_heads", "head_dim", "intermediate_size"):
    WRONG_CONFIGS[f"a {name} far larger than the file"] = ({name: 2**31 - 2}, ["has shape", "config.json asks for"])


@pytest.mark.parametrize("wrong", WRONG_CONFIGS)
def test_a_configuration_that_this_engine_cannot_run_is_refused_by_name(folder, capsys, wrong):
    changes, says = WRONG_CONFIGS[wrong]
    write_config(folder, **changes)
    line = refusal(folder, capsys)
    for words in says:
        assert words in line


@pytest.mark.parametrize("layers", [3, 10**9, 2**31 - 1])
def test_more_layers_than_the_file_holds_end_at_the_first_that_is_missing(folder, capsys, layers):
    write_config(folder, num_hidden_layers=layers)
    assert "no tensor model.layers.2.input_layernorm.weight" in refusal(folder, capsys)


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "not valid JSON"),
        ('{"vocab_size": 4', "not valid JSON"),
        ("[]", "holds a list, wanted an object"),
        ("null", "holds a NoneType"),
        ('"LlamaForCausalLM"', "holds a str"),
        ("[" * 100_000, "not valid JSON"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
    ],
    ids=["empty", "cut short", "list", "null", "text", "deep", "5,000 digits", "not UTF-8"],
)
def test_a_configuration_that_is_no_json_object_is_refused(folder, capsys, text, says):
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    line = refusal(folder, capsys)
    assert says in line and "config.json" in line


# --- folders


def test_a_folder_without_configuration_and_what_is_no_folder_are_refused(folder, tmp_path, capsys):
    assert "No such file" in refusal(tmp_path / "nowhere", capsys)
    assert "Is it a Hugging Face style model folder?" in refusal(folder / "model.safetensors", capsys)
    (folder / "config.json").unlink()
    assert "config.json" in refusal(folder, capsys)
    (folder / "config.json").mkdir()
    assert "cannot read" in refusal(folder, capsys)


def test_a_folder_without_weights_is_refused(folder, capsys):
    (folder / "model.safetensors").unlink()
    line = refusal(folder, capsys)
    assert "model.safetensors" in line and "No such file" in line


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_missing_tensor_is_named(folder, capsys, name):
    write(folder / "model.safetensors", {n: t for n, t in tensors().items() if n != name}, {})
    assert f"has no tensor {name}; it holds 20 others" in refusal(folder, capsys)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(folder, capsys, name):
    for change in (lambda x: x[:-1], lambda x: x.T if x.ndim == 2 and x.shape[0] != x.shape[1] else x[1:],
                   lambda x: x[None], lambda x: x.reshape(-1)[:0]):  # fmt: skip
        changed = tensors()
        changed[name] = Tensor(change(changed[name].array), "F32")
        write(folder / "model.safetensors", changed, {})
        line = refusal(folder, capsys)
        assert f"{name} has shape {changed[name].array.shape}, config.json asks for {SHAPES[name]}" in line


@pytest.mark.parametrize("dtype", ["F64", "I32", "BOOL", "U8"])
def test_a_dtype_that_is_no_weights_is_refused(folder, capsys, dtype):
    changed = tensors()
    codes = {"F64": np.float64, "I32": np.int32, "BOOL": bool, "U8": np.uint8}
    changed["model.norm.weight"] = Tensor(np.ones(24, codes[dtype]), dtype)
    write(folder / "model.safetensors", changed, {})
    assert f"model.norm.weight has dtype {dtype}; wanted F32, F16 or BF16" in refusal(folder, capsys)


def test_a_dtype_that_we_have_never_heard_of_is_refused(folder, capsys):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content.replace(b'"F32"', b'"Q99"', 1))
    assert "has dtype Q99" in refusal(folder, capsys)


ANNOUNCED_NOWHERE = {
    "biases": ({"model.layers.1.self_attn.k_proj.bias": (16,)}, {}),
    "a bias of the output": ({"model.layers.0.self_attn.o_proj.bias": (24,)}, {}),
    "a bias of the MLP": ({"model.layers.0.mlp.down_proj.bias": (24,)}, {}),
    "norms of heads": ({"model.layers.0.self_attn.q_norm.weight": (8,)}, {}),
    "a layer too many": ({"model.layers.2.input_layernorm.weight": (24,)}, {}),
    "a layer with a zero in front": ({"model.layers.01.input_layernorm.weight": (24,)}, {}),
    "a layer of 5,000 digits": ({f"model.layers.{'9' * 5000}.input_layernorm.weight": (24,)}, {}),
    "a bias of the head": ({"lm_head.bias": (48,)}, {}),
    "a name that we do not know": ({"visual.patch_embed.weight": (3, 3)}, {}),
}


@pytest.mark.parametrize("case", ANNOUNCED_NOWHERE)
def test_a_tensor_that_the_configuration_does_not_announce_is_refused_by_name(folder, capsys, case):
    shapes, config = ANNOUNCED_NOWHERE[case]
    write_config(folder, **config)
    more = {name: Tensor(np.zeros(shape, np.float32), "F32") for name, shape in shapes.items()}
    write(folder / "model.safetensors", tensors() | more, {})
    line = refusal(folder, capsys)
    assert all(name[:80] in line for name in shapes) and "no use" in line


def test_many_tensors_without_use_are_counted(folder, capsys):
    write_config(folder, num_hidden_layers=1)
    assert "model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj.weight" in (
        line := refusal(folder, capsys)
    )
    assert "and 6 more" in line


@pytest.mark.parametrize("family, missing", [(QWEN2, "self_attn.q_proj.bias"), (QWEN3, "self_attn.q_norm.weight")])
def test_what_a_family_has_beyond_llama_must_be_there(folder, capsys, family, missing):
    write_config(folder, **family)
    assert f"no tensor model.layers.0.{missing}" in refusal(folder, capsys)


def test_frequencies_that_old_checkpoints_hold_are_left_out(folder):
    before = load_model(folder).sha256
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": Tensor(np.ones(4, np.float32), "F32")}
    write(folder / "model.safetensors", tensors() | old, {})
    assert load_model(folder).sha256 == before


def test_a_tied_head_may_be_in_the_file_if_it_is_the_embedding(folder, capsys):
    write_config(folder, tie_word_embeddings=True)
    assert "lm_head.weight that differs from the embedding" in refusal(folder, capsys)
    same = tensors() | {"lm_head.weight": tensors()["model.embed_tokens.weight"]}
    write(folder / "model.safetensors", same, {})
    assert np.array_equal(load_model(folder).lm_head, same["lm_head.weight"].array.T)


# --- the longest request


@pytest.mark.parametrize("arith", ["tile", "exact"])
def test_a_prompt_beyond_max_position_embeddings_is_refused_and_one_of_that_length_runs(folder, capsys, arith):
    write_config(folder, max_position_embeddings=40)
    argv = ["prefill", "--chunk", "7", "--arith", arith, "--model", str(folder), "--prompt-len"]
    assert main([*argv, "40"]) == 0
    assert main([*argv, "41"]) == 2
    said = capsys.readouterr().err
    assert "a prompt of 41 tokens is too long: the model was made for 40 tokens (max_position_embeddings" in said


def test_the_engine_refuses_a_request_beyond_max_position_embeddings(folder):
    write_config(folder, max_position_embeddings=40)
    engine = Engine(load_model(folder), num_blocks=8)
    request = engine.add_request([1] * 36, max_tokens=5)  # the last token is drawn, and never computed
    with pytest.raises(ValueError, match=r"36 tokens and 6 more .* made for 40 tokens \(max_position_embeddings"):
        engine.add_request([1] * 36, max_tokens=6)
    engine.run()
    assert len(request.generated) == 5


def test_arithmetic_may_be_narrower_than_the_configuration(folder):
    write_config(folder, max_position_embeddings=131072)
    assert load_model(folder).max_model_len == 131072
    exact = load_model(folder, arith="exact")
    assert exact.max_model_len == 8322 and "in exact arithmetic, attends over 8322" in exact.why_no_longer


def test_tied_heads_need_no_lm_head_and_take_the_embedding(folder):
    write_config(folder, tie_word_embeddings=True)
    write(folder / "model.safetensors", {n: t for n, t in tensors().items() if n != "lm_head.weight"}, {})
    model = load_model(folder)
    assert np.array_equal(model.lm_head, tensors()["model.embed_tokens.weight"].array.T)


def test_half_precision_weights_become_the_float32_of_equal_value(folder):
    halves = {name: Tensor(t.array.astype(np.float16), "F16") for name, t in tensors().items()}
    write(folder / "model.safetensors", halves, {})
    model = load_model(folder)
    assert model.embedding.dtype == np.float32
    assert np.array_equal(model.embedding, halves["model.embed_tokens.weight"].array.astype(np.float32))


# --- shards


def test_a_missing_shard_is_named(folder, capsys):
    files = into_shards(folder)
    last = sorted(set(files.values()))[-1]
    (folder / last).unlink()
    assert last in refusal(folder, capsys)


def test_a_shard_cut_short_is_named(folder, capsys):
    files = into_shards(folder)
    last = sorted(set(files.values()))[-1]
    (folder / last).write_bytes((folder / last).read_bytes()[:-5])
    line = refusal(folder, capsys)
    assert last in line and "Was the download complete?" in line


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ".", ""])
def test_an_index_that_leaves_the_folder_is_refused(folder, tmp_path, capsys, name):
    shutil.copy(folder / "model.safetensors", tmp_path / "outside.safetensors")
    write_index(folder, {"weight_map": dict.fromkeys(SHAPES, name)})
    line = refusal(folder, capsys)
    assert "wanted files of the folder itself" in line or "cannot read" in line


@pytest.mark.parametrize(
    "index",
    [
        "",
        "[",
        "[" * 100_000,
        [],
        {},
        {"weight_map": {}},
        {"weight_map": []},
        {"weight_map": None},
        {"weight_map": "model.safetensors"},
        {"weight_map": {"model.norm.weight": 5}},
        {"weight_map": {"model.norm.weight": None}},
        {"weight_map": {"model.norm.weight": {"file": ["x"]}}},
        {"weight_map": {"model.norm.weight": "a\0b"}},
        {"weight_map": {"model.norm.weight": "x" * 300}},
    ],
    ids=lambda index: str(index)[:60],
)
def test_an_index_that_is_none_is_refused(folder, capsys, index):
    write_index(folder, index)
    refusal(folder, capsys)


def test_a_tensor_in_two_shards_is_refused(folder, capsys):
    files = into_shards(folder)
    first, second = sorted(set(files.values()))
    both = read(folder / first)[0] | {"lm_head.weight": tensors(seed=1)["lm_head.weight"]}
    both |= {"model.norm.weight": tensors(seed=1)["model.norm.weight"]}
    write(folder / first, both, {})
    line = refusal(folder, capsys)
    assert "is in another shard too" in line and second in line


def test_a_folder_is_read_only_where_its_index_says(folder):
    into_shards(folder)
    (folder / "stray.safetensors").write_bytes(b"not a model")
    assert set(Checkpoint(folder)._entries) == set(SHAPES)
    assert load_model(folder)
