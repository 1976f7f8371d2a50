"""What a command may cost, in one place: refused before it begins, in one line that names the number and the limit.

Bytes are estimates from measurements (2026-12-01), rounded up: what matters is that no number that can be typed takes
the machine. A workload that passes may still take hours; Ctrl-C ends it.
"""

from __future__ import annotations

from course_lib.cli import UserError
from course_lib.cost.linear import TRAILING_STEPS
from course_lib.cost.workload import MOST_TOKENS

MOST_BYTES = 4 * 2**30
BLOCK_BYTES = 150  # of a scheduler's block: its reference count, and its place in the free order
TOKEN_BYTES = 80  # of a token that a simulated request holds
REQUEST_BYTES = 300  # of a request that a simulation has waiting
CHUNK_BYTES = 250  # of a request's part in a recorded step
MOST_SERVERS = 1_024  # of a simulation
MOST_REQUESTS = 10_000_000  # of a workload
MOST_SIMULATED = 10**10  # prompt and output tokens of a workload together
MOST_US = 2**53  # of a simulated clock: beyond, arrivals are no longer exact
MOST_CHUNKS = 2_000_000  # of one prompt's timeline, decodes included: a minute
MOST_PROMPT = 1 << 22  # tokens of one prompt's timeline
MOST_PAIRS = 10**11  # query-key pairs of a real prefill, all runs together
MOST_STEPS = 1_000_000  # of a real prefill, all runs together
MOST_USERS, MOST_EVENTS = 10_000, 20_000_000  # of a load, and tokens that it asks for in all
MOST_TOKEN_ID = 2**31
HUGE = 1e300  # larger numbers are shown as this one


def expect(what: str, value: float, most: int, unit: str = "") -> None:
    """UserError unless value <= most. `what` begins the line; a unit says what is counted."""
    if value > most:
        shown = f"{value:,}" if isinstance(value, int) and value < 10**15 else f"{float(min(value, HUGE)):.3g}"
        raise UserError(f"{what}: {shown}{unit and ' ' + unit}, and at most {most:,} are possible. Ask for less.")


def expect_bytes(what: str, size: float) -> None:
    """UserError for what would need more than MOST_BYTES of memory."""
    if size > MOST_BYTES:
        shown = f"{float(min(size, HUGE)) / 2**30:,.4g} GiB of memory, and may take {MOST_BYTES >> 30}"
        raise UserError(f"{what} would need about {shown}. Ask for less.")


def expect_server(what: str, blocks: int, block_size: int, token_bytes: int) -> None:
    """For an engine on this computer: its pool, and the bookkeeping of its blocks."""
    expect_bytes(what, (blocks + 1) * (block_size * token_bytes + BLOCK_BYTES))


def expect_workload(
    *, servers: int, blocks: int, block_size: int, max_num_seqs: int, requests: int, tokens: float, longest: int,
    last_us: float,
) -> None:  # fmt: skip
    """For a simulation.

    tokens    prompt and output of a request, on average; longest: of the longest
    last_us   when the last request arrives
    """
    expect("servers", servers, MOST_SERVERS)
    expect("requests", requests, MOST_REQUESTS)
    expect("tokens of all prompts and outputs", requests * tokens, MOST_SIMULATED)
    expect("arrival of the last request", last_us, MOST_US, "us")
    expect_bytes(f"{servers} server{'s' * (servers > 1)} with {blocks:,} blocks", servers * blocks * BLOCK_BYTES)
    held = min(requests, servers * 2 * max_num_seqs)  # run, or wait where the scheduler sees them
    pool = blocks * block_size  # a longer request is refused before its tokens are made
    size = held * min(tokens, pool) * TOKEN_BYTES + min(longest, pool, MOST_TOKENS) * TOKEN_BYTES
    size += servers * blocks * BLOCK_BYTES + requests * REQUEST_BYTES
    expect_bytes(f"{requests:,} requests, of which {held:,} are held at once,", size)


def expect_one_prompt(*, steps: int, users: int, prompt: int, context: int, timelines: int = 1) -> None:
    """For a prompt among streaming users on a clock; `timelines` are simulated at the same time."""
    chunks = (steps + TRAILING_STEPS) * (users + 1)
    if chunks > MOST_CHUNKS or max(prompt, context) > MOST_PROMPT:
        raise UserError(
            f"{steps} steps with {users + 1} requests, prompt {prompt}, context {context}: too much for one timeline "
            f"(at most {MOST_CHUNKS} chunks, {MOST_PROMPT} tokens). Ask for larger chunks, fewer users or a shorter "
            "prompt."
        )
    tokens = prompt + users * (context + steps)
    expect_bytes(f"{users} users with contexts of {context}", timelines * (tokens * TOKEN_BYTES + chunks * CHUNK_BYTES))


def expect_prefill(*, tokens: int, hit: int, chunks: list[int | str], block_size: int, config) -> None:
    """For real prefills: one pass, then a run for each of `chunks` ("ragged": 50 tokens on average)."""
    steps = sum(-(-(tokens - hit) // (50 if chunk == "ragged" else chunk)) for chunk in chunks)
    expect("steps of all runs", steps, MOST_STEPS)
    pairs = tokens * tokens // 2 * (1 + len(chunks))
    expect("pairs of tokens that meet in attention, in all runs", pairs, MOST_PAIRS)
    # Measured on "tiny" and "small": the KV three times (pool, one pass, run), and each activation twice, in float32.
    kv = 8 * config.num_layers * config.kv_heads * config.head_dim
    heads = config.q_heads + 2 * config.kv_heads
    widths = config.hidden_size + 2 * config.intermediate_size + heads * config.head_dim
    expect_bytes(f"a prompt of {tokens:,} tokens", tokens * (3 * kv + 8 * widths) + 3 * block_size * kv)


def expect_load(jobs_users: int, tokens: int, prompt_tokens: int, most_prompt: int) -> None:
    """For a load: users who stream, tokens that each asks for, and the long prompt."""
    expect("--users", jobs_users, MOST_USERS)
    expect("tokens that all users ask for", jobs_users * tokens, MOST_EVENTS)
    expect("--prompt-tokens", prompt_tokens, most_prompt)
