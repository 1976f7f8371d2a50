"""What a run showed, as one dict (which is the JSON) and as text. Every time in it was measured by this client."""

from collections import Counter
from collections.abc import Sequence

from course_lib.load.client import Record
from course_lib.load.measure import (
    PERCENTILES,
    Stream,
    bunched,
    came_at_once,
    freezes,
    overlaps,
    prefills,
    spread,
    waiting_during,
    waits,
)
from course_lib.load.picture import timeline
from course_lib.load.run import Run
from course_lib.load.sse import plain

WORST = 3  # stalls that are listed
MOST_ROWS = 24  # requests that the text lists


def summary(run: Run, about: dict) -> dict:
    """All that was measured; times in whole microseconds from the start of the run. `about`: what was asked, and where.

    percentiles   which kind p50, p90 and p99 are
    tpot_us    each user's mean time per output token after the first
    itl_us     gaps between events of one stream: all; during a prefill; otherwise
    prefill    a wait for the first event: the long prompt's, or in a trace that of any request
    """
    streams = run.streams()
    spans = prefills(streams)
    users = [stream for stream in streams if stream.role == "user"]
    gaps = [wait for stream in users for wait in waits(stream) if wait.whole]
    during = [wait.us for wait in gaps if overlaps(wait, spans)]
    other = [wait.us for wait in gaps if not overlaps(wait, spans)]
    return {
        "label": "measured",
        **about,
        "interrupted": run.interrupted,
        "percentiles": PERCENTILES,
        "ttft_us": spread([s.ttft_us for s in users if s.ttft_us is not None]),
        "tpot_us": spread([s.tpot_us for s in users if s.tpot_us is not None and s.state in ("done", "stopped")]),
        "itl_us": {
            "all": spread([wait.us for wait in gaps]),
            "during_prefill": spread(during),
            "otherwise": spread(other),
        },
        "worst_stalls": [
            {
                "name": wait.name,
                "streams_waiting": together,
                "start_us": wait.start_us,
                "us": wait.us,
                "whole": wait.whole,
                "during_prefill": overlaps(wait, spans),
                "waiting_for_first_event": [s.name for s in waiting_during(wait, streams)[:WORST]],
            }
            for wait, together in freezes(users, WORST)
        ],
        "events_per_s": _rate(streams),
        "tokens_per_event": _tokens_per_event(run.records),
        "http_status": dict(sorted(Counter(str(status) for r in run.records for status in r.status).items())),
        "states": dict(Counter(record.state for record in run.records if record.sent_ns)),
        "not_sent": sum(not record.sent_ns for record in run.records),
        "failures": dict(Counter(r.error for r in run.records if r.state == "failed").most_common()),
        "client_late_us": run.late_ns // 1_000,
        "notes": notes(run, streams, words=about["scenario"]["prompts"] == "words"),
        "requests": [_request(run, r, s) for r, s in zip((r for r in run.records if r.sent_ns), streams)],
    }


def _request(run: Run, record: Record, stream: Stream) -> dict:
    same_try = len(record.connected_ns) == len(record.sent_ns)
    return {
        "name": stream.name,
        "role": stream.role,
        "state": record.state,
        "error": record.error,
        "http_status": record.status,
        "prompt_tokens_asked": record.job.prompt_tokens,
        "max_tokens": record.job.max_tokens,
        "prefix_id": record.job.prefix_id,
        "arrival_us": record.job.arrival_us,
        "usage": {"prompt_tokens": record.usage[0], "completion_tokens": record.usage[1]} if record.usage else None,
        "finish_reason": record.finish,
        "first_sent_us": stream.first_sent_us,
        "sent_us": stream.sent_us,
        "connect_us": (record.connected_ns[-1] - record.sent_ns[-1]) // 1_000 if same_try else None,
        "ttft_us": stream.ttft_us,
        "ttft_from_first_try_us": stream.event_us[0] - stream.first_sent_us if stream.event_us else None,
        "tpot_us": stream.tpot_us,
        "end_us": stream.end_us,
        "event_us": list(stream.event_us),
        "gap_us": stream.gap_us,
    }


