"""`python -m course_lib prefill`: run a prompt in chunks and compare its KV with one pass, bit for bit."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from course_lib.arithmetic.exact import MAX_KEYS
from course_lib.cli import Parser, UserError, file_to_write, not_negative, positive
from course_lib.commands import saved, sizes
from course_lib.diagnosis.faults import FAULTS, Scenario
from course_lib.diagnosis.kv_diff import Divergence, first_divergence
from course_lib.positions import MAX_ANGLE
from course_lib.prefill import KVSnapshot, cut, one_pass, ragged, token_ids
from course_lib.sampling import sample
from course_lib.weights import load_model, seeded_model
from course_lib.weights.config_json import read_config
from course_lib.weights.tokenizer import Tokenizer


def parser() -> Parser:
    p = Parser(
        prog="python -m course_lib prefill",
        description="Prefill a prompt in chunks and compare K, V and logits with one pass. Exit 1 if any bit differs "
        "(+0 and -0 count as one value; NaN is refused).",
        example="python -m course_lib prefill --prompt-len 1003 --chunk 1,7,64,ragged --hit 496 --arith exact\n"
        '  python -m course_lib prefill SmolLM2-135M --text "The capital of France is"',
    )
    p.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", help="a Hugging Face style folder (default: the seeded model)"
    )
    p.add_argument("--model", dest="named", type=Path, metavar="DIR", help="the same as FOLDER")
    prompt = p.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt-len", type=positive, metavar="N", help="a prompt of N pseudo-random tokens")
    prompt.add_argument("--text", metavar="TEXT", help="a prompt for the tokenizer of FOLDER; prints the next token")
    p.add_argument(
        "--chunk", default="1,7,ragged", metavar="C[,C...]",
        help="chunk sizes, one run for each; a number or 'ragged' (default 1,7,ragged)",
    )  # fmt: skip
    p.add_argument(
        "--hit", type=not_negative, default=0, metavar="H", help="tokens attached from the prefix cache, 0 <= H < N"
    )
    p.add_argument(
        "--block-size", type=positive, default=16, metavar="B", help="slots in a block of the pool (default 16)"
    )
    p.add_argument(
        "--arith", choices=("tile", "exact"), default="tile", help="tile: fast; exact: the same bits everywhere"
    )
    p.add_argument("--backend", choices=("numpy", "torch"), default="numpy")
    p.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="NumPy has float32 only"
    )
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument(
        "--fault", choices=sorted(FAULTS), metavar="NAME", help=f"wire in a known fault: {'; '.join(FAULTS)}"
    )
    p.add_argument("--save", type=file_to_write, metavar="FILE", help="save the (last) run as safetensors, for `diff`")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p


def main(argv: Sequence[str]) -> int:
    args = parser().parse_intermixed_args(argv)  # or FOLDER could not stand behind the flags before Python 3.13
    chunks = _chunks(args.chunk)
    folder = _folder(args)
    tokenizer, ids = _read_text(args.text, folder)
    args.prompt_len = args.prompt_len or len(ids)
    _refuse_what_cannot_be(args)
    where = {"backend": args.backend, "arith": args.arith, "dtype": args.dtype, "device": args.device}
    model = load_model(folder, **where) if folder else seeded_model(**where)
    sizes.expect_prefill(
        tokens=args.prompt_len, hit=args.hit, chunks=chunks, block_size=args.block_size, config=model.config
    )
    ids = ids or token_ids(args.prompt_len, model.config.vocab_size)
    runs = []
    try:
        reference = one_pass(model, ids, block_size=args.block_size)
        _refuse_what_is_not_finite(reference, args.dtype)
        for chunk in chunks:
            tail = args.prompt_len - args.hit
            scenario = Scenario(
                model, ids, ragged(tail) if chunk == "ragged" else cut(tail, chunk), args.hit, args.block_size
            )
            run = scenario.run(FAULTS[args.fault] if args.fault else None)
            runs.append((chunk, first_divergence(reference, run)))
    except ValueError as error:  # what the arithmetic or the engine cannot do; nothing has been written
        raise UserError(str(error)) from None
    equal = all(divergence is None for _, divergence in runs)
    following = {}
    if tokenizer:
        token = sample(reference.values("logits"))
        following = {"next_token": {"id": token, "text": tokenizer.reader(ids)(token, True)}}
    if args.json:
        entries = [{"chunk": c, "equal": d is None, "first_divergence": d and _as_json(d)} for c, d in runs]
        print(json.dumps({"equal": equal, "runs": entries, "sha256": reference.sha256(), **following}, indent=1))
    else:
        _print(args, runs)
        if tokenizer:
            print(f"  next token {following['next_token']['id']}: {_printable(following['next_token']['text'])}")
    if args.save:  # after the answer is out, so that a full disk does not cost it
        saved.write(args.save, run, scenario, where, str(folder) if folder else "seeded")
    return 0 if equal else 1


def _folder(args) -> Path | None:
    """The model's folder; None for the seeded model."""
    if args.folder and args.named:
        raise UserError(f"two model folders, {args.folder} and --model {args.named}: name one.")
    return args.folder or args.named


