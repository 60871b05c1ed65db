"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gossamer.io.images import PRESETS
from gossamer.model.load import expected_models
from gossamer.plan.store.plan_file import SUFFIX

ModelArgument = Annotated[str, typer.Argument(
    metavar="MODEL", help=f"The network: {expected_models()}.")]
ShapeOption = Annotated[list[str] | None, typer.Option(
    metavar="[NAME=]3,224,224",
    help="An input's shape without the batch, where the file leaves it open; may be repeated.")]
WeightsOption = Annotated[str | None, typer.Option(
    metavar="FILE", help="The weights of a .cfg (default: the .weights file beside it).")]
OutputsOption = Annotated[list[str] | None, typer.Option(
    metavar="NAME[,NAME]", help="The outputs that are wanted (default: all); what only others need "
                                "is not computed. May be repeated.")]
PlanArgument = Annotated[str, typer.Argument(
    metavar="MODEL", help=f"A plan that `gossamer compile` saved ({SUFFIX}), "
                          f"{expected_models()}.")]
DeviceOption = Annotated[str | None, typer.Option(
    help="host, opencl:N or cuda:N (default: the best one).")]
DevicesOption = Annotated[str | None, typer.Option(
    "--device", help="host, opencl:N or cuda:N (default: the best one); cuda:all or "
                     "cuda:0,cuda:1 share the work.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
StrictOption = Annotated[bool, typer.Option(
    "--strict", help="Fail when a layer cannot run on the device.")]
LabelsOption = Annotated[Path | None, typer.Option(
    metavar="FILE", help="Names of the classes, one a line.")]
LabelOption = Annotated[str, typer.Option(
    metavar="NAME|N", help="Column of a .csv file's labels: its name in the first line, its number "
                           "from 1, first, or last.")]
PreprocessOption = Annotated[str | None, typer.Option(
    help=f"How photos are prepared: {', '.join(PRESETS)}.")]
SizeOption = Annotated[str | None, typer.Option(help="Height x width: 224 or 224x320.")]
ResizeOption = Annotated[int | None, typer.Option(
    help="Scale the short side to this, then crop the centre to --size.")]
ScaleOption = Annotated[float | None, typer.Option(
    help="Multiply pixel values (0 to 255) by this, before --mean and --std.")]
MeanOption = Annotated[str | None, typer.Option(help="Subtract: one number or three.")]
StdOption = Annotated[str | None, typer.Option(help="Divide by: one number or three.")]
BgrOption = Annotated[bool, typer.Option("--bgr", help="Channels in the order BGR.")]
GreyOption = Annotated[bool, typer.Option("--grey", help="One grey channel.")]
