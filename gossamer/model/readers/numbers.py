"""Warnings about the numbers in a file, which all readers give."""

from __future__ import annotations

import numpy as np

from gossamer.errors import quoted
from gossamer.model.graph import Graph


def warn_of_broken_weights(graph: Graph) -> None:
    """Adds a warning for each constant that holds NaN, or infinity and more than one element. A
    constant of one element may be infinite: it may be a bound."""
    readers = {name: node.source for node in reversed(graph.nodes) for name in node.inputs}
    for name, array in graph.constants.items():
        if array.dtype.kind != "f" or name not in readers or np.isfinite(array).all():
            continue
        nan, infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
        if nan or (infinite and array.size > 1):
            graph.warnings.append(f"{graph.file}: weights {quoted(name)} of {readers[name]} hold "
                                  f"{nan} NaN and {infinite} infinite values")
