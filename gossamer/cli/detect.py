"""The verb `detect`: finds objects on photos, and draws boxes round them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import gossamer
from gossamer.cli.arguments import load_graph, load_plan
from gossamer.cli.detect_output import DetectOutput, Finding
from gossamer.cli.options import (
    DeviceOption,
    JsonOption,
    PlanArgument,
    ShapeOption,
    StrictOption,
    WeightsOption,
)
from gossamer.detect.detector import Detector
from gossamer.device.registry import names_several
from gossamer.errors import InputError, one_line
from gossamer.io import terminal
from gossamer.io.images import FORMATS, load_image
from gossamer.io.labels.reader import read_names
from gossamer.plan.candidate import counted
from gossamer.plan.plan_group import PlanGroup

_Photo = tuple[Path, np.ndarray]


def detect(
    model: PlanArgument,
    images: Annotated[list[str], typer.Argument(
        metavar="IMAGE...", help="Photos, or folders of photos.")],
    names: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Names of the classes, one a line.")] = None,
    threshold: Annotated[float | None, typer.Option(
        metavar="0.25", help="Least score of a box.")] = None,
    nms: Annotated[float | None, typer.Option(
        "--nms", metavar="0.45",
        help="Overlap above which the lower of two boxes of a class is dropped.")] = None,
    resize: Annotated[str | None, typer.Option(
        help="How photos come to the network's size: stretch or letterbox (default: as the "
             "network was made for).")] = None,
    output: Annotated[str | None, typer.Option(
        "--output", "-o", metavar="OUT",
        help="Write the photo with its boxes here (.jpg, .png), all photos and detections.json in "
             "a folder, or only a .json file.")] = None,
    device: DeviceOption = None,
    batch: Annotated[int, typer.Option(min=1, help="Photos at once.")] = 1,
    shape: ShapeOption = None,
    weights: WeightsOption = None,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find objects on photos, and draw boxes round them."""
    paths = _photos(images)
    out = None if output is None else DetectOutput(output, paths, [model, weights, names])
    class_names = None if names is None else read_names(names, "--names")
    if names_several(device):
        raise InputError(f"--device {device}: detect runs on one device")
    plan = load_plan(model, device, shape, weights, strict)
    if plan is None:
        plan = gossamer.compile(load_graph(model, shape, weights, precision="fp32"), device,
                                strict=strict)
    try:
        assert not isinstance(plan, PlanGroup)
        detector = Detector(plan, names=class_names, threshold=threshold, nms=nms, resize=resize)
    except InputError as error:
        raise InputError(_as_option(str(error), names)) from None
    run = _Run(detector, batch, out, prints=not as_json)
    run.detect(paths)
    if as_json:
        terminal.print_json(run.as_json(model))
    else:
        run.print_end()
    if out is not None and out.finish(run.as_json(model)) and not as_json:
        terminal.print_line(f"written: {output}")
    if run.failed:
        raise typer.Exit(2)


def _photos(images: Sequence[str]) -> list[Path]:
    """Returns the given photos, and the photos in the given folders in the order of their names. A
    notice names images of other formats in a folder. Raises InputError for a folder without
    photos."""
    Image.init()
    paths: list[Path] = []
    for text in images:
        if not text:
            raise InputError("IMAGE: the name is empty; expected a photo or a folder of photos")
        if not Path(text).is_dir():
            paths.append(Path(text))
            continue
        inside = sorted(path for path in Path(text).iterdir() if not path.name.startswith(".")
                        and path.suffix.lower() in Image.EXTENSION and path.is_file())
        photos = [path for path in inside if Image.EXTENSION[path.suffix.lower()] in FORMATS]
        if not photos:
            raise InputError(f"{text}: is a folder without photos ({', '.join(FORMATS)}; folders "
                             "inside it are not looked into)")
        if len(photos) < len(inside):
            left_out = [path.name for path in inside if path not in photos]
            more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
            terminal.notice(f"{text}: left out, as none of {', '.join(FORMATS)}: "
                            f"{', '.join(left_out[:3])}{more}", "warning")
        paths += photos
    return paths


def _as_option(message: str, names: Path | None) -> str:
    """Returns a message of the detector in the words of the command line: where the message is
    about an option, it begins with the option's name."""
    if message.split()[0] in ("threshold", "nms", "resize"):
        return f"--{message}"
    return f"--names {names}: {message}" if "names are given" in message else message


