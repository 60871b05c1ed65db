"""Learning curves as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gossamer.io.charts import as_png, new_figure

_INCHES, _DOTS = (7.0, 5.5), 110
"""Width and height of the picture in inches, and its pixels per inch."""


def png(title: str, losses: Sequence[float], role: str, scores: Mapping[int, float], *,
        of_labels: bool) -> bytes:
    """Return a PNG picture of a learning curve.

    losses: mean loss of each epoch. Their axis is logarithmic if all of them are positive.
    role: name of the data on which the network was scored.
    scores: the score after each epoch, by the epoch's number from 1. The scores are plotted below
    the losses.
    of_labels: True if the scores are accuracies of a classification, False if they are R^2.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(*_INCHES, _DOTS)
    error, share = figure.subplots(2, 1, sharex=True)
    epochs, factor = range(1, len(losses) + 1), 100 if of_labels else 1
    error.plot(epochs, losses, marker=".", color="C3")
    error.set_yscale("log" if min(losses, default=0) > 0 else "linear")
    error.set_ylabel("mean error of a sample")
    error.set_title(title, fontsize=10)
    if scores:
        *_, last = scores.values()
        share.plot(list(scores), [factor * value for value in scores.values()], marker=".",
                   color="C0", label=f"{role}: " + (f"{last:.2%}" if of_labels else f"{last:.4f}"))
        share.legend(fontsize=8)
    share.set_ylabel("right answers, %" if of_labels else "R^2")
    share.set_xlabel("epochs over the samples")
    share.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (error, share):
        axis.grid(which="both", linewidth=0.3)
    return as_png(figure)
