"""Writes the files of the verb `detect`: photos with boxes, and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from gossamer.detect.box import Box
from gossamer.detect.drawing import draw_boxes
from gossamer.errors import InputError
from gossamer.io.output_files import check_place, replacing

_SUFFIXES = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
_LIST = "detections.json"


@dataclass(frozen=True)
class Finding:
    """The objects that were found on a photo.

    path: file of the photo.
    size: height and width of the photo.
    boxes: the objects, each with its box.
    error: why the photo could not be read; None where it was read.
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
    """The files of --output: one photo, a folder of photos with a list, or a list alone.

    name: value of the option.
    photos: the photos in order.
    read: the other files that the command reads.
    """

    name: str
    photos: Sequence[Path]
    read: Iterable[str | Path | None] = ()
    _targets: dict[Path, Path] = field(init=False, default_factory=dict)
    _list: Path | None = field(init=False, default=None)
    _new_folder: Path | None = field(init=False, default=None)
    _has_written: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Decides where each photo goes. Raises InputError where a file could not be written, or
        would replace a file that the command reads."""
        option, path = f"--output {self.name}", Path(self.name)
        if not self.name:
            raise InputError("--output: the name is empty; expected a photo, a folder or a .json "
                             "file")
        suffix = path.suffix.lower()
        if suffix == ".json" and not path.is_dir():
            self._list = path
        elif suffix in _SUFFIXES and not path.is_dir():
            if len(self.photos) > 1:
                raise InputError(f"{option}: {len(self.photos)} photos do not go into one file; "
                                 "give a folder")
            self._targets = {self.photos[0]: path}
        elif suffix and not path.is_dir() and not self.name.endswith("/"):
            raise InputError(f"{option}: expected a name that ends in "
                             f"{', '.join(_SUFFIXES)} or .json, or a folder (with / at its "
                             "end)")
        else:
            self._targets = _inside(path, self.photos)
            self._list = path / _LIST
            if not path.is_dir():
                # the folder is made when the first file is written into it
                check_place(option, path, ())
                if path.exists():
                    raise InputError(f"{option}: is a file, expected a folder")
                self._new_folder = path
                return
        read = [*self.photos, *(file for file in self.read if file is not None)]
        for target in filter(None, [*self._targets.values(), self._list]):
            check_place(f"--output {target}", target, read)

    def write(self, photo: Path, image: np.ndarray, boxes: Sequence[Box]) -> None:
        """Writes a photo with its boxes, unless --output asks for the list alone."""
        target = self._targets.get(photo)
        if target is None:
            return
        drawn = Image.fromarray(draw_boxes(image, boxes))
        with self._replacing(target) as file:
            drawn.save(file, _SUFFIXES[target.suffix.lower()], quality=92)

    def finish(self, content: Mapping[str, Any]) -> bool:
        """Writes the list of all findings, where --output asks for a list. Returns whether any file
        was written: no file is written where the only photo could not be read."""
        if self._list is not None:
            with self._replacing(self._list) as file:
                file.write((json.dumps(content, indent=2) + "\n").encode(errors="backslashreplace"))
        return self._has_written

    @contextmanager
    def _replacing(self, target: Path) -> Iterator[IO[bytes]]:
        """Yields a file that becomes the target, and first makes the folder of --output where it is
        missing. Raises InputError where the folder or the file cannot be made."""
        if self._new_folder is not None:
            try:
                self._new_folder.mkdir(exist_ok=True)
            except OSError as error:
                raise InputError(f"--output {self.name}: the folder cannot be made: "
                                 f"{error.strerror}") from None
        with replacing(target, f"--output {target}") as file:
            yield file
        self._has_written = True


def _inside(folder: Path, photos: Sequence[Path]) -> dict[Path, Path]:
    """Returns a file in the folder for each photo. The file has the photo's name, with a number
    where another photo has the same name."""
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
