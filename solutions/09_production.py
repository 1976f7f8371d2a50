# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] id="title"
# # 09 The real device, and the servers out there
#
# Up to here every time was *modelled*: it came from a formula. Does a real device agree? In this notebook you time
# steps on your machine, fit a cost to them, and turn a target into the knobs of a server. Then you compare widely used
# servers, by version and date, run their policies on one workload, and freeze a real server over HTTP. The capstone at
# the end: write a scheduling policy and compare it with theirs.
#
# About 80 minutes. NumPy is enough; the pictures use matplotlib. With a CUDA device and torch, section 1 measures there.
# Positions count from 0.
#
# The words that the notebook builds on: a *request* is a prompt and the answer to it. A server works in *steps*. A step
# computes *chunks* of prompts (*prefill*), and for each *streaming* user one *decode*, which gives that user's next token.
# For every token, keys and values are kept in the *KV cache*, in *blocks* of a fixed number of tokens. *TTFT* is the
# time from a request's arrival to its first token; *ITL*, inter-token latency, is the gap between one token and the
# next. A *target* is the longest that such a time may be. The *budget*, `max_num_batched_tokens`, is the largest number
# of tokens that a step may compute, decodes included.
#
# **Two kinds of numbers.** *Measured* numbers differ from machine to machine and from run to run; no check and no question
# depends on one. *Modelled* numbers are the same everywhere. Each cell says which it prints.

# %% id="setup"
import os
import time

import matplotlib.pyplot as plt
import numpy as np

from autograder import check
from autograder.drivers.nb09 import Device
from autograder.exercises import EXERCISES
from course_lib.cli import UserError
from course_lib.cost.devices import MODELS
from course_lib.cost.disaggregated import Transfer, simulate_disaggregated
from course_lib.cost.fit import fit_cost
from course_lib.cost.presets import PRESETS
from course_lib.cost.simulator import ServerConfig, simulate
from course_lib.cost.work import StepWork, work_of
from course_lib.cost.workload import Lengths, Poisson
from course_lib.lessons import nb09_capstone as capstone
from course_lib.lessons.nb09_device import GRID, device_model, measure_steps, serve_and_load
from course_lib.schedule.plan import plan_step
from course_lib.schedule.profiles import PROFILES


def wrong(exercise, name):
    """One of the course's collected wrong answers, as a function."""
    return EXERCISES[exercise].compile(EXERCISES[exercise].wrong_answer(name).source)


# %% [markdown] id="time-text"
# ## 1. How long does a step take?
#
# To measure a step you read a clock, run it, and read the clock again. On a GPU that is wrong by a large factor. The
# host (the CPU) only puts the step into a queue and goes on; the device works through the queue by itself.
# `torch.cuda.synchronize()` returns when the queue is empty. Here is a simulated GPU: *starting* a step takes the host
# 40 us, the device takes 5 ms for it, and 60 ms more for the very first, for which it loads code and reserves memory.
#
# **Guess:** a colleague runs one step to warm up, then times five without any synchronize and takes the median. How many
# microseconds does the colleague find? And with a synchronize in the right places?

# %% id="time-guess"
without_us = None
with_us = None

# %% id="time-reveal"
gpu = {"steps": [5_000, 5_020, 5_010, 5_060, 25_000], "first_us": 60_000, "launch_us": 40, "asynchronous": True, "busy_us": 0}


def clocked(name):
    """What one of the course's wrong time_step functions finds on the simulated GPU (modelled)."""
    device = Device(**gpu)
    return wrong("time_step", name)(device.run, device.synchronize, device.clock, 5)


true_us = 5_020 + 40 + 3  # the median step, to start it, and to hear that it is done
print(f"you said {without_us} without and {with_us} with synchronize; it is {clocked('no_synchronize'):,.0f} and {true_us:,} us (modelled)")
if without_us is not None and without_us > 1_000:
    print("Without a synchronize the clock shows only how long the host takes to start a step.")
print()
for name in ("no_synchronize", "first_run_counts", "mean", "one_wait_for_all", "warm_up_still_runs"):
    print(f"{name:20} {clocked(name):10,.0f} us")
assert clocked("no_synchronize") == 40 and clocked("mean") > 1.5 * true_us

# %% [markdown] id="time-why"
# *I was off because ... (double-click to write here)*

# %% [markdown] id="clock-text"
# Step by step, what a measurement needs:
#
# 1. *Warm up.* Run one step and wait for it, before any clock is read.
# 2. *Begin on an idle device.* Otherwise earlier work is counted.
# 3. *Wait for the end.* Run the step, synchronize, and only then read the clock again.
# 4. *Repeat, and take the median.* Other work disturbs some repeats. They change a mean, and a minimum is a time that
#    users hardly ever see. (Say which you took; the minimum is fine for comparing two kernels.)
#
# And the clock itself must be fine enough. **Which of these would you use?**

