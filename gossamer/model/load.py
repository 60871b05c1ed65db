"""Loads networks from files and from the zoo."""

from __future__ import annotations

from pathlib import Path

from gossamer.errors import InputError
from gossamer.model.graph import Graph

FORMATS = (".onnx", ".onnx.gz")
"""Suffixes of the files that can be loaded."""


def load(model: str | Path) -> Graph:
    """Load a network from a file or from the zoo.

    Parameters
    ----------
    model : str or Path
        An ONNX file (.onnx or .onnx.gz), or the name of a network of the zoo.

    Returns
    -------
    Graph
        The network, as the file describes it.

    Raises
    ------
    InputError
        If the file is absent, or the format or the name is unknown.
    ModelError
        If the file cannot be read, or holds what gossamer does not compute.

    Examples
    --------
    >>> import gossamer
    >>> graph = gossamer.load("mobilenet_v2")
    """
    name = str(model)
    if name.lower().endswith(FORMATS):
        from gossamer.model.readers.onnx.reader import load_onnx

        return load_onnx(model)
    if isinstance(model, str) and not Path(model).suffix and "/" not in model:
        from gossamer.model import zoo

        return zoo.build(model)
    plan = ("; a plan is loaded by `gossamer run FILE.plan` or gossamer.Plan.load"
            if name.lower().endswith(".plan") else "")
    raise InputError(f"cannot load {name!r}: expected a file ending in {' or '.join(FORMATS)}, "
                     f"or the name of a network of the zoo{plan}")
