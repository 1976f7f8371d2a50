"""The whole course in one run: the same bits in any cut, then what the cut does to the users who wait.

Needs NumPy alone. Part 1 runs a small model and is measured; parts 2 to 4 are modelled time, in integer
microseconds: the same on every machine.
"""

import json
from collections.abc import Iterator, Sequence

import numpy as np

from course_lib.cli import Parser
from course_lib.cost.linear import PRESETS, chunked, exclusive_baseline, knee_chunk, mixed_baseline, sweep
from course_lib.cost.metrics import Report
from course_lib.cost.simulator import ServerConfig, SimServer, streaming_user
from course_lib.cost.workload import Arrival
from course_lib.diagnosis.kv_diff import first_divergence
from course_lib.model import Model
from course_lib.prefill import cut, one_pass, prefill, ragged
from course_lib.weights import seeded_model

SHORT, LONG, HIT = 70, 1_100, 496  # tokens
COST, USERS, PROMPT, CHUNK, TARGET_US = PRESETS["reference"], 24, 8_192, 1_024, 50_000
SWEEP = [128, 256, 512, 1_024, 2_048, 4_096, 8_192]
# Prompts that come while the users stream: (arrival in us, tokens).
ARRIVALS = [
    (50_000, 6_000), (180_000, 900), (350_000, 8_192), (380_000, 2_500), (700_000, 4_096), (900_000, 300),
    (1_000_000, 7_000), (1_300_000, 1_500), (1_500_000, 5_000), (1_520_000, 5_000), (1_900_000, 8_000),
    (2_200_000, 3_000),
]  # fmt: skip


# ---- 1. bits


def prompt(model: Model, tokens: int) -> list[int]:
    """Pseudo-random token ids, the same on every machine."""
    words = np.random.PCG64(tokens).random_raw(tokens)
    return (words % np.uint64(model.config.vocab_size)).astype(int).tolist()


def bit_identity(model: Model) -> Iterator[dict]:
    """Each cut of a prompt against one pass: K and V of all layers and the last logits, bit for bit."""
    short, long = prompt(model, SHORT), prompt(model, LONG)
    whole = one_pass(model, short)
    for size in range(1, 65):
        yield {"chunk": size, "prompt_len": SHORT, "equal": prefill(model, short, cut(SHORT, size)).equals(whole)}
    whole = one_pass(model, long)
    for size in (1, 7, 64, 100, 1_024, "ragged"):
        sizes = ragged(LONG) if size == "ragged" else cut(LONG, size)
        yield {"chunk": size, "prompt_len": LONG, "equal": prefill(model, long, sizes).equals(whole)}
    beside = [prompt(model, 40), prompt(model, 333), prompt(model, 90)]  # each decodes one token in every step
    tail = prefill(model, long, cut(LONG - HIT, 100), hit=HIT, beside=beside)
    yield {"chunk": 100, "prompt_len": LONG, "hit": HIT, "decodes_beside": 3, "equal": tail.equals(whole)}


def control(model: Model) -> dict:
    """A comparison that can only say yes proves nothing: positions counted from each chunk's start must be seen."""
    ids = prompt(model, SHORT)
    wrong = prefill(model, ids, cut(SHORT, 32), positions=lambda cached, computed, take: np.arange(take))
    found = first_divergence(one_pass(model, ids), wrong)
    return {"fault": "chunk-relative positions", "seen": found is not None, "first": str(found)}


# ---- 3. a mixed workload


def mixed_workload(chunking: bool) -> Report:
    """USERS stream 400 tokens each; the prompts of ARRIVALS come in between, and each gets an answer of 100.

    chunking   a step has room for CHUNK prompt tokens beside all decodes; without it a prompt runs whole or waits
    """
    most = USERS + len(ARRIVALS)  # requests that run at once
    config = ServerConfig(
        profile="course" if chunking else "whole-prompt", max_num_seqs=most,
        max_num_batched_tokens=most + (CHUNK if chunking else PROMPT), refuse_stuck=False,
    )  # fmt: skip
    report = Report(keep=True)
    server = SimServer(config, COST, report)
    for user in range(USERS):
        server.push_computed(streaming_user(user, context=2, tokens=400, since_us=0), 0)
    for number, (time_us, tokens) in enumerate(ARRIVALS, USERS):
        server.run_until(time_us)
        server.push(number, Arrival(time_us, tokens, 100))
    server.run_until()
    return report


def waits(report: Report) -> dict[str, dict[str, int]]:
    """Times in us: all gaps between one token and the next, and the first token of the shortest and longest prompt."""
    ordered = sorted((r for r in report.requests if r.id >= USERS), key=lambda r: r.prompt_tokens)
    itl = report.itl
    return {
        "itl_us": {"p50": itl.percentile(50), "p99": itl.percentile(99), "max": itl.max},
        "ttft_us": {"shortest": ordered[0].ttft_us, "longest": ordered[-1].ttft_us},
    }


# ---- the four parts, as data and as text


