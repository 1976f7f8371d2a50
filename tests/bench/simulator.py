"""How fast the simulator is, in requests per second of CPU time on one core, and how much memory it takes.

python3 course.py bench simulator [--most N] [--json]. Side by side in one run: many decode-only steps at once, and
step by step. Prompts of 1,024 tokens, 64 outputs, Poisson. A plain loop of additions is timed as well, since
machines differ. Nothing here is asserted. (microsoft/vidur, the public simulator of the kind, does 100 to 200
requests per second, by its users' reports; it is not run here.)
"""

import argparse
import json
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from course_lib.cost.linear import PRESETS
from course_lib.cost.simulator import ServerConfig, simulate
from course_lib.cost.workload import Lengths, Poisson

AIM = 10_000  # requests per second of CPU time
RATES = (2, 10, 20, 30)  # requests per second of modelled time: 4 %, 20 %, 45 % and 80 % busy


def workload(count: int, rate: float) -> Poisson:
    return Poisson(rate=rate, count=count, prompt=Lengths(1024, 1024), output=Lengths(64, 64))


def measure(count: int, rate: float, caching: bool, fast: bool) -> dict:
    config = ServerConfig(enable_prefix_caching=caching)
    begin = time.process_time()
    report = simulate(workload(count, rate), config, PRESETS["reference"], fast=fast)
    seconds = time.process_time() - begin
    assert report.num_finished == count
    return {
        "requests": count, "rate": rate, "caching": caching, "fast": fast, "requests_per_s": count / seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "p99_itl_us": report.itl.percentile(99),
    }  # fmt: skip


def alone(*arguments) -> dict:
    """In a process of its own, so that the peak of memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def additions_per_s() -> float:
    begin, total = time.process_time(), 0
    for i in range(3_000_000):
        total += i
    return 3_000_000 / (time.process_time() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=100_000, help="requests of the largest run (1000000 takes minutes)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    speed = [alone(3_000, rate, caching, fast)
             for rate in RATES for caching in (False, True) for fast in (True, False)]  # fmt: skip
    sizes = [alone(count, 10, False, True) for count in (1_000, 10_000, 100_000, 1_000_000) if count <= args.most]
    answer = {"additions_per_s": additions_per_s(), "cores": os.cpu_count(), "speed": speed, "sizes": sizes}
    if args.json:
        print(json.dumps(answer))
        return 0
    print(f"CPU time of one core; a plain loop here makes {answer['additions_per_s'] / 1e6:.1f} million additions/s")
    print(f"requests/s simulated (aim {AIM:,}); step by step beside it")
    for quick, slow in zip(speed[::2], speed[1::2]):
        caching = "prefix cache" if quick["caching"] else "no cache"
        print(
            f"  {quick['rate']:3} requests/s offered, {caching:12} {quick['requests_per_s']:8,.0f}  step by step "
            f"{slow['requests_per_s']:8,.0f}  {quick['requests_per_s'] / slow['requests_per_s']:5.1f} x"
        )
    print("memory, 10 requests/s offered")
    for row in sizes:
        speed = f"{row['requests_per_s']:8,.0f} requests/s"
        print(f"  {row['requests']:9,} requests  {row['peak_mib']:7.1f} MiB peak  {speed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
