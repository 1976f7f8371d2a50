"""What `simulate` and `sweep` share: their arguments, and what these stand for."""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from course_lib.cli import Parser, UserError, not_negative, positive
from course_lib.commands import sizes
from course_lib.commands.idle_knobs import expect_server_knobs, refuse_idle
from course_lib.cost.disaggregated import Transfer, simulate_disaggregated
from course_lib.cost.metrics import Report, Targets
from course_lib.cost.one_prompt import Setting
from course_lib.cost.presets import PRESETS
from course_lib.cost.simulator import ServerConfig, simulate
from course_lib.cost.work import StepCost, StepWork
from course_lib.cost.workload import Arrival, Lengths, Poisson, scaled
from course_lib.load.arrivals_csv import read_trace
from course_lib.schedule.profiles import PROFILES

ONE_PROMPT = {"prompt": Setting.prompt, "users": Setting.users, "hit": Setting.hit, "context": Setting.context}
WORKLOAD = {  # argument -> default; given with one prompt, they would mean nothing
    "csv": None, "rate": None, "requests": 1000, "prompts": "lognormal:1024,1.0,16384",
    "outputs": "lognormal:128,0.8,2048", "families": 0, "prefix_tokens": 0, "seed": 0, "speed": 1.0,
    "profile": "course", "replicas": 1, "disaggregated": None, "max_num_seqs": 128,
    "num_blocks": ServerConfig.num_blocks, "block_size": ServerConfig.block_size,
    "no_prefix_caching": False, "ttft_target_ms": 1000,
}  # fmt: skip
MADE = ("requests", "prompts", "outputs", "families", "prefix_tokens", "seed")  # what --csv says instead
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
    if "csv" in given and (idle := [name for name in MADE if name in given]):
        refuse_idle("--" + idle[0].replace("_", "-"), "--csv says what arrives")
    if "rate" in given and "speed" in given:
        refuse_idle("--speed", "it is for --csv, and --rate says how fast requests arrive")
    if {"disaggregated", "replicas"} <= given:
        refuse_idle("--replicas", "--disaggregated P:D says how many servers there are")
    return workload


def one_prompt(args: argparse.Namespace, cost: StepCost, mode: str, chunk: int, *, timelines: int = 1) -> Setting:
    """The setting of one long prompt. UserError when it is impossible, or too long to hold `timelines` times."""
    values = {name: default if (v := getattr(args, name)) is None else v for name, default in ONE_PROMPT.items()}
    try:
        setting = Setting(**values, mode=mode, chunk=chunk)
    except ValueError as error:
        raise UserError(str(error)) from None
    if args.context is not None and not setting.users:
        refuse_idle("--context", "with --users 0 nobody decodes")
    if args.context is not None and not _reads_context(cost):
        refuse_idle("--context", f"in --preset {args.preset} a decode takes the same time in any context")
    steps = -(-setting.tail // chunk) if mode == "chunked" else 1
    sizes.expect_one_prompt(
        steps=steps, users=setting.users, prompt=setting.prompt, context=setting.context, timelines=timelines
    )
    return setting


def _reads_context(cost: StepCost) -> bool:
    short, long = (cost.work_us(StepWork(decodes=1, decode_context=context)) for context in (1, 10**9))
    return short != long


def expect_workload(args: argparse.Namespace, *, budget: int, max_chunk: int = 0, chunked: bool = True,
                    runs: int = 1) -> None:  # fmt: skip
    """UserError for a workload that would take the machine, `runs` at the same time, or has knobs that do nothing."""
    value = _values(args)
    expect_server_knobs(
        profile=value["profile"], no_chunking=not chunked, no_prefix_caching=value["no_prefix_caching"],
        max_chunk=max_chunk, budget=budget, max_num_seqs=args.max_num_seqs, chunk_flag="--chunk",
    )  # fmt: skip
    try:
        servers = sum(_servers(value["disaggregated"])) if value["disaggregated"] else value["replicas"]
        if value["csv"] is None:
            made = _poisson(value)
            count, tokens = made.count, made.prefix_tokens + made.prompt.mean + made.output.mean
            longest, last_us = made.prefix_tokens + made.prompt.high + made.output.high, made.count / made.rate * 1e6
        else:
            rows = read_trace(value["csv"])
            count, lengths = len(rows), [row.prompt_tokens + row.output_tokens for row in rows]
            tokens, longest = sum(lengths) / count, max(lengths)
            scaled((), value["speed"])  # which refuses what is no speed
            last_us = rows[-1].arrival_us / value["speed"]
    except (ValueError, OverflowError) as error:
        raise UserError(str(error)) from None
    sizes.expect_workload(
        servers=servers * runs, blocks=value["num_blocks"], block_size=value["block_size"],
        max_num_seqs=value["max_num_seqs"], requests=count, tokens=tokens, longest=longest, last_us=last_us,
    )  # fmt: skip


def _values(args: argparse.Namespace) -> dict:
    return {name: default if (v := getattr(args, name)) is None else v for name, default in WORKLOAD.items()}


def serve(args: argparse.Namespace, cost, *, budget: int, max_chunk: int = 0, chunked: bool = True) -> Report:
    """Run the workload that the arguments describe. UserError when something about it is impossible."""
    expect_workload(args, budget=budget, max_chunk=max_chunk, chunked=chunked)
    value = _values(args)
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
        return _poisson(value)
    rows = read_trace(value["csv"])
    shared = [Arrival(*row[:3], row.prefix_id, row.prompt_tokens if row.prefix_id else 0) for row in rows]
    return scaled(shared, value["speed"])


def _poisson(value: dict) -> Poisson:
    return Poisson(
        rate=value["rate"], count=value["requests"], prompt=Lengths.parse(value["prompts"]),
        output=Lengths.parse(value["outputs"]), families=value["families"], prefix_tokens=value["prefix_tokens"],
        seed=value["seed"],
    )  # fmt: skip


def _servers(text: str) -> tuple[int, int]:
    prefill, _, decode = text.partition(":")
    if not all(re.fullmatch("[0-9]{1,9}", part) for part in (prefill, decode)):
        raise ValueError(f"--disaggregated {text[:40]!r}: wanted P:D, such as 1:1.")
    return int(prefill), int(decode)
