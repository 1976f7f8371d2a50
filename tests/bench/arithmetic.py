"""What bit identity costs: both arithmetics against plain torch, in one run, as ratios.

python3 course.py bench arithmetic [--json]. Times are the smallest of several, taken in turn, so that a
busy moment hits all alike. "only 32" is tile arithmetic in aligned tiles of 32 rows alone, as on a machine that allows
no other row count. Nothing here is asserted.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial

import numpy as np
import torch

from course_lib.arithmetic import arithmetic
from course_lib.arithmetic.rows import RowTable
from course_lib.attention import ATTEND
from course_lib.model import ChunkInput
from course_lib.model_config import ModelConfig
from course_lib.weights import seeded_model

# Large enough that matmuls dominate, small enough for a laptop: 2 layers, 19 million weights.
CONFIG = ModelConfig(
    vocab_size=2048, hidden_size=768, num_layers=2, q_heads=12, kv_heads=4, head_dim=64, intermediate_size=2048
)
AIMS = {
    "prefill 1024 float32": 1.2, "prefill 4096 float32": 1.15, "chunk float32": 1.35, "decode float32": 1.75,
    "attention float32": 1.3, "prefill bfloat16": 1.25, "exact": 4.0,
}  # fmt: skip


def smallest(functions: dict, rounds: int) -> dict[str, float]:
    """Seconds of each function: the smallest of `rounds`, in turn; no new round after 20 seconds in all."""
    best = dict.fromkeys(functions, float("inf"))
    start = time.perf_counter()
    for _ in range(rounds):
        if time.perf_counter() - start > 20:
            break
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


class Prompt:
    """A prompt in a pool of its own; `run` computes tokens [start, stop) against what is cached before them."""

    def __init__(self, model, length: int):
        self.model, self.pool = model, model.new_pool(-(-length // 16), 16, fill=0.0)
        self.table = list(range(self.pool.num_blocks))
        self.ids = (np.random.PCG64(1).random_raw(length) % np.uint64(model.config.vocab_size)).astype(int).tolist()

    def run(self, start: int, stop: int):
        return self.model.forward([ChunkInput(self.ids[start:stop], start, self.table, wants_logits=True)], self.pool)


def decode_batch(model, contexts: list[int]):
    """A function that runs one decode for each of several requests."""
    blocks = [-(-n // 16) for n in contexts]
    ends = np.cumsum(blocks)
    pool = model.new_pool(int(ends[-1]), 16, fill=0.0)
    tables = [list(range(end - n, end)) for end, n in zip(ends.tolist(), blocks)]
    chunks = [ChunkInput([5], n - 1, table, wants_logits=True) for n, table in zip(contexts, tables)]
    return lambda: model.forward(chunks, pool)


def only_32() -> RowTable:
    return RowTable(counts=(), aligned=True)


def bench_model(dtype: str, rounds: float) -> list[dict]:
    models = {
        name: seeded_model(config=CONFIG, backend="torch", arith=name, dtype=dtype)
        for name in ("plain", "tile", "exact")
    }
    models["only 32"] = models["tile"].with_arithmetic("tile")
    models["only 32"].arith = arithmetic("tile", only_32())
    contexts = [300, 411, 522, 633, 744, 855, 966, 1000]
    tasks = {
        "prefill 1024": (lambda m: prompt_run(m, 0, 1024), 6),
        "prefill 4096": (lambda m: prompt_run(m, 0, 4096), 3),
        "chunk 17 after 1000": (lambda m: prompt_run(m, 1000, 1017), 20),
        "decode, batch 8": (lambda m: decode_batch(m, contexts), 20),
    }
    rows = [first_use(models["tile"], dtype)]
    for task, (prepare, times) in tasks.items():
        taking_part = [name for name in models if name != "exact" or "4096" not in task]  # exact at 1,024 tells enough
        found = smallest({name: prepare(models[name]) for name in taking_part}, max(1, round(rounds * times)))
        rows += [row(f"{task}, {dtype}", name, found[name], found["plain"]) for name in taking_part[1:]]
    return rows


def first_use(model, dtype: str) -> dict:
    """How much longer the first forward takes, in which each operation's row counts are tried."""
    task = prompt_run(model, 0, 1024)
    begin = time.perf_counter()
    task()
    first = time.perf_counter() - begin
    then = smallest({"then": task}, 1)["then"]
    return {"task": f"trials at first use, {dtype}", "arith": "tile", "ms": (first - then) * 1e3, "aim": None}


