"""What a check costs: CPU time of every group on the public seed, drawing cases, answer and judge included.

python3 course.py bench checks [NAME ...] [--json]. Three answers a group: the solution, which passes; the slowest of
the first five known mistakes, whose check also looks for its name; a stub. The second of two runs counts, so that
imports and the runs that all checks share are paid for. Aim: 200 ms a group, 1,000 ms for a group of my_policy.
Nothing here is asserted.
"""

import argparse
import json
import time

from autograder import check
from autograder.check import evaluate
from autograder.exercises import EXERCISES
from autograder.kept import solution_text

AIM_MS, AIM_CAPSTONE_MS = 200, 1_000


def stub(*args, **kwargs):
    raise NotImplementedError


def cpu_ms(exercise, group, answer) -> float:
    for _ in range(2):
        begin = time.process_time()
        evaluate(exercise, group, answer, check.PUBLIC_SEED)
    return 1_000 * (time.process_time() - begin)


def measure(exercise, group) -> dict:
    right = exercise.compile(solution_text(exercise.solution))
    wrong = [exercise.compile(w.source) for w in exercise.wrong_answers[:5]]
    return {
        "exercise": exercise.name,
        "group": group.name,
        "right_ms": cpu_ms(exercise, group, right),
        "wrong_ms": max(cpu_ms(exercise, group, answer) for answer in wrong),
        "stub_ms": cpu_ms(exercise, group, stub),
        "aim_ms": AIM_CAPSTONE_MS if exercise.name == "my_policy" else AIM_MS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="exercises; all without it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    unknown = set(args.names) - set(EXERCISES)
    if unknown:
        parser.error(f"there is no exercise {', '.join(sorted(unknown))}; there are {', '.join(EXERCISES)}.")
    chosen = [e for e in EXERCISES.values() if not args.names or e.name in args.names]
    rows = [measure(exercise, group) for exercise in chosen for group in exercise.groups]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    print("CPU time in ms of one group, public seed\n")
    print(f"{'exercise':22}{'group':14}{'right':>8}{'wrong':>8}{'stub':>8}")
    for row in rows:
        over = "  over the aim" if max(row["right_ms"], row["wrong_ms"]) > row["aim_ms"] else ""
        times = "".join(f"{row[kind]:8.0f}" for kind in ("right_ms", "wrong_ms", "stub_ms"))
        print(f"{row['exercise']:22}{row['group']:14}{times}{over}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
