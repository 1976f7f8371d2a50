"""`python -m course_lib simulate`: what chunked prefill does to every user's waits, on a clock instead of a model."""

import json
from collections.abc import Sequence

from course_lib.cli import Parser, positive
from course_lib.commands import simulation
from course_lib.cost.linear import Timeline
from course_lib.cost.metrics import Report
from course_lib.cost.one_prompt import Setting, run
from course_lib.cost.presets import preset_named
from course_lib.schedule.step_record import StepRecord

CHUNK = Setting.chunk
BUDGET, WHOLE = 2_048, 32_768  # tokens in a workload's step; unchunked, the longest prompt must fit into one
BAR = 60  # characters of the longest bar
MOST_BARS = 40


def main(argv: Sequence[str]) -> int:
    p = Parser(
        prog="python -m course_lib simulate",
        description="Serve on a clock, with the real scheduler and cache: one long prompt among streaming users, or a "
        "workload. All times are modelled.",
        example="python -m course_lib simulate --prompt 32768 --no-chunking\n"
        "  python -m course_lib simulate --rate 8 --requests 2000 --preset 8b-h100",
    )
    simulation.add_arguments(p)
    how = p.add_mutually_exclusive_group()
    how.add_argument("--chunk", type=positive, metavar="C", help="one prompt: chunk (1024); workload: cap (none)")
    how.add_argument("--no-chunking", action="store_true")
    p.add_argument("--baseline", choices=("mixed", "exclusive"),
                   help="unchunked, one prompt runs beside the decodes (mixed) or alone (exclusive)")  # fmt: skip
    p.add_argument("--max-num-batched-tokens", type=positive, metavar="N",
                   help=f"budget of a workload's step ({BUDGET}; without chunking {WHOLE})")  # fmt: skip
    args = p.parse_args(argv)
    cost = preset_named(args.preset)
    if simulation.is_workload(args):
        return _workload(args, cost)
    chunk, mode = args.chunk or CHUNK, args.baseline or "mixed"
    baseline = simulation.one_prompt(args, cost, mode, chunk, timelines=2)
    setting = baseline if args.no_chunking else simulation.one_prompt(args, cost, "chunked", chunk, timelines=2)
    timeline, steps = run(setting, cost)
    compared, _ = run(baseline, cost)
    target_us = args.target_ms * 1000
    answer = {
        "preset": args.preset,
        "setting": vars(setting),
        "target_us": target_us,
        "worst_stall_us": timeline.worst_stall_us,
        "ttft_us": timeline.ttft_us,
        "steps_over_target": timeline.steps_over_target(target_us),
        "decode_tok_per_s": timeline.decode_tok_per_s,
        "baseline": {
            "mode": mode,
            "worst_stall_us": compared.worst_stall_us,
            "ttft_us": compared.ttft_us,
        },
        "steps": [_row(begin, record, setting) for begin, record in steps],
    }
    print(json.dumps(answer) if args.json else _text(answer, setting, timeline))
    return 0


def _row(begin: int, record: StepRecord, setting: Setting) -> dict[str, int]:
    prompt = sum(stop - start for i, start, stop in record.chunks if i == setting.users + 1)
    return {
        "begin_us": begin,
        "duration_us": record.duration_us,
        "prefill_tokens": prompt,
        "decodes": record.num_tokens - prompt,
    }


def _text(answer: dict, setting: Setting, timeline: Timeline) -> str:
    how = {
        "chunked": f"in chunks of {setting.chunk:,}",
        "mixed": "whole, beside the decodes (mixed baseline)",
        "exclusive": "whole and alone (exclusive baseline)",
    }[setting.mode]
    hit = f", of which {setting.hit:,} are cached" if setting.hit else ""
    base, target = answer["baseline"], answer["target_us"] // 1000
    lines = [
        f"{setting.users} users stream; a prompt of {setting.prompt:,} tokens{hit} comes, {how}.",
        f"Modelled, preset {answer['preset']}.",
        "",
        f"  worst stall of a user  {timeline.worst_stall_us / 1e3:10.1f} ms",
        f"  TTFT of the prompt     {timeline.ttft_us / 1e3:10.1f} ms",
        f"  steps over {target:4} ms     {answer['steps_over_target']:8} of {len(timeline.step_us)}",
        f"  decode throughput      {timeline.decode_tok_per_s:8,} tok/s",
    ]
    if setting.mode == "chunked" and timeline.worst_stall_us:
        ratio = base["worst_stall_us"] / timeline.worst_stall_us
        lines.append(
            f"  unchunked ({base['mode']}): stall {base['worst_stall_us'] / 1e3:.1f} ms, {ratio:.2f} times as long; "
            f"TTFT {base['ttft_us'] / 1e3:.1f} ms"
        )
    longest = max(row["duration_us"] for row in answer["steps"])
    lines += ["", "  step      ms  # prompt  . decodes alone   ! over the target"]
    for number, row in enumerate(answer["steps"][:MOST_BARS]):
        mark = "!" if row["duration_us"] > answer["target_us"] else " "
        bar = ("#" if row["prefill_tokens"] else ".") * max(row["duration_us"] * BAR // longest, 1)
        lines.append(f"  {number:4} {row['duration_us'] / 1e3:7.1f} {mark}{bar}")
    if len(answer["steps"]) > MOST_BARS:
        lines.append(f"  ... and {len(answer['steps']) - MOST_BARS} more (--json has them all)")
    return "\n".join(lines)


def _workload(args, cost) -> int:
    budget = args.max_num_batched_tokens or (WHOLE if args.no_chunking else BUDGET)
    report = simulation.serve(args, cost, budget=budget, max_chunk=args.chunk or 0, chunked=not args.no_chunking)
    if args.json:
        print(json.dumps({"preset": args.preset, **report.as_dict()}))
    else:
        print(report_text(report, args.preset))
    return 0


def report_text(report: Report, preset: str) -> str:
    """A report, for people."""
    lines = [f"{report.num_finished:,} requests in {report.duration_us / 1e6:,.1f} s. Modelled, preset {preset}.", ""]
    lines.append(f"  {'':22}{'P50':>10}{'P90':>10}{'P99':>10}{'max':>10}")
    for name, histogram in (("TTFT", report.ttft), ("inter-token latency", report.itl), ("step", report.steps)):
        row = histogram.as_dict()
        cells = "".join(f"{row[key] / 1e3:10.1f}" for key in ("p50", "p90", "p99", "max"))
        lines.append(f"  {name + ', ms':22}{cells}")
    targets = report.targets
    lines += [
        "",
        f"  steps over {targets.itl_us // 1000} ms: {report.steps_over_target:,} of {report.steps.count:,}",
        f"  goodput: {report.goodput:.2f} requests/s ({report.attainment:.1%} have TTFT <= {targets.ttft_us // 1000} "
        f"ms and every gap <= {targets.itl_us // 1000} ms)",
        f"  prefill {report.per_second(report.prompt_tokens - report.cached_tokens):,.0f} tok/s, "
        f"decode {report.per_second(report.output_tokens):,.0f} tok/s, "
        f"{report.hit_rate:.1%} of prompt tokens cached, {report.num_preemptions:,} preemptions",
    ]
    if report.num_refused:
        lines.append(f"  refused: {report.num_refused:,} that could never run, such as: {report.why_refused}")
    if report.num_starved:
        lines.append(f"  starved: {report.num_starved:,} for whom no step could do anything any more")
    return "\n".join(lines)