# %% id="clock"
for name in ("time", "monotonic", "perf_counter"):
    info = time.get_clock_info(name)
    print(f"time.{name:13} ticks every {info.resolution * 1e6:g} us; can it be set back? {'yes' if info.adjustable else 'no'}")

# %% [markdown] id="time-exercise"
# `perf_counter` is made for intervals. `time` follows the calendar, which may be corrected in the middle of a step. (On
# CUDA, with `torch.cuda.Event(enable_timing=True)` the device itself records the time; read the two events after a
# synchronize.)
#
# ### Exercise 9.1: time a step
#
# 8 minutes, difficulty 2 of 5, about eight lines. `run`, `synchronize` and `clock` are arguments, so that the check can
# simulate the device: *it does not depend on how fast your machine is*.

# %% [markdown] id="time-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Warm up and wait before the loop; in the loop wait after `run()`, which also leaves the device idle for the next
# repeat; take the median after the loop.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# `synchronize()` stands twice: after the warm-up, and after each measured `run()`, before the clock is read.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# In the loop: `begin = clock()`, `run()`, `synchronize()`, `times.append(clock() - begin)`. At the end the middle of
# `sorted(times)`.
#
# </details>

# %% id="time-solution" exercise="9.1" solution="time_step" minutes=8 difficulty=2
from collections.abc import Callable

# include course_lib.lessons.nb09_device:time_step

# %% id="time-check-values" check="time_step" group="values" points=3
check.time_step(time_step, group="values")

# %% [markdown] id="measure-text"
# Now your machine. `measure_steps` runs single steps of the course's engine (the seeded model "tiny") with your
# `time_step`: chunks of several lengths at several positions of a prompt, decodes with short and long contexts, and
# both together.

# %% id="measure"
_, _, device_words = device_model()
begin = time.perf_counter()
samples = list(measure_steps(GRID, repeats=3, time_step=time_step))
print(f"MEASURED in {time.perf_counter() - begin:.1f} s on this machine; {device_words}\n")
print("prompt tokens  from position  decodes  tokens that they read    us, measured")
for (tokens, start, decodes, context), (_, us) in zip(GRID, samples):
    print(f"{tokens:13} {start:14} {decodes:8} {decodes * context:22,} {us:15,.0f}")

# %% [markdown] id="fit-text"
# ## 2. From times to a cost
#
# The course's modelled times are *linear*: a fixed part, a cost per prompt token and a cost per decode. Which three
# numbers fit your machine best?
#
# A worked example with three made-up steps, which three numbers explain exactly:

# %% id="fit-example"
made_up = np.array([[0, 10, 3_700.0], [100, 0, 4_400.0], [200, 10, 7_300.0]])  # prompt tokens, decodes, us

# Step 1: one column for each cost. Every step pays the fixed part once: a column of ones.
columns = np.column_stack([np.ones(3), made_up[:, 0], made_up[:, 1]])
print(columns)

# Step 2: which three costs give the times? columns @ costs = us
costs = np.linalg.solve(columns, made_up[:, 2])
print("fixed, per prompt token, per decode:", costs.round(6))

# Step 3: do they explain every step?
assert np.allclose(columns @ costs, made_up[:, 2])

# %% [markdown] id="fit-exercise"
# With more steps than costs there is no exact fit. *Least squares* takes the costs for which the sum of the squared
# errors over all steps is smallest: `np.linalg.lstsq(columns, us, rcond=None)[0]`.
#
# You may think that three well chosen steps are enough. But every measurement has an error, and with more steps than
# costs the errors partly cancel.
#
# ### Exercise 9.2: fit the linear cost
#
# 8 minutes, difficulty 2 of 5, two to four lines. The first check has samples without noise: they must give back the exact
# cost. In the second the samples have noise.

# %% [markdown] id="fit-hints"
# <details><summary>Hint 1: a direction</summary>
#
# The worked example, with `lstsq` in place of `solve`.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# The column of ones. Without it an empty step would take no time, and the other two costs become wrong.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `np.column_stack([np.ones(len(samples)), samples[:, 0], samples[:, 1]])` is the table; `samples[:, 2]` are the times.
#
# </details>

# %% id="fit-solution" exercise="9.2" solution="fit_linear" minutes=8 difficulty=2
# include course_lib.lessons.nb09_device:fit_linear

# %% id="fit-check-exact" check="fit_linear" group="exact" points=2
check.fit_linear(fit_linear, group="exact")

# %% id="fit-check-noisy" check="fit_linear" group="noisy" points=1
check.fit_linear(fit_linear, group="noisy")

