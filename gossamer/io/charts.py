"""Matplotlib figures as PNG files, and the check that matplotlib is installed."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

from gossamer.errors import InputError


def missing() -> str | None:
    """Return why figures cannot be drawn; None if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed: pip install matplotlib"
    return None


def check_available(option: str) -> None:
    """Raise InputError if matplotlib is not installed.

    option: the option that requests a figure, for the message.
    """
    if reason := missing():
        raise InputError(f"{option}: {reason}")


def new_figure(width: float, height: float, dots: float) -> Any:
    """Return an empty matplotlib figure that is drawn without a window.

    width, height: size of the figure in inches.
    dots: number of dots per inch.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=dots)
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: Any) -> bytes:
    """Return a figure as the content of a PNG file.

    Equal figures result in the same bytes.
    """
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()
