"""Small model folders with text: random weights in Hugging Face's form, and a tokenizer trained on a few words."""

import json

import numpy as np

from course_lib.weights.safetensors_file import Tensor, write

WORDS = "the cat sat on the mat, and the dog sat on the log. the end is near."


def byte_tokenizer(*, bos: bool = False):
    """Bytes and merges of WORDS, as in GPT-2, Llama 3, Qwen and SmolLM; "<s>" is 0 and "</s>" is 1."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def sentencepiece_tokenizer():
    """Words with a mark for the space in front, and tokens for bytes, as in Llama 2 and Mistral."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    words = sorted({f"\u2581{word}" for word in WORDS.split()}) + ["\u2581"]
    letters = sorted(set("".join(words)) - {"\u2581"})
    vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))])}
    vocabulary |= {token: i for i, token in enumerate([*letters, *words], len(vocabulary))}
    pairs = []
    for word in words:
        for stop in range(2, len(word) + 1):
            piece = word[:stop]
            vocabulary.setdefault(piece, len(vocabulary))
            pairs.append((word[: stop - 1], word[stop - 1]))
    tokenizer = Tokenizer(models.BPE(vocabulary, list(dict.fromkeys(pairs)), byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def write_folder(folder, tokenizer=None, *, seed: int = 0, **changes):
    """A Llama of two layers with random weights, and the tokenizer. `changes`: of config.json."""
    vocab = 300 if tokenizer is None else tokenizer.get_vocab_size() + 5  # some tokens beyond the tokenizer's
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256,
        "eos_token_id": 1, **changes,
    }  # fmt: skip
    shapes = {"model.embed_tokens": (vocab, 32), "model.norm": (32,), "lm_head": (vocab, 32)}
    for layer in range(2):
        shapes |= {
            f"model.layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm": (32,), "post_attention_layernorm": (32,), "self_attn.q_proj": (32, 32),
                "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32),
                "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48),
            }.items()
        }  # fmt: skip
    random, tensors = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        array = random.standard_normal(shape) / (2 * shape[-1] ** 0.25) + (len(shape) == 1)
        tensors[f"{name}.weight"] = Tensor(array.astype(np.float32), "F32")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write(folder / "model.safetensors", tensors, {"format": "pt"})
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder
