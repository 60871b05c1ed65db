"""The verb `detect`: find objects on photos, and draw boxes around them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import typer
from PIL import Image

import gossamer
from gossamer.cli import arguments
from gossamer.cli.arguments import load_graph, load_plan
from gossamer.cli.report import input_bar
from gossamer.cli.run_inputs import picture_files
from gossamer.detect.decoding import Box
from gossamer.detect.detector import Detector
from gossamer.detect.drawing import draw_boxes
from gossamer.device.registry import names_several
from gossamer.errors import InputError, one_line
from gossamer.io import terminal
from gossamer.io.images import load_image
from gossamer.io.labels.reader import read_names
from gossamer.io.output_files import check_place, replacing
from gossamer.plan.candidate import counted
from gossamer.plan.plan_group import PlanGroup

_Photo = tuple[Path, np.ndarray]


def detect(
    model: arguments.PlanArgument,
    images: Annotated[list[str], typer.Argument(
        metavar="IMAGE...", help="Photos, or folders of photos.")],
    names: Annotated[Path | None, typer.Option(
        metavar="FILE", help="File of class names, one per line.")] = None,
    threshold: Annotated[float | None, typer.Option(
        metavar="0.25", help="Minimum score of a box (default: the network's own).")] = None,
    nms: Annotated[float | None, typer.Option(
        "--nms", metavar="0.45",
        help="Maximum overlap (IoU) of two boxes of a class (default: the network's own).")] = None,
    resize: Annotated[str | None, typer.Option(
        help="How photos are resized to the input: stretch or letterbox (default: the network's "
             "own).")] = None,
    output: Annotated[str | None, typer.Option(
        "--output", "-o", metavar="OUT",
        help="Write the annotated photo (.jpg, .png), a folder of annotated photos and "
             "detections.json, or a .json file.")] = None,
    device: arguments.DeviceOption = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    shape: arguments.ShapeOption = None,
    weights: arguments.WeightsOption = None,
    strict: arguments.StrictOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Find objects on photos, and draw boxes around them."""
    if "" in images:
        raise InputError("IMAGE: the name is empty; expected a photo or a folder of photos")
    paths = list(map(Path, picture_files(images)))
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


def _as_option(message: str, names: Path | None) -> str:
    """Prefix a message of the detector with the option that caused it."""
    if message.split()[0] in ("threshold", "nms", "resize"):
        return f"--{message}"
    return f"--names {names}: {message}" if "class names, but" in message else message


@dataclass
class _Run:
    """The detection of objects on all photos, batch by batch.

    batch: maximum number of photos in a batch.
    output: the files of --output; None without the option.
    prints: whether the objects on a photo are printed as soon as they are found.
    findings: the objects on each photo so far.
    failed: number of unreadable photos.
    timed: number of timed photos. If there are several batches, the first batch is not timed: its
    time would include the choice of the plan's algorithms.
    seconds: total time of the timed photos.
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
        """Find the objects on all photos with a progress bar; report unreadable photos."""
        with input_bar() as progress:
            task = progress.add_task("detecting", total=len(paths))
            start = time.perf_counter()
            for index, (count, photos) in enumerate(self._batches(paths)):
                self._detect(photos)
                now = time.perf_counter()
                if index == 0 and count < len(paths):
                    start = now
                else:
                    self.timed += len(photos)
                    self.seconds = now - start
                progress.update(task, advance=count, description=f"detecting {self.rate_text}")

    @property
    def rate_text(self) -> str:
        """Return the photos per second; empty if nothing was timed."""
        return f"{self.timed / self.seconds:.3g} photos/s" if self.timed and self.seconds else ""

    def as_json(self, model: str) -> dict[str, Any]:
        plan = self.detector.plan
        return {"model": model, "device": plan.device.name,
                "description": plan.device.description, "threshold": self.detector.threshold,
                "nms": self.detector.nms, "resize": self.detector.resize,
                "photos_per_second": self.timed / self.seconds if self.timed else None,
                "results": [finding.as_json() for finding in self.findings]}

    def print_end(self) -> None:
        """Print the numbers of objects and photos, the device and the speed."""
        found = [finding for finding in self.findings if finding.error is None]
        objects = sum(len(finding.boxes) for finding in found)
        failed = f", {self.failed} could not be read" if self.failed else ""
        rate = f"; {self.rate_text}" if self.rate_text and len(self.findings) > 1 else ""
        print(f"\n{counted(objects, 'object') if objects else 'no objects'} on "
              f"{counted(len(found), 'photo')}{failed}; on "
              f"{self.detector.plan.device.name}{rate}")

    def _batches(self, paths: Sequence[Path]) -> Iterator[tuple[int, list[_Photo]]]:
        """Yield the size of each batch, and its readable photos."""
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
        """Find, print and draw the objects of a batch."""
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


_SUFFIXES = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
_LIST = "detections.json"


@dataclass(frozen=True)
class Finding:
    """The objects found on a photo.

    path: file of the photo.
    size: height and width of the photo.
    boxes: the objects, each with its box.
    error: reason why the photo could not be read; None if it was read.
    """

    path: Path
    size: tuple[int, int] = (0, 0)
    boxes: Sequence[Box] = ()
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        if self.error is not None:
            return {"image": str(self.path), "error": self.error}
        return {"image": str(self.path), "width": self.size[1], "height": self.size[0],
                "objects": [box.as_json() for box in self.boxes]}


@dataclass
class DetectOutput:
    """The files of --output.

    --output names the file of one photo, a folder for photos and a list of the findings (.json), or
    only the file of a list.

    name: value of the option.
    photos: the photos in order.
    read: the other input files of the command; they must not be replaced.
    """

    name: str
    photos: Sequence[Path]
    read: Iterable[str | Path | None] = ()
    _targets: dict[Path, Path] = field(init=False, default_factory=dict)
    _list: Path | None = field(init=False, default=None)
    _new_folder: Path | None = field(init=False, default=None)
    _has_written: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Choose the output file of each photo.

        Raises InputError if a file cannot be written, or would replace an input file.
        """
        option, path = f"--output {self.name}", Path(self.name)
        if not self.name:
            raise InputError("--output: the name is empty; expected a photo, a folder or a .json "
                             "file")
        suffix = path.suffix.lower()
        if suffix == ".json" and not path.is_dir():
            self._list = path
        elif suffix in _SUFFIXES and not path.is_dir():
            if len(self.photos) > 1:
                raise InputError(f"{option}: cannot write {len(self.photos)} photos to one file; "
                                 "use a folder")
            self._targets = {self.photos[0]: path}
        elif suffix and not path.is_dir() and not self.name.endswith("/"):
            raise InputError(f"{option}: expected a name that ends in "
                             f"{', '.join(_SUFFIXES)} or .json, or a folder (ending with "
                             "/)")
        else:
            self._targets = _inside(path, self.photos)
            self._list = path / _LIST
            if not path.is_dir():
                # the folder is created when the first file is written
                check_place(option, path, ())
                if path.exists():
                    raise InputError(f"{option}: is a file, expected a folder")
                self._new_folder = path
                return
        read = [*self.photos, *(file for file in self.read if file is not None)]
        for target in filter(None, [*self._targets.values(), self._list]):
            check_place(f"--output {target}", target, read)

    def write(self, photo: Path, image: np.ndarray, boxes: Sequence[Box]) -> None:
        """Write a photo with its boxes, unless --output is only a list."""
        target = self._targets.get(photo)
        if target is None:
            return
        drawn = Image.fromarray(draw_boxes(image, boxes))
        with self._replacing(target) as file:
            drawn.save(file, _SUFFIXES[target.suffix.lower()], quality=92)

    def finish(self, content: Mapping[str, Any]) -> bool:
        """Write the list of all findings, if --output has one.

        Returns whether any file was written. The result is False if there is no list and the only
        photo is unreadable.
        """
        if self._list is not None:
            with self._replacing(self._list) as file:
                file.write((json.dumps(content, indent=2) + "\n").encode(errors="backslashreplace"))
        return self._has_written

    @contextmanager
    def _replacing(self, target: Path) -> Iterator[IO[bytes]]:
        """Yield a file that replaces the target when it is complete.

        The target's folder is created. Raises InputError if the folder or the file cannot be
        created.
        """
        if self._new_folder is not None:
            try:
                self._new_folder.mkdir(exist_ok=True)
            except OSError as error:
                raise InputError(f"--output {self.name}: the folder cannot be created: "
                                 f"{error.strerror}") from None
        with replacing(target, f"--output {target}") as file:
            yield file
        self._has_written = True


def _inside(folder: Path, photos: Sequence[Path]) -> dict[Path, Path]:
    """Return an output file in the folder for each photo.

    The output file has the photo's name, with a number appended if several photos have the same
    name.
    """
    targets: dict[Path, Path] = {}
    taken: set[str] = set()
    for photo in photos:
        if photo in targets:
            continue
        suffix = photo.suffix if photo.suffix.lower() in _SUFFIXES else ".png"
        name, number = f"{photo.stem}{suffix}", 1
        while name.lower() in taken:
            number += 1
            name = f"{photo.stem}-{number}{suffix}"
        taken.add(name.lower())
        targets[photo] = folder / name
    return targets
