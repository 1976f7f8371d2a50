"""What scheduling and caching cost, beside what a user would write instead, in one run.

python3 course.py bench scheduler [--json]. Times are the smallest of several rounds, taken in turn. Nothing here
is asserted. "Overhead" is everything in Engine.step that is not the model's forward.
"""

import argparse
import json
import pickle
import sys
import time
import tracemalloc
from hashlib import sha256

from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex, block_hash, root_hash
from course_lib.cache.radix_manager import RadixManager
from course_lib.engine import Engine
from course_lib.model_config import ModelConfig
from course_lib.schedule.plan import plan_step
from course_lib.schedule.profiles import PROFILES
from course_lib.schedule.request import Request
from course_lib.schedule.scheduler import Scheduler
from course_lib.weights import seeded_model

RUNNING, WAITING, PROMPT = 256, 8_192, 512
AIM_OVERHEAD = 0.05
# As large as a laptop runs in a blink: the share of a step that is overhead falls as the model grows.
CONFIG = ModelConfig(
    vocab_size=2048, hidden_size=768, num_layers=2, q_heads=12, kv_heads=4, head_dim=64, intermediate_size=2048
)


def smallest(functions: dict, rounds: int = 5) -> dict[str, float]:
    """Seconds of each function, the smallest of `rounds`, in turn."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def busy_scheduler(profile: str) -> Scheduler:
    """256 requests decode, 8,192 wait."""
    rules = PROFILES[profile]
    cache = rules.new_cache(RUNNING * (PROMPT // 16 + 8) + 1000, 16)
    scheduler = Scheduler(cache, rules, max_num_batched_tokens=8192, max_num_seqs=RUNNING)
    for number in range(RUNNING + WAITING):
        scheduler.add(Request(number, [number % 1000 + i for i in range(PROMPT)], max_tokens=100))
    while len(scheduler.running) < RUNNING or any(not r.decoding for r in scheduler.running):
        advance(scheduler)
    return scheduler


def advance(scheduler: Scheduler):
    step = scheduler.schedule()
    return scheduler.commit(step, dict.fromkeys(scheduler.ends(step), 1))


def textbook_plan(requests, budget: int) -> list[tuple[int, int]]:
    """What a tutorial has: sort everything, decodes first."""
    chunks = []
    for r in sorted(requests, key=lambda r: not r.decoding):
        take = min(r.num_uncomputed, budget)
        if take > 0:
            chunks.append((r.id, take))
            budget -= take
    return chunks


def planning() -> list[dict]:
    rows = []
    for profile in ("course", "vllm-0.33.0", "tensorrt-llm"):
        scheduler = busy_scheduler(profile)
        everybody = scheduler.running + list(scheduler.waiting)
        times = smallest(
            {
                "schedule and commit": lambda s=scheduler: advance(s),
                "plan_step alone": lambda s=scheduler: plan_step(
                    s.running, max_num_batched_tokens=8192, max_chunk=0, max_num_seqs=RUNNING
                ),
                "textbook plan": lambda e=everybody: textbook_plan(e, 8192),
            },
            rounds=10,
        )
        for name, seconds in times.items():
            rows.append(
                {
                    "profile": profile,
                    "what": name,
                    "chunks_per_s": RUNNING / seconds,
                    "ratio": seconds / times["textbook plan"],
                }
            )
    return rows


def hashing(block_size: int = 16) -> list[dict]:
    ids = list(range(50_000, 50_000 + 7_008))
    blocks = [ids[i : i + block_size] for i in range(0, len(ids), block_size)]

    def chain(one):
        parent = root_hash()
        for block in blocks:
            parent = one(parent, block)

    times = smallest(
        {
            "ours: SHA-256 of packed integers": lambda: chain(block_hash),
            "SHA-256 of a pickle": lambda: chain(lambda p, b: sha256(pickle.dumps((p, tuple(b)))).digest()),
            "Python's hash, not safe": lambda: chain(lambda p, b: hash((p, tuple(b)))),
        },
        rounds=20,
    )
    ours = times["ours: SHA-256 of packed integers"]
    return [{"what": n, "ns_per_token": 1e9 * s / len(ids), "ratio": s / ours} for n, s in times.items()]


def overhead(batch: int = 32) -> list[dict]:
    rows = []
    for backend in ("numpy", "torch"):
        model = seeded_model(config=CONFIG, backend=backend)
        engine = Engine(model, num_blocks=batch * 40, block_size=16, max_num_seqs=batch)
        for number in range(batch):
            engine.add_request([(number * 7 + i) % 2048 for i in range(300)], max_tokens=1000)
        inside, forward = [0.0], model.forward

        def timed(*arguments, inside=inside, forward=forward):
            begin = time.perf_counter()
            try:
                return forward(*arguments)
            finally:
                inside[0] = time.perf_counter() - begin

        model.forward = timed
        while any(not r.decoding for r in engine.scheduler.running) or engine.scheduler.waiting:
            engine.step()
        best = (float("inf"), 0.0)
        for _ in range(20):
            begin = time.perf_counter()
            engine.step()
            best = min(best, (time.perf_counter() - begin, inside[0]))
        total, in_forward = best
        rows.append(
            {"backend": backend, "batch": batch, "step_ms": total * 1e3, "share_outside": 1 - in_forward / total}
        )
    return rows


def memory(num_blocks: int = 20_000, block_size: int = 16) -> list[dict]:
    """Bytes of bookkeeping per block when every block is held and cached; a block of KV of an 8B Llama is 2 MB."""
    rows = []
    for name, make in (
        ("hash table", lambda: CacheManager(num_blocks, block_size, PrefixIndex())),
        ("radix tree", lambda: RadixManager(num_blocks, block_size)),
    ):
        requests = [
            Request(n, [n] * 8 + list(range(n, n + 100 * block_size - 8))) for n in range(num_blocks // 100)
        ]
        tracemalloc.start()
        cache = make()
        for request in requests:
            cache.allocate(request, request.num_tokens)
            cache.publish(request, 0, request.num_tokens)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        rows.append({"what": name, "bytes_per_block": used / num_blocks})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    answer = {"planning": planning(), "hashing": hashing(), "overhead": overhead(), "memory": memory()}
    if args.json:
        print(json.dumps(answer))
        return 0
    print(f"{RUNNING} running, {WAITING:,} waiting; measured here, smallest of several in turn")
    for r in answer["planning"]:
        print(f"  {r['profile']:12} {r['what']:22} {r['chunks_per_s']:12,.0f} chunks/s  {r['ratio']:6.2f} x textbook")
    print("hash chain of 7,008 tokens in blocks of 16")
    for r in answer["hashing"]:
        print(f"  {r['what']:34} {r['ns_per_token']:7.1f} ns per token  {r['ratio']:5.2f} x ours")
    print(f"engine outside forward, decodes only (aim: below {AIM_OVERHEAD:.0%})")
    for r in answer["overhead"]:
        print(f"  {r['backend']:6} batch {r['batch']}  step {r['step_ms']:7.2f} ms  outside {r['share_outside']:.1%}")
    print("bookkeeping, every block held and cached (hashes of the requests included)")
    for r in answer["memory"]:
        print(f"  {r['what']:12} {r['bytes_per_block']:7.0f} bytes per block")
    return 0


if __name__ == "__main__":
    sys.exit(main())