# %% [markdown] id="agree-text"
# Does your machine agree with a linear model? Each dot is a step, with your fit on the left; on the line, fit and
# measurement are equal. The library's `fit_cost` is similar to your function: it minimizes the squared *relative*
# errors (each error divided by its step's time), allows no negative cost, and has two more terms: *pairs*, the number
# of keys that all queries of a chunk see together, and the context tokens that decodes read. It also says how far to
# trust the fit.
#
# **Guess:** in a step with a chunk of 1,024, what do 24 decodes add, compared with a step of these 24 decodes alone? Write the
# ratio (alone / added). If decodes cost nothing beside a chunk it would be infinite; if nothing is saved it is 1.

# %% id="agree-guess"
ratio_on_a_gpu_model = None  # Llama 3 8B on an H100, modelled
ratio_here = None  # the course's engine on your device: 8 decodes, beside a chunk of 256

# %% id="agree"
table = np.array([(work.prefill_tokens, work.decodes, us) for work, us in samples])
linear, fitted = fit_linear(table), fit_cost(samples)
predicted = np.column_stack([np.ones(len(table)), table[:, :2]]) @ linear
full = np.array([float(fitted.cost.exact_us(work)) for work, _ in samples])
print(f"MEASURED, then fitted ({device_words})\nlinear: {linear[0]:,.0f} us fixed, {linear[1]:,.1f} per prompt token, {linear[2]:,.0f} per decode\n")
print(fitted)

fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for ax, values, title in zip(axes, (predicted, full), ("your linear fit", "fit_cost: also pairs and context")):
    ax.plot(values / 1e3, table[:, 2] / 1e3, "o", color="#d55e00")
    top = 1.1 * table[:, 2].max() / 1e3
    ax.plot([0, top], [0, top], color="0.4", linestyle="--")
    ax.set(xlabel="fitted, ms", title=title)
axes[0].set_ylabel("measured, ms")
plt.show()

# %% id="agree-reveal"
def alone_over_added(cost, chunk, decodes, context):
    """Time of a step with the decodes alone, over what they add to a step with a chunk."""
    contexts = [context] * decodes
    alone = cost.work_us(work_of([], contexts))
    return alone / (cost.work_us(work_of([(0, chunk)], contexts)) - cost.work_us(work_of([(0, chunk)])))


for name in ("reference", "8b-h100", "8b-a100"):
    print(f"{name:12} modelled: alone takes {alone_over_added(PRESETS[name], 1_024, 24, 1_024):.1f} times what riding along adds")
measured_us = dict(zip(GRID, (us for _, us in samples)))
alone, chunk_us, both = (measured_us[row] for row in ((0, 0, 8, 64), (256, 0, 0, 0), (256, 0, 8, 64)))
added = both - chunk_us
ratio = f": {alone / added:.1f} times" if added > 0 else ", less than the noise: measure again"
print(f"here         MEASURED: {alone / 1e3:.1f} ms alone, {added / 1e3:.1f} ms added{ratio}")
print(f"you said {ratio_on_a_gpu_model} for the GPU and {ratio_here} here")

# %% [markdown] id="agree-after"
# On the modelled GPU a step reads all weights once, whatever it computes. For a decode that joins a chunk they are not
# read again: this is called *piggybacking*. The decode still reads its keys and values from memory, so it is not free.
#
# On a CPU the result is probably different. In the course's engine the bits of a request do not depend on the others in
# the batch: each decode gets a separate tile in every matrix product (notebook 04), and a tile of 32 rows is computed
# for one token. Riding along then saves little more than the fixed part. **Both are true, each for its device**: that
# is why one measures.
#
# Does the same total work take the same total time, however it is cut? The number of query-key pairs is the same for every
# cut. What must be read from memory is not:

# %% id="bytes"
shape, prompt = MODELS["8b"], 8_192
weight_bytes = shape.itemsize * (shape.layer_weights + shape.head_weights)
print("Llama 3 8B in 16 bits, a prompt of 8,192 tokens, one step for each chunk (modelled)\n")
print(" chunk   pairs      weights read   earlier K and V read   sum of the steps on an H100")
sums = {}
for chunk in (8_192, 1_024, 256, 64):
    steps = [work_of([(start, min(start + chunk, prompt))]) for start in range(0, prompt, chunk)]
    pairs, cached = sum(s.prefill_pairs for s in steps), sum(s.prefill_cached for s in steps)
    sums[chunk] = sum(PRESETS["8b-h100"].work_us(s) for s in steps)
    print(f"{chunk:6,}   {pairs / 1e6:.1f} M {len(steps) * weight_bytes / 1e9:12.0f} GB {cached * shape.kv_bytes_per_token / 1e9:17.1f} GB {sums[chunk] / 1e3:22.0f} ms")
assert sums[64] > 2 * sums[1_024]

# %% [markdown] id="recommend-text"
# ## 3. Which knobs for which target?
#
# A server has two knobs that matter here. `max_chunk` is the most tokens of one request in a step.
# `max_num_batched_tokens` is the budget of the whole step. **Which of the two bounds a streaming user's gap?** Before
# you read on, think of four long prompts that wait at the same time.
#
# With a cap of 1,024 and a budget of 4,120, four prompts put 4,096 prompt tokens into one step. So the budget bounds
# the step, and the cap only divides it. And the linear model leaves one thing out: the last chunk of a long prompt
# looks back at all keys before it.

# %% id="recommend-example"
cost = PRESETS["reference-attention"]  # 2,600 us + 15 per prompt token + 108 per decode + 0.00074 per pair; modelled
for start in (0, 16_384, 31_744):
    us = cost.work_us(work_of([(start, start + 1_024)], [32_768] * 24))
    print(f"a chunk of 1,024 from position {start:6,}, with 24 decodes: {us / 1e3:5.1f} ms")
four = cost.work_us(work_of([(0, 1_024)] * 4, [1_024] * 24))
print(f"four chunks of 1,024 in one step, with 24 decodes: {four / 1e3:5.1f} ms")
print("All of it modelled.")
assert four > 50_000

# %% [markdown] id="recommend-exercise"
# ### Exercise 9.3: recommend max_chunk and the budget
#
# 12 minutes, difficulty 3 of 5, about ten lines. It works for any cost that has `work_us`: the presets, and the one
# that you have just fitted. Consider the longest step: the last chunk of the longest prompt, beside a decode of every
# user. Binary search finds the largest chunk that fits fastest, since a longer chunk never takes less time.

# %% [markdown] id="recommend-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Write a function `fits(chunk)` that says whether the worst step meets the target. Then find the largest chunk for
# which it is True. Trying them all works too, but takes longer.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# The worst chunk is `(longest - chunk, longest)`, not `(0, chunk)`. And the budget must include the decodes as well as
# the chunk.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# Keep a chunk that fits (0) and one that is too large (`longest + 1`). While they are more than 1 apart, try the
# middle, and replace one of them by it. The budget is `chunk + users`; if no chunk fits, return (0, 0).
#
# </details>

# %% id="recommend-solution" exercise="9.3" solution="recommend" minutes=12 difficulty=3
from course_lib.cost.work import StepCost, work_of

# include course_lib.lessons.nb09_device:recommend

# %% id="recommend-check-values" check="recommend" group="values" points=3
check.recommend(recommend, group="values")

# %% [markdown] id="explore-text"
# Your rule on several modelled devices. Each dot is a step of the longest prompt. Why do the steps of `reference-attention` grow, and
# why do 50 ms leave so little for `8b-h100` when the longest prompt is 32,768? (The exercise takes `longest` for every
# user's context: 24 such decodes would read 103 GB of keys and values in each step. That is more than the card has, so
# a real server would run fewer requests.) On an L4, try fewer users: no chunk helps where weights and decodes alone
# take too long.

# %% id="explore"
from course_lib.widgets.device import explore_knobs

explore_knobs()

# %% id="recommend-here"
for target in (20_000, 50_000, 200_000):
    print(f"your machine, fitted from its MEASURED steps: for {target / 1e3:.0f} ms with 4 users and prompts up to 1,024:", recommend(target, 4, 1_024, fitted.cost))

# %% [markdown] id="servers-text"
# ## 4. The servers out there
#
# Whose idea was it? The names get mixed up, so here are the papers in order:
#
# - **SARATHI** (arXiv 2308.16369, August 2023): cut prompts into chunks, and run decodes in the same steps
#   (*piggybacking*).
# - **Dynamic SplitFuse** (DeepSpeed-FastGen, arXiv 2401.08671, January 2024): the same idea, found in parallel: split long prompts,
#   fuse short ones, so that every step has the same number of tokens.
# - **Sarathi-Serve** (arXiv 2403.02310, March 2024; OSDI '24): a scheduler built on it. *Stall-free*: decodes first,
#   then partly computed prompts, then new ones, in one token budget.
#
# SARATHI and Sarathi-Serve are two papers, although the names are nearly the same. **Guess:** what is the budget of a
# vLLM 0.33.0 server (`vllm serve`, no flags) on an A100 with 80 GB? And how long does a full step of 8,192 tokens, an
# H100's default, take with 24 decodes in it, by the preset `reference-attention` (no particular GPU)? Write two numbers.

# %% id="servers-guess"
budget_on_a100 = None  # tokens
longest_gap_ms = None  # modelled, preset reference-attention, with the H100's 8,192

