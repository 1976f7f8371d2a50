"""Logits, keys and values against Hugging Face's models on the same weights. Closeness only: its kernels are others.

transformers computes the RoPE table in float32, we in float64: at position 200 its angles are up to
200 * 2**-24 off, which is part of the tolerance.
"""

import importlib.util
import inspect
import json
import shutil

import numpy as np
import pytest
from libraries import LIBRARIES

from course_lib.diagnosis.faults import FAULTS, Scenario
from course_lib.prefill import cut, one_pass, prefill, ragged
from course_lib.weights import load_model

if missing := [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]:
    pytest.skip(f"{' and '.join(missing)} not installed", allow_module_level=True)

VOCAB = 96
BASE = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
# within the prompts below some pairs are slowed down, some are not, and some are between
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
KINDS = {
    "one kv head for all": {"num_key_value_heads": 1},
    "two kv heads, head_dim not hidden / heads": {"head_dim": 20, "rope_theta": 500000.0},
    "a kv head for each head": {"num_key_value_heads": 4, "head_dim": 8, "rope_theta": 100.0},
    "tied head": {"tie_word_embeddings": True, "head_dim": 16},
    "three query heads in a group": {"num_attention_heads": 6, "hidden_size": 36, "head_dim": 6, "rms_norm_eps": 1e-3},
    "Llama 3.1": {"head_dim": 16, "rope_theta": 500000.0, "rope": LLAMA3},
    "Llama 3.2": {"num_key_value_heads": 1, "tie_word_embeddings": True, "rope": LLAMA3 | {"factor": 32.0}},
    "Qwen2": {"family": "Qwen2", "head_dim": ..., "rope_theta": 1e6},
    "Qwen2 tied, a kv head for each head": {
        "family": "Qwen2", "head_dim": ..., "num_key_value_heads": 4, "tie_word_embeddings": True,
    },
    "Qwen3": {"family": "Qwen3", "head_dim": 20, "rope_theta": 1e6},
    "Qwen3 tied, one kv head": {
        "family": "Qwen3", "head_dim": 12, "num_key_value_heads": 1, "tie_word_embeddings": True, "rms_norm_eps": 1e-3,
    },
    "Mistral": {"family": "Mistral", "head_dim": None, "sliding_window": None, "rope_theta": 1e6},
    "Mistral with a window that never matters": {
        "family": "Mistral", "head_dim": 20, "sliding_window": 256, "max_position_embeddings": 256,
    },
}  # fmt: skip
SAVED = ["whole", "sharded", "bfloat16", "float16"]
LENGTHS = (1, 2, 33, 200)


def close(arith: str, dtype: str = "float32") -> float:
    """Largest difference allowed, relative to the largest number of the oracle's array."""
    return {"bfloat16": 6e-2, "float16": 2e-2}.get(dtype) or {"exact": 1e-3}.get(arith, 4e-5)


