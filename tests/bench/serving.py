"""The stall on a real server and its price, measured: prompts whole, and in chunks; a fitted step cost.

python3 course.py bench serving [--prompt N] [--chunk C] [--users U] [--backend torch] [--json]. Our server runs in one
process, our load generator in another. Each mode is run --rounds times in turn; reported are the round with
the median of the worst gaps, and the range of all rounds. Steps are fitted on one half of the rounds and judged on the
other. Nothing here is asserted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from course_lib.cost.fit import fit_cost
from course_lib.cost.one_prompt import Setting, run
from course_lib.cost.work import StepWork, work_of

AIM_RATIO, AIM_ERROR = 10, 0.15
WARM = 2  # steps of a server that are left out of the fit: the first ones allocate memory


class ServerProcess:
    """`python -m course_lib serve`, started."""

    def __init__(self, *flags: str):
        command = [sys.executable, "-m", "course_lib", "serve", "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        self.url = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait()


def measure(args, chunk: int, folder: Path) -> tuple[dict, list[dict]]:
    """One run of the load generator against a fresh server: its JSON, and the server's steps."""
    trace, found = folder / "trace.jsonl", folder / "load.json"
    how = ["--max-chunk", str(chunk)] if chunk else ["--no-chunking"]
    blocks = (args.prompt + args.users * 512) // 16 + 64
    flags = ["--seeded", args.model, "--backend", args.backend, "--num-blocks", str(blocks), "--trace", str(trace)]
    flags += ["--max-num-batched-tokens", str(chunk + args.users)] if chunk else []
    with ServerProcess(*how, *flags) as server:
        load = ["load", server.url, "--users", str(args.users), "--prompt-tokens", str(args.prompt), "--token-ids"]
        subprocess.run(
            [sys.executable, "-m", "course_lib", *load, "--tokens", "400", "--ignore-eos", "--json", str(found)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return json.loads(found.read_text()), [json.loads(line) for line in trace.read_text().splitlines()]


def samples(steps: list[dict]) -> list[tuple[StepWork, int]]:
    """(work, measured us) of each step. A chunk is a decode once its request has got a token."""
    streaming, rows = set(), []
    for step in steps:
        prefills = [(start, stop) for i, start, stop in step["chunks"] if i not in streaming]
        decodes = [stop for i, start, stop in step["chunks"] if i in streaming]
        streaming |= {i for i, _ in step["sampled"]}
        if step["chunks"]:
            rows.append((work_of(prefills, decodes), step["duration_us"]))
    return rows[WARM:]


def worst_gap_us(found: dict) -> float:
    """The longest gap of a streaming user while the prompt was prefilled, from a load's JSON."""
    return found["itl_us"]["during_prefill"]["max"]


def stall(args) -> dict:
    rounds: dict[int, list] = {0: [], args.chunk: []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for chunk in rounds:
                rounds[chunk].append(measure(args, chunk, Path(folder)))
    seen = {}
    for chunk, runs in rounds.items():
        by_gap = sorted((found for found, _ in runs), key=worst_gap_us)
        median = by_gap[len(by_gap) // 2]
        prompt = next(r for r in median["requests"] if r["role"] == "prompt")
        seen[chunk] = {
            "worst_gap_us": worst_gap_us(median), "worst_gap_range_us": [worst_gap_us(by_gap[i]) for i in (0, -1)],
            "p99_us": median["itl_us"]["all"]["p99"], "otherwise_p50_us": median["itl_us"]["otherwise"]["p50"],
            "ttft_us": prompt["ttft_us"],
        }  # fmt: skip
    half = max(args.rounds // 2, 1)
    known = [row for runs in rounds.values() for _, steps in runs[:half] for row in samples(steps)]
    fresh = [row for runs in rounds.values() for _, steps in runs[half:] or runs for row in samples(steps)]
    fit = fit_cost(known)
    errors = sorted(abs(fit.cost.work_us(work) - us) / us for work, us in fresh)
    modelled = {}
    for chunk in rounds:
        setting = Setting(
            prompt=args.prompt, users=args.users, chunk=chunk or args.prompt, context=64,
            mode="chunked" if chunk else "mixed",
        )  # fmt: skip
        timeline, _ = run(setting, fit.cost)
        modelled[chunk] = {"worst_gap_us": timeline.worst_stall_us, "ttft_us": timeline.ttft_us}
    return {
        "measured": {"whole": seen[0], "chunked": seen[args.chunk]},
        "modelled": {"whole": modelled[0], "chunked": modelled[args.chunk]},
        "ratio": seen[0]["worst_gap_us"] / seen[args.chunk]["worst_gap_us"],
        "fit": str(fit),
        "steps_judged": len(errors),
        "error_median": errors[len(errors) // 2],
        "error_p90": errors[len(errors) * 9 // 10],
        "share_within_aim": sum(error <= AIM_ERROR for error in errors) / len(errors),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="small")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    answer = {"setting": vars(args), **stall(args)}
    if args.json:
        print(json.dumps(answer))
        return 0
    print(f"{args.users} users, a prompt of {args.prompt} tokens, model {args.model}, {args.backend}; ms")
    for kind in ("measured", "modelled"):
        for mode, row in answer[kind].items():
            rest = ""
            if kind == "measured":
                low, high = (us / 1e3 for us in row["worst_gap_range_us"])
                otherwise = row["otherwise_p50_us"] / 1e3
                rest = f"  otherwise {otherwise:6.1f}  ({args.rounds} rounds: {low:.0f} to {high:.0f})"
            gap, ttft = row["worst_gap_us"] / 1e3, row["ttft_us"] / 1e3
            print(f"  {kind:9} {mode:8} worst gap {gap:8.1f}  TTFT {ttft:8.1f}{rest}")
    print(f"  worst gap, whole : chunked = {answer['ratio']:.1f} (aim {AIM_RATIO})")
    print(
        f"  {answer['steps_judged']} measured steps against the fit: error median {answer['error_median']:.1%}, P90 "
        f"{answer['error_p90']:.1%}; {answer['share_within_aim']:.1%} within {AIM_ERROR:.0%}"
    )
    print("  fit: " + "\n       ".join(answer["fit"].splitlines()[:9]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
