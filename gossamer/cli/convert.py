"""The verb `convert`: write a network as an ONNX file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import onnx
import typer
from google.protobuf.message import EncodeError

from gossamer.cli.arguments import ModelArgument, WeightsOption, load_graph
from gossamer.errors import InputError, ModelError
from gossamer.io import output_files
from gossamer.io.output_files import replacing
from gossamer.io.text import bytes_text
from gossamer.model import zoo
from gossamer.model.load import expected_models, other_kind
from gossamer.model.onnx_writer import to_onnx
from gossamer.model.readers import registry


def convert(
    model: ModelArgument,
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="OUT.onnx", help="File to write.")],
    weights: WeightsOption = None,
) -> None:
    """Write a network as an ONNX file.

    The outputs of a detector are its raw heads. The metadata of the file contain the anchors, the
    class names, and the encoding of boxes.
    """
    make = onnx_form(model, weights)
    output_files.check_file("--output", output, ".onnx", filter(None, (model, weights)))
    content = serialised(model, make())
    with replacing(output) as file:
        file.write(content)
    print(f"written: {output}, an ONNX file of {bytes_text(len(content))}")


def onnx_form(model: str, weights: str | None) -> Callable[[], onnx.ModelProto]:
    """Return a function that creates the ONNX model of the MODEL argument.

    An ONNX file is read without changes. The graphs of other networks are converted to ONNX.

    weights: the file of --weights.
    Raises InputError if MODEL is not a network.
    """
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
    """Prefix errors in a `with` block with the MODEL argument, unless they contain it."""
    try:
        yield
    except (InputError, ModelError) as error:
        text = str(error).removeprefix("ONNX model: ")
        if text.startswith((f"{model}: ", f"cannot read {model}: ")):
            raise
        raise type(error)(f"{model}: {text}") from None


def serialised(model: str, network: onnx.ModelProto) -> bytes:
    """Return an ONNX model as the content of a file.

    model: the MODEL argument, for the message.
    Raises InputError if the network is too large for one file.
    """
    try:
        return network.SerializeToString()
    except (EncodeError, ValueError):
        raise InputError(f"{model}: has more than 2 GB of weights, too many for one ONNX file"
                         ) from None
