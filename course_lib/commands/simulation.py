"""What `simulate` and `sweep` share: their arguments, and what these stand for."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from course_lib.cli import Parser, UserError, not_negative, positive
from course_lib.cost.disaggregated import Transfer, simulate_disaggregated
from course_lib.cost.metrics import Report, Targets
from course_lib.cost.one_prompt import Setting
from course_lib.cost.presets import PRESETS
from course_lib.cost.simulator import ServerConfig, simulate
from course_lib.cost.workload import Arrival, Lengths, Poisson, scaled
from course_lib.load.arrivals_csv import read_trace
from course_lib.schedule.profiles import PROFILES

MOST_CHUNKS = 2_000_000  # of one prompt's timeline, decodes included: a minute, and half a GB of records
ONE_PROMPT = {"prompt": Setting.prompt, "users": Setting.users, "hit": Setting.hit, "context": Setting.context}
WORKLOAD = {  # argument -> default; given with one prompt, they would mean nothing
    "csv": None, "rate": None, "requests": 1000, "prompts": "lognormal:1024,1.0,16384",
    "outputs": "lognormal:128,0.8,2048", "families": 0, "prefix_tokens": 0, "seed": 0, "speed": 1.0,
    "profile": "course", "replicas": 1, "disaggregated": None, "max_num_seqs": 128,
    "num_blocks": ServerConfig.num_blocks, "block_size": ServerConfig.block_size,
    "no_prefix_caching": False, "ttft_target_ms": 1000,
}  # fmt: skip
# simulate alone has two more that belong to one of the two questions
ONLY_ONE_PROMPT, ONLY_WORKLOAD = {*ONE_PROMPT, "baseline"}, {*WORKLOAD, "max_num_batched_tokens"}


def add_arguments(p: Parser) -> None:
    """Every argument that both commands take. Defaults are None here: what was given can be told from what was not."""
    p.add_argument("--preset", default="reference", help=f"step cost: {', '.join(PRESETS)}")
    p.add_argument("--target-ms", type=positive, default=50, help="inter-token latency target (default 50)")
    p.add_argument("--json", action="store_true", help="print JSON")

    one = p.add_argument_group("one long prompt among streaming users (unless --rate or --csv is given)")
    one.add_argument("--prompt", type=positive, metavar="N", help="prompt tokens (8192)")
    one.add_argument("--users", type=not_negative, metavar="U", help="streaming users (24)")
    one.add_argument("--hit", type=not_negative, metavar="H", help="of the prompt, tokens in the prefix cache (0)")
    one.add_argument("--context", type=positive, metavar="N", help="tokens that each user's decode reads (1024)")

    many = p.add_argument_group("a workload")
    many.add_argument("--rate", type=float, metavar="R", help="requests per second, Poisson")
    many.add_argument("--requests", type=positive, metavar="N", help="how many (1000)")
    many.add_argument("--prompts", metavar="LENGTHS", help="1024, 100-2000 or lognormal:MEDIAN,SIGMA,MOST")
    many.add_argument("--outputs", metavar="LENGTHS", help="tokens of an answer, likewise")
    many.add_argument("--families", type=positive, metavar="F", help="requests fall into F families ...")
    many.add_argument("--prefix-tokens", type=positive, metavar="N", help="... whose prompts begin with N equal tokens")
    many.add_argument("--seed", type=not_negative, metavar="S")
    many.add_argument("--csv", type=Path, metavar="FILE", help="arrival_s,prompt_tokens,output_tokens[,prefix_id]")
    many.add_argument("--speed", type=float, metavar="X", help="play the CSV X times as fast")

    server = p.add_argument_group("the server of a workload")
    server.add_argument("--profile", choices=sorted(PROFILES), help="scheduler profile (course)")
    server.add_argument("--replicas", type=positive, metavar="N", help="equal servers, round robin (1)")
    server.add_argument("--disaggregated", metavar="P:D", help="P servers for prefill and D for decodes instead")
    server.add_argument("--max-num-seqs", type=positive, metavar="N", help="requests that run at once (128)")
    server.add_argument("--num-blocks", type=positive, metavar="N", help="blocks of the KV cache (32768)")
    server.add_argument("--block-size", type=positive, metavar="N", help="tokens in a block (16)")
    server.add_argument("--no-prefix-caching", action="store_const", const=True)
    server.add_argument("--ttft-target-ms", type=positive, metavar="T", help="for goodput (1000)")


def is_workload(args: argparse.Namespace) -> bool:
    """Whether a workload is asked for. UserError for arguments that belong to the other kind of question."""
    given = {name for name, value in vars(args).items() if value is not None}
    workload = bool({"rate", "csv"} & given)
    if misplaced := sorted(given & (ONLY_ONE_PROMPT if workload else ONLY_WORKLOAD)):
        flag = "--" + misplaced[0].replace("_", "-")
        belongs = "one prompt, not to --rate or --csv" if workload else "a workload: give --rate or --csv as well"
        raise UserError(f"{flag} belongs to {belongs}.")
    if {"rate", "csv"} <= given:
        raise UserError("--rate makes arrivals and --csv reads them: give one of them.")
    return workload


def one_prompt(args: argparse.Namespace, mode: str, chunk: int) -> Setting:
    """The setting of one long prompt. UserError when it is impossible, or too long to hold."""
    values = {name: default if (v := getattr(args, name)) is None else v for name, default in ONE_PROMPT.items()}
    try:
        setting = Setting(**values, mode=mode, chunk=chunk)
    except ValueError as error:
        raise UserError(str(error)) from None
    steps = -(-setting.tail // chunk) if mode == "chunked" else 1
    if (steps + 5) * (setting.users + 1) > MOST_CHUNKS or max(setting.prompt, setting.context) > 1 << 22:
        raise UserError(
            f"{steps} steps with {setting.users + 1} requests, prompt {setting.prompt}: too much for one timeline "
            f"(at most {MOST_CHUNKS} chunks, {1 << 22} tokens). Ask for larger chunks, fewer users or a shorter prompt."
        )
    return setting


def serve(args: argparse.Namespace, cost, *, budget: int, max_chunk: int = 0, chunked: bool = True) -> Report:
    """Run the workload that the arguments describe. UserError when something about it is impossible."""
    value = {name: default if (v := getattr(args, name)) is None else v for name, default in WORKLOAD.items()}
    try:
        config = ServerConfig(
            profile=value["profile"], num_blocks=value["num_blocks"], block_size=value["block_size"],
            max_num_batched_tokens=budget, max_chunk=max_chunk, max_num_seqs=value["max_num_seqs"],
            enable_prefix_caching=not value["no_prefix_caching"], enable_chunked_prefill=chunked,
        )  # fmt: skip
        targets = Targets(value["ttft_target_ms"] * 1000, args.target_ms * 1000)
        workload = _workload(value)
        if value["disaggregated"]:
            prefill, decode = _servers(value["disaggregated"])
            return simulate_disaggregated(
                workload, config, cost, transfer=Transfer(), prefill_servers=prefill, decode_servers=decode,
                targets=targets,
            )  # fmt: skip
        return simulate(workload, config, cost, replicas=value["replicas"], targets=targets)
    except ValueError as error:
        raise UserError(str(error)) from None


def _workload(value: dict) -> Iterable[Arrival]:
    if value["csv"] is None:
        return Poisson(
            rate=value["rate"], count=value["requests"], prompt=Lengths.parse(value["prompts"]),
            output=Lengths.parse(value["outputs"]), families=value["families"], prefix_tokens=value["prefix_tokens"],
            seed=value["seed"],
        )  # fmt: skip
    rows = read_trace(value["csv"])
    shared = [Arrival(*row[:3], row.prefix_id, row.prompt_tokens if row.prefix_id else 0) for row in rows]
    return scaled(shared, value["speed"])


def _servers(text: str) -> tuple[int, int]:
    prefill, _, decode = text.partition(":")
    if not (prefill.isdigit() and decode.isdigit()):
        raise ValueError(f"--disaggregated {text[:40]!r}: wanted P:D, such as 1:1.")
    return int(prefill), int(decode)