def notes(run: Run, streams: Sequence[Stream], *, words: bool) -> list[str]:
    """What a reader must know before believing the numbers, most serious first. words: prompts were sent as text."""
    found = []
    held = [stream for stream in streams if came_at_once(stream)]
    if held:
        found.append(
            f"{len(held)} of {len(streams)} answers came all at once: something on the way holds the stream back (a "
            "proxy that buffers?), or the server does not stream. Their gaps mean nothing."
        )
    together, gaps = bunched(stream for stream in streams if stream not in held)
    if together * 10 > gaps:
        found.append(
            f"{together:,} of {gaps:,} events came together with the one before them (a proxy that passes them on in "
            "pieces?): short gaps and percentiles mean little; the longest gaps stand."
        )
    longest = max((wait.us for stream in streams for wait in waits(stream)), default=0)
    if 4 * run.late_ns // 1_000 > longest:
        found.append(
            f"this client itself was up to {_ms(run.late_ns // 1_000)} ms late: gaps of that size may be its own. "
            "Give it a core of its own, or fewer users."
        )
    found += _about_the_prompt(run, streams, words)
    per_event = _tokens_per_event(run.records)
    if per_event is not None and not 0.9 < per_event < 1.1:
        found.append(
            f"one event carries {per_event:g} tokens on average: gaps are between events, not tokens, and so is the "
            "TPOT of a stream that was stopped."
        )
    short = [r for r in run.records if r.finish == "length" and r.usage and r.usage[1] < r.job.max_tokens]
    if short:
        found.append(f"{len(short)} answers ended with `length` before their max_tokens: the server has a lower limit.")
    retried = sum(len(record.sent_ns) > 1 for record in run.records)
    if retried:
        found.append(f"{retried} requests were sent again because the server was busy; TTFT counts from the last try.")
    undone = sum(bool(record.note) for record in run.records)
    if undone:
        found.append(f"{undone} streams ended without [DONE].")
    return [*found, *(f"the client's event loop: {trouble}" for trouble in run.trouble[:3])]


def _about_the_prompt(run: Run, streams: Sequence[Stream], words: bool) -> list[str]:
    prompt = next((stream for stream in streams if stream.role == "prompt"), None)
    if prompt is None:
        return []
    found = []
    users = [stream for stream in streams if stream.role == "user" and stream.event_us]
    start, end = prompt.prefill
    before = sum(stream.event_us[0] <= start < stream.end_us for stream in users)
    through = sum(stream.event_us[0] <= start and end < stream.end_us for stream in users)
    all_users = sum(record.job.role == "user" for record in run.records)
    if before < all_users:
        found.append(f"{before} of {all_users} users were streaming when the prompt was sent.")
    if through < before and not run.interrupted:
        found.append(
            f"{before - through} of them had ended before its first event: ask for more --tokens, or --ignore-eos."
        )
    record = next(record for record in run.records if record.job.role == "prompt")
    asked = record.job.prompt_tokens
    about_words = "A word is a token only in large vocabularies; --token-ids is exact."
    if record.usage and not 0.9 * asked <= record.usage[0] <= 1.1 * asked:
        found.append(f"the server counts {record.usage[0]:,} tokens in the prompt; {asked:,} were meant. {about_words}")
    if 10 * record.cached > asked:
        found.append(
            f"the server had {record.cached:,} tokens of the prompt in its prefix cache: its TTFT is not that of a new "
            "prompt. Give another --seed."
        )
    if words and record.status[-1:] == [400]:
        found.append(f"the prompt was sent as {asked:,} words and refused. {about_words}")
    return found


def _rate(streams: Sequence[Stream]) -> int | None:
    events = [us for stream in streams for us in stream.event_us]
    took = max(events) - min(stream.first_sent_us for stream in streams) if events else 0
    return len(events) * 1_000_000 // took if took else None


def _tokens_per_event(records: Sequence[Record]) -> float | None:
    """By the server's own count, where it gave one."""
    counted = [(r.usage[1], len(r.event_ns)) for r in records if r.usage and r.event_ns and r.state == "done"]
    return round(sum(c for c, _ in counted) / sum(n for _, n in counted), 2) if counted else None


