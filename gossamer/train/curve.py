"""Learning curves as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gossamer.io.charts import as_png, new_figure

_INCHES, _DOTS = (7.0, 5.5), 110
"""Width and height of the picture in inches, and its pixels per inch."""


def png(title: str, losses: Sequence[float],
        accuracies: Mapping[str, Mapping[int, float]], of_labels: bool = True) -> bytes:
    """Return a PNG picture of a learning curve.

    losses: mean loss of each epoch. Their axis is logarithmic if all of them are positive.
    accuracies: the names of data sets, each with a mapping from an epoch's number, from 1, to the
    accuracy or R^2 after this epoch. The accuracies are plotted below the losses.
    of_labels: True if `accuracies` has accuracies of a classification, False if it has R^2.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(*_INCHES, _DOTS)
    error, share = figure.subplots(2, 1, sharex=True)
    epochs, factor = range(1, len(losses) + 1), 100 if of_labels else 1
    error.plot(epochs, losses, marker=".", color="C3")
    error.set_yscale("log" if min(losses, default=0) > 0 else "linear")
    error.set_ylabel("mean error of a sample")
    error.set_title(title, fontsize=10)
    for index, (data_name, points) in enumerate(accuracies.items()):
        last = list(points.values())[-1]
        share.plot(list(points), [factor * value for value in points.values()], marker=".",
                   color=f"C{index}",
                   label=f"{data_name}: " + (f"{last:.2%}" if of_labels else f"{last:.4f}"))
    share.set_ylabel("right answers, %" if of_labels else "R^2")
    share.set_xlabel("epochs over the samples")
    share.xaxis.set_major_locator(MaxNLocator(integer=True))
    if accuracies:
        share.legend(fontsize=8)
    for axis in (error, share):
        axis.grid(which="both", linewidth=0.3)
    return as_png(figure)