# %% id="servers-reveal"
DEFAULT_BUDGET = {  # vLLM 0.33.0, `vllm serve`, read from its source on 2026-11-30
    "below 70 GiB, or any A100": 2_048,
    "70 GiB and more (H100, H200)": 8_192,
    "160 GiB and more": 16_384,
}
for device, budget in DEFAULT_BUDGET.items():
    us = cost.work_us(work_of([(0, budget - 24)], [1_024] * 24))
    print(f"{device:30} {budget:6,} tokens: a full step with 24 decodes takes {us / 1e3:5.0f} ms (modelled, reference-attention)")
full_step = cost.work_us(work_of([(0, 8_192 - 24)], [1_024] * 24))
print(f"\nyou said {budget_on_a100} and {longest_gap_ms} ms; it is 2,048, and {full_step / 1e3:.0f} ms for a first chunk")
if budget_on_a100 == 8_192:
    print("8,192 is often given as 'the' default. It depends on the version, on the GPU's memory, and on A100 or not.")
assert 145_000 < full_step < 155_000

# %% [markdown] id="servers-after"
# "Chunked prefill is on by default" does not exclude a freeze: with a budget of 8,192 a prompt of 8,000 tokens is one
# chunk. vLLM's documentation advises about 2,048 for short gaps, and more than 8,192 for throughput.
#
# The names of our knobs in each server, all read on 2026-11-30; check again before you rely on a default.
#
# | ours | vLLM 0.33.0 | SGLang 0.5.23 | TensorRT-LLM (docs of 1.3 to 1.4 rc) | Sarathi-Serve 96f9911 |
# | --- | --- | --- | --- | --- |
# | chunking on | `enable_chunked_prefill`, on by default | on, unless `chunked_prefill_size` is -1 | `enable_chunked_prefill=True`; its page calls the feature *chunked context* | always |
# | `max_num_batched_tokens` | `max_num_batched_tokens`: 2,048, 8,192 or 16,384 | `chunked_prefill_size`: 2,048 to 16,384 by GPU memory | `max_num_tokens` | `chunk_size`: 512 |
# | `max_chunk` | `long_prefill_token_threshold`: 0, off | the same number | | the same number |
# | `max_num_seqs` | `max_num_seqs`: 256 or 1,024 | `max_running_requests` | `max_batch_size` | 128 |
# | decodes beside chunks | always | **not by default**: `enable_mixed_chunk` is False | always | always |
# | a cut falls | anywhere | at the end of a page (1 token by default) | at the end of a KV block | anywhere |
# | profile here | `vllm-0.33.0` | `sglang-prefill-first`, `sglang-mixed` | `tensorrt-llm` | `sarathi` |
#
# Servers that "have chunked prefill" put different things into a step. Here are all profiles of the course on one small
# workload: 36 requests, 30 a second, one in six with a long prompt. Goodput counts the requests that meet both targets,
# TTFT 500 ms and ITL 50 ms. **Before you run it:** which profiles will miss the ITL target even with a budget of 2,048?

# %% id="profiles"
work = list(capstone.mixed_workload(7, count=36, rate=30))
print("modelled, preset reference-attention              good of 36   TTFT P90   ITL P99   ITL max, ms")
met = {}
for name in PROFILES:
    for budget in (8_192, 2_048) if name != "whole-prompt" else (16_384,):
        r = simulate(work, ServerConfig(profile=name, max_num_batched_tokens=budget, max_num_seqs=64), cost, targets=capstone.TARGETS)
        met[name, budget] = r.num_good
        print(f"{name:28} budget {budget:6,} {r.num_good:17} {r.ttft.percentile(90) / 1e3:10.0f} {r.itl.percentile(99) / 1e3:9.1f} {r.itl.max / 1e3:9.1f}")
assert met["vllm-0.33.0", 2_048] > 3 * met["vllm-0.33.0", 8_192] > 0
assert met["sglang-prefill-first", 2_048] < met["sglang-mixed", 2_048]

# %% [markdown] id="profiles-after"
# 1. `sglang-prefill-first` cuts its prompts as well. Its users still wait: while there are prompts, its steps have
#    prompts only. Chunking without mixing bounds the step and not the gap.
# 2. With 8,192 every profile that chunks and mixes has a gap of about 150 ms: the budget is larger than most prompts.
# 3. Compare P99 and the maximum. With many long prompts, as here, they are mostly close; `sglang-prefill-first` shows
#    how far apart they can be. One freeze among several hundred gaps does not change P99: report both.

