"""The verb `convert`: writes a network as an ONNX file, for programs that take ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli.onnx_form import onnx_form, serialised
from gossamer.cli.options import ModelArgument, WeightsOption
from gossamer.io import output_files
from gossamer.io.output_files import replacing
from gossamer.io.text import bytes_text


def convert(
    model: ModelArgument,
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="OUT.onnx", help="Write the network here, as ONNX.")],
    weights: WeightsOption = None,
) -> None:
    """Write a network as an ONNX file.

    A network that detects objects ends at its raw heads; anchors, names of classes and how boxes
    are decoded are in the file's metadata.
    """
    make = onnx_form(model, weights)
    output_files.check_file("--output", output, ".onnx", filter(None, (model, weights)))
    content = serialised(model, make())
    with replacing(output) as file:
        file.write(content)
    print(f"written: {output}, an ONNX file of {bytes_text(len(content))}")
