"""How a network comes in: files and the zoo become graphs."""

from __future__ import annotations

from pathlib import Path

from gossamer.errors import InputError
from gossamer.model.graph import Graph

FORMATS = (".onnx", ".onnx.gz")


def load(model: str | Path) -> Graph:
    """The graph of a model file, or of a network of the zoo where there is no suffix.

    Raises InputError for an absent file, an unknown format or an unknown name; ModelError for
    a file that cannot be read or computed.
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
