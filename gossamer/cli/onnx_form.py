"""Makes ONNX models of networks, for the verbs that write ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import onnx
from google.protobuf.message import EncodeError

from gossamer.cli.arguments import load_graph
from gossamer.errors import InputError, ModelError
from gossamer.model import zoo
from gossamer.model.load import expected_models, other_kind
from gossamer.model.onnx_writer import to_onnx
from gossamer.model.readers import registry


def onnx_form(model: str, weights: str | None) -> Callable[[], onnx.ModelProto]:
    """Returns a function that returns the network of the MODEL argument as ONNX. The content of an
    ONNX file stays as it is; for other networks the nodes of the graph are written as ONNX.
    weights: the file of --weights. Raises InputError where MODEL names no network."""
    reader = registry.reader_of(model)
    if model not in zoo.MODELS and reader is None:
        if (kind := other_kind(model)) is not None:
            raise InputError(f"{model}: {kind}")
        raise InputError(f"{model}: expected {expected_models()}; export other networks as ONNX "
                         "first")
    if model in zoo.MODELS or weights is not None or reader is None or reader.read_onnx is None:
        return lambda: to_onnx(load_graph(model, None, weights))
    return partial(reader.read_onnx, Path(model))


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Makes errors about the model that the function of onnx_form() returns name the MODEL argument
    once."""
    try:
        yield
    except (InputError, ModelError) as error:
        text = str(error).removeprefix("ONNX model: ")
        if text.startswith((f"{model}: ", f"cannot read {model}: ")):
            raise
        raise type(error)(f"{model}: {text}") from None


def serialised(model: str, network: onnx.ModelProto) -> bytes:
    """Returns the content of an ONNX file. model: the MODEL argument, for messages. Raises
    InputError where the network is too large for one file."""
    try:
        return network.SerializeToString()
    except (EncodeError, ValueError):
        raise InputError(f"{model}: has more than 2 GB of weights, which one ONNX file cannot "
                         "hold") from None
