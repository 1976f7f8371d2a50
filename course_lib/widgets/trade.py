"""The trade of a chunk size, as a picture: waits of the streaming users against what the prompts get."""

SHOWN = (("p99_itl_us", "P99", "o", "-", "#0072b2"), ("worst_itl_us", "max", "s", "--", "#d55e00"))


def draw_trade(figure, sweep: dict) -> None:
    """Draw a sweep's points on a Matplotlib figure: inter-token latency against prefill throughput, and against TTFT.

    sweep   as `sweep --json` prints it: points, target_us, knee_chunk, preset
    """
    from matplotlib.ticker import ScalarFormatter

    points, target = sweep["points"], sweep["target_us"] / 1e3
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, key, scale, label in (
        (left, "prefill_tok_per_s", 1, "prefill throughput, tokens per second"),
        (right, "ttft_us", 1e3, "time to first token of a prompt, ms"),
    ):
        xs = [row[key] / scale for row in points]
        for field, name, marker, line, colour in SHOWN:
            ys = [row[field] / 1e3 for row in points]
            ax.plot(xs, ys, line, marker=marker, color=colour, markersize=5, label=f"{name} inter-token latency")
        for x, row in zip(xs, points):
            ax.annotate(f"{row['chunk']:,}", (x, row["worst_itl_us"] / 1e3), xytext=(0, 6), ha="center", fontsize=7,
                        textcoords="offset points")  # fmt: skip
        ax.axhline(target, color="black", linestyle=":", label=f"target, {target:g} ms")
        ax.set(xlabel=label, yscale="log")
        ax.yaxis.set_major_formatter(ScalarFormatter())
        ax.grid(True, which="both", alpha=0.25)
    left.set_ylabel("inter-token latency, ms (modelled)")
    left.legend(fontsize=8)
    knee = f"{sweep['knee_chunk']:,}" if sweep["knee_chunk"] else "none"
    figure.suptitle(f"chunk sizes, preset {sweep['preset']}; knee for {target:g} ms: {knee}")
