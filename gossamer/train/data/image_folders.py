"""Reads labelled pictures from folders: each class has a folder with the name of the class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from gossamer.errors import InputError
from gossamer.io.images import load_image
from gossamer.train.data.dataset import Dataset

SUFFIXES = (".bmp", ".png", ".jpg", ".jpeg")


def read(folder: Path, limit: int | None) -> Dataset:
    """Returns the pictures in the subfolders of a folder, as grey levels; all pictures must have
    the same size. The label of a picture is the name of its subfolder, as int64 where all names are
    whole numbers. Other files and hidden folders are ignored.

    The classes are evenly mixed, because a network that is trained on one class after the other
    forgets the first classes. The pictures of one class come in the order of their files' names.

    limit: largest number of samples; None for all.
    """
    files = labelled_files(folder, limit)
    first = files[0][0]
    shape = _grey(first).shape
    x = np.empty((len(files), shape[0] * shape[1]), np.float32)
    for row, (file, _) in zip(x, files, strict=True):
        pixels = _grey(file)
        if pixels.shape != shape:
            raise InputError(f"{file}: is {pixels.shape[0]}x{pixels.shape[1]}, {first} is "
                             f"{shape[0]}x{shape[1]}; expected pictures of one size (height x "
                             "width)")
        row[:] = pixels.reshape(-1)
    names = sorted({name for _, name in files})
    places = np.searchsorted(names, [name for _, name in files])
    y = _labels(names)[places]
    return Dataset(x, y, (shape[0], shape[1]), True, str(folder))


def labelled_files(folder: Path, limit: int | None) -> list[tuple[Path, str]]:
    """Returns at most `limit` pictures in the subfolders of a folder, each with the name of its
    subfolder, in the order of read(). Raises InputError where there are no pictures."""
    classes = sorted(entry for entry in folder.iterdir()
                     if entry.is_dir() and not entry.name.startswith((".", "__")))
    if not classes:
        raise InputError(f"{folder}: has no folders; expected one a class, with pictures "
                         f"({', '.join(SUFFIXES)}), or files to train on")
    entries: list[tuple[float, int, Path]] = []
    for index, class_folder in enumerate(classes):
        files = sorted(file for file in class_folder.iterdir() if file.suffix.lower() in SUFFIXES
                       and not file.name.startswith("."))
        if not files:
            raise InputError(f"{class_folder}: the class has no pictures ({', '.join(SUFFIXES)})")
        entries += [((position + 0.5) / len(files), index, file)
                    for position, file in enumerate(files)]
    return [(file, classes[index].name) for _, index, file in sorted(entries)[:limit]]


def _grey(path: Path) -> np.ndarray:
    """Returns the grey levels of a picture, (height, width) uint8."""
    return np.asarray(Image.fromarray(load_image(path)).convert("L"))


def _labels(names: list[str]) -> np.ndarray:
    """Returns the label of each class: its name, or int64 where all names are whole numbers."""
    if all(name.isascii() and name.isdigit() for name in names) \
            and len(set(map(int, names))) == len(names):
        return np.array(list(map(int, names)))
    return np.array(names)
