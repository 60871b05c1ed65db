"""Draws a chart of speed over sparsity."""

from __future__ import annotations

from gossamer.advise.advice import AS_IT_IS, WAYS, Advice
from gossamer.io.charts import as_png, new_figure
from gossamer.io.text import duration_text


def png(advice: Advice, title: str) -> bytes:
    """Returns a PNG picture of the network's speed over the share of zeros. The speed is given as a
    multiple of the unchanged network's speed. A horizontal line marks the multiple 1."""
    figure = new_figure(7.0, 4.5, 110)
    axis = figure.subplots()
    measured = [way for way in WAYS if way.name in advice.network_us]
    curve = [(0.0, 1.0), *((way.sparsity, advice.speed(way.name)) for way in measured
                           if way.pattern == "unstructured")]
    axis.plot([100 * sparsity for sparsity, _ in curve], [speed for _, speed in curve], marker="o",
              label="any weights")
    for way in measured:
        if way.pattern != "unstructured":
            axis.plot(100 * way.sparsity, advice.speed(way.name), marker="s", linestyle="none",
                      label=f"pattern {way.name}" if way.pattern == way.name else way.name)
    axis.axhline(1.0, linewidth=0.8, color="0.3")
    axis.annotate(f"{AS_IT_IS}: {duration_text(advice.network_us[AS_IT_IS])}", (0, 1.0),
                  xytext=(4, -12), textcoords="offset points", fontsize=8)
    axis.set_xlabel("zeros among the weights, %")
    axis.set_ylabel("times as fast")
    axis.set_ylim(bottom=0)
    axis.set_title(f"{title}, batch {advice.batch}, {advice.description}", fontsize=10)
    axis.legend(fontsize=8)
    axis.grid(linewidth=0.3)
    return as_png(figure)
