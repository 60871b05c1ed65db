"""Figures of matplotlib as PNG files, and the check that matplotlib is installed."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

from gossamer.errors import InputError


def missing() -> str | None:
    """Return why no figure can be drawn; None where matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed: pip install matplotlib"
    return None


def check_available(option: str) -> None:
    """Raise InputError where matplotlib is not installed.

    option: the option that asks for a figure, for the message.
    """
    if reason := missing():
        raise InputError(f"{option}: {reason}")


def new_figure(width: float, height: float, dots: float) -> Any:
    """Return an empty figure of matplotlib that is drawn without a window.

    width, height: size of the figure in inches.
    dots: number of dots per inch.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=dots)
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: Any) -> bytes:
    """Return a figure as the content of a PNG file. Equal figures give the same bytes."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()
