"""Loading a Hugging Face style folder: config.json with model.safetensors, single or sharded.

Tensors that the configuration does not ask for are refused by name, because the model would run without them and be
wrong.
"""

import re
from pathlib import Path

import numpy as np

from course_lib.arithmetic.arrays import bfloat16_to_float32
from course_lib.cli import UserError
from course_lib.model import Model
from course_lib.model_config import ModelConfig
from course_lib.weights import safetensors_file
from course_lib.weights.build import build, converter, expected_shapes
from course_lib.weights.config_json import read_config, read_json

# Our weight: the tensors of a Hugging Face checkpoint that it is made of, each stored as [columns, inner].
LAYER_TENSORS = {
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "qkv_bias": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),  # .bias of each
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
}
SHARED_TENSORS = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}


def load_model(
    folder: Path, *, backend: str = "numpy", arith: str = "tile", dtype: str = "float32", device: str = "cpu"
) -> Model:
    """The model in a Hugging Face style folder. Raises UserError, in one line, for one that cannot be run here."""
    convert = converter(backend, dtype, device)
    config = read_config(folder)
    return build(config, weight_reader(folder, config), convert, arith)


class Checkpoint:
    """The tensors of a folder by name, read one at a time. Raises UserError for what is missing or misshapen."""

    def __init__(self, folder: Path):
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        names = ["model.safetensors"]
        if index.exists():
            files = read_json(index, "It should list the shards of the model.").get("weight_map")
            if not isinstance(files, dict) or not files:
                raise UserError(f"{index} has no weight_map from tensors to files. Was the download complete?")
            names = sorted({str(name) for name in files.values()})
            if outside := [name for name in names if Path(name).name != name]:
                raise UserError(f"{index} names the file {outside[0][:80]!r}, wanted files of the folder itself.")
        self._entries = {}
        for name in names:
            header = safetensors_file.read_header(folder / name)
            header.pop("__metadata__", None)
            if twice := sorted(header.keys() & self._entries.keys()):
                raise UserError(f"{folder / name}: tensor {twice[0]} is in another shard too, wanted each tensor once.")
            self._entries.update({key: (folder / name, entry) for key, entry in header.items()})

    def get(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Tensor `name` as float32; `shape` is what the configuration asks for."""
        if name not in self._entries:
            raise UserError(
                f"{self._folder} has no tensor {name}; it holds {len(self._entries)} others. Is a shard missing?"
            )
        path, entry = self._entries[name]
        if tuple(entry["shape"]) != shape:
            raise UserError(f"{path}: {name} has shape {tuple(entry['shape'])}, config.json asks for {shape}.")
        array, dtype = safetensors_file.read_tensor(path, name, entry)
        if dtype not in ("F32", "F16", "BF16"):
            raise UserError(f"{path}: {name} has dtype {dtype}; wanted F32, F16 or BF16.")
        return bfloat16_to_float32(array) if dtype == "BF16" else array.astype(np.float32)

    def expect_only_used(self, c: ModelConfig) -> None:
        """UserError, with their names, for tensors that a model of this configuration does not use."""
        in_layer = {name for key in expected_shapes(c)["layer"] for name in _names(key)}

        def is_used(name: str) -> bool:
            place = re.fullmatch(r"model\.layers\.(0|[1-9]\d{0,8})\.(.+)", name)
            if place is None:
                return name in SHARED_TENSORS.values()
            return int(place[1]) < c.num_layers and place[2] in in_layer

        # checkpoints of 2023 hold the frequencies that config.json gives
        unused = sorted(
            name for name in self._entries if not is_used(name) and not name.endswith("rotary_emb.inv_freq")
        )
        if unused:
            names = ", ".join(name[:80] for name in unused[:3]) + (f" and {len(unused) - 3} more" * (len(unused) > 3))
            raise UserError(
                f"{self._folder} holds tensors for which its config.json has no use: {names}. Without them the model "
                "would run and be wrong. Does config.json belong to these weights?"
            )
        if c.tie_word_embeddings and SHARED_TENSORS["lm_head"] in self._entries:
            head, embedding = (
                self.get(SHARED_TENSORS[key], (c.vocab_size, c.hidden_size)) for key in ("lm_head", "embedding")
            )
            if not np.array_equal(head, embedding):
                raise UserError(
                    f"{self._folder} holds a lm_head.weight that differs from the embedding, although its config.json "
                    "says tie_word_embeddings. Which is right? Set it to false, or remove the tensor."
                )


def _names(key: str) -> list[str]:
    """Names, inside their layer, of the tensors that one weight of a layer is made of."""
    return [f"{name}.{'bias' if key.endswith('bias') else 'weight'}" for name in LAYER_TENSORS[key]]


def weight_reader(folder: Path, c: ModelConfig):
    """make(key, shape, layer) for weights.build: our fused [inner, columns] matrices out of a checkpoint."""
    checkpoint = Checkpoint(folder)
    checkpoint.expect_only_used(c)
    q, kv = c.q_heads * c.head_dim, c.kv_heads * c.head_dim
    widths = {"qkv": (q, kv, kv), "qkv_bias": (q, kv, kv), "gate_up": (c.intermediate_size, c.intermediate_size)}

    def make(key: str, shape: tuple[int, ...], layer: int | None) -> np.ndarray:
        if layer is None:
            transposed = key == "lm_head"
            array = checkpoint.get(SHARED_TENSORS[key], shape[::-1] if transposed else shape)
            return array.T if transposed else array
        parts = []
        for name, columns in zip(_names(key), widths.get(key, shape[-1:])):
            parts.append(checkpoint.get(f"model.layers.{layer}.{name}", (columns, *shape[:-1])))
        return np.concatenate(parts).T

    return make