def _read_text(text: str | None, folder: Path | None) -> tuple[Tokenizer | None, list[int]]:
    """The folder's tokenizer, and the token ids of the text; (None, []) without a text."""
    if text is None:
        return None, []
    if folder is None:
        raise UserError("--text needs a model folder with a tokenizer.json: the seeded model speaks no language.")
    tokenizer = Tokenizer(folder, read_config(folder).vocab_size)
    try:
        ids = tokenizer.encode(text)
    except ValueError as error:
        raise UserError(f"--text cannot be read: {error}") from None
    if not ids:
        raise UserError("--text is empty: at least one token is needed.")
    return tokenizer, ids


def _printable(text: str) -> str:
    """As a Python string; what the terminal's encoding lacks is written as its number."""
    encoding = sys.stdout.encoding or "ascii"
    return repr(text).encode(encoding, "backslashreplace").decode(encoding)


def _refuse_what_cannot_be(args) -> None:
    """UserError before anything is computed."""
    if args.hit >= args.prompt_len:
        raise UserError(
            f"--hit {args.hit} covers the whole prompt of {args.prompt_len}: at least one token must be computed."
        )
    if args.prompt_len > MAX_ANGLE:
        raise UserError(
            f"--prompt-len {args.prompt_len} is too long: RoPE's angles hold for {MAX_ANGLE:.0f} positions."
        )
    if args.arith == "exact" and args.prompt_len > MAX_KEYS:
        raise UserError(
            f"--prompt-len {args.prompt_len}: exact attention holds up to {MAX_KEYS} keys. Use --arith tile."
        )
    if args.block_size > saved.MAX_BLOCK_SIZE:
        raise UserError(
            f"--block-size {args.block_size} is too large: a block has at most {saved.MAX_BLOCK_SIZE} slots."
        )


def _refuse_what_is_not_finite(reference: KVSnapshot, dtype: str) -> None:
    """NaN equals NaN in every cut, so that `equal` would say nothing."""
    for name in ("k", "v", "logits"):
        if not np.isfinite(reference.values(name)).all():
            raise UserError(
                f"one pass leaves {name} that are not finite in {dtype}: check the weights, or the --dtype."
            )


def _chunks(text: str) -> list[int | str]:
    chunks: list[int | str] = []
    for part in text.split(","):
        if part.strip() == "ragged":
            chunks.append("ragged")
        elif re.fullmatch(r"0*[1-9][0-9]{0,99}", part.strip()):  # ASCII, and short enough for int()
            chunks.append(int(part))
        else:
            raise UserError(
                f"--chunk {text[:80]!r}: {part.strip()[:40]!r} is neither a whole number of at least 1 nor 'ragged'."
            )
    return chunks


def _as_json(d: Divergence) -> dict:
    return {"layer": d.layer, "tensor": d.tensor, "position": d.position, "ulps": d.ulps}


def _print(args, runs) -> None:
    print(
        f"{args.prompt_len} tokens, {args.hit} of them attached, {args.arith} arithmetic, "
        f"{args.backend} {args.dtype} on {args.device}"
    )
    for chunk, divergence in runs:
        print(f"  chunk {chunk!s:>7}: {'equal to one pass, bit for bit' if divergence is None else divergence}")
