"""The chart of servers under load: latency over the rate of requests."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.io.charts import as_png, check_available, new_figure
from gossamer_bench.serving import ServingRow


def serving_png(rows: Sequence[ServingRow]) -> bytes:
    """Returns a plot of latencies over the number of requests per second. Each server has a line
    for the 99th percentile of its latencies, and a thinner line for their median. Raises InputError
    where matplotlib is missing."""
    check_available("--plot")
    from matplotlib.ticker import LogFormatter, NullFormatter

    figure = new_figure(9, 4.5, 100)
    axes = figure.add_subplot()
    for server in dict.fromkeys(row.server for row in rows):
        points = sorted((row.rate, row.p50_ms, row.p99_ms) for row in rows
                        if row.server == server and row.rate is not None)
        if not points:
            continue
        rates, medians, tails = zip(*points, strict=True)
        (line,) = axes.plot(rates, tails, "o-", label=f"{server}: p99")
        axes.plot(rates, medians, "--", color=line.get_color(), linewidth=1,
                  label=f"{server}: median")
    axes.set(xlabel="requests a second", ylabel="milliseconds", yscale="log", xscale="log",
             title="Time from when a request is due to its answer")
    measured = sorted({row.rate for row in rows if row.rate is not None})
    axes.set_xticks(measured, [f"{rate:,g}" for rate in measured])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    return as_png(figure)
