"""The freeze, drawn from event times: in the terminal, or as a PNG. One row per stream."""

import io
from collections.abc import Sequence

from course_lib.load.measure import Stream

BINS = 72  # columns of time
MOST_ROWS = 16
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", ".:-+oO#@"
SILENT, PLAIN_SILENT = "·", "_"


def timeline(streams: Sequence[Stream], *, ascii_only: bool) -> list[str]:
    """Lines of text: for each stream the events in each bin of time, and a mark where it streams and none came.

    The row of a long prompt shows where it waits for its first event. Nothing is drawn where a stream does not run.
    """
    bars, silent = (PLAIN_BARS, PLAIN_SILENT) if ascii_only else (BARS, SILENT)
    shown = [s for s in streams if s.event_us or s.role == "prompt"]
    if not shown:
        return []
    left = min(s.first_sent_us for s in shown)
    right = max(max((s.end_us, *s.event_us[-1:])) for s in shown)
    width = max(-(-(right - left + 1) // BINS), 1)
    counts = [[0] * BINS for _ in shown]
    for row, stream in zip(counts, shown):
        for us in stream.event_us:
            row[(us - left) // width] += 1
    most = max(map(max, counts)) or 1
    drawn = sorted(range(len(shown)), key=lambda i: shown[i].role != "prompt")[:MOST_ROWS]
    lines = [
        f"one column is {width / 1_000:.1f} ms; {bars[0]} to {bars[-1]}: 1 to {most} events; {silent} streams, and no "
        "event came; = waits for its first event"
    ]
    for i in drawn:
        stream, cells = shown[i], []
        start, first = stream.prefill
        for column, count in enumerate(counts[i]):
            begin, end = left + column * width, left + (column + 1) * width
            if count:
                cells.append(bars[min(count * len(bars) // (most + 1), len(bars) - 1)])
            elif start < end and begin < first:
                cells.append("=")
            elif stream.event_us and first < end and begin < stream.end_us:
                cells.append(silent)
            else:
                cells.append(" ")
        lines.append(f"{stream.name:>9} |{''.join(cells)}|")
    if len(shown) > len(drawn):
        lines.append(f"          (and {len(shown) - len(drawn):,} more)")
    return lines


def png(streams: Sequence[Stream], title: str) -> bytes:
    """A PNG file: a tick for each event, one row per stream; grey where the long prompt waits for its first event.

    ImportError if matplotlib is missing.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, min(1.5 + 0.25 * len(streams), 40)), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    rows = [[us / 1e6 for us in stream.event_us] for stream in streams]
    ax.eventplot(rows, lineoffsets=range(len(rows)), linelengths=0.8, linewidths=0.7, colors="#0072b2")
    for row, stream in enumerate(streams):
        start, end = stream.prefill
        if stream.role == "prompt":
            ax.axvspan(start / 1e6, end / 1e6, color="#dddddd", zorder=0, label="the prompt waits for its first event")
        ax.barh(row, (end - start) / 1e6, left=start / 1e6, height=0.3, color="#d55e00")
    if any(stream.role == "prompt" for stream in streams):
        ax.legend(loc="upper right", fontsize=8)
    if len(streams) <= 64:
        ax.set_yticks(range(len(rows)), [stream.name for stream in streams])
    ax.invert_yaxis()
    ax.margins(x=0.01)
    ax.set(xlabel="s (measured); orange: waits for its first event", title=title)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    return drawn.getvalue()