def modelled() -> dict:
    """Parts 2 to 4: the reference setting, 32k, the mixed workload, the sweep."""
    line = chunked(COST, PROMPT, USERS, CHUNK)
    at_32k = chunked(COST, 32_768, USERS, CHUNK).worst_stall_us
    runs = {"unchunked": waits(mixed_workload(chunking=False)), "chunked": waits(mixed_workload(chunking=True))}
    return {
        "reference": {
            "worst_stall_us": line.worst_stall_us,
            "ttft_us": line.ttft_us,
            "steps_over_target": line.steps_over_target(TARGET_US),
            "decode_tok_per_s": line.decode_tok_per_s,
        },
        "worst_itl_ratio_32k": {
            "mixed": round(mixed_baseline(COST, 32_768, USERS).worst_stall_us / at_32k, 2),
            "exclusive": round(exclusive_baseline(COST, 32_768, USERS).worst_stall_us / at_32k, 2),
        },
        "itl_us": {name: run["itl_us"] for name, run in runs.items()},
        "ttft_us": {name: run["ttft_us"] for name, run in runs.items()},
        "sweep": sweep(COST, PROMPT, USERS, SWEEP),
        "knee_chunk": knee_chunk(COST, TARGET_US, USERS),
    }


def row(label: str, *cells: str) -> None:
    print(f"   {label:58}" + "".join(f"{cell:>13}" for cell in cells), flush=True)


def ms(us: int) -> str:
    return f"{us / 1000:.1f} ms"


def tell_bits(model: Model) -> tuple[list[dict], dict]:
    """Part 1, printed as it is measured."""
    print(f"1. The same bits. Measured: a {model.config.num_layers}-layer model runs here, on NumPy {np.__version__}.")
    print("   K and V of every layer and the last token's logits, against one pass over the whole prompt:")
    checks = []
    for check in bit_identity(model):
        checks.append(check)
        if check["prompt_len"] == LONG:
            size = "ragged chunks" if check["chunk"] == "ragged" else f"chunks of {check['chunk']:,}"
            extra = f", {HIT} cached, 3 decodes beside" if "hit" in check else ""
            row(f"{LONG:,} tokens, {size}{extra}", "equal" if check["equal"] else "DIFFERENT")
        elif check["chunk"] == 64:
            row(f"{SHORT} tokens, each chunk size from 1 to 64", f"{sum(c['equal'] for c in checks)} of 64 equal")
    seen = control(model)
    row(f"a mistake put in: {seen['fault']}", "different" if seen["seen"] else "NOT SEEN")
    print(f"     {seen['first']}")
    return checks, seen


def tell_costs(result: dict) -> None:
    """Parts 2 to 4."""
    reference, ratio, itl, ttft = (result[key] for key in ("reference", "worst_itl_ratio_32k", "itl_us", "ttft_us"))
    target = f"{TARGET_US // 1000} ms"
    step = f"{COST.fixed_us:,} us + {COST.prefill_us_per_token} a prompt token + {COST.decode_us} a decode"
    print(f"\n2. What it is for. Modelled, not measured: a step takes {step}.")
    row(f"{USERS} users stream, a prompt of {PROMPT:,} tokens comes in", "longest wait", "first token")
    alone, mixed = (baseline(COST, PROMPT, USERS) for baseline in (exclusive_baseline, mixed_baseline))
    row("  whole, in a step of its own", ms(alone.worst_stall_us), ms(alone.ttft_us))
    row("  whole, in one step with the decodes", ms(mixed.worst_stall_us), ms(mixed.ttft_us))
    row(f"  chunks of {CHUNK:,}, with the decodes", ms(reference["worst_stall_us"]), ms(reference["ttft_us"]))
    over, rate = reference["steps_over_target"], reference["decode_tok_per_s"]
    print(f"   Chunks: {over} steps over {target}, {rate:,} decode tokens/s.")
    print(f"   At 32,768 tokens the longest wait is {ratio['mixed']:.2f} times shorter than whole with the decodes,")
    print(f"   {ratio['exclusive']:.2f} times shorter than whole in a step of its own.")

    print(f"\n3. A mixed workload. Modelled: {USERS} users stream while {len(ARRIVALS)} prompts of all sizes arrive.")
    row("time between one token and the next", "p50", "p99", "max")
    for name, times in itl.items():
        row(f"  {name}", *map(ms, times.values()))
    row("time to the first token", "300 tokens", "8,192 tokens")
    for name, times in ttft.items():
        row(f"  {name}", *map(ms, times.values()))
    print("   Whole prompts freeze every user who streams. In chunks no user waits long; the long prompt pays for it.")

    print("\n4. Which chunk? Modelled: the setting of part 2 for each size.")
    row("chunk", "longest wait", "first token", "prompt tok/s")
    for point in result["sweep"]:
        over = f"   over {target}" if point["worst_itl_us"] > TARGET_US else ""
        cells = ms(point["worst_itl_us"]), ms(point["ttft_us"]), f"{point['prefill_tok_per_s']:,}"
        row(f"  {point['chunk']:5,}{over}", *cells)
    print(f"   The largest chunk whose step takes at most {target}: {result['knee_chunk']:,} tokens.")


def main(argv: Sequence[str]) -> int:
    """`python -m course_lib demo`: 0 if every bit check holds and the mistake is seen, else 1."""
    parser = Parser("python -m course_lib demo", description=__doc__, example="python -m course_lib demo --json")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    as_json = parser.parse_args(argv).json
    model = seeded_model("tiny", arith="exact")
    checks, seen = (list(bit_identity(model)), control(model)) if as_json else tell_bits(model)
    well = seen["seen"] and all(check["equal"] for check in checks)
    result = {"ok": well, "arith": "exact", "bit_identity": checks, "control": seen, **modelled()}
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        tell_costs(result)
        print(f"\n{'Every bit check holds.' if well else 'A BIT CHECK FAILED: see part 1.'}")
    return 0 if well else 1
