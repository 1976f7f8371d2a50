"""What notebook 09 builds: time a step without the usual mistakes, fit a cost to the times, choose the knobs by it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from course_lib.arithmetic.arrays import to_numpy
from course_lib.cli import UserError
from course_lib.cost.work import StepCost, StepWork, work_of
from course_lib.model import ChunkInput, Model

GRID = (  # (prompt tokens, where the chunk starts, decodes, tokens that each decode reads)
    (0, 0, 1, 64), (0, 0, 4, 64), (0, 0, 8, 64), (0, 0, 8, 256), (16, 0, 0, 0), (64, 0, 0, 0), (64, 0, 4, 64),
    (64, 256, 0, 0), (128, 0, 0, 0), (128, 128, 4, 64), (128, 384, 0, 0), (256, 0, 0, 0), (256, 0, 8, 64),
    (256, 256, 0, 0),
)  # fmt: skip


def time_step(
    run: Callable[[], object], synchronize: Callable[[], object], clock: Callable[[], float], repeats: int
) -> float:
    """How long one step usually takes: the median of `repeats` measurements, in the clock's unit.

    run           starts one step. On a GPU it returns at once, while the device goes on working; the first step is slow
    synchronize   returns when the device has done all that was started
    clock         the time now
    repeats       how many steps to measure, odd; one more runs first, to warm up

    Returns one number, not rounded.
    """
    run()
    synchronize()
    times = []
    for _ in range(repeats):
        begin = clock()
        run()
        synchronize()
        times.append(clock() - begin)
    return sorted(times)[repeats // 2]


def fit_linear(samples: np.ndarray) -> np.ndarray:
    """The linear cost with the least squared errors.

    samples   [steps, 3] float64: prompt tokens, decodes and measured us of each step; it stays as it is
    returns   [3]: fixed us of a step, us per prompt token, us per decode; one may be below 0
    """
    columns = np.column_stack([np.ones(len(samples)), samples[:, 0], samples[:, 1]])
    return np.linalg.lstsq(columns, samples[:, 2], rcond=None)[0]


def recommend(target_us: int, users: int, longest: int, cost: StepCost) -> tuple[int, int]:
    """The knobs (max_chunk, max_num_batched_tokens) that keep every step within target_us; (0, 0) if none do.

    users     users who stream while a prompt runs: one decode of each in every step
    longest   tokens of the longest prompt. Its last chunk sees the most keys, and takes the longest
    cost      cost.work_us(work_of([(start, stop)], contexts)) is the time of a step in us: one chunk, and a decode for
              each number in contexts. A longer chunk never takes less. Take `longest` for every user's context

    Whole numbers. max_chunk is the largest that fits, at most `longest`. The budget holds one such chunk and the
    decodes, no more: then several waiting prompts cannot fill a step beyond it either.
    """
    fits, too_large = 0, longest + 1
    while too_large - fits > 1:
        chunk = (fits + too_large) // 2
        if cost.work_us(work_of([(longest - chunk, longest)], [longest] * users)) <= target_us:
            fits = chunk
        else:
            too_large = chunk
    return (fits, fits + users) if fits else (0, 0)


# --- the learner's own device


def device_model() -> tuple[Model, Callable[[], None], str]:
    """The seeded model "tiny" on this machine's best device, its synchronize, and what that device is, in words."""
    from course_lib.weights import seeded_model

    if shutil.which("nvidia-smi"):  # else torch need not be imported, which takes seconds
        try:
            import torch

            if torch.cuda.is_available():
                model = seeded_model("tiny", backend="torch", device="cuda")
                return model, torch.cuda.synchronize, f"CUDA, {torch.cuda.get_device_name()}, torch {torch.__version__}"
        except ImportError:
            pass
    return seeded_model("tiny"), lambda: None, "no CUDA device: the NumPy engine on this CPU"


def measure_steps(
    grid: Iterable[Sequence[int]] = GRID, repeats: int = 5, time_step: Callable = time_step
) -> Iterator[tuple[StepWork, float]]:
    """(work, measured us) of one step of the course's engine for each row of the grid. MEASURED: differs every time.

    grid        rows (prompt tokens, start of their chunk, decodes, tokens that each decode reads)
    time_step   your function, if it shall be used
    """
    model, synchronize, _ = device_model()
    for tokens, start, decodes, context in grid:
        yield (
            work_of([(start, start + tokens)] if tokens else [], [context] * decodes),
            time_step(
                _step(model, tokens, start, decodes, context),
                synchronize,
                lambda: time.perf_counter_ns() / 1e3,
                repeats,
            ),
        )


def _step(model: Model, tokens: int, start: int, decodes: int, context: int, block_size: int = 16) -> Callable:
    """A step of the model as the engine runs it: chunk and decodes over one pool, logits brought to the CPU."""
    stops = [start + tokens] * (tokens > 0) + [context] * decodes
    inputs, used = [], 1
    for number, stop in enumerate(stops):
        begin = start if tokens and number == 0 else stop - 1
        blocks = list(range(used, used := used + -(-stop // block_size)))
        inputs.append(ChunkInput([i % 100 for i in range(begin, stop)], begin, blocks, wants_logits=True))
    pool = model.new_pool(used, block_size)
    pool.k[...], pool.v[...] = 0, 0  # what earlier steps left there; the time does not depend on it
    return lambda: to_numpy(model.forward(inputs, pool))


def serve_and_load(*flags: str, users: int = 4, prompt_tokens: int = 1_500) -> dict:
    """Start our own server on this machine with these flags, send `users` streams and a long prompt, and stop it.

    returns   what the load generator MEASURED (python -m course_lib load --json)

    Raises UserError, in one line, when a package is missing or something does not start.
    """
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path[1:]])}
    with tempfile.TemporaryDirectory() as folder:
        found, said = Path(folder) / "found.json", Path(folder) / "said.txt"
        with said.open("w") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "course_lib", "serve", "--port", "0", *flags], env=environment, text=True,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        try:
            kill_later = threading.Timer(30, server.kill)  # a server that says nothing must not hang the notebook
            kill_later.start()
            line = next((line for line in server.stdout if line.startswith("serving ")), "")
            kill_later.cancel()
            if not line:
                raise UserError(f"the server did not start: {said.read_text().strip()[-200:] or 'it said nothing'}")
            sizes = ["--users", str(users), "--prompt-tokens", str(prompt_tokens), "--tokens", "400"]
            command = [sys.executable, "-m", "course_lib", "load", line.split()[1], *sizes, "--token-ids"]
            done = subprocess.run(
                [*command, "--ignore-eos", "--json", str(found)], env=environment, capture_output=True, text=True,
                timeout=60,
            )  # fmt: skip
            if not found.exists():
                raise UserError(f"nothing was measured: {done.stderr.strip()[-200:]}")
            return json.loads(found.read_text("utf-8"))
        except subprocess.TimeoutExpired:
            raise UserError("the load generator was not done after 60 s.") from None
        finally:
            server.terminate()
            server.wait()
            server.stdout.close()
