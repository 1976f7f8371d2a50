"""`python -m course_lib sweep`: one run per chunk size, what each gives and takes, and where the knee is."""

import io
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from course_lib.cli import Parser, UserError, file_to_write, positive, processes, write_whole
from course_lib.commands import simulation
from course_lib.cost.one_prompt import knee, sweep_point
from course_lib.cost.presets import preset_named

CHUNKS = (128, 256, 512, 1024, 1536, 2048, 2560, 3072, 4096, 6144, 8192)
FORMATS = (".png", ".svg", ".json")


def main(argv: Sequence[str]) -> int:
    p = Parser(
        prog="python -m course_lib sweep",
        description="Sweep the chunk size: waits of those who stream against throughput and TTFT of prompts. With one "
        "prompt, chunk is max_chunk, and the budget leaves room for the decodes. With a workload, chunk is the budget "
        "that decodes and prompts share (max_num_batched_tokens). All times are modelled.",
        example="python -m course_lib sweep --out sweep.svg\n"
        "  python -m course_lib sweep --rate 4 --preset 8b-h100 -j 2 --out sweep.png",
    )
    simulation.add_arguments(p)
    p.add_argument("--chunks", type=_chunks, default=CHUNKS, metavar="C[,C...]", help="default: 128 to 8192")
    p.add_argument("--out", type=_out, action="append", default=[], metavar="FILE", help="write .png, .svg or .json")
    p.add_argument("-j", type=processes, default=1, metavar="N", help="processes (default 1)")
    args = p.parse_args(argv)
    cost = preset_named(args.preset)
    target_us = args.target_ms * 1000
    at_once = min(args.j, len(args.chunks))
    if workload := simulation.is_workload(args):
        point = partial(_workload_point, args)
        most = args.max_num_seqs or simulation.WORKLOAD["max_num_seqs"]
        if min(args.chunks) < most:
            raise UserError(
                f"chunk {min(args.chunks)} is the budget of a step, and {most} requests may decode in one: give "
                f"chunks of at least {most}, or a smaller --max-num-seqs."
            )
        simulation.expect_workload(args, budget=min(args.chunks), runs=at_once)  # refuses before anything runs
    else:
        point = partial(_one_prompt_point, args)
        first = simulation.one_prompt(args, cost, "chunked", min(args.chunks), timelines=at_once)
    points, interrupted = _collect(point, args.chunks, args.j)
    if not points:
        raise UserError("interrupted before the first point was done.")
    if workload:
        met = [row["chunk"] for row in points if row["p99_itl_us"] <= target_us]
        found, rule = max(met, default=0), "the largest swept chunk whose P99 inter-token latency meets the target"
    else:
        try:
            found = knee(first, cost, target_us)
        except ValueError as error:
            raise UserError(str(error)) from None
        rule = "solved: the largest chunk with which no step of the prompt takes longer than the target"
    answer = {"preset": args.preset, "target_us": target_us, "points": points, "knee_chunk": found, "knee_rule": rule}
    answer |= {"interrupted": True} if interrupted else {}
    print(json.dumps(answer) if args.json else _text(answer))
    for path in args.out:  # after the answer is out, so that a full disk does not cost it
        write_whole(path, [_file(path.suffix.lower(), answer)])
    return 130 if interrupted else 0


def _chunks(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(part) for part in text.split(",")}))


def _out(text: str) -> Path:
    if Path(text).suffix.lower() not in FORMATS:
        raise UserError(f"--out {text[:60]}: the name must end in {', '.join(FORMATS)}.")
    if Path(text).suffix.lower() != ".json":
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise UserError(f'--out {text[:60]} needs matplotlib: pip install -e ".[lab]".') from None
    return file_to_write(text)


# --- points


def _one_prompt_point(args, chunk: int) -> dict:
    cost = preset_named(args.preset)
    return sweep_point(simulation.one_prompt(args, cost, "chunked", chunk), cost)


def _workload_point(args, chunk: int) -> dict:
    report = simulation.serve(args, preset_named(args.preset), budget=chunk)
    return {
        "chunk": chunk,
        "ttft_us": report.ttft.percentile(50),
        "p99_ttft_us": report.ttft.percentile(99),
        "worst_itl_us": report.itl.max,
        "p99_itl_us": report.itl.percentile(99),
        "prefill_tok_per_s": int(report.per_second(report.prompt_tokens - report.cached_tokens)),
        "goodput_req_per_s": round(report.goodput, 3),
        "attainment": round(report.attainment, 4),
    }


def _collect(point: Callable[[int], dict], chunks: Sequence[int], processes: int) -> tuple[list[dict], bool]:
    """The points in order of chunk, and whether Ctrl-C ended the sweep early; what is done by then is kept."""
    done: list[dict] = []
    try:
        for row in _run(point, chunks, processes):
            done.append(row)
            _progress(len(done), len(chunks))
    except KeyboardInterrupt:
        return sorted(done, key=lambda row: row["chunk"]), True
    return sorted(done, key=lambda row: row["chunk"]), False


def _run(point: Callable[[int], dict], chunks: Sequence[int], processes: int) -> Iterator[dict]:
    if processes == 1 or len(chunks) == 1:
        yield from map(point, chunks)
        return
    pool = ProcessPoolExecutor(min(processes, len(chunks)), get_context("spawn"), _leave_interrupts_to_the_parent)
    try:
        for future in as_completed([pool.submit(point, chunk) for chunk in chunks]):
            yield future.result()
    except BaseException:
        for process in list(pool._processes.values()):  # they compute points that are no longer wanted
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _progress(done: int, of: int) -> None:
    """A bar on a terminal; nothing in a pipe."""
    if sys.stderr.isatty():
        end = "\n" if done == of else ""
        print(f"\r[{'#' * (30 * done // of):30}] {done} of {of} chunk sizes", end=end, file=sys.stderr, flush=True)


# --- what is shown


def _text(answer: dict) -> str:
    lines = [
        f"Modelled, preset {answer['preset']}.",
        "",
        f"{'chunk':>7} {'TTFT, ms':>10} {'P99 ITL, ms':>12} {'max ITL, ms':>12} {'prefill tok/s':>14}",
    ]
    for row in answer["points"]:
        over = " over the target" if row["worst_itl_us"] > answer["target_us"] else ""
        lines.append(
            f"{row['chunk']:7,} {row['ttft_us'] / 1e3:10.1f} {row['p99_itl_us'] / 1e3:12.1f} "
            f"{row['worst_itl_us'] / 1e3:12.1f} {row['prefill_tok_per_s']:14,}{over}"
        )
    where = f"{answer['knee_chunk']:,}" if answer["knee_chunk"] else "none"
    lines += ["", f"knee for {answer['target_us'] // 1000} ms: {where} ({answer['knee_rule']})"]
    if answer.get("interrupted"):
        lines.append("interrupted: these are the chunk sizes that were done.")
    return "\n".join(lines)


def _file(suffix: str, answer: dict) -> bytes:
    """The answer as a .json, .png or .svg file."""
    if suffix == ".json":
        return (json.dumps(answer, indent=1) + "\n").encode()
    from matplotlib.figure import Figure

    from course_lib.widgets.trade import draw_trade

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    draw_trade(figure, answer)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=suffix[1:], dpi=150)
    return drawn.getvalue()