def prompt_run(model, start: int, stop: int):
    prompt = Prompt(model, stop)
    return lambda: prompt.run(start, stop)


def bench_attention(dtype: str, rounds: int) -> list[dict]:
    rows = []
    for length in (1024, 4096, 8192):
        q = torch.randn(length, 16, 64, dtype=getattr(torch, dtype))
        k, v = (torch.randn(length, 4, 64, dtype=q.dtype) for _ in range(2))
        ways = {
            "plain": ATTEND["plain"],
            "tile": partial(ATTEND["tile"], rows=RowTable()),
            "only 32": partial(ATTEND["tile"], rows=only_32()),
        }
        for way in ways.values():
            way(q[:40], k[:40], v[:40], 0)  # trials belong to the first use
        times = smallest({name: partial(way, q, k, v, 0) for name, way in ways.items()}, rounds)
        rows += [row(f"attention {length}, {dtype}", name, times[name], times["plain"]) for name in ("tile", "only 32")]
    return rows


def row(task: str, arith: str, seconds: float, plain: float) -> dict:
    aims = {"exact": AIMS["exact"], "tile": next((a for key, a in AIMS.items() if _is_about(key, task)), None)}
    return {
        "task": task,
        "arith": arith,
        "ms": seconds * 1e3,
        "plain_ms": plain * 1e3,
        "ratio": seconds / plain,
        "aim": aims.get(arith),
    }


def _is_about(key: str, task: str) -> bool:
    return all(word in task for word in key.split())


def attention_memory(length: int = 8192) -> dict:
    """Peak memory that attention adds at `length`, each way in a fresh process, beside one N x N matrix per head."""
    program = (
        "import resource, sys, torch\nfrom pathlib import Path\nfrom course_lib.attention import ATTEND\n"
        "def peak():  # bytes; ru_maxrss would start from the parent's\n"
        "    status = Path('/proc/self/status')\n"
        "    if status.exists():\n"
        "        return int(status.read_text().split('VmHWM:')[1].split()[0]) * 1024\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)\n"
        "torch.set_num_threads(1)\nn = int(sys.argv[2])\n"
        "q = torch.randn(n, 16, 64); k = torch.randn(n, 4, 64); v = torch.randn(n, 4, 64)\n"
        "ATTEND[sys.argv[1]](q[:64], k[:64], v[:64], 0)\n"
        "before = peak()\nATTEND[sys.argv[1]](q, k, v, 0)\nprint(peak() - before)\n"
    )
    matrix = length * length * 4 * 16
    out = {"length": length, "score_matrix_bytes": matrix}
    for name in ("plain", "tile"):
        done = subprocess.run(
            [sys.executable, "-c", program, name, str(length)], capture_output=True, text=True, check=True
        )
        out[f"{name}_bytes"] = int(done.stdout)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    args = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    with torch.inference_mode():
        for dtype in ("float32", "bfloat16"):
            rows += bench_attention(dtype, 2 if args.quick else 4)
            rows += bench_model(dtype, 0.4 if args.quick else 1)
    memory = attention_memory()
    if args.json:
        print(
            json.dumps({"rows": rows, "memory": memory, "threads": torch.get_num_threads(), "torch": torch.__version__})
        )
        return 0
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; measured here, smallest of several in turn")
    print(f"{'task':34} {'arith':7} {'ms':>9} {'plain ms':>9} {'ratio':>6} {'aim':>5}")
    for r in rows:
        beside = f"{r['plain_ms']:9.1f} {r['ratio']:6.2f}" if "ratio" in r else ""
        aim = f"{r['aim']:.2f}" if r["aim"] else ""
        print(f"{r['task']:34} {r['arith']:7} {r['ms']:9.1f} {beside} {aim:>5}".rstrip())
    for name in ("tile", "plain"):
        added, share = memory[f"{name}_bytes"], memory[f"{name}_bytes"] / memory["score_matrix_bytes"]
        print(f"attention at {memory['length']}: {name} adds {added / 1e6:.0f} MB, {share:.3f} of the N x N scores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
