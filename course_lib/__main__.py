"""The command line of the course: `python -m course_lib COMMAND`; `--help` of each shows an example."""

import importlib
import os
import sys
from collections.abc import Sequence

from course_lib.cli import refuse, run_command

# Before NumPy is imported. OpenBLAS threads wait by spinning: on a busy machine two threads were seen to take
# seven times as long as one on the course's small matrices. A value that is set already is kept.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads, for the same reason

# command: (module with main(argv) -> exit code, what it does)
COMMANDS = {
    "demo": ("course_lib.commands.demo", "chunked prefill on one screen, bit for bit; NumPy alone"),
    "prefill": ("course_lib.commands.prefill", "compare prefill in chunks with one pass, bit for bit"),
    "diff": ("course_lib.commands.diff", "the first difference of two saved KV caches, and its likely cause"),
    "replay": ("course_lib.commands.replay", "our planner and cache against what real servers did or assert"),
    "walkthrough": ("course_lib.commands.walkthrough", "one long prompt with a cached prefix, iteration by iteration"),
    "simulate": ("course_lib.commands.simulate", "how long requests wait, modelled: one long prompt, or a workload"),
    "sweep": ("course_lib.commands.sweep", "chunk sizes: latency against throughput, and the knee"),
    "serve": ("course_lib.commands.serve", "the engine behind a streaming endpoint, for OpenAI's clients"),
    "load": ("course_lib.commands.load", "what streaming users feel at any OpenAI-compatible server, measured"),
    "progress": ("course_lib.learner.progress", "which exercises and questions are done, and what is next"),
    "doctor": ("course_lib.learner.doctor", "what is installed and what is wrong; repairs a notebook"),
}


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:11} {what}" for name, (_, what) in COMMANDS.items())
        print(f"usage: python -m course_lib COMMAND [--help]\n\n{lines}\n\nexample:\n  python -m course_lib demo")
        return 0
    if argv[0] not in COMMANDS:
        return refuse("course_lib", f"no command {argv[0]!r}; there are {', '.join(COMMANDS)}.")
    module = importlib.import_module(COMMANDS[argv[0]][0])
    try:
        return run_command(f"course_lib {argv[0]}", module.main, argv[1:])
    except KeyboardInterrupt:
        return refuse(f"course_lib {argv[0]}", "interrupted.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
