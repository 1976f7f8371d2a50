"""`python -m course_lib serve`: the engine behind a streaming endpoint that OpenAI's clients can use."""

import gc
import os
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

from course_lib.cli import Parser, UserError, at_most, close_stdout, file_to_write, not_negative, positive
from course_lib.commands import sizes
from course_lib.commands.idle_knobs import expect_server_knobs
from course_lib.engine import Engine
from course_lib.schedule.policies import plan_whole_prompt
from course_lib.schedule.profiles import PROFILES
from course_lib.schedule.refusals import why_never
from course_lib.schedule.request import Request
from course_lib.serve.app import LAST_STEP, Service, make_app
from course_lib.serve.engine_loop import EngineLoop
from course_lib.serve.listen import bind, connections_that_fit, make_server, url
from course_lib.serve.protocol import Limits
from course_lib.serve.texts import ByteTexts, LedgerTexts, NoTexts
from course_lib.weights import SEEDED, load_model, seeded_model
from course_lib.weights.config_json import read_config
from course_lib.weights.ledger import ledger_model
from course_lib.weights.tokenizer import NoTokenizer, Tokenizer

# The default budget (max_num_batched_tokens); vLLM's 2,048 and more are for GPUs. Measured with the model "tiny" on two
# CPU cores (2026-11-30), four streams and a prompt of 3,000: the worst gap was 70 ms, and 700 ms without chunking.
BUDGET = 128


def parser() -> Parser:
    p = Parser(
        prog="python -m course_lib serve",
        description="Serve a small model with the OpenAI completions protocol: POST /v1/completions (stream or not),\n"
        "GET /v1/models, GET /health. Prints `serving URL` when it is ready; Ctrl-C ends it.\n"
        "Text needs a folder with a tokenizer.json; the seeded models read bytes (byte b is token b), the ledger its\n"
        "own words. Lists of token ids always work.",
        example="python -m course_lib serve --no-chunking --port 8001",
    )
    which = p.add_mutually_exclusive_group()
    which.add_argument("--seeded", choices=sorted(SEEDED), default="tiny", help="a seeded model (default tiny)")
    which.add_argument("--ledger", action="store_true", help="the trained model that comes with the course")
    which.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face style folder")
    p.add_argument("--arith", choices=("tile", "exact"), default="tile")
    p.add_argument("--backend", choices=("numpy", "torch"), default="numpy")
    p.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="NumPy: float32 only")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")

    engine = p.add_argument_group("the engine")
    engine.add_argument("--profile", choices=PROFILES, default="course", help="which server's rules (default course)")
    engine.add_argument("--no-chunking", action="store_true", help="a prompt runs in one step, and others wait")
    engine.add_argument("--no-prefix-caching", action="store_true")
    engine.add_argument(
        "--max-chunk", type=not_negative, default=0, metavar="N", help="of one request in a step; 0: any"
    )
    engine.add_argument(
        "--max-num-batched-tokens", type=positive, metavar="N",
        help=f"tokens in a step (default {BUDGET}; without chunking, as many as the pool holds)",
    )  # fmt: skip
    engine.add_argument("--max-num-seqs", type=positive, metavar="N", help="requests that run at once (default 64)")
    engine.add_argument("--num-blocks", type=positive, default=2048, metavar="N", help="blocks in the pool (2048)")
    engine.add_argument("--block-size", type=positive, default=16, metavar="B", help="tokens in a block (16)")
    engine.add_argument("--trace", type=file_to_write, metavar="FILE", help="write each step as a line of JSON")

    limits = p.add_argument_group("what clients may do")
    limits.add_argument(
        "--host", default="127.0.0.1", help="default 127.0.0.1: this machine only. There is no password"
    )
    limits.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a further name by which clients may ask for this server, beside localhost and --host; * allows any",
    )  # fmt: skip
    limits.add_argument("--port", type=_port, default=8000, metavar="N", help="default 8000; 0 takes a free one")
    limits.add_argument("--max-model-len", type=positive, metavar="N", help="tokens of prompt and answer together")
    limits.add_argument("--max-tokens", type=positive, metavar="N", help="tokens of an answer")
    limits.add_argument("--max-requests", type=at_most(10**6), default=256, metavar="N", help="run or wait (256)")
    limits.add_argument("--max-body", type=at_most(2**30), default=2**20, metavar="BYTES", help="of a request (1 MiB)")
    limits.add_argument(
        "--max-connections", type=at_most(65_535), default=512, metavar="N",
        help="beyond them only /health works (512)",
    )  # fmt: skip
    limits.add_argument(
        "--client-timeout", type=at_most(86_400), default=30, metavar="SECONDS",
        help="how long a client may take to send a request, or not read what is there for it (30)",
    )  # fmt: skip
    return p