# %% [markdown] id="apart-text"
# ## 5. Apart instead of together
#
# With chunking, prompts and decodes share a step. *Disaggregation* (DistServe, OSDI '24) gives them separate servers:
# one computes prompts, whole, and sends their K and V to another, which decodes. No decode ever waits for a prompt. But
# every prompt's K and V must be transferred, and one of the two servers may be idle.
#
# Two servers that chunk, against one for prompts and one for decodes. The same 120 requests, 20 a second; three links.
#
# A target may be for the *longest* gap of a request, as up to here, or for its *mean* gap, as the DistServe paper does
# (it calls that TPOT, time per output token). **Guess:** which serves more requests in time, if the longest gap may be
# 10 ms? And if the mean gap may be 4 ms? Write "chunking" or "apart". (A step of a few decodes alone takes about 3 ms.)

# %% id="apart-guess"
wins_by_longest = None
wins_by_mean = None

# %% id="apart-reveal"
again = 3  # the same arrivals for the same seed
requests = Poisson(rate=20, count=120, prompt=Lengths(500, 4_000), output=Lengths(40, 80), seed=again)
links = {  # bytes of a token's K and V (Llama 3 8B: 131,072) over the link's rate
    "apart, 437 GB/s": Transfer(fixed_us=200, ns_per_token=300),
    "apart, 50 GB/s": Transfer(),
    "apart, 1.25 GB/s": Transfer(ns_per_token=104_858),
}


def in_time(report, gap_of, itl_us):
    """Requests whose TTFT is at most 500 ms and whose gap, the longest or the mean, is at most itl_us."""
    return sum(r.ttft_us <= 500_000 and gap_of(r.gaps_us) <= itl_us for r in report.requests)


good = {}
print("modelled                 TTFT P90   ITL P50     P99     max, ms   of 120: longest 10 ms   mean 4 ms")
for name in ("chunking, budget 128", "chunking, budget 256", "chunking, budget 2048", *links):
    if name in links:
        config = ServerConfig(max_num_batched_tokens=8_192)
        r = simulate_disaggregated(requests, config, cost, transfer=links[name], keep=True)
    else:
        config = ServerConfig(max_num_batched_tokens=int(name.split()[-1]), max_num_seqs=64)
        r = simulate(requests, config, cost, replicas=2, keep=True)
    good[name] = in_time(r, max, 10_000), in_time(r, np.mean, 4_000)
    waits = "".join(f"{us / 1e3:9.1f}" for us in (r.itl.percentile(50), r.itl.percentile(99), r.itl.max))
    print(f"{name:24} {r.ttft.percentile(90) / 1e3:8.0f} {waits} {good[name][0]:23} {good[name][1]:11}")
print(f"\nyou said {wins_by_longest} and {wins_by_mean}")
assert good["chunking, budget 256"][0] == 120 == good["apart, 437 GB/s"][0]
assert good["apart, 50 GB/s"][0] < 30 and good["apart, 50 GB/s"][1] == 120
assert max(good[f"chunking, budget {b}"][1] for b in (128, 256, 2_048)) < 60 and good["apart, 1.25 GB/s"] == (0, 0)

# %% [markdown] id="apart-after"
# Which is better depends on the target and the link. By the longest gap, chunking with a small budget is as good as
# separate servers with the fastest link, and better than those with a usual one: there the second token of a request
# waits for the transfer of its K and V. By the mean gap, separate servers win: their decode steps have decodes alone,
# and with chunks small enough for that target a step would be mostly its fixed part. TTFT is shortest with large chunks
# on both servers. Over the slow link separate servers serve no request in time.

# %% [markdown] id="load-text"
# ## 6. A real freeze
#
# The course has a server (`python -m course_lib serve`) and a load generator (`python -m course_lib load URL`), which measures any
# server that streams in OpenAI's protocol: vLLM, SGLang, TensorRT-LLM and others. It needs only the server's address.
# The cell starts the course's server on this machine, once without chunking and once with a budget of 128 tokens,
# starts 4 streaming users, and sends a prompt of 1,500 tokens.
#
# **Guess:** without chunking, will the longest gap be about as long as the prompt's TTFT, half of it, or a tenth?

# %% id="load-guess"
gap_over_ttft = None  # 1, 0.5 or 0.1

# %% id="load"
def stall(*flags):
    """One line of what was MEASURED, with these flags of the server."""
    found = serve_and_load(*flags)
    ttft = next(r["ttft_us"] for r in found["requests"] if r["role"] == "prompt")
    print(f"MEASURED, serve {' '.join(flags):32} longest gap {found['itl_us']['all']['max'] / 1e3:7.0f} ms; the prompt's TTFT {ttft / 1e3:7.0f} ms")
    for note in found["notes"]:
        print("  note:", note)


if "COURSE_GRADING" in os.environ:
    print("skipped: while a notebook is graded nothing is started and nothing is measured over HTTP")
else:
    try:
        stall("--no-chunking")
        stall("--max-num-batched-tokens", "128")
        print(f"you said {gap_over_ttft}")
    except UserError as error:
        print("skipped:", error)

