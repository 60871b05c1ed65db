"""Arguments and options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

from gossamer.model.load import expected_models

ModelArgument = Annotated[str, typer.Argument(
    metavar="MODEL", help=f"The network: {expected_models()}.")]
ShapeOption = Annotated[list[str] | None, typer.Option(
    metavar="[NAME=]3,224,224",
    help="An input's shape without the batch, where the file leaves it open; may be repeated.")]
WeightsOption = Annotated[str | None, typer.Option(
    metavar="FILE", help="The weights of a .cfg (default: the .weights file beside it).")]
DeviceOption = Annotated[str | None, typer.Option(
    help="host, opencl:N or cuda:N (default: the best one).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