class Oracle:
    """A random Hugging Face model in float32, and what it leaves for a prompt."""

    def __init__(self, kind: str, saved: str, folder):
        import torch
        import transformers
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        sizes = {name: value for name, value in (BASE | KINDS[kind]).items() if value is not ...}
        family = sizes.pop("family", "Llama")
        rope = {"rope_type": "default", "rope_theta": sizes.pop("rope_theta", 10000.0)} | sizes.pop("rope", {})
        config = getattr(transformers, f"{family}Config")(
            vocab_size=VOCAB, intermediate_size=72, num_hidden_layers=3, rope_parameters=rope, **sizes
        )  # fmt: skip
        kind_of_model = getattr(transformers, f"{family}ForCausalLM")
        model = kind_of_model(config)
        random = torch.Generator().manual_seed(sum(map(ord, kind)))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                noise = torch.randn(weight.shape, generator=random)
                if weight.ndim == 1:
                    weight.copy_(1 + noise / 4)
                else:  # sharp attention, or a wrong position or mask would hardly be seen
                    sharp = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
                    weight.copy_(noise * sharp / weight.shape[1] ** 0.5)
        if saved in ("bfloat16", "float16"):
            model = model.to(getattr(torch, saved))
        model.save_pretrained(folder, max_shard_size="20KB" if saved == "sharded" else "1GB")
        # read back: `to` has rounded the RoPE frequencies too, which a loaded model does not
        model = kind_of_model.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.folder, self._model, self._left = folder, model.eval(), {}

    def prompt(self, length: int) -> list[int]:
        return np.random.default_rng(length).integers(0, VOCAB, length).tolist()

    def left_by(self, length: int) -> dict[str, np.ndarray]:
        """k, v [layers, tokens, kv_heads, head_dim] out of transformers' cache, logits [vocab] of the last token."""
        if length not in self._left:
            import torch
            from transformers import DynamicCache

            cache = DynamicCache()
            # transformers 5.40 knows the argument by its new name alone
            parameters = inspect.signature(self._model.forward).parameters
            given = {"cache" if "cache" in parameters else "past_key_values": cache}
            with torch.no_grad():
                out = self._model(torch.tensor([self.prompt(length)]), use_cache=True, **given)
            k, v = ([getattr(layer, name)[0] for layer in cache.layers] for name in ("keys", "values"))
            stacked = {name: torch.stack(parts).transpose(1, 2).numpy() for name, parts in (("k", k), ("v", v))}
            self._left[length] = {**stacked, "logits": out.logits[0, -1].numpy()}
        return self._left[length]

    def distance(self, snapshot, length: int) -> float:
        """Largest difference anywhere, relative to the largest number of its array."""
        distances = []
        for name, true in self.left_by(length).items():
            ours = snapshot.values(name)
            assert ours.shape == true.shape
            distances.append(np.abs(ours - true).max() / np.abs(true).max())
        return max(distances)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """oracle(kind, saved): made once each."""
    made = {}

    def get(kind, saved="whole"):
        if (kind, saved) not in made:
            made[kind, saved] = Oracle(kind, saved, tmp_path_factory.mktemp("model"))
        return made[kind, saved]

    return get


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("arith", ["plain", "tile", "exact"])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_values_and_logits_are_transformers_in_one_pass_and_in_chunks(oracle, kind, arith, library):
    hf = oracle(kind)
    model = load_model(hf.folder, backend=library, arith=arith)
    for length in LENGTHS:
        ids = hf.prompt(length)
        runs = [one_pass(model, ids)]
        if length > 1:
            runs.append(prefill(model, ids, ragged(length - length // 3), hit=length // 3, block_size=5))
        for run in runs:
            assert hf.distance(run, length) < close(arith)


@pytest.mark.parametrize("arith", ["plain", "tile", "exact"])
@pytest.mark.parametrize("saved", SAVED)
def test_a_checkpoint_means_the_same_in_shards_and_in_16_bits(oracle, saved, arith):
    hf = oracle("two kv heads, head_dim not hidden / heads", saved)
    assert len(list(hf.folder.glob("*.safetensors"))) == 1 or saved == "sharded"
    assert (hf.folder / "model.safetensors.index.json").exists() == (saved == "sharded")
    model = load_model(hf.folder, backend="torch", arith=arith)
    assert hf.distance(prefill(model, hf.prompt(50), cut(50, 7)), 50) < close(arith)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("arith", ["plain", "tile", "exact"])
def test_computing_in_16_bits_stays_near_transformers_float32(oracle, arith, dtype):
    hf = oracle("tied head", dtype)
    model = load_model(hf.folder, backend="torch", arith=arith, dtype=dtype)
    for length in (1, 60):
        sizes = cut(length, 7)
        assert hf.distance(prefill(model, hf.prompt(length), sizes), length) < close(arith, dtype)


@pytest.mark.parametrize(
    "name", ["chunk-relative positions", "positions from 1", "mask hides the last cached key", "mask one ahead"]
)
def test_the_oracle_tells_a_fault_from_rounding(oracle, name):
    hf = oracle("two kv heads, head_dim not hidden / heads")
    model = load_model(hf.folder, backend="torch", arith="tile")
    run = Scenario(model, hf.prompt(50), [10, 40]).run(FAULTS[name])
    assert hf.distance(run, 50) > 100 * close("tile")


def rewritten(hf, folder, change):
    """A copy of the model's folder, after change(config.json)."""
    shutil.copytree(hf.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_oracle_tells_another_base_of_the_frequencies(oracle, tmp_path):
    hf = oracle("two kv heads, head_dim not hidden / heads")
    folder = rewritten(hf, tmp_path / "model", lambda config: config["rope_parameters"].update(rope_theta=10000.0))
    assert hf.distance(one_pass(load_model(folder), hf.prompt(50)), 50) > 100 * close("tile")


@pytest.mark.parametrize(
    "change", [{"factor": 4.0}, {"low_freq_factor": 2.0}, {"original_max_position_embeddings": 64}]
)
def test_the_oracle_tells_another_scaling_of_the_frequencies(oracle, tmp_path, change):
    hf = oracle("Llama 3.1")
    folder = rewritten(hf, tmp_path / "model", lambda config: config["rope_parameters"].update(change))
    assert hf.distance(one_pass(load_model(folder), hf.prompt(200)), 200) > 100 * close("tile")


@pytest.mark.parametrize("kind", ["Llama 3.1", "Qwen2", "Qwen3", "Mistral"])
def test_a_configuration_in_the_words_of_transformers_4_is_the_same_model(oracle, tmp_path, kind):
    def as_in_4(config):
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
        for name in ("layer_types", "dtype"):
            config.pop(name, None)

    hf = oracle(kind)
    assert load_model(rewritten(hf, tmp_path / "model", as_in_4)).sha256 == load_model(hf.folder).sha256


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("arith", ["tile", "exact"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "family" in KINDS[kind] or "rope" in KINDS[kind]])
def test_chunks_leave_the_bits_of_one_pass_in_every_family(oracle, kind, arith, library):
    hf = oracle(kind)
    model, ids = load_model(hf.folder, backend=library, arith=arith), hf.prompt(75)
    whole = one_pass(model, ids)
    for sizes, hit in ((cut(75, 1), 0), (cut(75, 32), 0), ([30, 1, 7, 37], 0), ([2, 33], 40)):
        beside = [hf.prompt(100)] if len(sizes) < 75 else []
        assert prefill(model, ids, sizes, hit=hit, block_size=5, beside=beside).equals(whole), (sizes, hit)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("arith", ["tile", "exact"])
@pytest.mark.parametrize("kind", ["Llama 3.2", "Qwen2", "Qwen3"])
def test_in_16_bits_every_family_stays_near_and_keeps_its_bits_in_chunks(oracle, kind, arith, dtype):
    hf = oracle(kind)
    model, ids = load_model(hf.folder, backend="torch", arith=arith, dtype=dtype), hf.prompt(60)
    whole = one_pass(model, ids)
    assert hf.distance(whole, 60) < close(arith, dtype)
    assert prefill(model, ids, [1, 30, 9], hit=20, block_size=5).equals(whole)


@pytest.mark.parametrize("saved", ["sharded", "bfloat16"])
@pytest.mark.parametrize("kind", ["Llama 3.2", "Qwen2", "Qwen3"])
def test_every_family_is_read_from_shards_and_from_16_bits(oracle, kind, saved):
    hf = oracle(kind, saved)
    assert hf.distance(one_pass(load_model(hf.folder), hf.prompt(50)), 50) < close("tile")