# %% [markdown] id="load-after"
# To measure another server, use a terminal. URL is its address; `--token-ids` gives exact prompt lengths, if the server
# accepts token ids:
#
#     python -m course_lib load URL --users 24 --prompt-tokens 8192 --token-ids --png freeze.png
#
# With vLLM, try `--max-num-batched-tokens 8192` and `2048`; with SGLang, without and with `--enable-mixed-chunk`.
# Section 4 says what to expect. The lateness of the load generator is measured too, and printed where it matters.

# %% [markdown] id="capstone-text"
# ## 7. Capstone: write a policy
#
# A policy decides what the next step computes. It is a pure function with the arguments of notebook 05's `plan_step`:
# the requests, running ones first, then all waiting ones; and the knobs. The rest of the scheduler (blocks, admission,
# commit) is the library's.
#
# The server: a budget of 8,192, no `max_chunk`, `max_num_seqs` 64, cost `reference-attention`. The targets: TTFT 500
# ms, ITL 50 ms. A request is *good* if it meets both. The workload: 48 requests, 50 a second, one in six with a prompt of
# 4,000 to 12,000 tokens. That is a little more than the server can serve in time, so your policy decides which requests
# wait. How do the shipped policies do?

# %% id="capstone-shipped"
def row(name, report):
    over = f"{report.steps_over_target} steps over 50 ms"
    print(f"{name:44} {report.num_good:2} of {report.num_finished} good, {report.goodput:5.1f}/s   TTFT P50 {report.ttft.percentile(50) / 1e3:4.0f}, P90 {report.ttft.percentile(90) / 1e3:4.0f} ms   ITL max {report.itl.max / 1e3:4.0f} ms   {over}")


SEED = 3
print("modelled, one workload")
for profile, budget in (("whole-prompt", capstone.WHOLE_PROMPT_BUDGET), ("course", 2_048), ("course", 1_920), ("tensorrt-llm-equal-progress", 1_920)):
    row(f"{profile}, budget {budget:,}", capstone.run(capstone.mixed_workload(SEED), profile=profile, budget=budget))
row("plan_step of notebook 05, budget 8,192", capstone.run(capstone.mixed_workload(SEED), plan_step))
print("\nmodelled, good requests of 48 workloads; of each profile the best of the budgets from 1,024 to 2,304")
for (name, budget), percent in capstone.SHARES.items():
    print(f"{name:28} budget {budget:6,} {percent:3}%")

# %% [markdown] id="capstone-ideas"
# `plan_step` fills the budget of 8,192, which gives steps of 150 ms and more. Three ideas; which of them do you need?
#
# - *Time instead of tokens.* The target says how long a step may take. A step's time follows from its contents; with
#   attention the tokens of a long prompt cost more.
# - *Which first?* A short prompt before a long one delays the long one little. In the other order, many short ones miss
#   their target.
# - *No starvation.* If short ones always go first and keep coming, the long one starves. The check `fair` has such
#   crowds: the prompt of about 8,000 tokens must get its first token within 2.2 s, and no streaming user may wait longer
#   than 0.5 s for a token.
#
# ### Exercise 9.4: my_policy
#
# 25 minutes, difficulty 5 of 5, ten to twenty lines. Four checks with separate points:
#
# - *valid*: plans for single states, with knobs at their edges. Every plan keeps the rules, and none is empty while there
#   is work.
# - *fair*: two crowds.
# - *beats*: 55% of all requests of 6 workloads are good. (Whole prompts have 3%, and so has `plan_step` with its budget
#   of 8,192.)
# - *reaches*: 89% of all requests of 12 workloads are good. No shipped profile reaches that with any budget, nor does
#   first come, first served; the course's answer has 93%.
#
# The seeds are not those shown, and other workloads may differ by a percent or two. After 4 of them, a policy that is
# more than 20% below the mark is told so. A run may take 400 steps. The policy is asked anew for each step and is pure: it
# remembers nothing, and asked again about the same requests it plans the same. Start with valid, then improve. The first
# three need only the first idea.

# %% [markdown] id="capstone-hints"
# <details><summary>Hint 1: a direction</summary>
#
# Begin with the decodes, as `plan_step` does. Then compute how many microseconds the target leaves for prompts, and give each
# prompt in turn at most what is left.
#
# </details>
#
# <details><summary>Hint 2: the step that is usually missed</summary>
#
# A prompt token costs 15 us and the attention to the keys before it: `15 + 0.00074 * r.num_tokens` is on the safe side. Sort the
# prompts by `num_uncomputed`, and keep a part of each step, a quarter say, for the one with the smallest `arrival`.
#
# </details>
#
# <details><summary>Hint 3: nearly the code</summary>
#
# `left_us = 48_000 - 2_600 - 108 * len(chunks)`. For the others, `take = min(r.num_uncomputed, max_chunk or left, left,
# int((left_us - kept_us) / token_us))`;
# the oldest comes last, and may take all of `left_us`. Append a chunk only if `take > 0` and the plan has fewer than
# `max_num_seqs` chunks, and subtract its share from `left` and `left_us`.
#
# </details>

