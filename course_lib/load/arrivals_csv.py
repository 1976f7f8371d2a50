"""Arrival traces: when each request arrives, how long its prompt and its answer are. One CSV format, strictly read.

    arrival_s,prompt_tokens,output_tokens,prefix_id
    0.0,8192,4,
    0.25,120,64,chat-7

The fourth column may be left out. Rows with the same (not empty) prefix_id begin alike: of any two such prompts the
shorter one is the beginning of the longer one. All other prompts share nothing.

The published Azure LLM inference traces (github.com/Azure/AzurePublicDataset, 2023 and 2024, CC-BY) are read as they
are: `TIMESTAMP,ContextTokens,GeneratedTokens`, with times such as `2023-11-16 18:15:46.6805900` or
`2024-05-10 00:00:00.009930+00:00`. They have no prefix ids; the earliest request arrives at 0.
"""

import csv
import re
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from course_lib.cli import UserError

HEADER = ("arrival_s", "prompt_tokens", "output_tokens")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SECONDS = re.compile(r"([0-9]{1,9})(?:\.([0-9]{0,12}))?")
TOKENS = re.compile(r"0*([1-9][0-9]{0,8})")
TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)


class TraceRow(NamedTuple):
    """One request: arrival_us whole microseconds from the start, token counts of at least 1, "" for no prefix."""

    arrival_us: int
    prompt_tokens: int
    output_tokens: int
    prefix_id: str = ""


def read_trace(path: Path) -> list[TraceRow]:
    """The rows of a trace, sorted by arrival; rows that arrive together stay in the file's order.

    Parts of a microsecond are cut off. UserError names the file and line of the first row that is not as described.
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, strict=True)
        try:
            header = tuple(name.strip() for name in next(lines, ()))
            if header in (HEADER, (*HEADER, "prefix_id")):
                read = _row
            elif header == AZURE:
                read = _azure_row
            else:
                raise UserError(
                    f"{path}, line 1: the columns are {_short(','.join(header))}; wanted {','.join(HEADER)}[,prefix_id]"
                    f" or {','.join(AZURE)}."
                )
            rows = []
            for fields in lines:
                if not fields:  # a blank line
                    continue
                try:
                    if len(fields) != len(header):
                        raise ValueError(f"{len(fields)} fields, but the header has {len(header)}")
                    rows.append(read([field.strip() for field in fields]))
                except ValueError as error:
                    raise UserError(f"{path}, line {lines.line_num}: {error}.") from None
        except csv.Error as error:
            raise UserError(f"{path}, line {lines.line_num}: not CSV ({error}).") from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is not a UTF-8 text file.") from None
    if not rows:
        raise UserError(f"{path} has a header and no requests.")
    if header == AZURE:
        first = min(row.arrival_us for row in rows)
        rows = [row._replace(arrival_us=row.arrival_us - first) for row in rows]
    return sorted(rows, key=lambda row: row.arrival_us)


def _row(fields: list[str]) -> TraceRow:
    found = SECONDS.fullmatch(fields[0])
    if not found:
        raise ValueError(f"arrival_s is {_short(fields[0])}, wanted seconds from the start, such as 0 or 12.5")
    prefix_id = fields[3] if len(fields) > 3 else ""
    if len(prefix_id) > 100:
        raise ValueError(f"prefix_id has {len(prefix_id)} characters, wanted at most 100")
    prompt, output = _tokens("prompt_tokens", fields[1]), _tokens("output_tokens", fields[2])
    return TraceRow(int(found[1]) * 1_000_000 + _micro(found[2]), prompt, output, prefix_id)


def _azure_row(fields: list[str]) -> TraceRow:
    found = TIMESTAMP.fullmatch(fields[0])
    if not found:
        raise ValueError(f"TIMESTAMP is {_short(fields[0])}, wanted a time such as 2023-11-16 18:15:46.6805900")
    zone = (found[4] or "Z").replace("Z", "+00:00")  # the 2023 files name no zone
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}")
        seconds = int(moment.timestamp())
    except (ValueError, OverflowError) as error:
        raise ValueError(f"TIMESTAMP {_short(fields[0])}: {error}") from None
    prompt, output = _tokens("ContextTokens", fields[1]), _tokens("GeneratedTokens", fields[2])
    return TraceRow(seconds * 1_000_000 + _micro(found[3]), prompt, output)


def _tokens(name: str, text: str) -> int:
    found = TOKENS.fullmatch(text)
    if not found:
        raise ValueError(f"{name} is {_short(text)}, wanted a whole number from 1 to 999999999")
    return int(found[1])


def _micro(fraction: str | None) -> int:
    return int(((fraction or "") + "000000")[:6])


def _short(text: str) -> str:
    return repr(text[:60])