def text(found: dict, streams: Sequence[Stream], *, ascii_only: bool) -> str:
    """The summary for a person to read."""
    out = [f"measured at {found['url']}, model {plain(found['model'], 60)}" + "; INTERRUPTED" * found["interrupted"]]
    states = ", ".join(f"{count} {state}" for state, count in found["states"].items())
    unsent = f", {found['not_sent']} not sent" if found["not_sent"] else ""
    codes = ", ".join(f"{count} x {code}" for code, count in found["http_status"].items()) or "none"
    out.append(f"{len(found['requests'])} requests: {states}{unsent}; HTTP {codes}")
    out += [f"FAILED {count} x: {error}" for error, count in found["failures"].items()]
    long = next((r for r in found["requests"] if r["role"] == "prompt"), None)
    when = "while the prompt waits for its first event" if long else "while another request waits for its first"
    head = f"\n{'ms, measured':44}{'count':>7}{'p50':>9}{'p90':>9}{'p99':>9}{'max':>9}"
    table = [
        ("TTFT of the users", found["ttft_us"]),
        ("time per output token of each user (TPOT)", found["tpot_us"]),
        ("gaps between events (ITL)", found["itl_us"]["all"]),
        (f"  {when}", found["itl_us"]["during_prefill"]),
        ("  otherwise", found["itl_us"]["otherwise"]),
    ]
    out += [head, *(f"{name:44}{row['count']:7,}{''.join(_cells(row))}" for name, row in table)]
    out.append(f"(P50, P90, P99: {found['percentiles']})")
    if long and long["ttft_us"] is not None:
        tokens = long["usage"]["prompt_tokens"] if long["usage"] else long["prompt_tokens_asked"]
        per_s = tokens * 1_000_000 // max(long["ttft_us"], 1)
        out.append(f"TTFT of the prompt, {tokens:,} tokens: {_ms(long['ttft_us'])} ms ({per_s:,} prompt tokens/s)")
    if found["events_per_s"]:
        out.append(f"events of all streams together: {found['events_per_s']:,} per second")
    out += ["", *map(_stall, found["worst_stalls"])]
    if found["itl_us"]["all"]["count"] and found["itl_us"]["all"]["max"] > 3 * found["itl_us"]["all"]["p99"]:
        out.append("(P99 leaves out one gap in a hundred: a single freeze does not move it. Read the max.)")
    out += ["", *timeline(streams, ascii_only=ascii_only), "", *_requests(found["requests"])]
    return "\n".join(out + [f"note: {note}" for note in found["notes"]])


def _stall(stall: dict) -> str:
    names = stall["waiting_for_first_event"]
    why = f"{', '.join(names)} waited for a first event" if names else "no request waited for a first event"
    least = "" if stall["whole"] else "at least "
    others = f" ({stall['streams_waiting']} streams at once)" if stall["streams_waiting"] > 1 else ""
    at = f"from {stall['start_us'] / 1e6:.3f} s on"
    return f"stall: {stall['name']} waited {least}{_ms(stall['us'])} ms {at}{others}, while {why}"


def _requests(requests: Sequence[dict]) -> list[str]:
    rows = [f"{'request':10}{'state':>12}{'HTTP':>14}{'prompt':>8}{'events':>8}{'TTFT ms':>10}{'worst gap ms':>14}"]
    first = sorted(requests, key=lambda r: (r["state"] != "failed", r["role"] != "prompt"))[:MOST_ROWS]
    for r in first:
        count = r["usage"]["prompt_tokens"] if r["usage"] else r["prompt_tokens_asked"]
        codes = ",".join(map(str, r["http_status"])) or "-"
        worst = _ms(max(r["gap_us"])) if r["gap_us"] else "-"
        ttft = _ms(r["ttft_us"]) if r["ttft_us"] is not None else "-"
        again = f" ({_ms(r['ttft_from_first_try_us'])} from the first try)" if _retried(r) else ""
        rows.append(
            f"{r['name']:10}{r['state']:>12}{codes:>14}{count:8,}{len(r['event_us']):8,}{ttft:>10}{worst:>14}{again}"
        )
    left = len(requests) - len(first)
    return rows + ([f"... and {left:,} more (--json has all)"] if left else [])


def _retried(request: dict) -> bool:
    return request["first_sent_us"] != request["sent_us"] and request["ttft_us"] is not None


def _cells(row: dict) -> list[str]:
    return [f"{_ms(row[name]) if row[name] is not None else '-':>9}" for name in ("p50", "p90", "p99", "max")]


def _ms(us: int) -> str:
    return f"{us / 1_000:,.1f}"