# %% id="capstone-solution" exercise="9.4" solution="my_policy" minutes=25 difficulty=5
from collections.abc import Sequence

from course_lib.schedule.request import Chunk, Request

# include course_lib.lessons.nb09_capstone:my_policy

# %% id="capstone-check-valid" check="my_policy" group="valid" points=2
check.my_policy(my_policy, group="valid")

# %% id="capstone-check-fair" check="my_policy" group="fair" points=2
check.my_policy(my_policy, group="fair")

# %% id="capstone-check-beats" check="my_policy" group="beats" points=2
check.my_policy(my_policy, group="beats")

# %% id="capstone-check-reaches" check="my_policy" group="reaches" points=3
check.my_policy(my_policy, group="reaches")

# %% id="capstone-scores"
print("your policy on three workloads (modelled)")
for seed in range(3):
    row(f"seed {seed}", capstone.run(capstone.mixed_workload(seed), my_policy))

# %% [markdown] id="real-text"
# ### Your policy in a real engine (optional)
#
# Up to here your policy ran on a modelled clock. In the engine it plans the same steps for a trained model: three users, one
# of them with a long prompt. Which request is finished first depends on the policy; what each user reads does not.

# %% id="real"
from course_lib.engine import Engine
from course_lib.lessons.real_model import real_model

if found := real_model():
    real, tokenizer = found
    prompts = ["The capital of France is", "One, two, three, four," * 12, "Water boils when"]
    engine = Engine(real, num_blocks=64, max_num_batched_tokens=64, plan_step=my_policy)
    users = [
        engine.add_request(tokenizer.encode(text), max_tokens=12, stop_token_ids=tokenizer.end) for text in prompts
    ]
    while engine.unfinished:
        record = engine.step()
        print(f"step {record.step}: tokens of each user", {user: stop - start for user, start, stop in record.chunks})
    for user in users:
        print(repr(tokenizer.decode(user.token_ids)))

# %% [markdown] id="break-text"
# ### Break it
#
# The wrong policies that the course has collected, on one seed of the workload and in the crowd. **Before you run it**,
# choose the one that you might have written. Which of them would pass by goodput alone?

# %% id="break-table"
print("modelled                             mixed workload            the crowd: long prompt's TTFT, longest gap")
for answer in EXERCISES["my_policy"].wrong_answers:
    policy = wrong("my_policy", answer.name)
    if answer.name == "chunks_of_64":
        continue  # it takes hundreds of steps
    try:
        report = capstone.run(capstone.mixed_workload(SEED), policy)
        crowd = capstone.run(capstone.crowd(SEED), policy, keep=True)
    except ValueError as error:
        print(f"{answer.name:30} refused: {str(error)[:95]}")
        continue
    _, long = max(((r.prompt_tokens, r.ttft_us) for r in crowd.requests), default=(0, 0))
    gap = max((max(r.gaps_us, default=0) for r in crowd.requests), default=0)
    stuck = f", {report.num_starved} starve" if report.num_starved else ""
    print(f"{answer.name:30} {f'{report.num_good} good of 48{stuck}':28} {long / 1e6:6.2f} s {gap / 1e6:6.2f} s")

# %% [markdown] id="break-ask"
# 1. `shortest_first_without_bound` has a fine goodput. What does the crowd show that goodput does not?
# 2. `unchecked_decodes` is not refused here. With which knobs would it be?
# 3. Why is a policy that changes `num_computed` refused, although its plan is right?

# %% [markdown] id="questions-text"
# ## 8. Questions
#
# Six about this notebook, and two about earlier ones. Choose an answer before you read on.

# %% id="questions"
from course_lib.learner.quiz import quiz

quiz("09_production")

# %% [markdown] id="end"
# ## What you can do now
#
# - Time a step on a device that works by itself, fit a cost to the times, and say how far to trust it.
# - Turn a target into `max_chunk` and a budget, and translate both into the flags of a server, by version and date.
# - Say what chunking, mixing and disaggregation each do for TTFT and ITL, and measure it on any server over HTTP.
# - Write a scheduling policy, and test in a crowd whether a request starves under it.
#
# Where to go next: the papers of section 4; FlashAttention (arXiv 2307.08691), which computes notebook 04's tiles on a GPU; and
# the scheduler of the server that you use. You can read it now.
