"""`python -m course_lib diff A B`: the first divergence of two saved prefills, and its likely cause."""

from collections.abc import Sequence
from pathlib import Path

from course_lib.cli import Parser, UserError
from course_lib.commands.idle_knobs import refuse_idle
from course_lib.commands.saved import SavedRun, load
from course_lib.diagnosis.faults import FAULTS, Scenario, replay
from course_lib.diagnosis.kv_diff import explain, first_divergence
from course_lib.weights import load_model, seeded_model


def main(argv: Sequence[str]) -> int:
    p = Parser(
        prog="python -m course_lib diff",
        description="Compare two runs saved by `prefill --save`: A is taken as right. Exit 0 if equal, 1 if not.",
        example="python -m course_lib diff one_pass.safetensors mine.safetensors",
    )
    p.add_argument("a", type=Path, metavar="A.safetensors")
    p.add_argument("b", type=Path, metavar="B.safetensors")
    p.add_argument("--model", type=Path, metavar="DIR", help="folder of the model, if it has moved since B was saved")
    args = p.parse_args(argv)
    a, b = load(args.a), load(args.b)
    _same_question(a, b)
    if args.model and b.model == "seeded":
        refuse_idle("--model", f"{args.b} comes from the seeded model, which needs no folder")
    try:
        difference = first_divergence(a.snapshot, b.snapshot)
    except ValueError as error:
        raise UserError(str(error)) from None
    if difference is None:
        print("equal: K and V of every layer, and the logits, bit for bit")
        return 0
    print(difference)
    if a.arith != b.arith:
        print(f"  A ran in {a.arith} arithmetic, B in {b.arith}: bits are only promised within one.")
    print("  pattern:", explain(difference, b.snapshot.dtype, b.sizes, b.hit, b.block_size))
    for line in _proof(b, args.model):
        print(" ", line)
    return 1


def _same_question(a: SavedRun, b: SavedRun) -> None:
    if a.model_sha256 != b.model_sha256:
        raise UserError("the two runs come from different models, so their KV cannot be compared.")
    if a.token_ids != b.token_ids:
        raise UserError(f"the two runs have different prompts ({len(a.token_ids)} and {len(b.token_ids)} tokens).")


def _proof(b: SavedRun, folder: Path | None) -> list[str]:
    """What replaying the known faults says, if the model of run B is at hand."""
    where = {"backend": b.backend, "arith": b.arith, "dtype": b.snapshot.dtype, "device": b.device}
    try:
        model = seeded_model(**where) if b.model == "seeded" else load_model(folder or Path(b.model), **where)
    except UserError as error:
        return [f"replay: not possible, {error}"]
    if model.sha256 != b.model_sha256:
        return ["replay: not possible, the model at hand is another one."]
    names = replay(Scenario(model, b.token_ids, b.sizes, b.hit, b.block_size), b.snapshot)
    if not names:
        return ["replay: no known fault leaves exactly this KV."]
    return [f"replay: exactly this KV is left by '{name}': {FAULTS[name].what}." for name in names]
