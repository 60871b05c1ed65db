"""Warns of weights that hold NaN or infinity; all readers of files use this warning."""

from __future__ import annotations

import numpy as np

from gossamer.errors import quoted
from gossamer.model.graph import Graph


def warn_of_broken_weights(graph: Graph) -> None:
    """Adds a warning for each constant that holds NaN, and for each constant of several elements
    that holds infinity. A constant of one element may be infinite, since it may be a bound, such as
    a limit of Clip."""
    readers = {name: node.source for node in reversed(graph.nodes) for name in node.inputs}
    for name, array in graph.constants.items():
        if array.dtype.kind != "f" or name not in readers or np.isfinite(array).all():
            continue
        nan, infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
        if nan or (infinite and array.size > 1):
            graph.warnings.append(f"{graph.file}: weights {quoted(name)} of {readers[name]} hold "
                                  f"{nan} NaN and {infinite} infinite values")
