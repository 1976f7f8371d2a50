"""`python -m course_lib load URL`: what users who stream feel while a long prompt is prefilled, on a real server."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from course_lib.cli import Parser, UserError, at_most, file_to_write, not_negative, positive, write_whole
from course_lib.commands import sizes
from course_lib.commands.idle_knobs import refuse_idle
from course_lib.load.address import endpoint_at, hidden
from course_lib.load.arrivals_csv import read_trace
from course_lib.load.http import httptools_module
from course_lib.load.picture import png
from course_lib.load.prompts import FIRST_ID, MOST_TOKENS, bodies, freeze_jobs, trace_jobs
from course_lib.load.report import summary, text
from course_lib.load.run import FEW, Run, ask_model, run_load
from course_lib.load.sse import plain

INTERRUPTED = 128 + 2
VOCAB = 128  # ids below it are in every vocabulary: the course's smallest has 128


def parser() -> Parser:
    p = Parser(
        prog="python -m course_lib load",
        description=f"Measure what streaming users feel at an OpenAI-compatible server. By default users stream, a "
        f"long prompt arrives among them, and they go on for {FEW} events after its first. TTFT counts from before the "
        "connection is made. Exit 1 if a request failed, 2 if nothing could be measured, 130 after Ctrl-C.",
        example="python -m course_lib load http://127.0.0.1:8000 --users 8 --prompt-tokens 8192 --token-ids",
    )
    p.add_argument("url", metavar="URL", help="where the server is, with or without /v1")
    p.add_argument("--users", type=positive, metavar="U", help="users who stream (default 8)")
    p.add_argument("--tokens", type=positive, metavar="N", help="tokens that each user asks for (default 256)")
    p.add_argument("--prompt-tokens", type=positive, metavar="N", help="tokens in the long prompt (default 8192)")
    p.add_argument(
        "--csv", type=Path, metavar="FILE",
        help="send a trace instead: arrival_s,prompt_tokens,output_tokens[,prefix_id], or a published Azure trace",
    )  # fmt: skip
    p.add_argument("--chat", action="store_true", help="ask /v1/chat/completions (default: /v1/completions)")
    p.add_argument(
        "--token-ids", action="store_true",
        help="send prompts as token ids, exact in length (vLLM and our server take them); default: words, about one "
        "token each",
    )  # fmt: skip
    p.add_argument(
        "--vocab", type=at_most(sizes.MOST_TOKEN_ID), metavar="V",
        help=f"draw the ids from {FIRST_ID} to V - 1 (default {VOCAB})",
    )  # fmt: skip
    p.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    p.add_argument("--api-key", metavar="KEY", help="default: OPENAI_API_KEY; never shown or saved")
    p.add_argument(
        "--timeout", type=_seconds, default=300.0, metavar="S",
        help="how long to wait for each piece of an answer, the first one too (default 300)",
    )  # fmt: skip
    p.add_argument("--ignore-eos", action="store_true", help="ask for all tokens past the end (vLLM and our server)")
    p.add_argument(
        "--extra", metavar="JSON", help="members to set in each request's body; one that is null is left out"
    )
    p.add_argument("--seed", type=not_negative, default=0, metavar="N", help="other prompts, which no cache has seen")
    p.add_argument("--json", metavar="FILE", help="write all that was measured as JSON; - prints only that")
    p.add_argument("--png", metavar="FILE", help="draw every event (needs matplotlib)")
    return p


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    try:
        return _load(args)
    except KeyboardInterrupt:
        print("course_lib load: interrupted before anything was measured.", file=sys.stderr)
        return INTERRUPTED


def _load(args) -> int:
    jobs = _jobs(args)
    extra = _extra(args)
    _refuse_what_cannot_be(args)
    endpoint = endpoint_at(args.url, chat=args.chat, api_key=args.api_key or os.environ.get("OPENAI_API_KEY", ""))
    model = args.model or ask_model(endpoint, args.timeout)
    vocab = (args.vocab or VOCAB) if args.token_ids else None
    sent = bodies(jobs, model=model, chat=args.chat, vocab=vocab, seed=args.seed, extra=extra)
    run = run_load(endpoint, jobs, sent, args.timeout, _say)
    if not any(record.event_ns for record in run.records):
        return _nothing(run)
    about = {
        "url": endpoint.shown,
        "model": hidden(model, endpoint.api_key),
        "scenario": {
            "csv": str(args.csv) if args.csv else None,
            "requests": len(jobs),
            "seed": args.seed,
            "prompts": "token ids" if args.token_ids else "words",
        },
    }
    found = summary(run, about)
    failed = bool(found["failures"])
    if args.json == "-":
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        print(text(found, run.streams(), ascii_only=_ascii_only()))
    if args.json and args.json != "-":  # after the answer is out, so that a full disk does not cost it
        write_whole(Path(args.json), [(json.dumps(found, allow_nan=False) + "\n").encode()])
    if args.png:
        write_whole(Path(args.png), [png(run.streams(), f"measured at {endpoint.shown}")])
    return INTERRUPTED if run.interrupted else 1 if failed else 0


def _nothing(run: Run) -> int:
    if run.interrupted:
        raise KeyboardInterrupt
    errors = [record.error for record in run.records if record.error]
    first = errors[0] if errors else "no answer"
    others = f" (and {len(set(errors)) - 1} other reasons)" if len(set(errors)) > 1 else ""
    raise UserError(f"nothing could be measured, {len(errors)} of {len(run.records)} requests failed: {first}{others}")


def _jobs(args) -> list:
    """What is to be sent. UserError if the flags do not go together, or the trace is not one."""
    if args.csv:
        given = [f for f in ("users", "tokens", "prompt_tokens") if getattr(args, f) is not None]
        if given:
            raise UserError(f"--csv says what is sent: leave out --{given[0].replace('_', '-')}.")
        rows = read_trace(args.csv)
        sizes.expect("tokens of all prompts", sum(row.prompt_tokens for row in rows), MOST_TOKENS)
        sizes.expect("tokens that are asked for", sum(row.output_tokens for row in rows), sizes.MOST_EVENTS)
        return trace_jobs(rows)
    users, tokens, prompt = args.users or 8, args.tokens or 256, args.prompt_tokens or 8_192
    sizes.expect_load(users, tokens, prompt, MOST_TOKENS)
    return freeze_jobs(users, tokens, prompt)


def _extra(args) -> dict:
    extra = {}
    if args.extra:
        try:
            extra = json.loads(args.extra)
        except (ValueError, RecursionError) as error:
            raise UserError(f"--extra is not JSON ({error}); wanted an object such as '{{\"top_p\": 1}}'.") from None
        if not isinstance(extra, dict):
            raise UserError(f"--extra is {plain(args.extra, 40)}, wanted a JSON object such as '{{\"top_p\": 1}}'.")
        if "stream" in extra:
            raise UserError("--extra must leave `stream` alone: what does not stream cannot be measured.")
    given = {"ignore_eos": args.ignore_eos, "model": args.model, "max_tokens": args.tokens}
    for name in sorted(name for name, value in given.items() if value and name in extra):
        flag = {"max_tokens": "--tokens"}.get(name, "--" + name.replace("_", "-"))
        refuse_idle(flag, f"--extra sets {name}")
    return {"ignore_eos": True, **extra} if args.ignore_eos else extra


def _refuse_what_cannot_be(args) -> None:
    """UserError before anything is sent."""
    httptools_module()
    if args.chat and args.token_ids:
        raise UserError("--token-ids is for plain completions: chat messages are text. Leave out --chat.")
    if args.vocab and not args.token_ids:
        raise UserError("--vocab says which token ids are drawn: add --token-ids.")
    if args.vocab and args.vocab <= FIRST_ID:
        raise UserError(f"--vocab {args.vocab} leaves no ids: they begin at {FIRST_ID}.")
    if args.png == "-":
        raise UserError("--png - is not possible: a picture is not printed. Name a file, such as load.png.")
    files = [file for file in (args.json, args.png) if file not in (None, "-")]
    for file in files:
        file_to_write(file)
    if len({os.path.realpath(file) for file in files}) < len(files):
        raise UserError(f"--json and --png both name {args.png}: one would replace the other. Name two files.")
    if args.png:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise UserError('--png needs matplotlib: pip install -e ".[lab]"') from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of seconds above 0")
    return seconds


def _ascii_only() -> bool:
    try:
        "▁█·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _say(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr)