def _port(text: str) -> int:
    port = not_negative(text)
    if port > 65535:
        raise ArgumentTypeError(f"{port} is no port: 0 to 65535")
    return port


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    _refuse_idle(args)
    model, name, root, texts = _model(args)
    try:
        engine = _engine(args, model)
        limits = _limits(args, engine)
    except ValueError as error:
        raise UserError(str(error)) from None
    listening = bind(args.host, args.port)
    trace = args.trace.open("w", buffering=1, encoding="utf-8") if args.trace else None  # whole lines, for a reader
    loop = EngineLoop(engine, trace)
    connections = connections_that_fit(args.max_connections)
    server = make_server(
        make_app(Service(loop, texts, limits, name, root, [args.host, *args.allow_host])),
        client_timeout=args.client_timeout, max_connections=connections,
        on_ready=lambda: _greet(args, url(listening), name, engine, limits, connections), on_stop=loop.stop,
    )  # fmt: skip
    gc.collect()
    gc.freeze()  # what is here stays: a full collection that walks it would hold up every stream
    with _signals(server):
        server.run(sockets=[listening])
    loop.stop()  # again, for a server that was stopped in the middle of stopping
    code = 0 if server.started and not loop.crashed else 1
    if not loop.join(LAST_STEP):  # a long step: nobody waits for its tokens, and Python would wait for its threads
        sys.stderr.flush()
        os._exit(code)
    return code


@contextmanager
def _signals(server):
    """Ctrl-C and SIGTERM end the server, and nothing else. uvicorn hands a signal on when it has stopped."""

    def stop(number, frame):
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _model(args):
    """The model, its name for clients, where a client finds its tokenizer ("" for nowhere), and its texts."""
    where = {"backend": args.backend, "arith": args.arith, "dtype": args.dtype, "device": args.device}
    if args.ledger:
        return ledger_model(**where), "ledger", "", LedgerTexts()
    if args.model:
        vocab_size = read_config(args.model).vocab_size
        try:
            texts = Tokenizer(args.model, vocab_size)
        except NoTokenizer as error:
            texts = NoTexts(vocab_size, str(error))
        return load_model(args.model, **where), args.model.resolve().name, str(args.model), texts
    model = seeded_model(args.seeded, **where)
    return model, args.seeded, "", ByteTexts(model.config.vocab_size)


def _budget(args) -> int:
    whole = args.no_chunking or PROFILES[args.profile].policy is plan_whole_prompt
    return args.max_num_batched_tokens or (args.num_blocks * args.block_size if whole else BUDGET)


def _refuse_idle(args) -> None:
    """UserError, before the model is loaded, for a knob that another one makes idle."""
    expect_server_knobs(
        profile=args.profile, no_chunking=args.no_chunking, no_prefix_caching=args.no_prefix_caching,
        max_chunk=args.max_chunk, budget=_budget(args), max_num_seqs=args.max_num_seqs,
    )  # fmt: skip
    if args.max_num_seqs and args.max_num_seqs > args.max_requests:
        raise UserError(
            f"--max-num-seqs {args.max_num_seqs} never run at once: --max-requests admits {args.max_requests}. "
            "Give as many, or fewer."
        )


def _engine(args, model) -> Engine:
    c, budget = model.config, _budget(args)
    token_bytes = 2 * c.num_layers * c.kv_heads * c.head_dim * (4 if args.dtype == "float32" else 2)
    where = f"a pool of {args.num_blocks} blocks of {args.block_size} tokens"
    sizes.expect_server(where, args.num_blocks, args.block_size, token_bytes if args.device == "cpu" else 0)
    return Engine(
        model, num_blocks=args.num_blocks, block_size=args.block_size, max_num_batched_tokens=budget,
        max_chunk=args.max_chunk, max_num_seqs=args.max_num_seqs or min(64, budget), profile=args.profile,
        enable_prefix_caching=not args.no_prefix_caching, enable_chunked_prefill=not args.no_chunking,
    )  # fmt: skip


def _limits(args, engine: Engine) -> Limits:
    """What is asked for, and else what the model, the pool and, without chunking, a step can hold.

    UserError when a request within those limits could never be served.
    """
    scheduler = engine.scheduler
    longest = min(engine.model.max_model_len, args.num_blocks * args.block_size)
    if not scheduler.profile.chunks_prompts:
        longest = min(longest, scheduler.max_num_batched_tokens)
    longest = args.max_model_len or longest
    if longest < 2:
        raise UserError(f"a prompt and its answer are 2 tokens at least, and there is room for {longest}.")
    if longest > engine.model.max_model_len:
        most = engine.model.max_model_len
        raise UserError(f"--max-model-len {longest} is more than {most}: {engine.model.why_no_longer}")
    if args.max_tokens and args.max_tokens >= longest:
        raise UserError(
            f"--max-tokens {args.max_tokens} would limit nothing: prompt and answer have at most {longest} tokens "
            "together. Give less, or leave it out."
        )
    worst = Request(0, [0] * (longest - 1), max_tokens=1)
    if reason := why_never(worst, scheduler):
        raise UserError(f"a request of {longest} tokens could never finish: {reason}")
    return Limits(
        max_body=args.max_body, max_model_len=longest, max_tokens=args.max_tokens or longest,
        max_requests=args.max_requests,
    )  # fmt: skip


def _greet(args, where: str, name: str, engine: Engine, limits: Limits, connections: int) -> None:
    """Say in one write that the server is ready: programs wait for the first line, and may close the pipe then."""
    step = "prompts in chunks" if engine.scheduler.profile.chunks_prompts else "a prompt in one step"
    fewer = f"; {connections} connections at most (open files)" if connections < args.max_connections else ""
    try:
        sys.stdout.write(
            f"serving {where}\n"
            f"model {name}, {args.arith} arithmetic, {args.backend} {args.dtype} on {args.device}; profile "
            f"{args.profile}, {step}; prompt and answer up to {limits.max_model_len} tokens{fewer}. Ctrl-C ends it.\n"
        )
        sys.stdout.flush()
    except BrokenPipeError:
        close_stdout()
