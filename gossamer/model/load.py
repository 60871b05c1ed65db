"""Loads networks from files and from the zoo."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer.errors import (
    GossamerWarning,
    InputError,
    first_line,
    kind_of,
    quoted,
    similar_file,
)
from gossamer.model.formats import with_outputs
from gossamer.model.graph import Graph
from gossamer.model.readers import other_kinds, registry


def load(model: Any, *more_files: str | Path, weights: str | Path | None = None,
         outputs: Sequence[str] | None = None, precision: str | None = None) -> Graph:
    """Load a network from files, from memory or from the zoo.

    Parameters
    ----------
    model : str, Path, bytes, file object, onnx.ModelProto or Graph
        One of:
        - a model file, recognised by its suffix: an ONNX file (.onnx or .onnx.gz) or a Darknet
          network (.cfg);
        - the name of a network of the zoo;
        - an ONNX model in memory: its bytes, a binary file that is open for reading, or the model
          as onnx.load returns it;
        - a Graph: the result is this graph with only the outputs named by `outputs`.
    *more_files : str or Path
        Further files of the model, such as its weights. By default, files with the name of the
        first file and another suffix, in the same folder.
    weights : str or Path, optional
        The weights file of a Darknet network; it may also be passed in `more_files`.
    outputs : sequence of str, optional
        Names of the outputs to compute, in this order; by default all outputs. Nodes that only
        other outputs need are not computed.
    precision : {"fp32", "tf32", "fp16"}, optional
        The precision that will be passed to `compile`. With a precision, float64 in an ONNX file
        becomes float32, with a warning. Without a precision, ONNX Runtime computes float64 on the
        host, if it is installed.

    Returns
    -------
    Graph
        The network, as the files describe it.

    Raises
    ------
    InputError
        If a file is absent, if the kind of file or the name of the network is unknown, if there are
        more files than a model of this kind has, or if a name in `outputs` is unknown.
    ModelError
        If a file cannot be read, or contains a node that gossamer cannot compute.

    Warns
    -----
    GossamerWarning
        If numbers in the file are NaN, or are rounded to a narrower dtype, as float64 is to
        float32. The graph's attribute `warnings` holds the texts of the warnings.

    Examples
    --------
    >>> import gossamer
    >>> graph = gossamer.load("mobilenet_v2")
    """
    graph = _loaded(model, more_files, weights, outputs, precision is not None)
    if graph is not model:
        for warning in graph.warnings:
            warnings.warn(warning, GossamerWarning, stacklevel=2)
    return graph


def _loaded(model: Any, more_files: Sequence[str | Path], weights: str | Path | None,
            outputs: Sequence[str] | None, narrows: bool) -> Graph:
    """Return the network as `load` does, without showing the network's warnings.

    narrows: whether float64 becomes float32.
    """
    if any(kind.__module__.split(".")[:2] == ["torch", "nn"] for kind in type(model).__mro__):
        raise InputError(f"cannot load {kind_of(model)}, a module of PyTorch: "
                         "gossamer.optimize(module.eval(), example_input) returns a fast module "
                         "for it")
    if not isinstance(model, str | os.PathLike):
        further = more_files if weights is None else (*more_files, weights)
        return _from_memory(model, further, outputs, narrows)
    name = str(model)
    if "://" in name:
        raise InputError(f"{quoted(name)} is a URL, and gossamer reads local files; download it "
                         "and pass the file")
    reader = registry.reader_of(name)
    files = [Path(file) for file in more_files]
    if weights is not None:
        files = _with_weights(name, reader, files, Path(weights))
    if reader is not None:
        paths = reader.files(Path(model), files)
        if reader.chooses_outputs:
            return reader.read(*paths, outputs=outputs, narrows=narrows)
        return with_outputs(reader.read(*paths), outputs)
    from gossamer.model import zoo

    if name not in zoo.MODELS and (kind := other_kind(name)) is not None:
        raise InputError(f"{name}: {kind}")
    if name not in zoo.MODELS and Path(name).is_dir():
        raise InputError(f"{quoted(name)} is a folder; expected {expected_models()}")
    if isinstance(model, str) and not Path(model).suffix and "/" not in model:
        if files:
            raise InputError(f"{name}: a network of the zoo takes no files; leave out {files[0]}")
        return with_outputs(zoo.build(model), outputs)
    raise InputError(f"cannot load {quoted(name)}: expected {expected_models()}{_hint(name)}")


def _from_memory(model: Any, files: Sequence[str | Path],
                 outputs: Sequence[str] | None, narrows: bool) -> Graph:
    """Return the network of a graph, or of an ONNX model in memory."""
    if files:
        raise InputError(f"{kind_of(model)} takes no further files; leave out {files[0]}")
    if isinstance(model, Graph):
        return with_outputs(model, outputs)
    if hasattr(model, "read"):
        try:
            model = model.read()
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the file object: {first_line(error)}") from None
        if not isinstance(model, bytes):
            raise InputError("the file object returned text, expected bytes; open it in mode 'rb'")
    if isinstance(model, bytearray | memoryview):
        model = bytes(model)
    if isinstance(model, bytes) or hasattr(model, "SerializeToString"):
        from gossamer.model.readers.onnx.reader import load_onnx

        return load_onnx(model, outputs, narrows=narrows)
    raise InputError(f"cannot load {kind_of(model)}: expected the name of a file or of a "
                     "network of the zoo, an ONNX model as bytes, file object or onnx.ModelProto, "
                     "or a Graph")


def expected_models() -> str:
    """Return the kinds of models that `load` accepts, for messages.

    Returns
    -------
    str
        The kinds of files with their suffixes, and the networks of the zoo.
    """
    from gossamer.model import zoo

    return (f"{registry.descriptions()}, or the name of a network of the zoo "
            f"({', '.join(zoo.MODELS)})")


def _with_weights(name: str, reader: registry.Reader | None, files: list[Path],
                  weights: Path) -> list[Path]:
    """Return the list of a model's further files, which contains only `weights`.

    files: the further files that the caller has passed.
    Raises InputError if the model has no weights file, or if `files` is not empty.
    """
    takes_weights = reader is not None and [file.content for file in reader.further] == ["weights"]
    if files or not takes_weights:
        kind = f"is {reader.kind}, which" if reader is not None and not takes_weights else "it"
        raise InputError(f"{name}: {kind} takes no further file of weights; leave out {weights}")
    return [weights]


def other_kind(name: str) -> str | None:
    """Return the kind of a file that no reader accepts, with advice; None for unknown kinds."""
    if (Path(name).suffix or "/" in name) and not Path(name).exists():
        return (f"no such file or folder{similar_file(name)}; expected {expected_models()}"
                f"{_hint(name)}")
    return other_kinds.by_content(Path(name)) or (
        None if _hint(name) else other_kinds.by_name(Path(name)))


def _hint(name: str) -> str:
    """Return the end of a message: advice for a saved plan or for a further file of a model.

    Returns "" for any other file.
    """
    if name.lower().endswith(".plan"):
        return "; a plan is loaded by `gossamer run FILE.plan` or gossamer.Plan.load"
    for reader in registry.READERS:
        for file in reader.further:
            if name.lower().endswith(file.suffix):
                return (f"; {file.suffix} holds the {file.content} of {reader.kind}: name the "
                        f"{reader.suffixes[0]} file first")
    return ""