@dataclass
class _Run:
    """Runs the detector on photos, one batch after the other, and keeps its findings.

    detector: the detector.
    batch: the most photos of a batch.
    output: the files of --output; None without the option.
    prints: whether the findings on a photo are printed at once.
    findings: the photos so far, with the objects on each.
    failed: number of photos that could not be read.
    seconds: time that the timed photos took.
    timed: number of photos that were timed. Of several batches the first is not timed, since it
    includes the choice of the plan's algorithms.
    """

    detector: Detector
    batch: int
    output: DetectOutput | None
    prints: bool
    findings: list[Finding] = field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0
    timed: int = 0

    def detect(self, paths: Sequence[Path]) -> None:
        """Finds the objects on all photos, shows a bar of the progress, and names the photos that
        cannot be read."""
        console = Console(stderr=True)
        with Progress(TextColumn("detecting", markup=False), BarColumn(), MofNCompleteColumn(),
                      TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=console,
                      transient=True, disable=not console.is_terminal or len(paths) < 2,
                      redirect_stdout=sys.stdout.isatty()) as progress:
            task = progress.add_task("", total=len(paths), rate="")
            start = time.perf_counter()
            for index, (count, photos) in enumerate(self._batches(paths)):
                self._detect(photos)
                now = time.perf_counter()
                if index == 0 and count < len(paths):
                    start = now
                else:
                    self.timed += len(photos)
                    self.seconds = now - start
                progress.update(task, advance=count, rate=self.rate_text)

    @property
    def rate_text(self) -> str:
        """Photos a second; empty where nothing was timed."""
        return f"{self.timed / self.seconds:.3g} photos/s" if self.timed and self.seconds else ""

    def as_json(self, model: str) -> dict[str, Any]:
        plan = self.detector.plan
        return {"model": model, "device": plan.device.name,
                "description": plan.device.description, "threshold": self.detector.threshold,
                "nms": self.detector.nms, "resize": self.detector.resize,
                "photos_per_second": self.timed / self.seconds if self.timed else None,
                "results": [finding.as_json() for finding in self.findings]}

    def print_end(self) -> None:
        """Prints how many objects were found, on how many photos, on which device and how fast."""
        found = [finding for finding in self.findings if finding.error is None]
        objects = sum(len(finding.boxes) for finding in found)
        failed = f", {self.failed} could not be read" if self.failed else ""
        rate = f"; {self.rate_text}" if self.rate_text and len(self.findings) > 1 else ""
        print(f"\n{counted(objects, 'object') if objects else 'no objects'} on "
              f"{counted(len(found), 'photo')}{failed}; on "
              f"{self.detector.plan.device.name}{rate}")

    def _batches(self, paths: Sequence[Path]) -> Iterator[tuple[int, list[_Photo]]]:
        """Yields for each batch the number of all its photos, and the photos that can be read."""
        for start in range(0, len(paths), self.batch):
            of_batch = paths[start:start + self.batch]
            photos: list[_Photo] = []
            for path in of_batch:
                try:
                    photos.append((path, load_image(path)))
                except InputError as error:
                    self.failed += 1
                    self.findings.append(Finding(path, error=str(error)))
                    terminal.notice(error, "error")
            yield len(of_batch), photos

    def _detect(self, photos: list[_Photo]) -> None:
        """Finds, prints and draws the objects of a batch."""
        found = self.detector.detect([image for _, image in photos])
        for (path, image), boxes in zip(photos, found, strict=True):
            finding = Finding(path, (image.shape[0], image.shape[1]), boxes)
            self.findings.append(finding)
            if self.output is not None:
                self.output.write(path, image, boxes)
            if self.prints:
                self._print(finding)

    def _print(self, finding: Finding) -> None:
        height, width = finding.size
        name = f"{one_line(str(finding.path))} ({width}x{height})"
        if not finding.boxes:
            print(f"{name}: no objects with a score above {self.detector.threshold:g}")
            return
        print(f"{name}: {len(finding.boxes)} objects")
        for box in finding.boxes:
            print(f"{box.score:8.1%}  {one_line(box.name)}, {box.left:.0f},{box.top:.0f} to "
                  f"{box.right:.0f},{box.bottom:.0f}")
